"""NeoRL-2's BC, TD3+BC, CQL and EDAC (offlinerl 0.0.2) once more: torch.nn modules of one seed, in float64.

Written from what that code computes, not from corerl's files, so that agreement of the two is evidence.
A network of corerl's comes as the dict of one seed, `layers.i.weight (in, out)` and `layers.i.bias`.
"""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def network(weights: dict[str, np.ndarray], activation: nn.Module) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers = []
    for i in range(len(weights) // 2):
        weight, bias = weights[f"layers.{i}.weight"], weights[f"layers.{i}.bias"]
        linear = nn.Linear(*weight.shape).double()
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T))
            linear.bias.copy_(torch.from_numpy(bias[0]))
        layers += [linear, activation]
    return nn.Sequential(*layers[:-1])


def weights_of(net: nn.Sequential) -> dict[str, np.ndarray]:
    """The inverse of `network`."""
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    found = {}
    for i, layer in enumerate(linear):
        found[f"layers.{i}.weight"] = layer.weight.detach().numpy().T
        found[f"layers.{i}.bias"] = layer.bias.detach().numpy()[None]
    return found


def step(optimizers: list[torch.optim.Optimizer], loss: torch.Tensor) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


class BC:
    """Squared error of a mean, leaky units of slope 0.1; the best policy on held-out data is kept."""

    def __init__(self, weights, lr: float):
        self.policy = network(weights, nn.LeakyReLU(0.1))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr)
        self.kept, self.lowest = copy.deepcopy(self.policy), math.inf

    def update(self, batch) -> None:
        actions = self.policy(torch.from_numpy(batch.observations))
        step([self.optimizer], F.mse_loss(actions, torch.from_numpy(batch.actions)))

    @torch.no_grad()
    def validate(self, observations: torch.Tensor, actions: torch.Tensor, batch_size: int) -> None:
        """The sum over consecutive batches of their mean squared error; the last may be short."""
        total = 0.0
        for start in range(0, len(observations), batch_size):
            rows = slice(start, start + batch_size)
            total += float(F.mse_loss(self.policy(observations[rows]), actions[rows]))
        if total < self.lowest:
            self.lowest, self.kept = total, copy.deepcopy(self.policy)


class TD3BC:
    """Critics on raw states, a policy on standardised ones; of each epoch, updates 0, 2, ... improve it."""

    def __init__(self, actor, critics, target_actor, target_critics, mean, std, alpha, noise):
        def net(weights):
            return network(weights, nn.ReLU())

        self.actor, self.critics = net(actor), [net(c) for c in critics]
        self.target_actor, self.target_critics = net(target_actor), [net(c) for c in target_critics]
        self.mean, self.std = torch.from_numpy(mean), torch.from_numpy(std)
        self.alpha, self.noise = alpha, noise
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), 3e-4)
        self.optimizers = [torch.optim.Adam(c.parameters(), 3e-4) for c in self.critics]

    def networks(self) -> tuple:
        return (
            weights_of(self.actor),
            [weights_of(c) for c in self.critics],
            weights_of(self.target_actor),
            [weights_of(c) for c in self.target_critics],
        )

    def play(self, actor: nn.Module, s: torch.Tensor) -> torch.Tensor:
        return torch.tanh(actor((s - self.mean) / self.std))

    def epoch(self, batches, noises) -> None:
        for i, (batch, noise) in enumerate(zip(batches, noises, strict=True)):
            s, a, r, s_next, done, _ = map(torch.from_numpy, batch)
            with torch.no_grad():
                smoothing = (noise * self.noise).clamp(-0.5, 0.5)
                a_next = (self.play(self.target_actor, s_next) + smoothing).clamp(-1, 1)
                pair = torch.cat([s_next, a_next], -1)
                q_next = torch.min(*(critic(pair) for critic in self.target_critics))[:, 0]
                y = r + 0.99 * (1 - done) * q_next
            pair = torch.cat([s, a], -1)
            step(self.optimizers, sum(F.mse_loss(c(pair)[:, 0], y) for c in self.critics))
            if i % 2 == 0:
                self.improve(s, a)

    def improve(self, s: torch.Tensor, a: torch.Tensor) -> None:
        pi = self.play(self.actor, s)
        q = self.critics[0](torch.cat([s, pi], -1))
        loss = -self.alpha / q.abs().mean().detach() * q.mean() + F.mse_loss(pi, a)
        step([self.actor_optimizer], loss)
        targets = [self.target_actor, *self.target_critics]
        with torch.no_grad():
            for target, online in zip(targets, [self.actor, *self.critics], strict=True):
                for old, new in zip(target.parameters(), online.parameters(), strict=True):
                    old.copy_(0.995 * old + 0.005 * new)


