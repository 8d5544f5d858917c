"""CFGRL on OGBench's single tasks: equations of the authors' code, losses by hand, and what its dial does."""

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
    twins,
)
from reference_fql import Learner, frozen, lowest, mlp

from corerl.algos.cfgrl_goals import Draws
from corerl.algos.cfgrl_ogbench import BETTER, NONE, WORSE, CFGRLOnOGBench, Config
from corerl.errors import CorerlError
from corerl.nn import flow
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "flow_steps": 3, "discount": 0.9}
RNG = np.random.default_rng(6)


def make(observations: int = O, actions: int = A, seeds: int = SEEDS, **own) -> CFGRLOnOGBench:
    return CFGRLOnOGBench(Config(**SMALL | own), Spec(observations, actions, generators(seeds)))


def networks(agent: CFGRLOnOGBench, s: int) -> tuple:
    trained = twins(agent.critic, s), net(agent.value, s), net(agent.flow, s), net(agent.labels, s)
    return *trained, twins(agent.target, s)


class Reference(Learner):
    """ogbench/agents/flowiql.py, one seed: critics, value, velocity, embedding; target critics."""

    def trained(self):
        return self.nets[:4]

    def velocity(self, labels, s, x, t):
        _, _, velocity, embedding, _ = self.nets
        label = torch.stack([embedding["weight"][i] for i in labels])
        return mlp(velocity, torch.cat([s, x, t, label], 1))

    def update(self, batch, start, uniform) -> dict:
        critics, value, *_, targets = self.nets
        s, a, r, s_next, done = map(torch.from_numpy, batch[:5])
        v = mlp(value, s)[:, 0]
        difference = lowest([frozen(t) for t in targets], s, a) - v
        weight = torch.where(difference >= 0, self.c.expectile, 1 - self.c.expectile)
        value_loss = (weight * difference**2).mean()
        with torch.no_grad():
            y = r + self.c.discount * (1 - done) * mlp(value, s_next)[:, 0]
            advantage = lowest(critics, s, a) - v
        q = [mlp(critic, torch.cat([s, a], 1))[:, 0] for critic in critics]
        critic_loss = sum((x - y) ** 2 for x in q).mean()
        t, chance = uniform[:, :1], uniform[:, 1]
        good = [2 if x >= 0 else 1 for x in advantage]
        labels = [0 if c < 0.1 else label for c, label in zip(chance, good, strict=True)]
        velocity = self.velocity(labels, s, (1 - t) * start + t * a, t)
        flow_loss = ((velocity - (a - start)) ** 2).mean()
        for target, online in zip(targets, critics, strict=True):
            self.follow(target, online)  # the critics before their step
        self.step(value_loss + critic_loss + flow_loss)
        losses = {"value_loss": value_loss, "critic_loss": critic_loss, "flow_loss": flow_loss}
        return {name: loss.item() for name, loss in losses.items()} | {"labels": set(labels)}

    @torch.no_grad()
    def act(self, s, x, w: float) -> np.ndarray:
        for i in range(3):
            t = torch.full((len(s), 1), i / 3, dtype=s.dtype)
            none, better = (self.velocity([label] * len(s), s, x, t) for label in (0, 2))
            x = x + (none + w * (better - none)) / 3
        return x.clamp(-1, 1).numpy()


def test_it_equals_the_equations(float64):
    agent, labels = make(guidance=3.0), set()
    scramble(agent.critic, agent.value, agent.flow, agent.labels, agent.target)
    theirs = [Reference(agent.cfg, *networks(agent, s)) for s in range(SEEDS)]
    for batch in make_batches(6):
        path, uniform = RNG.normal(size=(SEEDS, B, A)), RNG.random((SEEDS, B, 2))
        draws = Draws(as_tensor(path), as_tensor(uniform))
        metrics = agent.update(batch, draws)
        for s, their in enumerate(theirs):
            losses = their.update(one_seed(batch, s), *(x[s] for x in draws))
            labels |= losses.pop("labels")
            assert_losses(metrics, s, losses, 1e-7)
    assert labels == {0, 1, 2}
    for s, their in enumerate(theirs):
        assert_networks(networks(agent, s), their.networks(), 1e-7)  # Adam's epsilon
    states, noise = (as_tensor(RNG.normal(size=(SEEDS, 5, n))) for n in (O, A))
    actions = agent.explore(states, noise)
    for s, their in enumerate(theirs):
        expected = their.act(states[s], noise[s], 3.0)
        np.testing.assert_allclose(actions[s].numpy(), expected, atol=1e-6)


def constant(none: float, worse: float, better: float, **own) -> CFGRLOnOGBench:
    """One state and action, and a velocity that only the label decides."""
    agent = make(1, 1, 1, hidden_layers=0, **own)
    set_linear(agent.flow, [0.0] * 34 + [1.0], 0.0)  # the last feature of the label
    with torch.no_grad():
        agent.labels.weight[0, :, -1] = torch.tensor([none, worse, better])
    return agent


