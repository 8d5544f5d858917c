"""OGBench's six agents (seohongpark/ogbench, impls/agents) once more: torch, one seed, in float64.

Written from what that code computes, not from corerl's files. Networks come as `reference_fql` has them. One
Adam moves all of them at once; targets follow the networks of before their step.
"""

import torch
from reference_fql import Learner, frozen, lowest, mlp
from torch.nn import functional as F


def log_prob(mean, x) -> torch.Tensor:
    return torch.distributions.Normal(mean, 1.0).log_prob(x).sum(-1)


def both(values, s, g) -> torch.Tensor:
    return torch.stack([mlp(value, torch.cat([s, g], 1))[:, 0] for value in values])


class Goals(Learner):
    """Losses that several of them share."""

    def awr(self, policy, inputs, actions, advantage, alpha) -> torch.Tensor:
        weight = torch.exp(advantage * alpha).clamp(max=100.0).detach()
        return -(weight * log_prob(mlp(policy, inputs), actions)).mean()

    def ddpg_bc(self, policy, inputs, actions, q_of) -> torch.Tensor:
        mean = mlp(policy, inputs)
        q = q_of(mean.clamp(-1, 1))
        climbing = -q.mean() / (q.abs().mean() + 1e-6).detach()
        return climbing - self.c.alpha * log_prob(mean, actions).mean()

    def value_loss(self, online, target, s, s_next, g, r, alive) -> torch.Tensor:
        """GCIVL's; `online` and `target` take a state and a goal to `(2, B)`."""
        with torch.no_grad():
            next_value = target(s_next, g)
            q = r + self.c.discount * alive * next_value
            advantage = r + self.c.discount * alive * next_value.amin(0) - target(s, g).mean(0)
        weight = torch.where(advantage >= 0, self.c.expectile, 1 - self.c.expectile)
        return (weight * (q - online(s, g)) ** 2).mean(1).sum()


class GCBC(Goals):
    def trained(self):
        return self.nets

    def update(self, batch) -> dict:
        s, a, *_, g = map(torch.from_numpy, batch)
        loss = -log_prob(mlp(self.nets[0], torch.cat([s, g], 1)), a).mean()
        self.step(loss)
        return {"policy_loss": loss.item()}


class GCIVL(Goals):
    def trained(self):
        return self.nets[:2]

    def update(self, batch) -> dict:
        values, policy, targets = self.nets
        s, a, s_next, g, r, done, ga = map(torch.from_numpy, batch)
        value_loss = self.value_loss(
            lambda s, g: both(values, s, g),
            lambda s, g: both(targets, s, g),
            *(s, s_next, g, r, 1 - done),
        )
        with torch.no_grad():
            advantage = (both(values, s_next, ga) - both(values, s, ga)).mean(0)
        policy_loss = self.awr(policy, torch.cat([s, ga], 1), a, advantage, self.c.alpha)
        for target, online in zip(targets, values, strict=True):
            self.follow(target, online)
        self.step(value_loss + policy_loss)
        return {"value_loss": value_loss.item(), "policy_loss": policy_loss.item()}


class GCIQL(Goals):
    def trained(self):
        return self.nets[:3]

    def update(self, batch) -> dict:
        critics, value, policy, targets = self.nets
        s, a, s_next, g, r, done, ga = map(torch.from_numpy, batch)
        sg, own = torch.cat([s, g], 1), torch.cat([s, ga], 1)
        difference = lowest([frozen(t) for t in targets], sg, a) - mlp(value, sg)[:, 0]
        weight = torch.where(difference >= 0, self.c.expectile, 1 - self.c.expectile)
        value_loss = (weight * difference**2).mean()
        with torch.no_grad():
            y = r + self.c.discount * (1 - done) * mlp(value, torch.cat([s_next, g], 1))[:, 0]
        critic_loss = sum((q - y) ** 2 for q in both(critics, sg, a)).mean()
        fixed = [frozen(c) for c in critics]
        if self.c.actor_loss == "awr":
            advantage = (lowest(fixed, own, a) - mlp(value, own)[:, 0]).detach()
            policy_loss = self.awr(policy, own, a, advantage, self.c.alpha)
        else:
            policy_loss = self.ddpg_bc(policy, own, a, lambda x: lowest(fixed, own, x))
        for target, online in zip(targets, critics, strict=True):
            self.follow(target, online)
        self.step(value_loss + critic_loss + policy_loss)
        losses = {"value_loss": value_loss, "critic_loss": critic_loss, "policy_loss": policy_loss}
        return {name: loss.item() for name, loss in losses.items()}


def logits(first, goal, x, g) -> torch.Tensor:
    phi, psi = mlp(first, x), mlp(goal, g)
    return phi @ psi.T / phi.shape[1] ** 0.5