class Squashed:
    """A policy of tanh(u), u normal with a log-std between -5 and 2; densities without that code's 1e-6."""

    def __init__(self, weights):
        self.net = network(weights, nn.ReLU())

    def normal(self, s: torch.Tensor) -> torch.distributions.Normal:
        mean, log_std = self.net(s).chunk(2, -1)
        return torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())

    def sample(self, s: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normal = self.normal(s)
        u = normal.mean + normal.stddev * noise
        a = torch.tanh(u)
        return a, (normal.log_prob(u) - torch.log(1 - a**2)).sum(-1)

    def log_prob(self, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return (self.normal(s).log_prob(torch.atanh(a)) - torch.log(1 - a**2)).sum(-1)


def values(critics: list[nn.Module], s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """`(N, ...)` of states and actions `(..., O)` and `(..., A)`."""
    return torch.stack([critic(torch.cat([s, a], -1))[..., 0] for critic in critics])


class SoftActorCritic:
    """Networks, optimisers and targets; `settings` are those of a table."""

    def __init__(self, policy, critics, targets, log_alpha, settings):
        self.c, self.policy = settings, Squashed(policy)
        self.critics = [network(c, nn.ReLU()) for c in critics]
        self.targets = [network(c, nn.ReLU()) for c in targets]
        self.log_alpha = torch.tensor(log_alpha, dtype=torch.float64, requires_grad=True)
        self.policy_optimizer = torch.optim.Adam(self.policy.net.parameters(), settings.policy_lr)
        parameters = [p for critic in self.critics for p in critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(parameters, settings.critic_lr)

    def networks(self) -> tuple:
        nets = [[weights_of(net) for net in nets] for nets in (self.critics, self.targets)]
        return weights_of(self.policy.net), *nets, self.log_alpha.detach().numpy()

    def move_targets(self) -> None:
        with torch.no_grad():
            for target, online in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), online.parameters(), strict=True):
                    old.copy_(0.995 * old + 0.005 * new)


class CQL(SoftActorCritic):
    """Temperature, policy, critics in turn; the entropy is in the backup."""

    def __init__(self, *networks, log_alpha_prime, settings):
        super().__init__(*networks, settings)
        self.log_alpha_prime = torch.tensor(
            log_alpha_prime, dtype=torch.float64, requires_grad=True
        )
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], settings.policy_lr)
        self.prime_optimizer = torch.optim.Adam([self.log_alpha_prime], settings.critic_lr)

    def networks(self) -> tuple:
        return *super().networks(), self.log_alpha_prime.detach().numpy()

    def update(self, batch, noise, uniforms, cloning: bool) -> None:
        """`noise` (2 + 2K, B, A): of the policy, of the backup, of K proposals at s and of K at s'."""
        s, a, r, s_next, done, _ = map(torch.from_numpy, batch)
        k = len(uniforms)
        at_s, at_next, here, there = noise.split([1, 1, k, k])
        pi, log_pi = self.policy.sample(s, at_s[0])
        entropy_loss = -(self.log_alpha * (log_pi - a.shape[1]).detach()).mean()
        step([self.alpha_optimizer], entropy_loss)
        alpha = self.log_alpha.exp().detach()
        if cloning:
            policy_loss = (alpha * log_pi - self.policy.log_prob(s, a)).mean()
        else:
            policy_loss = (alpha * log_pi - values(self.critics, s, pi).amin(0)).mean()
        step([self.policy_optimizer], policy_loss)

        with torch.no_grad():
            next_pi, next_log_pi = self.policy.sample(s_next, at_next[0])
            soft = values(self.targets, s_next, next_pi).amin(0) - alpha * next_log_pi
            y = r + 0.99 * (1 - done) * soft
            current, density = self.policy.sample(s, here)
            following, next_density = self.policy.sample(s_next, there)
        uniform, chance = 2 * uniforms - 1, torch.full_like(density, -a.shape[1] * math.log(2))
        actions = torch.cat([uniform, following, current])
        densities = torch.cat([chance, next_density, density])
        loss, excesses = 0.0, []
        for critic in self.critics:
            q = values([critic], s, a)[0]
            sampled = values([critic], s.expand(3 * k, *s.shape), actions)[0]
            weighed, plain = sampled - densities, torch.cat([sampled, q[None]])
            joined = weighed if self.c.importance_sampling else plain
            excess = self.c.weight * (joined.logsumexp(0).mean() - q.mean())
            if self.c.threshold >= 0:
                excess = excess - self.c.threshold
                excesses.append(excess.detach())
                excess = self.log_alpha_prime.exp().detach() * excess
            loss = loss + F.mse_loss(q, y) + excess
        step([self.critic_optimizer], loss)
        if excesses:
            step([self.prime_optimizer], -0.5 * self.log_alpha_prime.exp() * sum(excesses))
        self.move_targets()


class EDAC(SoftActorCritic):
    """The policy by the temperature of before, the temperature by the same sample, then the critics."""

    def __init__(self, *networks, settings):
        super().__init__(*networks, settings)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], settings.alpha_lr)

    def alpha(self) -> torch.Tensor:
        return self.log_alpha.detach().exp().clamp(0, 1)

    def update(self, batch, noise) -> None:
        """`noise` (2, B, A): at s and at s'."""
        s, a, r, s_next, done, _ = map(torch.from_numpy, batch)
        pi, log_pi = self.policy.sample(s, noise[0])
        policy_loss = -values(self.critics, s, pi).amin(0).mean() + self.alpha() * log_pi.mean()
        step([self.policy_optimizer], policy_loss)
        step([self.alpha_optimizer], -(self.log_alpha * (log_pi.detach() - a.shape[1])).mean())
        with torch.no_grad():
            next_pi, next_log_pi = self.policy.sample(s_next, noise[1])
            soft = values(self.targets, s_next, next_pi).amin(0) - self.alpha() * next_log_pi
            y = r + 0.99 * (1 - done) * soft
        loss = ((values(self.critics, s, a) - y) ** 2).mean(1).sum()
        directions = []
        for critic in self.critics:
            actions = a.clone().requires_grad_()
            total = values([critic], s, actions).sum()
            (gradient,) = torch.autograd.grad(total, actions, create_graph=True)
            directions.append(gradient / (gradient.norm(dim=1, keepdim=True) + 1e-10))
        count = len(directions)
        pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
        alike = sum((directions[i] * directions[j]).sum(1).mean() for i, j in pairs)
        step([self.critic_optimizer], loss + self.c.eta * alike / (count - 1))
        self.move_targets()
