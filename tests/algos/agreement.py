"""Equal weights and equal batches for an algorithm and its transcription, and their comparison."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.replay import Batch

SEEDS, B, O, A, WIDTH = 2, 16, 3, 2, 8


def generators(seeds: int = SEEDS) -> list[torch.Generator]:
    return seeding.generators(range(seeds), "init")


def scramble(*modules: nn.Module) -> None:
    """Moves every parameter off its initial value: no bias is 0, and no target a copy."""
    rng = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in (p for module in modules for p in module.parameters()):
            p += 0.3 * torch.randn(p.shape, generator=rng)


def make_batches(count: int) -> list[Batch]:
    """Other data for each seed; a third of the rows terminal, some actions on the bounds."""
    rng = np.random.default_rng(0)

    def actions() -> np.ndarray:
        return rng.uniform(-1.2, 1.2, (SEEDS, B, A)).clip(-1, 1)

    def batch() -> Batch:
        s, s_next = rng.normal(size=(2, SEEDS, B, O))
        r, d = rng.normal(size=(SEEDS, B)), rng.random((SEEDS, B)) < 0.3
        return Batch(*map(as_tensor, (s, actions(), r, s_next, d, actions())))

    return [batch() for _ in range(count)]


def make_noises(count: int) -> list[Tensor]:
    """Normal draws wider than standard, so that a tenth of them (not 1 %) reaches the noise's clip."""
    rng = np.random.default_rng(1)
    return list(as_tensor(1.5 * rng.normal(size=(count, SEEDS, B, A))))


def as_tensor(x) -> Tensor:
    return torch.as_tensor(np.asarray(x)).to(torch.get_default_dtype())


def one_seed(batch: Batch, seed: int) -> Batch:
    return Batch(*(x[seed].double().numpy() for x in batch))


def net(module: nn.Module, *index: int) -> dict[str, np.ndarray]:
    """A float64 copy of the parameters of one seed, or of one seed's i-th critic; shared ones are all's."""

    def of(p: Tensor) -> Tensor:
        return p.detach()[tuple(0 if n == 1 else i for i, n in zip(index, p.shape, strict=False))]

    return {k: of(p).double().numpy().copy() for k, p in module.named_parameters()}


def twins(module: nn.Module, seed: int) -> list[dict[str, np.ndarray]]:
    return [net(module, seed, i) for i in range(2)]


def actor_critic(agent, seed: int) -> tuple:
    """Copies of a TD3-like agent's networks, in the order of the transcription's arguments."""
    online = net(agent.actor, seed), twins(agent.critic, seed)
    return *online, net(agent.target_actor, seed), twins(agent.target_critic, seed)


def assert_networks(mine, theirs, tolerance: float, name: str = "") -> None:
    """Equality of nested dicts, lists and tuples of arrays, names and shapes included."""
    if isinstance(theirs, np.ndarray):
        assert mine.shape == theirs.shape, name
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
    elif isinstance(theirs, dict):
        assert mine.keys() == theirs.keys(), name
        for key in theirs:
            assert_networks(mine[key], theirs[key], tolerance, f"{name}.{key}")
    else:
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert_networks(a, b, tolerance, f"{name}[{i}]")


def assert_losses(metrics: dict[str, Tensor], seed: int, losses: dict, tolerance: float) -> None:
    actual = {name: float(metrics[name][seed]) for name in losses}
    assert actual == pytest.approx(losses, rel=tolerance, abs=tolerance)


def tiny(s, a, r=None, s_next=None, d=None, a_next=None) -> Batch:
    """A batch of one seed from lists; what is left out is zero, and next states are the states."""
    zeros = np.zeros(len(s))
    s_next, r, d = s if s_next is None else s_next, zeros if r is None else r, d or zeros
    fields = (s, a, r, s_next, d, np.zeros_like(a) if a_next is None else a_next)
    return Batch(*(as_tensor(x).float()[None] for x in fields))


@torch.no_grad()
def set_linear(mlp: nn.Module, weights, biases) -> None:
    """Makes a network without hidden layers `x @ weights + biases` (of one seed; a list per critic)."""
    mlp.layers[0].weight.copy_(as_tensor(weights).view_as(mlp.layers[0].weight))
    mlp.layers[0].bias.copy_(as_tensor(biases).view_as(mlp.layers[0].bias))
