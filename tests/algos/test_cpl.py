"""CPL against its transcription through both phases, and by hand."""

import math

import pytest
import reference_pref
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    O,
    assert_losses,
    assert_networks,
    generators,
    net,
    scramble,
    set_linear,
)
from reference_pref import COMPARISONS, LENGTH, make_keys, make_pairs, masks, one

from corerl.algos.cpl import CPL, Config
from corerl.nn.learner import Spec
from corerl.preferences.buffer import Pairs


def make(**more) -> CPL:
    settings = {"hidden_width": WIDTH, "lr": 1e-3, "bc_steps": 2, "warmup_steps": 2, "dropout": 0.0}
    return CPL(Config(**settings | more), Spec(O, A, generators()))


KINDS = {
    "cpl": {},
    "dropout": {"dropout": 0.25},
    "cpl-bc": {"bias": 1.0, "bc_weight": 1.0},
    "cpl-kl": {
        "reference": True,
        "alpha": 0.2,
        "bias": 0.75,
        "lr_factor": 0.1,
        "dropout": 0.25,
    },
    "gaussian": {"policy": "gaussian"},
    "no cloning": {"bc_steps": 0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_six_updates_equal_the_equations(kind, tolerance):
    """Two of cloning, two while the rate rises, two after."""
    agent = make(**KINDS[kind])
    cfg = agent.cfg
    scramble(agent.policy)
    references = [reference_pref.CPL(net(agent.policy, s), cfg) for s in range(SEEDS)]
    rows = COMPARISONS * 2 * LENGTH
    for i, (pairs, keys) in enumerate(zip(make_pairs(6), make_keys(6, 2), strict=True)):
        keys = keys if cfg.dropout else None
        metrics = (agent.imitate if i < cfg.bc_steps else agent.update)(pairs, keys)
        for s, theirs in enumerate(references):
            keep = None if keys is None else masks(keys[s], rows, cfg.dropout)
            losses = theirs.update(one(pairs, s), keep)
            assert losses.keys() <= metrics.keys()
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(net(agent.policy, s), theirs.networks(), tolerance)


def still(**more) -> CPL:
    """One seed whose policy is 0 everywhere."""
    agent = CPL(Config(hidden_layers=0, alpha=0.5, **more), Spec(1, 1, generators(1)))
    set_linear(agent.policy.body, [[0.0]], [0.0])
    return agent


def comparison(first: list[float], second: list[float], label: float) -> Pairs:
    """One comparison of two segments, each given by its actions."""
    actions = torch.tensor([[[first, second]]])[..., None]
    zeros = torch.zeros_like(actions)
    return Pairs(zeros, actions, torch.tensor([[label]]))


@pytest.mark.parametrize("label", [0.0, 0.5, 1.0])
def test_loss_by_hand(label):
    """-|0 - a|^2 sums to -2 and -1, so scores are -1 and -0.5; with b = 0.6 the other's are -.6 and -.3."""
    agent = still(bias=0.6, bc_weight=2.0)
    loss, metrics = agent.loss(comparison([1.0, 1.0], [1.0, 0.0], label), None)
    if_second = -math.log(math.exp(-0.5) / (math.exp(-0.5) + math.exp(-0.6)))
    if_first = -math.log(math.exp(-1.0) / (math.exp(-1.0) + math.exp(-0.3)))
    contrast = label * if_second + (1 - label) * if_first
    assert metrics["cpl_loss"].item() == pytest.approx(contrast, rel=1e-6)
    assert metrics["bc_loss"].item() == pytest.approx(0.75)
    assert loss.item() == pytest.approx(contrast + 2 * 0.75, rel=1e-6)
    assert metrics["accuracy"].item() == (label == 1.0)


def test_scores_of_long_segments_do_not_overflow():
    agent = still()
    pairs = comparison([1.0] * 900, [0.0] * 900, 0.0)  # scores -450 and 0, the wrong way round
    assert agent.loss(pairs, None)[0].item() == pytest.approx(450)


def test_at_the_reference_all_segments_are_alike():
    """log pi - log pi_ref = 0, so the loss is log 2 whatever the label."""
    agent = still(reference=True, lr=1e-12)
    pairs = comparison([1.0, 1.0], [1.0, 0.0], 0.0)
    agent.imitate(pairs)
    assert agent.loss(pairs, None)[0].item() == pytest.approx(math.log(2), rel=1e-6)


def test_the_reference_is_the_cloned_policy_and_stays():
    agent = make(reference=True)
    first, second, third = make_pairs(3)
    agent.imitate(first)
    agent.imitate(second)
    cloned = net(agent.policy, 0)
    agent.update(third)
    assert_networks(net(agent.reference, 0), cloned, 0)
    assert (net(agent.policy, 0)["body.layers.0.weight"] != cloned["body.layers.0.weight"]).any()


def test_actions_are_without_dropout():
    agent = make(dropout=0.5)
    observations = torch.randn(SEEDS, 4, O)
    torch.testing.assert_close(agent.act(observations), torch.tanh(agent.policy.body(observations)))
