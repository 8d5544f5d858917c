"""AWAC against its transcription, and by hand."""

import math

import numpy as np
import pytest
import reference_soft
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    set_linear,
    tiny,
    twins,
)

from corerl.algos.awac import AWAC, Config, PolicyNoise
from corerl.nn.learner import Spec


def make(**more) -> AWAC:
    settings = {"hidden_width": WIDTH, "hidden_layers": 2, "polyak": 0.1, "discount": 0.9}
    return AWAC(Config(**settings | more), Spec(O, A, generators()))


def draws(count: int) -> list[torch.Tensor]:
    return list(as_tensor(np.random.default_rng(3).normal(size=(count, SEEDS, 2, B, A))))


def parts(agent: AWAC, seed: int) -> tuple:
    return net(agent.policy, seed), twins(agent.critic, seed), twins(agent.target, seed)


@pytest.mark.parametrize(
    "version",
    [{}, {"temperature": 0.1, "max_weight": 2.0}, {"log_std_min": -0.1, "log_std_max": 0.1}],
    ids=["default", "clipped weights", "clamped log-std"],
)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(**version)
    scramble(agent.policy, agent.critic, agent.target)
    references = [reference_soft.AWAC(*parts(agent, s), agent.cfg) for s in range(SEEDS)]
    for batch, noise in zip(make_batches(5), draws(5), strict=True):
        metrics = agent.update(batch, PolicyNoise(*noise.unbind(1)))
        for s, theirs in enumerate(references):
            losses = theirs.update(one_seed(batch, s), noise[s].double())
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


@pytest.mark.parametrize(("gap", "weight"), [(0.5, math.exp(1.0)), (-0.5, math.exp(-1)), (5, 100)])
def test_weight_of_the_policys_loss_by_hand(gap, weight):
    """Q = action * gap, policy at 0 with std 1, lambda 1/2: A = gap, -log N(1; 0, 1) = 1.4189."""
    agent = AWAC(Config(hidden_layers=0, temperature=0.5), Spec(1, 1, generators(1)))
    set_linear(agent.policy.body, [[0.0]], [0.0])
    set_linear(agent.critic, [[0.0], [gap], [0.0], [gap + 9.0]], [0.0, 9.0])
    batch = tiny(s=[[1.0]], a=[[1.0]])
    loss = agent.policy_loss(batch, torch.zeros(1, 1, 1))[0]
    expected = weight * (0.5 + 0.5 * math.log(2 * math.pi))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_samples_stay_within_the_action_bounds_but_densities_do_not_know():
    agent = make()
    observations = torch.zeros(SEEDS, 1, O)
    assert (
        agent.explore(observations, torch.full((SEEDS, 1, A), 9.0)).tolist()
        == [[[1.0] * A]] * SEEDS
    )
    inside, on = (agent.log_prob(observations, torch.full((SEEDS, 1, A), x)) for x in (0.99, 1.0))
    assert ((inside - on).abs() < 0.2).all()
    agent.policy.body.layers[-1].bias.data.fill_(9.0)
    assert agent.act(observations).tolist() == [[[1.0] * A]] * SEEDS


def test_networks_start_as_torch_makes_them():
    agent = AWAC(Config(), Spec(17, 6, generators()))
    assert [layer.weight.shape[-1] for layer in agent.policy.body.layers] == [256, 256, 256, 6]
    for layer in (*agent.policy.body.layers, *agent.critic.layers):
        bound = layer.weight.shape[-2] ** -0.5
        assert 0.97 * bound < layer.weight.abs().max() <= bound
    assert agent.policy.log_std.abs().max() == 0
