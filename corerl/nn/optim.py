"""Optimisers, schedules and target updates on stacked seeds.

Adam is elementwise, so one optimiser over tensors with a seed axis trains the seeds independently.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from corerl.config import require


class Adam:
    """Adam (Kingma and Ba 2015), or with `weight_decay` AdamW (Loshchilov and Hutter 2019).

    The arithmetic is torch's own fused kernel, and equal to `torch.optim.Adam` bit for bit. What is left
    out is the optimiser around it, which costs a small network 5 % of its update. Gradients are passed
    in, the step count is one tensor and `lr` may be one, so that a CUDA graph can record a step. Where a
    step is compiled, it is the same formula, rounded otherwise.

    Args:
        parameters: float32 tensors of one device.
        lr: learning rate; a `Schedule` replaces it by a tensor.
        weight_decay: decoupled decay, on every parameter; 0 is plain Adam.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        self.parameters = list(parameters)
        self.lr: float | Tensor = lr
        self._kernel = torch._fused_adamw_ if weight_decay else torch._fused_adam_
        self._options = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": False,
        }
        self._count = torch.zeros((), device=self.parameters[0].device)
        self._means = [torch.zeros_like(p) for p in self.parameters]
        self._squares = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """Takes one step along `grads`, in the order of `parameters`."""
        self._count.add_(1)
        if torch.compiler.is_compiling():
            self._fusible_step(list(grads))
            return
        counts = [self._count] * len(self.parameters)
        self._kernel(
            self.parameters,
            # The kernel reads memory in order, whatever the strides.
            [g.contiguous() for g in grads],
            self._means,
            self._squares,
            [],
            counts,
            lr=self.lr,
            **self._options,
        )

    def _fusible_step(self, grads: list[Tensor]) -> None:
        """Takes the step in operations that torch's compiler fuses into one kernel for all parameters."""
        beta1, beta2, eps, decay = (
            self._options[name] for name in ("beta1", "beta2", "eps", "weight_decay")
        )
        # 1 - beta^count, which float32 would round to few digits at small counts.
        bias1, bias2 = (-torch.expm1(self._count * math.log(b)) for b in (beta1, beta2))
        if decay:
            torch._foreach_mul_(self.parameters, 1 - self.lr * decay)
        torch._foreach_lerp_(self._means, grads, 1 - beta1)
        torch._foreach_mul_(self._squares, beta2)
        torch._foreach_addcmul_(self._squares, grads, grads, 1 - beta2)
        scales = torch._foreach_div(torch._foreach_sqrt(self._squares), bias2.sqrt())
        steps = torch._foreach_div(self._means, torch._foreach_add(scales, eps))
        torch._foreach_sub_(self.parameters, torch._foreach_mul(steps, self.lr / bias1))

    def state_dict(self) -> dict:
        return {"count": self._count, "means": self._means, "squares": self._squares}

    def load_state_dict(self, state: dict) -> None:
        self._count.copy_(state["count"])
        for mine, saved in ((self._means, state["means"]), (self._squares, state["squares"])):
            for tensor, value in zip(mine, saved, strict=True):
                tensor.copy_(value)


def target_of(network: nn.Module) -> nn.Module:
    """Makes a copy that no gradient reaches. Move it with `polyak`."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def polyak(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Moves target <- (1 - rate) * target + rate * online, for all parameters in one call.

    Buffers that a checkpoint keeps, such as running means, are copied whole: they are state, not learned.
    """
    targets, sources = _tensors_of(target), _tensors_of(online)
    torch._foreach_lerp_(targets[0], sources[0], rate)
    if targets[1]:
        torch._foreach_copy_(targets[1], sources[1])


@torch.no_grad()
def polyak_where(now: Tensor, target: nn.Module, online: nn.Module, rate: float) -> None:
    """Moves as `polyak` does where `now` `()` is true, else not at all. A captured graph can replay both."""
    targets, sources = _tensors_of(target), _tensors_of(online)
    moves = torch._foreach_sub(sources[0], targets[0])
    torch._foreach_mul_(moves, torch.where(now, rate, 0.0))
    torch._foreach_add_(targets[0], moves)
    for mine, other in zip(targets[1], sources[1], strict=True):
        mine.copy_(torch.where(now, other, mine))


