"""RO2O against its transcription, its terms by hand, and SAC-N where its weights are 0."""

import numpy as np
import pytest
import reference_soft
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
)
from reference_soft import mlp, q
from small import flatten
from torch.distributions import Normal, kl_divergence
from wording import refused

from corerl.algos.edac import EDAC, EDACNoise
from corerl.algos.edac import Config as EDACConfig
from corerl.algos.ro2o import RO2O, Config, Draws, perturbed
from corerl.nn.learner import Spec
from corerl.training.preprocessing import Preprocess

N = 4
SMALL = {
    "hidden_width": WIDTH,
    "hidden_layers": 2,
    "polyak": 0.1,
    "discount": 0.9,
    "critics": 3,
    "policy_lr": 1e-3,
    "critic_lr": 2e-3,
    "alpha_lr": 4e-3,
}
NONE = {"policy_weight": 0.0, "value_weight": 0.0, "unseen_weight": 0.0}


def make(**more) -> RO2O:
    wide = {"policy_radius": 0.3, "value_radius": 0.2, "unseen_radius": 0.1, "perturbations": N}
    return RO2O(Config(**SMALL | wide | more), Spec(O, A, generators()))


def draws(count: int) -> list[tuple[EDACNoise, Draws]]:
    rng = np.random.default_rng(3)

    def one(k: float):
        noise = as_tensor(rng.normal(size=(SEEDS, 3, B, A)))
        offsets = as_tensor(rng.random((SEEDS, 3, N, O)))
        unseen = as_tensor(rng.normal(size=(SEEDS, N * B, A)))
        return EDACNoise(*noise.unbind(1)), Draws(offsets, unseen, torch.tensor(k))

    return [one(1 / (1 + i)) for i in range(count)]


class Reference(reference_soft.EDAC):
    """The authors' loops: a list of perturbed states, critic by critic, torch's own KL."""

    def update(self, batch, noises, offsets, unseen, k) -> dict:
        c = self.c
        s, a, r, s_next, d = (torch.as_tensor(x) for x in batch[:5])
        alpha_loss, pi = self.log_alpha["value"], self.distribution
        log_pi = reference_soft.draw(pi, s, noises[0])[1].detach()
        reference_soft.set_grads(self.alpha_optimizer, -alpha_loss * (log_pi - A).mean())
        self.alpha_optimizer.step()
        alpha = self.log_alpha["value"].exp().detach()

        actions, log_pi = reference_soft.draw(pi, s, noises[1])
        policy_loss = (alpha * log_pi - self.minimum(self.critics, s, actions)).mean()
        here, kls = self.normal(s), []
        for u in offsets[0]:
            there = self.normal(s + c.policy_radius * (2 * u - 1))
            kls.append((kl_divergence(here, there) + kl_divergence(there, here)).sum(1))
        policy_roughness = torch.stack(kls).max(0).values.mean()
        reference_soft.set_grads(
            self.policy_optimizer, policy_loss + c.policy_weight * policy_roughness
        )
        self.policy_optimizer.step()

        with torch.no_grad():
            a_next, log_pi_next = reference_soft.draw(pi, s_next, noises[2])
            value = self.minimum(self.targets, s_next, a_next) - alpha * log_pi_next
            y = r + c.discount * (1 - d) * value
        bellman = sum(((q(net, s, a) - y) ** 2).mean() for net in self.critics)
        changes = []
        for u in offsets[1]:
            near, per_critic = s + c.value_radius * (2 * u - 1), []
            for one in self.critics:
                change = q(one, near, a) - q(one, s, a)
                per_critic.append(torch.where(change > 0, 0.8 * change**2, 0.2 * change**2))
            changes.append(sum(per_critic) / c.critics)
        value_roughness = torch.stack(changes).max(0).values.mean()
        pulls = []
        for u, drawn in zip(offsets[2], unseen.view(N, B, A), strict=True):
            near = s + c.unseen_radius * (2 * u - 1)
            with torch.no_grad():
                actions = reference_soft.draw(pi, near, drawn)[0]
            values = torch.stack([q(one, near, actions) for one in self.critics])
            target = (values - k * values.std(0)).detach()
            pulls.append((values - target) ** 2)
        unseen_loss = torch.stack(pulls).mean()
        loss = bellman + c.value_weight * value_roughness + c.unseen_weight * unseen_loss
        reference_soft.set_grads(self.critic_optimizer, loss)
        self.critic_optimizer.step()
        reference_soft.polyak(
            reference_soft.joined(self.targets), reference_soft.joined(self.critics), c.polyak
        )
        losses = {"bellman_loss": bellman, "unseen_loss": unseen_loss, "policy_loss": policy_loss}
        losses |= {"policy_roughness": policy_roughness, "value_roughness": value_roughness}
        return {name: loss.item() for name, loss in losses.items()}

    def normal(self, s) -> Normal:
        mean, log_std = mlp(self.policy, s, "body.").chunk(2, 1)
        return Normal(mean, log_std.clamp(self.c.log_std_min, self.c.log_std_max).exp())


