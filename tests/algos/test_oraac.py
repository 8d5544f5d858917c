"""O-RAAC against its transcription, its losses by hand, and D1, whose best action is known."""

import math

import numpy as np
import pytest
import reference_risk
import torch
from agreement import (
    SEEDS,
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
    tiny,
)

from corerl.algos.oraac import ORAAC, Config
from corerl.nn.learner import Spec
from corerl.nn.vae import BehaviourVAE
from corerl.risk import distortions

SMALL = {
    "hidden_width": 6,
    "vae_width": 7,
    "actor_widths": [8, 5],
    "embedding_width": 5,
    "head_width": 4,
    "cosines": 4,
    "fractions": 3,
    "policy_fractions": 2,
    "discount": 0.9,
    "polyak": 0.1,
    "actor_lr": 1e-4,
    "critic_lr": 1e-3,
    "vae_lr": 2e-3,
}
VERSIONS = {
    "authors": {},
    "wang": {"objective": "wang", "tau": None, "perturbation": 0.9},
    "own fractions": {"shared_fractions": False, "tau": 0.25, "kappa": 0.3, "activation": "silu"},
    "mean, without the VAE": {"objective": "mean", "imitation": False, "policy_delay": 3},
}


def make(version: dict, observations: int = O, actions: int = A, seeds: int = SEEDS) -> ORAAC:
    return ORAAC(
        Config(**SMALL | version), Spec(observations, actions, generators(seeds), steps=20)
    )


