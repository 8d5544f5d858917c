"""EDAC and SAC-N against their transcription, and the diversity penalty by hand."""

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
)
from wording import refused

from corerl.algos.edac import EDAC, Config, EDACNoise
from corerl.nn.learner import Spec


def make(**more) -> EDAC:
    settings = {
        "hidden_width": WIDTH,
        "hidden_layers": 2,
        "polyak": 0.1,
        "discount": 0.9,
        "critics": 4,
        "policy_lr": 1e-3,
        "critic_lr": 2e-3,
        "alpha_lr": 4e-3,
    }
    return EDAC(Config(**settings | more), Spec(O, A, generators()))


def draws(count: int) -> list[torch.Tensor]:
    return list(as_tensor(np.random.default_rng(3).normal(size=(count, SEEDS, 3, B, A))))


def parts(agent: EDAC, seed: int) -> tuple:
    heads = range(agent.cfg.critics)
    critics, targets = ([net(m, seed, i) for i in heads] for m in (agent.critic, agent.target))
    return net(agent.policy, seed), critics, targets, net(agent.log_alpha, seed)["value"]


@pytest.mark.parametrize(
    "version",
    [
        {"eta": 3.0},
        {"eta": 0.0},
        {"eta": 1.0, "order": "joint", "hidden_layers": 3},
        {"critics": 2},
        {"eta": 0.0, "init": "lb_sac", "critic_layer_norm": True},
        {"critic_layer_norm": True},
    ],
    ids=["edac", "sac-n", "authors' order", "two critics", "lb-sac", "edac with norms"],
)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(**version)
    scramble(agent.policy, agent.critic, agent.target, agent.log_alpha)
    references = [reference_soft.EDAC(*parts(agent, s), agent.cfg) for s in range(SEEDS)]
    for batch, noise in zip(make_batches(5), draws(5), strict=True):
        metrics = agent.update(batch, EDACNoise(*noise.unbind(1)))
        for s, theirs in enumerate(references):
            losses = theirs.update(one_seed(batch, s), noise[s].double())
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


@pytest.mark.parametrize(
    "between",
    [
        {"hidden_layers": 0},
        {"hidden_layers": 1},
        {"activation": "tanh"},
        {"layer_norm": True},
        {"critic_layer_norm": True},
        {"activation": "elu", "layer_norm": True},
    ],
)
def test_critics_that_are_penalised_are_the_ones_that_act(between):
    """Depths, activations and LayerNorm: the same values as without a gradient, and their differences."""
    critic = make(**between).critic.double()
    scramble(critic)
    states, actions = (torch.rand(SEEDS, B, n, dtype=torch.float64) for n in (O, A))
    q, gradient = critic.with_action_gradient(states, actions)
    torch.testing.assert_close(q, critic(states, actions))
    for i in range(A):
        step = 1e-6 * torch.eye(A, dtype=torch.float64)[i]
        slope = (critic(states, actions + step) - critic(states, actions - step)) / 2e-6
        torch.testing.assert_close(gradient[..., i], slope, rtol=1e-5, atol=1e-6)
    assert torch.autograd.grad(gradient.square().sum(), critic.layers[0].weight)[0].any()


def test_diversity_by_hand():
    """Three critics, gradients along x, along y and along x again, of any length: 2 * 1 / (3 - 1)."""
    gradient = torch.tensor([[3.0, 0.0], [0.0, -0.1], [7.0, 0.0]])[None, :, None]
    assert EDAC.diversity(gradient).item() == pytest.approx(1.0)
    opposed = torch.tensor([[1.0, 0.0], [-5.0, 0.0]])[None, :, None]
    assert EDAC.diversity(opposed).item() == pytest.approx(-2.0)
    assert EDAC.diversity(torch.zeros(1, 2, 1, 2)).item() == 0


