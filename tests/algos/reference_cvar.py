"""Deep CVaR and the policy gradients once more: float64, one seed, one transition or episode at a time.

Written from the equations in the docstrings of the two algorithms, not from their code. A network is a dict
of arrays with the names of corerl's modules.
"""

import math

import numpy as np
import torch
from reference_distributional import Learner, layer, leaves, quantile_loss

from corerl.training.rollouts import Played

SEEDS, E, T, O, A = 2, 6, 3, 3, 2


def tail_mean(law, tau: float):
    """The mean of the lowest mass tau of ascending values with probabilities: fill it from below."""
    left, total = tau, 0.0
    for value, probability in law:
        taken = min(left, probability)
        total, left = total + taken * value, left - taken
    return total / tau


class CVaR(Learner):
    def table(self, net, s, c):
        if c is not None:
            share = min(max((c - self.c.low) / (self.c.high - self.c.low), 0.0), 1.0)
            waves = [math.cos(math.pi * i * share) for i in range(1, self.c.cosines + 1)]
            s = torch.cat([s, torch.tensor(waves, dtype=torch.float64)])
        slopes = self.c.critic == "shortfall"
        hidden = "encoder.dense.layers" if slopes else "head.layers"
        for i in range(self.c.hidden_layers):
            s = torch.relu(layer(net, f"{hidden}.{i}", s))
        last = "head" if slopes else f"head.layers.{self.c.hidden_layers}"
        return layer(net, last, s).reshape(-1, self.c.stocks - 1 if slopes else self.c.quantiles)

    def law(self, out):
        """Pairs of a value and its probability, from below."""
        return [(float(z), 1 / len(out)) for z in sorted(out, key=float)]

    def worth(self, out, c):
        law = self.law(out)
        if self.c.objective == "static":
            return -sum(p * max(c - z, 0.0) for z, p in law)
        return tail_mean(law, 1.0 if self.c.objective == "mean" else self.c.tau)

    def loss_to(self, out, law):
        """Quantile regression."""
        n = self.c.quantiles
        taus = [(2 * i + 1) / (2 * n) for i in range(n)]
        y = torch.tensor([z for z, _ in law], dtype=torch.float64)
        return quantile_loss(out, taus, y, self.c.kappa)

    def shortfall(self, out, c):
        """Adds up, from `low` to c, the slopes whose logits are given; above `high` the slope is 1."""
        gap, total = (self.c.high - self.c.low) / len(out), max(c - self.c.high, 0.0)
        for i, logit in enumerate(out):
            width = min(max(c - self.c.low - i * gap, 0.0), gap)
            total += width / (1 + math.exp(-float(logit)))
        return total

    def shortfall_loss(self, s, a, r, s_next, discount):
        """Cross-entropy of the slopes between neighbouring stocks, whose next value is straight too."""
        gap = (self.c.high - self.c.low) / (self.c.stocks - 1)
        grid = [self.c.low + i * gap for i in range(self.c.stocks)]
        ahead = self.table(self.target, s_next, None).detach()
        best = [min(self.shortfall(out, c) for out in ahead) for c in grid]

        def value(c):
            left = c - float(r)
            if discount == 0:
                return max(left, 0.0)
            left /= float(discount)
            return float(discount) * (np.interp(left, grid, best) + max(left - grid[-1], 0.0))

        chances = torch.sigmoid(self.table(self.online, s, None)[a])
        loss = 0.0
        for i, p in enumerate(chances):
            slope = (value(grid[i + 1]) - value(grid[i])) / gap
            loss = loss - slope * torch.log(p) - (1 - slope) * torch.log(1 - p)
        return loss / len(chances)

    def row_loss(self, s, a, r, s_next, discount, draw=None):
        if self.c.critic == "shortfall":
            return self.shortfall_loss(s, a, r, s_next, discount)
        c = following = None
        if draw is not None:
            c = self.c.low + float(draw) * (self.c.high - self.c.low)
            following = (c - float(r)) / float(discount) if discount > 0 else 0.0
        ahead = self.table(self.target, s_next, following).detach()
        values = [self.worth(out, following) for out in ahead]
        choice = values.index(max(values))
        later = self.law(ahead[choice])
        if self.c.objective == "iterated":
            later = [(values[choice], 1.0)]
        y = [(float(r) + float(discount) * z, p) for z, p in later]
        return self.loss_to(self.table(self.online, s, c)[a], y)


# ------------------------------------------------------------------------------- policy gradients


def make_played(count: int, discrete: bool) -> list[tuple[Played, torch.Tensor, torch.Tensor]]:
    """Batches of episodes of 1 to T steps, and the v and etas that they were played with."""
    rng = np.random.default_rng(0)

    def tensor(x):
        return torch.as_tensor(x).to(torch.get_default_dtype())

    def one():
        lengths = rng.integers(1, T + 1, (SEEDS, E, 1))
        alive = np.arange(T) < lengths
        observations = rng.normal(size=(SEEDS, E, T, O)) * alive[..., None]
        rewards = rng.normal(size=(SEEDS, E, T)) * alive
        if discrete:
            actions = torch.as_tensor(rng.integers(A, size=(SEEDS, E, T)))
        else:
            actions = tensor(rng.normal(size=(SEEDS, E, T, A)))
        played = Played(tensor(observations), actions, tensor(rewards), tensor(alive))
        etas = torch.as_tensor(rng.integers(4, size=(SEEDS, E, T)))
        return played, tensor(rng.normal(size=(SEEDS, E))), etas

    return [one() for _ in range(count)]


