"""PMOE against its transcription, SAC where one expert is left, and what a mixture must be."""

import math

import numpy as np
import pytest
import tiny
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
    twins,
)
from reference_soft import adam, draw, joined, leaves, mlp, numbers, polyak, q, set_grads
from scipy import stats
from small import flatten

from corerl.algos import sac
from corerl.algos.pmoe import PMOE, Config, Mixture, of_expert
from corerl.algos.sac import SAC, PolicyNoise
from corerl.nn.learner import Spec

K = 3
SMALL = {"hidden_width": WIDTH, "batch_size": B, "polyak": 0.1, "discount": 0.9}


def make(kind=PMOE, seeds: int = SEEDS, sizes=(O, A), **more):
    settings = sac.Config if kind is SAC else Config
    own = {} if kind is SAC else {"experts": K}
    return kind(settings(**SMALL | own | more), Spec(*sizes, generators(seeds)))


def make_noises(count: int, experts: int = K) -> list[PolicyNoise]:
    drawn = np.random.default_rng(4).normal(size=(count, SEEDS, 1 + experts, B, A))
    return [PolicyNoise(x[:, 0], x[:, 1:].squeeze(1)) for x in as_tensor(drawn)]


class Reference:
    """One seed: SAC whose policy is a list of experts, each with its two columns of the output."""

    def __init__(self, body, router, critics, settings):
        self.c = settings
        self.body, self.router = leaves(body), leaves(router)
        self.critics = [leaves(c) for c in critics]
        self.targets = [{k: v.detach().clone() for k, v in c.items()} for c in self.critics]
        self.log_alpha = {"log_alpha": torch.zeros((), dtype=torch.float64, requires_grad=True)}
        self.pi_adam = adam(settings.actor_lr, self.body, self.router)
        self.q_adam = adam(settings.critic_lr, joined(self.critics))
        self.alpha_adam = adam(settings.temperature_lr, self.log_alpha)

    def networks(self) -> tuple:
        critics, targets = ([numbers(x) for x in n] for n in (self.critics, self.targets))
        return numbers(self.body), numbers(self.router), critics, targets

    def weights(self, s):
        return torch.softmax(s @ self.router["weight"] + self.router["bias"], 1)

    def expert(self, k: int):
        def gaussian(s):
            out = mlp(self.body, s)
            mean, log_std = out[:, : K * A], out[:, K * A :].clamp(-20, 2)
            return mean[:, k * A : (k + 1) * A], log_std[:, k * A : (k + 1) * A]

        return gaussian

    def act(self, k: int, s, noise):
        """What an expert does, and the log-density of that: the mixture's, or its own."""
        action, own = draw(self.expert(k), s, noise)
        if self.c.density == "component":
            return action, own
        mean, log_std = self.expert(k)(s)
        u, total = mean + log_std.exp() * noise, 0.0
        for j in range(K):
            mean, log_std = self.expert(j)(s)
            one = torch.distributions.Normal(mean, log_std.exp()).log_prob(u).sum(1)
            total = total + self.weights(s)[:, j].detach() * one.exp()
        return action, total.log() - torch.log(1 / torch.cosh(u) ** 2).sum(1)

    def drawn(self, s, noise):
        """What the mixture does: the first number's quantile among the weights picks, and begins anew."""
        actions, densities = [], []
        for b in range(len(s)):
            row, w = s[b : b + 1], self.weights(s[b : b + 1])[0].detach().numpy()
            u, k, low = stats.norm.cdf(noise[b, 0]), 0, 0.0
            while k < K - 1 and u >= low + w[k]:
                low, k = low + w[k], k + 1
            again = noise[b : b + 1].clone()
            again[0, 0] = float(stats.norm.ppf((u - low) / w[k]))
            action, log_prob = self.act(k, row, again)
            actions.append(action[0])
            densities.append(log_prob[0])
        return torch.stack(actions), torch.stack(densities)

    def update(self, batch, noise: PolicyNoise) -> dict:
        c, alpha = self.c, float(self.log_alpha["log_alpha"].detach().exp())
        s, a, r, s_next, d = (torch.as_tensor(x) for x in batch[:5])
        with torch.no_grad():
            a_next, log_prob = self.drawn(s_next, noise.next_actions)
            low = torch.minimum(*(q(t, s_next, a_next) for t in self.targets))
            y = r + c.discount * (1 - d) * (low - alpha * log_prob)
        critic_loss = sum(((q(one, s, a) - y) ** 2).mean() for one in self.critics)
        set_grads(self.q_adam, critic_loss)
        self.q_adam.step()
        polyak(joined(self.targets), joined(self.critics), c.polyak)
        values, densities = [], []
        for k in range(K):
            mine, log_prob = self.act(k, s, noise.actions[k])
            values.append(torch.minimum(*(q(one, s, mine) for one in self.critics)))
            densities.append(log_prob)
        best = torch.stack(values, 1).argmax(1)
        rows = torch.arange(len(s))
        value, log_prob = torch.stack(values, 1)[rows, best], torch.stack(densities, 1)[rows, best]
        policy_loss = (alpha * log_prob - value).mean()
        one_hot = torch.nn.functional.one_hot(best, K)
        frequency = torch.nn.functional.mse_loss(self.weights(s), one_hot.double())
        set_grads(self.pi_adam, policy_loss + c.frequency_weight * frequency)
        self.pi_adam.step()
        entropy = -log_prob.mean().item()
        set_grads(self.alpha_adam, self.log_alpha["log_alpha"].exp() * (entropy + A))
        self.alpha_adam.step()
        losses = {"critic_loss": critic_loss, "policy_loss": policy_loss}
        losses |= {"frequency_loss": frequency}
        return {name: loss.item() for name, loss in losses.items()} | {"temperature": alpha}


