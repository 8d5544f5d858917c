"""Cal-QL against its transcription, its bound by hand, and the returns that it is bounded by."""

import math

import numpy as np
import pytest
import reference_o2o
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

from corerl.algos import cal_ql, wsrl
from corerl.algos.cal_ql import CalQL, Config
from corerl.data.dataset import Dataset
from corerl.nn.conservative import CQLNoise
from corerl.nn.learner import Spec
from corerl.training import return_labels
from corerl.training.conservative_noise import counts
from corerl.training.offline_to_online import Online
from corerl.training.return_labels import returns_to_go

SMALL = {
    "hidden_width": WIDTH,
    "samples": 2,
    "polyak": 0.1,
    "discount": 0.9,
    "policy_lr": 1e-3,
    "critic_lr": 2e-3,
}
VERSIONS = {
    "antmaze": {"lagrange": True, "threshold": 0.8},
    "adroit": {"weight": 1.0},
    "cql of an ensemble": {
        "calibrate": False,
        "critics": 3,
        "critic_subsample": 2,
        "layer_norm": True,
    },
    "one backup action": {"importance_sampling": False, "max_backup": False},
    "kitchen": {
        "importance_sampling": False,
        "init": "wsrl",
        "tuning": "softplus",
        "log_std_multiplier": None,
        "shared_output": True,
    },
}


def draws(cfg, count: int) -> list[tuple[torch.Tensor, ...]]:
    """For each update: returns, noise, uniforms and the draws that pick critics."""
    rng = np.random.default_rng(3)

    def one() -> tuple[torch.Tensor, ...]:
        return (
            as_tensor(rng.normal(size=(SEEDS, B))),
            as_tensor(rng.normal(size=(SEEDS, sum(counts(cfg)), B, A))),
            as_tensor(rng.random((SEEDS, cfg.samples, B, A))),
            as_tensor(rng.random((SEEDS, 2, cfg.critics))),
        )

    return [one() for _ in range(count)]


def update(agent, batch, returns, noise, *others) -> dict[str, torch.Tensor]:
    return agent.update(batch, returns, CQLNoise(*noise.split(counts(agent.cfg), 1)), *others)


