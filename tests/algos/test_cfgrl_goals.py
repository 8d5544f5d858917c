"""CFGRL with goals: equations of the authors' code, losses by hand, and what guidance comes to exactly."""

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
    net,
    scramble,
)
from reference_fql import Learner, mlp
from test_goal_agents import fill, hand_batch, make_batches

from corerl.algos.cfgrl_goals import CFGRLGoals, Config, Draws
from corerl.buffers.goals import GoalBatch
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "hidden_layers": 2, "flow_steps": 3}
RNG = np.random.default_rng(6)


def make(states: int = O, goal: int = O, actions: int = A, seeds: int = SEEDS, **own) -> CFGRLGoals:
    spec = Spec(states + goal, actions, generators(seeds), facts={"goal_dim": goal})
    return CFGRLGoals(Config(**SMALL | own), spec)


class Reference(Learner):
    """ogbench/agents/flowgcbc.py of kvfrans/cfgrl_submit, one seed: the velocity and the embedding."""

    def trained(self):
        return self.nets

    def update(self, batch, start, uniform) -> dict:
        velocity, embedding = self.nets
        s, a, *_, g = map(torch.from_numpy, batch)
        t, chance = uniform[:, :1], uniform[:, 1]
        goals = [embedding["none"][0] if c < 0.1 else g[i] for i, c in enumerate(chance)]
        x = (1 - t) * start + t * a
        inputs = torch.cat([s, torch.stack(goals), x, t], 1)
        loss = ((mlp(velocity, inputs) - (a - start)) ** 2).mean()
        self.step(loss)
        return {"flow_loss": loss.item()}

    @torch.no_grad()
    def act(self, s, g, x, w: float) -> np.ndarray:
        velocity, embedding = self.nets
        for i in range(3):
            t = torch.full((len(s), 1), i / 3, dtype=s.dtype)
            nowhere = embedding["none"].expand(len(s), -1)
            without, towards = (mlp(velocity, torch.cat([s, o, x, t], 1)) for o in (nowhere, g))
            x = x + (without + w * (towards - without)) / 3
        return x.clamp(-1, 1).numpy()


def networks(agent: CFGRLGoals, s: int) -> tuple:
    return net(agent.flow, s), {"none": agent.none[s].detach().double().numpy().copy()}


def test_it_equals_the_equations(float64):
    agent = make(guidance=3.0)
    scramble(agent.flow)
    theirs = [Reference(agent.cfg, *networks(agent, s)) for s in range(SEEDS)]
    for batch in make_batches(6):
        path, uniform = RNG.normal(size=(SEEDS, B, A)), RNG.random((SEEDS, B, 2))
        draws = Draws(as_tensor(path), as_tensor(uniform))
        assert (draws.uniform[..., 1] < 0.1).any()
        metrics = agent.update(batch, draws)
        for s, their in enumerate(theirs):
            losses = their.update([x[s].numpy() for x in batch], *(x[s] for x in draws))
            assert_losses(metrics, s, losses, 1e-7)
    for s, their in enumerate(theirs):
        assert_networks(networks(agent, s), their.networks(), 1e-7)
    shown, noise = as_tensor(RNG.normal(size=(SEEDS, 5, 2 * O))), RNG.normal(size=(SEEDS, 5, A))
    actions = agent.explore(shown, as_tensor(noise))
    for s, their in enumerate(theirs):
        expected = their.act(shown[s, :, :O], shown[s, :, O:], as_tensor(noise[s]), 3.0)
        np.testing.assert_allclose(actions[s].numpy(), expected, atol=1e-6)


def by_goal(none: float, **own) -> CFGRLGoals:
    """One state, goal and action; the velocity is a tenth of the goal, or of `none`."""
    agent = make(1, 1, 1, 1, hidden_layers=0, **own)
    fill(agent.flow, [0.0, 0.1, 0.0, 0.0])
    with torch.no_grad():
        agent.none.fill_(none)
    return agent


