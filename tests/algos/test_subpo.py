"""SubPO: the exact gradient by enumeration, what the released weights are, and a transcription."""

import itertools

import numpy as np
import pytest
import torch
from agreement import SEEDS, A, O, assert_networks, generators, net, scramble

from corerl.algos.subpo import Config, SubPO
from corerl.envs.coverage import Coverage
from corerl.nn.learner import Spec
from corerl.training.rollouts import Played

E, T = 4, 3


def every_episode(env: Coverage) -> tuple[Played, np.ndarray]:
    """All sequences of actions of one seed, and their returns."""
    rows = []
    for actions in itertools.product(range(5), repeat=env.steps):
        observation, _ = env.reset(seed=0)
        seen, gains = [], []
        for action in actions:
            seen.append(observation)
            observation, gain, *_ = env.step(action)
            gains.append(gain)
        rows.append((seen, actions, gains))
    observations, actions, gains = (np.array(x) for x in zip(*rows, strict=True))
    kind = torch.get_default_dtype()
    parts = [torch.tensor(x)[None] for x in (observations, actions, gains)]
    alive = torch.ones(parts[2].shape, dtype=kind)
    return Played(parts[0].to(kind), parts[1], parts[2].to(kind), alive), gains.sum(1)


def gradient(agent: SubPO, played: Played, chances: torch.Tensor) -> torch.Tensor:
    """The expected gradient of the loss over all episodes."""
    weights = agent.weights(played) * (chances * len(chances))[None, :, None]
    loss, _ = agent.loss(played, weights)
    found = torch.autograd.grad(loss.sum(), list(agent.policy.parameters()))
    return torch.cat([x.flatten() for x in found])


def test_gains_and_the_whole_give_the_gradient_and_the_released_weights_do_not(float64):
    env = Coverage(side=3, steps=3)
    played, returns = every_episode(env)
    found = {}
    for weights in ("gains", "whole", "prefix"):
        cfg = Config(weights=weights, baseline="none", entropy=0.0, hidden_width=8)
        agent = SubPO(cfg, Spec(10, 5, generators(1), discrete=True))
        scramble(agent.policy)
        logits = agent.policy(played.observations.flatten(1, 2)).log_softmax(-1)
        chosen = logits.gather(-1, played.actions.flatten(1, 2)[..., None]).view(-1, env.steps)
        chances = chosen.sum(-1).exp()
        assert chances.sum().item() == pytest.approx(1)
        value = -(chances * torch.tensor(returns)).sum()
        exact = torch.autograd.grad(value, list(agent.policy.parameters()), retain_graph=True)
        exact = torch.cat([x.flatten() for x in exact])
        found[weights] = gradient(agent, played, chances.detach()), exact
    for weights in ("gains", "whole"):
        np.testing.assert_allclose(*found[weights], atol=1e-12)
    released, exact = found["prefix"]
    cosine = (released @ exact / released.norm() / exact.norm()).item()
    assert 0 < cosine < 0.999


def test_the_return_is_submodular_in_the_cells():
    """What a cell adds falls as more has been seen."""
    env, rng = Coverage(), np.random.default_rng(0)
    for _ in range(200):
        few = env.sees[rng.integers(49, size=3)].any(0)
        more = few | env.sees[rng.integers(49, size=4)].any(0)
        cell = rng.integers(49)
        assert env.gain(few, cell) >= env.gain(more, cell) - 1e-12


def test_the_best_return_is_that_of_all_sequences():
    env = Coverage(side=3, steps=4)
    assert env.best_return() == pytest.approx(every_episode(env)[1].max())


def by_hand(**own) -> torch.Tensor:
    gains = torch.tensor([[[1.0, 2.0, 4.0], [3.0, 5.0, 0.0]]])
    alive = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]])
    played = Played(torch.zeros(1, 2, 3, O), torch.zeros(1, 2, 3).long(), gains, alive)
    return SubPO(Config(**own), Spec(O, A, generators(1), discrete=True)).weights(played)[0]


def test_weights_by_hand():
    """The second episode has two steps. Others of a step of two episodes are the other one."""
    assert by_hand(baseline="none").tolist() == [[7, 6, 4], [8, 5, 0]]
    assert by_hand(baseline="none", weights="prefix").tolist() == [[1, 3, 7], [3, 8, 0]]
    assert by_hand(baseline="none", weights="whole").tolist() == [[7, 7, 7], [8, 8, 0]]
    assert by_hand().tolist() == [[-1, 1, 4], [1, -1, 0]]


class Reference:
    """One seed in lists of episodes, with autograd in float64."""

    def __init__(self, cfg, weights):
        self.c, self.w, self.made = (
            cfg,
            {k: torch.tensor(v, requires_grad=True) for k, v in weights.items()},
            0,
        )
        self.optimizer = torch.optim.Adam(self.w.values(), cfg.lr)

    def log_probs(self, x):
        x = torch.tanh(x @ self.w["layers.0.weight"] + self.w["layers.0.bias"])
        return torch.log_softmax(x @ self.w["layers.1.weight"] + self.w["layers.1.bias"], -1)[0]

    def update(self, episodes):
        objective, entropies = 0.0, []
        for i, (states, actions, gains) in enumerate(episodes):
            for h, (state, action) in enumerate(zip(states, actions, strict=True)):
                others = [
                    sum(g[h:]) for j, (_, _, g) in enumerate(episodes) if j != i and h < len(g)
                ]
                weight = sum(gains[h:]) - (sum(others) / len(others) if others else 0.0)
                logp = self.log_probs(state[None])
                objective = objective + weight * logp[action] / len(episodes)
                entropies.append(-(logp.exp() * logp).sum())
        bonus = self.c.entropy / (1 + self.made) * torch.stack(entropies).mean()
        self.optimizer.zero_grad()
        (-objective - bonus).backward()
        self.optimizer.step()
        self.made += 1


def test_five_updates_equal_the_equations(tolerance):
    cfg = Config(hidden_layers=1, hidden_width=8)
    agent = SubPO(cfg, Spec(O, A, generators(), discrete=True))
    scramble(agent.policy)
    theirs = [Reference(cfg, net(agent.policy, s)) for s in range(SEEDS)]
    rng, kind = np.random.default_rng(0), torch.get_default_dtype()
    lengths = np.array([3, 1, 2, 3])
    alive = np.broadcast_to(np.arange(T) < lengths[:, None], (SEEDS, E, T))
    for _ in range(5):
        states, gains = rng.normal(size=(SEEDS, E, T, O)), rng.uniform(size=(SEEDS, E, T)) * alive
        states, actions = states * alive[..., None], rng.integers(A, size=(SEEDS, E, T))
        parts = (torch.tensor(states).to(kind), torch.tensor(actions), torch.tensor(gains).to(kind))
        agent.update(Played(*parts, torch.tensor(alive).to(kind)))
        for s, their in enumerate(theirs):
            rows = zip(
                parts[0][s].double(),
                actions[s].tolist(),
                parts[2][s].tolist(),
                lengths,
                strict=True,
            )
            their.update([(x[:n], a[:n], g[:n]) for x, a, g, n in rows])
    for s, their in enumerate(theirs):
        mine = {k: v.detach().numpy() for k, v in their.w.items()}
        assert_networks(net(agent.policy, s), mine, tolerance)
