"""LAEO against its equations, which states are examples, and what the mean of exp f is exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    O,
    assert_losses,
    assert_networks,
    generators,
    net,
    scramble,
    twins,
)
from reference_fql import frozen
from reference_goals import Goals, logits
from test_goal_agents import make_batches
from wording import refused

from corerl.algos.crl import CRL
from corerl.algos.laeo import LAEO, Config, facts
from corerl.data.tasks import resolve
from corerl.nn.learner import Spec

M = 7
SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "discount": 0.9, "latent_dim": 6, "examples": M}


class Reference(Goals):
    """One seed: OGBench's CRL whose policy knows no goal, at examples."""

    def __init__(self, *args, examples):
        super().__init__(*args)
        self.examples = torch.from_numpy(examples)

    def trained(self):
        return self.nets

    def update(self, batch, uniform) -> dict:
        firsts, seconds, policy = self.nets
        s, a, _, g, *_ = map(torch.from_numpy, batch)
        pairs = list(zip(firsts, seconds, strict=True))
        tables = [logits(f, t, torch.cat([s, a], 1), g) for f, t in pairs]
        own = torch.eye(len(s), dtype=s.dtype)
        entropy = torch.nn.functional.binary_cross_entropy_with_logits
        critic_loss = sum(entropy(table, own) for table in tables) / len(tables)

        def value(x):
            x = torch.cat([s, x], 1)
            table = torch.stack([logits(frozen(f), frozen(t), x, self.examples) for f, t in pairs])
            table = table.amin(0)  # (B, M)
            if self.c.over == "random":
                drawn = (torch.from_numpy(uniform) * M).long()
                return table.gather(1, drawn[:, None])[:, 0]
            return table.mean(1) if self.c.over == "mean" else table.exp().mean(1).log()

        policy_loss = self.ddpg_bc(policy, s, a, value)
        self.step(critic_loss + policy_loss)
        return {"critic_loss": critic_loss.item(), "policy_loss": policy_loss.item()}


@pytest.mark.parametrize("over", ["random", "mean", "logsumexp"])
def test_five_updates_equal_the_equations(tolerance, over):
    rng = np.random.default_rng(2)
    examples = rng.normal(size=(M, O))
    cfg = Config(over=over, **SMALL)
    shown = {"examples": torch.tensor(examples).to(torch.get_default_dtype())}
    agent = LAEO(cfg, Spec(O, A, generators(), facts=shown))
    scramble(agent.critic, agent.policy)

    def nets(s):
        return twins(agent.critic.first, s), twins(agent.critic.goal, s), net(agent.policy, s)

    theirs = [Reference(cfg, *nets(s), examples=examples) for s in range(SEEDS)]
    for batch in make_batches(5):
        uniform = rng.random((SEEDS, batch.actions.shape[1]))
        metrics = agent.update(batch, torch.tensor(uniform).to(batch.actions.dtype))
        for s, their in enumerate(theirs):
            one = [x[s].double().numpy() for x in batch]
            losses = their.update(one, uniform[s])
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(nets(s), their.networks(), tolerance)


def test_the_classifier_is_crls():
    cfg = Config(**SMALL)
    agent = LAEO(cfg, Spec(O, A, generators(), facts={"examples": torch.zeros(M, O)}))
    batch = make_batches(1)[0]
    other = type("Crl", (), {"critic": agent.critic, "value": None})()
    assert torch.equal(agent.critic_loss(batch)[0], CRL.critic_loss(other, batch)[0])


def test_exp_of_the_logits_is_a_value_of_the_behaviour():
    """(B - 1) E_examples exp f(s, a, g) = E V_r(s') with r(s) = (1 - discount) p(s | examples) / p(s)."""
    rng, discount, size = np.random.default_rng(0), 0.9, 64
    moves = rng.dirichlet(np.ones(5), (5, 2))  # P(s' | s, a)
    policy, p = rng.dirichlet(np.ones(2), 5), rng.dirichlet(np.ones(5))
    onward = np.einsum("sa,sat->st", policy, moves)
    later = (1 - discount) * moves @ np.linalg.inv(np.eye(5) - discount * onward)  # M(g | s, a)
    f = np.log(later / p) - np.log(size - 1)
    examples = np.array([0, 0, 3])
    shown = np.bincount(examples, minlength=5) / len(examples)
    reward = (1 - discount) * shown / p
    value = np.linalg.solve(np.eye(5) - discount * onward, reward)
    cfg = replace(Config(**SMALL), over="logsumexp", examples=3)
    agent = LAEO(cfg, Spec(O, A, generators(1), facts={"examples": torch.zeros(3, O)}))
    table = torch.tensor(f.reshape(10, 5)[:, examples])[None, None]  # (S, N, B, M)
    agent.critic = type("Known", (), {"embedded": lambda *_: (table, torch.eye(3).double())})()
    found = agent.value(torch.zeros(1, 10, O + A), torch.zeros(1, 10))[0].exp() * (size - 1)
    np.testing.assert_allclose(found, (moves @ value).flatten(), atol=1e-12)


def test_examples_are_where_the_largest_rewards_led():
    dataset = resolve("corerl/pendulum").load().select_episodes(range(3))
    found = facts(Config(examples=5), dataset)["examples"].numpy()
    order = np.argsort(-dataset.rewards, kind="stable")[:5]
    np.testing.assert_array_equal(found, dataset.next_observations[order])


def test_data_without_success_is_refused():
    dataset = resolve("corerl/pendulum").load().select_episodes(range(1))
    flat = replace(dataset, rewards=np.zeros_like(dataset.rewards))
    for given, examples in ((flat, 5), (dataset, 10_000)):
        with refused(f"algo.examples={examples}"):
            facts(Config(examples=examples), given)
    with refused("algo.goals.columns"):
        Config(goals=replace(Config().goals, columns=[0]))
