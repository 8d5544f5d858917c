"""IPL against its transcription in each of its forms, and by hand."""

import math

import numpy as np
import pytest
import reference_pref
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    set_linear,
    tiny,
)
from reference_pref import COMPARISONS, LENGTH, make_keys, make_pairs, masks, one
from wording import refused

from corerl.algos.ipl import IPL, Config, Points
from corerl.buffers.replay import Batch
from corerl.nn.learner import Spec
from corerl.preferences.buffer import Pairs
from corerl.preferences.sources import Preferences

ROWS = COMPARISONS * 2 * (LENGTH - 1)


def make(**more) -> IPL:
    settings = {"hidden_width": WIDTH, "polyak": 0.1, "discount": 0.9, "lr": 1e-3}
    return IPL(Config(**settings | more), Spec(O, A, generators()))


def parts(agent: IPL, seed: int) -> tuple:
    value = {} if agent.cfg.form == "awac" else net(agent.value, seed)
    critics = [
        [net(nets, seed, i) for i in range(agent.cfg.critics)]
        for nets in (agent.critic, agent.target)
    ]
    return value, net(agent.policy, seed), *critics


FORMS = {
    "authors": {},
    "tight clip": {"chi2": 20.0},
    "no clip": {"target_clipping": False, "chi2": 3.0, "expectile": 0.75},
    "weights": {"replay_weight": 0.2},
    "robomimic": {"dropout": 0.25, "temperature": 2.0, "chi2": 4.0},
    "limited advantage": {"max_weight": 1.5},
    "xql": {"form": "xql", "gumbel_scale": 0.7, "gumbel_limit": 1.0},
    "awac": {"form": "awac", "critics": 1, "chi2": 4.0},
    "awac minimum": {"form": "awac", "min_target": True},
}


@pytest.mark.parametrize("replay", [True, False], ids=["dataset", "comparisons alone"])
@pytest.mark.parametrize("form", FORMS)
def test_five_updates_equal_the_equations(form, replay, tolerance):
    agent = make(replay=replay, **FORMS[form])
    cfg = agent.cfg
    awac = cfg.form == "awac"
    scramble(agent.critic, agent.target, agent.policy, *([] if awac else [agent.value]))
    references = [
        reference_pref.IPL(None if awac else parts(agent, s)[0], *parts(agent, s)[1:], cfg)
        for s in range(SEEDS)
    ]
    rows = ROWS + B * replay
    noise = torch.randn(5, SEEDS, 2, rows, A, generator=generators(1)[0])
    keys = make_keys(5, cfg.hidden_layers)
    for i, (pairs, batch) in enumerate(zip(make_pairs(5), make_batches(5), strict=True)):
        batch = without_next_actions(batch) if replay else None
        draws, keep = (noise[i] if awac else None), [None] * SEEDS
        if cfg.dropout:
            draws, keep = keys[i], [masks(key, rows, cfg.dropout) for key in keys[i]]
        metrics = agent.update(pairs, batch, draws)
        for s, theirs in enumerate(references):
            mine = [one(pairs, s), batch and one_seed(batch, s), keep[s]]
            losses = theirs.update(*mine, noise=draws[s].double() if awac else None)
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


def line(**more) -> IPL:
    """One seed, one feature, no hidden layer: Q = 2 s + a + 1 and 2 s + a + 3, V = s, gamma 1/2."""
    agent = IPL(Config(hidden_layers=0, discount=0.5, **more), Spec(1, 1, generators(1)))
    set_linear(agent.critic, [[2.0], [1.0], [2.0], [1.0]], [1.0, 3.0])
    set_linear(agent.target, [[2.0], [1.0], [2.0], [1.0]], [1.0, 3.0])
    if agent.cfg.form != "awac":
        set_linear(agent.value, [[1.0]], [0.0])
    set_linear(agent.policy.body, [[0.0]], [0.0])
    return agent


