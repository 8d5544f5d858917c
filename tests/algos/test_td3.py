"""TD3 against its equations once more, losses by hand, and when the policy moves."""

import numpy as np
import pytest
import tiny
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
from reference_soft import adam, leaves, mlp, numbers

from corerl.algos.td3 import TD3, Config
from corerl.nn.learner import Spec


class Reference:
    """The authors' `TD3.train`, one seed."""

    def __init__(self, cfg, actor, critics, target_actor, targets):
        self.c = cfg
        self.actor, self.target_actor = leaves(actor), leaves(target_actor)
        self.critics, self.targets = [[leaves(n) for n in nets] for nets in (critics, targets)]
        self.actor_step, self.critic_step = adam(cfg.lr, self.actor), adam(cfg.lr, *self.critics)

    def q(self, nets, s, a):
        return [mlp(net, torch.cat([s, a], 1))[:, 0] for net in nets]

    def update(self, batch, noise, policy: bool) -> dict:
        s, a, r, s_next, done = map(torch.from_numpy, batch[:5])
        with torch.no_grad():
            e = (noise * self.c.policy_noise).clamp(-self.c.noise_clip, self.c.noise_clip)
            following = (torch.tanh(mlp(self.target_actor, s_next)) + e).clamp(-1, 1)
            y = r + self.c.discount * (1 - done) * torch.minimum(
                *self.q(self.targets, s_next, following)
            )
        loss = sum(((q - y) ** 2).mean() for q in self.q(self.critics, s, a))
        self.critic_step.zero_grad()
        loss.backward()
        self.critic_step.step()
        losses = {"critic_loss": loss.item()}
        if policy:
            climbed = -self.q(self.critics, s, torch.tanh(mlp(self.actor, s)))[0].mean()
            self.actor_step.zero_grad()
            climbed.backward()
            self.actor_step.step()
            pairs = zip(
                [self.target_actor, *self.targets], [self.actor, *self.critics], strict=True
            )
            with torch.no_grad():
                for old, new in pairs:
                    for key in old:
                        old[key].mul_(1 - self.c.polyak).add_(self.c.polyak * new[key])
            losses["actor_loss"] = climbed.item()
        return losses

    def networks(self):
        nets = [numbers(n) for n in self.critics], [numbers(n) for n in self.targets]
        return numbers(self.actor), nets[0], numbers(self.target_actor), nets[1]


def test_six_updates_equal_the_equations(tolerance):
    cfg = Config(hidden_width=WIDTH, discount=0.9, polyak=0.1)
    agent = TD3(cfg, Spec(O, A, generators()))
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    theirs = [Reference(cfg, *actor_critic(agent, s)) for s in range(SEEDS)]
    for i, (batch, noise) in enumerate(zip(make_batches(6), make_noises(6), strict=True)):
        policy = i % 2 == 1
        metrics = (agent.update_all if policy else agent.update)(batch, noise)
        for s, their in enumerate(theirs):
            losses = their.update(one_seed(batch, s), noise[s].double(), policy)
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(actor_critic(agent, s), their.networks(), tolerance)


def linear(**own) -> TD3:
    """Q_1 = a, Q_2 = 3 a, and the same targets; the policies are tanh(0.5)."""
    agent = TD3(Config(hidden_layers=0, discount=0.9, **own), Spec(1, 1, generators(1)))
    for critics in (agent.critic, agent.target_critic):
        set_linear(critics, [[0.0, 1.0], [0.0, 3.0]], [0.0, 0.0])
    for actor in (agent.actor, agent.target_actor):
        set_linear(actor, [[0.0]], [0.5])
    return agent


def test_losses_by_hand():
    """Noise 2 of 0.2 is 0.4 and 5 is clipped to 0.5: actions 0.862 and 0.962; the second step is the last."""
    batch = tiny_batch(s=[[0], [0]], a=[[0.5], [-0.5]], r=[1, 2], d=[0, 1])
    noise = torch.tensor([2.0, 5.0]).view(1, 2, 1)
    loss, _ = linear().critic_loss(batch, noise)
    y = 1 + 0.9 * (np.tanh(0.5) + 0.4)
    errors = (0.5 - y) ** 2 + (1.5 - y) ** 2 + (-0.5 - 2) ** 2 + (-1.5 - 2) ** 2
    assert loss.item() == pytest.approx(errors / 2)
    climbed, _ = linear().actor_loss(batch)
    assert climbed.item() == pytest.approx(-np.tanh(0.5))


def test_it_explores_with_noise_within_the_bounds():
    drawn = linear(exploration=0.2).explore(
        torch.zeros(1, 3, 1), torch.tensor([1.0, -1, 9]).view(1, 3, 1)
    )
    expected = np.clip(np.tanh(0.5) + 0.2 * np.array([1, -1, 9]), -1, 1)
    np.testing.assert_allclose(drawn.flatten(), expected, rtol=1e-6)


def test_the_policy_moves_with_every_second_update(calls):
    """The first update after the random steps moves the critics alone."""
    log = calls(TD3, "update update_all")
    tiny.Short(tiny.settings("td3", random_steps=11, policy_delay=2), seeds=(0,), updates=4)
    assert [name for name, _ in log] == ["update", "update_all"] * 2
