"""Discrete CQL against a transcription, by hand, and on the embedded CartPole set."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference_distributional as reference
import torch
from reference_distributional import SEEDS, A, O, agree, best, huber, make_transitions
from small import config, train

import corerl
from corerl import seeding
from corerl.algos.cql_discrete import Config, DiscreteCQL
from corerl.buffers.replay import Batch
from corerl.config import Eval
from corerl.data import embedded
from corerl.data.dataset import Dataset
from corerl.nn.learner import Spec

SMALL = {"hidden_layers": 2, "hidden_width": 8, "lr": 1e-2, "quantiles": 5, "discount": 0.9}
SWITCHES = {
    "paper": {},
    "weight": {"weight": 4.0},
    "double": {"double": True, "kappa": 0.3},
    "mean": {"critic": "mean"},
}


class Reference(reference.QRDQN):
    """The transcription of QR-DQN's loss, or DQN's, and the penalty of eq. 4 with its exact sum."""

    def __init__(self, online, target, settings):
        count = settings.quantiles if settings.critic == "quantile" else 1
        super().__init__(online, target, SimpleNamespace(**vars(settings) | {"quantiles": count}))

    def row_loss(self, s, a, r, s_next, discount):
        values = self.table(self.online, s)
        q = values.mean(1)
        penalty = sum(value.exp() for value in q).log() - q[a]
        return self.bellman(values, s, a, r, s_next, discount) + self.c.weight * penalty

    def bellman(self, values, s, a, r, s_next, discount):
        if self.c.critic == "quantile":
            return super().row_loss(s, a, r, s_next, discount)
        ahead = self.table(self.target, s_next)
        return huber(
            values[a][0] - r.sum() - discount * ahead[best(ahead)][0].detach(), self.c.kappa
        )


def agent_of(seeds=SEEDS, **changes):
    cfg = Config(**(SMALL | changes))
    return DiscreteCQL(cfg, Spec((O,), A, seeding.generators(range(seeds), "init")))


def as_batch(rows) -> Batch:
    terminated = (rows.discounts == 0).to(rows.rewards.dtype)
    actions = rows.actions[..., None].to(rows.rewards.dtype)
    rewards = rows.rewards.squeeze(-1)
    return Batch(
        rows.observations, actions, rewards, rows.next_observations, terminated, actions[..., :0]
    )


@pytest.mark.parametrize("switch", SWITCHES)
def test_five_updates_equal_the_equations(switch, tolerance):
    agent = agent_of(**SWITCHES[switch])
    learner = SimpleNamespace(
        cfg=agent.cfg, target=agent.target, update=lambda rows: agent.update(as_batch(rows))
    )
    agree(Reference, learner, agent.critic, make_transitions(5, 1), None, tolerance)


def test_the_penalty_by_hand():
    agent = agent_of(1, critic="mean", weight=2.0)
    with torch.no_grad():
        for part in (agent.critic, agent.target):
            part.head.weight.zero_()
            part.head.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    zeros = torch.zeros(1, 1, O)
    one = torch.ones(1, 1)
    batch = Batch(zeros, torch.full((1, 1, 1), 2.0), one * 3, zeros, one, zeros[..., :0])
    loss, metrics = agent.loss(batch)
    gap = torch.log(torch.e + torch.tensor(3.0))  # log(e + 1 + 1 + 1) - Q(s, 2), which is 0
    torch.testing.assert_close(metrics["gap"], gap[None])
    torch.testing.assert_close(loss, 2 * gap[None] + 2.5)  # Huber of 3 - 0: 3 - 1/2


def test_it_masters_the_embedded_poles_where_its_data_does_not(tmp_path):
    data = embedded.load("cartpole")
    own = {"lr": 1e-3, "quantiles": 10, "target_every": 25, "hidden_layers": 2}
    own |= {"hidden_width": 64, "batch_size": 64}
    job = {"task": "corerl/cartpole", "steps": 1000, "eval": Eval(every=1000, episodes=5)}
    cell = train(config(tmp_path, "cql_discrete", own=own, **job))
    last = (cell / "seeds-0/scores.csv").read_text().splitlines()[-1]
    assert data.episode_returns().mean() < 40 and float(last.split(",")[5]) > 70


def test_it_trains_without_an_environment_on_the_actions_of_the_data(tmp_path):
    rng, done = np.random.default_rng(0), np.arange(1, 61) % 10 == 0
    steps = {"observations": rng.normal(size=(60, 2)), "actions": rng.integers(3, size=60)}
    data = Dataset.from_arrays(**steps, rewards=rng.normal(size=60), terminated=done)
    run = corerl.train("cql_discrete", dataset=data, seeds=1, steps=2, root=tmp_path, quantiles=2)
    assert run.load(0).act(np.zeros((4, 2))).shape == (4,)