def networks(agent: PMOE, s: int) -> tuple:
    router = {k: v.squeeze(0) if k == "bias" else v for k, v in net(agent.policy.router, s).items()}
    return net(agent.policy.body, s), router, twins(agent.critic, s), twins(agent.target, s)


@pytest.mark.parametrize("density", ["component", "mixture"])
def test_five_updates_equal_the_equations(density, tolerance):
    agent = make(density=density, frequency_weight=0.7)
    scramble(agent.policy, agent.critic)
    agent.target.load_state_dict(agent.critic.state_dict())
    theirs = [Reference(*networks(agent, s)[:3], agent.cfg) for s in range(SEEDS)]
    for batch, noise in zip(make_batches(5), make_noises(5), strict=True):
        metrics = agent.update([batch], [noise])
        for s, reference in enumerate(theirs):
            mine = PolicyNoise(*(x[s].double() for x in noise))
            expected = reference.update(one_seed(batch, s), mine)
            assert_losses(metrics, s, expected, tolerance)
    for s, reference in enumerate(theirs):
        assert_networks(networks(agent, s), reference.networks(), tolerance)


@pytest.mark.parametrize("density", ["component", "mixture"])
def test_one_expert_is_sac_to_the_bit(density):
    agent, plain = make(experts=1, density=density), make(SAC)
    for batch, noise in zip(make_batches(5), make_noises(5, experts=1), strict=True):
        mine, theirs = agent.update([batch], [noise]), plain.update([batch], [noise])
        assert flatten(mine) == flatten(theirs)
    assert flatten(agent.state_dict()) == flatten(plain.state_dict())
    s, noise = make_batches(1)[0].observations, make_noises(1, experts=1)[0].actions
    assert torch.equal(agent.explore(s, noise), plain.explore(s, noise))
    assert torch.equal(agent.act(s), plain.act(s))


def test_the_whole_run_of_one_expert_is_sacs():
    runs = [
        tiny.Short(tiny.settings(name, **own))
        for name, own in (("pmoe", {"experts": 1}), ("sac", {}))
    ]
    mine, theirs = (flatten(run.state()) for run in runs)
    assert mine == theirs and mine
    other = tiny.Short(tiny.settings("pmoe", experts=2))
    assert flatten(other.parts["agent"].critic.state_dict()) != flatten(
        runs[1].parts["agent"].critic.state_dict()
    )


def policy(weights, means, stds) -> Mixture:
    """A mixture in one dimension of these numbers, the same in all states."""
    count = len(weights)
    made = Mixture([1, 1], (1,), generators(1), experts=count, exact=True)
    with torch.no_grad():
        for p in made.parameters():
            p.zero_()
        made.body.layers[-1].bias[0, 0] = torch.tensor([*means, *np.log(stds)])
        made.router.bias[0, 0] = torch.log(torch.tensor(weights))
    return made


TWO = [0.3, 0.7], [-1.0, 0.8], [0.3, 0.5]


def density(a: np.ndarray) -> np.ndarray:
    """Of tanh(u), u of either Gaussian with its weight."""
    u = np.arctanh(a)
    mixed = sum(w * stats.norm.pdf(u, m, s) for w, m, s in zip(*TWO, strict=True))
    return mixed / (1 - a**2)


def test_densities_are_the_mixtures():
    grid = np.linspace(-0.999, 0.999, 20_001)
    actions = torch.tensor(grid, dtype=torch.float32)[None, :, None]
    mixture = policy(*TWO)
    states = torch.zeros(1, len(grid), 1)
    found = mixture.log_prob(states, actions)[0].detach().double().exp().numpy()
    np.testing.assert_allclose(found, density(grid), rtol=1e-3, atol=1e-5)
    assert np.trapezoid(found, grid) == pytest.approx(1.0, abs=1e-3)
    a, log_prob = mixture.sample(states, torch.randn(1, len(grid), 1, generator=generators(1)[0]))
    inside = a.abs() < 0.999
    expected = mixture.log_prob(states, a)
    torch.testing.assert_close(
        log_prob[inside[..., 0]], expected[inside[..., 0]], rtol=1e-3, atol=1e-3
    )


