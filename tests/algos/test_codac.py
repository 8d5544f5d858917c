"""CODAC against its transcription, and its penalty and weights by hand."""

import math

import numpy as np
import pytest
import reference_risk
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
    tiny,
    twins,
)

from corerl.algos.codac import CODAC, Config
from corerl.nn.learner import Spec
from corerl.risk.quantiles import partition

SMALL = {
    "hidden_width": WIDTH,
    "cosines": 4,
    "fractions": 4,
    "samples": 2,
    "discount": 0.9,
    "polyak": 0.1,
    "policy_lr": 1e-3,
    "critic_lr": 2e-3,
}
VERSIONS = {
    "CODAC-C": {"tau": 0.6},
    "CODAC-N, no multiplier": {"objective": "mean", "threshold": None, "tune_alpha": True},
    "wang": {"objective": "wang", "tau": None, "weight_limit": None, "kappa": 0.3},
    "all fractions": {"penalty_fractions": 4, "hidden_layers": 3, "weight": 0.5},
    "target entropy": {"tune_alpha": True, "target_entropy": -3.0, "hidden_layers": 1},
}


def make(version: dict, observations: int = O, actions: int = A, seeds: int = SEEDS) -> CODAC:
    return CODAC(
        Config(**SMALL | version), Spec(observations, actions, generators(seeds), steps=20)
    )


def parts(agent: CODAC, seed: int) -> tuple:
    scalars = [net(x, seed)["value"] for x in (agent.log_alpha, agent.log_alpha_prime)]
    online = net(agent.policy, seed), twins(agent.critic, seed)
    return *online, net(agent.target_policy, seed), twins(agent.target_critic, seed), *scalars


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(version)
    c = agent.cfg
    scramble(agent.policy, agent.critic, agent.target_policy, agent.target_critic)
    scramble(agent.log_alpha, agent.log_alpha_prime)
    references = [reference_risk.CODAC(parts(agent, s), c) for s in range(SEEDS)]
    rng = np.random.default_rng(3)
    for batch in make_batches(5):
        noise = as_tensor(rng.normal(size=(SEEDS, 2 + 2 * c.samples, B, A)))
        draws = [(3, B, c.fractions), (c.fractions,), (c.samples, B, A)]
        uniforms = [as_tensor(rng.random((SEEDS, *shape))) for shape in draws]
        metrics = agent.update(batch, noise, *uniforms)
        for s, theirs in enumerate(references):
            inputs = (x[s].double() for x in (noise, *uniforms))
            assert_losses(metrics, s, theirs.update(one_seed(batch, s), *inputs), tolerance)
    for s, theirs in enumerate(references):
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


def test_the_rates_of_policy_and_critics_fall_and_the_temperatures_stays():
    """Half a cosine: after one update of two, one half."""
    agent = CODAC(Config(**SMALL, cosine=True), Spec(O, A, generators(), steps=2))
    noise = torch.zeros(SEEDS, 6, B, A)
    uniforms = (torch.full((SEEDS, *shape), 0.5) for shape in ((3, B, 4), (4,), (2, B, A)))
    agent.update(make_batches(1)[0], noise, *uniforms)
    optimizers = agent.policy_optimizer, agent.critic_optimizer, agent.alpha_optimizer
    assert [float(x.lr) for x in optimizers] == pytest.approx([0.5e-3, 1e-3, 1e-3])


def test_a_partition_by_hand():
    middles, lengths = partition(torch.tensor([0.1, 0.3, 0.4, 0.0]))  # pieces 2, 4, 5, 1 of 12
    assert lengths.tolist() == pytest.approx([1 / 6, 1 / 3, 5 / 12, 1 / 12])
    assert middles.tolist() == pytest.approx([1 / 12, 1 / 3, 17 / 24, 23 / 24])


