"""NeoRL-2's BC and TD3+BC (offlinerl 0.0.2) once more: torch.nn modules of one seed, in float64.

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
