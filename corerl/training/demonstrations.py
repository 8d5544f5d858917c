"""Batches whose first rows are demonstrations, beside those of a replay that began as the dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.replay import Batch, OfflineBuffer
from corerl.config import Settings, positive, within
from corerl.data.dataset import Dataset, Transitions
from corerl.nn.networks import Normalizer
from corerl.training import preprocessing, weighting
from corerl.training.offline_to_online import Phases, check_warmup
from corerl.training.run import Run


@dataclass
class Demos(Settings):
    """Settings for the imitated rows of a batch. Part of an algorithm's `Config`, beside `batch_size`."""

    prefix: ClassVar[str] = "algo.demos."

    rows: int = positive(256)  # demonstration rows per batch, besides batch_size other rows
    share: float = within(1.0, "(0, 1]")  # share of episodes used as demonstrations, best first


class Ranked(OfflineBuffer):
    """Rows in the order of their labels, their episodes' ranks: the best episodes are a piece at the end."""

    def __init__(
        self,
        transitions: Transitions,
        seeds: Sequence[int],
        batch_size: int,
        device: torch.device | str,
        labels: np.ndarray,
    ):
        order = np.argsort(labels, kind="stable")
        ranked = Transitions(*(None if x is None else x[order] for x in transitions))
        super().__init__(ranked, seeds, batch_size, device)
        self._indices = seeding.numbers(seeds, "ranked batch", batch_size, device)
        self._firsts = np.unique(labels[order], return_index=True)[1]  # each episode's first row

    def rows_of_best(self, share: float) -> int:
        """Returns how many rows this share of the episodes has, best first, at least one episode."""
        episodes = max(1, int(share * len(self._firsts)))
        return len(self) - int(self._firsts[-episodes])

    def best(self, size: int, count: int | None = None) -> Batch:
        """Samples the `size` best rows alone."""
        return self._take(self._indices.next()[:, :count] % size + (len(self) - size))[0]

    def sample(self, count: int | None = None) -> Batch:
        return self.best(len(self), count)


def load(run: Run, cfg: Any) -> tuple[Ranked, Normalizer]:
    """Loads the run's data by the ranks of its episodes and raises as `preprocessing.load`."""
    weighting.refuse(cfg.data, "algo.demos.share already draws the best episodes")
    rows = max(cfg.demos.rows, cfg.batch_size)
    labels = partial(_ranks, shift=cfg.data.reward_shift)
    return preprocessing.load(run, cfg.data, rows, labels=labels, kind=Ranked)


def _ranks(dataset: Dataset, shift: float = 0.0) -> np.ndarray:
    """Returns the rank of each row's episode by its return, the best last.

    Returns are less a `shift` of every reward, which ranks by length.
    """
    lengths = dataset.episode_lengths()
    returns = dataset.episode_returns() - shift * lengths
    ranks = np.argsort(np.argsort(returns, kind="stable"))
    return np.repeat(ranks, lengths)


class Rows:
    """Batches of `demos.rows` demonstrations and `batch_size` rows of experience.

    With `online.offline_ratio=null` experience is one buffer of `online.capacity` rows that began as the
    dataset, worst episodes first, so that steps of the environment overwrite those first. With a number
    it is a mixture in that proportion.

    Args:
        cfg: the algorithm's, with `demos`, `batch_size` and `online`.
        data: of `load`. phases: of the same run.
    """

    def __init__(self, cfg: Any, run: Run, data: Ranked, phases: Phases):
        self._cfg, self._data, self._phases = cfg, data, phases
        self._demos = data.rows_of_best(cfg.demos.share)
        self._coins = seeding.uniform(run.seeds, "experience", (cfg.batch_size,), run.device)

    def sample(self, step: int) -> Batch:
        """Samples the next batch of every seed, `demos.rows + batch_size` rows."""
        demos = self._data.best(self._demos, self._cfg.demos.rows)
        pairs = zip(demos, self._experience(step), strict=True)
        return Batch(*(torch.cat(pair, 1) for pair in pairs))

    def _experience(self, step: int) -> Batch:
        online, acts = self._cfg.online, self._phases.online(step)
        if acts and online.offline_ratio is not None:
            return self._phases.sample(step)
        added = len(self._phases.replay) if acts else 0
        kept = max(0, min(len(self._data), online.capacity - added))
        data = self._data.best(max(kept, 1), self._cfg.batch_size)
        if not added:
            return data
        from_data = self._coins.next() < kept / (kept + added)
        pairs = zip(data, self._phases.replay.sample(), strict=True)
        return Batch(*(torch.where(_beside(from_data, a), a, b) for a, b in pairs))

    def state_dict(self) -> dict:
        """Returns the stream of decisions. Data and replay have their own state."""
        return self._coins.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._coins.load_state_dict(state)


def _beside(rows: Tensor, field: Tensor) -> Tensor:
    return rows if field.ndim == 2 else rows[..., None]


def check(cfg: Any) -> None:
    """Raises CorerlError where the first update would need a step of the environment."""
    if cfg.online.offline_ratio is not None:
        check_warmup(cfg)
