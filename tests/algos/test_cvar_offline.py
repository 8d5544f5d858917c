"""Static CVaR offline: against its transcription, its stocks by hand, and D1 and D2, solved exactly."""

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
    actor_critic,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    one_seed,
    scramble,
    set_linear,
    tiny,
)
from tiny import Short
from tiny import settings as tiny_job

from corerl.algos.cvar_offline import Config, CVaROffline, Stocks
from corerl.data.dataset import Dataset
from corerl.nn.learner import Spec
from corerl.nn.networks import Normalizer
from corerl.training.offline_stocks import OfflineStockPlayer, ReturnsToGo
from corerl.training.preprocessing import Preprocess

SMALL = {"hidden_width": WIDTH, "fractions": 3, "stocks": 2, "discount": 0.9, "polyak": 0.1}
VERSIONS = {
    "defaults": {},
    "no imitation": {"imitation": 0.0, "policy_delay": 1, "kappa": 0.3},
    "Huber": {"kappa": 1.0, "stocks": 1, "policy_delay": 3, "alpha": 1.0},
}
TO_GO = np.array([-2.0, 0.0, 1.0, 3.0])


def make(version: dict, observations: int = O, actions: int = A, seeds: int = SEEDS, to_go=TO_GO):
    cfg = Config(**SMALL | version)
    return CVaROffline(cfg, Spec(observations, actions, generators(seeds), steps=20), to_go)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(version)
    c = agent.cfg
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    references = [
        reference_risk.StaticCVaR(actor_critic(agent, s), -2.0, 3.0, c) for s in range(SEEDS)
    ]
    rng, delay, rows = np.random.default_rng(3), c.policy_delay, c.stocks * B
    batches = make_batches(5 * delay)
    uniforms = as_tensor(rng.random((5 * delay, SEEDS, rows)))
    noises = as_tensor(1.5 * rng.normal(size=(5 * delay, SEEDS, rows, A)))
    for first in range(0, 5 * delay, delay):
        call = slice(first, first + delay)
        metrics = agent.update(batches[call], list(uniforms[call]), list(noises[call]))
        for s, theirs in enumerate(references):
            for batch, u, noise in zip(batches[call], uniforms[call], noises[call], strict=True):
                stocks = agent.stocks.draw(u[s]).double()  # its law has a test of its own
                losses = theirs.iterate(one_seed(batch, s), stocks, noise[s].double())
            assert_losses(metrics, s, losses | theirs.improve(), tolerance)
    for s, theirs in enumerate(references):
        assert_networks(actor_critic(agent, s), theirs.networks(), tolerance)


def test_both_rates_fall_to_nothing_over_the_runs_updates():
    """Half a cosine over four updates, two in a call: after one call, one half."""
    cfg = Config(**SMALL, cosine=True, policy_delay=2, lr=1e-3)
    agent = CVaROffline(cfg, Spec(O, A, generators(), steps=4), TO_GO)
    uniforms, noises = torch.full((2, SEEDS, 2 * B), 0.5), torch.zeros(2, SEEDS, 2 * B, A)
    agent.update(make_batches(2), list(uniforms), list(noises))
    rates = [float(x.lr) for x in (agent.actor_optimizer, agent.critic_optimizer)]
    assert rates == pytest.approx([0.5e-3] * 2)


