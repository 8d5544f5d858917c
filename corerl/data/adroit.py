"""`adroit/...`: the hand's sparse tasks, of demonstrations alone: -1 a step, 0 and the end at success.

RLPD, Cal-QL and WSRL fine-tune on pen, door and relocate with binary rewards, from the demonstrations of
25 people and some 500 rollouts of policies cloned from them (Nair et al. 2020, arXiv:2006.09359). The
rollouts are not public in a form that we read, so a set here is the demonstrations: D4RL's `-human-v1`
file, or the recordings that D4RL made it from, `<hand>-human-dapg-demos.hdf5` in the data folder. Its
rewards are replaced by the environment's own test of success, and an episode ends at its first success
(our reading); a dropped pen ends none. The score is the share of solved episodes, x 100. Of the 25 door
demonstrations 7 pass that test with a next state: 17 stop before the hinge has turned by 1.35, two of them
at 1.349.

The authors read their data otherwise. RLPD's (ikostrikov/rlpd at c90fd4b) keeps the steps after a success,
and no success is terminal, neither in the data nor in the environment. Cal-QL's and WSRL's (nakamotoo/Cal-QL
at ac6eafe, zhouzypaul/wsrl at 891ee35) leaves out episodes without a success and cuts the others after
their last one; every success is terminal.
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np

from corerl.data import d4rl, download, simulators
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError, nearest

HANDS = ("door", "pen", "relocate")


def names() -> list[str]:
    return [f"{hand}-binary" for hand in HANDS]


def load(name: str) -> Dataset:
    """Loads the demonstrations of `adroit/<name>`, relabelled."""
    hand = _hand(name)
    path = find(name) or fetch(name)
    return relabel(d4rl.read(path, f"adroit/{name}", d4rl.time_limit(hand)), hand)


def find(name: str) -> Path | None:
    """Finds the task's file on this machine."""
    hand = _hand(name)
    demonstrations = download.find("d4rl", [f"{hand}-human-dapg-demos.hdf5"])
    return d4rl.find(f"{hand}-human-v1") or demonstrations


def fetch(name: str) -> Path:
    """Downloads D4RL's file to the data folder."""
    return d4rl.fetch(f"{_hand(name)}-human-v1")


def reference(name: str) -> None:
    """Returns None: tasks are scored by success."""
    return


def relabel(dataset: Dataset, hand: str) -> Dataset:
    """Makes rewards of -1, and 0 at an episode's first success, which ends it. Later rows are left out.

    An end of the file that is no success is none here. What follows it there is another episode's first
    state, so that its row makes no transition.
    """
    success = solved(hand, dataset.next_observations) & dataset.has_next
    kept = np.ones(len(dataset), bool)
    last = dataset.episode_ends - 1
    for start, end in zip(dataset.episode_starts, dataset.episode_ends, strict=True):
        for first in start + np.flatnonzero(success[start:end])[:1]:
            kept[first + 1 : end] = False
            last[dataset.episode_ends == end] = first
    truncated = np.zeros(len(dataset), bool)
    truncated[last] = ~success[last]
    has_next = dataset.has_next & ~(dataset.terminated & ~success)
    return Dataset.from_steps(
        dataset.id,
        dataset.observations[kept],
        dataset.actions[kept],
        success[kept] - np.float32(1),
        dataset.next_observations[kept],
        terminated=success[kept],
        truncated=truncated[kept],
        has_next=has_next[kept],
    )


def solved(hand: str, observations: np.ndarray) -> np.ndarray:
    """Marks the states `(..., O)` that are goals, by the rules of gymnasium-robotics' environments."""
    if hand == "door":  # its hinge, in radians
        return observations[..., 28] >= 1.35
    if hand == "relocate":  # from ball to target, in metres
        return np.linalg.norm(observations[..., 36:39], axis=-1) < 0.1
    away = np.linalg.norm(observations[..., 39:42], axis=-1)
    alike = (observations[..., 33:36] * observations[..., 36:39]).sum(-1)
    return (away < 0.075) & (alike > 0.95)


class Binary(gymnasium.Wrapper):
    """-1 a step, and 0 and the end at `info["success"]`."""

    def step(self, action):
        observation, _, terminated, truncated, info = self.env.step(action)
        success = bool(info["success"])
        info["success"] = success
        return observation, float(success) - 1.0, terminated or success, truncated, info


def make_env(name: str) -> gymnasium.Env:
    """Makes the hand with binary rewards, whose episodes continue after a drop, unlike D4RL's pen."""
    hand = _hand(name)
    return Binary(simulators.make_hand(hand, d4rl.time_limit(hand)))


def _hand(name: str) -> str:
    if name not in names():
        raise CorerlError(f"There is no adroit/{name}.{nearest(name, names())}")
    return name.partition("-")[0]
