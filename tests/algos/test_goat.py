"""GOAT: equations of the authors' code, weights by hand, and its limits WGCSL and GCSL."""

from types import SimpleNamespace

import numpy as np
import pytest
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
    net,
    scramble,
)
from reference_fql import Learner
from reference_soft import mlp
from small import cell
from test_goal_agents import fill, hand_batch, make_batches

from corerl.algos import bc
from corerl.algos.goat import GOAT, Config, Recent
from corerl.buffers.replay import Batch
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "discount": 0.9, "batch_size": B}
SMALL |= {"critics": 3, "radius": 2.0, "rise": 12.0, "recent": 3 * B, "polyak": 0.005}


def make(states: int = O, goal: int = O, actions: int = A, seeds: int = SEEDS, **own) -> GOAT:
    spec = Spec(states + goal, actions, generators(seeds), facts={"goal_dim": goal})
    return GOAT(Config(**SMALL | own), spec)


def networks(agent: GOAT, s: int) -> tuple:
    several = lambda critics: [net(critics, s, i) for i in range(agent.cfg.critics)]  # noqa: E731
    target_critic, target_actor = agent.targets
    own = several(agent.critic), net(agent.actor, s)
    return *own, several(target_critic), net(target_actor, s)


class Reference(Learner):
    """goat/algo/supervised_sampler.py and goat.py, one seed: critics, policy, and the targets of both."""

    def __init__(self, settings, *nets):
        super().__init__(SimpleNamespace(**vars(settings)), *nets)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr
        self.advantages, self.spreads, self.percent = np.empty(0), np.empty(0), 0.0

    def trained(self):
        return self.nets[:2]

    def weights(self, q, after, reached) -> np.ndarray:
        c = self.c
        value, following = q.mean(0), after.mean(0)
        advantage = reached + c.discount * following - value
        self.advantages = np.concatenate([self.advantages, advantage])[-c.recent :]
        self.percent = min(self.percent + c.rise, c.top)
        threshold = np.percentile(self.advantages, self.percent)
        doubled = c.beta * advantage
        weight = np.clip(np.exp(doubled), 0, c.limit)
        compared = doubled if c.top_of == "scaled" else advantage
        weight[compared < threshold] *= c.rest
        spread = q.std(0)
        self.spreads = np.concatenate([self.spreads, spread])[-10_000:]
        low, high = self.spreads.min(), self.spreads.max()
        spread = (spread - low) / (high - low) if high > low else 0 * spread
        return weight * np.clip(spread * c.uncertainty + c.least, 0, c.most)

    def update(self, batch) -> dict:
        critics, policy, targets, target_policy = self.nets
        s, a, after, *_, g = map(torch.from_numpy, batch)
        reached = (((after - g) ** 2).sum(1) ** 0.5 <= self.c.radius).double()
        acted = lambda net, x: mlp(net, torch.cat([x, g], 1)).tanh()  # noqa: E731

        def values(nets, x, action):
            inputs = torch.cat([x, g, action], 1)
            return torch.stack([mlp(net, inputs)[:, 0] for net in nets])

        with torch.no_grad():
            q, q_after = (values(critics, x, acted(policy, x)).numpy() for x in (s, after))
            weight = torch.from_numpy(self.weights(q, q_after, reached.numpy()))
            limit = 1 / (1 - self.c.discount)
            y = reached + self.c.discount * values(targets, after, acted(target_policy, after))
            y = y.clamp(-limit, limit)
        losses = []
        for target, value in zip(y, values(critics, s, a), strict=True):
            error = target - value
            side = torch.where(error > 0, self.c.expectile, 1 - self.c.expectile)
            losses.append((side * error**2).mean() * len(s) / side.sum())
        critic_loss = sum(losses)
        policy_loss = (weight * ((a - acted(policy, s)) ** 2).mean(1)).mean()
        self.step(critic_loss + policy_loss)
        for target, online in zip([*targets, target_policy], [*critics, policy], strict=True):
            self.follow(target, online)
        return {"critic_loss": critic_loss.item(), "policy_loss": policy_loss.item()}


WGCSL = {"critics": 1, "uncertainty": 0.0, "least": 1.0}


