"""IQN against its transcription, and its quantile function at known weights."""

import math

import pytest
import torch
from reference_distributional import IQN as Reference
from reference_distributional import SEEDS, A, B, O, agree, make_transitions

from corerl import seeding
from corerl.algos.iqn import IQN, Config
from corerl.nn.learner import Spec

SWITCHES = {
    "paper": {},
    "double": {"double": True},
    "risk": {"risk": 0.25},
    "kappa": {"kappa": 0.3},
}


def agent_of(seeds=SEEDS, **changes):
    cfg = Config(
        fractions=3,
        target_fractions=2,
        policy_fractions=4,
        cosines=5,
        hidden_width=8,
        lr=1e-2,
        **changes,
    )
    return IQN(cfg, Spec((O,), A, seeding.generators(range(seeds), "init")))


@pytest.mark.parametrize("switch", SWITCHES)
def test_five_updates_equal_the_equations(switch, tolerance):
    agent = agent_of(**SWITCHES[switch])
    draws = torch.rand(5, SEEDS, B, 9, generator=seeding.generator(0, "test"))
    agree(Reference, agent, agent.quantiles, make_transitions(5, 1), draws, tolerance)


def test_risk_averse_actions_are_those_of_the_low_fractions():
    """Action 0 pays 1 for sure; action 1 pays 4 cos(pi (1 - tau)) + 1.5: more on average, less at worst."""
    for risk, choice in ((1.0, 1), (0.25, 0)):
        agent = agent_of(1, hidden_layers=1, risk=risk)
        net = agent.quantiles
        with torch.no_grad():
            for p in net.parameters():
                p.zero_()
            net.encoder.dense.layers[0].bias[..., :2] = 1.0
            net.embedding.weight[0, 0, 0] = -1.0  # -cos(pi tau), positive above the median
            net.embedding.weight[0, 0, 1] = 1.0
            net.head.layers[0].weight[0, 0, 0] = net.head.layers[0].weight[0, 1, 1] = 1.0
            net.head.layers[1].weight[0, 0, 1], net.head.layers[1].weight[0, 1, 1] = 4.0, -4.0
            net.head.layers[1].bias[0, 0, :2] = torch.tensor([1.0, 1.5])
        z = net(torch.zeros(1, 1, O), torch.tensor([[[0.1, 0.8]]]))[0, 0, 1]
        expected = [1.5 - 4 * math.cos(math.pi * tau) for tau in (0.1, 0.8)]
        torch.testing.assert_close(z, torch.tensor(expected))
        assert agent.act(torch.zeros(1, 1, O)).item() == choice
