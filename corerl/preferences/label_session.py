"""A person's answers, saved as they come: what is asked, what was said, and how well two agree."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.data.files.io import npz
from corerl.errors import CorerlError
from corerl.preferences import readers, teachers
from corerl.preferences.comparisons import LABELS
from corerl.preferences.readers import fingerprint, is_of
from corerl.preferences.sources import Preferences

SKIPPED = -1.0
OWN = ("pairs", "answers", "order", "seconds", "labeller")
"""A session's arrays in its file, beside those that `algo.preferences.source=file` reads."""


class Session:
    """P questions about pairs of segments, or about the order of K, the answers so far and their file.

    The file is whole after every answer, and is what `algo.preferences.source=file` reads: of the pairs
    that are answered, not those that were skipped. A later session on the same file goes on.

    Attributes:
        pairs: (P, K) int64, first rows. length: steps of a segment.
        answers: (P,) 0 (the first), 0.5 (neither), 1 (the second), -1 (skipped), NaN (not yet asked). Of
            K > 2, 0 is answered.
        ranks: (P, K) places in `pairs`, best first; -1 where none is known, and for pairs.
        order: the answered pairs, the last one last. path: the file.

    Args:
        dataset: what the segments are rows of.
        pairs: how many are asked. length, seed, ranked: as a scripted teacher's (`Preferences`).
        asked: (P, K) first rows to ask about instead.

    Raises:
        CorerlError: the file is of other data, another length, seed or labeller, or is no file of ours.
    """

    def __init__(
        self,
        dataset: Dataset,
        path: Path,
        pairs: int,
        length: int,
        seed: int,
        labeller: str,
        ranked: int = 2,
        asked: np.ndarray | None = None,
    ):
        self.dataset, self.path, self.length, self.labeller = dataset, path, length, labeller
        drawn = Preferences(pairs=pairs, length=length, seed=seed, ranked=ranked)
        if asked is not None:
            self.pairs = asked
        elif ranked > 2:
            self.pairs = teachers.questions(dataset, drawn, pairs)
        else:
            self.pairs = teachers.teach(dataset, drawn).starts
        self.ranks = np.full(self.pairs.shape, -1)
        self.answers = np.full(pairs, np.nan)
        self.seconds = np.zeros(pairs)
        self.order: list[int] = []
        self._sha = fingerprint(dataset)
        self._shown_at: dict[int, float] = {}
        if path.exists():
            self._go_on()

    def _go_on(self) -> None:
        parts = read(self.path)
        path, known = self.path, parts["pairs"]
        if not is_of(str(parts["sha256"]), self.dataset):
            raise CorerlError(
                f"{path} has labels of data that differs from {self.dataset.id} on this machine. "
                "Choose another --out."
            )
        require(
            int(parts["length"]) == self.length,
            f"{path} has segments of {int(parts['length'])} steps. Give --length {int(parts['length'])}, or "
            "choose another --out",
        )
        shared = min(len(known), len(self.pairs))
        require(
            known.shape[1] == self.size,
            f"{path} has questions about {known.shape[1]} segments each. Give --ranked "
            f"{known.shape[1]}, or choose another --out",
        )
        require(
            len(known) <= len(self.pairs) and (known == self.pairs[:shared]).all(),
            f"{path} has {len(known)} pairs that differ from those of this command. Give the --seed of the "
            "first command and at least as many --pairs, or choose another --out",
        )
        self.answers[:shared], self.seconds[:shared] = parts["answers"], parts["seconds"]
        self.ranks[:shared] = parts.get("ranks", -1)
        self.order = parts["order"].tolist()
        theirs = str(parts["labeller"])
        require(
            self.labeller in ("", theirs) or not theirs,
            f"{path} has the answers of {theirs}, not of {self.labeller}. Give --labeller "
            f"{theirs}, or choose another --out",
        )
        self.labeller = theirs or self.labeller

    @property
    def size(self) -> int:
        """K, the segments of a question."""
        return self.pairs.shape[1]

    def current(self) -> int | None:
        """Returns the pair to be asked next, or None where all have been."""
        unasked = np.flatnonzero(np.isnan(self.answers))
        return int(unasked[0]) if unasked.size else None

    def shown(self, pair: int) -> None:
        """Notes that a person sees a pair from now on, which is what `seconds` count from."""
        self._shown_at[pair] = time.monotonic()

    def answer(self, pair: int, label: float, ranks: Sequence[int] = ()) -> None:
        """Keeps one answer, in the file too. Of K > 2 segments the label is 0, with `ranks` best first.

        Raises:
            CorerlError: there is no such pair, the label is none, or the disk is full.
        """
        require(
            0 <= pair < len(self.pairs),
            f"There is no pair {pair}. Pairs go from 0 to {len(self.pairs) - 1}",
        )
        require(
            label in (*LABELS, SKIPPED),
            f"An answer must be one of {', '.join(map(str, (*LABELS, SKIPPED)))}, not {label}",
        )
        whole = sorted(ranks) == list(range(self.size)) and label == 0
        require(
            whole or label == SKIPPED if self.size > 2 else not ranks,
            f"{list(ranks)} must be an order of {self.size} segments",
        )
        now = time.monotonic()
        with self._saved():
            self.answers[pair], self.seconds[pair] = label, now - self._shown_at.get(pair, now)
            self.ranks[pair] = list(ranks) or -1
            self.order = [*(other for other in self.order if other != pair), pair]

    def undo(self) -> int | None:
        """Takes the last answer back, in the file too. The pair, or None where there is none.

        Raises:
            CorerlError: the disk is full.
        """
        if not self.order:
            return None
        with self._saved():
            pair = self.order.pop()
            self.answers[pair], self.ranks[pair] = np.nan, -1
        return pair

    @contextmanager
    def _saved(self) -> Iterator[None]:
        """Saves what is changed inside, and takes the change back where it cannot be saved."""
        before = self.answers.copy(), self.seconds.copy(), self.ranks.copy(), list(self.order)
        yield
        try:
            self.save()
        except CorerlError:  # what is not in the file has not been answered
            self.answers, self.seconds, self.ranks, self.order = before
            raise

    def state(self) -> dict[str, Any]:
        """Returns what the page shows: the current pair, and counts."""
        return {
            "current": self.current(),
            "total": len(self.pairs),
            "answered": int(np.isin(self.answers, LABELS).sum()),
            "skipped": int((self.answers == SKIPPED).sum()),
            "can_undo": bool(self.order),
            "path": str(self.path),
            "task": self.dataset.id,
            "steps": self.length,
            "size": self.size,
        }

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        kept = np.flatnonzero(np.isin(self.answers, LABELS))
        starts = self.pairs[kept]
        if self.size > 2:
            starts = np.take_along_axis(starts, self.ranks[kept], 1)
        readers.save(
            self.path,
            starts=starts,
            labels=self.answers[kept],
            labellers=np.full(len(kept), self.labeller or "person"),
            ranks=self.ranks,
            length=self.length,
            source=f"person({self.labeller})" if self.labeller else "person",
            dataset=self.dataset.id,
            sha256=self._sha,
            pairs=self.pairs,
            answers=self.answers,
            order=np.array(self.order, np.int64),
            seconds=self.seconds,
            labeller=self.labeller,
        )


