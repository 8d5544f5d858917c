"""Cal-QL, WSRL and RLPD once more: float64 torch, one seed, one critic and one action at a time.

Written from the equations and what is known of the authors' code, not from corerl's files: critics are
separate networks in a list, every action is passed through the whole critic, densities come from
torch.distributions, gradients from autograd, steps from torch.optim. Losses are the authors' times the
number of critics, as corerl sums over them.
"""

import math
from functools import partial

import numpy as np
import reference_soft
import torch
from reference_soft import adam, joined, leaves, numbers, polyak, set_grads, share_output, tensor

mlp = partial(reference_soft.mlp, eps=1e-6)


def q(net, s, a):
    return mlp(net, torch.cat([s, a], 1))[:, 0]


def along_zero(*optimizers: torch.optim.Adam) -> None:
    for optimizer in optimizers:
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p)
        optimizer.step()


class ActorCritic:
    """What the three share: a squashed Gaussian policy, critics with targets, a temperature."""

    def __init__(self, policy, critics, targets, temperature, settings, policy_lr, temperature_lr):
        self.c, self.policy = settings, leaves(policy)
        self.critics, self.targets = [leaves(x) for x in critics], [leaves(x) for x in targets]
        if getattr(settings, "shared_output", False):
            share_output(self.critics, self.targets)
        self.temperature = leaves(temperature)
        self.policy_optimizer = adam(policy_lr, self.policy)
        self.temperature_optimizer = adam(temperature_lr, self.temperature)
        self.critic_optimizer = adam(settings.critic_lr, joined(self.critics))

    def networks(self) -> tuple:
        critics, targets = [[numbers(n) for n in nets] for nets in (self.critics, self.targets)]
        return numbers(self.policy), critics, targets, numbers(self.temperature)

    def log_std_range(self):
        return self.c.log_std_min, self.c.log_std_max

    def distribution(self, s):
        out = mlp(self.policy, s, "body.")
        if "log_std" in self.policy:
            mean, log_std = out, self.policy["log_std"].expand_as(out)
        else:
            mean, log_std = out.chunk(2, 1)
        if "multiplier.value" in self.policy:
            log_std = self.policy["multiplier.value"] * log_std + self.policy["offset.value"]
        return mean, log_std.clamp(*self.log_std_range())

    def draw(self, s, noise):
        """An action per state and its log-density."""
        return reference_soft.draw(self.distribution, s, noise)

    def step_critics(self, loss):
        set_grads(self.critic_optimizer, loss)
        self.critic_optimizer.step()
        polyak(joined(self.targets), joined(self.critics), self.c.polyak)


class CalQL(ActorCritic):
    """The authors' step: every gradient from the same parameters."""

    def __init__(self, policy, critics, targets, temperature, multiplier, settings):
        rates = settings.policy_lr, settings.policy_lr
        super().__init__(policy, critics, targets, temperature, settings, *rates)
        self.multiplier = leaves(multiplier)
        self.multiplier_optimizer = adam(settings.critic_lr, self.multiplier)

    def networks(self) -> tuple:
        return *super().networks(), numbers(self.multiplier)

    def alpha(self):
        value = self.temperature["value"]
        return torch.log1p(value.exp()) if self.c.tuning == "softplus" else value.exp()

    def temperature_loss(self, s, s_next, noise, backups):
        if self.c.tuning == "softplus":  # WSRL's baseline
            log_pi = torch.stack([self.draw(s_next, x)[1] for x in backups]).detach()
            return self.alpha() * (noise.shape[1] - log_pi.mean())
        _, log_pi = self.draw(s, noise)
        return -self.temperature["value"] * (log_pi - noise.shape[1]).detach().mean()

    def pick(self, uniforms):
        if self.c.critic_subsample is None:
            return list(range(len(self.critics)))
        return np.argsort(np.asarray(uniforms))[: self.c.critic_subsample].tolist()

    def target(self, r, d, s_next, backups, asked):
        """The largest over actions of the smallest over the critics asked."""
        values = []
        for noise in backups:
            a, _ = self.draw(s_next, noise)
            values.append(torch.stack([q(self.targets[i], s_next, a) for i in asked]).min(0).values)
        return (r + self.c.discount * (1 - d) * torch.stack(values).max(0).values).detach()

    def gap(self, net, s, a, proposals, returns):
        """Mean of log sum exp of bounded values over densities, less the data's value."""
        values = []
        for action, log_density, of_policy in proposals:
            value = q(net, s, action)
            if of_policy and self.c.calibrate:
                value = torch.where(value < returns, returns, value)
            values.append(value - log_density if self.c.importance_sampling else value)
        if not self.c.importance_sampling:
            values.append(q(net, s, a))
        return (torch.stack(values).logsumexp(0) - q(net, s, a)).mean()

    def conservative(self, gap):
        """The penalty per critic and the multiplier's loss."""
        if not self.c.lagrange:
            return self.c.weight * gap, 0 * self.multiplier["value"].sum()
        prime = self.multiplier["value"].exp()
        penalty = self.c.weight * (gap - self.c.threshold)
        return prime.detach() * penalty, -prime * penalty.detach()

    def update(self, batch, returns, noise, uniforms, asked) -> dict:
        c = self.c
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        returns, noise, uniforms = tensor(returns), tensor(noise), tensor(uniforms)
        n = c.samples
        one, backups, here, there = noise.split([1, n if c.max_backup else 1, n, n])
        set_grads(
            self.temperature_optimizer, self.temperature_loss(s, s_next, one[0], backups).sum()
        )
        pi, log_pi = self.draw(s, one[0])
        lowest = torch.stack([q(net, s, pi) for net in self.critics]).min(0).values
        policy_loss = (self.alpha().detach() * log_pi - lowest).mean()
        set_grads(self.policy_optimizer, policy_loss)

        y = self.target(r, d, s_next, backups, self.pick(asked[0]))
        bellman = sum(((q(net, s, a) - y) ** 2).mean() for net in self.critics)
        uniform = -a.shape[1] * math.log(2)
        proposals = [(2 * u - 1, uniform, False) for u in uniforms]
        for states, draws in ((s, here), (s_next, there)):
            samples = [self.draw(states, x) for x in draws]
            proposals += [(x.detach(), density.detach(), True) for x, density in samples]
        chosen = self.pick(asked[1])
        gap = sum(self.gap(self.critics[i], s, a, proposals, returns) for i in chosen) / len(chosen)
        penalty, multiplier_loss = self.conservative(gap)
        set_grads(self.multiplier_optimizer, multiplier_loss.sum())
        self.step_critics(bellman + len(self.critics) * penalty.sum())
        for optimizer in (
            self.policy_optimizer,
            self.temperature_optimizer,
            self.multiplier_optimizer,
        ):
            optimizer.step()
        losses = {"policy_loss": policy_loss, "bellman_loss": bellman, "gap": gap}
        return {k: v.item() for k, v in losses.items()}


