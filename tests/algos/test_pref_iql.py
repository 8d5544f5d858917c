"""P-IQL: its rewards against a transcription, IQL on that reward, and by hand."""

import math
from dataclasses import replace

import pytest
import reference_pref
import tiny
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
    twins,
)
from reference_pref import make_pairs, one
from wording import refused

from corerl.algos.pref_iql import Config, PrefIQL
from corerl.nn.learner import Spec
from corerl.preferences.buffer import Pairs, transitions
from corerl.preferences.reward_models import MarkovReward
from corerl.preferences.sources import Preferences

STEPS = 8


def make(reward: dict | None = None, **more) -> PrefIQL:
    settings = {"hidden_width": WIDTH, "polyak": 0.1, "discount": 0.9}
    of_reward = replace(Config().reward, hidden_width=WIDTH, lr=1e-3, **reward or {})
    cfg = Config(**settings | more, reward=of_reward)
    networks = MarkovReward(cfg.reward, Spec(O, A, generators()))
    return PrefIQL(cfg, Spec(O, A, generators(), steps=STEPS), reward=networks)


def parts(agent: PrefIQL, seed: int) -> tuple:
    rewards = [net(agent.reward.network, seed, m) for m in range(agent.cfg.reward.members)]
    critics = (twins(x, seed) for x in (agent.critic, agent.target))
    return rewards, net(agent.value, seed), net(agent.policy, seed), *critics


@pytest.mark.parametrize(
    "switch",
    [
        {},
        {"critic_loss": "sum", "beta": 10.0},
        {"dropout": 0.25},
        {"replay": False},
        {"reward": {"members": 3, "bounded": True}},
    ],
    ids=["default", "sum", "dropout", "comparisons alone", "ensemble"],
)
def test_five_updates_equal_the_equations(switch, tolerance):
    """The reward learns in the first three of them, in float64 alone.

    Its last bias shifts both segments alike, so that the gradient is nothing but rounding, and float32's
    is large enough for Adam to make steps of it.
    """
    fits = 3 if torch.get_default_dtype() == torch.float64 else 0
    agent = make(**switch)
    cfg = agent.cfg
    scramble(agent.reward.network, agent.value, agent.policy, agent.critic, agent.target)
    references = [reference_pref.PrefIQL(*parts(agent, s), cfg, STEPS) for s in range(SEEDS)]
    uniforms = torch.rand(5, SEEDS, cfg.hidden_layers, B, WIDTH, generator=generators(1)[0])
    members = cfg.reward.members
    for i, (pairs, batch) in enumerate(zip(make_pairs(5, members), make_batches(5), strict=True)):
        batch = batch if cfg.replay else transitions(pairs)
        u = uniforms[i] if cfg.dropout else None
        metrics = agent.fit_reward(pairs) if i < fits else {}
        metrics |= agent.update(batch, u)
        for s, theirs in enumerate(references):
            losses = theirs.fit_reward(one(pairs, s)) if i < fits else {}
            losses |= theirs.update(one_seed(batch, s), None if u is None else u[s].numpy())
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


@pytest.mark.parametrize("label", [0.0, 0.5, 1.0])
def test_reward_loss_by_hand(label):
    """r = s + 2 a: segments (1, 0), (0, 1) and (1, 1), (1, 0) of (s, a) sum to 3 and 4; the logit is 1."""
    reward = MarkovReward(replace(Config().reward, hidden_layers=0), Spec(1, 1, generators(1)))
    set_linear(reward.network, [[1.0], [2.0]], [5.0])
    s = torch.tensor([[[[1.0, 0.0], [1.0, 1.0]]]])[..., None]
    a = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])[..., None]
    loss, metrics = reward.loss(Pairs(s, a, torch.tensor([[label]])))
    assert loss.item() == pytest.approx(math.log(1 + math.e) - label, rel=1e-6)
    assert metrics["reward_accuracy"].item() == (label == 1.0)


def test_initial_weights_are_the_authors():
    """Orthogonal with gain 1 and zero biases, in the reward."""
    for layer in MarkovReward(Config().reward, Spec(17, 6, generators())).network.layers:
        w = layer.weight.detach()
        w = w if w.shape[-2] < w.shape[-1] else w.mT
        product = w @ w.mT
        torch.testing.assert_close(product, torch.eye(w.shape[-2]).expand_as(product))
        assert not layer.bias.any()


def test_rewards_of_the_data_are_not_read():
    agents = [make(), make()]
    batch = make_batches(1)[0]
    spoiled = batch._replace(rewards=torch.full_like(batch.rewards, torch.nan))
    for agent, data in zip(agents, (batch, spoiled), strict=True):
        agent.update(data)
    for mine, other in zip(*(a.critic.parameters() for a in agents), strict=True):
        assert torch.equal(mine, other)


def test_scale_and_shift_are_of_the_learned_rewards():
    data = replace(Config().data, reward_scale=3.0, reward_shift=-0.5)
    plain, scaled = make(), make(data=data)
    batch = make_batches(1)[0]
    mean = plain.update(batch)["reward"]
    torch.testing.assert_close(scaled.update(batch)["reward"], 3 * mean - 0.5)
    moved = [x.critic.parameters() for x in (plain, scaled)]
    assert not all(map(torch.equal, *moved))


def test_iql_never_moves_the_reward_nor_the_reward_iql():
    agent = make()
    reward, critic = net(agent.reward.network, 0), net(agent.critic, 0, 0)
    agent.update(make_batches(1)[0])
    assert_networks(net(agent.reward.network, 0), reward, 0)
    stepped = net(agent.critic, 0, 0)
    assert (stepped["layers.0.weight"] != critic["layers.0.weight"]).any()
    agent.fit_reward(make_pairs(1)[0])
    assert_networks(net(agent.critic, 0, 0), stepped, 0)
    assert (net(agent.reward.network, 0)["layers.0.weight"] != reward["layers.0.weight"]).any()


def test_seeds_that_share_a_reward_have_batches_of_their_own(calls):
    """Those of the comparisons alone that they would have had with a reward each."""
    seen, batches = calls(PrefIQL, "fit_reward update"), []
    for seed in (None, 7):
        of_reward = replace(Config().reward, hidden_width=8, seed=seed)
        cfg = tiny.settings("pref_iql", replay=False, reward=of_reward)
        tiny.Short(cfg, [0, 1], updates=2)
        pairs, batch = (argument for _, (argument, *_) in seen[-2:])
        assert torch.equal(*pairs.actions) == (seed is not None)
        batches.append(batch.actions)
    assert torch.equal(*batches) and not torch.equal(*batches[1])


def test_crops_longer_than_a_teachers_segments_are_refused_unread():
    with refused("algo.crop=64 algo.preferences.length=25"):
        Config(preferences=Preferences(length=25))
    Config(crop=None, preferences=Preferences(length=25))
    Config(preferences=Preferences(source="pt", length=25))  # a file has lengths of its own
