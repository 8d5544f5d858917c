"""The algorithms learn: a bandit with a known answer in seconds, and (slow) Pendulum from mixed data.

The bandit: states uniform on [-1, 1]^2, the data's actions uniform on [-1, 1]^2 whatever the state, one
step, and r = -1 - |a - a*(s)|^2 with a*(s) = 0.6 s. What each algorithm must converge to follows from
its objective, so that these tests see a wrong weight as well as a wrong sign.
"""

import csv
import importlib

import numpy as np
import pytest
import torch
from agreement import generators

from corerl import seeding
from corerl.algos import bc, iql, rebrac, td3_bc
from corerl.buffers.replay import OfflineBuffer
from corerl.config import Config, Eval
from corerl.data.dataset import Dataset
from corerl.nn.learner import Spec
from corerl.training.run import Run

BATCH = 128
SMALL = {"batch_size": BATCH, "hidden_width": 64, "hidden_layers": 2}
STATES = torch.rand(1, 500, 2, generator=generators(1)[0]) * 2 - 1
BEST = 0.6 * STATES
SPREAD = 2 * 0.6**2 / 3  # E |a*(s)|^2


@pytest.fixture
def buffer() -> OfflineBuffer:
    rng = np.random.default_rng(0)
    s, a = rng.uniform(-1, 1, (2, 20_000, 2))
    reward = -1 - ((a - 0.6 * s) ** 2).sum(1)
    every = np.ones(len(s))
    dataset = Dataset.from_steps("test/bandit", s, a, reward, s, every, 0 * every)
    return OfflineBuffer(dataset.transitions(next_actions=True), [0], BATCH)


def slope(actions: torch.Tensor) -> float:
    """The x of actions = x a*(s), by least squares."""
    return float((actions * BEST).sum() / (BEST * BEST).sum())


def test_bc_clones_a_linear_policy():
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, (5_000, 2))
    a = s @ [[0.5, -0.2], [0.1, 0.4]]
    zeros = np.zeros(len(s))
    dataset = Dataset.from_steps("test/linear", s, a, zeros, s, zeros + 1, zeros)
    buffer = OfflineBuffer(dataset.transitions(), [0], BATCH)
    agent = bc.BC(bc.Config(**SMALL, lr=3e-3), Spec(2, 2, generators(1)))
    for _ in range(500):
        agent.update(buffer.sample())
    error = agent.act(STATES) - STATES @ torch.tensor([[0.5, -0.2], [0.1, 0.4]])
    assert error.square().mean() < 1e-3  # of a variance of 0.077


def test_bc_on_the_bandit_is_the_mean_action(buffer):
    agent = bc.BC(bc.Config(**SMALL, lr=1e-3), Spec(2, 2, generators(1)))
    for _ in range(500):
        agent.update(buffer.sample())
    assert slope(agent.act(STATES)) == pytest.approx(0, abs=0.1)


def td3_slope(weight: float, imitation: float) -> float:
    """Where lambda grad r = `imitation` grad |a|^2 for lambda = `weight` / mean |r| at a = x a*."""
    x = 1.0
    for _ in range(50):
        scale = weight / (1 + (1 - x) ** 2 * SPREAD)
        x = scale / (scale + imitation)
    return x


def test_td3_bc_on_the_bandit(buffer):
    cfg = td3_bc.Config(**SMALL, lr=1e-3)
    agent = td3_bc.TD3BC(cfg, Spec(2, 2, generators(1)))
    noise = seeding.normal([0], "noise", (BATCH, 2))
    for _ in range(750):
        agent.update([buffer.sample(), buffer.sample()], [noise.next(), noise.next()])
    expected = td3_slope(cfg.alpha, imitation=1 / 2)  # a mean over two dimensions
    assert expected == pytest.approx(0.83, abs=0.01)
    assert slope(agent.act(STATES)) == pytest.approx(expected, abs=0.06)


def test_rebrac_on_the_bandit(buffer):
    cfg = rebrac.Config(**SMALL, actor_bc_coef=0.5)
    agent = rebrac.ReBRAC(cfg, Spec(2, 2, generators(1)))
    noise = seeding.normal([0], "noise", (BATCH, 2))
    for _ in range(750):
        agent.update([buffer.sample(), buffer.sample()], [noise.next(), noise.next()])
    expected = td3_slope(1, imitation=cfg.actor_bc_coef)  # a sum over dimensions
    assert expected == pytest.approx(0.66, abs=0.01)
    assert slope(agent.act(STATES)) == pytest.approx(expected, abs=0.06)


def test_iql_on_the_bandit(buffer):
    cfg = iql.Config(**SMALL, lr=1e-3, beta=5.0)
    agent = iql.IQL(cfg, Spec(2, 2, generators(1), steps=1000))
    for _ in range(1000):
        agent.update(buffer.sample())
    # V(s) cancels: the mean of the data's actions, each weighted by exp(beta r(s, a)).
    a = torch.linspace(-1, 1, 2001)
    weight = torch.exp(-cfg.beta * (a - BEST[..., None]).square())
    expected = (weight * a).sum(-1) / weight.sum(-1)
    assert slope(expected) == pytest.approx(0.93, abs=0.01)
    assert slope(agent.act(STATES)) == pytest.approx(slope(expected), abs=0.06)
    assert (agent.act(STATES) - expected).abs().mean() < 0.05


QUICK = {"hidden_width": 64, "batch_size": 128}
PENDULUM = {
    "bc": bc.Config(**QUICK, lr=1e-3, best=0.2),
    "td3_bc": td3_bc.Config(**QUICK, lr=1e-3, alpha=10.0),
    "iql": iql.Config(**QUICK, lr=1e-3, beta=10.0),
    "rebrac": rebrac.Config(**QUICK),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PENDULUM)
def test_three_seeds_beat_the_data_on_pendulum(algorithm, tmp_path):
    """The data's episodes score 45 on average; a random policy 0, the recipe's controller 100."""
    algo = PENDULUM[algorithm]
    cfg = Config(
        algo=algo,
        task="corerl/pendulum",
        steps=6_000,
        eval=Eval(every=6_000, episodes=10),
        root=str(tmp_path),
        device="cpu",
        compile="off",
    )
    run = Run(cfg, [0, 1, 2], lambda name, status: None)
    importlib.import_module(f"corerl.algos.{algorithm}").train(algo, run)
    with open(run.directory / "scores.csv", encoding="utf-8", newline="") as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    assert len(scores) == 3
    assert np.mean(scores) > 65, scores
