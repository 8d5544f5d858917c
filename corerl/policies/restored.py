"""One group of seeds of a run, restored to act: shapes, policy and critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl.config import require
from corerl.data.files.arrays import floats
from corerl.data.observations import kept_as
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.nn import candidates, truncated_normal
from corerl.nn.critics import Critics
from corerl.nn.learner import Spec
from corerl.training.random_policy import SampledPolicy


def as_kept(x: np.ndarray, shape: Sequence[int], kept: type) -> np.ndarray:
    """Returns observations `(..., *shape)` in the type of those that were learned from, of type `kept`.

    Raises:
        CorerlError: those were images' bytes, which are scaled by 255, and these are numbers beyond; or
            these are no real numbers.
    """
    if kept != np.uint8 or x.dtype == np.uint8:
        return floats(x, "observations").astype(kept_as(shape, x.dtype), copy=False)
    whole = x.dtype.kind in "iu"
    require(
        not (x < 0).any() and not (x > (255 if whole else 1)).any(),
        f"images must be uint8 in 0..255, or such values divided by 255, but these are {x.dtype} "
        f"from {x.min():g} to {x.max():g}. Give the environment's own images",
    )
    return x.astype(np.uint8 if whole else np.float32)


class Shapes(NamedTuple):
    """An observation's shape, the number of discrete actions (None: they are vectors), their features."""

    observation: tuple[int, ...]
    count: int | None
    features: int


def shapes_of(task: Task, spec: Spec | None = None) -> tuple[Shapes, type]:
    """Returns the shapes that a policy sees and acts in, and the type in which observations are kept.

    They are the environment's; without a simulator those of `spec`, or else the data's.
    """
    with suppress(CorerlError):
        if task.has_env:
            env = task.make_env()
            env.close()
            space, count = env.observation_space, getattr(env.action_space, "n", None)
            features = 1 if count is not None else env.action_space.shape[0]
            shapes = Shapes(space.shape, count and int(count), features)
            return shapes, kept_as(space.shape, space.dtype)
    if spec is not None and (vector := np.ravel(spec.observation_dim)).size == 1:
        ends = (spec.action_dim, 1) if spec.discrete else (None, spec.action_dim)
        return Shapes((int(vector[0]),), *ends), np.float32
    data = task.load()
    count = int(data.actions.max()) + 1 if data.discrete else None
    shape = data.observations.shape[1:]
    shapes = Shapes(shape, count, 1 if data.discrete else data.actions.shape[1])
    return shapes, kept_as(shape, data.observations.dtype)


class Restored:
    """One group of seeds: its parts by their names in the checkpoint, and the policy that is evaluated.

    `also` are further policies that are evaluated, by name.
    """

    def __init__(
        self,
        seeds: list[int],
        step: int,
        state: dict[str, Any],
        act: Callable,
        spec: Spec,
        also: dict[str, Callable],
    ):
        self.seeds, self.step, self.state, self.act, self.spec = seeds, step, state, act, spec
        self.also = also

    @property
    def remembers(self) -> bool:
        return hasattr(self.act, "reward")

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        agent, policy = self._stochastic()
        if hasattr(policy, "gaussian"):  # clipped draws have no density at the bounds
            normal = policy.gaussian(agent.normalizer(observations))
            return truncated_normal.log_prob(*normal, actions)
        if hasattr(agent, "log_prob"):
            return agent.log_prob(observations, actions)
        return policy.log_prob(agent.normalizer(observations), actions)

    @torch.no_grad()
    def sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        agent, policy = self._stochastic()
        if hasattr(policy, "gaussian"):
            normal = policy.gaussian(agent.normalizer(observations))
            return truncated_normal.draw(*normal, noise)
        return self._propose(observations, noise)

    @torch.no_grad()
    def _propose(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Draws actions as in play, where a normal is clipped to the bounds."""
        agent, policy = self._stochastic()
        if hasattr(agent, "log_prob"):
            return agent.explore(observations, noise)
        return policy.draw(agent.normalizer(observations), noise)

    def proposals(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Returns what makes actions of observations and normal noise.

        Raises:
            CorerlError: the policy acts without chance.
        """
        agent = self.state.get("agent")
        if hasattr(agent, "propose"):
            return agent.propose
        if isinstance(self.act, SampledPolicy):
            return agent.explore
        try:
            self._stochastic()
        except CorerlError as error:
            raise CorerlError(
                f"The policy of {type(agent).__name__} is deterministic, but --steer needs a "
                "policy that samples actions. Choose a run of IQL, SAC or a flow policy, for example."
            ) from error
        return self._propose

    def critic(self) -> Critics:
        """Returns the agent's critics.

        Raises:
            CorerlError: it has none, or none of a state and an action.
        """
        agent = self.state.get("agent")
        critic = getattr(agent, "critic", None)
        require(
            isinstance(critic, Critics),
            f"{type(agent).__name__} has no critic Q(s, a) that could steer a policy. Choose a run of IQL, "
            "CQL, Cal-QL, SAC, ReBRAC or another algorithm with such a critic",
        )
        return critic

    def values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the smallest Q `(S, n, K)` at raw observations `(S, n, O)` and actions `(S, n, K, A)`.

        Critics see what the policy's `normalizer` returns, or the agent's `critic_normalizer` if it has one.
        """
        agent = self.state["agent"]
        states = getattr(agent, "critic_normalizer", agent.normalizer)(observations)
        return candidates.values(self.critic(), states, actions).amin(1)

    def _stochastic(self) -> tuple[Any, Any]:
        """Returns the agent, and where it does not say so itself the policy that has a density."""
        agent = self.state.get("agent")
        policy = getattr(agent, "policy", None)
        known = hasattr(agent, "log_prob") or (
            hasattr(policy, "draw") and hasattr(policy, "log_prob")
        )
        settings = getattr(agent, "cfg", None)
        if not known or getattr(settings, "policy", None) == "deterministic":
            raise CorerlError(
                f"The policy of {type(agent).__name__} has no known density. Judge its greedy actions "
                "with --policy act."
            )
        return agent, policy
