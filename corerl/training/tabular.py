"""Finite MDPs in a run: exact solutions, and learners whose loss against the optimum is known."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.config import require, seed_list
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.nn.learner import Spec
from corerl.risk.finite_mdp import END, EXACT, FiniteMDP, Policy
from corerl.risk.robust import LinearModel
from corerl.runs import files
from corerl.training.run import Run


def finite_mdp(task: Task) -> FiniteMDP:
    """Returns the finite MDP of a task's environment.

    Raises:
        CorerlError: there is none, observations do not begin with the state as a one-hot vector, or the
            latest ones are stacked (`history`), which a player would read the oldest of.
    """
    require(
        task.history == 1,
        f"history={task.history} is not possible, because algorithms for finite MDPs read the state from a "
        "single observation. Set history=1",
    )
    env = task.make_env()
    mdp = getattr(env.unwrapped, "mdp", None)
    if not isinstance(mdp, FiniteMDP):
        raise CorerlError(
            f"{task.id} is not a finite MDP: its environment needs a FiniteMDP as attribute `mdp`. "
            "Choose a task such as risk/overheat."
        )
    seen = np.ravel(env.reset(seed=0)[0])[: mdp.sizes[0]].tolist()
    require(
        sorted(seen) == [0] * (mdp.sizes[0] - 1) + [1],
        f"{task.id}: an observation must begin with the state as a one-hot vector (see "
        f"corerl.envs.mdps.FiniteEnv), but the first observation is {seen!r:.80}",
    )
    return mdp


def of_fixed_steps(task: Task) -> FiniteMDP:
    """Returns a task's finite MDP, or raises CorerlError where its episodes have no fixed number of steps."""
    mdp = finite_mdp(task)
    require(
        mdp.horizon is not None and not (mdp.successors == END).any(),
        f"{task.id} has no fixed number of steps, which this algorithm needs. Give its MDP a horizon, and "
        "an absorbing state in place of terminal states",
    )
    return mdp


def linear_model(task: Task) -> tuple[FiniteMDP, LinearModel]:
    """Returns a task's finite MDP and its linear model, for learners that know features and rewards.

    Features are the environment's `phi` `(S, A, d)`, with its `mu` `(d, S)`. Without these every state and
    action has its own.

    Raises:
        CorerlError: no finite MDP, no horizon, episodes that end before it, or rewards outside [0, 1].
    """
    mdp = of_fixed_steps(task)
    _, model = model_of(task.make_env().unwrapped)
    low, high = model.rewards.min(), model.rewards.max()
    require(
        low >= -EXACT and high <= 1 + EXACT,
        f"{task.id} has mean rewards from {low:g} to {high:g}. This algorithm needs rewards in [0, 1]. "
        "Shift and scale the rewards",
    )
    return mdp, model


def model_of(env: Any) -> tuple[FiniteMDP, LinearModel]:
    """Returns the finite MDP of an environment and its linear model (see `linear_model`)."""
    return env.mdp, LinearModel.of(env.mdp, getattr(env, "phi", None), getattr(env, "mu", None))


def present(run: Run, player: "TabularPlayer", text: str, numbers: dict[str, Any]) -> None:
    """Prints an exact solution, writes its numbers to solution.json, and plays it."""
    if seed_list(run.cfg.seeds)[0] in run.seeds:  # once, however many processes share the seeds
        print(f"{run.task.id}  {text}", flush=True)
    files.make_directory(run.directory)
    files.write_json(run.directory / "solution.json", numbers)
    for step in run.steps():
        run.evaluate(step, player)


def parts(agent: "TabularPlayer", spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, of an algorithm whose agent is an exact policy's player."""
    return {"policy": agent}


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


class StochasticPlayer(TabularPlayer):
    """Plays stochastic policies. Draws depend on the seed, on what was learned so far, and on the round of
    episodes within an evaluation.

    Args:
        learners: `act(t, state, rng)` draws an action of one, and `episodes` counts what it has learned from.
    """

    def __init__(self, mdp: FiniteMDP, learners: Sequence[Any], seeds: Sequence[int]):
        super().__init__(mdp, [self._policy(i) for i in range(len(learners))])
        self.learners, self.seeds = learners, seeds
        self._round = 0

    def begin(self, seeds: int, episodes: int) -> None:
        super().begin(seeds, episodes)
        later = f" {self._round}" if self._round else ""
        self._round += 1
        # The name is kept, so that draws stay.
        names = [f"dr_rpo plays {learner.episodes}{later}" for learner in self.learners]
        derived = [seeding.derive(s, name) for s, name in zip(self.seeds, names, strict=True)]
        self._rngs = [np.random.default_rng(seed) for seed in derived]

    def end(self) -> None:
        """Ends an evaluation."""
        self._round = 0

    def _policy(self, i: int) -> Policy:
        return lambda t, state, _: self.learners[i].act(t, state, self._rngs[i])


class FixedPolicy:
    """A stochastic policy for `StochasticPlayer`: probabilities `(S, A)`, with a horizon `(T, S, A)`."""

    episodes = 0

    def __init__(self, policy: np.ndarray):
        self.policy = policy

    def act(self, t: int, state: int, rng: np.random.Generator) -> int:
        """Draws an action."""
        row = self.policy[state] if self.policy.ndim == 2 else self.policy[t, state]
        return int(rng.choice(len(row), p=row))


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
        """Plays and learns an episode of each learner and returns metrics (S,)."""
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


def learners_parts(agent: Learners, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, of an algorithm whose agent is `Learners`."""
    learners = agent.learners
    return {"policy": StochasticPlayer(learners[0].mdp, learners, spec.identities)}