def without_next_actions(batch: Batch) -> Batch:
    """As buffers give it."""
    return batch._replace(next_actions=batch.next_actions[..., :0])


def segments(first, second, label: float) -> Pairs:
    """One comparison of two segments, each given by its states; all actions are 0."""
    states = torch.tensor([[[first, second]]])[..., None]
    zeros = torch.zeros_like(states)
    return Pairs(states, zeros, torch.tensor([[label]]))


@pytest.mark.parametrize("label", [0.0, 0.5, 1.0])
def test_critic_loss_by_hand(label):
    """States 0, 1, 2 against 1, 1, 4; the last of each is only looked to.

    With V(s') = s' / 2: r_1 = 2 s + 1 - s'/2 is 0.5, 2 on the first segment and 2.5, 1 on the second;
    sums 2.5 and 3.5. The other critic's are each 2 larger, sums 6.5 and 7.5. Both logits are 1.
    Squares: 0.25, 4, 6.25, 1 and 6.25, 16, 20.25, 9: mean 63 / 8.
    """
    agent = line(chi2=0.4)
    pairs = segments([0.0, 1.0, 2.0], [1.0, 1.0, 4.0], label)
    points = Points.of(pairs, None)
    loss, metrics = agent.critic_loss(points, points.batch.next_observations[..., 0])
    entropy = math.log(1 + math.exp(1)) - label
    assert metrics["preference_loss"].item() == pytest.approx(entropy, rel=1e-6)
    assert metrics["chi2_loss"].item() == pytest.approx(0.4 * 63 / 8)
    assert loss.item() == pytest.approx(entropy + 0.4 * 63 / 8)
    assert metrics["accuracy"].item() == (label == 1.0)


def test_value_loss_by_hand():
    """min Q - V is s + 1: at 0, 1 and at -3, -2 it is 1, 2, -2, -1; the expectile weighs .7 and .3."""
    agent = line()
    pairs = segments([0.0, 1.0, 9.0], [-3.0, -2.0, 9.0], 1.0)
    loss, metrics = agent.value_loss(Points.of(pairs, None))
    assert loss.item() == pytest.approx((0.7 * (1 + 4) + 0.3 * (4 + 1)) / 4)
    assert metrics["advantage"].item() == pytest.approx(0.0)
    gumbel = line(form="xql", gumbel_scale=2.0, gumbel_limit=0.75)
    z = [0.5, 0.75, -1.0, -0.5]
    expected = sum(math.exp(x) - x - 1 for x in z) / 4
    assert gumbel.value_loss(Points.of(pairs, None))[0].item() == pytest.approx(expected)


def test_the_dataset_and_the_comparisons_weigh_by_group():
    """Eight steps of comparisons at difference 1 and two of the dataset at 3, with weight 1/4."""
    agent = line(replay_weight=0.25, expectile=0.5)
    pairs = segments([0.0] * 5, [0.0] * 5, 1.0)
    data = without_next_actions(tiny(s=[[2.0], [2.0]], a=[[0.0], [0.0]], d=[0, 1]))
    points = Points.of(pairs, data)
    loss, _ = agent.value_loss(points)
    assert loss.item() == pytest.approx(0.75 * 0.5 * 1 + 0.25 * 0.5 * 9)
    # Q is 1 and 3 in the comparisons, 5 and 7 in the dataset; V(s') = 2, but not after its terminal.
    _, metrics = agent.critic_loss(points, torch.full((1, 10), 2.0))
    squares = 0.75 * (0**2 + 2**2) / 2 + 0.25 * (4**2 + 6**2 + 5**2 + 7**2) / 4
    assert metrics["chi2_loss"].item() == pytest.approx(0.5 * squares)


