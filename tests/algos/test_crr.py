"""CRR and CRR+ against transcriptions, by hand, and where they are AWAC and cloning."""

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
from reference_soft import adam, leaves, mlp, numbers, polyak, set_grads, squashed, tensor
from small import cell
from torch.distributions import Normal

from corerl.algos import awac, crr
from corerl.algos.crr import CRR, Config, CRRNoise
from corerl.launch.composition import cells
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "polyak": 0.1, "discount": 0.9}
PLUS = {
    "filter": "exp",
    "policy": "squashed",
    "critics": 2,
    "pessimism": 0.7,
    "order": "joint",
    "norm_first": True,
    "log_std_min": -5.0,
}
VERSIONS = {
    "d3rlpy": {},
    "d3rlpy, exp": {"filter": "exp", "temperature": 0.5, "max_weight": 1.5, "critics": 2},
    "best of the samples": {"baseline": "max", "samples": 3},
    "CRR+": PLUS,
}


def make(observations: int = O, actions: int = A, seeds: int = SEEDS, **more) -> CRR:
    return CRR(Config(**SMALL | more), Spec(observations, actions, generators(seeds)))


def make_noises(agent: CRR, count: int) -> list[CRRNoise]:
    rng = np.random.default_rng(3)
    drawn = as_tensor(rng.normal(size=(count, SEEDS, 1 + agent.cfg.samples, B, A)))
    return [CRRNoise(x[:, 0], x[:, 1:]) for x in drawn]


def parts(agent: CRR, seed: int) -> tuple:
    heads = range(agent.cfg.critics)
    critics, targets = (
        [net(m, seed, i) for i in heads] for m in (agent.critic, agent.target_critic)
    )
    return net(agent.policy, seed), critics, net(agent.target_policy, seed), targets


layers = partial(mlp, eps=1e-6)


class Reference:
    """One seed, one critic and one sample at a time; densities of torch.distributions."""

    def __init__(self, cfg, policy, critics, target_policy, targets):
        self.c, self.policy, self.target_policy = cfg, leaves(policy), leaves(target_policy)
        self.critics, self.targets = [leaves(x) for x in critics], [leaves(x) for x in targets]
        self.policy_optimizer = adam(cfg.policy_lr, self.policy)
        self.critic_optimizer = adam(cfg.critic_lr, *self.critics)

    def networks(self) -> tuple:
        critics, targets = ([numbers(n) for n in nets] for nets in (self.critics, self.targets))
        return numbers(self.policy), critics, numbers(self.target_policy), targets

    def distribution(self, policy, s):
        mean, log_std = layers(policy, s, "body.").chunk(2, 1)
        if self.c.policy == "squashed":
            log_std = policy["multiplier.value"] * log_std + policy["offset.value"]
            return squashed(mean, log_std.clamp(self.c.log_std_min, self.c.log_std_max))
        return Normal(torch.tanh(mean), log_std.clamp(self.c.log_std_min, self.c.log_std_max).exp())

    def draw(self, policy, s, noise):
        found = self.distribution(policy, s)
        if self.c.policy == "squashed":
            base = found.base_dist
            return torch.tanh(base.mean + base.stddev * noise).detach()
        return (found.mean + found.stddev * noise).clamp(-1, 1).detach()

    def low(self, nets, s, a):
        return torch.stack([layers(n, torch.cat([s, a], 1))[:, 0] for n in nets]).min(0).values

    def weight(self, s, a, noises):
        sampled = [self.low(self.critics, s, self.draw(self.policy, s, noise)) for noise in noises]
        values = torch.stack(sampled)
        v = values.mean(0) if self.c.baseline == "mean" else values.max(0).values
        advantage = (self.low(self.critics, s, a) - v).detach()
        if self.c.filter == "binary":
            return (advantage > 0).double()
        return (advantage / self.c.temperature).exp().clamp(max=self.c.max_weight)

    def update(self, batch, noise) -> dict:
        c = self.c
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        next_noise, noises = tensor(noise.next_actions), tensor(noise.actions)
        a_next = self.draw(self.target_policy, s_next, next_noise)
        y = (r + c.discount * (1 - d) * self.low(self.targets, s_next, a_next)).detach()
        loss = 0.0
        for critic in self.critics:
            error = layers(critic, torch.cat([s, a], 1))[:, 0] - y
            factor = torch.where(error > 0, c.pessimism, 1 - c.pessimism)
            loss = loss + (2 * factor * error**2).mean()
        set_grads(self.critic_optimizer, loss)
        if c.order == "critic_first":
            self.critic_optimizer.step()
        weight = self.weight(s, a, noises)
        log_prob = self.distribution(self.policy, s).log_prob(self.inside(a)).sum(1)
        policy_loss = -(weight * log_prob).mean()
        set_grads(self.policy_optimizer, policy_loss)
        self.policy_optimizer.step()
        if c.order == "joint":
            self.critic_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        polyak(self.target_policy, self.policy, c.polyak)
        return {"critic_loss": loss.item(), "policy_loss": policy_loss.item()}

    def inside(self, a):
        limit = 1 - 2**-20
        return a.clamp(-limit, limit) if self.c.policy == "squashed" else a


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_equal_the_equations(version, tolerance):
    agent = make(**version)
    scramble(agent.policy, agent.critic, agent.target_policy, agent.target_critic)
    theirs = [Reference(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    for batch, noise in zip(make_batches(5), make_noises(agent, 5), strict=True):
        metrics = agent.update(batch, noise)
        for s, their in enumerate(theirs):
            losses = their.update(one_seed(batch, s), CRRNoise(*(x[s].double() for x in noise)))
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), tolerance)


