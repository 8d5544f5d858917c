"""SAC against a transcription of the paper that shares no code with it, and as a run."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from small import run
from wording import refused

from corerl import seeding
from corerl.algos import sac
from corerl.buffers.replay import Batch
from corerl.config import Config, Eval
from corerl.launch.settings_tables import table
from corerl.nn.learner import Spec

O, A, B = 3, 2, 16


def agent_of(seeds, **settings):
    cfg = sac.Config(batch_size=B, hidden_width=8, **settings)
    return sac.SAC(cfg, Spec(O, A, seeding.generators(seeds, "init")))


def batches(seeds, count):
    """Other data for each seed, as `(batch, noise)` pairs."""
    rngs = [np.random.default_rng(seed) for seed in seeds]

    def stack(*shape):
        return torch.as_tensor(np.stack([rng.normal(size=shape) for rng in rngs])).to(
            torch.get_default_dtype()
        )

    for _ in range(count):
        over = (stack(B) > 1).to(torch.get_default_dtype())
        actions = torch.tanh(stack(B, A))
        batch = Batch(stack(B, O), actions, stack(B), stack(B, O), over, actions[..., :0])
        yield batch, stack(2, B, A)


class Transcription:
    """One seed of SAC written out from the paper: lists of matrices, ordinary Adam, no seed axis."""

    def __init__(self, agent, seed):
        def matrices(network, *head):
            return [
                (
                    layer.weight[(seed, *head)].detach().clone(),
                    layer.bias[(seed, *head)].detach()[0].clone(),
                )
                for layer in network.layers
            ]

        self.cfg = agent.cfg
        self.pi = matrices(agent.policy.body)
        self.q = [matrices(agent.critic, head) for head in range(2)]
        self.q_target = [matrices(agent.critic, head) for head in range(2)]
        self.log_alpha = agent.temperature.log_alpha[seed].detach().clone()
        for tensor in self.flat(self.pi) + self.flat(*self.q) + [self.log_alpha]:
            tensor.requires_grad_(True)
        cfg = self.cfg
        self.pi_adam = torch.optim.Adam(self.flat(self.pi), cfg.actor_lr)
        self.q_adam = torch.optim.Adam(self.flat(*self.q), cfg.critic_lr)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], cfg.temperature_lr)

    @staticmethod
    def flat(*networks):
        return [tensor for network in networks for layer in network for tensor in layer]

    @staticmethod
    def forward(network, x):
        for weight, bias in network[:-1]:
            x = torch.relu(x @ weight + bias)
        return x @ network[-1][0] + network[-1][1]

    def draw(self, s, noise):
        out = self.forward(self.pi, s)
        mean, std = out[:, :A], torch.exp(out[:, A:].clamp(-20, 2))
        u = mean + std * noise
        density = torch.distributions.Normal(mean, std).log_prob(u)
        return torch.tanh(u), (density - torch.log(1 - torch.tanh(u) ** 2)).sum(1)

    def value(self, network, s, a):
        return self.forward(network, torch.cat([s, a], 1))[:, 0]

    def update(self, s, a, r, s2, d, noise):
        alpha = float(self.log_alpha.detach().exp())
        with torch.no_grad():
            a2, logp2 = self.draw(s2, noise[0])
            q2 = torch.minimum(*[self.value(q, s2, a2) for q in self.q_target])
            y = r + 0.99 * (1 - d) * (q2 - alpha * logp2)
        loss = sum(torch.nn.functional.mse_loss(self.value(q, s, a), y) for q in self.q)
        self.q_adam.zero_grad()
        loss.backward()
        self.q_adam.step()
        for mine, target in zip(self.flat(*self.q), self.flat(*self.q_target), strict=True):
            target.copy_((0.995 * target + 0.005 * mine).detach())

        pi, logp = self.draw(s, noise[1])
        values = [self.value(q, s, pi) for q in self.q]
        q = torch.minimum(*values) if self.cfg.actor_q == "min" else sum(values) / 2
        self.pi_adam.zero_grad()
        (alpha * logp - q).mean().backward()
        self.pi_adam.step()
        self.alpha_adam.zero_grad()
        (-self.log_alpha.exp() * (logp.detach() - A).mean()).backward()
        self.alpha_adam.step()

    def parameters(self):
        return [
            *self.flat(self.pi),
            *self.flat(*self.q),
            *self.flat(*self.q_target),
            self.log_alpha,
        ]


@pytest.mark.parametrize(
    ("mode", "actor_q"),
    [("off", "min"), ("off", "mean"), pytest.param("compile", "min", marks=pytest.mark.slow)],
)
def test_five_updates_equal_the_paper_s(float64, mode, actor_q):
    seeds = [0, 7]
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "temperature_lr": 3e-2}
    own = {"actor_q": actor_q, "initial_temperature": 0.3} | rates
    cfg = sac.Config(batch_size=B, hidden_width=8, **own)
    agent = sac.SAC(cfg, Spec(O, A, seeding.generators(seeds, "init"), mode=mode))
    references = [Transcription(agent, i) for i in range(2)]
    for batch, noise in batches(seeds, 5):
        agent.update([batch], [sac.PolicyNoise(*noise.unbind(1))])
        for i, reference in enumerate(references):
            reference.update(*[field[i] for field in batch[:5]], noise[i])
    for i, reference in enumerate(references):
        mine = Transcription(agent, i)
        mine.q_target = [
            [(layer.weight[i, head], layer.bias[i, head][0]) for layer in agent.target.layers]
            for head in range(2)
        ]
        for ours, theirs in zip(mine.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_density_is_that_of_the_squashed_gaussian():
    agent = agent_of([0])
    observations = torch.randn(1, 50, O)
    mean, log_std = agent.policy(observations)
    noise = torch.randn(1, 50, A)
    actions, log_prob = agent.policy.sample(observations, noise)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean.double(), log_std.double().exp()),
        torch.distributions.TanhTransform(cache_size=1),
    )
    expected = squashed.log_prob(actions.double()).sum(-1)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-4)


def test_saturated_actions_keep_a_finite_density():
    agent = agent_of([0])
    _, log_prob = agent.policy.sample(torch.zeros(1, 1, O), torch.full((1, 1, A), 60.0))
    assert torch.isfinite(log_prob).all()


def test_utd_updates_the_critic_each_time_and_the_policy_last():
    agent = agent_of([0], utd=4, actor_every=4)
    drawn = list(batches([0], 4))
    agent.update(
        [batch for batch, _ in drawn], [sac.PolicyNoise(*noise.unbind(1)) for _, noise in drawn]
    )
    assert agent.critic_optimizer.state_dict()["count"] == 4
    assert agent.policy_optimizer.state_dict()["count"] == 1
    assert agent.temperature_optimizer.state_dict()["count"] == 1


def test_the_policy_follows_the_last_of_its_critic_updates_and_targets_follow_each():
    """Of 4 critic updates and a policy update after every second, one by one."""
    agent = agent_of([0], utd=4, actor_every=2, polyak=0.1)
    target = [p.clone() for p in agent.target.parameters()]
    critic_step, policy_step, steps = agent._critic_step, agent._policy_step, []

    def critic(batch, noise):
        metrics = critic_step(batch, noise)
        for mine, online in zip(target, agent.critic.parameters(), strict=True):
            mine.copy_(0.9 * mine + 0.1 * online.detach())
        steps.append(("critic", batch))
        return metrics

    agent._critic_step = critic
    agent._policy_step = lambda *x: steps.append(("policy", x[0])) or policy_step(*x)
    drawn = [(batch, sac.PolicyNoise(*noise.unbind(1))) for batch, noise in batches([0], 4)]
    agent.update(*map(list, zip(*drawn, strict=True)))
    of = {id(batch): number for number, (batch, _) in enumerate(drawn, 1)}
    expected = [("critic", 1), ("critic", 2), ("policy", 2)]
    expected += [("critic", 3), ("critic", 4), ("policy", 4)]
    assert [(name, of[id(batch)]) for name, batch in steps] == expected
    for mine, theirs in zip(target, agent.target.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_a_fresh_agent_is_torchs_with_an_entropy_of_minus_the_action_dimensions():
    agent = sac.SAC(sac.Config(), Spec(17, 6, seeding.generators([0], "init")))
    assert agent.target_entropy == -6
    for network in (agent.policy.body, agent.critic):
        for layer in network.layers:
            bound = layer.weight.shape[-2] ** -0.5
            assert 0.97 * bound < layer.weight.abs().max() <= bound
            assert 0 < layer.bias.abs().max() <= bound


def test_the_authors_first_weights_are_glorots():
    agent = sac.SAC(sac.Config(init="glorot"), Spec(17, 6, seeding.generators([0], "init")))
    for network in (agent.policy.body, agent.critic):
        for layer in network.layers:
            bound = (6 / sum(layer.weight.shape[-2:])) ** 0.5
            assert 0.97 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()


def test_the_temperature_rises_where_entropy_is_short_and_can_be_held():
    for learn, sign in ((True, 1), (False, 0)):
        agent = agent_of([0], target_entropy=50.0, learn_temperature=learn)
        for batch, noise in batches([0], 3):
            agent.update([batch], [sac.PolicyNoise(*noise.unbind(1))])
        assert math.copysign(1, float(agent.temperature().detach()) - 1) * sign == sign
        assert (float(agent.temperature().detach()) != 1) == learn


def settings(tmp_path, **changes):
    values = {"steps": 60, "save_every": 20, "log_every": 10, "task": "gym/Hopper-v4"} | changes
    return Config(
        algo=sac.Config(batch_size=8, hidden_width=8, random_steps=10, capacity=40),
        eval=Eval(every=30, episodes=1),
        root=str(tmp_path),
        compile="off",
        device="cpu",
        **values,
    )


def test_images_and_discrete_actions_are_refused(tmp_path):
    with refused("vectors"):
        run(settings(tmp_path, task="gym/CartPole-v1"), seeds=[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "enough"), [("gym/InvertedPendulum-v4", 900), ("gym/Pendulum-v1", -250)]
)
def test_it_learns_to_balance_and_to_swing_up(tmp_path, task, enough):
    cfg = settings(tmp_path, task=task, steps=8000)
    own = {key.removeprefix("algo."): value for key, value in table("sac", task).items()}
    cfg = dataclasses.replace(
        cfg, algo=sac.Config(**own), eval=Eval(every=8000, episodes=10), compile="auto"
    )
    last = (run(cfg, seeds=[0]) / "scores.csv").read_text().splitlines()[-1]
    assert float(last.split(",")[5]) > enough
