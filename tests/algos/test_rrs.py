"""RRS against its equations once more, TD3 as a special case, and exactly what a shift of rewards does."""

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
    make_batches,
    make_noises,
    net,
    one_seed,
    scramble,
)
from reference import Adam, action_grad_of_q, policy_grad, polyak, q, regress_critics, tanh_policy
from wording import refused

from corerl.algos import rrs, td3
from corerl.algos.rrs import RRS, Config
from corerl.algos.td3 import TD3
from corerl.nn.learner import Spec

SHIFTS = [-0.5, 0.0, 0.7]


class Reference:
    """One seed in numpy: TD3's critics once per shift, on rewards with the shift."""

    def __init__(self, cfg, actor, critics, target_actor, targets):
        self.c, self.actor, self.critics = cfg, actor, critics
        self.target_actor, self.targets = target_actor, targets
        self.actor_step = Adam(actor, cfg.lr)
        self.critic_steps = [Adam(critic, cfg.lr) for critic in critics]

    def update(self, batch, noise, chosen=None) -> dict:
        c, s = self.c, batch.observations
        jitter = np.clip(c.policy_noise * noise, -c.noise_clip, c.noise_clip)
        following = np.clip(tanh_policy(self.target_actor, batch.next_observations) + jitter, -1, 1)
        loss = 0.0
        for i, shift in enumerate(c.shifts):
            pair = slice(2 * i, 2 * i + 2)
            next_q = np.minimum(
                *(q(n, batch.next_observations, following) for n in self.targets[pair])
            )
            if c.ends == "exact":
                next_q = np.where(batch.terminated, shift / (1 - c.discount), next_q)
            else:
                next_q = np.where(batch.terminated, 0, next_q)
            y = batch.rewards + shift + c.discount * next_q
            loss += regress_critics(self.critics[pair], self.critic_steps[pair], batch, y)
        losses = {"critic_loss": loss}
        if chosen is not None:
            a, critic = tanh_policy(self.actor, s), self.critics[2 * chosen]
            losses["actor_loss"] = -q(critic, s, a).mean()
            share = np.full(len(s), -1 / len(s))
            self.actor_step.step(policy_grad(self.actor, s, action_grad_of_q(critic, s, a, share)))
            for old, new in zip(
                [self.target_actor, *self.targets], [self.actor, *self.critics], strict=True
            ):
                polyak(old, new, c.polyak)
        return losses


def networks(agent, seed):
    heads = range(agent.critic.layers[0].weight.shape[1])
    online = net(agent.actor, seed), [net(agent.critic, seed, i) for i in heads]
    return (
        *online,
        net(agent.target_actor, seed),
        [net(agent.target_critic, seed, i) for i in heads],
    )


@pytest.mark.parametrize("ends", ["shifted", "exact"])
def test_six_updates_equal_the_equations(tolerance, ends):
    cfg = Config(hidden_width=WIDTH, discount=0.9, polyak=0.1, shifts=SHIFTS, turn=2, ends=ends)
    agent = RRS(cfg, Spec(O, A, generators()))
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    theirs = [Reference(cfg, *networks(agent, s)) for s in range(SEEDS)]
    climbed = set()
    for i, (batch, noise) in enumerate(zip(make_batches(6), make_noises(6), strict=True)):
        metrics = (agent.update_all if i % 2 else agent.update)(batch, noise)
        for s, their in enumerate(theirs):
            chosen = int(agent.chosen[s]) if i % 2 else None
            climbed.add(chosen)
            losses = their.update(one_seed(batch, s), noise[s].double().numpy(), chosen)
            assert_losses(metrics, s, losses, tolerance)
    assert len(climbed) > 2, "pairs take turns"
    for s, their in enumerate(theirs):
        mine = (their.actor, their.critics, their.target_actor, their.targets)
        assert_networks(networks(agent, s), mine, tolerance)