@pytest.mark.parametrize(
    ("own", "weights"),
    [
        ({"filter": "binary"}, (1.0, 0.0, 0.0)),
        ({"filter": "exp", "temperature": 0.5}, (math.exp(1.0), math.exp(-1.0), 1.0)),
        ({"filter": "exp", "temperature": 0.5, "max_weight": 2.0}, (2.0, math.exp(-1.0), 1.0)),
        (
            {"filter": "exp", "temperature": 0.5, "baseline": "max"},
            (1.0, math.exp(-2.0), math.exp(-1.0)),
        ),
    ],
)
def test_policy_loss_by_hand(own, weights):
    """Q = a; the policy draws -0.5 and 0.5, mean 0; the data's actions are 0.5, -0.5 and 0."""
    agent = make(1, 1, 1, hidden_layers=0, samples=2, **own)
    set_linear(agent.policy.body, [[0.0, 0.0]], [0.0, 0.0])  # N(0, 1)
    set_linear(agent.critic, [[0.0, 1.0]], [0.0])
    noise = torch.tensor([[[[-0.5]] * 3, [[0.5]] * 3]]).view(1, 2, 3, 1)
    loss, metrics = agent.policy_loss(tiny(s=[[0]] * 3, a=[[0.5], [-0.5], [0.0]]), noise)
    log_probs = [-0.5 * x**2 - 0.5 * math.log(2 * math.pi) for x in (0.5, 0.5, 0.0)]
    expected = -sum(w * p for w, p in zip(weights, log_probs, strict=True)) / 3
    assert loss.tolist() == pytest.approx([expected])
    assert metrics["weight"].tolist() == pytest.approx([sum(weights) / 3])


@pytest.mark.parametrize(
    ("pessimism", "expected"), [(0.5, (4 + 1) / 2), (0.7, (1.4 * 4 + 0.6 * 1) / 2)]
)
def test_critic_loss_by_hand(pessimism, expected):
    """Q = 0 at both rows, their targets -2 and 1: an error above the target and one below."""
    agent = make(1, 1, 1, hidden_layers=0, pessimism=pessimism)
    set_linear(agent.critic, [[0.0, 0.0]], [0.0])
    batch = tiny(s=[[0], [0]], a=[[0], [0]], r=[-2, 1], d=[1, 1])
    assert agent.critic_loss(batch, torch.zeros(1, 2, 1))[0].tolist() == pytest.approx([expected])


def test_pessimisms_fixed_point_is_an_expectile():
    """Of targets N(0, 1) and weights 0.7 and 0.3 it is -0.3372, where the derivative is 0."""
    agent = make(1, 1, 1, hidden_layers=0, pessimism=0.7, critics=1)
    targets = np.random.default_rng(0).normal(size=200_001)
    zeros, ends = np.zeros((len(targets), 1)), np.ones(len(targets)).tolist()
    set_linear(agent.critic, [[0.0, 0.0]], [-0.3372])
    batch = tiny(s=zeros, a=zeros, r=targets, d=ends)
    loss, _ = agent.critic_loss(batch, torch.zeros(1, len(targets), 1))
    (slope,) = torch.autograd.grad(loss.sum(), agent.critic.layers[0].bias)
    assert slope.item() == pytest.approx(0, abs=1e-3)


class AsAwac(torch.nn.Module):
    """AWAC's policy under the names that CRR calls."""

    def __init__(self, *sizes_and_copies, **others):
        super().__init__()
        sizes, _, rngs = sizes_and_copies
        self.own = awac.unsquashed(
            awac.Config(hidden_width=WIDTH, hidden_layers=2),
            Spec(sizes[0], sizes[-1], rngs),
            bound=lambda mean: mean,
        )

    def draw(self, observations, noise):
        return self.own.draw(observations, noise)

    def sample_many(self, observations, noise):
        return self.draw(observations, noise[:, 0])[:, None], None

    def log_prob(self, observations, actions):
        return self.own.log_prob(observations, actions)


