"""Policies for estimators: actions, probabilities and densities at recorded states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.data.observations import check_parts
from corerl.errors import CorerlError
from corerl.policies.loaded_policy import Loaded
from corerl.policies.simulation import named_parts

AT_ONCE = 4096
"""States of one call: what a transformer's or an ensemble's activations leave room for."""
SAMPLED = "samples from the policy, from a normal truncated to the action bounds if play clips it"


@dataclass(frozen=True)
class Policy:
    """S policies to judge. Every function takes raw observations `(n, O)` and returns NumPy arrays.

    One with discrete actions has `probabilities`; another has `actions`, and `log_prob` if it has chance.

    Attributes:
        seeds: S names.
        probabilities: `(n, O) -> (S, n, K)` of K discrete actions.
        actions: `(n, O) -> (S, n, M, A)`: M draws, or the one action that is taken.
        log_prob: `(n, O), (n, A) -> (S, n)`, log-densities of given actions.
        sizes: features of an observation and of an action (or how many actions there are), where known.
        description: which policy it is, for people.
        parts: names of an observation's parts in their order, where it is a dictionary.
    """

    seeds: Sequence[int]
    probabilities: Callable[[np.ndarray], np.ndarray] | None = None
    actions: Callable[[np.ndarray], np.ndarray] | None = None
    log_prob: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    sizes: tuple[int, int] | None = None
    description: str = ""
    parts: Sequence[str] = ()

    def __post_init__(self):
        require(
            (self.probabilities is None) != (self.actions is None),
            "Give a Policy either probabilities (discrete actions) or actions (continuous), not both",
        )

    @property
    def discrete(self) -> bool:
        """Tells whether actions are discrete."""
        return self.probabilities is not None

    def check(self, dataset: Dataset) -> None:
        """Raises CorerlError where the dataset has other observations or actions than the policy.

        Durations of steps and episodes without actions are refused too, which no estimate here minds.
        """
        for field, what in (
            ("durations", "durations of steps"),
            ("unlabelled", "episodes without actions"),
        ):
            require(
                getattr(dataset, field) is None,
                f"{dataset.id} has {what}, which off-policy evaluation does not support. Choose other "
                "data, in a command with --data",
            )
        kinds = {True: "discrete", False: "continuous"}
        if self.discrete != dataset.discrete:
            raise CorerlError(
                f"The policy has {kinds[self.discrete]} actions, but {dataset.id} has "
                f"{kinds[dataset.discrete]} actions. Choose data of the policy's task."
            )
        require(
            dataset.observations.ndim == 2,
            f"{dataset.id} has observations of shape {dataset.observations.shape[1:]}, but off-policy "
            "evaluation needs vectors",
        )
        check_parts("the policy's data", self.parts, dataset.id, dict(dataset.parts))
        if self.sizes is None:
            return
        observations, actions = dataset.observations.shape[1], self.sizes[1]
        recorded = int(dataset.actions.max()) + 1 if dataset.discrete else dataset.actions.shape[1]
        wrong = recorded > actions if dataset.discrete else recorded != actions
        if observations != self.sizes[0] or wrong:
            raise CorerlError(
                f"The policy takes {self.sizes[0]} observation and {actions} action features, but "
                f"{dataset.id} has {observations} and {recorded}. Choose data of the policy's task."
            )


def together(policies: Sequence[Policy]) -> Policy:
    """Joins several policies as one, in their order, so that their critics are one program.

    Raises:
        CorerlError: some have discrete actions and others do not.
    """
    first = policies[0]
    require(
        all(_spaces(policy) == _spaces(first) for policy in policies),
        "Policies with different observations or actions cannot be judged together. Judge each on its own",
    )

    def joined(name: str) -> Callable | None:
        functions = [getattr(policy, name) for policy in policies]
        if any(f is None for f in functions):
            return None
        return lambda *rows: np.concatenate([f(*rows) for f in functions])

    return Policy(
        [seed for policy in policies for seed in policy.seeds],
        *(joined(name) for name in ("probabilities", "actions", "log_prob")),
        first.sizes,
        first.description,
        first.parts,
    )


def _spaces(policy: Policy) -> tuple:
    return policy.discrete, policy.sizes, policy.parts


def distance(policy: Policy, dataset: Dataset, rows: int = AT_ONCE, seed: int = 0) -> np.ndarray:
    """Measures how far every policy's actions lie from the recorded ones, `(S,)`.

    Continuous actions: the root mean square of their difference, each feature in the standard deviation
    that it has in the data; 1 is as far as the data's mean action, and what independent draws from the
    data would be is sqrt(2). Discrete actions: one less the chance of the recorded one.

    Args:
        rows: as many of the data's rows, drawn with `seed`, are looked at.
    """
    chosen = np.random.default_rng(seed).permutation(len(dataset))[:rows]
    states, taken = dataset.observations[chosen], dataset.actions[chosen]
    if policy.discrete:
        return 1 - policy.probabilities(states)[:, np.arange(len(taken)), taken].mean(1)
    spread = dataset.actions.std(0, dtype=np.float64)
    apart = policy.actions(states) - taken[:, None]
    return np.sqrt(np.square(apart / np.where(spread > 0, spread, 1.0)).mean((1, 2, 3)))


def of_run(
    agent: Loaded,
    *,
    chance: str = "act",
    epsilon: float | None = None,
    samples: int = 8,
    seed: int = 0,
) -> Policy:
    """Returns the policies of a run as they are judged.

    Args:
        chance: `act`, the action with which it is evaluated; `sample`, what its density says, of
            continuous actions.
        epsilon: discrete actions are replaced at random this often; None: as when it was evaluated.
        samples: M, draws of a policy with chance.

    Raises:
        CorerlError: a policy that remembers its episode, one without a density where `sample` asks for
            it, an option of other actions, or observations that are no vectors.
    """
    require(chance in ("act", "sample"), f"policy={chance} must be act or sample")
    require(epsilon is None or 0 <= epsilon <= 1, f"epsilon={epsilon} must lie in [0, 1]")
    if agent.remembers:
        raise CorerlError(
            f"{agent.label} acts on the whole episode so far, so its actions at recorded states are unknown. "
            "Evaluate it in the simulator, without --method."
        )
    shape, count, features = agent.shapes
    require(
        len(shape) == 1,
        f"{agent.task.id} has observations of shape {shape}, but off-policy evaluation needs vectors",
    )
    if count is not None:
        require(
            chance == "act",
            f"policy=sample is for continuous actions, but {agent.task.id} has discrete actions. "
            "Give epsilon instead, the probability of a random action.",
        )
        return replace(_discrete(agent, shape[0], count, epsilon), parts=named_parts(agent.task))
    require(
        epsilon is None,
        f"epsilon is for discrete actions, but {agent.task.id} has continuous actions. "
        "Leave epsilon out",
    )
    policy = _continuous(agent, shape[0], features, chance, samples, seed)
    return replace(policy, parts=named_parts(agent.task))


def _discrete(agent: Loaded, width: int, count: int, epsilon: float | None) -> Policy:
    def probabilities(observations: np.ndarray) -> np.ndarray:
        parts = []
        for (piece,) in _pieces(agent, observations):
            best, own = agent.greedy(piece)
            share = own if epsilon is None else epsilon
            one_hot = torch.nn.functional.one_hot(best, count).double()
            parts.append(((1 - share) * one_hot + share / count).cpu())
        return torch.cat(parts, 1).numpy()

    shown = (
        "as evaluated"
        if epsilon is None
        else f"best actions, or random ones with probability {epsilon:g}"
    )
    return Policy(agent.seeds, probabilities=probabilities, sizes=(width, count), description=shown)


def _continuous(
    agent: Loaded, width: int, features: int, chance: str, samples: int, seed: int
) -> Policy:
    if chance == "act":
        # Behind every piece of data stands the same action, so one draw says it all.
        def actions(observations: np.ndarray) -> np.ndarray:
            parts = [agent(piece).cpu() for (piece,) in _pieces(agent, observations)]
            return torch.cat(parts, 1)[:, :, None].numpy()

        sizes = (width, features)
        return Policy(agent.seeds, actions=actions, sizes=sizes, description="as evaluated")

    def draws(observations: np.ndarray) -> np.ndarray:
        generators = seeding.generators(agent.seeds, f"ope actions/{seed}")
        parts = []
        for (piece,) in _pieces(agent, observations):
            shape = (samples, piece.shape[1], features)
            noise = torch.stack([torch.randn(shape, generator=g) for g in generators])
            noise = noise.to(piece.device).unbind(1)
            parts.append(torch.stack([agent.sample(piece, n) for n in noise], 2).cpu())
        return torch.cat(parts, 1).numpy()

    def log_prob(observations: np.ndarray, taken: np.ndarray) -> np.ndarray:
        parts = [agent.log_prob(*both).cpu() for both in _pieces(agent, observations, taken)]
        return torch.cat(parts, 1).double().numpy()

    one = np.zeros((1, width), np.float32)
    draws(one)  # a policy without chance says so at once
    sizes, shown = (width, features), SAMPLED
    return Policy(agent.seeds, actions=draws, log_prob=log_prob, sizes=sizes, description=shown)


def _pieces(agent: Loaded, *arrays: np.ndarray) -> Iterator[list[Tensor]]:
    """Yields rows of the arrays, a piece at a time, for every seed: `(S, n, ...)` on the agent's device."""
    for start in range(0, len(arrays[0]), AT_ONCE):
        pieces = [torch.from_numpy(x[start : start + AT_ONCE]).to(agent.device) for x in arrays]
        yield [piece.expand(len(agent.seeds), *piece.shape) for piece in pieces]
