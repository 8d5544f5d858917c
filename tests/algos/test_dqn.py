"""DQN against a transcription and by hand, and semi-Markov targets where decisions take unequal times."""

import pytest
import torch
from reference_distributional import (
    SEEDS,
    A,
    Learner,
    O,
    agree,
    best,
    encoded,
    huber,
    layer,
    make_transitions,
)
from small import config, train

from corerl import seeding
from corerl.algos import cql_discrete
from corerl.algos.dqn import DQN, Config
from corerl.buffers.frame_replay import Transitions
from corerl.buffers.replay import Batch
from corerl.config import Eval
from corerl.nn.learner import Spec
from corerl.training.experience import Collect

SMALL = {"hidden_layers": 2, "hidden_width": 8, "lr": 1e-2}


class Reference(Learner):
    def table(self, network, s):
        return layer(network, "head", encoded(network, s))

    def row_loss(self, s, a, r, s_next, discount):
        ahead = self.table(self.target, s_next)
        choice = best(self.table(self.online, s_next) if self.c.double else ahead)
        y = (r.sum() + discount * ahead[choice]).detach()
        return huber(self.table(self.online, s)[a] - y, self.c.kappa)


def agent_of(seeds=SEEDS, **changes):
    return DQN(Config(**SMALL, **changes), Spec((O,), A, seeding.generators(range(seeds), "init")))


@pytest.mark.parametrize("switch", [{}, {"double": True}, {"kappa": 0.3}], ids=str)
def test_five_updates_equal_the_equations(switch, tolerance):
    agent = agent_of(**switch)
    agree(Reference, agent, agent.critic, make_transitions(5, 1), None, tolerance)


@pytest.mark.parametrize(("double", "y"), [(False, 3 + 0.5 * 40), (True, 3 + 0.5 * 10)])
def test_the_loss_by_hand(double, y):
    """Q is 4, 3, 2, 1 and Q' is 10, 20, 30, 40, so that the two networks choose other actions."""
    agent = agent_of(1, double=double)
    with torch.no_grad():
        for module, outputs in ((agent.critic, [4, 3, 2, 1]), (agent.target, [10, 20, 30, 40])):
            module.head.weight.zero_()
            module.head.bias.copy_(torch.tensor(outputs))
    zeros, one = torch.zeros(1, 1, O), torch.ones(1, 1)
    batch = Transitions(
        zeros, torch.ones(1, 1, dtype=torch.int64), 3 * one[..., None], zeros, 0.5 * one
    )
    assert agent.loss(batch)[0].tolist() == pytest.approx([y - 3 - 0.5])


@pytest.mark.parametrize("double", [False, True])
def test_offline_it_is_discrete_cql_without_its_penalty_bit_for_bit(double):
    agent = agent_of(double=double)
    cfg = cql_discrete.Config(**SMALL, critic="mean", weight=0.0, double=double, discount=0.9)
    other = cql_discrete.DiscreteCQL(cfg, Spec((O,), A, seeding.generators(range(SEEDS), "init")))
    for mine, their in ((agent.critic, other.critic), (agent.target, other.target)):
        their.load_state_dict(mine.state_dict())
    batch = make_transitions(1, 1)[0]
    over = (batch.discounts == 0).to(batch.discounts.dtype)
    actions = batch.actions[..., None].to(over.dtype)
    rows = Batch(
        *(batch.observations, actions, batch.rewards[..., 0], batch.next_observations, over),
        actions[..., :0],
    )
    theirs = other.loss(rows)[1]["bellman_loss"]
    mine = agent.loss(batch._replace(discounts=0.9 * (1 - over)))[0]
    assert torch.equal(mine, theirs)


def job(tmp_path, **data):
    collect = {"learning_starts": 200, "train_every": 2, "epsilon_steps": 1000, "epsilon": 0.1}
    collect |= {"eval_epsilon": 0.0, "capacity": 4000}
    own = {"lr": 1e-3, "hidden_width": 32, "discount": 0.9, "target_every": 100, "batch_size": 32}
    own["data"] = Collect(**collect | data)
    settings = {"task": "corerl/courier", "steps": 4000, "eval": Eval(every=4000, episodes=1)}
    return config(tmp_path, "dqn", own=own, save_every=4000, log_every=1000, **settings)


def test_it_learns_the_way_of_the_fewest_minutes(tmp_path):
    last = (train(job(tmp_path)) / "seeds-0/scores.csv").read_text().splitlines()[-1]
    assert float(last.split(",")[5]) == 24
