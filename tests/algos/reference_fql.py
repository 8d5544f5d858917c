"""IQL and ReBRAC of FQL's authors (seohongpark/fql) once more: torch, one seed, in float64.

Written from what that code computes, not from corerl's files. A network comes as a dict of one seed or of
one critic, `layers.i.weight (in, out)`, `layers.i.bias` and, where hidden layers are normalised after their
activation, `norms.i.weight` and `norms.i.bias`. One Adam moves all networks at once.
"""

from functools import partial

import reference_soft
import torch
from reference_soft import adam, leaves, numbers


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


mlp = partial(reference_soft.mlp, activation=gelu, eps=1e-6, norm_last=True)


def frozen(net) -> dict:
    return {k: p.detach() for k, p in net.items()}


def lowest(critics, s, a) -> torch.Tensor:
    return torch.stack([mlp(critic, torch.cat([s, a], 1))[:, 0] for critic in critics]).amin(0)


class Learner:
    def __init__(self, settings, *nets):
        self.c, self.nets = settings, [self._of(net) for net in nets]
        trained = [n for net in self.trained() for n in (net if isinstance(net, list) else [net])]
        self.optimizer = adam(3e-4, *trained)

    @staticmethod
    def _of(net):
        return [leaves(n) for n in net] if isinstance(net, list) else leaves(net)

    def networks(self) -> tuple:
        return tuple(
            [numbers(n) for n in net] if isinstance(net, list) else numbers(net)
            for net in self.nets
        )

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=False)  # what has no loss moves on
        loss.backward()
        self.optimizer.step()

    @staticmethod
    @torch.no_grad()
    def follow(target, online) -> None:
        for key in target:
            target[key].copy_(0.005 * online[key] + 0.995 * target[key])


class IQL(Learner):
    def trained(self):
        return self.nets[:3]

    def update(self, batch) -> None:
        value, policy, critics, targets = self.nets
        s, a, r, s_next, done = map(torch.from_numpy, batch[:5])
        difference = lowest([frozen(t) for t in targets], s, a) - mlp(value, s)[:, 0]
        weight = torch.where(difference >= 0, self.c.expectile, 1 - self.c.expectile)
        value_loss = (weight * difference**2).mean()
        with torch.no_grad():
            y = r + self.c.discount * (1 - done) * mlp(value, s_next)[:, 0]
            advantage = lowest(critics, s, a) - mlp(value, s)[:, 0]
            weight = torch.exp(advantage * self.c.beta).clamp(max=100.0)
        q = [mlp(critic, torch.cat([s, a], 1))[:, 0] for critic in critics]
        critic_loss = sum((x - y) ** 2 for x in q).mean()
        unit = torch.distributions.Normal(mlp(policy, s), 1.0)
        policy_loss = -(weight * unit.log_prob(a).sum(1)).mean()
        loss = value_loss + critic_loss + policy_loss
        for target, online in zip(targets, critics, strict=True):
            self.follow(target, online)  # the critics before their step
        self.step(loss)


class ReBRAC(Learner):
    def trained(self):
        return self.nets[:2]

    def update(self, batch, noise, full: bool) -> None:
        actor, critics, target_actor, targets = self.nets
        s, a, r, s_next, done, a_next = map(torch.from_numpy, batch)
        with torch.no_grad():
            smoothing = (0.2 * noise).clamp(-0.5, 0.5)
            next_action = (torch.tanh(mlp(target_actor, s_next)) + smoothing).clamp(-1, 1)
            penalty = ((next_action - a_next) ** 2).sum(1)
            next_q = lowest(targets, s_next, next_action) - self.c.critic_bc_coef * penalty
            y = r + self.c.discount * (1 - done) * next_q
        q = torch.stack([mlp(critic, torch.cat([s, a], 1))[:, 0] for critic in critics])
        loss = ((q - y) ** 2).mean()
        if full:
            action = torch.tanh(mlp(actor, s))
            q = lowest([frozen(c) for c in critics], s, action)
            imitation = ((action - a) ** 2).sum(1).mean()
            loss = loss - q.mean() / q.abs().mean().detach() + self.c.actor_bc_coef * imitation
            for target, online in zip([target_actor, *targets], [actor, *critics], strict=True):
                self.follow(target, online)
        self.step(loss)


