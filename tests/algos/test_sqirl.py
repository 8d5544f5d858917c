"""SQIRL against its equations, and against exact lookahead on finite problems."""

import numpy as np
import pytest
import tiny
import torch
from agreement import SEEDS, A, O, assert_networks, generators, net, scramble
from wording import refused

from corerl.algos.sqirl import SQIRL, Config, Rows, StepPlayer, later_rows
from corerl.envs.textbook_mdps import trap
from corerl.nn.learner import Spec
from corerl.risk.effective_horizon import lookahead_values
from corerl.training.rollouts import Played, to_go

K, E, T = 3, 4, 5


def played(seed: int = 0) -> Played:
    """Episodes of 5, 3, 1 and 4 steps."""
    rng = np.random.default_rng(seed)
    alive = np.arange(T) < np.array([5, 3, 1, 4])[:, None]
    alive = np.broadcast_to(alive, (SEEDS, E, T))
    kind = torch.get_default_dtype()
    observations = torch.tensor(rng.normal(size=(SEEDS, E, T, O)) * alive[..., None]).to(kind)
    actions = torch.tensor(rng.integers(A, size=(SEEDS, E, T)))
    rewards = torch.tensor(rng.normal(size=(SEEDS, E, T)) * alive).to(kind)
    return Played(observations, actions, rewards, torch.tensor(alive).to(kind))


class Reference:
    """The authors' `train` of one seed, on rows of lists, with autograd in float64."""

    def __init__(self, cfg, weights):
        self.c, self.w = cfg, {k: torch.tensor(v, requires_grad=True) for k, v in weights.items()}
        self.optimizer = torch.optim.Adam(self.w.values(), cfg.lr)

    def q(self, x):
        for layer in ("encoder.dense.layers.0", "encoder.dense.layers.1"):
            x = (x @ self.w[f"{layer}.weight"] + self.w[f"{layer}.bias"]).relu()
        return (x @ self.w["head.weight"] + self.w["head.bias"]).reshape(len(x), A, K)

    def update(self, rows) -> float:
        losses = []
        for s, a, r, ret, s_next, done in rows:
            targets = [torch.tensor(ret)]
            if not done:
                ahead = self.q(s_next[None])[0].detach()
                targets += [r + self.c.discount * ahead[:, i].max() for i in range(K - 1)]
            else:
                targets += [torch.tensor(r)] * (K - 1)
            losses.append((self.q(s[None])[0, a] - torch.stack(targets)) ** 2)
        loss = torch.stack(losses).mean(0).sum()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.w.values(), self.c.max_norm)
        self.optimizer.step()
        return loss.item()


def listed(episodes: Played, seed: int, numbers, discount: float):
    """Rows of one seed by number, as the authors' buffer has them; those after an end are left out."""
    found = []
    for number in numbers:
        e, t = divmod(int(number), T)
        s, a, r, alive = (x[seed, e].double() for x in episodes)
        length = int(alive.sum())
        if t >= length:
            continue
        ret = sum(discount**i * r[t + i] for i in range(length - t)).item()
        done = t == length - 1
        s_next = None if done else s[t + 1]
        found.append((s[t], int(a[t]), r[t].item(), ret, s_next, done))
    return found


@pytest.mark.parametrize("max_norm", [10.0, 0.05])
def test_updates_equal_the_equations(tolerance, max_norm):
    cfg = Config(
        lookahead=K,
        discount=0.9,
        episodes=E,
        max_steps=T,
        hidden_width=8,
        lr=0.01,
        max_norm=max_norm,
    )
    agent = SQIRL(cfg, Spec(O, A, generators(), discrete=True))
    scramble(agent.q)
    theirs = [Reference(cfg, net(agent.q, s)) for s in range(SEEDS)]
    for i in range(4):
        episodes = played(i)
        numbers = later_rows(torch.rand(SEEDS, 9), 1, cfg)
        metrics = agent.update(Rows.of(episodes, cfg.discount), numbers)
        for s, their in enumerate(theirs):
            loss = their.update(listed(episodes, s, numbers[s], cfg.discount))
            assert sum(metrics[f"loss of q {i + 1}"][s].item() for i in range(K)) == pytest.approx(
                loss, rel=tolerance, abs=tolerance
            )
    for s, their in enumerate(theirs):
        mine = {k: v.detach().numpy() for k, v in their.w.items()}
        assert_networks(net(agent.q, s), mine, tolerance)


def test_returns_by_hand():
    found = to_go(torch.tensor([[1.0, 2.0, 4.0]]), 0.5)
    assert found.tolist() == [[1 + 1 + 1, 2 + 2, 4]]


def test_rows_are_of_the_first_step_or_later():
    cfg = Config(episodes=E, max_steps=T)
    numbers = later_rows(torch.linspace(0, 0.9999, 400), 2, cfg)
    assert sorted(set(numbers.tolist())) == [e * T + t for e in range(E) for t in (2, 3, 4)]


def test_fixed_steps_are_played_and_the_others_are_uniform():
    cfg = Config(episodes=1, max_steps=3)
    agent = SQIRL(cfg, Spec(O, 2, generators(), discrete=True))
    for action in (1, 0):  # the policies of two steps
        with torch.no_grad():
            agent.q.head.weight.zero_()
            agent.q.head.bias.copy_(torch.eye(2)[action])
        agent.fix()
    observations = torch.zeros(SEEDS, 1, O)
    for draws, last in ((None, 0), (torch.full((SEEDS, 3, 1), 0.7), 1)):
        player = StepPlayer(agent, draws)
        player.begin(SEEDS, 1)
        chosen = []
        for _ in range(3):
            chosen.append(player(observations)[0, 0].item())
            player.reward(torch.zeros(SEEDS, 1))
        assert chosen == [1, 0, last]


@pytest.mark.parametrize(("lookahead", "value"), [(2, 0.5), (3, 1.0)])
def test_heads_learn_exact_lookahead(lookahead, value):
    """Of going on at the fork of risk/trap: half a chance after two steps, certainty after three."""
    mdp = trap()
    exact = lookahead_values(mdp, lookahead)[:, 0, 0]
    assert exact[-1].tolist() == pytest.approx([value, 0.6])
    cfg = tiny.settings("sqirl", lookahead=lookahead, max_steps=3, episodes=400, updates=3000)
    cfg.algo.batch_size, cfg.algo.hidden_width, cfg.algo.lr, cfg.steps = 128, 32, 0.003, 1
    run = tiny.Short(cfg, seeds=(0,))
    start = torch.tensor(run.task.make_env().reset(seed=0)[0])
    found = run.parts["agent"].q(start.view(1, 1, -1))[0, 0].detach().numpy()
    np.testing.assert_allclose(found.T, exact, atol=0.1)


def test_more_steps_than_an_episode_has_are_refused():
    cfg = tiny.settings("sqirl", max_steps=5)
    with refused("steps=60 algo.max_steps=5"):
        tiny.Short(cfg)