def test_one_shift_of_zero_is_td3_to_the_bit():
    own = {"hidden_width": WIDTH, "polyak": 0.1}
    one = RRS(Config(shifts=[0.0], **own), Spec(O, A, generators()))
    other = TD3(td3.Config(**own), Spec(O, A, generators()))
    for batch, noise in zip(make_batches(4), make_noises(4), strict=True):
        one.update_all(batch, noise)
        other.update_all(batch, noise)
    for name in ("actor", "critic", "target_actor", "target_critic"):
        pairs = zip(getattr(one, name).parameters(), getattr(other, name).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


def test_a_turn_lasts_as_long_as_it_should_and_pairs_are_drawn_evenly():
    """Two updates of the critics are one of the policy, and a turn of 6 is three of the policy."""
    agent = RRS(Config(hidden_width=WIDTH, turn=6), Spec(O, A, generators()))
    batch, noise = make_batches(1)[0], make_noises(1)[0]
    seen = []
    for _ in range(12):
        agent.update_all(batch, noise)
        seen.append(agent.chosen.tolist())
    assert seen == [agent._turns[:, i // 3].tolist() for i in range(12)]
    counts = torch.bincount(agent._turns[0], minlength=3)
    assert ((counts - rrs.TURNS / 3) ** 2 / (rrs.TURNS / 3)).sum() < 9.21  # chi-square, 1 %
    assert not torch.equal(*agent._turns)  # of two seeds


def values(mdp_rewards, transitions, ends, shift, exact, discount, sweeps=400, first=0.0):
    """Value iteration on r + shift: rewards (S, A), transitions (S, A, S), chances of a true end (S, A)."""
    found = np.full(mdp_rewards.shape, first)
    after = shift / (1 - discount) if exact else 0.0
    for _ in range(sweeps):
        going = transitions @ found.max(1)
        found = mdp_rewards + shift + discount * ((1 - ends) * going + ends * after)
    return found


def test_without_ends_a_shift_is_another_first_value():
    """At any sweep: Q on r + c from 0 is Q on r from -c / (1 - discount), plus c / (1 - discount)."""
    rng, c, discount = np.random.default_rng(0), 0.7, 0.9
    rewards, moves = rng.uniform(size=(4, 2)), rng.dirichlet(np.ones(4), (4, 2))
    never = np.zeros((4, 2))
    for sweeps in (1, 5, 30):
        shifted = values(rewards, moves, never, c, False, discount, sweeps)
        begun = values(rewards, moves, never, 0, False, discount, sweeps, -c / (1 - discount))
        np.testing.assert_allclose(shifted - begun, c / (1 - discount), atol=1e-12)


def walk_or_stop():
    """Eight states: stop (0) for 0.3 and the end, or walk (1) for nothing; the ninth step ends as well."""
    rewards, moves, ends = np.zeros((9, 2)), np.zeros((9, 2, 9)), np.zeros((9, 2))
    rewards[:, 0], ends[:, 0], ends[8, 1] = 0.3, 1, 1
    moves[:, 0, 0] = 1
    moves[:, 1] = np.eye(9)[np.minimum(np.arange(9) + 1, 8)]
    rewards[1:, 0] = 0  # only the first state pays for stopping
    return rewards, moves, ends


@pytest.mark.parametrize(
    ("shift", "exact", "stop", "walk"),
    [
        (0.0, False, 0.3, 0.0),
        (0.1, False, 0.4, (1 - 0.9**9) / 10 / 0.1),  # 0.613: the best policy is another one
        (0.1, True, 1.3, 1.0),  # all of 0.1 / (1 - 0.9) more
        (-0.1, True, -0.7, -1.0),
    ],
)
def test_where_episodes_end_a_shift_changes_what_is_best(shift, exact, stop, walk):
    found = values(*walk_or_stop(), shift, exact, 0.9)[0]
    assert found[0] == pytest.approx(stop) and found[1] == pytest.approx(walk)


def test_the_agent_has_these_fixed_points():
    """One state that ends: Q = r + c as released, and r + c / (1 - discount) with exact ends."""
    batch = make_batches(1)[0]
    batch = batch._replace(
        rewards=torch.full_like(batch.rewards, 0.3), terminated=torch.ones_like(batch.terminated)
    )
    for ends, q_end in (("shifted", 0.3 + 0.5), ("exact", 0.3 + 0.5 / (1 - 0.9))):
        cfg = Config(hidden_layers=0, shifts=[0.5], discount=0.9, ends=ends)
        agent = RRS(cfg, Spec(O, A, generators()))
        with torch.no_grad():
            agent.critic.layers[0].weight.zero_()
            agent.critic.layers[0].bias.fill_(q_end)
        loss, _ = agent.critic_loss(batch, make_noises(1)[0])
        assert loss.abs().max() < 1e-10


def test_bad_settings_are_refused():
    with refused("algo.shifts [0.0]"):
        Config(shifts=[])
    with refused("algo.ends=exact algo.discount"):
        Config(ends="exact", discount=1.0)