def test_the_loss_by_hand():
    """Actions 1 and 0.5 from noise 0: the velocity is 0.2 for the goal 2, and -0.3 without a goal."""
    draws = Draws(torch.zeros(1, 2, 1), torch.tensor([[[0.5, 0.1], [0.5, 0.09]]]))
    loss, _ = by_goal(-3.0).loss(hand_batch(), draws)
    assert loss.item() == pytest.approx(((1 - 0.2) ** 2 + (0.5 + 0.3) ** 2) / 2)


@pytest.mark.parametrize(("w", "expected"), [(0.0, 0.1), (1.0, 0.2), (3.0, 0.4), (20.0, 1.0)])
def test_the_dial_by_hand(w, expected):
    """From noise 0, the velocities 0.1 without a goal and 0.2 towards 2 end at 0.1 + 0.1 w, clipped."""
    agent = by_goal(1.0, guidance=w)
    action = agent.explore(torch.tensor([[[7.0, 2.0]]]), torch.zeros(1, 1, 1))
    assert action.item() == pytest.approx(expected)


def test_without_guidance_the_goal_does_not_count():
    agent = make(guidance=0.0)
    states, noise = torch.randn(SEEDS, 5, O), torch.randn(SEEDS, 5, A)
    one, other = (
        agent.explore(torch.cat([states, torch.randn(SEEDS, 5, O)], -1), noise) for _ in range(2)
    )
    assert torch.equal(one, other)


def gaussian(x: float, t: float, mean: float, std: float) -> float:
    """The velocity from N(0, 1) to N(mean, std^2): E(x_1 - x_0 | x_t = x)."""
    gain = (t * std**2 - (1 - t)) / ((1 - t) ** 2 + (t * std) ** 2)
    return mean + gain * (x - t * mean)


def closed_form(goal: float, w: float, slope: float, std: float) -> float:
    """The action from noise 0 where goals are N(0, 1) and actions N(slope goal, std^2), in small steps."""
    x, steps = 0.0, 4_000
    for t in np.arange(steps) / steps:
        without = gaussian(x, t, 0.0, (slope**2 + std**2) ** 0.5)
        x += (without + w * (gaussian(x, t, slope * goal, std) - without)) / steps
    return x


def test_guidance_comes_to_the_closed_form():
    """Goals N(0, 1), actions N(0.4 g, 0.4^2): both flows are Gaussian, so that opposite noise cancels."""
    own = {"hidden_width": 32, "drop": 0.5, "flow_steps": 50}
    agent = make(1, 2, 1, 1, **own)
    with torch.no_grad():
        agent.none.copy_(torch.tensor([0.0, 2.0]))  # away from the goals, whose second feature is 0
    rng = torch.Generator().manual_seed(0)
    normal = lambda: torch.randn(1, 1024, 1, generator=rng)  # noqa: E731
    still = torch.zeros(1, 1024, 1)
    for step in range(1_500):
        agent.optimizer.lr = 2e-3 if step < 1_000 else 2e-4
        goal = normal()
        actions, goals = 0.4 * goal + 0.4 * normal(), torch.cat([goal, still], -1)
        batch = GoalBatch(still, actions, still, goals, still[..., 0], still[..., 0], goals)
        agent.update(batch, Draws(normal(), torch.rand(1, 1024, 2, generator=rng)))
    noise = torch.linspace(-1, 1, 9).view(1, -1, 1)
    found = {}
    for goal, w in [(-1.0, 1.0), (1.0, 0.0), (0.5, 1.0), (0.5, 3.0), (-0.5, 3.0)]:
        agent.cfg.guidance = w
        shown = torch.tensor([0.0, goal, 0.0]).expand(1, 9, 3)
        found[goal, w] = agent.explore(shown, noise).mean().item()
    exact = {(goal, w): closed_form(goal, w, 0.4, 0.4) for goal, w in found}
    assert found == pytest.approx(exact, abs=0.04)
