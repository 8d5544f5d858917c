"""Finite MDPs in a run: playing exact policies, and learners whose loss against the optimum is known."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl.risk.finite_mdp import FiniteMDP, Policy


class TabularPlayer:
    """A player of policies, one per seed, from one-hot observations `(S, n, O) -> (S, n)`.

    It remembers the time and what was collected, which an observation need not tell.
    """

    def __init__(self, mdp: FiniteMDP, policies: Sequence[Policy]):
        self.mdp, self.policies = mdp, policies

    def begin(self, seeds: int, episodes: int) -> None:
        self._t, self._collected = 0, np.zeros((seeds, episodes))

    def reward(self, rewards: Tensor) -> None:
        self._collected += self.mdp.discount**self._t * rewards.cpu().numpy()
        self._t += 1

    def __call__(self, observations: Tensor) -> Tensor:
        states = observations[..., : self.mdp.sizes[0]].argmax(-1).cpu().numpy()
        t = min(self._t, self.mdp.steps - 1)
        actions = [
            [policy(t, state, collected) for state, collected in zip(*row, strict=True)]
            for policy, *row in zip(self.policies, states, self._collected, strict=True)
        ]
        return torch.tensor(actions)


def play(
    mdp: FiniteMDP, table: np.ndarray | None, rng: np.random.Generator
) -> list[tuple[int, int, int]]:
    """Plays an episode by a table `(H, S)` of actions, or uniformly: (state, action, successor) per step."""
    trajectory, state = [], mdp.first(rng)
    for t in range(mdp.horizon):
        action = int(rng.integers(mdp.sizes[1]) if table is None else table[t, state])
        successor = mdp.step(state, action, rng)[1]
        trajectory.append((state, action, successor))
        state = successor
    return trajectory


class TabularLearner:
    """A learner whose state is a few arrays and counters, by name, and its generator.

    Attributes:
        arrays, counters: the names. rng: what it draws from.
    """

    arrays: ClassVar[tuple[str, ...]]
    counters: ClassVar[tuple[str, ...]] = ("episodes",)
    rng: np.random.Generator

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in self.arrays}
        counters = {name: getattr(self, name) for name in self.counters}
        return arrays | counters | {"generator": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.arrays:
            getattr(self, name)[...] = state[name].numpy()
        for name in self.counters:
            setattr(self, name, state[name])
        self.rng.bit_generator.state = state["generator"]


class Learners:
    """One learner per seed, and what they have lost against the optimum.

    Args:
        learners: `episode()` learns from one and returns numbers to log; they have a state.
        optimum: the exact value of the best policy.
        value: the exact one of the policy that a learner's last episode planned.
    """

    def __init__(self, learners: Sequence[Any], optimum: float, value: Callable[[Any], float]):
        self.learners, self.optimum, self._value = list(learners), optimum, value
        self.regret = torch.zeros(len(self.learners), dtype=torch.float64)

    def update(self) -> dict[str, Tensor]:
        """Plays and learns an episode of each learner; returns metrics (S,)."""
        logged = [learner.episode() for learner in self.learners]
        values = [self._value(learner) for learner in self.learners]
        loss = self.optimum - torch.tensor(values, dtype=torch.float64)
        self.regret += loss
        metrics = {name: torch.tensor([row[name] for row in logged]) for name in logged[0]}
        return {"suboptimality": loss, "regret": self.regret} | metrics

    def state_dict(self) -> dict[str, Any]:
        return {"learners": [l.state_dict() for l in self.learners], "regret": self.regret}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for learner, saved in zip(self.learners, state["learners"], strict=True):
            learner.load_state_dict(saved)
        self.regret.copy_(state["regret"])