def test_a_critic_without_gradient_spoils_nothing():
    agent = make()
    with torch.no_grad():
        agent.critic.layers[-1].weight[:, 0] = 0
    agent.update(make_batches(1)[0], EDACNoise(*draws(1)[0].unbind(1)))
    assert all(p.isfinite().all() for p in agent.critic.parameters())


def test_the_target_is_the_minimum_over_all_critics_with_entropy():
    """Targets that are constants 5, 3, 4, 9; alpha = 1; a terminal row has no future."""
    agent = make(eta=0.0)
    with torch.no_grad():
        for p in (*agent.target.parameters(), *agent.critic.parameters()):
            p.zero_()
        agent.target.layers[-1].bias[:, :, 0, 0] = torch.tensor([5.0, 3.0, 4.0, 9.0])
    batch, noise = make_batches(1)[0], draws(1)[0][:, 0]
    log_pi = agent.policy.sample(batch.next_observations, noise)[1]
    y = batch.rewards + 0.9 * (1 - batch.terminated) * (3.0 - log_pi)
    loss = agent.critic_loss(batch, noise)[0]
    torch.testing.assert_close(loss, 4 * y.square().mean(-1))


def test_initial_weights_are_corls():
    agent = EDAC(Config(critics=3), Spec(17, 6, generators()))
    for layer in (*agent.policy.body.layers[:-1], *agent.critic.layers[:-1]):
        assert (layer.bias == 0.1).all()
    for network, bound in ((agent.policy.body, 1e-3), (agent.critic, 3e-3)):
        last = network.layers[-1]
        assert 0.97 * bound < last.weight.abs().max() <= bound
        assert 0 < last.bias.abs().max() <= bound
    assert 0.97 / 16 < agent.critic.layers[0].weight.abs().max() <= 1 / 16
    assert agent.policy.body.layers[0].weight.abs().max().item() == pytest.approx(
        17**-0.5, rel=0.02
    )
    assert agent.policy.limits == (-5.0, 2.0)


def test_initial_weights_of_the_authors_have_the_wrong_fan_in_in_the_policy():
    agent = EDAC(Config(init="official"), Spec(17, 6, generators()))
    layers = (agent.critic.layers[0], 23), (agent.policy.body.layers[0], 256)
    for layer, size in layers:
        assert 0.97 * size**-0.5 < layer.weight.abs().max() <= size**-0.5
        assert (layer.bias == 0.1).all()


def test_initial_weights_of_lb_sac_have_the_wrong_fan_in_in_every_layer_of_the_critics():
    cfg = Config(critics=3, init="lb_sac", critic_layer_norm=True)
    agent = EDAC(cfg, Spec(17, 6, generators()))
    for layer in agent.critic.layers:
        bound = layer.weight.shape[-1] ** -0.5
        assert 0.97 * bound < layer.weight.abs().max() <= bound
        assert 0.3 * bound < layer.bias.abs().max() <= bound
    for layer in agent.policy.body.layers:
        bound = layer.weight.shape[-2] ** -0.5
        assert 0.97 * bound < layer.weight.abs().max() <= bound
        assert 0.5 * bound < layer.bias.abs().max() <= bound
    shapes = [tuple(p.shape) for p in agent.critic.norms.parameters()]
    assert shapes == [(SEEDS, 1, 1, 256)] * 6


def test_without_the_switch_a_critic_is_as_before():
    """The default is no part of a run's name, and must be the same numbers."""
    plain, normed = make(), make(critic_layer_norm=True)
    for p, q in zip(
        plain.critic.layers.parameters(), normed.critic.layers.parameters(), strict=True
    ):
        assert torch.equal(p, q)
    assert not list(plain.critic.norms.parameters())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"critics": 1}, "algo.critics=1"),
        ({"eta": -1.0}, "algo.eta"),
    ],
)
def test_bad_settings_are_refused(wrong, message):
    with refused(message):
        Config(**wrong)
    assert Config(critics=1, eta=0.0).critics == 1
