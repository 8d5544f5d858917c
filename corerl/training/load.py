"""The agents of a run, to act, to judge or to go on with.

    agent = load("runs/corerl/pendulum/iql-1a2b3c4d")
    action = agent.act(observation)

An agent is built by its algorithm's own `train`, which asks its run for the numbers of updates to make:
here the run restores the checkpoint, lets one step pass so that the policy is handed over for evaluation,
restores again and stops. So every algorithm can be loaded, and none has to say how.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from corerl.config import Config, renamed
from corerl.data import own_files, tasks
from corerl.data.dataset import Dataset
from corerl.data.observations import Flat, first, later, wrapper
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.runs.checkpoint import load_checkpoint
from corerl.runs.directory import groups as groups_of
from corerl.runs.directory import seeds_of_group
from corerl.runs.files import read_json, read_yaml
from corerl.training.collector import EpsilonGreedy
from corerl.training.run import Run, pick_device


def load(
    path: str | Path, seed: int | None = None, *, device: torch.device | str = "cpu"
) -> Loaded:
    """Loads the agents of the run at `path`, with normaliser and all.

    Args:
        path: the run's folder `<root>/<task>/<algorithm>-<hash>`, or one of its `seeds-*`.
        seed: one of the run's seeds; None for all that have a checkpoint.
        device: where they compute.

    Raises:
        CorerlError: there is no run, no checkpoint or no such seed, or the task's data is missing.
    """
    cell, groups = find(Path(path))
    if seed is not None:
        groups = [group for group in groups if seed in seeds_of_group(group.name)]
        if not groups:
            raise CorerlError(f"{path} has no checkpoint of seed {seed}.")
    cfg = settings(cell)
    cfg.device, cfg.compile = str(device), "off"
    parts: dict[str, Any] = {}
    agents = [_restored(cfg, group, parts) for group in groups]
    loaded = Loaded(cfg, cell, agents)
    return loaded if seed is None else loaded.only(seed)


class Loaded:
    """Trained policies of S seeds of one run.

    Attributes:
        cfg: the run's settings. path: its folder. task: what it was trained on.
        seeds: the S seeds. steps: `(S,)` updates that each has had.
    """

    def __init__(self, cfg: Config, path: Path, parts: Sequence[Restored], seed: int | None = None):
        self.cfg, self.path, self._parts, self._seed = cfg, path, list(parts), seed
        self.task: Task = tasks.of(cfg)
        self._frames: np.ndarray | None = None
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

    def only(self, seed: int) -> Loaded:
        """Returns the policy of one seed, whose actions have no seed axis."""
        parts = [part for part in self._parts if seed in part.seeds]
        if not parts:
            known = ", ".join(map(str, self.seeds))
            raise CorerlError(f"{self.path} has no seed {seed}; there are {known}.")
        return Loaded(self.cfg, self.path, parts, seed)

    # Acting.

    def act(self, observations: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the actions with which the policy is evaluated, at raw observations.

        A policy that was trained with `history=K` reads the latest K of the calls since `reset`, or K that
        are given side by side, oldest first, `(K * O,)`.

        Args:
            observations: one, `(O,)`, or n of them, `(n, O)`; the same for every seed. A dictionary's parts
                are laid side by side in the order of training.

        Returns:
            `(S, A)` or `(S, n, A)`, without A where actions are numbers; without S for one seed.
        """
        shape = self.shapes.observation
        if isinstance(observations, Mapping):
            observations = self._side_by_side(observations)
        observations = np.asarray(observations)
        if self.task.history > 1 and observations.shape[-1] * self.task.history == shape[0]:
            observations = self._with_history(observations)
        if observations.shape[-len(shape) :] != shape or observations.ndim - len(shape) > 1:
            raise CorerlError(
                f"{self.label} on {self.task.id} acts at observations of shape {shape} or (n, "
                f"{', '.join(map(str, shape))}), not {observations.shape}."
            )
        single = observations.shape == shape
        tensor = torch.as_tensor(observations[None] if single else observations)
        tensor = tensor if tensor.dtype == torch.uint8 else tensor.float()
        actions = self(tensor.to(self.device).expand(len(self.seeds), *tensor.shape))
        actions = actions.cpu().numpy()
        actions = actions[:, 0] if single else actions
        return actions if self._seed is None else actions[0]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Names of an observation's parts, in the order of training; none where it is no dictionary."""
        if names := own_files.parts(self.task.data):
            return tuple(names)
        if not self.task.has_env:
            return ()
        env = self.task.make_env()
        env.close()
        return getattr(wrapper(env, Flat), "names", ())

    def _side_by_side(self, given: Mapping[str, np.ndarray]) -> np.ndarray:
        if set(self.parts) != set(given):
            raise CorerlError(
                f"{self.label} on {self.task.id} acts at observations with the parts "
                f"{', '.join(self.parts) or '(none)'}, not {', '.join(given)}."
            )
        return np.concatenate([np.atleast_1d(given[name]) for name in self.parts], -1)

    def _with_history(self, observations: np.ndarray) -> np.ndarray:
        """Returns the latest frames of each of n episodes side by side, `(O,)` or `(n, O)` as given."""
        if self._frames is None:
            self._frames = first(observations, self.task.history)
        elif self._frames.shape[1:] != observations.shape:
            raise CorerlError(
                f"observations were {self._frames.shape[1:]} at the last call and are {observations.shape}: "
                "call reset() where other episodes begin."
            )
        else:
            self._frames = later(self._frames, observations)
        return np.concatenate(list(self._frames), -1)

    def reset(self, episodes: int = 1) -> None:
        """Begins `episodes` episodes of every seed, for a policy that remembers."""
        self._frames = None
        self.begin(len(self.seeds), episodes)

    def earned(self, rewards: np.ndarray) -> None:
        """Tells a policy that remembers what its last actions earned, `(S, n)`."""
        self.reward(torch.as_tensor(rewards, dtype=torch.float32, device=self.device))

    # As an evaluator calls it (corerl/training/evaluation.py).

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Acts at `(S, n, O)`: returns `(S, n, A)`, or `(S, n)` where actions are numbers."""
        return self._gather(lambda part, x: part.act(x), observations)

    def begin(self, seeds: int, episodes: int) -> None:
        """Forgets; n episodes of each seed begin."""
        for part in self._parts:
            if part.remembers:
                part.act.begin(len(part.seeds), episodes)

    def reward(self, rewards: Tensor) -> None:
        """Takes the rewards `(S, n)` of the last actions."""
        self._gather(lambda part, x: part.act.reward(x) if part.remembers else None, rewards)

    # What is judged of it.

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns log-densities `(S, n)` of actions `(S, n, A)` at raw observations `(S, n, O)`.

        Raises:
            CorerlError: the algorithm's policy has no density.
        """
        return self._gather(lambda part, *x: part.log_prob(*x), observations, actions)

    def sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples actions `(S, n, A)` at raw observations, from normal noise `(S, n, A)`.

        Raises:
            CorerlError: the algorithm's policy is deterministic.
        """
        return self._gather(lambda part, *x: part.sample(*x), observations, noise)

    @torch.no_grad()
    def greedy(self, observations: Tensor) -> tuple[Tensor, float]:
        """Returns numbered actions `(S, n)`, and the share of actions that are random instead."""
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
        """Calls `function` on every group's share of the inputs `(S, ...)`; joins outputs in seed order."""
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

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of observations and actions: the environment's, or the data's without a simulator."""
        with suppress(CorerlError):
            if self.task.has_env:
                env = self.task.make_env()
                env.close()
                count = getattr(env.action_space, "n", None)
                features = 1 if count is not None else env.action_space.shape[0]
                return Shapes(env.observation_space.shape, count and int(count), features)
        data = self.task.load()
        count = int(data.actions.max()) + 1 if data.discrete else None
        features = 1 if data.discrete else data.actions.shape[1]
        return Shapes(data.observations.shape[1:], count, features)


class Shapes(NamedTuple):
    """An observation's shape, how many actions are numbered (None: they are vectors), their features."""

    observation: tuple[int, ...]
    count: int | None
    features: int