@pytest.mark.parametrize(
    "own",
    [{}, {"top_of": "advantage", "expectile": 0.7, "most": 0.8}, WGCSL],
    ids=["goat", "paper's top", "wgcsl"],
)
def test_it_equals_the_equations(own, float64):
    agent = make(**own)
    scramble(agent.critic, agent.actor, agent.targets)
    theirs = [Reference(agent.cfg, *networks(agent, s)) for s in range(SEEDS)]
    for batch in make_batches(8):
        metrics = agent.update(batch)
        for s, their in enumerate(theirs):
            losses = their.update([x[s].double().numpy() for x in batch])
            assert_losses(metrics, s, losses, 1e-7)
    for s, their in enumerate(theirs):
        assert_networks(networks(agent, s), their.networks(), 1e-7)
    assert 0 < metrics["top"].min() < metrics["top"].max() < 1


# By hand. Networks are linear, of one state, goal and action feature; the policy says 0.


def linear(*critics: list[float], **own) -> GOAT:
    """Critics with these weights of state, goal and action."""
    heads = len(critics)
    agent = make(1, 1, 1, 1, hidden_layers=0, batch_size=2, critics=heads, **own)
    fill(agent.critic, *critics)
    fill(agent.actor, [0.0, 0.0])
    for target, online in zip(agent.targets, (agent.critic, agent.actor), strict=True):
        target.load_state_dict(online.state_dict())
    return agent


def test_weights_by_hand():
    """Q_j is s and 2 s: the means are 0 and 1.5, then 1.5 and 3.

    Rows go from 0 to 1 and from 1 to 2, where the second arrives: A = 0.9 * 1.5 and 1 + 0.9 * 3 - 1.5. The
    spreads are 0 and 0.5, which scale to 0 and 1. Percentile 50 of A is their middle, 1.775.
    """
    agent = linear([1.0, 0, 0], [2.0, 0, 0], radius=0.5, beta=0.5, rise=50.0, recent=2)
    weight, metrics = agent.weigh(hand_batch())
    low, high = np.exp(0.5 * 1.35), np.exp(0.5 * 2.2)
    assert weight[0].tolist() == pytest.approx([0.05 * low * 0.5, 0.05 * high * 1.0])
    assert metrics["advantage"].item() == pytest.approx((1.35 + 2.2) / 2)
    agent = linear([1.0, 0, 0], [2.0, 0, 0], radius=0.5, beta=0.5, rise=50.0, recent=2)
    agent.cfg.top_of = "advantage"
    weight, _ = agent.weigh(hand_batch())
    assert weight[0].tolist() == pytest.approx([0.05 * low * 0.5, high * 1.0])


@pytest.mark.parametrize(("top_of", "passing"), [("scaled", 2), ("advantage", 1)])
def test_doubled_advantages_pass_more_often(top_of, passing):
    """A of 1 and 2, and percentile 60 at 1.6: 2 A reaches it twice."""
    agent = linear([1.0, 0, 0], radius=0.0, rise=60.0, top_of=top_of, discount=0.5, recent=2)
    states = torch.tensor([[[1.0], [2.0]]])
    batch = hand_batch(observations=states, next_observations=4 * states)  # 0.5 * 4 s - s = s
    _, metrics = agent.weigh(batch)
    assert metrics["top"].item() * 2 == passing


def test_losses_by_hand():
    """Q = s + a, targets alike. Policy 0: errors 1 and 0.5, with weights 3 and 1.

    y = 0.9 * 1 = 0.9, and 1 + 0.9 * 2 = 2.8. Q is 1 and 1.5: errors -0.1 and 1.3, of weights 0.2 and 0.8.
    """
    agent = linear([1.0, 0.0, 1.0], radius=0.5, expectile=0.8)
    loss, metrics = agent.loss(hand_batch(), torch.tensor([[3.0, 1.0]]))
    assert metrics["policy_loss"].item() == pytest.approx((3 * 1 + 0.5**2) / 2)
    assert metrics["critic_loss"].item() == pytest.approx(0.2 * 0.1**2 + 0.8 * 1.3**2)
    assert loss.item() == pytest.approx(
        sum(metrics[k].item() for k in ("policy_loss", "critic_loss"))
    )


def test_returns_are_limited():
    """Q' = 100 at s' = 1: y = 1 + 90 becomes 1 / (1 - 0.9) = 10, and Q is 0 and 100."""
    agent = linear([100.0, 0.0, 0.0], radius=9.0)
    _, metrics = agent.critic_loss(hand_batch(next_observations=torch.ones(1, 2, 1)))
    assert metrics["critic_loss"].item() == pytest.approx((10**2 + 90**2) / 2)


def test_goals_may_be_parts_of_states():
    """The second of two columns is the goal: rows at (5, 2) have reached it."""
    spec = Spec(3, 1, generators(1), facts={"goal_dim": 1, "shown": torch.tensor([0, 1, 3])})
    agent = GOAT(Config(**SMALL | {"radius": 0.1}), spec)
    batch = hand_batch(
        observations=torch.zeros(1, 2, 2),
        next_observations=torch.tensor([[[5.0, 2.0], [2.0, 5.0]]]),
    )
    assert agent.reached(batch).tolist() == [[1.0, 0.0]]


