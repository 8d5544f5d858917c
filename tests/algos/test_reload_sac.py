"""ReLOAD on SAC: a transcription over two periods, multipliers by hand, the cost in the task, runs."""

import json

import numpy as np
import pytest
import torch
from small import run
from test_sac import Transcription

from corerl import seeding
from corerl.algos import reload_sac, sac
from corerl.buffers.replay import Batch
from corerl.config import Config, Eval
from corerl.data.tasks import resolve
from corerl.errors import CorerlError
from corerl.nn.learner import Spec
from corerl.nn.policies import PolicyNoise

O, A, B = 3, 2, 16
TASK = "risk/HalfCheetah-velocity-v4"


def agent_of(seeds, **own) -> reload_sac.ReLOADSAC:
    cfg = reload_sac.Config(batch_size=B, hidden_width=8, **own)
    return reload_sac.ReLOADSAC(cfg, Spec(O + 1, A, seeding.generators(seeds, "init")))


def batches(seeds, count):
    rngs = [np.random.default_rng(seed) for seed in seeds]

    def stack(*shape):
        return torch.as_tensor(np.stack([rng.normal(size=shape) for rng in rngs]))

    for _ in range(count):
        after, over = stack(B, O + 1), (stack(B) > 1).double()
        after[..., -1] = (after[..., -1] > 0).double()
        batch = Batch(stack(B, O + 1), stack(B, A).tanh(), stack(B), after, over, over[..., :0])
        yield batch, stack(2, B, A)


class Reference(Transcription):
    """One seed of SAC with a second pair of critics, and what was remembered at the last period."""

    def __init__(self, agent, i):
        agent.critic.layers = agent.critic.reward.layers  # where SAC's transcription looks
        super().__init__(agent, i)
        del agent.critic.layers
        copied = [(layer.weight[i], layer.bias[i]) for layer in agent.critic.cost.layers]
        self.c = [
            [(w[h].detach().clone(), b[h].detach()[0].clone()) for w, b in copied] for h in (0, 1)
        ]
        for tensor in self.flat(*self.c):
            tensor.requires_grad_(True)
        self.c_target = [[(w.detach().clone(), b.detach().clone()) for w, b in n] for n in self.c]
        self.c_adam = torch.optim.Adam(self.flat(*self.c), self.cfg.critic_lr)
        self.mu = float(agent.critic.multiplier[i])
        self.remember()
        self.last_excess = 0.0

    def remember(self):
        copy = lambda nets: [[(w.detach().clone(), b.detach().clone()) for w, b in n] for n in nets]  # noqa: E731
        self.before = copy(self.q), copy(self.c), self.mu

    def lagrangian(self, q, c, mu, s, a):
        costs = sum(self.value(n, s, a) for n in c) / 2
        return torch.minimum(*[self.value(n, s, a) for n in q]) - mu * costs

    def update(self, s, a, r, s2, d, noise):
        cost, s, s2 = s2[:, -1], s[:, :-1], s2[:, :-1]
        alpha = float(self.log_alpha.detach().exp())
        with torch.no_grad():
            a2, logp2 = self.draw(s2, noise[0])
            q2 = torch.minimum(*[self.value(n, s2, a2) for n in self.q_target]) - alpha * logp2
            c2 = sum(self.value(n, s2, a2) for n in self.c_target) / 2
        for nets, adam, y in (
            (self.q, self.q_adam, r + 0.99 * (1 - d) * q2),
            (self.c, self.c_adam, cost + 0.99 * (1 - d) * c2),
        ):
            adam.zero_grad()
            sum(((self.value(n, s, a) - y) ** 2).mean() for n in nets).backward()
            adam.step()
        for nets, targets in ((self.q, self.q_target), (self.c, self.c_target)):
            for mine, target in zip(self.flat(*nets), self.flat(*targets), strict=True):
                target.copy_((0.995 * target + 0.005 * mine).detach())
        pi, logp = self.draw(s, noise[1])
        value = self.lagrangian(self.q, self.c, self.mu, s, pi)
        if self.cfg.gradient == "optimistic":
            value = 2 * value - self.lagrangian(*self.before, s, pi)
        self.pi_adam.zero_grad()
        (alpha * logp - value).mean().backward()
        self.pi_adam.step()
        self.alpha_adam.zero_grad()
        (-self.log_alpha.exp() * (logp.detach() - A).mean()).backward()
        self.alpha_adam.step()

    def iterate(self, cost):
        excess = (cost - self.cfg.budget) / self.cfg.period
        self.remember()
        step = 2 * excess - self.last_excess if self.cfg.gradient == "optimistic" else excess
        self.mu, self.last_excess = max(0.0, self.mu + self.cfg.eta_mu * step), excess