def parts(agent: EDAC, seed: int) -> tuple:
    heads = range(agent.cfg.critics)
    critics, targets = ([net(m, seed, i) for i in heads] for m in (agent.critic, agent.target))
    return net(agent.policy, seed), critics, targets, net(agent.log_alpha, seed)["value"]


@pytest.mark.parametrize("weights", [{}, {"value_weight": 3.0, "unseen_weight": 2.0}])
def test_five_updates_equal_the_equations(weights, tolerance):
    agent = make(**weights)
    scramble(agent.policy, agent.critic, agent.target, agent.log_alpha)
    references = [Reference(*parts(agent, s), agent.cfg) for s in range(SEEDS)]
    for batch, (noise, drawn) in zip(make_batches(5), draws(5), strict=True):
        metrics = agent.update(batch, noise, drawn)
        for s, theirs in enumerate(references):
            mine = (x[s].double() for x in (torch.stack(noise, 1), drawn.offsets, drawn.noise))
            losses = theirs.update(one_seed(batch, s), *mine, float(drawn.pessimism))
            assert_losses(metrics, s, losses, tolerance)
    for s, theirs in enumerate(references):
        assert_networks(parts(agent, s), theirs.networks(), tolerance)


@pytest.mark.parametrize("without", ["weights", "draws"])
def test_without_its_terms_it_is_sac_n_to_the_bit(without):
    agent = make(**(NONE if without == "weights" else {}))
    plain = EDAC(EDACConfig(**SMALL, eta=0.0), Spec(O, A, generators()))
    for batch, (noise, drawn) in zip(make_batches(5), draws(5), strict=True):
        agent.update(batch, noise, drawn if without == "weights" else None)
        plain.update(batch, noise)
    assert flatten(agent.state_dict()) == flatten(plain.state_dict())
    whole = make()
    for batch, (noise, drawn) in zip(make_batches(5), draws(5), strict=True):
        whole.update(batch, noise, drawn)
    assert flatten(whole.state_dict()) != flatten(plain.state_dict())


def test_without_weights_its_whole_run_is_sac_ns():
    """Batches, noise and initial weights too: the terms have random numbers of their own."""
    data = Preprocess(normalize_states=True)
    mine = tiny.Short(tiny.settings("ro2o", data=data, **NONE), updates=20)
    plain = tiny.Short(tiny.settings("edac", data=data, eta=0.0), updates=20)
    for name in ("agent", "buffer", "noise"):
        assert flatten(mine.parts[name].state_dict()) == flatten(plain.parts[name].state_dict())