def test_flow_loss_by_hand():
    """Velocities 0.5, -1 and 2. The right one is 1; a chance below 0.1 drops the label."""
    agent = constant(0.5, -1.0, 2.0)
    batch = tiny(s=[[0]] * 4, a=[[1]] * 4)
    better = torch.tensor([[True, False, True, False]])
    uniform = torch.tensor([[[0.2, 0.1], [0.4, 0.9], [0.6, 0.0999], [0.8, 0.0]]])
    loss = agent.flow_loss(batch, better, Draws(torch.zeros(1, 4, 1), uniform))
    expected = ((2 - 1) ** 2 + (-1 - 1) ** 2 + 2 * (0.5 - 1) ** 2) / 4
    assert loss.tolist() == pytest.approx([expected])


def test_losses_of_critics_and_value_by_hand():
    """Critics 1 and 2, targets 0.25 and 3, V = 0.5; y is 1 + 0.9 * 0.5, and 1 at the end."""
    agent = constant(0.0, 0.0, 0.0)
    for critics, biases in ((agent.critic, [1.0, 2.0]), (agent.target, [0.25, 3.0])):
        set_linear(critics, np.zeros((2, 2)), biases)
    set_linear(agent.value, [0.0], 0.5)
    batch = tiny(s=[[0], [0]], a=[[0], [0]], r=[1, 1], d=[0, 1])
    loss, metrics = agent.loss(batch, Draws(torch.zeros(1, 2, 1), torch.full((1, 2, 2), 0.5)))
    critic_loss = ((1 - 1.45) ** 2 + (2 - 1.45) ** 2 + 0 + (2 - 1) ** 2) / 2
    expected = {"critic_loss": critic_loss, "value_loss": 0.1 * 0.25**2, "better": 1.0}
    assert {name: metrics[name].item() for name in expected} == pytest.approx(expected)
    assert metrics["flow_loss"].item() == 0
    assert loss.item() == pytest.approx(critic_loss + expected["value_loss"])


@pytest.mark.parametrize(
    ("v", "velocity"), [(1.01, WORSE), (1.0, BETTER), (0.5, BETTER)], ids=["below", "at", "above"]
)
def test_an_action_as_good_as_v_is_better(v, velocity):
    """The smaller online critic has 1. Each label's velocity is its number, where 0 is right."""
    agent = constant(NONE, WORSE, BETTER)
    set_linear(agent.critic, np.zeros((2, 2)), [3.0, 1.0])
    set_linear(agent.value, [0.0], v)
    batch = tiny(s=[[0]], a=[[0]])
    _, metrics = agent.loss(batch, Draws(torch.zeros(1, 1, 1), torch.full((1, 1, 2), 0.5)))
    assert metrics["flow_loss"].item() == pytest.approx(velocity**2)


@pytest.mark.parametrize(("w", "expected"), [(0.0, 0.1), (1.0, 0.2), (3.0, 0.4), (20.0, 1.0)])
def test_the_dial_by_hand(w, expected):
    """From noise 0, velocities 0.1 and 0.2 end at 0.1 + 0.1 w, clipped to 1."""
    agent = constant(0.1, -5.0, 0.2, guidance=w)
    action = agent.explore(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    assert action.item() == pytest.approx(expected)


@pytest.mark.parametrize(("w", "label"), [(0.0, NONE), (1.0, BETTER)])
def test_zero_is_the_unlabelled_velocity_and_one_the_better_one(w, label):
    agent = make(guidance=w)
    states, noise = torch.rand(SEEDS, 4, O), torch.randn(SEEDS, 4, A)
    labels = torch.full((SEEDS, 4), label)
    alone = flow.euler(partial(agent.velocity, labels, states), noise, 3)
    torch.testing.assert_close(agent.explore(states, noise), alone.clamp(-1, 1))


def test_first_weights_are_flax_and_the_flow_has_no_norm():
    agent = CFGRLOnOGBench(Config(), Spec(28, 5, generators(1)))
    for network in (agent.critic, agent.value, agent.flow):
        assert len(network.layers) == 5
        for layer in network.layers:
            bound = (6 / sum(layer.weight.shape[-2:])) ** 0.5
            assert 0.98 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()
    for network in (agent.critic, agent.value):
        assert [norm.eps for norm in network.norms] == [1e-6] * 4 and not network.norm_first
    assert all(isinstance(norm, torch.nn.Identity) for norm in agent.flow.norms)
    assert agent.labels.weight.std().item() == pytest.approx(32**-0.5, rel=0.3)
    online, target = agent.critic.parameters(), agent.target.parameters()
    assert all(torch.equal(p, q) for p, q in zip(online, target, strict=True))


@pytest.mark.parametrize("wrong", [{"guidance": -0.5}, {"drop": 0.0}, {"drop": 1.0}])
def test_wrong_settings_raise(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(CorerlError, match=rf"algo\.{name}={value}"):
        Config(**wrong)
