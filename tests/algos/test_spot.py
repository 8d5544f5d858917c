"""SPOT against a transcription of its authors' code, by hand, and where it is TD3."""

import math

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
    make_noises,
    net,
    one_seed,
    scramble,
    set_linear,
    tiny,
)
from reference_pref import make_keys, masks
from reference_soft import adam, leaves, mlp, numbers, polyak, q, set_grads, tensor
from small import cell
from torch.distributions import Normal, kl_divergence

from corerl.algos import td3_bc
from corerl.algos.spot import SPOT, Config, Draws, Online
from corerl.nn.learner import Spec

SMALL = {
    "batch_size": B,
    "vae_steps": 6,
    "hidden_width": WIDTH,
    "vae_width": 7,
    "polyak": 0.1,
    "discount": 0.9,
    "weight": 0.3,
}
VERSIONS = {
    "authors on Gym": {},
    "AntMaze": {"dropout": 0.0, "actor_lr": 1e-4, "kl_weight": 0.8},
    "importance-weighted": {"density": "iwae", "samples": 3, "policy_delay": 3},
    "two latents, Q as it is": {"samples": 2, "normalize_q": False, "policy_delay": 1},
}


def make(observations: int = O, actions: int = A, seeds: int = SEEDS, **more) -> SPOT:
    return SPOT(Config(**SMALL | more), Spec(observations, actions, generators(seeds)))


def make_draws(cfg: Config, count: int) -> list[Draws]:
    rng = np.random.default_rng(3)
    latents = as_tensor(rng.normal(size=(count, SEEDS, cfg.samples, B, 2 * A)))
    drawn = zip(make_noises(count), latents, strict=True)
    if not cfg.dropout:
        return [Draws(*normal) for normal in drawn]
    keys = make_keys(count, 2 * cfg.hidden_layers)
    return [Draws(*normal, *k.chunk(2, 1)) for normal, k in zip(drawn, keys, strict=True)]


def of_seed(draws: Draws, seed: int) -> Draws:
    return Draws(
        *(x if x is None else x[seed].double() if x.is_floating_point() else x[seed] for x in draws)
    )


def parts(agent: SPOT, seed: int) -> tuple:
    return *actor_critic(agent, seed), net(agent.vae, seed)


class Reference:
    """thuml/SPOT: one network, one latent and one seed at a time; densities of torch.distributions."""

    def __init__(self, cfg, actor, critics, target_actor, target_critics, vae):
        self.c, self.actor, self.target_actor = cfg, leaves(actor), leaves(target_actor)
        self.critics = [leaves(x) for x in critics]
        self.targets = [leaves(x) for x in target_critics]
        self.vae = leaves(vae)
        self.actor_optimizer = adam(cfg.actor_lr, self.actor)
        self.critic_optimizer = adam(cfg.critic_lr, *self.critics)
        self.vae_optimizer = adam(cfg.vae_lr, self.vae)

    def networks(self) -> tuple:
        critics, targets = ([numbers(n) for n in nets] for nets in (self.critics, self.targets))
        return numbers(self.actor), critics, numbers(self.target_actor), targets, numbers(self.vae)

    def keep(self, keys):
        return None if keys is None else masks(keys, B, self.c.dropout)

    def posterior(self, s, a) -> Normal:
        mean, log_std = mlp(self.vae, torch.cat([s, a], 1), "encoder.").chunk(2, 1)
        return Normal(mean, log_std.clamp(-4, 15).exp())

    def decode(self, s, z):
        return torch.tanh(mlp(self.vae, torch.cat([s, z], 1), "decoder."))

    def elbo_loss(self, s, a, noises):
        posterior = self.posterior(s, a)
        prior = Normal(torch.zeros_like(posterior.mean), torch.ones_like(posterior.mean))
        decoded = [self.decode(s, posterior.mean + posterior.stddev * x) for x in noises]
        error = sum(((u - a) ** 2).mean(1) for u in decoded) / len(noises)
        return error + self.c.kl_weight * kl_divergence(posterior, prior).mean(1)

    def iwae_loss(self, s, a, noises):
        posterior, ratios = self.posterior(s, a), []
        for noise in noises:
            z = posterior.mean + posterior.stddev * noise
            decoder = Normal(self.decode(s, z), math.sqrt(self.c.kl_weight / 4))
            ratio = decoder.log_prob(a).sum(1) + Normal(0.0, 1.0).log_prob(z).sum(1)
            ratios.append((ratio - posterior.log_prob(z).sum(1)).exp())
        return -(sum(ratios) / len(ratios)).log()

    def fit(self, batch, draws) -> dict:
        s, a = tensor(batch.observations), tensor(batch.actions)
        loss = self.elbo_loss(s, a, draws.latents[:1]).mean()
        set_grads(self.vae_optimizer, loss)
        self.vae_optimizer.step()
        return {"vae_loss": loss.item()}

    def criticise(self, batch, draws, discount) -> dict:
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        c = self.c
        with torch.no_grad():
            noise = (draws.next_actions * c.policy_noise).clamp(-c.noise_clip, c.noise_clip)
            a_next = torch.tanh(mlp(self.target_actor, s_next, keep=self.keep(draws.target_keys)))
            a_next = (a_next + noise).clamp(-1, 1)
            y = torch.minimum(*(q(net, s_next, a_next) for net in self.targets))
            y = r + discount * (1 - d) * y
        loss = sum(((q(net, s, a) - y) ** 2).mean() for net in self.critics)
        set_grads(self.critic_optimizer, loss)
        self.critic_optimizer.step()
        return {"critic_loss": loss.item()}

    def improve(self, batch, draws, share) -> dict:
        s, c = tensor(batch.observations), self.c
        pi = torch.tanh(mlp(self.actor, s, keep=self.keep(draws.keys)))
        value = q(self.critics[0], s, pi)
        estimate = self.elbo_loss if c.density == "elbo" else self.iwae_loss
        scale = 1 / value.abs().mean().detach() if c.normalize_q else 1.0
        loss = -scale * value.mean() + c.weight * share * estimate(s, pi, draws.latents).mean()
        set_grads(self.actor_optimizer, loss)
        self.actor_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        polyak(self.target_actor, self.actor, c.polyak)
        return {"actor_loss": loss.item()}