def parts(agent, seed: int) -> tuple:
    heads = [
        [net(x, seed, i) for i in range(agent.cfg.critics)] for x in (agent.critic, agent.target)
    ]
    return (
        net(agent.policy, seed),
        *heads,
        net(agent.temperature, seed),
        net(agent.multiplier, seed),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_five_updates_equal_the_transcription(version, tolerance):
    agent = CalQL(Config(**SMALL | VERSIONS[version]), Spec(O, A, generators()))
    scramble(agent.policy, agent.critic, agent.target, agent.temperature, agent.multiplier)
    references = [reference_o2o.CalQL(*parts(agent, i), agent.cfg) for i in range(SEEDS)]
    for batch, numbers in zip(make_batches(5), draws(agent.cfg, 5), strict=True):
        metrics = update(agent, batch, *numbers)
        for i, reference in enumerate(references):
            losses = reference.update(one_seed(batch, i), *(x[i] for x in numbers))
            assert_losses(metrics, i, losses, 10 * tolerance)
    for i, reference in enumerate(references):
        assert_networks(parts(agent, i), reference.networks(), tolerance)


def test_the_gap_by_hand():
    """Q(s, .) is 1 at chance, 2 and 5 at the policy's actions, 0 at the data's; the return is 3."""
    agent = CalQL(Config(**SMALL | {"samples": 1}), Spec(O, A, generators(1)))
    sampled = torch.tensor([1.0, 2.0, 5.0]).view(1, 1, 3, 1)
    density = torch.tensor([-1.0, 0.5, 0.0]).view(1, 3, 1)
    zero, returns = torch.zeros(1, 1, 1), torch.full((1, 1), 3.0)
    gap, bounded = cal_ql.calibrated_gap(agent.cfg, zero, sampled, density, returns)
    expected = math.log(math.exp(1 + 1) + math.exp(3 - 0.5) + math.exp(5))
    assert gap.item() == pytest.approx(expected, rel=1e-6)
    assert bounded.item() == 0.5
    agent.cfg.calibrate = False
    gap, _ = cal_ql.calibrated_gap(agent.cfg, zero, sampled, density, returns)
    expected = math.log(math.exp(1 + 1) + math.exp(2 - 0.5) + math.exp(5))
    assert gap.item() == pytest.approx(expected, rel=1e-6)


def test_no_gradient_of_a_bounded_value():
    """Where Q lies below the return, the penalty must not push it further down."""
    agent = CalQL(Config(**SMALL | {"samples": 1}), Spec(O, A, generators(1)))
    sampled = torch.tensor([1.0, 2.0, 5.0]).view(1, 1, 3, 1).requires_grad_()
    returns = torch.full((1, 1), 3.0)
    zeros = torch.zeros(1, 1, 1), sampled, torch.zeros(1, 3, 1)
    cal_ql.calibrated_gap(agent.cfg, *zeros, returns)[0].sum().backward()
    chance, low, high = sampled.grad.flatten().tolist()
    assert chance > 0 and low == 0 and high > 0


def test_returns_by_hand():
    np.testing.assert_allclose(returns_to_go(np.array([1.0, 2, 4]), 0.5, None), [3, 4, 4])
    np.testing.assert_allclose(returns_to_go(np.array([-5.0, -5]), 0.9, -5.0), [-50, -50])
    np.testing.assert_allclose(returns_to_go(np.array([-5.0, 5]), 0.9, -5.0), [-0.5, 5])


def test_a_failure_is_named_by_its_raw_reward():
    """AntMaze: a step without success is 0, learned as 10 * 0 - 5."""
    cfg = Config(failure_reward=0.0, discount=0.99)
    cfg.data.reward_scale, cfg.data.reward_shift = 10.0, -5.0
    assert return_labels.label_of(cfg)(np.full(3, -5, np.float32)).tolist() == pytest.approx(
        [-500] * 3
    )


def test_a_failure_that_would_not_be_found_is_refused():
    cfg = Config(failure_reward=-1.0)
    cfg.data.return_range = True
    with refused("failure_reward=-1.0 return_range=false"):
        return_labels.label_of(cfg)
    cfg.failure_reward = 0.0  # of any range
    assert return_labels.label_of(cfg)(np.zeros(2, np.float32)).tolist() == [0, 0]


@pytest.mark.parametrize("algo", [cal_ql, wsrl])
def test_a_failure_that_counts_for_ever_needs_a_discount(algo):
    settings = {"discount": 1.0, "online": Online(5, warmup_steps=5, offline_ratio=0.5)}
    with refused("failure_reward=0.0 algo.discount=1"):
        return_labels.label_of(algo.Config(failure_reward=0.0, **settings))
    label = return_labels.label_of(algo.Config(**settings))
    assert label(np.ones(2, np.float32)).tolist() == [2, 1]


def test_returns_stop_at_the_ends_of_episodes():
    ends = np.array([False, True, False, False, True])
    data = Dataset.from_steps(
        "test/five", np.zeros((5, 1)), np.zeros((5, 1)), np.arange(1.0, 6), np.zeros((5, 1)),
        ends & [False, True, False, False, False], ends & [False, False, False, False, True],
    )  # fmt: skip
    label = return_labels.label_of(Config(discount=0.5))
    np.testing.assert_allclose(
        return_labels.per_episode(data, label), [2, 2, 3 + 2 + 1.25, 4 + 2.5, 5]
    )


def test_initial_policy_and_critics_are_the_authors():
    agent = CalQL(Config(), Spec(17, 6, generators()))
    hidden, last = agent.critic.layers[1].weight[0, 0], agent.critic.layers[-1].weight[0, 0]
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(256), atol=1e-4, rtol=0)
    assert last.norm().item() == pytest.approx(1e-2, rel=1e-4)
    _, log_std = agent.policy(torch.zeros(SEEDS, 1, 17))
    torch.testing.assert_close(log_std, torch.full_like(log_std, -1.0), atol=0.05, rtol=0)
