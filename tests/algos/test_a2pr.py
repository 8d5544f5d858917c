"""A2PR against its transcription, its anchor's four cases, and TD3+BC where it imitates the data."""

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
)
from reference_soft import adam, joined, leaves, mlp, numbers, polyak, q, set_grads
from small import flatten

from corerl.algos import td3_bc
from corerl.algos.a2pr import A2PR, Config
from corerl.algos.td3_bc import TD3BC
from corerl.nn.learner import Spec

SMALL = {"hidden_width": WIDTH, "polyak": 0.1, "discount": 0.9, "hidden_layers": 3}


def make(**more) -> A2PR:
    return A2PR(Config(**SMALL | {"vae_width": 6} | more), Spec(O, A, generators()))


def make_latents(count: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(5)
    return list(as_tensor(rng.normal(size=(count, SEEDS, 2, B, 2 * A))))


class Reference:
    """The authors' step: critics, V, auto-encoder and, every second time, the actor."""

    def __init__(self, actor, critics, target_actor, target_critics, value, vae, settings):
        self.c = settings
        self.actor, self.target_actor = leaves(actor), leaves(target_actor)
        self.critics, self.targets = ([leaves(x) for x in n] for n in (critics, target_critics))
        self.value, self.vae = leaves(value), leaves(vae)
        self.optimizers = {
            "actor": adam(settings.lr, self.actor),
            "critic": adam(settings.lr, joined(self.critics)),
            "value": adam(settings.lr, self.value),
            "vae": adam(settings.vae_lr, self.vae),
        }

    def networks(self) -> tuple:
        critics, targets = ([numbers(x) for x in n] for n in (self.critics, self.targets))
        actors = numbers(self.actor), critics, numbers(self.target_actor), targets
        return *actors, numbers(self.value), numbers(self.vae)

    def step(self, name: str, loss) -> None:
        set_grads(self.optimizers[name], loss)
        self.optimizers[name].step()

    def through(self, s, a, z):
        """The action that comes out of the auto-encoder, mean and std of its latent."""
        mean, log_std = mlp(self.vae, torch.cat([s, a], 1), "encoder.").chunk(2, 1)
        std = log_std.clamp(-4, 15).exp()
        z = mean + std * z
        return torch.tanh(mlp(self.vae, torch.cat([s, z], 1), "decoder.")), mean, std

    def learn(self, batch, noise, latents) -> dict:
        c = self.c
        s, a, r, s_next, d = (torch.as_tensor(x) for x in batch[:5])
        jitter = (noise * c.policy_noise).clamp(-c.noise_clip, c.noise_clip)
        with torch.no_grad():
            a_next = (torch.tanh(mlp(self.target_actor, s_next)) + jitter).clamp(-1, 1)
            lowest = torch.minimum(*(q(t, s_next, a_next) for t in self.targets))
            y = r + c.discount * (1 - d) * lowest
        critic_loss = sum(((q(one, s, a) - y) ** 2).mean() for one in self.critics)
        self.step("critic", critic_loss)
        with torch.no_grad():
            lowest = torch.minimum(*(q(one, s_next, a_next) for one in self.critics))
            y = torch.minimum(y, r + c.discount * (1 - d) * lowest)
        value = mlp(self.value, s)[:, 0]
        value_loss = ((value - y) ** 2).mean()
        self.step("value", value_loss)
        value = value.detach()
        rebuilt, mean, std = self.through(s, a, latents[0])
        good = c.vae_weight * (q(self.critics[0], s, a) > value).double()[:, None]
        kl = -0.5 * (1 + torch.log(std**2) - mean**2 - std**2).mean()
        vae_loss = (good.detach() * (rebuilt - a) ** 2).mean() + 0.5 * kl
        self.step("vae", vae_loss)
        self.kept = s, a, value, latents[1]
        losses = {"critic_loss": critic_loss, "value_loss": value_loss, "vae_loss": vae_loss}
        return {name: loss.item() for name, loss in losses.items()}

    def improve(self) -> dict:
        c, (s, a, value, z) = self.c, self.kept
        pi = torch.tanh(mlp(self.actor, s))
        mine = q(self.critics[0], s, pi)
        rebuilt = self.through(s, pi, z)[0]
        gain_pi = q(self.critics[0], s, rebuilt) - value
        gain_data = q(self.critics[0], s, a) - value
        anchor = rebuilt * (gain_pi >= gain_data)[:, None] + a * (gain_data > gain_pi)[:, None]
        counts = c.mask * ((gain_pi >= 0) + (gain_data > 0))  # true + true is true
        imitation = ((pi - anchor) ** 2 * counts[:, None]).mean()
        actor_loss = imitation - c.alpha / mine.abs().mean().detach() * mine.mean()
        self.step("actor", actor_loss)
        polyak(joined(self.targets), joined(self.critics), c.polyak)
        polyak(self.target_actor, self.actor, c.polyak)
        return {"actor_loss": actor_loss.item(), "imitation_loss": imitation.item()}


def networks(agent: A2PR, seed: int) -> tuple:
    return *actor_critic(agent, seed), net(agent.value, seed), net(agent.vae, seed)


@pytest.mark.parametrize("weights", [{}, {"mask": 3.0, "vae_weight": 1.5, "alpha": 1.0}])
def test_five_updates_equal_the_equations(weights, tolerance):
    agent = make(**weights)
    parts = (agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    scramble(*parts, agent.value, agent.vae)
    references = [Reference(*networks(agent, s), agent.cfg) for s in range(SEEDS)]
    batches, noises, latents = make_batches(10), make_noises(10), make_latents(10)
    better = []
    for i in range(0, 10, 2):
        rows = slice(i, i + 2)
        metrics = agent.update(batches[rows], noises[rows], latents[rows])
        better.append(metrics["rebuilt_better"])
        for s, theirs in enumerate(references):
            drawn = zip(batches[rows], noises[rows], latents[rows], strict=True)
            for batch, noise, z in drawn:
                losses = theirs.learn(one_seed(batch, s), noise[s].double(), z[s].double())
            assert_losses(metrics, s, losses | theirs.improve(), tolerance)
    for s, theirs in enumerate(references):
        assert_networks(networks(agent, s), theirs.networks(), tolerance)
    assert 0 < torch.stack(better).mean() < 1  # both anchors were tried


OF_DATA = {"anchor": "data", "mask": 1.0}


def test_towards_the_data_it_is_td3_bc_to_the_bit():
    agent = make(**OF_DATA)
    plain = TD3BC(td3_bc.Config(**SMALL, actor_layers=3), Spec(O, A, generators()))
    batches, noises, latents = make_batches(10), make_noises(10), make_latents(10)
    for i in range(0, 10, 2):
        rows = slice(i, i + 2)
        agent.update(batches[rows], noises[rows], latents[rows])
        plain.update(batches[rows], noises[rows])
    assert flatten(plain.state_dict()).items() <= flatten(agent.state_dict()).items()
    other = make(mask=1.0)
    other.update(batches[:2], noises[:2], latents[:2])
    assert flatten(other.actor.state_dict()) != flatten(plain.actor.state_dict())


def test_towards_the_data_its_whole_run_is_td3_bcs():
    mine = tiny.Short(tiny.settings("a2pr", **OF_DATA), updates=10)
    plain = tiny.Short(tiny.settings("td3_bc", hidden_layers=4, actor_layers=3), updates=10)
    for name in ("agent", "buffer", "noise"):
        theirs = flatten(plain.parts[name].state_dict())
        assert theirs.items() <= flatten(mine.parts[name].state_dict()).items()


def test_the_anchor_in_its_four_cases(monkeypatch):
    """V = 0, and (Q of the rebuilt action, Q of the data's): the better one, unless both are below V."""
    agent = make(mask=0.5)
    pairs = torch.tensor(
        [[2.0, 1.0], [1.0, 2.0], [-1.0, -2.0], [-2.0, -1.0], [1.0, -1.0], [0.0, 0.0]]
    )
    batch = make_batches(1)[0]._replace(
        observations=torch.zeros(1, 6, O), actions=torch.zeros(1, 6, A)
    )

    def critic(states, actions):
        is_data = (actions == 0).all(-1).long()
        return torch.gather(pairs, 1, is_data.reshape(6, 1)).reshape(1, 1, 6)

    monkeypatch.setattr(agent, "_rebuilt", lambda *x: (torch.ones(1, 6, A), None))
    object.__setattr__(agent, "critic", critic)
    anchor, counts, _ = agent.better(batch, batch.actions, torch.zeros(1, 6), None)
    assert anchor[0, :, 0].tolist() == [1, 0, 1, 0, 1, 1]
    assert counts[0].tolist() == [0.5, 0.5, 0, 0, 0.5, 0.5]


def test_the_value_is_below_the_critics_next_values():
    """Critics that are 1 and 2 and targets that are 3 and 0.5, no reward: V learns 0.9 x 0.5."""
    agent = make()
    with torch.no_grad():
        for part in (agent.critic, agent.target_critic, agent.value):
            for p in part.parameters():
                p.zero_()
        for part, values in ((agent.critic, [1.0, 2.0]), (agent.target_critic, [3.0, 0.5])):
            part.layers[-1].bias[:, :, 0, 0] = torch.tensor(values)
    batch = make_batches(1)[0]
    batch = batch._replace(rewards=0 * batch.rewards, terminated=0 * batch.terminated)
    loss = agent.value_loss(batch, make_noises(1)[0])[0]
    torch.testing.assert_close(loss, torch.full((SEEDS,), 0.45**2))