def test_next_values_stay_within_the_clip():
    """lambda 1 and gamma 1/2 clip V(s') at 2: of s' = 9 and -9 remain 2 and -2."""
    pairs = segments([0.0, 9.0], [0.0, -9.0], 1.0)
    rewards = {}
    for clipping in (True, False):
        agent = line(chi2=1.0, target_clipping=clipping)
        rewards[clipping] = agent._policy_and_critic_loss(
            Points.of(pairs, None), torch.zeros(1, 2), None
        )[1]["chi2_loss"]
    # Q is 1 and 3: r = 1 - 1, 1 + 1, 3 - 1, 3 + 1, or 1 - 4.5, 1 + 4.5, 3 - 4.5, 3 + 4.5.
    assert rewards[True].item() == pytest.approx((0 + 4 + 4 + 16) / 4)
    assert rewards[False].item() == pytest.approx((12.25 + 30.25 + 2.25 + 56.25) / 4)


@pytest.mark.parametrize(
    ("advantage", "weight"), [(1.0, math.exp(2)), (-1.0, math.exp(-2)), (9, 100)]
)
def test_weight_of_the_policys_loss_by_hand(advantage, weight):
    """Policy at 0 with std 1, as are the actions: -log N(0; 0, 1) = log(2 pi) / 2. Temperature 1/2."""
    agent = line(temperature=0.5)
    points = Points.of(segments([0.0, 0.0], [0.0, 0.0], 1.0), None)
    loss = agent.policy_loss(points, torch.full((1, 2), float(advantage)), None)
    assert loss.item() == pytest.approx(weight * 0.5 * math.log(2 * math.pi), rel=1e-5)


def test_awac_advantage_is_over_the_policys_sample():
    """Q = 2 s + a + const: a sample at 0.5 lowers the advantage of action 0 by 0.5."""
    agent = line(form="awac", temperature=1.0)
    points = Points.of(segments([0.0, 0.0], [1.0, 0.0], 1.0), None)
    q = torch.tensor([[2.0, 4.0]])  # the mean of both critics
    _, metrics = agent._awac_policy_loss(points, q, torch.full((1, 2, 1), 0.5))
    assert metrics["advantage"].item() == pytest.approx(-0.5)


@pytest.mark.parametrize(("form", "after"), [("iql", 4.0), ("awac", 10.0)])
def test_implied_rewards_by_hand(form, after):
    """Q(1, 0.5) is 3.5 and 5.5; V(4) is 4, or Q(4, 0) = 9 and 11, and nothing follows a terminal."""
    rows = ([[1.0], [1.0]], [[0.5], [0.5]], [[4.0], [4.0]], [0.0, 1.0])
    found = line(form=form).implied_rewards(*(np.array(x, np.float32) for x in rows))
    assert found.tolist() == [pytest.approx([4.5 - 0.5 * after, 4.5])]


def test_initial_weights_are_the_authors():
    """Orthogonal with gain 1 in every layer, outputs too; biases and log-std zero."""
    agent = IPL(Config(), Spec(17, 6, generators()))
    for mlp in (agent.value, agent.policy.body, agent.critic):
        for layer in mlp.layers:
            w = layer.weight.detach()
            w = w if w.shape[-2] < w.shape[-1] else w.mT
            product = w @ w.mT
            torch.testing.assert_close(product, torch.eye(w.shape[-2]).expand_as(product))
            assert not layer.bias.any()
    assert not agent.policy.log_std.any()


def test_segments_too_short_for_a_transition_are_refused_unread():
    short = Preferences(length=1)
    with refused("algo.preferences.length=1 2"):
        Config(crop=None, preferences=short)


@pytest.mark.parametrize("without", [{"target_clipping": False}, {"form": "awac"}])
def test_no_penalty_needs_no_clip(without):
    agent = make(chi2=0.0, **without)
    draws = torch.zeros(SEEDS, 2, ROWS, A) if agent.cfg.form == "awac" else None
    metrics = agent.update(make_pairs(1)[0], None, draws)
    assert not metrics["chi2_loss"].any() and metrics["preference_loss"].isfinite().all()
