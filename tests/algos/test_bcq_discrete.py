"""Discrete BCQ against a transcription, by hand, and where it is double DQN and cloning."""

import math

import numpy as np
import pytest
import torch
from agreement import assert_losses, assert_networks, generators, net, scramble
from reference_distributional import SEEDS, A, B, O, encoded, layer, leaves, numbers
from small import config, train
from torch import nn

from corerl.algos import cql_discrete
from corerl.algos.bcq_discrete import Config, DiscreteBCQ
from corerl.buffers.replay import Batch
from corerl.config import Eval
from corerl.data import embedded
from corerl.nn.learner import Spec

SMALL = {"hidden_width": 8, "discount": 0.9, "lr": 1e-2, "polyak": 0.1}
VERSIONS = {
    "authors": {},
    "double DQN": {"threshold": 0.0},
    "close to cloning": {"threshold": 0.95, "kappa": 0.2},
    "atari": {"polyak": 1.0, "target_every": 2, "adam_eps": 1.5e-4, "logit_weight": 0.1},
}


def make(seeds: int = SEEDS, **more) -> DiscreteBCQ:
    return DiscreteBCQ(Config(**SMALL | more), Spec((O,), A, generators(seeds)))


def make_batch(rng) -> Batch:
    """Other data for each seed; a third of the rows terminal."""

    def tensor(x):
        return torch.as_tensor(x).to(torch.get_default_dtype())

    s, s_next = rng.normal(size=(2, SEEDS, B, O))
    a, r = rng.integers(A, size=(SEEDS, B, 1)), rng.normal(size=(SEEDS, B))
    d = rng.random((SEEDS, B)) < 0.3
    return Batch(*map(tensor, (s, a, r, s_next, d)), tensor(a)[..., :0])


class Reference:
    """One seed, float64, one transition at a time; probabilities as such, the best action by Python."""

    def __init__(self, cfg, critic, imitator, target):
        self.c, self.count = cfg, 0
        self.critic, self.imitator, self.target = leaves(critic), leaves(imitator), leaves(target)
        both = [*self.critic.values(), *self.imitator.values()]
        self.optimizer = torch.optim.Adam(both, lr=cfg.lr, eps=cfg.adam_eps)

    def networks(self) -> tuple:
        return tuple(numbers(n) for n in (self.critic, self.imitator, self.target))

    def table(self, network, s):
        return layer(network, "head", encoded(network, s))

    def choice(self, s) -> int:
        odds = self.table(self.imitator, s).softmax(0)
        q = self.table(self.critic, s).tolist()
        likely = [a for a in range(A) if odds[a] / max(odds) > self.c.threshold]
        return max(likely, key=lambda a: q[a])

    def row(self, s, a, r, s_next, d) -> torch.Tensor:
        ahead = self.table(self.target, s_next)[self.choice(s_next)].item()
        error = (self.table(self.critic, s)[a] - r - self.c.discount * (1 - d) * ahead).abs()
        k = self.c.kappa
        bellman = error**2 / 2 if error <= k else k * error - k**2 / 2
        logits = self.table(self.imitator, s)
        return bellman - logits.softmax(0)[a].log() + self.c.logit_weight * (logits**2).mean()

    def update(self, batch) -> dict:
        rows = zip(*(x.double() for x in batch[:5]), strict=True)
        losses = [self.row(s, int(a), r, s_next, d) for s, a, r, s_next, d in rows]
        loss = sum(losses) / len(losses)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.count += 1
        if self.count % self.c.target_every == 0:
            for name, mine in self.target.items():
                mine.data += self.c.polyak * (self.critic[name].data - mine.data)
        return {"loss": loss.item()}


def parts(agent: DiscreteBCQ, seed: int) -> tuple:
    return tuple(net(module, seed) for module in (agent.critic, agent.imitator, agent.target))


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(**version)
    scramble(agent.critic, agent.imitator, agent.target)
    theirs = [Reference(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    rng = np.random.default_rng(0)
    for step in range(1, 6):
        batch = make_batch(rng)
        metrics = agent.update(batch)
        if step % agent.cfg.target_every == 0:
            agent.move_target()
        for s, their in enumerate(theirs):
            losses = their.update([x[s] for x in batch])
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), tolerance)


