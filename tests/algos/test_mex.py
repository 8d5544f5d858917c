"""MEX: what the released term is (TD3 on larger rewards), and what the mended one adds."""

import numpy as np
import pytest
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    O,
    actor_critic,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    make_noises,
    one_seed,
    scramble,
    set_linear,
)
from agreement import (
    tiny as tiny_batch,
)
from scipy.optimize import minimize
from test_td3 import Reference as OfTD3
from test_td3 import mlp

from corerl.algos import td3
from corerl.algos.mex import MEX, Config
from corerl.algos.td3 import TD3
from corerl.nn.learner import Spec

ETA = 0.3


class Reference(OfTD3):
    """The authors' `MEX_MF/IO.py` without its baseline, or with the policy's actions; one seed."""

    def update(self, batch, noise, policy: bool) -> dict:
        s, a, r, s_next, done = map(torch.from_numpy, batch[:5])
        with torch.no_grad():
            e = (noise * self.c.policy_noise).clamp(-self.c.noise_clip, self.c.noise_clip)
            following = (torch.tanh(mlp(self.target_actor, s_next)) + e).clamp(-1, 1)
            least = torch.minimum(*self.q(self.targets, s_next, following))
            y = r + self.c.discount * (1 - done) * least
            acted = torch.tanh(mlp(self.actor, s)) if self.c.optimism == "policy" else a
        fit = sum(((q - y) ** 2).mean() for q in self.q(self.critics, s, a))
        loss = fit - self.c.eta * sum(q.mean() for q in self.q(self.critics, s, acted))
        self.critic_step.zero_grad()
        loss.backward()
        self.critic_step.step()
        if not policy:
            return {"critic_loss": fit.item()}
        climbed = -self.q(self.critics, s, torch.tanh(mlp(self.actor, s)))[0].mean()
        self.actor_step.zero_grad()
        climbed.backward()
        self.actor_step.step()
        nets = zip([self.target_actor, *self.targets], [self.actor, *self.critics], strict=True)
        with torch.no_grad():
            for old, new in nets:
                for key in old:
                    old[key].lerp_(new[key], self.c.polyak)
        return {"critic_loss": fit.item(), "actor_loss": climbed.item()}


@pytest.mark.parametrize("optimism", ["data", "policy"])
def test_six_updates_equal_the_equations(tolerance, optimism):
    cfg = Config(hidden_width=WIDTH, discount=0.9, polyak=0.1, eta=ETA, optimism=optimism)
    agent = MEX(cfg, Spec(O, A, generators()))
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    theirs = [Reference(cfg, *actor_critic(agent, s)) for s in range(SEEDS)]
    for i, (batch, noise) in enumerate(zip(make_batches(6), make_noises(6), strict=True)):
        metrics = (agent.update_all if i % 2 else agent.update)(batch, noise)
        for s, their in enumerate(theirs):
            losses = their.update(one_seed(batch, s), noise[s].double(), i % 2 == 1)
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(actor_critic(agent, s), their.networks(), tolerance)


def test_as_released_it_is_td3_on_larger_rewards(tolerance):
    """(Q - y)^2 - eta Q = (Q - y - eta / 2)^2 + what Q does not change."""
    own = {"hidden_width": WIDTH, "polyak": 0.1}
    one = MEX(Config(eta=ETA, **own), Spec(O, A, generators()))
    other = TD3(td3.Config(**own), Spec(O, A, generators()))
    for batch, noise in zip(make_batches(6), make_noises(6), strict=True):
        one.update_all(batch, noise)
        other.update_all(batch._replace(rewards=batch.rewards + ETA / 2), noise)
    for s in range(SEEDS):
        assert_networks(actor_critic(one, s), actor_critic(other, s), tolerance)


def test_the_terms_by_hand():
    """Q_1 = a, Q_2 = 3 a: the data's actions 0.5 and -0.1 have a mean of 0.2, the policy's are tanh(0.5)."""
    batch = tiny_batch(s=[[0], [0]], a=[[0.5], [-0.1]], r=[1, 2], d=[1, 1])
    fit = ((0.5 - 1) ** 2 + (1.5 - 1) ** 2 + (-0.1 - 2) ** 2 + (-0.3 - 2) ** 2) / 2
    for optimism, raised in (("data", 0.2 * 4), ("policy", np.tanh(0.5) * 4)):
        cfg = Config(hidden_layers=0, eta=ETA, optimism=optimism)
        agent = MEX(cfg, Spec(1, 1, generators(1)))
        set_linear(agent.critic, [[0.0, 1.0], [0.0, 3.0]], [0.0, 0.0])
        set_linear(agent.actor, [[0.0]], [0.5])
        loss, metrics = agent.critic_loss(batch, torch.zeros(1, 2, 1))
        assert loss.item() == pytest.approx(fit - ETA * raised)
        assert metrics["raised"].item() == pytest.approx(raised)


COUNTS, MEANS = np.array([3, 10, 50]), np.array([0.2, 0.5, 0.6])


def test_the_papers_form_is_a_bonus_of_counts_on_a_bandit():
    """max_f f(a) - eta sum_n (f - r)^2 is mean + 1 / (4 eta n): the rarely pulled arm may win."""
    for eta, best in ((0.5, 2), (0.05, 0)):

        def objective(f, arm, eta=eta):
            return -(f[arm] - eta * (COUNTS * (f - MEANS) ** 2).sum())

        found = [-minimize(objective, MEANS, args=(arm,)).fun for arm in range(3)]
        np.testing.assert_allclose(found, MEANS + 1 / (4 * eta * COUNTS), atol=1e-6)
        assert np.argmax(found) == best


def bandit(optimism: str, eta: float) -> np.ndarray:
    """Where a sweep of the loss leaves Q of three arms, seen 3, 10 and 50 times, of a greedy policy."""
    q, shares = MEANS.copy(), COUNTS / COUNTS.sum()
    for _ in range(20_000):
        raised = shares if optimism == "data" else np.eye(3)[q.argmax()]
        q += 0.05 * (eta * raised - 2 * shares * (q - MEANS))
    return q


def test_released_values_rise_equally_and_mended_ones_at_the_best_arm():
    """Released: eta / 2 for every arm. Mended: the greedy arm alone rises, by eta / (2 share)."""
    np.testing.assert_allclose(bandit("data", 0.2) - MEANS, 0.1, atol=1e-9)
    often = bandit("policy", 0.2)
    np.testing.assert_allclose(often - MEANS, [0, 0, 0.2 / 2 * 63 / 50], atol=1e-9)


def test_released_on_policy_it_shifts_every_value_alike():
    """In a Markov chain Q rises by eta / (2 (1 - discount)) in every state."""
    rng, discount, eta = np.random.default_rng(0), 0.9, 0.01
    moves, rewards = rng.dirichlet(np.ones(5), 5), rng.uniform(size=5)
    solve = np.linalg.inv(np.eye(5) - discount * moves)
    rise = solve @ (rewards + eta / 2) - solve @ rewards
    np.testing.assert_allclose(rise, eta / 2 / (1 - discount), atol=1e-12)
