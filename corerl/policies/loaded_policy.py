"""Trained policies of a run, in memory: they act and are evaluated (corerl/policies/load.py loads them)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from corerl.config import Config, require
from corerl.data import tasks
from corerl.data.files import own_files
from corerl.data.files.arrays import array
from corerl.data.observations import Flat, by_name, first, flattened, later, wrapper
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.policies.restored import Restored, Shapes, as_kept, shapes_of
from corerl.training.devices import pick_device
from corerl.training.experience import EpsilonGreedy
from corerl.training.offline_stocks import OfflineStockPlayer
from corerl.training.random_policy import SampledPolicy


class Loaded:
    """Trained policies of S seeds of one run.

    Attributes:
        cfg: the run's settings. path: its folder. task: what it was trained on.
        seeds: the S seeds. steps: `(S,)` updates that each has had.
        acting: settings of the algorithm that were chosen to act with.
        steering: whose critic chooses its actions, and how; empty where none does.
    """

    def __init__(
        self,
        cfg: Config,
        path: Path,
        parts: Sequence[Restored],
        seed: int | None = None,
        acting: Mapping[str, Any] | None = None,
    ):
        self.cfg, self.path, self._parts, self._seed = cfg, path, list(parts), seed
        self.acting = dict(acting or {})
        self.steering: dict[str, Any] = {}
        self.task: Task = tasks.of(cfg)
        self._frames: np.ndarray | None = None
        self._begun: int | None = None  # episodes of each seed
        self._acted: tuple[int, ...] | None = None  # shape of the last actions, less features
        every = [s for part in self._parts for s in part.seeds]
        self.seeds = every if seed is None else [seed]
        self.steps = [part.step for part in self._parts for s in part.seeds if s in self.seeds]
        self._order = sorted(range(len(every)), key=every.__getitem__)
        if seed is None:
            self.seeds = [every[i] for i in self._order]
            self.steps = [self.steps[i] for i in self._order]

    @property
    def label(self) -> str:
        """The algorithm's name in tables."""
        return self.cfg.label or self.cfg.algo.label

    @property
    def device(self) -> torch.device:
        """The device on which the policies compute."""
        return pick_device(self.cfg.device)

    @property
    def remembers(self) -> bool:
        """True if actions depend on the episode: then call `reset` at its start, `earned` after steps."""
        return any(part.remembers for part in self._parts)

    @property
    def samples(self) -> bool:
        """True if it makes its actions of random noise, as flows do."""
        return isinstance(self._parts[0].act, SampledPolicy)

    @property
    def tau(self) -> float | None:
        """The level of CVaR that it plays for, or None where that is not chosen in play."""
        act = self._parts[0].act
        return act.tau if isinstance(act, OfflineStockPlayer) else None

    def play_for(self, tau: float) -> None:
        """Chooses the level of CVaR to play for, from the next episode on."""
        require(
            self.tau is not None,
            f"{self.label} cannot optimise another tau than in training. Leave tau out, or train "
            "algo=cvar_offline, which learns every tau at once",
        )
        require(0 < tau <= 1, f"tau={tau:g} must lie in (0, 1]")
        for part in self._parts:
            part.act.tau = tau

    def only(self, seed: int) -> Loaded:
        """Returns the policy of one seed, whose actions have no seed axis."""
        parts = [part for part in self._parts if seed in part.seeds]
        if not parts:
            known = ", ".join(map(str, self.seeds))
            raise CorerlError(f"{self.path} has no seed {seed}. Its seeds are {known}.")
        return Loaded(self.cfg, self.path, parts, seed, self.acting)

    # Acting.

    def act(self, observations: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the actions with which the policy is evaluated, at raw observations.

        A policy that was trained with `history=K` reads the latest K of the calls since `reset`, or K that
        are given side by side, oldest first, `(K * O,)`.

        Args:
            observations: one, `(O,)`, or n of them, `(n, O)`; the same for every seed. A dictionary's parts,
                each as the environment shows it or as a vector, are laid side by side in the order of
                training.

        Returns:
            `(S, A)` or `(S, n, A)`, without A where actions are discrete; without S for one seed.
        """
        shape = self.shapes.observation
        if isinstance(observations, Mapping):
            observations = self._side_by_side(observations)
        observations = array(observations, "observations")
        history = self.task.history
        if history > 1 and (observations.shape or (0,))[-1] * history == shape[0]:
            observations = self._with_history(observations)
        several = observations.shape[: observations.ndim - len(shape)]
        if observations.shape != (*several, *shape) or len(several) > 1 or several == (0,):
            raise CorerlError(
                f"{self.label} on {self.task.id} needs observations of shape {shape} or (n, "
                f"{', '.join(map(str, shape))}), not {observations.shape}."
            )
        observations = as_kept(observations, shape, self._kept)
        tensor = torch.from_numpy(observations if several else observations[None])
        self._follow(len(tensor))
        actions = self(tensor.to(self.device).expand(len(self.seeds), *tensor.shape))
        actions = actions.cpu().numpy()
        actions = actions if several else actions[:, 0]
        self._acted = (len(self.seeds), *several)[self._seed is not None :]
        return actions if self._seed is None else actions[0]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Names of an observation's parts, in the order of training. None where it is no dictionary."""
        if names := own_files.parts(self.task.data):
            return tuple(names)
        if not self.task.has_env:
            return ()
        return tuple(self._spaces)

    @cached_property
    def _spaces(self) -> dict[str, spaces.Space]:
        """Spaces of an observation's parts in the environment. None where it is no dictionary."""
        env = self.task.make_env()
        env.close()
        return getattr(wrapper(env, Flat), "parts", {})

    def _side_by_side(self, given: Mapping[str, Any]) -> np.ndarray:
        given = by_name(given)
        if set(self.parts) != set(given):
            raise CorerlError(
                f"{self.label} on {self.task.id} needs observations with the parts "
                f"{', '.join(self.parts) or '(none)'}, not {', '.join(given)}."
            )
        known = {}
        with suppress(CorerlError):  # without a simulator, every part is a vector
            known = self._spaces
        return flattened({name: given[name] for name in self.parts}, known)

    def _with_history(self, observations: np.ndarray) -> np.ndarray:
        """Returns the latest frames of each of n episodes side by side, `(O,)` or `(n, O)` as given."""
        if self._frames is None:
            self._frames = first(observations, self.task.history)
        elif self._frames.shape[1:] != observations.shape:
            raise CorerlError(
                f"observations had shape {self._frames.shape[1:]} in the last call, but "
                f"{observations.shape} in this one. Call reset() where other episodes begin."
            )
        else:
            self._frames = later(self._frames, observations)
        return np.concatenate(list(self._frames), -1)

    def _follow(self, episodes: int) -> None:
        """Begins the episodes of a policy that remembers, where nobody did. Refuses another number."""
        if self._begun is None:
            self.begin(len(self.seeds), episodes)
        require(
            not self.remembers or self._begun == episodes,
            f"the last reset() began {self._begun} episodes, but the observations are of "
            f"{episodes} episodes. Call reset({episodes}) where other episodes begin",
        )

    def reset(self, episodes: int = 1) -> None:
        """Begins `episodes` episodes of every seed, for a policy that remembers."""
        self._frames = None
        self.begin(len(self.seeds), episodes)

    def earned(self, rewards: np.ndarray) -> None:
        """Tells a policy that remembers what its last actions earned.

        Args:
            rewards: one of each action that `act` returned, `(S,)` or `(S, n)`; of one seed a number or
                `(n,)`.
        """
        require(
            self._acted is not None,
            "earned() takes the rewards for the last actions of act(). Call act() first",
        )
        rewards = torch.as_tensor(rewards, dtype=torch.float32, device=self.device)
        require(
            rewards.shape == self._acted,
            f"the rewards have shape {tuple(rewards.shape)}, but act() returned actions of shape "
            f"{self._acted} (without the axis of features). Give one reward for each action",
        )
        self.reward(rewards.reshape(len(self.seeds), -1))

    # As an evaluator calls it (corerl/training/evaluation.py).

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Acts at `(S, n, O)`: returns `(S, n, A)`, or `(S, n)` where actions are discrete."""
        return self._gather(lambda part, x: part.act(x), observations)

    def begin(self, seeds: int, episodes: int) -> None:
        """Forgets. n episodes of each seed begin."""
        self._begun, self._acted = episodes, None
        for part in self._parts:
            if hasattr(part.act, "begin"):
                part.act.begin(len(part.seeds), episodes)

    def reward(self, rewards: Tensor) -> None:
        """Takes the rewards `(S, n)` of the last actions."""
        self._gather(lambda part, x: part.act.reward(x) if part.remembers else None, rewards)

    # What is judged of it.

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns log-densities `(S, n)` of actions `(S, n, A)` at raw observations, within the bounds.

        Raises:
            CorerlError: the algorithm's policy has no density.
        """
        return self._gather(lambda part, *x: part.log_prob(*x), observations, actions)

    def sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples actions `(S, n, A)` of the density of `log_prob`, from normal noise `(S, n, A)`.

        Raises:
            CorerlError: the algorithm's policy is deterministic.
        """
        return self._gather(lambda part, *x: part.sample(*x), observations, noise)

    # What steers, and is steered (corerl/policies/steering.py).

    def check_proposes(self) -> None:
        """Raises CorerlError where the policy acts without chance, and so has one proposal per state."""
        self._parts[0].proposals()

    def check_values(self) -> None:
        """Raises CorerlError where there is no critic of states and actions."""
        self._parts[0].critic()

    def propose(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples actions `(S, n, A)` of normal noise, discrete ones one-hot. No density need be known."""
        return self._gather(lambda part, *x: part.proposals()(*x), observations, noise)

    @torch.no_grad()
    def values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the smallest Q `(S, n, K)` at raw observations `(S, n, O)` and actions `(S, n, K, A)`."""
        return self._gather(lambda part, *x: part.values(*x), observations, actions)

    @torch.no_grad()
    def greedy(self, observations: Tensor) -> tuple[Tensor, float]:
        """Returns discrete actions `(S, n)`, and the share of actions that are random instead."""
        first = self._parts[0].act
        if not isinstance(first, EpsilonGreedy):
            return self(observations), 0.0
        acts = self._gather(lambda part, x: part.act._act(x), observations)
        return acts, first._epsilon

    def states(self) -> list[tuple[list[int], dict[str, Any]]]:
        """Returns the seeds of each group that was trained together, and its run's parts by name:
        `agent`, `buffer`, and for a learner from comparisons `reward`."""
        return [(part.seeds, part.state) for part in self._parts]

    def _gather(self, function: Callable, *inputs: Tensor) -> Any:
        """Calls `function` on every group's share of the inputs `(S, ...)`. Joins outputs in seed order."""
        if self._seed is not None:  # the group's other seeds are asked about the same
            part = self._parts[0]
            wide = [x.expand(len(part.seeds), *x.shape[1:]) for x in inputs]
            out = function(part, *wide)
            place = part.seeds.index(self._seed)
            return None if out is None else out[place : place + 1]
        rank = {seed: i for i, seed in enumerate(self.seeds)}
        outs = [
            function(part, *(x[[rank[s] for s in part.seeds]] for x in inputs))
            for part in self._parts
        ]
        return None if outs[0] is None else torch.cat(outs)[self._order]

    @property
    def shapes(self) -> Shapes:
        """Shapes of observations and actions: the environment's, or the data's without a simulator."""
        return self._shapes_and_kept[0]

    @property
    def _kept(self) -> type:
        """The type in which it sees observations: images' bytes as bytes, everything else as float32."""
        return self._shapes_and_kept[1]

    @cached_property
    def _shapes_and_kept(self) -> tuple[Shapes, type]:
        return shapes_of(self.task, self._parts[0].spec)