@pytest.mark.parametrize("online", [None, (0.5, 0.995)], ids=["offline", "online"])
@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_five_updates_of_either_phase_equal_the_equations(version, online, tolerance):
    agent = make(**version)
    scramble(agent.actor, agent.critic, agent.target_actor, agent.target_critic, agent.vae)
    theirs = [Reference(agent.cfg, *parts(agent, s)) for s in range(SEEDS)]
    delay = agent.cfg.policy_delay
    batches, draws = make_batches(10 * delay), make_draws(agent.cfg, 10 * delay)
    share, discount = online or (1.0, agent.cfg.discount)
    changed = None if online is None else Online(*map(as_tensor, online))
    for first in range(0, 10 * delay, delay):
        rows, fits = slice(first, first + delay), first < 5 * delay
        if fits:
            metrics = agent.fit(batches[rows], draws[rows])
        else:
            metrics = agent.update(batches[rows], draws[rows], changed)
        for s, their in enumerate(theirs):
            for batch, drawn in zip(batches[rows], draws[rows], strict=True):
                own = one_seed(batch, s), of_seed(drawn, s)
                losses = their.fit(*own) if fits else their.criticise(*own, discount)
            losses |= {} if fits else their.improve(*own, share)
            assert_losses(metrics, s, losses, tolerance)
    for s, their in enumerate(theirs):
        assert_networks(parts(agent, s), their.networks(), tolerance)