class WSRL(CalQL):
    def log_std_range(self):
        return math.log(self.c.std_min), math.log(self.c.std_max)

    def alpha(self):
        return torch.log1p(self.temperature["value"].exp())

    def temperature_loss(self, s, s_next, noise, backups):
        """alpha * (entropy at s' + D): the entropy from every action of the backup."""
        log_pi = torch.stack([self.draw(s_next, x)[1] for x in backups]).detach()
        return self.alpha() * (-log_pi.mean() + noise.shape[1])

    def pick(self, uniforms):
        return [int(u * len(self.critics)) for u in uniforms[: self.c.critic_subsample]]

    def conservative(self, gap):
        if not self.c.lagrange:
            return super().conservative(gap)
        prime = torch.log1p(self.multiplier["value"].exp())
        return prime.detach() * (gap - self.c.threshold), -prime * (gap - self.c.threshold).detach()

    def finetune(self, batches, backups, noise, asked) -> dict:
        """SAC: critics and targets at each minibatch, then policy and temperature on all rows.

        With several minibatches every optimiser steps every time: those without a loss along zero.
        """
        idle = self.c.zero_steps and len(batches) > 1
        for batch, draws, uniforms in zip(batches, backups, asked, strict=True):
            s, a, r, s_next, d = (tensor(x) for x in batch[:5])
            y = self.target(r, d, s_next, tensor(draws), self.pick(uniforms))
            bellman = sum(((q(net, s, a) - y) ** 2).mean() for net in self.critics)
            self.step_critics(bellman)
            if idle:
                along_zero(self.policy_optimizer, self.temperature_optimizer)
        s, s_next = (torch.cat([tensor(batch[field]) for batch in batches]) for field in (0, 3))
        pi, log_pi = self.draw(s, tensor(noise[0]))
        lowest = torch.stack([q(net, s, pi) for net in self.critics]).min(0).values
        policy_loss = (self.alpha().detach() * log_pi - lowest).mean()
        set_grads(self.policy_optimizer, policy_loss)
        later = self.temperature_loss(s, s_next, tensor(noise[0]), [tensor(noise[1])])
        set_grads(self.temperature_optimizer, later.sum())
        self.policy_optimizer.step()
        self.temperature_optimizer.step()
        if idle:
            along_zero(self.critic_optimizer)
        return {"policy_loss": policy_loss.item(), "bellman_loss": bellman.item()}


class RLPD(ActorCritic):
    def __init__(self, policy, critics, targets, temperature, settings):
        rates = settings.actor_lr, settings.temperature_lr
        super().__init__(policy, critics, targets, temperature, settings, *rates)

    def update(self, batches, noise, asked) -> dict:
        c, noise = self.c, tensor(noise)
        (log_alpha,) = self.temperature.values()
        for batch, z, uniforms in zip(batches, noise, asked, strict=False):
            s, a, r, s_next, d = (tensor(x) for x in batch[:5])
            chosen = np.argsort(np.asarray(uniforms))[: c.critic_subsample]
            with torch.no_grad():
                a_next, log_pi = self.draw(s_next, z)
                value = torch.stack([q(self.targets[i], s_next, a_next) for i in chosen])
                value = value.min(0).values
                if c.backup_entropy:
                    value = value - log_alpha.exp() * log_pi
                y = r + c.discount * (1 - d) * value
            loss = sum(((q(net, s, a) - y) ** 2).mean() for net in self.critics)
            self.step_critics(loss)
        pi, log_pi = self.draw(s, noise[-1])
        values = torch.stack([q(net, s, pi) for net in self.critics])
        value = values.mean(0) if c.actor_q == "mean" else values.min(0).values
        policy_loss = (log_alpha.exp().detach() * log_pi - value).mean()
        set_grads(self.policy_optimizer, policy_loss)
        entropy = -log_pi.detach().mean()
        set_grads(self.temperature_optimizer, (log_alpha.exp() * (entropy + a.shape[1] / 2)).sum())
        self.policy_optimizer.step()
        self.temperature_optimizer.step()
        return {"critic_loss": loss.item(), "policy_loss": policy_loss.item()}