class Restored:
    """One group of seeds as its `train` made it: the parts that were restored, and the policy."""

    def __init__(self, seeds: list[int], step: int, state: dict[str, Any], act: Callable):
        self.seeds, self.step, self.state, self.act = seeds, step, state, act

    @property
    def remembers(self) -> bool:
        return hasattr(self.act, "begin")

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        agent, policy = self._stochastic()
        if hasattr(agent, "log_prob"):
            return agent.log_prob(observations, actions)
        return policy.log_prob(agent.normalizer(observations), actions)

    @torch.no_grad()
    def sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        agent, policy = self._stochastic()
        if hasattr(agent, "log_prob"):
            return agent.explore(observations, noise)
        drawn = policy.sample(agent.normalizer(observations), noise)
        return drawn[0] if isinstance(drawn, tuple) else drawn

    def _stochastic(self) -> tuple[Any, Any]:
        """Returns the agent, and where it does not say so itself the policy that has a density."""
        agent = self.state.get("agent")
        policy = getattr(agent, "policy", None)
        known = hasattr(agent, "log_prob") or (
            hasattr(policy, "sample") and hasattr(policy, "log_prob")
        )
        if not known or getattr(agent.cfg, "policy", None) == "deterministic":
            raise CorerlError(
                f"The policy of {type(agent).__name__} has no density that is known: judge the actions that "
                "it takes (--policy act)."
            )
        return agent, policy