def read(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a file that a session wrote, or raises CorerlError if it is another kind."""
    with npz(path, "an npz file of labels") as file:
        missing = [
            name for name in ("starts", "labels", "length", "sha256", *OWN) if name not in file
        ]
        if missing:
            raise CorerlError(
                f"it has no {', '.join(missing)}, so `corerl label` did not write it. Choose another file."
            )
        return {name: file[name] for name in file.files}


def agreement(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """Measures how far two labellers agree on the pairs that both answered.

    `pairs` is their number, `same` the share of equal answers, `opposed` that of opposite preferences;
    `kappa` is Cohen's (1960): agreement beyond that of two labellers who give the same answers as
    often, but by chance; 1 is perfect.

    Raises:
        CorerlError: they share no pair, or their segments are not of one length.
    """
    lengths = [int(file["length"]) for file in (one, other)]
    require(
        lengths[0] == lengths[1],
        f"the two files have segments of {lengths[0]} and {lengths[1]} steps. Compare files with the same "
        "--length",
    )
    first = dict(pairs_of_file(one))
    shared = [(first[pair], label) for pair, label in pairs_of_file(other) if pair in first]
    require(
        bool(shared),
        "the two files have no answered pair in common. Answer more pairs with the same --seed",
    )
    return _agreement(np.array(shared))


def pairs_of_file(file: dict[str, np.ndarray]) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields each pair that was judged, with its label. Those of rankings with the lower row first."""
    for starts, label in zip(file["starts"].tolist(), file["labels"].tolist(), strict=True):
        if len(starts) == 2:
            yield tuple(starts), label
            continue
        for better, worse in itertools.combinations(starts, 2):
            yield (min(better, worse), max(better, worse)), float(better > worse)


def with_teacher(file: dict[str, np.ndarray], dataset: Dataset) -> dict[str, float]:
    """Measures `agreement` with the oracle of the true rewards, which ties only equal sums."""
    require(
        len(file["labels"]) > 0,
        "the file has no answers yet. Answer some questions with `corerl label`",
    )
    pairs, given = zip(*pairs_of_file(file), strict=True)
    rows = np.array(pairs)[..., None] + np.arange(int(file["length"]))
    sums = dataset.rewards.astype(np.float64)[rows].sum(-1)
    labels = np.where(sums[:, 0] == sums[:, 1], 0.5, sums[:, 1] > sums[:, 0])
    return _agreement(np.stack([np.array(given), labels], 1))


def _agreement(pairs: np.ndarray) -> dict[str, float]:
    one, two = pairs.T
    same = float((one == two).mean())
    chance = sum(float((one == label).mean() * (two == label).mean()) for label in LABELS)
    return {
        "pairs": len(pairs),
        "same": same,
        "kappa": (same - chance) / (1 - chance) if chance < 1 else float("nan"),
        "opposed": float((np.abs(one - two) == 1).mean()),
    }


def by_name(paths: Sequence[Path]) -> dict[str, dict[str, np.ndarray]]:
    """Files by who labelled, or by their name where they do not say."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for path in paths:
        parts = read(path)
        name = str(parts["labeller"]) or path.stem
        found[name if name not in found else str(path)] = parts
    return found
