"""TD3-AWR against a transcription of unifloral's program, by hand, and where it is ReBRAC."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    actor_critic,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    set_linear,
    tiny,
)
from reference_soft import leaves, mlp, numbers, polyak, set_grads, tensor

from corerl.algos import rebrac
from corerl.algos.td3_awr import TD3AWR, Config
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "polyak": 0.1, "discount": 0.9, "actor_bc_coef": 0.3}
VERSIONS = {
    "default": {},
    "clipped weights": {"beta": 10.0, "max_weight": 1.5, "expectile": 0.9},
    "one critic update": {"critic_updates": 1, "critic_bc_coef": 0.4, "normalize_q": False},
}


def make(observations: int = O, actions: int = A, seeds: int = SEEDS, **more) -> TD3AWR:
    return TD3AWR(Config(**SMALL | more), Spec(observations, actions, generators(seeds)))


def parts(agent: TD3AWR, seed: int) -> tuple:
    return *actor_critic(agent, seed), net(agent.value, seed)


def draws(agent: TD3AWR, count: int) -> list[torch.Tensor]:
    shape = (count, SEEDS, agent.cfg.critic_updates, B, A)
    return list(as_tensor(1.5 * np.random.default_rng(1).normal(size=shape)))


rectified = partial(mlp, norm_last=True)


class Reference:
    """unifloral's `_train_step`, one seed and one critic at a time."""

    def __init__(self, cfg, actor, critics, target_actor, target_critics, value):
        self.c, self.actor, self.target_actor = cfg, leaves(actor), leaves(target_actor)
        self.critics = [leaves(x) for x in critics]
        self.targets = [leaves(x) for x in target_critics]
        self.value = leaves(value)
        rates = (
            ([self.actor], cfg.actor_lr),
            (self.critics, cfg.critic_lr),
            ([self.value], cfg.critic_lr),
        )
        self.actor_optimizer, self.critic_optimizer, self.value_optimizer = (
            torch.optim.Adam([p for net in nets for p in net.values()], lr, eps=cfg.adam_eps)
            for nets, lr in rates
        )

    def networks(self) -> tuple:
        critics, targets = ([numbers(n) for n in nets] for nets in (self.critics, self.targets))
        return (
            numbers(self.actor),
            critics,
            numbers(self.target_actor),
            targets,
            numbers(self.value),
        )

    def low(self, nets, s, a) -> torch.Tensor:
        return torch.minimum(
            *(rectified(net, torch.cat([s, a], 1), eps=1e-6)[:, 0] for net in nets)
        )

    def v(self, s) -> torch.Tensor:
        return rectified(self.value, s, eps=1e-6)[:, 0]

    def update(self, batch, noises) -> dict:
        c = self.c
        s, a, r, s_next, d, a_next_data = (tensor(x) for x in batch)
        pi = torch.tanh(rectified(self.actor, s, eps=1e-5))
        advantage = (self.low(self.critics, s, a) - self.v(s)).detach()
        weight = (c.beta * advantage).exp().clamp(max=c.max_weight)
        q = self.low(self.critics, s, pi)
        scale = 1 / q.abs().mean().detach() if c.normalize_q else 1.0
        rows = c.actor_bc_coef * weight * ((pi - a) ** 2).sum(1) - scale * q
        set_grads(self.actor_optimizer, rows.mean())
        self.actor_optimizer.step()
        losses = {"actor_loss": rows.mean().item()}
        for noise in noises:
            with torch.no_grad():
                jitter = (c.policy_noise * noise).clamp(-c.noise_clip, c.noise_clip)
                a_next = torch.tanh(rectified(self.target_actor, s_next, eps=1e-5)) + jitter
                a_next = a_next.clamp(-1, 1)
                penalty = c.critic_bc_coef * ((a_next - a_next_data) ** 2).sum(1)
                next_v = self.low(self.targets, s_next, a_next) - penalty
                y = r + (1 - d) * c.discount * next_v
            values = [rectified(net, torch.cat([s, a], 1), eps=1e-6)[:, 0] for net in self.critics]
            loss = sum((x - y) ** 2 for x in values).mean()
            set_grads(self.critic_optimizer, loss)
            self.critic_optimizer.step()
            losses["critic_loss"] = loss.item()
        u = self.low(self.critics, s, a).detach() - self.v(s)
        loss = (abs(c.expectile - (u < 0).double()) * u**2).mean()
        set_grads(self.value_optimizer, loss)
        self.value_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        polyak(self.target_actor, self.actor, c.polyak)
        return losses | {"value_loss": loss.item()}


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(**version)
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic, agent.value)
    theirs = [Reference(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    for batch, noise in zip(make_batches(5), draws(agent, 5), strict=True):
        metrics = agent.update(batch, noise)
        for s, their in enumerate(theirs):
            losses = their.update(one_seed(batch, s), noise[s].double())
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), tolerance)


