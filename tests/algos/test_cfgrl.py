"""CFGRL: equations of the authors' code, losses by hand, and what its dial does."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    tiny,
    twins,
)
from reference_fql import Learner, frozen
from reference_soft import mlp

from corerl.algos.cfgrl import ALL, BETTER, CFGRL, Config, Draws
from corerl.errors import CorerlError
from corerl.nn import flow
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "flow_steps": 3, "discount": 0.9}
RNG = np.random.default_rng(6)


def make(observations: int = O, actions: int = A, seeds: int = SEEDS, **own) -> CFGRL:
    return CFGRL(Config(**SMALL | own), Spec(observations, actions, generators(seeds)))


def make_draws() -> Draws:
    normal = as_tensor(RNG.normal(size=(SEEDS, B, A)))
    return Draws(normal, as_tensor(RNG.random((SEEDS, B, 1))))


def parts(agent: CFGRL, s: int) -> tuple:
    return twins(agent.critic, s), net(agent.value, s), net(agent.flow, s), twins(agent.target, s)


def mish(x):
    return x * torch.tanh(torch.log1p(torch.exp(x)))


layers = partial(mlp, activation=mish, eps=1e-6)


def velocity(net, label: int, s, x, t):
    frequencies = torch.tensor([10_000 ** (-i / 8) for i in range(8)], dtype=s.dtype)
    angles = t * 10_000 * frequencies
    labels = net["labels.weight"][label].expand(len(s), -1)
    inputs = torch.cat([s, x, torch.cos(angles), torch.sin(angles), labels], 1)
    return layers(net, inputs, "body.")


class Reference(Learner):
    """rlbase/algs_offline/iql_diffusion.py: critics, value, flow; target critics."""

    def trained(self):
        return self.nets[:3]

    def update(self, batch, start, uniform) -> dict:
        critics, value, net, targets = self.nets
        s, a, r, s_next, done = map(torch.from_numpy, batch[:5])
        t = torch.floor(uniform * 33) / 32
        sa = torch.cat([s, a], 1)
        low = torch.stack([layers(frozen(n), sa)[:, 0] for n in targets]).amin(0)
        difference = low - layers(value, s)[:, 0]
        weight = torch.where(difference > 0, self.c.expectile, 1 - self.c.expectile)
        value_loss = (weight * difference**2).mean()
        with torch.no_grad():
            y = r + self.c.discount * (1 - done) * layers(value, s_next)[:, 0]
        q = torch.stack([layers(critic, sa)[:, 0] for critic in critics])
        critic_loss = ((q - y) ** 2).mean()
        x, v = start * (1 - t) + a * t, a - start
        positive = ((velocity(net, 1, s, x, t) - v) ** 2).mean(1) * (difference > 0).double()
        every = ((velocity(net, 0, s, x, t) - v) ** 2).mean(1)
        flow_loss = (positive + 0.1 * every).mean()
        for target, online in zip(targets, critics, strict=True):
            self.follow(target, online)  # the critics before their step
        self.step(value_loss + critic_loss + flow_loss)
        losses = {"value_loss": value_loss, "critic_loss": critic_loss, "flow_loss": flow_loss}
        return {name: loss.item() for name, loss in losses.items()}

    @torch.no_grad()
    def act(self, s, x, w: float) -> np.ndarray:
        net, steps = self.nets[2], self.c.flow_steps
        for i in range(steps):
            t = torch.full((len(s), 1), i / steps, dtype=s.dtype)
            without = velocity(net, 0, s, x, t)
            x = x + (without + w * (velocity(net, 1, s, x, t) - without)) / steps
        return x.clamp(-1, 1).numpy()


def test_it_equals_the_equations(float64):
    agent = make(guidance=3.0)
    scramble(agent.critic, agent.value, agent.flow, agent.target)
    theirs = [Reference(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    for batch in make_batches(6):
        draws = make_draws()
        metrics = agent.update(batch, draws)
        for s, their in enumerate(theirs):
            losses = their.update(one_seed(batch, s), *(x[s] for x in draws))
            assert_losses(metrics, s, losses, 1e-7)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), 1e-7)  # Adam's epsilon
    states, noise = (
        as_tensor(RNG.normal(size=(SEEDS, 5, O))),
        as_tensor(RNG.normal(size=(SEEDS, 5, A))),
    )
    actions = agent.explore(states, noise)
    for s, their in enumerate(theirs):
        np.testing.assert_allclose(
            actions[s].numpy(), their.act(states[s], noise[s], 3.0), atol=1e-6
        )


def constant(all_: float, better: float, **own) -> CFGRL:
    """One state and action; the velocity is `all_` without the label and `better` with it."""
    agent = make(1, 1, 1, hidden_layers=0, **own)
    with torch.no_grad():
        layer = agent.flow.body.layers[0]
        layer.weight.zero_()
        layer.bias.zero_()
        layer.weight[0, -1, 0] = 1.0  # the last feature of the label
        agent.flow.labels.weight[0, ALL, -1] = all_
        agent.flow.labels.weight[0, BETTER, -1] = better
    return agent


def test_flow_loss_by_hand():
    """Velocities 0.5 and 2 where 1 and 3 are right; the first row alone is better."""
    agent = constant(0.5, 2.0, all_weight=0.1)
    batch = tiny(s=[[0], [0]], a=[[1], [1]])
    start = torch.tensor([0.0, -2.0]).view(1, 2, 1)
    better = torch.tensor([[1.0, 0.0]])
    loss = agent.flow_loss(batch, better, Draws(start, torch.rand(1, 2, 1)))
    expected = ((2 - 1) ** 2 + 0.1 * ((0.5 - 1) ** 2 + (0.5 - 3) ** 2)) / 2
    assert loss.tolist() == pytest.approx([expected])


@pytest.mark.parametrize(("w", "expected"), [(0.0, 0.1), (1.0, 0.2), (3.0, 0.4), (20.0, 1.0)])
def test_the_dial_by_hand(w, expected):
    """From noise 0, velocities 0.1 and 0.2 end at 0.1 + 0.1 w, clipped to 1."""
    action = constant(0.1, 0.2, guidance=w).explore(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    assert action.item() == pytest.approx(expected)


def test_times_are_multiples_of_the_grid_with_both_ends():
    agent, seen = make(), []

    class Watching(torch.nn.Module):
        def forward(self, label, s, x, t):
            seen.append(t)
            return x

    agent.flow = Watching()
    batch = make_batches(1)[0]
    for u in (0.0, 0.5, 1 - 1e-6):
        draws = Draws(torch.zeros(SEEDS, B, A), torch.full((SEEDS, B, 1), u))
        agent.flow_loss(batch, torch.ones(SEEDS, B), draws)
    assert [t.unique().tolist() for t in seen[::2]] == [[0.0], [0.5], [1.0]]


def test_zero_is_cloning_and_one_is_cloning_of_the_better():
    states, noise = torch.rand(SEEDS, 4, O), torch.randn(SEEDS, 4, A)
    agent = make()
    for w, label in ((0.0, ALL), (1.0, BETTER)):
        agent.cfg.guidance = w
        alone = flow.euler(lambda x, t, n=label: agent.flow(n, states, x, t), noise, 3)
        torch.testing.assert_close(agent.explore(states, noise), alone.clamp(-1, 1))


def test_in_a_bandit_the_reward_rises_with_the_dial():
    """Actions N(0, 0.3^2), the reward is the action: from the mean 0, by that of the better half, up."""
    agent = make(1, 1, 1, hidden_width=32, lr=3e-3, expectile=0.5, flow_steps=8, polyak=0.1)
    rng = torch.Generator().manual_seed(0)
    for _ in range(300):
        a, normal = torch.randn(2, 128, 1, generator=rng)
        batch = tiny(s=np.zeros((128, 1)), a=0.3 * a.numpy(), r=0.3 * a[:, 0].numpy(), d=[1] * 128)
        agent.update(batch, Draws(normal[None], torch.rand(1, 128, 1, generator=rng)))
    noise = torch.randn(1, 500, 1, generator=rng)
    means = []
    for w in (0.0, 1.0, 1.5, 3.0, 10.0):
        agent.cfg.guidance = w
        means.append(agent.explore(torch.zeros(1, 500, 1), noise).mean().item())
    half = 0.3 * (2 / np.pi) ** 0.5
    assert abs(means[0]) < 0.1 and means[1] == pytest.approx(half, abs=0.1)
    assert all(low < high for low, high in pairwise(means)) and means[-1] > 0.6, means


def test_the_rows_that_count_as_better_are_those_above_v():
    agent = make()
    batch, draws = make_batches(1)[0], make_draws()
    _, metrics = agent.loss(batch, Draws(*(x.float() for x in draws)))
    q = agent.target(batch.observations, batch.actions).amin(1)
    above = (q > agent.value(batch.observations)).float().mean(-1)
    assert torch.equal(metrics["better"], above) and (above > 0).all() and (above < 1).all()


def test_the_flows_last_hidden_layer_has_no_norm_and_its_weights_are_flax():
    agent = CFGRL(Config(), Spec(17, 6, generators(1)))
    assert [isinstance(n, torch.nn.Identity) for n in agent.flow.body.norms] == [False, False, True]
    for network in (agent.critic, agent.value):
        assert [norm.eps for norm in network.norms] == [1e-6] * 3 and network.norm_first
    *hidden, last = agent.flow.body.layers
    for layer in hidden:
        bound = (6 / sum(layer.weight.shape[-2:])) ** 0.5
        assert 0.98 * bound < layer.weight.abs().max() <= bound
    assert last.weight.std().item() == pytest.approx(512**-0.5, rel=0.05)
    assert agent.flow.labels.weight.std().item() == pytest.approx(32**-0.5, rel=0.3)


@pytest.mark.parametrize("wrong", [{"guidance": -0.5}, {"all_weight": 0.0}, {"time_grid": 0}])
def test_wrong_settings_raise(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(CorerlError, match=rf"algo\.{name}={value}"):
        Config(**wrong)