def constant_vae(agent: SPOT, mean: float, log_std: float, action: float) -> None:
    """Every latent is N(mean, exp(log_std)^2), and every action that is decoded is `action`."""
    with torch.no_grad():
        for p in agent.vae.parameters():
            p.zero_()
        last = agent.vae.encoder.layers[-1].bias
        last[..., : last.shape[-1] // 2], last[..., last.shape[-1] // 2 :] = mean, log_std
        agent.vae.decoder.layers[-1].bias.fill_(math.atanh(action))


def test_the_two_densities_by_hand():
    """One action of 0.5, decoded as 0.1; two latents N(0.5, e^2), drawn at plus and minus one deviation."""
    bound, weighted = make(1, 1, 1), make(1, 1, 1, density="iwae")
    noise, states, action = (
        torch.tensor([[[[1.0, -1.0]]]]),
        torch.zeros(1, 1, 1),
        torch.full((1, 1, 1), 0.5),
    )
    for agent in (bound, weighted):
        constant_vae(agent, 0.5, 1.0, 0.1)
    # The error is 0.4^2, and the divergence (0.25 + e^2 - 1) / 2 - 1 for each latent: 0.16 + 0.5 * that.
    divergence = (0.25 + math.e**2 - 1) / 2 - 1
    found = bound.minus_density(states, action, noise).item()
    assert found == pytest.approx(0.16 + 0.5 * divergence)
    # The decoder's variance is 0.5 / 4. The latents are 0.5 + e and 0.5 - e.
    decoder = -0.16 / (2 * 0.125) - 0.5 * math.log(2 * math.pi * 0.125)
    prior = -((0.5 + math.e) ** 2 + (0.5 - math.e) ** 2) / 2
    posterior = -0.5 - 0.5 - 2 * 1.0
    expected = -(decoder + prior - posterior)
    exact = weighted.minus_density(states, action, noise).item()
    assert exact == pytest.approx(expected)
    # Deviations of plus and minus one have a normal's two moments, so that both are one number, scaled.
    scale, constant = 2 * 1 / 0.5, 0.5 * math.log(2 * math.pi * 0.125)
    assert exact == pytest.approx(scale * found + constant)


def test_more_latents_are_averaged_as_probabilities():
    agent = make(1, 1, 1, density="iwae", samples=2)
    noise, states, action = torch.randn(1, 2, 3, 2), torch.randn(1, 3, 1), torch.rand(1, 3, 1)
    each = [agent.minus_density(states, action, noise[:, i : i + 1]) for i in (0, 1)]
    both = -torch.log(torch.exp(-torch.stack(each)).mean(0))
    torch.testing.assert_close(agent.minus_density(states, action, noise), both)


@pytest.mark.parametrize(
    ("normalize_q", "expected"), [(True, 0.3 * 0.16 - 0.5), (False, 0.048 - 1)]
)
def test_actor_loss_by_hand(normalize_q, expected):
    """Q1 = s whatever Q2 is, at s = 3 and -1: mean 1, mean size 2. The density: one error of 0.4^2."""
    agent = make(1, 1, 1, hidden_layers=0, dropout=0.0, normalize_q=normalize_q)
    set_linear(agent.actor, [0], [math.atanh(0.5)])
    set_linear(agent.critic, [[1, 0], [0, 0]], [0, -9])
    constant_vae(agent, 0.0, 0.0, 0.1)  # the prior itself
    draws = Draws(torch.zeros(1, 2, 1), torch.ones(1, 1, 2, 2))
    loss, metrics = agent.actor_loss(tiny(s=[[3], [-1]], a=[[0], [0]]), draws)
    assert loss.tolist() == pytest.approx([expected])
    assert metrics["minus_density"].tolist() == pytest.approx([0.16])


def test_without_the_density_it_is_td3_bc_without_imitation():
    """Bit for bit: TD3+BC with alpha 1 where its actor already does what the data does."""
    own = {"hidden_width": WIDTH, "policy_delay": 1}
    mine = make(**own, weight=0.0, dropout=0.0, polyak=0.005, discount=0.99)
    theirs = td3_bc.TD3BC(td3_bc.Config(**own, alpha=1.0), Spec(O, A, generators()))
    for batch, draws in zip(make_batches(5), make_draws(mine.cfg, 5), strict=True):
        mine.update([batch], [draws])
        theirs._critic_step(batch, draws.next_actions)
        imitated = torch.tanh(theirs.actor(batch.observations)).detach()
        theirs._improve(batch._replace(actions=imitated))
        for name in ("actor", "critic", "target_actor", "target_critic"):
            pairs = zip(
                getattr(mine, name).parameters(), getattr(theirs, name).parameters(), strict=True
            )
            assert all(torch.equal(p, q) for p, q in pairs), name


def test_each_phase_leaves_the_others_networks_alone():
    agent = make(policy_delay=1)
    batch, draws = make_batches(1), make_draws(agent.cfg, 1)
    names = ("actor", "critic", "target_actor", "target_critic", "vae")

    def moved(step) -> set[str]:
        before = {name: [p.clone() for p in getattr(agent, name).parameters()] for name in names}
        step(batch, draws)
        pairs = {n: zip(before[n], getattr(agent, n).parameters(), strict=True) for n in names}
        return {n for n in names if not all(torch.equal(p, q) for p, q in pairs[n])}

    assert moved(agent.fit) == {"vae"}
    assert moved(agent.update) == set(names) - {"vae"}


def test_optimizers_that_restart_are_new_ones():
    agent, fresh = make(), make()
    delay = agent.cfg.policy_delay
    agent.update(make_batches(delay), make_draws(agent.cfg, delay))
    agent.restart_optimizers()
    for name in ("actor_optimizer", "critic_optimizer"):
        one, other = (getattr(x, name).state_dict() for x in (agent, fresh))
        assert one["count"] == other["count"]
        assert all(not x.any() for x in (*one["means"], *one["squares"]))


def test_exploration_is_clipped_noise_within_the_bounds():
    agent = make(1, 1, 1, exploration=0.1, noise_clip=0.25, hidden_layers=0)
    set_linear(agent.actor, [0], [math.atanh(0.8)])
    noise = torch.tensor([[[1.0], [-9.0], [9.0]]])
    found = agent.explore(torch.zeros(1, 3, 1), noise).flatten().tolist()
    assert found == pytest.approx([0.9, 0.55, 1.0])


def test_first_weights_are_torchs_and_outputs_as_small_as_on_antmaze():
    cfg = cell("spot", "d4rl/antmaze-umaze-v2")
    agent = SPOT(cfg.algo, Spec(29, 8, generators(1)))
    for network, bound in ((agent.actor, 1e-3), (agent.critic, 3e-3)):
        *hidden, output = network.layers
        for layer in hidden:
            assert layer.weight.abs().max() <= layer.weight.shape[-2] ** -0.5
        assert 0.9 * bound < output.weight.abs().max() <= bound
        assert output.bias.abs().max() <= bound
    assert agent.vae.encoder.layers[-1].weight.shape[-2:] == (750, 2 * 16)