@torch.no_grad()
def constant(module: nn.Module, outputs: list[float]) -> None:
    """Makes a network return these numbers at every observation."""
    module.head.weight.zero_()
    module.head.bias.copy_(torch.tensor(outputs))


def by_hand(**more) -> DiscreteBCQ:
    """G is 0.5, 0.3, 0.15 and 0.05; Q is 1, 2, 3 and 4, and Q' is 10, 20, 30 and 40."""
    agent = make(1, **more)
    constant(agent.imitator, [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)])
    constant(agent.critic, [1.0, 2.0, 3.0, 4.0])
    constant(agent.target, [10.0, 20.0, 30.0, 40.0])
    return agent


@pytest.mark.parametrize(
    ("threshold", "best"), [(0.0, 3), (0.2, 2), (0.29, 2), (0.31, 1), (0.59, 1), (0.61, 0)]
)
def test_the_best_allowed_action_by_hand(threshold, best):
    agent = by_hand(threshold=threshold)
    assert agent.act(torch.zeros(1, 2, O)).tolist() == [[best, best]]


def test_the_loss_by_hand():
    """At 0.3 the next action is 1 or, at the bound, 2: y = 3 + 0.9 * 30 at 0.29; Huber is |e| - 1/2."""
    agent = by_hand(threshold=0.29)
    zeros, one = torch.zeros(1, 1, O), torch.ones(1, 1)
    batch = Batch(zeros, torch.ones(1, 1, 1), one * 3, zeros, one * 0, zeros[..., :0])
    loss, metrics = agent.loss(batch)
    assert metrics["bellman_loss"].tolist() == pytest.approx([30 - 2 - 0.5])
    assert metrics["imitation_loss"].tolist() == pytest.approx([-math.log(0.3)])
    size = sum(math.log(p) ** 2 for p in (0.5, 0.3, 0.15, 0.05)) / 4
    assert loss.tolist() == pytest.approx([27.5 - math.log(0.3) + 0.01 * size])
    assert metrics["allowed_actions"].tolist() == [3.0]


def test_at_threshold_0_it_is_double_dqn_bit_for_bit():
    agent = make(threshold=0.0)
    scramble(agent.critic, agent.imitator, agent.target)
    shared = {"critic": "mean", "double": True, "weight": 0.0, "discount": 0.9}
    sizes = {"hidden_layers": 2, "hidden_width": 8}
    spec = Spec((O,), A, generators(SEEDS))
    dqn = cql_discrete.DiscreteCQL(cql_discrete.Config(**shared, **sizes), spec)
    for mine, their in ((agent.critic, dqn.critic), (agent.target, dqn.target)):
        their.load_state_dict(mine.state_dict())
    batch = make_batch(np.random.default_rng(0))
    assert torch.equal(agent.loss(batch)[1]["bellman_loss"], dqn.loss(batch)[1]["bellman_loss"])
    assert torch.equal(agent.act(batch.observations), dqn.act(batch.observations))


def test_near_threshold_1_it_clones():
    agent = make(threshold=1 - 1e-9)
    scramble(agent.critic, agent.imitator)
    states = torch.randn(SEEDS, 50, O)
    assert torch.equal(agent.act(states), agent.imitator(states).argmax(-1))


def test_it_never_takes_an_action_that_the_data_lacks():
    """Of four arms the data has two, and both lose 5: unseen ones look better, and are not allowed."""
    rng, zeros = np.random.default_rng(0), torch.zeros(SEEDS, B)
    agent = make(lr=3e-2)
    for _ in range(150):
        batch = make_batch(rng)
        seen = batch.actions % 2
        agent.update(batch._replace(actions=seen, rewards=zeros - 5, terminated=zeros + 1))
    states = torch.randn(SEEDS, 50, O)
    unseen = agent.critic(states).argmax(-1) > 1
    assert unseen.float().mean() > 0.9
    assert (agent.act(states) < 2).all()


def test_it_masters_the_embedded_poles_where_its_data_does_not(tmp_path):
    own = {"lr": 1e-3, "hidden_width": 64}
    job = {"task": "corerl/cartpole", "steps": 1500, "eval": Eval(every=1500, episodes=5)}
    cell = train(config(tmp_path, "bcq_discrete", own=own, **job))
    last = (cell / "seeds-0/scores.csv").read_text().splitlines()[-1]
    assert embedded.load("cartpole").episode_returns().mean() < 40
    assert float(last.split(",")[5]) > 70