def linear(**more) -> TD3AWR:
    agent = make(1, 1, 1, hidden_layers=0, **more)
    set_linear(agent.value, [0], [3])
    return agent


@pytest.mark.parametrize(
    ("own", "weights"),
    [
        ({"beta": 0.0}, (1.0, 1.0)),
        ({"beta": 2.0}, (math.exp(-2), 100.0)),
        ({"beta": 2.0, "max_weight": 5.0}, (math.exp(-2), 5.0)),
    ],
)
def test_actor_loss_by_hand(own, weights):
    """V = 3 and min Q = s, at s = 2 and 7: advantages -1 and 4. The action is 0.5, from 1 and 0."""
    agent = linear(actor_bc_coef=0.4, **own)
    set_linear(agent.actor, [0], [math.atanh(0.5)])
    set_linear(agent.critic, [[1, 0], [1, 0]], [0, 9])
    batch = tiny(s=[[2], [7]], a=[[1.0], [0.0]])
    loss, metrics = agent.actor_loss(batch)
    # Q / mean |Q| is 1 on average. Both squared distances are 0.25.
    expected = 0.4 * 0.25 * sum(weights) / 2 - 1
    assert loss.tolist() == pytest.approx([expected])
    assert metrics["weight"].tolist() == pytest.approx([sum(weights) / 2])


def test_value_loss_by_hand():
    """min Q - V at s = 1 and 4 is -2 and 1: 0.1 * 4 and 0.9 * 1, mean 0.65."""
    agent = linear(expectile=0.9)
    set_linear(agent.critic, [[1, 0], [1, 0]], [1, 0])
    assert agent.value_loss(tiny(s=[[1], [4]], a=[[0], [0]]))[0].tolist() == pytest.approx([0.65])


def test_without_weights_it_is_rebrac_bit_for_bit():
    """ReBRAC's own losses and first weights, its steps in unifloral's order."""
    mine = make(beta=0.0)
    own = {
        k: getattr(mine.cfg, k) for k in ("layer_norm", "adam_eps", "init", "actor_lr", "critic_lr")
    }
    theirs = rebrac.ReBRAC(rebrac.Config(**SMALL | own), Spec(O, A, generators()))
    for batch, noise in zip(make_batches(5), draws(mine, 5), strict=True):
        mine.update(batch, noise)
        grads, _ = theirs._actor_gradients(batch)
        theirs.actor_optimizer.step(grads)
        for of_one in noise.unbind(1):
            theirs._critic_step(batch, of_one)
        for name in ("actor", "critic"):
            rebrac.optim.polyak(getattr(theirs, f"target_{name}"), getattr(theirs, name), 0.1)
    for name in ("actor", "critic", "target_actor", "target_critic"):
        pairs = zip(
            getattr(mine, name).parameters(), getattr(theirs, name).parameters(), strict=True
        )
        assert all(torch.equal(p, q) for p, q in pairs), name


def test_first_weights_are_flaxs():
    agent = TD3AWR(Config(), Spec(17, 6, generators(1)))
    for network, bound in ((agent.actor, 1e-3), (agent.critic, 3e-3), (agent.value, 3e-3)):
        *hidden, output = network.layers
        for layer in hidden:
            assert (layer.bias == 0.1).all()
            assert layer.weight.std().item() == pytest.approx(
                layer.weight.shape[-2] ** -0.5, rel=0.05
            )
        assert 0.9 * bound < output.weight.abs().max() <= bound
        assert 0 < output.bias.abs().max() <= bound
        assert len(network.norms) == 3 and all(list(norm.parameters()) for norm in network.norms)