def by_action(agent: CODAC) -> None:
    """Makes both Z(s, a, tau) rise with the action, whatever the fraction; Z(0), Z(1) are returned."""
    with torch.no_grad():
        for p in agent.critic.parameters():
            p.zero_()
        for module in agent.critic.modules():
            if hasattr(module, "norm"):
                module.norm.weight.fill_(1.0)
        agent.critic.base[0].linear.weight[0, :, 1, 0] = 1.0  # of the action
        agent.critic.merge.linear.weight[0, :, 0, 0] = 1.0
        agent.critic.head.weight[0, :, 0] = 1.0


def test_gap_and_penalty_by_hand():
    agent = make({"weight": 2.0, "threshold": 3.0}, 1, 1, 1)
    by_action(agent)
    batch = tiny(s=[[0], [0]], a=[[1.0], [0.0]])
    fractions = torch.full((1, 2, 4), 0.5)
    z = agent.critic(batch.observations, batch.actions[:, None], fractions).squeeze(2)
    high, low = z[0, 0, 0, 0].item(), z[0, 0, 1, 0].item()
    # A layer norm of (x, 0, ...): its first unit is sqrt(7) for any x > 0, here twice; nothing for x = 0.
    assert (high, low) == (pytest.approx(math.sqrt(7), rel=1e-3), pytest.approx(0.0, abs=1e-6))
    actions = torch.tensor([[[[1.0], [0.0]], [[0.0], [0.0]]]])  # two per state
    log_density = torch.log(torch.tensor([[[0.5, 0.5], [0.25, 0.5]]]))
    gap = agent.gap(batch, z, fractions[..., :1], actions, log_density)
    first = math.log(2 * math.exp(high) + 4) - high  # e^Z over the density, less Z(s, a)
    second = math.log(2 + 2) - low
    assert gap[0].tolist() == pytest.approx([(first + second) / 2] * 2, rel=1e-5)
    with torch.no_grad():
        agent.log_alpha_prime.value.fill_(math.log(5.0))
    term, multiplier_loss = agent.penalty(torch.tensor([[2.0, 4.0]]))
    # 2 * gap - 3 is 1 and 5: 5 * 6, and -5 * 3.
    assert term.item() == pytest.approx(30.0)
    assert multiplier_loss.item() == pytest.approx(-15.0)


def test_weights_of_cvar_are_cut_in_the_authors_version():
    """CVaR at 0.1 of Z = 1 is 1; its weights of 10 cut at 5, half of that."""
    for limit, value in ((5.0, 0.5), (None, 1.0)):
        agent = make({"weight_limit": limit, "alpha": 0.0, "fractions": 10}, 1, 1, 1)
        with torch.no_grad():
            for p in agent.critic.parameters():
                p.zero_()
            agent.critic.head.bias.fill_(1.0)
        even = torch.ones(1, 2, 10)
        loss = agent.policy_loss(tiny(s=[[0], [0]], a=[[0], [0]]), torch.zeros(1, 2, 1), even)[0]
        assert loss.item() == pytest.approx(-value, rel=1e-5)


def test_the_penalty_lowers_actions_that_the_data_lack():
    """One state, the data's action always 0.5: with the penalty Z peaks there, not where chance acts."""
    values = {}
    for weight in (0.0, 5.0):
        agent = make(
            {"weight": weight, "threshold": None, "alpha": 0.0, "critic_lr": 3e-3}, 1, 1, 1
        )
        rng = np.random.default_rng(0)
        batch = tiny(s=[[0]] * 32, a=[[0.5]] * 32, r=[1.0] * 32, d=[1] * 32)
        for _ in range(150):
            noise = as_tensor(rng.normal(size=(1, 6, 32, 1)))
            draws = [as_tensor(rng.random((1, *shape))) for shape in ((3, 32, 4), (4,), (2, 32, 1))]
            agent.update(batch, noise, *draws)
        actions = torch.tensor([0.5, -0.5, -1.0])[None, :, None, None]
        taus = torch.full((1, 1, 1), 0.5)
        z = agent.critic(torch.zeros(1, 1, 1), actions, taus).mean(1).flatten()
        values[weight] = z.tolist()
    assert values[0.0][0] == pytest.approx(1.0, abs=0.2)
    assert values[5.0][0] - max(values[5.0][1:]) > 1.0
    assert values[5.0][2] < values[0.0][2] - 1.0
