"""Hindsight PRIOR: rewards follow what a world model looks at.

Verma and Metcalf 2024, ICLR, arXiv:2404.08828. A comparison of segments does not say which step decided it. A
causal transformer learns to predict the next state. How much the last token of a segment looks at a step is
that step's importance w_t, and these sum to 1. The reward is fitted to

    cross-entropy of the preferences + algo.reward.prior * mean over t of (r_t - w_t * sum of r)^2

The importance of a step is the attention to its two tokens, a mean over layers and heads.

The authors' repository could not be read. What differs from typoverflow/WiseRL (branch prior at 052e340),
which has an offline version on IQL.
 1. Dropout is off where importance is read. Theirs stays on.
 2. A step's tokens are action and state, as in the Preference Transformer. Theirs are state and action.
 3. MLPs have ReLU instead of GELU, and LeCun's first weights.
 4. The gradient flows through both sides of the square, as theirs. Weights of 1 to 1000 are in use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.buffers.packed import PackedRows
from corerl.config import positive, within
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.preferences.buffer import Pairs
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.reward_transformer import SegmentTransformer
from corerl.training.run import Run

PIECE = 64
"""Comparisons whose importance is computed at once."""


@dataclass
class World(transformer.TransformerSettings):
    """The world model behind `algo.reward.prior`. Part of an algorithm's `Config`, as `world`."""

    prefix: ClassVar[str] = "algo.world."

    steps: int = positive(10_000)  # updates of the world model at first (offline) or per session
    layers: int = positive(3)
    heads: int = positive(1)
    width: int = positive(256)
    dropout: float = within(0.1, "[0, 1)")
    lr: float = positive(3e-4)
    batch_size: int = positive(64)  # segments per batch


class Windows(NamedTuple):
    """B segments of L steps for S seeds, and the states that follow."""

    observations: Tensor  # (S, B, L, O)
    actions: Tensor  # (S, B, L, A)
    next_observations: Tensor  # (S, B, L, O)


def prior_loss(rewards: Tensor, importance: Tensor) -> Tensor:
    """Returns the mean over segments and steps of (r_t - w_t * sum r)^2. Both `(..., B, K, L)`."""
    redistributed = importance * rewards.sum(-1, keepdim=True)
    return (rewards - redistributed).square().mean((-3, -2, -1))


class WorldTransformer(SegmentTransformer):
    """Predicts next states from the tokens of states."""

    def __init__(self, cfg: World, observation_dim: int, action_dim: int, rngs: list, length: int):
        super().__init__(cfg, observation_dim, action_dim, rngs, length)
        lead = (len(rngs),)
        self.head = networks.Linear(cfg.width, observation_dim, lead, rngs, networks.lecun)

    def predicted(self, observations: Tensor, actions: Tensor, keys: Tensor | None) -> Tensor:
        """Returns the states that follow `(S, n, L, O)`."""
        valid = torch.ones_like(observations[..., 0])
        return transformer.each(self.head, self.hidden(observations, actions, valid, keys))

    def importance(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns how much the last token looks at each step, `(S, n, L)` and sums are 1."""
        x, allowed = self.embedded(observations, actions, torch.ones_like(observations[..., 0]))
        looks = []
        for block in self.blocks:
            looks.append(block.weights(x, allowed, slice(-1, None)).mean((2, 3)))
            x = block(x, allowed)
        return torch.stack(looks).mean(0).unflatten(-1, (-1, 2)).sum(-1)


class WorldModel(Stateful):
    """S learners of a world model on segments of at most `length` steps."""

    def __init__(self, cfg: World, spec: Spec, length: int):
        sizes = spec.observation_dim, spec.action_dim
        self.network = WorldTransformer(cfg, *sizes, spec.rngs, length).to(spec.device)
        self.optimizer = optim.Adam(self.network.parameters(), cfg.lr)
        self.keys = transformer.dropout_keys(
            spec.identities, self.network.places, spec.device, "world dropout"
        )
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)
        self._update = compile.captured(self._step, spec.mode)

    def loss(self, windows: Windows, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the mean absolute error of the next states. `keys` are for dropout."""
        found = self.network.predicted(windows.observations, windows.actions, keys)
        loss = (found - windows.next_observations).abs().mean((1, 2, 3))
        return loss, {"world_loss": loss}

    def update(self, windows: Windows) -> dict[str, Tensor]:
        """Takes one step."""
        return self._update(windows, self.keys.next())

    @torch.no_grad()
    def importance(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the importance `(S, B, K, L)` of the steps of segments `(S, B, K, L, ...)`."""
        found = [
            self.network.importance(*(x.flatten(1, 2) for x in piece))
            for piece in zip(observations.split(PIECE, 1), actions.split(PIECE, 1), strict=True)
        ]
        return torch.cat(found, 1).unflatten(1, observations.shape[1:3])

    def judged(self, pairs: Pairs) -> Pairs:
        """Returns the comparisons with the importance of their steps."""
        return pairs._replace(importance=self.importance(pairs.observations, pairs.actions))


def model(
    cfg: World, sizes: tuple[int, int], seeds: Sequence[int], length: int, **options: Any
) -> WorldModel:
    """Returns a world model that has learned nothing yet. `options` are of `Spec`."""
    rngs = seeding.generators(seeds, "world")
    return WorldModel(cfg, Spec(*sizes, rngs, identities=seeds, **options), length)


class WindowBuffer(PackedRows):
    """All segments of `length` steps within the episodes that comparisons are from.

    Each seed draws its own, uniformly with replacement. Where nothing is known behind a step, its own state
    counts as the one that follows it.
    """

    def __init__(
        self,
        compared: Comparisons,
        seeds: Sequence[int],
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
    ):
        names = ("observations", "actions", "next_observations")
        super().__init__([getattr(compared, name) for name in names], device)
        stop = np.repeat(compared.ends, np.diff(compared.ends, prepend=0))
        starts = np.flatnonzero(np.arange(len(stop)) + length <= stop)
        self._starts = torch.from_numpy(starts).to(device)
        self._steps = torch.arange(length, device=device)
        self._indices = seeding.indices(seeds, len(starts), batch_size, device, "windows")

    def sample(self) -> Windows:
        """Samples the next batch of every seed."""
        rows = self._starts[self._indices.next()][..., None] + self._steps
        return Windows(*self._rows[rows].split(self._sizes, -1))

    def state_dict(self) -> dict:
        """Returns the position in the stream. The data is not part of a checkpoint."""
        return self._indices.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._indices.load_state_dict(state)


def offline(
    run: Run, cfg: World, seeds: Sequence[int], compared: Comparisons, length: int
) -> tuple[WorldModel, WindowBuffer]:
    """Returns the run's world model and what it learns from, for the seeds that draw."""
    windows = WindowBuffer(compared, seeds, cfg.batch_size, length, run.device)
    sizes = windows.observation_dim, windows.action_dim
    return model(cfg, sizes, seeds, length, device=run.device, mode=run.mode), windows
