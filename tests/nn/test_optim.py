"""Optimisers and schedules are torch's own, on tensors with a seed axis."""

import math

import pytest
import torch
from torch import nn
from wording import refused

from corerl import seeding
from corerl.nn import networks, optim

SEEDS = 3


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(numbers(SEEDS, 4, 5, seed=1)), nn.Parameter(numbers(SEEDS, 1, 5, seed=2))]


def gradients(step: int) -> list[torch.Tensor]:
    return [numbers(SEEDS, 4, 5, seed=10 + step), 1e-4 * numbers(SEEDS, 1, 5, seed=50 + step)]


@pytest.mark.parametrize(
    ("theirs", "options"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 1e-5}),
        (torch.optim.AdamW, {"weight_decay": 1e-2}),
    ],
)
def test_adam_is_torchs_bit_for_bit(theirs, options):
    mine, reference = parameters(), parameters()
    optimizer = optim.Adam(mine, 3e-4, **options)
    expected = theirs(reference, lr=3e-4, fused=True, **options)
    for step in range(6):
        optimizer.step(gradients(step))
        for parameter, grad in zip(reference, gradients(step), strict=True):
            parameter.grad = grad
        expected.step()
        assert all(map(torch.equal, mine, reference)), f"differs at step {step}"
    assert not torch.equal(mine[0], parameters()[0])


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_the_step_that_a_gpu_compiles_is_the_same_formula(monkeypatch, decay):
    """A thousand steps, of which the first is the one that a rounded bias correction would spoil."""
    mine, reference = parameters(), parameters()
    compiled, fused = (optim.Adam(p, 1e-3, weight_decay=decay) for p in (mine, reference))
    schedules = [optim.Schedule(x, optim.cosine(1000)) for x in (compiled, fused)]
    for step in range(1000):
        fused.step(gradients(step))
        with monkeypatch.context() as patched:
            patched.setattr(torch.compiler, "is_compiling", lambda: True)
            compiled.step(gradients(step))
        for schedule in schedules:
            schedule.step()
        torch.testing.assert_close(mine, reference, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(compiled.state_dict(), fused.state_dict(), rtol=1e-5, atol=1e-9)


def test_adam_goes_on_from_its_state():
    mine, other = parameters(), parameters()
    optimizer = optim.Adam(mine, 3e-4)
    for step in range(3):
        optimizer.step(gradients(step))
    resumed = optim.Adam(other, 3e-4)
    for parameter, value in zip(other, mine, strict=True):
        parameter.data.copy_(value.data)
    resumed.load_state_dict(optimizer.state_dict())
    for step in range(3, 6):
        optimizer.step(gradients(step))
        resumed.step(gradients(step))
    assert all(map(torch.equal, mine, other))


def test_loading_does_not_tie_two_optimisers():
    optimizer, resumed = optim.Adam(parameters(), 3e-4), optim.Adam(parameters(), 3e-4)
    resumed.load_state_dict(optimizer.state_dict())
    resumed.step(gradients(0))
    assert optimizer.state_dict()["count"] == 0
    assert not optimizer.state_dict()["means"][0].any()


def test_adam_reads_gradients_whatever_their_strides():
    mine, other = parameters(), parameters()
    optim.Adam(mine, 1e-3).step([g.mT.contiguous().mT for g in gradients(0)])
    optim.Adam(other, 1e-3).step(gradients(0))
    assert all(map(torch.equal, mine, other))


def test_coasting_is_torchs_step_along_zeros():
    mine, reference = parameters(), parameters()
    stepping_on_zeros = [optim.Adam([p], 1e-2) for p in mine]
    expected = torch.optim.Adam(reference, 1e-2, fused=True)
    optim.step(stepping_on_zeros, gradients(0))
    optim.zero_step(*stepping_on_zeros)
    for grads in (gradients(0), [torch.zeros_like(p) for p in reference]):
        for parameter, grad in zip(reference, grads, strict=True):
            parameter.grad = grad
        expected.step()
    assert all(map(torch.equal, mine, reference))


def test_step_hands_each_optimiser_its_own_gradients():
    a, b, alone_a, alone_b = (parameters() for _ in range(4))
    optim.step([optim.Adam(a, 1e-3), optim.Adam(b, 1e-2)], gradients(0) + gradients(1))
    optim.Adam(alone_a, 1e-3).step(gradients(0))
    optim.Adam(alone_b, 1e-2).step(gradients(1))
    assert all(map(torch.equal, a + b, alone_a + alone_b))


def test_cosine_schedule_is_torchs():
    mine, reference = parameters(), parameters()
    optimizer = optim.Adam(mine, 3e-4)
    schedule = optim.Schedule(optimizer, optim.cosine(20))
    expected = torch.optim.Adam(reference, lr=3e-4, fused=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(expected, T_max=20)
    for step in range(20):
        rate = expected.param_groups[0]["lr"]
        torch.testing.assert_close(float(optimizer.lr), rate, rtol=1e-5, atol=1e-10)
        torch.testing.assert_close(
            rate, 3e-4 * (1 + math.cos(math.pi * step / 20)) / 2, rtol=1e-9, atol=0
        )
        optimizer.step(gradients(step))
        schedule.step()
        for parameter, grad in zip(reference, gradients(step), strict=True):
            parameter.grad = grad
        expected.step()
        decay.step()
    assert abs(float(optimizer.lr)) < 1e-9
    for parameter, value in zip(mine, reference, strict=True):
        torch.testing.assert_close(parameter, value, rtol=1e-5, atol=1e-6)


def test_warmup_is_linear_then_one():
    optimizer = optim.Adam(parameters(), 1e-2)
    schedule = optim.Schedule(optimizer, optim.warmup(4))
    rates = []
    for _ in range(6):
        rates.append(float(optimizer.lr))
        schedule.step()
    torch.testing.assert_close(rates, [0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_the_rate_in_force_is_the_schedules():
    parameter = nn.Parameter(torch.zeros(1, 1))
    optimizer = optim.Adam([parameter], 1e-2)
    schedule = optim.Schedule(optimizer, lambda count: 1.0 / (1 + count))
    moved = []
    for _ in range(3):  # Adam's step along a constant gradient is the rate itself
        before = parameter.item()
        optimizer.step([torch.ones(1, 1)])
        schedule.step()
        moved.append(before - parameter.item())
    torch.testing.assert_close(moved, [1e-2, 1e-2 / 2, 1e-2 / 3], rtol=1e-4, atol=0)


def test_schedule_goes_on_from_its_state():
    schedules = [optim.Schedule(optim.Adam(parameters(), 3e-4), optim.cosine(20)) for _ in "ab"]
    for _ in range(7):
        schedules[0].step()
    schedules[1].load_state_dict(schedules[0].state_dict())
    assert torch.equal(schedules[0].lr, schedules[1].lr)
    for schedule in schedules:
        schedule.step()
    assert torch.equal(schedules[0].lr, schedules[1].lr)


def test_steps_are_counted_beyond_those_that_float32_can_tell_apart():
    clock, far = optim.Clock(), torch.tensor(2.0**24)  # older checkpoints hold floats
    clock.load_state_dict({"count": far})
    clock.step()
    assert clock.count == 2**24 + 1

    schedule = optim.Schedule(optim.Adam(parameters(), 1.0), lambda count: count % 2 * 1.0)
    schedule.load_state_dict({"count": far})
    schedule.step()
    assert schedule.lr == 1


def test_polyak_moves_the_target_and_nothing_else():
    online = networks.MLP([3, 4, 2], (SEEDS,), seeding.generators(range(SEEDS), "init"))
    target = optim.target_of(online)
    before = [p.clone() for p in online.parameters()]
    assert not any(p.requires_grad for p in target.parameters())
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1)
    assert all(map(torch.equal, target.parameters(), before))
    optim.polyak(target, online, 0.25)
    for moved, old in zip(target.parameters(), before, strict=True):
        torch.testing.assert_close(moved, old + 0.25)
    for parameter, old in zip(online.parameters(), before, strict=True):
        assert torch.equal(parameter, old + 1)


@pytest.mark.parametrize("limit", [0.5, 3.0, 1e6])
def test_clipping_is_torchs_for_each_seed(limit):
    scales = torch.tensor([1e-3, 1.0, 1e4]).view(-1, 1, 1)  # one small, one ordinary, one exploding
    grads = [g * scales for g in gradients(0)]
    clipped = optim.clip_per_seed(grads, limit)
    for seed in range(SEEDS):
        alone = [nn.Parameter(torch.zeros_like(g[seed])) for g in grads]
        for parameter, g in zip(alone, grads, strict=True):
            parameter.grad = g[seed].clone()
        nn.utils.clip_grad_norm_(alone, limit)
        for parameter, g in zip(alone, clipped, strict=True):
            torch.testing.assert_close(g[seed], parameter.grad, rtol=1e-6, atol=0)


def test_clipping_takes_scalars_per_seed():
    (clipped,) = optim.clip_per_seed([torch.tensor([3.0, -0.5])], 1.0)
    torch.testing.assert_close(clipped, torch.tensor([1.0, -0.5]), rtol=1e-5, atol=0)


def test_a_rate_rises_from_a_tenth_and_falls_back():
    rate = optim.rise_and_fall(100, 0.1)
    found = [rate(torch.tensor(float(k))).item() for k in (0, 5, 10, 55, 100)]
    assert found == pytest.approx([0.1, 0.55, 1.0, 0.55, 0.1])


def test_a_rate_in_rounds_is_constant_within_each():
    rate = optim.in_rounds(optim.cosine(2), 10)
    found = [rate(torch.tensor(float(k))).item() for k in (0, 9, 10, 19, 20)]
    assert found == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.0])


def test_a_target_may_follow_at_times_only():
    online, target = nn.Linear(2, 2), nn.Linear(2, 2)
    before = [p.detach().clone() for p in target.parameters()]
    optim.polyak_where(torch.tensor(False), target, online, 0.25)
    assert all(map(torch.equal, target.parameters(), before))
    optim.polyak_where(torch.tensor(True), target, online, 0.25)
    for moved, old, new in zip(target.parameters(), before, online.parameters(), strict=True):
        torch.testing.assert_close(moved, 0.75 * old + 0.25 * new)


class Counting(nn.Module):
    """A weight, and what else a network may hold: state, a constant, and a buffer that is not there."""

    def __init__(self, value: float):
        super().__init__()
        self.inner = nn.BatchNorm1d(2, affine=False)
        self.weight = nn.Parameter(torch.full((2,), value))
        self.same = self.weight
        self.inner.running_mean.fill_(value)
        self.inner.num_batches_tracked.fill_(int(value))
        self.register_buffer("mask", torch.tensor([value, -math.inf]))
        self.register_buffer("constant", torch.full((2,), value), persistent=False)
        self.register_buffer("absent", None)


@pytest.mark.parametrize("now", [None, True, False])
def test_buffers_that_are_state_are_copied_to_the_target(now):
    online, target = Counting(4.0), Counting(0.0)
    if now is None:
        optim.polyak(target, online, 0.25)
    else:
        optim.polyak_where(torch.tensor(now), target, online, 0.25)
    moved = now is not False
    assert target.weight.tolist() == [moved * 1.0] * 2
    assert target.inner.running_mean.tolist() == [moved * 4.0] * 2
    assert target.inner.num_batches_tracked == moved * 4
    assert target.mask.tolist() == [moved * 4.0, -math.inf]
    assert target.constant.tolist() == [0.0, 0.0]
    assert online.mask is not target.mask


def test_a_second_schedule_of_one_optimiser_is_refused():
    optimizer = optim.Adam(parameters(), 0.1)
    optim.Schedule(optimizer, optim.cosine(10))
    with refused("Schedule"):
        optim.Schedule(optimizer, optim.warmup(10))
    assert float(optimizer.lr) == pytest.approx(0.1)