def test_losses_by_hand():
    changes = {"hidden_layers": 0, "policy_noise": 0.0, "kappa": 1.0}
    agent = make(changes | {"alpha": 2.0, "imitation": 3.0}, 1, 1, 1)
    # Inputs are (s, told stock, a); the range -2 .. 3 is told as -1 .. 1, so that 0.5 is 0 and 1.75 is 0.5.
    set_linear(agent.target_actor, [0, 0], [np.arctanh(0.5)])
    set_linear(agent.actor, [0, 0], [np.arctanh(0.5)])
    both = [[0, 0, 0], [1, 1, 1], [0, 2, 0]]  # Z' = told + (0, 2a, 0), both critics
    set_linear(agent.target_critic, [both, both], [[0, 0, 0], [1, 1, 1]])
    set_linear(
        agent.critic, [[[0] * 3, [0] * 3, [1, 1, 1]], np.zeros((3, 3))], [[0, 1, 2], [1, 1, 1]]
    )
    batch = tiny(s=[[0], [0]], a=[[0.0], [0.5]], r=[0.05, 2], d=[0, 1])
    stock = torch.tensor([[0.5, 1.0]])
    # Stock after: (0.5 - 0.05) / 0.9 = 0.5, told as 0. Z' = (0, 1, 0), y = 0.05 + 0.9 Z' = (.05, .95, .05).
    # Row 2 is terminal: y = 2. Fractions 1/6, 1/2, 5/6.
    # Critic 1: Z = (0, 1, 2) + a, so (0, 1, 2) and (.5, 1.5, 2.5); critic 2: 1.
    y, taus = [[0.05, 0.95, 0.05], [2.0, 2.0, 2.0]], [1 / 6, 1 / 2, 5 / 6]
    predicted = [[[0, 1, 2], [0.5, 1.5, 2.5]], [[1, 1, 1], [1, 1, 1]]]
    loss = 0.0
    for z in predicted:
        for row, targets in zip(z, y, strict=True):
            for q, tau in zip(row, taus, strict=True):
                for t in targets:
                    size = abs(t - q)
                    size = 0.5 * size**2 if size <= 1 else size - 0.5
                    loss += (1 - tau if t < q else tau) * size / 3 / 2
    found = agent.critic_loss(batch, stock, torch.zeros(1, 2, 1))[0]
    assert found.tolist() == pytest.approx([loss], rel=1e-5)
    # The actor's a = 0.5: Z1 = (0.5, 1.5, 2.5), stocks 0.5 and 1: shortfalls 0 and 0.5 / 3, their mean 1/12.
    # alpha / (1/12) * 1/12 = 2, and 3 times the mean of 0.25 and 0.
    found, metrics = agent.actor_loss(batch, stock)
    assert metrics["shortfall"].item() == pytest.approx(1 / 12, rel=1e-5)
    assert found.tolist() == pytest.approx([2 + 3 * 0.125], rel=1e-5)


def test_stocks_follow_rewards_within_the_range_of_the_data():
    stocks = Stocks(TO_GO)
    after = stocks.next(torch.tensor([1.0, 2.9, -1.5]), torch.tensor([0.5, -1.0, 2.0]), 0.5)
    assert after.tolist() == [1.0, 3.0, -2.0]  # 0.5 / 0.5, and two beyond the range
    assert stocks.feature(torch.tensor([-2.0, 0.5, 3.0])).flatten().tolist() == [-1.0, 0.0, 1.0]
    assert stocks.evenly_spaced(6).tolist() == pytest.approx([-2, -1, 0, 1, 2, 3])


def test_drawn_stocks_are_half_like_the_data_and_half_uniform():
    to_go = np.random.default_rng(0).exponential(size=10_000)
    u = torch.linspace(0, 1, 20_001)[:-1]
    drawn = Stocks(to_go).draw(u).double().numpy()
    assert (drawn >= to_go.min() - 1e-6).all() and (drawn <= to_go.max() + 1e-6).all()
    for x in (0.3, 1.0, 4.0):
        expected = ((to_go < x).mean() + x / to_go.max()) / 2
        assert (drawn < x).mean() == pytest.approx(expected, abs=5e-3)


def test_a_start_stock_is_a_quantile_of_all_first_states_together():
    """Z is 0, 1, 2 in one first state and 10, 11, 12 in the other, whatever stock and action."""
    agent = make({"hidden_layers": 0, "start_stocks": 29}, 1, 1, 1, to_go=np.array([-1.0, 13.0]))
    weights = np.zeros((2, 3, 3))
    weights[:, 0] = 10.0
    set_linear(agent.critic, weights, [[0, 1, 2]] * 2)
    first = torch.tensor([[[0.0], [1.0]]])
    stock, value = agent.start_stock(first, 0.6)  # the worst 3.6 of (0, 1, 2, 10, 11, 12)
    assert (stock.item(), value.item()) == (pytest.approx(10.0), pytest.approx(9 / 3.6))
    assert agent.start_stock(first, 1 / 6)[1].item() == pytest.approx(0.0, abs=1e-5)
    assert agent.start_stock(first, 1.0)[1].item() == pytest.approx(6.0)
    own, value = (x.item() for x in agent.start_stock(first[:, 1:], 0.5))  # 10 and half of 11
    assert (own, value) == (pytest.approx(11.0), pytest.approx(15.5 / 1.5))
    # Played with start=own, each episode begins with that of its first state: 1 and 11, told as -+5/7.
    set_linear(agent.actor, [0, 1], [0])
    reported = torch.atanh(OfflineStockPlayer(agent, 0.5, None)(first)).flatten()
    torch.testing.assert_close(reported, torch.tensor([-5 / 7, 5 / 7]))