def find(path: Path) -> tuple[Path, list[Path]]:
    """Finds a run's folder, and those of its groups of seeds that can be loaded.

    Raises:
        CorerlError: there is none, or there are several.
    """
    if not path.is_dir():
        raise CorerlError(f"There is no run at {path}: it is not a folder.")
    if path.name.startswith("seeds-") and (path.parent / "config.yaml").exists():
        cell, groups = path.parent, [path]
    else:
        cells = [path] if (path / "config.yaml").exists() else _cells(path)
        if len(cells) != 1:
            some = ", ".join(str(c.relative_to(path)) for c in cells[:3])
            raise CorerlError(
                f"There are {len(cells)} runs below {path}; name one of them: {some}, ..."
                if cells
                else f"There is no run at {path}: no config.yaml."
            )
        cell = cells[0]
        groups = [group for group, _ in groups_of(cell)]
    saved = [group for group in groups if (group / CHECKPOINT).exists() or _needs_none(group)]
    if not saved:
        raise CorerlError(f"{cell} has no checkpoint yet: its seeds have not saved.")
    return cell, saved


def _needs_none(group: Path) -> bool:
    """Tells whether the group finished without ever saving, as an exact solver does."""
    return (read_json(group / "status.json") or {}).get("state") == "done"


CHECKPOINT = "checkpoint.safetensors"


def _cells(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob("config.yaml"))


def settings(cell: Path) -> Config:
    """Returns the settings in a run's `config.yaml`; what has been added since has its default.

    Raises:
        CorerlError: the file is broken, or names an algorithm or a setting that is unknown here.
    """
    try:
        saved = OmegaConf.create(renamed(read_yaml(cell / "config.yaml")))
        algo = importlib.import_module(f"corerl.algos.{saved.algo.name}").Config
        schema = OmegaConf.structured(Config(algo=OmegaConf.structured(algo)))
        return OmegaConf.to_object(OmegaConf.merge(schema, saved))
    except (AttributeError, ImportError, TypeError, ValueError, OmegaConfBaseException) as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise CorerlError(f"{cell / 'config.yaml'} cannot be read: {reason}.") from error


def _restored(cfg: Config, directory: Path, shared: dict[str, Any]) -> Restored:
    run = _Reloading(cfg, directory, shared)
    with suppress(_Done):
        importlib.import_module(f"corerl.algos.{cfg.algo.name}").train(cfg.algo, run)
    if run.act is None:
        raise CorerlError(f"{directory} hands no policy over for evaluation, so it cannot act.")
    return Restored(run.seeds, run.step, run.state, run.act)


class _Done(Exception):
    """The policy has been handed over."""


class _Reloading(Run):
    """A stand-in for a run: one step, of which nothing but the handed-over policy is kept."""

    def __init__(self, cfg: Config, directory: Path, shared: dict[str, Any]):
        self.cfg, self.directory = cfg, directory
        self.seeds = seeds_of_group(directory.name)
        self.task = tasks.of(cfg)
        self.device, self.mode = pick_device(cfg.device), "off"
        self.act: Callable | None = None
        self.state: dict[str, Any] = {}
        self._shared = shared
        self._path = directory / CHECKPOINT
        self._saved = load_checkpoint(self._path) if self._path.exists() else {"state": {}}
        self.step = self._saved["loop"]["step"] if "loop" in self._saved else cfg.steps

    @property
    def name(self) -> str:
        return f"{self.cfg.label or self.cfg.algo.label} {self.task.id} {self.directory.name}"

    def dataset(self) -> Dataset:
        """Reads the dataset once for all groups of seeds."""
        if "dataset" not in self._shared:
            self._shared["dataset"] = super().dataset()
        return self._shared["dataset"]

    def steps(self, *, stride: int = 1, **state: Any) -> Iterator[int]:
        self.state = self._state = {name: part for name, part in state.items() if part is not None}
        self._put_back()
        yield max(stride, self.cfg.steps - stride)  # not the last, at which some have more to do

    def log(self, step: int, metrics: dict[str, Tensor]) -> None:
        """Does nothing: the step is only made for what comes after it."""

    def evaluate(self, step: int, act: Callable, also: dict | None = None) -> None:
        self._put_back()
        self.act = act
        raise _Done

    def save(self, step: int) -> None:
        """Does nothing: what was saved stays."""

    def _put_back(self) -> None:
        try:
            for name, part in self._state.items():
                part.load_state_dict(self._saved["state"][name])
        except (KeyError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise CorerlError(
                f"{self._path} was saved by other code than this ({reason}): load it with that code."
            ) from error
