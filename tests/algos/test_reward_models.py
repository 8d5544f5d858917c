"""Markovian rewards against their transcription; ensembles, stopping, and by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import reference_dtr
import torch
from agreement import SEEDS, A, O, assert_losses, assert_networks, generators, net, scramble
from wording import refused

from corerl.nn.learner import Spec
from corerl.preferences.buffer import Pairs
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.reward_models import (
    Markov,
    MarkovReward,
    Stopping,
    ensemble_mean,
    in_pieces,
    markov,
    preference_loss,
)


def comparisons(members: int, pairs: int = 6, length: int = 3) -> Pairs:
    rng = np.random.default_rng(2)
    shape = (SEEDS, members * pairs, 2, length)
    dtype = torch.get_default_dtype()
    labels = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0, 0.5, 1.0])
    drawn = labels[torch.from_numpy(rng.integers(0, 7, shape[:2]))]
    observations, actions = (torch.from_numpy(rng.normal(size=(*shape, n))) for n in (O, A))
    shares = torch.from_numpy(rng.dirichlet(np.ones(length), shape[:3])).to(dtype)
    return Pairs(observations.to(dtype), actions.to(dtype), drawn.to(dtype), shares)


REWARDS = {
    "prior": {"prior": 5.0, "bounded": False, "sigmoid": True},
    "authors": {},
    "one, mean": {"members": 1, "score": "mean", "activation": "relu", "hidden_layers": 2},
}


@pytest.mark.parametrize("version", REWARDS.values(), ids=REWARDS)
def test_five_updates_of_the_reward_equal_the_equations(version, tolerance):
    cfg = Markov(**{"hidden_width": 8, "lr": 1e-2, "stop_accuracy": None} | version)
    model = MarkovReward(cfg, Spec(O, A, generators()))
    scramble(model.network)
    references = [
        reference_dtr.Reward([net(model.network, s, m) for m in range(cfg.members)], cfg)
        for s in range(SEEDS)
    ]
    pairs = comparisons(cfg.members)
    for _ in range(5):
        metrics = model.update(pairs)
        for s, theirs in enumerate(references):
            mine = (x[s].double() for x in pairs)
            loss, accuracy = theirs.update(*(x.unflatten(0, (cfg.members, -1)) for x in mine))
            expected = {"reward_loss": loss, "reward_accuracy": accuracy}
            assert_losses(metrics, s, expected, tolerance)
    for s, theirs in enumerate(references):
        mine = [net(model.network, s, m) for m in range(cfg.members)]
        assert_networks(mine, [reference_dtr.arrays(m) for m in theirs.members], tolerance)


def test_unbounded_rewards_are_the_networks_outputs():
    inputs = torch.randn(1, 1, 7, O + A)
    wide, narrow = (
        MarkovReward(Markov(hidden_width=8, bounded=b), Spec(O, A, generators()))
        for b in (False, True)
    )
    assert torch.equal(wide(inputs), wide.network(inputs).squeeze(-1))
    assert torch.equal(narrow(inputs), torch.tanh(wide(inputs)))


def test_preference_loss_by_hand():
    """Scores 0 and log 3: the second is preferred with probability 3/4."""
    scores = torch.tensor([[0.0, np.log(3)]] * 3)
    labels = torch.tensor([1.0, 0.0, 0.5])
    loss, accuracy = preference_loss(scores, labels)
    expected = (-np.log(0.75) - np.log(0.25) - 0.5 * np.log(0.75 * 0.25)) / 3
    assert loss.item() == pytest.approx(expected) and accuracy.item() == 0.5
    assert preference_loss(scores, torch.full((3,), 0.5))[1].item() == 0.0


def test_ensemble_normalization_is_per_member_and_seed():
    rewards = torch.tensor([[[1.0, 3.0], [10.0, 30.0]], [[0.0, 2.0], [0.0, -20.0]]])
    assert ensemble_mean(rewards, normalize=True).tolist() == [[-1.0, 1.0], [0.0, 0.0]]
    assert ensemble_mean(rewards, normalize=False).tolist() == [[5.5, 16.5], [0.0, -9.0]]


def test_rewards_of_a_dataset_are_the_ensembles():
    model = MarkovReward(Markov(hidden_width=8), Spec(O, A, generators()))
    rng = np.random.default_rng(0)
    observations, actions = (rng.normal(size=(24, n)).astype("f4") for n in (O, A))
    rewards = model.rewards(observations, actions)
    assert rewards.shape == (SEEDS, 3, 24)
    inputs = np.concatenate([observations, actions], -1)
    for s in range(SEEDS):
        for m in range(3):
            theirs = reference_dtr.Reward([net(model.network, s, m)], model.cfg)
            expected = theirs.reward(theirs.members[0], torch.from_numpy(inputs).double())
            np.testing.assert_allclose(rewards[s, m], expected.detach(), atol=1e-6)


def test_pieces_are_joined_without_a_seam():
    seen = []

    def of_rows(rows):
        seen.append(rows)
        return torch.arange(rows.start, rows.stop)[None]

    assert in_pieces(of_rows, 7, 3).tolist() == [list(range(7))] and len(seen) == 3


def test_a_seed_stops_after_an_epoch_above_the_limit_and_the_other_goes_on():
    """Seed 0 sees one clear comparison, seed 1 the same with contradicting labels."""
    cfg = Markov(hidden_width=8, members=1, lr=0.05, stop_accuracy=0.9)
    model = MarkovReward(cfg, Spec(O, A, generators()), epoch=10)
    observations, actions, *_ = comparisons(1, pairs=2)
    observations[:, 1], actions[:, 1] = observations[:, 0], actions[:, 0]
    pairs = Pairs(observations, actions, torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    weights = []
    for _ in range(40):
        model.update(pairs)
        weights.append(model.network.layers[0].weight.detach().clone())
    assert model.stopping.going.tolist() == [False, True]
    assert torch.equal(weights[-1][0], weights[-11][0])
    assert not torch.equal(weights[-1][1], weights[-2][1])
    stopped = next(i for i in range(40) if torch.equal(weights[i][0], weights[-1][0]))
    assert (stopped + 1) % 10 == 0, "it stops at the end of an epoch only"


def test_a_limit_has_to_be_exceeded_so_that_1_never_stops():
    """Epochs of two updates, in which seeds are right in 1/2, 3/4 and all."""
    for limit, left in ((0.5, 1), (0.75, 2), (1.0, 3)):
        stopping = Stopping(3)
        for accuracy in ([0.0, 0.5, 1.0], [1.0, 1.0, 1.0]):
            stopping.look(torch.tensor(accuracy), 2, limit)
        assert stopping.going.tolist() == [i < left for i in range(3)]


def test_a_runs_reward_draws_for_every_member_and_one_seed_may_stand_for_all():
    rng = np.random.default_rng(0)
    s, a = (rng.normal(size=(10, 2, 3, n)) for n in (O, A))
    compared = Comparisons.by_value("test/x", "a test", s, a, np.ones(10))
    run = SimpleNamespace(seeds=[4, 7], device=torch.device("cpu"), mode="off")
    sizes = {"hidden_width": 8, "members": 2}
    reward, pairs = markov(run, Markov(batch_size=4, **sizes), compared, crop=2)
    assert pairs.sample().actions.shape == (2, 2 * 4, 2, 2, A)
    assert reward._epoch == math.ceil(10 / 4)
    few, pairs = markov(run, Markov(batch_size=64, seed=4, **sizes), compared)
    batch = pairs.sample()
    assert batch.actions.shape == (2, 2 * 10, 2, 3, A) and few._epoch == 1
    assert torch.equal(batch.actions[0], batch.actions[1])
    for mine, both in zip(reward.network.parameters(), few.network.parameters(), strict=True):
        assert torch.equal(mine[0], both[0]) and torch.equal(both[0], both[1])
    weight = reward.network.layers[0].weight
    assert not torch.equal(weight[0], weight[1]) and not torch.equal(weight[0, 0], weight[0, 1])


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ({"members": 0}, "algo.reward.members=0"),
        ({"steps": 0}, "algo.reward.steps=0"),
        ({"score": "max"}, "algo.reward.score=max"),
        ({"activation": "gelu"}, "algo.reward.activation=gelu leaky_relu"),
        ({"init": "flax"}, "algo.reward.init=flax"),
        ({"seed": -1}, "algo.reward.seed=-1"),
        ({"stop_accuracy": 1.5}, "algo.reward.stop_accuracy=1.5"),
    ],
)
def test_reward_settings_out_of_range_are_refused(wrong, reported):
    with refused(reported):
        Markov(**wrong)
