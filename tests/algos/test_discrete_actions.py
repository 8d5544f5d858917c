"""BC, IQL, AWAC and DT where actions are discrete: one-hot in the buffer, categorical in the policy."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from agreement import (
    SEEDS,
    WIDTH,
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
    twins,
)
from small import config, train
from torch.nn import functional as F
from wording import refused

import corerl
from corerl.algos import awac, bc, dt, iql
from corerl.config import Eval
from corerl.data import embedded
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.errors import CorerlError
from corerl.nn.learner import Spec
from corerl.nn.policies import CategoricalPolicy
from corerl.training import preprocessing
from corerl.training.windows import load_windows

K = 4  # actions


def spec(**more) -> Spec:
    return Spec(O, K, generators(), discrete=True, **more)


def batches(count: int) -> list:
    """Those of the continuous tests, with one-hot actions."""
    rng = np.random.default_rng(2)
    eye = torch.eye(K, dtype=torch.get_default_dtype())
    return [
        batch._replace(actions=eye[torch.from_numpy(rng.integers(K, size=(SEEDS, B)))])
        for batch in make_batches(count)
    ]


def step_of_log_likelihood(policy, optimizer, s, a, weight, factor=1.0) -> float:
    """One step of Adam on -mean weight * log softmax(f(s))[a]; the loss before it."""
    logits, tape = reference.mlp(policy, s)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    gradient = weight[:, None] * (p - a) / len(s)
    optimizer.step(reference.mlp_grad(policy, tape, gradient)[0], factor)
    return -np.mean(weight * np.log((p * a).sum(1)))


class ReferenceIQL(reference.IQL):
    def extract(self, s, a, advantage, uniforms) -> float:
        c = self.settings
        weight = np.minimum(np.exp(c.beta * advantage), c.max_weight)
        factor = (1 + np.cos(np.pi * self.count / self.steps)) / 2 if c.cosine else 1.0
        return step_of_log_likelihood(self.policy, self.policy_optimizer, s, a, weight, factor)


def test_five_updates_of_iql_equal_the_equations(tolerance):
    cfg = iql.Config(hidden_width=WIDTH, polyak=0.1, discount=0.9)
    agent = iql.IQL(cfg, spec(steps=8))
    scramble(agent.value, agent.policy, agent.critic, agent.target)

    def networks(seed: int) -> tuple:
        both = twins(agent.critic, seed), twins(agent.target, seed)
        return net(agent.value, seed), net(agent.policy.body, seed), *both

    references = [ReferenceIQL(*networks(s), cfg, 8) for s in range(SEEDS)]
    for batch in batches(5):
        metrics = agent.update(batch)
        for s, theirs in enumerate(references):
            assert_losses(metrics, s, theirs.update(one_seed(batch, s)), tolerance)
    for s, theirs in enumerate(references):
        assert_networks(networks(s), theirs.networks(), tolerance)


def test_five_updates_of_bc_equal_the_equations(tolerance):
    cfg = bc.Config(hidden_width=WIDTH, lr=1e-3)
    agent = bc.BC(cfg, spec())
    scramble(agent.policy)
    policies = [net(agent.policy, s) for s in range(SEEDS)]
    optimizers = [reference.Adam(policy, cfg.lr) for policy in policies]
    for batch in batches(5):
        metrics = agent.update(batch)
        for s, theirs in enumerate(zip(policies, optimizers, strict=True)):
            rows = one_seed(batch, s)
            loss = step_of_log_likelihood(*theirs, rows.observations, rows.actions, np.ones(B))
            assert_losses(metrics, s, {"policy_loss": loss}, tolerance)
    for s, theirs in enumerate(policies):
        assert_networks(net(agent.policy, s), theirs, tolerance)


def test_awacs_losses_by_hand():
    cfg = awac.Config(hidden_layers=0, temperature=2.0, discount=0.5)
    agent = awac.AWAC(cfg, Spec(1, 2, generators()[:1], discrete=True))
    set_linear(agent.policy.body, [[0.0, 0.0]], [0.0, np.log(3)])  # probabilities 1/4 and 3/4
    for critic in (agent.critic, agent.target):  # Q(s, 0) = 1, Q(s, 1) = 5; twin: 2 more
        set_linear(critic, [[[0.0], [1.0], [5.0]], [[0.0], [1.0], [5.0]]], [[0.0], [2.0]])
    batch = tiny([[1.0]], [[1.0, 0.0]], r=[3.0], d=[False])
    # Noise of -9 has Gumbel noise near -3.8, of 9 near 43: the draw is action 1, worth 5.
    noise = torch.tensor([[[-9.0, 9.0]]])
    loss, metrics = agent.policy_loss(batch, noise)
    weight = np.exp((1 - 5) / 2)
    torch.testing.assert_close(loss, torch.tensor([-weight * np.log(0.25)], dtype=torch.float32))
    assert metrics["advantage"].item() == pytest.approx(-4)
    loss, _ = agent.critic_loss(batch, noise)  # y = 3 + 0.5 * 5
    assert loss.item() == pytest.approx((1 - 5.5) ** 2 + (3 - 5.5) ** 2)
    assert agent.act(torch.zeros(1, 3, 1)).tolist() == [[1, 1, 1]]


def test_draws_have_the_probabilities_of_the_softmax():
    policy = CategoricalPolicy([1, 3], generators()[:1])
    logits = torch.tensor([0.0, 1.0, -2.0])
    policy.forward = lambda noise: logits.expand_as(noise)
    noise = torch.randn(1, 200_000, 3, generator=torch.Generator().manual_seed(0))
    drawn = policy.draw(noise, noise)
    assert drawn.sum(-1).eq(1).all()
    shares, expected = drawn.mean((0, 1)), logits.softmax(-1)
    error = (expected * (1 - expected) / 200_000).sqrt()
    assert ((shares - expected).abs() < 4 * error).all()


def numbered_data() -> Dataset:
    """Two episodes; the action is whether the observation is positive."""
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(30, 2)).astype(np.float32)
    ends = np.isin(np.arange(30), (9, 29))
    actions = (observations[:, 0] > 0).astype(np.int64)
    return Dataset.from_steps(
        "test/signs", observations, actions, rng.normal(size=30), observations, ends, ~ends & False
    )


def loaded(cfg, seeds=range(SEEDS)):
    run = SimpleNamespace(
        task=resolve("corerl/cartpole"),
        dataset=numbered_data,
        seeds=list(seeds),
        device=torch.device("cpu"),
        cfg=SimpleNamespace(algo=cfg, history=1),
    )
    run.task = SimpleNamespace(make_env=_no_simulator, id="test/signs")
    return load_windows(cfg, run)[1:]


def _no_simulator():
    raise CorerlError("there is none")


def test_dts_loss_is_the_cross_entropy_of_steps_that_are_no_padding():
    cfg = dt.Config(context=4, width=8, layers=1, dropout=0.0, batch_size=6, max_timestep=30)
    buffer, normalizer = loaded(cfg)
    agent = dt.DT(cfg, Spec(2, 2, generators(), normalizer=normalizer, discrete=buffer.discrete))
    windows = buffer.sample()
    assert set(windows.actions[windows.valid > 0].flatten().tolist()) == {0.0, 1.0}
    logits = agent.transformer(windows)
    assert logits.detach().abs().max() > 0 and not torch.equal(logits, logits.tanh())
    loss, _ = agent.loss(windows, None)
    for s in range(SEEDS):
        kept = windows.valid[s] > 0
        expected = F.cross_entropy(logits[s][kept], windows.actions[s][kept].argmax(-1))
        torch.testing.assert_close(loss[s], expected)


def test_dt_remembers_the_numbers_that_it_named():
    cfg = dt.Config(context=4, width=8, layers=1, dropout=0.0, batch_size=6, max_timestep=30)
    _, normalizer = loaded(cfg, [0])
    agent = dt.DT(cfg, Spec(2, 2, generators()[:1], normalizer=normalizer, discrete=True))
    player = agent.player(1.0)
    player.begin(1, 3)
    first = player(torch.randn(1, 3, 2))
    assert first.shape == (1, 3) and first.dtype == torch.int64
    held = player._context._windows.actions[:, :, -1]
    assert torch.equal(held, F.one_hot(first, 2).float())


@pytest.mark.parametrize("name", ["iql", "awac"])
def test_they_master_the_embedded_poles_where_their_data_does_not(name, tmp_path):
    own = {"lr": 3e-3, "hidden_width": 32, "batch_size": 64, "hidden_layers": 1, "polyak": 0.05}
    job = {"task": "corerl/cartpole", "steps": 800, "eval": Eval(every=800, episodes=5)}
    cell = train(config(tmp_path, name, own=own, **job))
    last = (cell / "seeds-0/scores.csv").read_text().splitlines()[-1]
    assert embedded.load("cartpole").episode_returns().mean() < 40
    assert float(last.split(",")[5]) > 100


@pytest.mark.parametrize("name", ["bc", "dt"])
def test_imitators_learn_which_action_the_data_takes(name, tmp_path):
    """A run on a file of one's own without a simulator, to the policy that is loaded from it."""
    data = numbered_data()
    settings = {"dt": {"context": 2, "width": 16, "warmup_steps": 1, "dropout": 0.0}, "bc": {}}
    trained = corerl.train(
        name, dataset=data, seeds=1, steps=120, root=str(tmp_path), lr=1e-2, **settings[name]
    )
    agent = trained.load()
    named = np.empty(30, int)
    for first, last in ((0, 10), (10, 30)):
        agent.reset()
        for row in range(first, last):
            named[row] = agent.act(data.observations[row])[0]
            agent.earned(data.rewards[[row]])
    assert (named == data.actions).mean() > 0.95


def test_an_action_that_the_environment_has_not_is_named():
    run = SimpleNamespace(task=resolve("corerl/cartpole"))
    with refused("2 actions action"):
        preprocessing.one_hot(run, np.array([0, 2]))
    assert preprocessing.one_hot(run, np.array([0, 0])).shape == (2, 2)