def test_one_normal_number_draws_from_the_mixture():
    """By Kolmogorov and Smirnov. Whom it picks says nothing about where in that expert it falls."""
    noise = torch.randn(1, 20_000, 1, generator=generators(1)[0])
    states = torch.zeros(1, noise.shape[1], 1)
    mixture = policy(*TWO)
    drawn = np.arctanh(
        mixture.sample(states, noise)[0].detach().double().numpy().clip(-1 + 1e-7, 1 - 1e-7)
    )

    def cumulative(u):
        return sum(w * stats.norm.cdf(u, m, s) for w, m, s in zip(*TWO, strict=True))

    assert stats.kstest(drawn.ravel(), cumulative).pvalue > 0.01
    chosen, again = mixture._pick(states, noise)
    assert chosen.float().mean().item() == pytest.approx(0.7, abs=0.01)
    for k in range(2):
        assert stats.kstest(again[chosen == k].ravel().numpy(), "norm").pvalue > 0.01


def test_the_likeliest_expert_acts_when_evaluated():
    states = torch.zeros(1, 2, 1)
    assert policy(*TWO).mode(states)[0, :, 0].tolist() == pytest.approx([math.tanh(0.8)] * 2)


def test_the_loss_by_hand():
    """Q = a, alpha 1: of actions tanh(-1) and tanh(0.8) the second climbs; weights .3, .7 pay .09."""
    agent = make(seeds=1, sizes=(1, 1), experts=2)
    agent.policy = policy(*TWO)
    agent.policy.exact = False
    object.__setattr__(agent, "critic", lambda s, a: a[..., 0][:, None].expand(-1, 2, -1))
    batch = make_batches(1)[0]._replace(observations=torch.zeros(1, 4, 1))
    loss, metrics = agent.policy_loss(batch, torch.zeros(1, 2, 4, 1))
    action = math.tanh(0.8)
    log_prob = -math.log(0.5 * math.sqrt(2 * math.pi)) - math.log(1 - action**2)
    assert metrics["policy_loss"].item() == pytest.approx(log_prob - action, rel=1e-5)
    assert metrics["frequency_loss"].item() == pytest.approx(0.09, rel=1e-5)
    temperature = -log_prob - agent.target_entropy
    assert loss.item() == pytest.approx(log_prob - action + temperature + 0.09, rel=1e-5)


def test_weights_learn_how_often_each_expert_is_best():
    """Of two experts of means 0 and 0.2 and deviation 1, Q = a, the second is best in P(z < .2 / sqrt 2)."""
    agent = make(seeds=1, sizes=(1, 1), experts=2, actor_lr=5e-3)
    mixture = policy([0.5, 0.5], [0.0, 0.2], [1.0, 1.0])
    agent.policy = mixture
    object.__setattr__(agent, "critic", lambda s, a: a[..., 0][:, None].expand(-1, 2, -1))
    batch = make_batches(1)[0]._replace(observations=torch.zeros(1, 500, 1))
    step = torch.optim.Adam(mixture.router.parameters(), 1e-2)
    rng = torch.Generator().manual_seed(1)
    kept = []
    for i in range(400):
        noise = torch.randn(1, 2, 500, 1, generator=rng)
        step.zero_grad()
        agent.policy_loss(batch, noise)[1]["frequency_loss"].sum().backward()
        step.step()
        if i >= 200:
            kept.append(mixture.log_weights(batch.observations)[0, 1, 0].exp().item())
    assert np.mean(kept) == pytest.approx(stats.norm.cdf(0.2 / math.sqrt(2)), abs=0.01)


def peaks(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Q of a bandit with equal peaks at -0.6 and 0.6, of both critics."""
    value = torch.exp(-(((actions[..., 0].abs() - 0.6) / 0.15) ** 2))
    return value[:, None].expand(-1, 2, -1)


def test_of_two_equal_peaks_one_expert_takes_both_in_the_end():
    """Experts that begin left and right find their peaks. The narrower is best more often, then always."""
    own = {"learn_temperature": False, "initial_temperature": 0.05, "actor_lr": 1e-2, "experts": 2}
    agent = make(seeds=1, sizes=(1, 1), density="mixture", **own)
    object.__setattr__(agent, "critic", peaks)
    with torch.no_grad():
        agent.policy.body.layers[-1].weight.zero_()
        agent.policy.body.layers[-1].bias[0, 0] = torch.tensor([-0.4, 0.4, -0.5, -0.5])
    rng = torch.Generator().manual_seed(2)
    batch = make_batches(1)[0]._replace(observations=torch.zeros(1, 200, 1))
    least = []
    for step in range(400):
        if step in (0, 50):
            means = torch.tanh(agent.policy(batch.observations)[0])[0, :, 0, 0].tolist()
        agent._policy_step(batch, torch.randn(1, 2, 200, 1, generator=rng))
        least.append(agent.policy.log_weights(batch.observations)[0, :, 0].exp().min().item())
    assert means == pytest.approx([-0.6, 0.6], abs=0.05)
    assert least[0] > 0.35 and least[-1] < 0.2


def test_an_experts_numbers_are_its_own():
    x = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    chosen = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])
    found = of_expert(x, chosen)
    for s in range(2):
        for b in range(4):
            assert torch.equal(found[s, b], x[s, chosen[s, b], b])