# Its limits.


def test_equal_weights_are_cloning(float64):
    """GCSL: bit for bit BC, whose states are states and goals side by side."""
    agent = make(beta=0.0, rest=1.0, uncertainty=0.0, least=1.0)
    shape = {"hidden_width": WIDTH, "hidden_layers": 2, "lr": agent.cfg.lr}
    cloning = bc.BC(bc.Config(**shape), Spec(2 * O, A, generators()))
    cloning.policy.load_state_dict(agent.actor.state_dict())
    for batch in make_batches(5):
        inputs = torch.cat([batch.observations, batch.actor_goals], -1)
        agent.update(batch)
        cloning.update(Batch(inputs, batch.actions, *[batch.rewards] * 4))
    for mine, its in zip(agent.actor.parameters(), cloning.policy.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert (agent.weigh(batch)[0] == 1).all()


def test_without_uncertainty_goat_of_one_critic_is_wgcsl():
    """Weights are those of WGCSL bit for bit, whatever the limit of the factor."""
    one, other = make(**WGCSL), make(**WGCSL | {"most": 7.0})
    for batch in make_batches(3):
        assert torch.equal(one.update(batch)["policy_loss"], other.update(batch)["policy_loss"])
    cfg = cell("wgcsl", "corerl/goal-maze")
    assert {key: getattr(cfg.algo, key) for key in WGCSL} == WGCSL
    assert (cfg.algo.name, cfg.label) == ("goat", "WGCSL")


def test_critics_come_to_the_discounted_visits_of_the_goal():
    """A ring of 5 where the data and the policy move on: Q(s, g) is the policy's own discounted success.

    From s the goal is reached after d steps, and every 5 steps again: discount^(d - 1) / (1 - discount^5).
    """
    ring, discount = 5, 0.6
    own = {"hidden_layers": 1, "hidden_width": 64, "lr": 3e-3, "radius": 0.0, "critics": 2}
    agent = make(ring, ring, 1, 1, discount=discount, **own, polyak=0.05, batch_size=25, recent=25)
    s, g = torch.cartesian_prod(torch.arange(ring), torch.arange(ring)).T
    one = lambda x: torch.nn.functional.one_hot(x % ring, ring).float()[None]  # noqa: E731
    still = torch.zeros(1, 25)
    batch = hand_batch(
        observations=one(s),
        actions=still[..., None],
        next_observations=one(s + 1),
        rewards=still,
        actor_goals=one(g),
    )
    for _ in range(1_500):
        agent.update(batch)
    q = agent.critic(torch.cat([one(s), one(g)], -1), still[..., None]).mean(1)[0]
    steps = (g - s - 1) % ring + 1
    expected = discount ** (steps - 1) / (1 - discount**ring)
    torch.testing.assert_close(q, expected, atol=0.05, rtol=0)


# Memories of recent numbers against NumPy.


@pytest.mark.parametrize("percent", [0.0, 0.3, 37.5, 100.0])
def test_percentiles_are_numpys_of_what_is_remembered(percent):
    """Batches of 4 into 10 places: half full, full, and the oldest replaced across the end."""
    rng, memory = np.random.default_rng(0), Recent(2, 10).double()
    seen = np.empty((2, 0))
    for _ in range(6):
        batch = rng.normal(size=(2, 4))
        memory.add(torch.from_numpy(batch))
        seen = np.concatenate([seen, batch], 1)[:, -10:]
        found = memory.percentile(torch.full((2,), percent, dtype=torch.float64))
        np.testing.assert_allclose(found, np.percentile(seen, percent, axis=1), rtol=1e-12)
    assert memory.additions.tolist() == [6, 6]


def test_numbers_are_scaled_by_the_smallest_and_largest_of_memory():
    memory = Recent(1, 4)
    assert memory.scaled(torch.tensor([[1.0, 3.0]])).tolist() == [[0, 1]]
    assert memory.scaled(torch.tensor([[2.0, 5.0]])).tolist() == [[0.25, 1]]
    assert memory.scaled(torch.tensor([[4.0, 4.0]])).tolist() == [[pytest.approx(2 / 3)] * 2]


def test_equal_numbers_are_scaled_to_zero():
    assert Recent(1, 4).scaled(torch.full((1, 2), 0.7)).tolist() == [[0, 0]]