def test_a_start_stock_is_by_both_critics_at_normalised_states():
    """Raw first states 3 and 5 are 0 and 1: Z is 10 s + (0, 1, 2) and 2 more, their mean 10 s + (1, 2, 3)."""
    cfg = Config(**SMALL | {"hidden_layers": 0, "start_stocks": 29})
    spec = Spec(1, 1, generators(1), normalizer=Normalizer.of([3.0], [2.0]))
    agent = CVaROffline(cfg, spec, np.array([-1.0, 13.0]))
    weights = np.zeros((2, 3, 3))
    weights[:, 0] = 10.0
    set_linear(agent.critic, weights, [[0, 1, 2], [2, 3, 4]])
    stock, value = agent.start_stock(torch.tensor([[[3.0], [5.0]]]), 0.6)
    assert (stock.item(), value.item()) == (pytest.approx(11.0), pytest.approx(12.6 / 3.6))


def test_a_start_stock_is_judged_by_the_returns_of_play_with_it():
    """Z is 10 s + (0, 1, 2) and half of the stock above 6: other stocks have other returns."""
    agent = make({"hidden_layers": 0, "start_stocks": 29}, 1, 1, 1, to_go=np.array([-1.0, 13.0]))
    weights = np.zeros((2, 3, 3))
    weights[:, 0], weights[:, 1] = 10.0, 3.5  # a stock is told as (c - 6) / 7
    set_linear(agent.critic, weights, [[0, 1, 2]] * 2)
    stocks = np.linspace(-1, 13, 29)
    z = np.array([0, 1, 2, 10, 11, 12]) + (stocks[:, None] - 6) / 2
    values = stocks - np.maximum(stocks[:, None] - z, 0).mean(1) / 0.6
    stock, value = agent.start_stock(torch.tensor([[[0.0], [1.0]]]), 0.6)
    assert stock.item() == pytest.approx(stocks[values.argmax()])
    assert value.item() == pytest.approx(values.max(), rel=1e-5)


class Players(Short):
    def evaluate(self, step, act, also=None) -> None:
        self.player = act


@pytest.mark.parametrize("start", ["data", "own"])
def test_a_run_begins_episodes_where_its_settings_say(start):
    first = Players(tiny_job("cvar_offline", start=start), [0], updates=1).player.first
    assert first is None if start == "own" else first.shape == (10, 3)  # of ten episodes


def test_a_player_carries_the_stock_of_every_episode_on_the_learned_scale():
    data = Preprocess(reward_scale=0.5, reward_shift=-1.0)
    agent = make({"hidden_layers": 0, "discount": 0.5, "data": data}, 1, 1, 1)
    set_linear(agent.actor, [0, 1], [0])  # tanh of the told stock
    set_linear(agent.critic, np.zeros((2, 3, 3)), [[0, 0, 0]] * 2)
    player = OfflineStockPlayer(agent, 0.5, torch.zeros(4, 1))
    observations = torch.zeros(1, 2, 1)
    player.begin(1, 2)
    reported = torch.atanh(player(observations)).flatten()
    torch.testing.assert_close(
        reported, torch.full((2,), -0.2), atol=0.01, rtol=0
    )  # stock 0 of Z = 0
    player.reward(torch.tensor([[2.0, 3.0]]))  # learned 0 and 0.5; stocks 0 and -1
    reported = torch.atanh(player(observations)).flatten()
    torch.testing.assert_close(reported, torch.tensor([-0.2, -0.6]), atol=0.02, rtol=0)
    player.begin(1, 2)
    assert torch.atanh(player(observations))[0, 1].item() == pytest.approx(-0.2, abs=0.01)


def test_labels_are_discounted_returns_and_first_states_are_kept():
    ends = np.array([0, 1, 0, 0, 1], bool)
    s = np.arange(5.0)[:, None]
    data = Dataset.from_steps("test/x", s, 0 * s, np.ones(5), s + 1, ends, ~ends & False)
    returns = ReturnsToGo(0.5)
    np.testing.assert_allclose(returns(data), [1.5, 1, 1.75, 1.5, 1])
    assert returns.first.flatten().tolist() == [0.0, 2.0]
