"""The parts of every agent: its specification, its state in a checkpoint, and its steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from corerl.config import require
from corerl.nn import compile, optim


@dataclass
class Spec:
    """Sizes, seeds and device of an agent. `Run.spec` makes one, `Spec(3, 2, rngs)` is enough to try one.

    Attributes:
        observation_dim: features of an observation, or the shape of an image.
        action_dim: features of an action, or the number of discrete actions.
        rngs: one CPU generator per seed for initial weights, so that S of them make S learners.
        normalizer: of observations, before the policy; a part of the agent's state.
        device: where everything is computed. mode: `off`, `compile` or `graph`.
        steps: updates of the whole run, for schedules.
        discrete: whether actions are discrete; batches then hold them as one-hot vectors.
        sources: rewards of a step that are kept apart, K.
        identities: the S seeds, for what draws random numbers when it acts.
        facts: numbers and tensors of the data that the agent needs to act, by name.
        make_env: makes the task's environment, for an agent that solves or knows its model.
    """

    observation_dim: int | tuple[int, ...]
    action_dim: int
    rngs: Sequence[torch.Generator]
    _: KW_ONLY
    normalizer: nn.Module = field(default_factory=nn.Identity)
    device: torch.device | str = "cpu"
    mode: str | compile.Mode = "off"
    steps: int = 1
    discrete: bool = False
    sources: int = 1
    identities: Sequence[int] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    make_env: Callable[[], Any] | None = None

    @property
    def seeds(self) -> int:
        """The number of seeds S."""
        return len(self.rngs)

    @property
    def lead(self) -> tuple[int]:
        """The copies in front of a network's weights where each seed has one: `(S,)`."""
        return (len(self.rngs),)

    def saved(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps, from which the same agent can be built without its data."""
        return {
            "observation_dim": self.observation_dim,
            "action_dim": self.action_dim,
            "discrete": self.discrete,
            "steps": self.steps,
            "sources": self.sources,
            "facts": self.facts,
            "normalized": not isinstance(self.normalizer, nn.Identity),
        }


class Sizes(NamedTuple):
    """Sizes of observations and actions, as a buffer or environments have them too."""

    observation_dim: int | tuple[int, ...]
    action_dim: int
    discrete: bool = False

    @classmethod
    def of(cls, env: Any) -> "Sizes":
        """Returns the sizes of an environment with vector observations and discrete actions."""
        return cls(env.observation_space.shape[0], int(env.action_space.n), discrete=True)


class Stateful:
    """`state_dict` and `load_state_dict` over everything that is held.

    An agent that derives from this cannot forget its target networks, its optimisers or its normaliser in a
    checkpoint. Kept are attributes that have both methods, also inside lists, tuples and dictionaries;
    schedules that a `GradientStep` alone holds; and tensors, but for those whose name begins with `_`, which
    are constants. An attribute that is None until an update makes a tensor of it is kept too. Numbers of
    Python are settings: updates are counted by an `optim.Clock`.
    """

    def state_dict(self) -> dict[str, Any]:
        return {
            name: part.detach() if isinstance(part, Tensor) else part.state_dict()
            for name, part in self._parts().items()
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            if isinstance(part, Tensor):
                part.copy_(state[name])
            else:
                part.load_state_dict(state[name])
        for name in [n for n, v in vars(self).items() if v is None]:
            if isinstance(state.get(name), Tensor):
                setattr(self, name, state[name].to(_device_of(self.state_dict()), copy=True))

    def _parts(self) -> dict[str, Any]:
        parts = {name: v for name, v in vars(self).items() if hasattr(v, "load_state_dict")}
        known = {id(part) for part in parts.values()}
        for name, value in vars(self).items():
            parts |= {inner: part for inner, part in _inside(name, value) if id(part) not in known}
        return parts


def _device_of(state: dict[str, Any]) -> torch.device:
    """Returns where most tensors lie. Counters and generators may be on the host."""
    devices = [x.device for x in pytree.tree_leaves(state) if isinstance(x, Tensor)]
    return max(set(devices), key=devices.count, default=torch.device("cpu"))


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields, by name, what an attribute is or holds that a checkpoint needs."""
    if isinstance(value, GradientStep):
        value = value.schedules
    if hasattr(value, "load_state_dict") or (isinstance(value, Tensor) and name[0] != "_"):
        yield name, value
    elif isinstance(value, list | tuple | dict):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _inside(f"{name}.{key}", part)


class GradientStep:
    """One step down a loss at each call, which returns the loss's metrics.

        self._critic_step = GradientStep(self.critic_loss, self.critic_optimizer, spec.mode)
        metrics = self._critic_step(batch, noise)

    Args:
        loss: `loss(*inputs) -> (loss per seed (S,), metrics {name: (S,)})`.
        optimizers: one, or several whose parameters are stepped together; the gradient is that of all
            their parameters at the values before the step.
        mode: `off`, `compile` or `graph`.
        schedule: of the learning rate, advanced after the step; several where other optimisers' rates
            fall at these steps too. None: the rate stays.
        max_norm: each seed's gradient is clipped to this norm; None leaves it.

    Raises:
        CorerlError: an optimiser is not `optim.Adam`.
    """

    def __init__(
        self,
        loss: compile.Loss,
        optimizers: optim.Adam | Sequence[optim.Adam],
        mode: str | compile.Mode,
        schedule: optim.Schedule | Sequence[optim.Schedule | None] | None = None,
        max_norm: float | None = None,
    ):
        several = isinstance(optimizers, Sequence)
        self._optimizers = list(optimizers) if several else [optimizers]
        for optimizer in self._optimizers:
            require(
                isinstance(optimizer, optim.Adam),
                "A GradientStep hands its gradients to the optimiser, which "
                f"{type(optimizer).__module__}.{type(optimizer).__qualname__} does not support. Use "
                "corerl.nn.optim.Adam(parameters, lr)",
            )
        parameters = [p for optimizer in self._optimizers for p in optimizer.parameters]
        self.gradients = compile.gradients(loss, parameters, mode)
        self._max_norm = max_norm
        schedules = schedule if isinstance(schedule, Sequence) else [schedule]
        self.schedules = [s for s in schedules if s is not None]
        self._descend = compile.fused_on_a_gpu(self._step, parameters[0].device, mode)

    def __call__(self, *inputs) -> dict[str, Tensor]:
        grads, metrics = self.gradients(*inputs)
        self.apply(grads)
        return metrics

    def apply(self, grads: Sequence[Tensor]) -> None:
        """Steps along gradients that `gradients(*inputs)` gave earlier."""
        self._descend(grads)

    def _step(self, grads: Sequence[Tensor]) -> None:
        if self._max_norm is not None:
            grads = optim.clip_per_seed(grads, self._max_norm)
        optim.step(self._optimizers, grads)
        for schedule in self.schedules:
            schedule.step()