class CRL(Goals):
    """Networks: two embeddings of state and action, two of goals, the policy, and with AWR one of each."""

    def trained(self):
        return self.nets

    def loss(self, tables) -> torch.Tensor:
        labels = torch.eye(len(tables[0]), dtype=tables[0].dtype)
        parts = [F.binary_cross_entropy_with_logits(table, labels) for table in tables]
        return sum(parts) / len(parts)

    def update(self, batch) -> dict:
        firsts, seconds, policy, *value = self.nets
        s, a, _, g, _, _, ga = map(torch.from_numpy, batch)
        sa, own = torch.cat([s, a], 1), torch.cat([s, ga], 1)
        pairs = list(zip(firsts, seconds, strict=True))
        seen = lambda f: f.exp().clamp(min=self.c.log_floor).log()  # noqa: E731
        critic_loss = self.loss([logits(f, t, sa, g) for f, t in pairs])

        def q_of(x):
            all_pairs = [
                logits(frozen(f), frozen(t), torch.cat([s, x], 1), ga).diag() for f, t in pairs
            ]
            return seen(torch.stack(all_pairs)).amin(0)

        if value:
            value_loss = self.loss([logits(*value, s, g)])
            advantage = (q_of(a) - seen(logits(*value, s, ga).diag())).detach()
            policy_loss = self.awr(policy, own, a, advantage, self.c.alpha)
        else:
            value_loss = torch.zeros(())
            policy_loss = self.ddpg_bc(policy, own, a, q_of)
        self.step(critic_loss + value_loss + policy_loss)
        return {"critic_loss": critic_loss.item(), "policy_loss": policy_loss.item()}


def iqe(x, y, share) -> torch.Tensor:
    """A mix of mean and maximum over groups of eight of the length of the union of the intervals."""
    result = []
    for one, other in zip(x, y, strict=True):
        lengths = []
        for lows, highs in zip(one.split(8), other.split(8), strict=True):
            total, reached = torch.zeros((), dtype=x.dtype), None
            order = sorted((l, h) for l, h in zip(lows, highs, strict=True) if l < h)
            for low, high in order:
                start = low if reached is None or low > reached else reached
                if high > start:
                    total, reached = total + high - start, high
            lengths.append(total)
        lengths = torch.stack(lengths)
        result.append(share * lengths.mean() + (1 - share) * lengths.max())
    return torch.stack(result)


def mrn(x, y, _) -> torch.Tensor:
    half = x.shape[1] // 2
    euclid = ((x[:, :half] - y[:, :half]) ** 2).sum(1).clamp(min=1e-12).sqrt()
    return euclid + (x[:, half:] - y[:, half:]).max(1).values.relu()


class QRL(Goals):
    """Networks: the embedding and IQE's share, the logarithm of lambda, dynamics (ddpg_bc), the policy."""

    def trained(self):
        return self.nets

    def update(self, batch) -> dict:
        phi, price, *dynamics, policy = self.nets
        s, a, s_next, g, _, _, ga = map(torch.from_numpy, batch)

        def losses_of(phi, dynamics):
            share = torch.sigmoid(phi["share.value"]) if "share.value" in phi else None
            measure = iqe if self.c.quasimetric == "iqe" else mrn
            return (
                lambda x: mlp(phi, x, "embed."),
                lambda x, y: measure(x, y, share),
                lambda z, a: z + mlp(dynamics[0], torch.cat([z, a], 1)),
            )

        embed, d, ahead = losses_of(phi, dynamics)
        z, z_next, z_goal = embed(s), embed(s_next), embed(g)
        push = (100 * F.softplus(5 - d(z, z_goal) / 100)).mean()
        over = ((d(z, z_next) - 1).relu() ** 2).mean()
        lam = torch.exp(price["value"])
        bound = over * lam.detach() + lam * (self.c.eps - over.detach())
        losses = {"push": push}
        value_loss = push + bound
        if dynamics:
            seen = ahead(z, a)
            losses["dynamics_loss"] = (d(z_next, seen) + d(seen, z_next)).mean() / 2
            value_loss = value_loss + losses["dynamics_loss"]

        embed, d, ahead = losses_of(frozen(phi), [frozen(net) for net in dynamics])
        own = torch.cat([s, ga], 1)
        if self.c.actor_loss == "awr":
            advantage = d(embed(s), embed(ga)) - d(embed(s_next), embed(ga))
            policy_loss = self.awr(policy, own, a, advantage, self.c.alpha)
        else:
            policy_loss = self.ddpg_bc(policy, own, a, lambda x: -d(ahead(embed(s), x), embed(ga)))
        self.step(value_loss + policy_loss)
        losses["policy_loss"] = policy_loss
        return {name: loss.item() for name, loss in losses.items()}


class HIQL(Goals):
    """Networks: phi, the values, the high policy, the low policy; target values."""

    def trained(self):
        return self.nets[:4]

    def update(self, batch) -> dict:
        phi, values, high, low, targets = self.nets
        s, a, s_next, g, r, done, near, far, target = map(torch.from_numpy, batch)

        def point(s, g):
            x = mlp(phi, torch.cat([s, g], 1))
            return x / (x**2).sum(1, keepdim=True).sqrt() * x.shape[1] ** 0.5

        def of(values, s, g):
            return both(values, s, point(s, g))

        value_loss = self.value_loss(
            lambda s, g: of(values, s, g),
            lambda s, g: of(targets, s, g),
            *(s, s_next, g, r, 1 - done),
        )
        with torch.no_grad():
            gain_low = (of(values, s_next, near) - of(values, s, near)).mean(0)
            gain_high = (of(values, target, far) - of(values, s, far)).mean(0)
            subgoal, wanted = point(s, near), point(s, target)
        low_loss = self.awr(low, torch.cat([s, subgoal], 1), a, gain_low, self.c.low_alpha)
        high_loss = self.awr(high, torch.cat([s, far], 1), wanted, gain_high, self.c.high_alpha)
        for old, online in zip(targets, values, strict=True):
            self.follow(old, online)
        self.step(value_loss + low_loss + high_loss)
        losses = {"value_loss": value_loss, "low_policy_loss": low_loss}
        losses |= {"high_policy_loss": high_loss}
        return {name: loss.item() for name, loss in losses.items()}