def matching_loss(flow, s, a, start, t) -> torch.Tensor:
    x = (1 - t) * start + t * a
    return ((mlp(flow, torch.cat([s, x, t], 1)) - (a - start)) ** 2).mean()


def follow_flow(flow, s, x, steps: int) -> torch.Tensor:
    for i in range(steps):
        t = torch.full((len(s), 1), i / steps, dtype=s.dtype)
        x = x + mlp(flow, torch.cat([s, x, t], 1)) / steps
    return x.clamp(-1, 1)


class FQL(Learner):
    """agents/fql.py: critics, flow, policy in one step; target critics."""

    def trained(self):
        return self.nets[:3]

    def update(self, batch, next_noise, start, noise, t) -> dict:
        critics, flow, policy, targets = self.nets
        s, a, r, s_next, done = map(torch.from_numpy, batch[:5])
        with torch.no_grad():
            next_action = mlp(policy, torch.cat([s_next, next_noise], 1)).clamp(-1, 1)
            q = torch.stack([mlp(n, torch.cat([s_next, next_action], 1))[:, 0] for n in targets])
            next_q = q.amin(0) if self.c.q_agg == "min" else q.mean(0)
            y = r + self.c.discount * (1 - done) * next_q
            cloned = follow_flow(flow, s, noise, self.c.flow_steps)
        q = torch.stack([mlp(critic, torch.cat([s, a], 1))[:, 0] for critic in critics])
        critic_loss = ((q - y) ** 2).mean()
        flow_loss = matching_loss(flow, s, a, start, t)
        action = mlp(policy, torch.cat([s, noise], 1))
        distance = ((action - cloned) ** 2).mean()
        own = torch.cat([s, action.clamp(-1, 1)], 1)
        q = torch.stack([mlp(frozen(critic), own)[:, 0] for critic in critics]).mean(0)
        q_loss = -q.mean() / (q.abs().mean().detach() if self.c.normalize_q else 1.0)
        policy_loss = self.c.alpha * distance + q_loss
        for target, online in zip(targets, critics, strict=True):
            self.follow(target, online)  # the critics before their step
        self.step(critic_loss + flow_loss + policy_loss)
        losses = {"critic_loss": critic_loss, "flow_loss": flow_loss, "policy_loss": policy_loss}
        return {name: loss.item() for name, loss in losses.items()}


class IFQL(Learner):
    """agents/ifql.py: critics, value, flow; target critics."""

    def trained(self):
        return self.nets[:3]

    def update(self, batch, start, t) -> dict:
        critics, value, flow, targets = self.nets
        s, a, r, s_next, done = map(torch.from_numpy, batch[:5])
        difference = lowest([frozen(t) for t in targets], s, a) - mlp(value, s)[:, 0]
        weight = torch.where(difference >= 0, self.c.expectile, 1 - self.c.expectile)
        value_loss = (weight * difference**2).mean()
        with torch.no_grad():
            y = r + self.c.discount * (1 - done) * mlp(value, s_next)[:, 0]
        critic_loss = sum((mlp(n, torch.cat([s, a], 1))[:, 0] - y) ** 2 for n in critics).mean()
        flow_loss = matching_loss(flow, s, a, start, t)
        for target, online in zip(targets, critics, strict=True):
            self.follow(target, online)
        self.step(value_loss + critic_loss + flow_loss)
        losses = {"value_loss": value_loss, "critic_loss": critic_loss, "flow_loss": flow_loss}
        return {name: loss.item() for name, loss in losses.items()}

    def best(self, s, noise):
        """The best of the actions that the flow makes of noise `(K, A)` at one state `(O,)`."""
        critics, _, flow, _ = self.nets
        s = torch.from_numpy(s).expand(len(noise), -1)
        actions = follow_flow(flow, s, torch.from_numpy(noise), self.c.flow_steps)
        return actions[lowest(critics, s, actions).argmax()].detach().numpy()