def _tensors_of(network: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Returns parameters, and buffers that a checkpoint keeps. One walk: `parameters()` takes as long."""
    parameters: dict[int, Tensor] = {}
    buffers: dict[int, Tensor] = {}
    for module in network.modules():
        for x in module._parameters.values():
            if x is not None:
                parameters[id(x)] = x
        for name, x in module._buffers.items():
            if x is not None and name not in module._non_persistent_buffers_set:
                buffers[id(x)] = x
    return list(parameters.values()), list(buffers.values())


def step(optimizers: Sequence[Adam], grads: Sequence[Tensor]) -> None:
    """Steps several optimisers with the gradients of all their parameters, concatenated in order."""
    start = 0
    for optimizer in optimizers:
        end = start + len(optimizer.parameters)
        optimizer.step(grads[start:end])
        start = end


def zero_step(*optimizers: Adam) -> None:
    """Steps along gradients of zero: Adam's moments decay, and parameters move on by what is left of them."""
    step(optimizers, [torch.zeros_like(p) for o in optimizers for p in o.parameters])


@torch.no_grad()
def restart(*optimizers: Adam) -> None:
    """Forgets all moments and the count of steps, as new optimisers would begin."""
    for optimizer in optimizers:
        optimizer._count.zero_()
        torch._foreach_zero_([*optimizer._means, *optimizer._squares])


class Schedule:
    """A learning rate that depends on the number of steps taken. Call `step` after the optimiser's.

    The rate is a tensor on the parameters' device, advanced by tensor operations, so that a captured
    graph replays the schedule as well.

    Args:
        optimizer: its `lr` is the rate that `factor` multiplies.
        factor: `factor(count) -> multiplier` on 0-dimensional tensors; `count`, int64, is of steps taken.

    Raises:
        CorerlError: the optimiser has a schedule already.
    """

    def __init__(self, optimizer: Adam, factor: Callable[[Tensor], Tensor]):
        require(
            not isinstance(optimizer.lr, Tensor),
            "This optimiser already has a Schedule, which a second one would replace. Multiply the "
            "factors in one Schedule: Schedule(optimizer, lambda count: one(count) * other(count))",
        )
        device = optimizer.parameters[0].device
        self._base, self._factor = float(optimizer.lr), factor
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self.lr = self._base * factor(self._count)
        optimizer.lr = self.lr

    @torch.no_grad()
    def step(self) -> None:
        self._count.add_(1)
        self.lr.copy_(self._base * self._factor(self._count))

    def state_dict(self) -> dict:
        return {"count": self._count}

    def load_state_dict(self, state: dict) -> None:
        self._count.copy_(state["count"])
        self.lr.copy_(self._base * self._factor(self._count))


def cosine_schedules(steps: int | None, *optimizers: Adam) -> list[Schedule | None]:
    """Schedules each optimiser from its rate down to 0 over `steps`. With None the rates stay."""
    if steps is None:
        return [None] * len(optimizers)
    return [Schedule(optimizer, cosine(steps)) for optimizer in optimizers]


class Clock:
    """Updates made so far, `count` `()`, where a captured graph can count and read them.

    Whole numbers, for float32 cannot count on from 2^24.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.count = torch.zeros((), dtype=torch.int64, device=device)

    def step(self) -> None:
        self.count.add_(1)

    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.count.copy_(state["count"])


def cosine(total: int) -> Callable[[Tensor], Tensor]:
    """Returns a factor that falls from 1 to 0 over `total` steps along half a cosine."""
    return lambda count: (torch.cos(count * (math.pi / total)) + 1) / 2


def warmup(steps: int) -> Callable[[Tensor], Tensor]:
    """Returns a factor: linear from 1/steps to 1 over the first `steps` steps, then 1."""
    return lambda count: ((count + 1) / steps).clamp(max=1.0)


def in_rounds(factor: Callable[[Tensor], Tensor], steps: int) -> Callable[[Tensor], Tensor]:
    """Returns `factor` of the number of rounds of so many steps, constant within each."""
    return lambda count: factor(torch.floor(count / steps))


def rise_and_fall(total: int, rising: float, low: float = 0.1) -> Callable[[Tensor], Tensor]:
    """Returns a factor: linearly from `low` to 1 over a share `rising`, then half a cosine back to `low`."""
    top = max(1, int(total * rising))
    falling = cosine(max(1, total - top))

    def factor(count: Tensor) -> Tensor:
        share = torch.where(count < top, count / top, falling((count - top).clamp(min=0)))
        return low + (1 - low) * share

    return factor


def clip_per_seed(grads: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Scales each seed's gradient to at most `max_norm`, over all tensors of that seed.

    A norm over the stacked tensors would let one seed's explosion shrink the others' steps.
    Every tensor is `(S, ...)`. The formula is `torch.nn.utils.clip_grad_norm_`'s.
    """
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in grads])
    scale = (max_norm / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    return [g * scale.view(-1, *[1] * (g.ndim - 1)) for g in grads]