def perceptron(net, prefix, x, layers):
    for i in range(layers):
        x = torch.tanh(layer(net, f"{prefix}layers.{i}", x))
    return layer(net, f"{prefix}layers.{layers}", x)


class PolicyGradient:
    """One seed. `discrete`: whether actions are discrete; `grid`: the values of eta, unscaled."""

    def __init__(self, policy, critic, settings, discrete):
        self.c, self.discrete = settings, discrete
        self.policy, self.critic, self.v = leaves(policy), leaves(critic), 0.0
        self.optimizers = [
            torch.optim.Adam(self.policy.values(), lr=settings.lr),
            torch.optim.Adam(self.critic.values(), lr=settings.critic_lr),
        ]
        low, high = settings.low or 0.0, settings.high or 0.0
        self.grid = [low + i * (high - low) / (settings.etas - 1) for i in range(settings.etas)]

    # The objective, in the units of the environment.

    def score(self, x, v, tau):
        c, u = self.c, x - v
        return {
            "cvar": max(-u, 0.0) / tau,
            "variance": u**2,
            "mean_variance": -u + c.weight * u**2,
            "entropic": (math.exp(-c.beta * u) - 1) / c.beta,
            "mean": -u,
        }[c.objective]

    def best_v(self, returns, tau):
        n = len(returns)
        if self.c.objective == "cvar":  # the largest x with P(X < x) <= tau
            return max(x for x in returns if sum(y < x for y in returns) <= tau * n + 1e-6)
        if self.c.objective == "entropic":
            return -math.log(sum(math.exp(-self.c.beta * x) for x in returns) / n) / self.c.beta
        return sum(returns) / n

    def gains(self, rewards, v, etas, tau):
        """What is collected at each step of an episode, in units of `scale`."""
        c, gamma, n = self.c, self.c.discount, len(rewards)
        if c.objective != "ecrm":
            x = sum(gamma**t * r for t, r in enumerate(rewards))
            unit = c.scale**2 if c.objective == "variance" else c.scale
            return [0.0] * (n - 1) + [-self.score(x, v, tau) / unit]
        w, eta, found = c.weight, [self.grid[e] for e in etas], []
        for t, r in enumerate(rewards):
            if c.eta == "now":
                found.append((1 - w) * r + w * (eta[t] - max(eta[t] - r, 0.0) / tau))
                continue
            if t:
                r = (1 - w) * r - w * max(eta[t - 1] - r, 0.0) / tau
            r += gamma * w * eta[t]
            if t == n - 1:
                r -= gamma * w * max(eta[t], 0.0) / tau
            found.append(r)
        return [x / c.scale for x in found]

    def seen(self, observations, rewards, v, etas):
        """The policy's inputs at each step."""
        rows, collected = [], 0.0
        for t, (s, r) in enumerate(zip(observations, rewards, strict=True)):
            more = [0.0, 0.0]
            if self.c.objective == "ecrm":
                if self.c.eta == "ahead":
                    more = [self.grid[etas[t - 1]] / self.c.scale if t else 0.0, float(t == 0)]
            elif self.c.augment:
                power = self.c.discount**t
                more = [(v - collected) / power / self.c.scale, power]
            collected += self.c.discount**t * r
            rows.append(torch.tensor([*s, *more], dtype=torch.float64))
        return rows

    # Learning.

    def log_prob(self, x, action, eta, std):
        out = perceptron(self.policy, "body.", x, self.c.hidden_layers)
        parts, entropy = [(out[A:], eta)] if self.c.objective == "ecrm" else [], 0.0
        total = torch.zeros((), dtype=torch.float64)
        if self.discrete:
            parts.append((out[:A], action))
        else:
            law = torch.distributions.Normal(torch.tanh(out[:A]), std)
            total = law.log_prob(torch.tensor(action, dtype=torch.float64)).sum()
        for logits, taken in parts:
            law = torch.distributions.Categorical(logits=logits)
            total = total + law.log_prob(torch.tensor(taken))
            entropy = entropy + law.entropy()
        return total, entropy

    def value(self, x):
        return perceptron(self.critic, "", x, self.c.hidden_layers).squeeze()

    def update(self, episodes, tau, std):
        c = self.c
        gamma = c.discount if c.objective == "ecrm" else 1.0
        loss, regressions = 0.0, []
        for s, actions, rewards, v, etas in episodes:
            inputs, gains = self.seen(s, rewards, v, etas), self.gains(rewards, v, etas, tau)
            values = [float(self.value(x).detach()) for x in inputs] + [0.0]
            delta = [g + gamma * values[t + 1] - values[t] for t, g in enumerate(gains)]
            for t, x in enumerate(inputs):
                advantage = sum(
                    (gamma * c.trace) ** (k - t) * delta[k] for k in range(t, len(delta))
                )
                log_prob, entropy = self.log_prob(x, actions[t], int(etas[t]), std)
                gain = log_prob * advantage + c.entropy * entropy
                loss = loss - gamma**t * gain / len(episodes)
                regressions.append((x, advantage + values[t]))
        self.step(0, loss)
        for _ in range(c.critic_updates):
            errors = [(self.value(x) - y) ** 2 for x, y in regressions]
            critic_loss = sum(errors) / len(errors)
            self.step(1, critic_loss)
        if c.objective != "ecrm":
            returns = [sum(c.discount**t * r for t, r in enumerate(e[2])) for e in episodes]
            self.v += c.v_rate * (self.best_v(returns, tau) - self.v)
        return {"policy_loss": float(loss.detach()), "critic_loss": float(critic_loss.detach())}

    def step(self, which, loss):
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()