@pytest.mark.parametrize("gradient", ["optimistic", "plain"])
def test_two_periods_equal_the_transcription(float64, gradient):
    seeds = [0, 7]
    own = {
        "gradient": gradient,
        "eta_mu": 2.0,
        "initial_multiplier": 0.4,
        "initial_temperature": 0.3,
    }
    agent = agent_of(seeds, **own)
    references = [Reference(agent, i) for i in range(2)]
    for count, (batch, noise) in enumerate(batches(seeds, 6)):
        agent.update([batch], [PolicyNoise(*noise.unbind(1))])
        for i, reference in enumerate(references):
            reference.update(*[field[i] for field in batch[:5]], noise[i])
        if count % 2:
            cost = torch.tensor([90.0, 300.0 / (1 + count)])
            agent.iterate(cost)
            for i, reference in enumerate(references):
                reference.iterate(float(cost[i]))
    for i, reference in enumerate(references):
        mine = Reference(agent, i)
        pairs = zip(
            reference.flat(reference.pi, *reference.q, *reference.c),
            mine.flat(mine.pi, *mine.q, *mine.c),
            strict=True,
        )
        for expected, found in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        assert float(agent.critic.multiplier[i]) == pytest.approx(reference.mu)


def test_the_multiplier_by_hand():
    """Budget 25 of 1,000 steps and eta_mu 2: costs 75, 75, 0 move it by 0.2, 0.1 and then down to 0."""
    agent = agent_of([0], eta_mu=2.0)
    seen = []
    for cost in (75.0, 75.0, 0.0):
        agent.iterate(torch.tensor([cost]))
        seen.append(float(agent.critic.multiplier))
    np.testing.assert_allclose(seen, [0.2, 0.3, 0.1], rtol=1e-5)
    plain = agent_of([0], eta_mu=2.0, gradient="plain")
    plain.iterate(torch.tensor([75.0]))
    np.testing.assert_allclose(float(plain.critic.multiplier), 0.1, rtol=1e-5)


def test_networks_do_not_see_the_cost_and_a_costless_problem_is_sacs(float64):
    batch, noise = next(iter(batches([3], 1)))
    agent = agent_of([3])
    other = batch._replace(observations=batch.observations.clone())
    other.observations[..., -1] += 5.0
    actions = agent.act(batch.observations)
    torch.testing.assert_close(agent.act(other.observations), actions, rtol=0, atol=0)
    sacs = sac.SAC(
        sac.Config(batch_size=B, hidden_width=8), Spec(O, A, seeding.generators([3], "init"))
    )
    sacs.policy.load_state_dict(agent.policy.state_dict())
    sacs.critic.load_state_dict(agent.critic.reward.state_dict())
    sacs.target.load_state_dict(agent.critic.reward.state_dict())
    seen = batch._replace(
        observations=batch.observations[..., :-1],
        next_observations=batch.next_observations[..., :-1],
    )
    found = agent_of([3], gradient="plain")
    found.load_state_dict(agent.state_dict())
    found.update([batch], [PolicyNoise(*noise.unbind(1))])
    sacs.update([seen], [PolicyNoise(*noise.unbind(1))])
    for mine, theirs in zip(found.policy.parameters(), sacs.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_task_pays_its_cost_above_the_limit():
    env = resolve(TASK).make_env()
    observation, info = env.reset(seed=0)
    assert observation.shape == (18,) == env.observation_space.shape and info["cost"] == 0.0
    costs = set()
    for step in range(2):
        env.unwrapped.data.qvel[0] = 20.0 * step  # thrown forward
        observation, _, _, _, info = env.step(np.zeros(6, np.float32))
        assert observation[-1] == info["cost"] == float(info["x_velocity"] > 3.2096)
        costs.add(info["cost"])
    assert costs == {0.0, 1.0}


def job(root, **changes) -> Config:
    algo = reload_sac.Config(
        random_steps=10, period=8, batch_size=8, hidden_width=8, eta_mu=1.0, budget=0.0
    )
    cell = {"task": TASK, "steps": 40, "eval": Eval(every=20, episodes=1), "compile": "off"}
    often = {"log_every": 4, "save_every": 4, "save_minutes": 0, "root": str(root)}
    return Config(algo=algo, **(cell | often | changes))


def test_metrics_have_the_cost_of_the_last_period(tmp_path):
    folder = run(job(tmp_path))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["cost"] <= 8 and line["multiplier"] >= 0 for line in lines)


def test_a_task_without_a_cost_raises_an_error(tmp_path):
    with pytest.raises(CorerlError) as refused:
        run(job(tmp_path, task="gym/Pendulum-v1"))
    assert "gym/Pendulum-v1" in str(refused.value) and "cost" in str(refused.value)