def parts(agent: ORAAC, seed: int) -> tuple:
    nets = (agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    vae = [net(agent.vae, seed)] if agent.cfg.imitation else []
    return *(net(module, seed) for module in nets), *vae


@pytest.mark.parametrize(("raw", "kept"), [(-9.0, -4), (2.0, 2), (99.0, 15)])
def test_a_latents_log_std_is_clamped_as_in_bcq(raw, kept):
    vae = BehaviourVAE(O, A, 4, generators(1))
    last = vae.encoder.layers[-1]
    last.weight.data.zero_(), last.bias.data.fill_(raw)
    mean, log_std = vae.encode(torch.zeros(1, 2, O), torch.zeros(1, 2, A))
    assert mean.unique().tolist() == [raw] and log_std.unique().tolist() == [kept]


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(version)
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    references = []
    for s in range(SEEDS):
        found = parts(agent, s)
        found = found if agent.cfg.imitation else (*found, None)
        references.append(reference_risk.ORAAC(found, agent.cfg))
    rng, delay = np.random.default_rng(3), agent.cfg.policy_delay
    rows = 1 if agent.cfg.shared_fractions else B
    batches = make_batches(5 * delay)
    latents = as_tensor(rng.normal(size=(5 * delay, SEEDS, 3, B, agent.latent_dim)))
    uniforms = as_tensor(rng.random((5 * delay, SEEDS, rows, sum(agent.counts))))
    for first in range(0, 5 * delay, delay):
        call = slice(first, first + delay)
        metrics = agent.update(batches[call], list(latents[call]), list(uniforms[call]))
        for s, theirs in enumerate(references):
            for batch, z, u in zip(batches[call], latents[call], uniforms[call], strict=True):
                losses = theirs.iterate(one_seed(batch, s), z[s].double(), u[s].double())
            assert_losses(metrics, s, losses | theirs.improve(), tolerance)
    for s, theirs in enumerate(references):
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


def constant_critic(agent: ORAAC, slope: float, offset: float) -> None:
    """Makes Z(s, a, tau) = slope * relu(action) * relu(cos(pi tau)) + offset, in both critics."""
    for critic in (agent.critic, agent.target_critic):
        with torch.no_grad():
            for p in critic.parameters():
                p.zero_()
            critic.action.weight[0, 0, 0] = 1.0
            critic.both.weight[0, agent.cfg.hidden_width, 0] = 1.0
            critic.embedding.weight[0, 1, 0] = 1.0  # of cos(pi tau); number 0 is constant
            critic.last.weight[0, 0, 0] = 1.0
            critic.head.weight[0, 0, 0], critic.head.bias[0] = slope, offset


def test_losses_by_hand():
    agent = make({"imitation": False, "tau": 0.5}, 1, 1, 1)
    constant_critic(agent, 2.0, 1.0)
    for actor in (agent.actor, agent.target_actor):
        with torch.no_grad():
            for p in actor.parameters():
                p.zero_()
            actor.layers[-1].bias.fill_(math.atanh(0.5))
    batch = tiny(s=[[0], [0]], a=[[1.0], [-1.0]], r=[1, 0], d=[0, 1])
    thirds = torch.tensor([[[1 / 3, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 0]]])
    # cos(pi/3) = 1/2 and cos(pi/2) = 0. Z(a=1) at (1/3, 1/2, 1/2) is (2, 1, 1), Z(a=-1) is (1, 1, 1).
    # Target fractions (1/2, 1/2, 0): Z'(0.5) is (1, 1, 2), so y = 1 + 0.9 Z' = (1.9, 1.9, 2.8); terminal: 0.
    # Row 1, Z = 2 at 1/3: u = (-.1, -.1, .8), weights (2/3, 2/3, 1/3): (2/3 * .005 * 2 + 1/3 * .32) / 3.
    #        Z = 1 at 1/2: u = (.9, .9, 1.8), weights 1/2: (.405 + .405 + 1.3) / 2 / 3, twice.
    # Row 2, u = -1, three targets: weights 2/3, 1/2, 1/2, times 1/2.
    row1 = (2 / 3 * 0.01 + 0.32 / 3) / 3 + 2 * (0.405 + 0.405 + 1.3) / 6
    row2 = (2 / 3 + 1 / 2 + 1 / 2) * 0.5
    loss = agent.critic_loss(batch, torch.zeros(1, 2, 2), *thirds.split(3, -1))[0]
    assert loss.tolist() == pytest.approx([(row1 + row2) / 2 / 3])
    # CVaR at 0.5 of a = 0.5: fractions (0, 1/3) of uniforms (0, 2/3); Z = (2, 1.5).
    loss = agent.actor_loss(batch, torch.zeros(1, 2, 2), torch.tensor([[[0.0, 2 / 3]]]))[0]
    assert loss.tolist() == pytest.approx([-1.75])


def test_vae_loss_and_action_by_hand():
    agent = make({"perturbation": 0.25, "kl_weight": 0.5}, 1, 1, 1)
    with torch.no_grad():
        for p in [*agent.vae.parameters(), *agent.actor.parameters()]:
            p.zero_()
        agent.vae.encoder.layers[-1].bias[0, 0] = torch.tensor([1.0, 0.0, math.log(2.0), 0.0])
        agent.vae.decoder.layers[-1].bias.fill_(math.atanh(0.8))
        agent.actor.layers[-1].bias.fill_(100.0)
    batch = tiny(s=[[0], [0]], a=[[0.8], [0.3]])
    # Errors 0 and 0.5^2; divergence of N(1, 2^2): (1 + 4 - 1) / 2 - log 2, of N(0, 1): 0.
    expected = 0.25 / 2 + 0.5 * (2 - math.log(2)) / 2
    assert agent.vae_loss(batch, torch.zeros(1, 2, 2))[0].tolist() == pytest.approx([expected])
    assert agent.act(torch.zeros(1, 1, 1)).item() == pytest.approx(1.0)  # 0.8 + 0.25, clipped
    with torch.no_grad():
        agent.actor.layers[-1].bias.fill_(-100.0)
    assert agent.act(torch.zeros(1, 1, 1)).item() == pytest.approx(0.55)


def test_fractions_of_a_measure_have_its_density():
    """The share of drawn fractions below t is the integral of the weights up to t; CODAC uses the latter."""
    u = torch.linspace(0, 1, 100_001, dtype=torch.float64)[1:-1]
    for changes in ({"tau": 0.3}, {"objective": "wang", "tau": None}, {"objective": "mean"}):
        cfg = Config(**changes)
        drawn, weights = distortions.fractions(cfg, u), distortions.weights(cfg, u)
        for t in (0.05, 0.2, 0.3, 0.7):
            share, integral = (drawn < t).double().mean(), (weights * (u < t)).mean()
            assert share.item() == pytest.approx(integral.item(), abs=2e-4)
