"""The parts of every agent: its specification, its state in a checkpoint, and its steps."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from corerl.nn import compile, optim


@dataclass
class Spec:
    """Sizes, seeds and device of an agent; `Run.spec` makes one, `Spec(3, 2, rngs)` is enough to try one.

    Attributes:
        observation_dim: features of an observation, or the shape of an image.
        action_dim: features of an action, or the number of numbered actions.
        rngs: one CPU generator per seed for initial weights, so that S of them make S learners.
        normalizer: of observations, before the policy; a part of the agent's state.
        device: where everything is computed. mode: `off`, `compile` or `graph`.
        steps: updates of the whole run, for schedules.
        numbered: whether actions are numbers; batches then hold them as one-hot vectors.
    """

    observation_dim: int | tuple[int, ...]
    action_dim: int
    rngs: Sequence[torch.Generator]
    _: KW_ONLY
    normalizer: nn.Module = field(default_factory=nn.Identity)
    device: torch.device | str = "cpu"
    mode: str = "off"
    steps: int = 1
    numbered: bool = False

    @property
    def seeds(self) -> int:
        """The number of seeds S."""
        return len(self.rngs)

    @property
    def lead(self) -> tuple[int]:
        """The copies in front of a network's weights where each seed has one: `(S,)`."""
        return (len(self.rngs),)


class Stateful:
    """`state_dict` and `load_state_dict` over every attribute that has them.

    An agent that derives from this cannot forget its target networks, its optimisers or its
    normaliser in a checkpoint.
    """

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if hasattr(v, "load_state_dict")}


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
    """

    def __init__(
        self,
        loss: compile.Loss,
        optimizers: optim.Adam | Sequence[optim.Adam],
        mode: str,
        schedule: optim.Schedule | Sequence[optim.Schedule | None] | None = None,
        max_norm: float | None = None,
    ):
        self._optimizers = [optimizers] if isinstance(optimizers, optim.Adam) else list(optimizers)
        parameters = [p for optimizer in self._optimizers for p in optimizer.parameters]
        self.gradients = compile.gradients(loss, parameters, mode)
        self._max_norm = max_norm
        schedules = schedule if isinstance(schedule, Sequence) else [schedule]
        self._schedules = [s for s in schedules if s is not None]

    def __call__(self, *inputs) -> dict[str, Tensor]:
        grads, metrics = self.gradients(*inputs)
        self.apply(grads)
        return metrics

    def apply(self, grads: Sequence[Tensor]) -> None:
        """Steps along gradients that `gradients(*inputs)` gave earlier."""
        if self._max_norm is not None:
            grads = optim.clip_per_seed(grads, self._max_norm)
        optim.step(self._optimizers, grads)
        for schedule in self._schedules:
            schedule.step()