def test_with_one_sample_and_the_policy_as_its_own_target_it_is_awac_bit_for_bit(monkeypatch):
    monkeypatch.setattr(crr, "GaussianOfState", AsAwac)
    shared = {
        "hidden_width": WIDTH,
        "hidden_layers": 2,
        "temperature": 0.5,
        "max_weight": 100.0,
    }
    mine = make(**shared, filter="exp", samples=1, critics=2)
    their = awac.AWAC(awac.Config(**shared, polyak=0.1, discount=0.9), Spec(O, A, generators()))
    for a, b in (
        (mine.policy.own, their.policy),
        (mine.critic, their.critic),
        (mine.target_critic, their.target),
    ):
        a.load_state_dict(b.state_dict())
    for batch, noise in zip(make_batches(5), make_noises(mine, 5), strict=True):
        mine.target_policy.load_state_dict(mine.policy.state_dict())
        found = mine.update(batch, noise)
        other = their.update(batch, awac.PolicyNoise(noise.next_actions, noise.actions[:, 0]))
        assert all(torch.equal(found[name], other[name]) for name in other)
    for a, b in (
        (mine.policy.own, their.policy),
        (mine.critic, their.critic),
        (mine.target_critic, their.target),
    ):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_at_a_large_temperature_it_clones_bit_for_bit():
    agent = make(filter="exp", temperature=1e18)
    batch, noise = make_batches(1)[0], make_noises(agent, 1)[0]
    cloning = -agent.policy.log_prob(batch.observations, batch.actions).mean(-1)
    assert torch.equal(agent.policy_loss(batch, noise.actions)[0], cloning)


def test_it_acts_by_the_mean_within_the_bounds():
    for policy in ("gaussian", "squashed"):
        agent = make(policy=policy)
        states = 50 * torch.randn(SEEDS, B, O)
        means = agent.policy.body(states).chunk(2, -1)[0]
        torch.testing.assert_close(agent.act(states), torch.tanh(means))
        assert agent.explore(states, torch.full((SEEDS, B, A), 99.0)).abs().max() <= 1
        assert agent.log_prob(states, agent.act(states)).shape == (SEEDS, B)


def test_first_weights_of_crr_plus_are_offbenchs():
    cfg = cell("crr_plus", "d4rl/hopper-medium-v2")
    agent = CRR(cfg.algo, Spec(17, 6, generators(1)))
    for network in (agent.policy.body, agent.critic):
        *hidden, output = network.layers
        for layer in hidden:
            assert layer.weight.std().item() == pytest.approx(
                layer.weight.shape[-2] ** -0.5, rel=0.05
            )
        bound = math.sqrt(3 * 0.01 / 256)
        assert 0.97 * bound < output.weight.abs().max() <= bound
        assert not any(layer.bias.any() for layer in network.layers)
        assert [norm.eps for norm in network.norms] == [1e-6] * 2 and network.norm_first
    assert agent.policy.multiplier().item() == 1.0 and agent.policy.offset().item() == -1.0


def test_settings_are_offbenchs_and_d3rlpys():
    """configs/crr_cfgs.py, base_cfgs.py, args.py and mf_trainer.py at 4cd9efc; crr.py at 38c34b6."""
    (plus,), (maze,), (plain,) = (
        cells([f"algo={algo}", f"task=d4rl/{task}"])
        for algo, task in (
            ("crr_plus", "hopper-medium-v2"),
            ("crr_plus", "antmaze-umaze-v2"),
            ("crr", "hopper-medium-v0"),
        )
    )
    expected = PLUS | {"samples": 50, "temperature": 1.0, "max_weight": 20.0, "polyak": 0.005}
    expected |= {"policy_lr": 1e-4, "critic_lr": 3e-4, "batch_size": 256, "discount": 0.99}
    expected |= {"hidden_layers": 2, "hidden_width": 256, "baseline": "mean", "log_std_max": 2.0}
    assert {name: getattr(plus.algo, name) for name in expected} == expected
    assert (plus.label, plus.steps, plus.eval.every, plus.eval.episodes) == (
        "CRR+",
        1_200_000,
        10_000,
        100,
    )
    assert plus.algo.data.clip_actions == 0.999 and not plus.algo.data.normalize_states
    assert (maze.algo.data.reward_scale, maze.algo.data.reward_shift) == (
        4.0,
        -2.0,
    )  # (r - 0.5) * 4
    own = {"filter": "binary", "samples": 4, "critics": 1, "policy_lr": 3e-4, "critic_lr": 3e-4}
    own |= {"baseline": "mean", "polyak": 0.005, "batch_size": 256, "policy": "gaussian"}
    assert {name: getattr(plain.algo, name) for name in own} == own
    assert (plain.steps, plain.algo.data.normalize_states) == (500_000, False)