def test_smoothness_by_hand():
    """One state at 0, a policy of mean 3 s and std e^-1, critics 2 s and -s, offsets to -1 and 1/2."""
    cfg = Config(**SMALL | {"critics": 2, "hidden_layers": 0}, policy_radius=1.0, value_radius=1.0)
    agent = RO2O(cfg, Spec(1, 1, generators(1)))
    with torch.no_grad():
        for p in (*agent.policy.parameters(), *agent.critic.parameters()):
            p.zero_()
        agent.policy.body.layers[0].weight[0, 0] = torch.tensor([3.0, 0.0])
        agent.policy.body.layers[0].bias[..., 1] = -1.0
        agent.critic.layers[0].weight[0, :, 0, 0] = torch.tensor([2.0, -1.0])
    batch = make_batches(1)[0]._replace(
        observations=torch.zeros(1, 1, 1), actions=torch.ones(1, 1, 1)
    )
    offsets = torch.tensor([[[0.0], [0.75]]])
    assert perturbed(batch.observations, offsets, 1.0).flatten().tolist() == [-1.0, 0.5]
    kl = agent.policy_roughness(batch.observations, offsets).item()
    assert kl == pytest.approx(3.0**2 / np.exp(-2))  # d^2 / variance, of both directions together
    # To -1: a fall of 2 and a rise of 1. To 1/2: a rise of 1 and a fall of 1/2.
    rough = agent.value_roughness(batch, offsets).item()
    assert rough == pytest.approx(max(0.2 * 4 + 0.8 * 1, 0.8 * 1 + 0.2 * 0.25) / 2)


def test_unseen_actions_lose_k_deviations():
    """Critics that are constants 1 and 5: std sqrt(8), a loss of 8 k^2, and a gradient of 2 k std / 2."""
    cfg = Config(**SMALL | {"critics": 2, "hidden_layers": 0})
    agent = RO2O(cfg, Spec(O, A, generators()))
    with torch.no_grad():
        for p in agent.critic.parameters():
            p.zero_()
        agent.critic.layers[0].bias[:, :, 0, 0] = torch.tensor([1.0, 5.0])
    drawn = draws(1)[0][1]._replace(pessimism=torch.tensor(0.5))
    loss = agent.unseen_loss(make_batches(1)[0].observations, drawn)
    torch.testing.assert_close(loss, torch.full((SEEDS,), 8 * 0.25))
    (slope,) = torch.autograd.grad(loss.sum(), agent.critic.layers[0].bias)
    torch.testing.assert_close(slope.flatten(1), torch.full((SEEDS, 2), 0.5 * 8**0.5))


def test_pessimism_falls_on_the_data_and_is_the_smallest_online(monkeypatch):
    seen = []
    update = RO2O.update
    monkeypatch.setattr(
        RO2O,
        "update",
        lambda self, batch, noise, draws: (seen.append(draws), update(self, batch, noise, draws))[
            1
        ],
    )
    own = {"phase": "both", "pessimism_decay": 0.1, "pessimism_min": 0.25}
    tiny.Short(tiny.settings("ro2o", **own))
    falling = np.maximum(1 - 0.1 * np.arange(tiny.PRETRAIN), 0.25)
    np.testing.assert_allclose([float(d.pessimism) for d in seen[: tiny.PRETRAIN]], falling)
    online = seen[tiny.PRETRAIN :]
    assert online and all(d.pessimism == 0.25 for d in online)
    seen.clear()
    tiny.Short(tiny.settings("ro2o", smooth_online=False, **own))
    assert all(seen[: tiny.PRETRAIN]) and set(seen[tiny.PRETRAIN :]) == {None}


def test_bad_settings_are_refused():
    for wrong, words in [
        ({"order": "joint"}, "algo.order=joint"),
        ({"critics": 1}, "algo.critics=1 algo.unseen_weight=0"),
        ({"pessimism": 0.05}, "algo.pessimism_min=0.1 algo.pessimism=0.05"),
    ]:
        with refused(words):
            Config(**wrong)
    assert Config(critics=1, unseen_weight=0.0).critics == 1
