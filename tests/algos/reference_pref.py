"""IPL, CPL and P-IQL's reward once more: float64 torch, one seed, one comparison and critic at a time.

Written from the equations and what is known of the authors' code, not from corerl's files: the groups of
points never meet in one tensor, labels enter as y log p + (1 - y) log (1 - p), densities come from
torch.distributions, gradients from autograd, steps from torch.optim, averages from plain loops. `pairs`
has the fields of Pairs without the seed axis, and a network is a dict with the names of corerl's MLP.
"""

import numpy as np
import reference
import torch
from agreement import SEEDS, WIDTH, A, O, as_tensor
from reference_dt import kept
from reference_soft import adam, leaves, mlp, numbers, polyak, q, set_grads, tensor
from torch.distributions import Normal

from corerl.preferences.buffer import Pairs

COMPARISONS, LENGTH = 3, 5


def make_pairs(count: int, members: int = 1) -> list[Pairs]:
    """Three comparisons for each member, other data for each seed; one of three is a tie.

    Some actions are on the bounds.
    """
    rng = np.random.default_rng(2)
    lead = (SEEDS, members * COMPARISONS, 2, LENGTH)

    def pairs() -> Pairs:
        observations = rng.normal(size=(*lead, O))
        actions = rng.uniform(-1.2, 1.2, (*lead, A)).clip(-1, 1)
        labels = np.tile([0.0, 0.5, 1.0], (SEEDS, members))
        return Pairs(*map(as_tensor, (observations, actions, labels)))

    return [pairs() for _ in range(count)]


def one(pairs: Pairs, seed: int) -> Pairs:
    """One seed's comparisons, float64."""
    return Pairs(*(x[seed].double().numpy() for x in pairs if x is not None))


def make_keys(count: int, layers: int) -> list[torch.Tensor]:
    """Dropout keys `(S, layers)`."""
    rng = torch.Generator().manual_seed(3)
    return list(torch.randint(2**31, (count, SEEDS, layers), generator=rng).int())


def masks(keys: torch.Tensor, rows: int, rate: float) -> np.ndarray:
    """The multipliers `(layers, rows, WIDTH)` of one seed's keys."""
    dropped = [kept(key, rows * WIDTH, rate).reshape(rows, WIDTH) for key in keys.tolist()]
    return np.stack(dropped) / (1 - rate)


def crops(pairs, segment: int) -> list[tuple[torch.Tensor, ...]]:
    """(s, a, s') of one of the two segments of every comparison: the last step only looks back."""
    found = []
    for observations, actions in zip(pairs.observations, pairs.actions, strict=True):
        s, a = tensor(observations[segment]), tensor(actions[segment])
        found.append((s[:-1], a[:-1], s[1:]))
    return found


def density(policy, settings, s, keep=None) -> Normal:
    """N(tanh(f(s)), exp(clip(log_std))^2); `keep` are multipliers of the hidden layers."""
    x = s
    depth = sum(k.startswith("body.layers.") and k.endswith("weight") for k in policy)
    for i in range(depth):
        x = x @ policy[f"body.layers.{i}.weight"] + policy[f"body.layers.{i}.bias"]
        if i < depth - 1:
            x = x if keep is None else x * keep[i]
            x = torch.relu(x)
    log_std = policy["log_std"].clamp(settings.log_std_min, settings.log_std_max)
    return Normal(torch.tanh(x), log_std.exp().expand(len(s), -1))


def cross_entropy(logit: torch.Tensor, y: float) -> torch.Tensor:
    p = 1 / (1 + torch.exp(-logit))
    return -(y * p.log() + (1 - y) * (1 - p).log())


class IPL:
    """`value` is None for the AWAC form."""

    def __init__(self, value, policy, critics, targets, settings):
        self.c = settings
        self.value = None if value is None else leaves(value)
        self.policy = leaves(policy)
        self.critics, self.targets = [leaves(x) for x in critics], [leaves(x) for x in targets]
        if value is not None:
            self.value_optimizer = adam(settings.lr, self.value)
        self.policy_optimizer = adam(settings.lr, self.policy)
        self.critic_optimizer = adam(settings.lr, *self.critics)

    def networks(self) -> tuple:
        critics, targets = [[numbers(n) for n in nets] for nets in (self.critics, self.targets)]
        value = {} if self.value is None else numbers(self.value)
        return value, numbers(self.policy), critics, targets

    def mix(self, first, second, replayed) -> torch.Tensor:
        """(1 - w) (mean on the first segments + mean on the second) / 2 + w mean on the dataset."""
        of_pairs = (torch.cat(first).mean() + torch.cat(second).mean()) / 2
        if replayed is None:
            return of_pairs
        w = self.c.replay_weight
        return (1 - w) * of_pairs + w * replayed.mean()

    def groups(self, pairs, replay, function):
        """`function(s, a, s', discount, place)` on each segment and on the dataset.

        `place` is the slice that these transitions have in draws made for all of them.
        """
        c, steps = self.c, pairs.observations.shape[2] - 1
        both: list[list] = [[], []]
        for segment in (0, 1):
            for i, crop in enumerate(crops(pairs, segment)):
                start = (2 * i + segment) * steps
                discount = torch.full((steps,), c.discount, dtype=torch.float64)
                both[segment].append(function(*crop, discount, slice(start, start + steps)))
        if replay is None:
            return *both, None
        discount = c.discount * (1 - tensor(replay.terminated))
        place = slice(2 * len(pairs.labels) * steps, None)
        rows = [tensor(x) for x in (replay.observations, replay.actions, replay.next_observations)]
        return *both, function(*rows, discount, place)

    def update(self, pairs, replay=None, keep=None, noise=None) -> dict:
        if self.c.form == "awac":
            return self.update_awac(pairs, replay, tensor(noise))
        c = self.c

        def target_q(s, a, *_):
            return torch.stack([q(net, s, a) for net in self.targets]).min(0).values.detach()

        def v(s):
            return mlp(self.value, s)[:, 0]

        def regression(s, a, *_):
            u = target_q(s, a) - v(s)
            if c.form == "xql":
                z = torch.minimum(u / c.gumbel_scale, torch.tensor(c.gumbel_limit))
                return z.exp() - z - 1
            return (c.expectile - (u < 0).double()).abs() * u**2

        value_loss = self.mix(*self.groups(pairs, replay, regression))
        set_grads(self.value_optimizer, value_loss)
        self.value_optimizer.step()

        def next_value(s_next, discount):
            value = v(s_next).detach()
            if c.target_clipping:
                limit = 1 / (c.chi2 * (1 - discount))
                value = torch.maximum(torch.minimum(value, limit), -limit)
            return value

        def advantage(s, a, *_):
            return target_q(s, a) - v(s).detach()

        losses = {"value_loss": value_loss.item()}
        losses |= self.fit_critics(pairs, replay, lambda s, d, _: next_value(s, d))
        return losses | self.extract(pairs, replay, lambda s, a, _: advantage(s, a), keep)

    def fit_critics(self, pairs, replay, next_value) -> dict:
        preference, penalty, n = 0.0, 0.0, len(self.critics)
        for net in self.critics:

            def reward(s, a, s_next, discount, place, net=net):
                return q(net, s, a) - discount * next_value(s_next, discount, place)

            first, second, replayed = self.groups(pairs, replay, reward)
            for r1, r2, y in zip(first, second, pairs.labels, strict=True):
                preference = preference + cross_entropy(r2.sum() - r1.sum(), float(y))
            squares = [[r**2 for r in group] for group in (first, second)]
            penalty = penalty + self.mix(*squares, None if replayed is None else replayed**2)
        preference = preference / (n * len(pairs.labels))
        penalty = self.c.chi2 * penalty / n
        set_grads(self.critic_optimizer, preference + penalty)
        self.critic_optimizer.step()
        return {"preference_loss": preference.item(), "chi2_loss": penalty.item()}

    def extract(self, pairs, replay, advantage, keep) -> dict:
        c = self.c

        def regression(s, a, s_next, discount, place):
            weight = (advantage(s, a, place) / c.temperature).exp().clamp(max=c.max_weight)
            masks = None if keep is None else [tensor(mask)[place] for mask in keep]
            return -weight * density(self.policy, c, s, masks).log_prob(a).sum(1)

        loss = self.mix(*self.groups(pairs, replay, regression))
        set_grads(self.policy_optimizer, loss)
        self.policy_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        return {"policy_loss": loss.item()}

    def update_awac(self, pairs, replay, noise) -> dict:
        """`noise` (2, N, A): for the next states, and for the states."""
        c = self.c

        def draw(s, noise):
            normal = density(self.policy, c, s)
            return (normal.mean + normal.stddev * noise).detach()

        def next_value(s_next, discount, place):
            a = draw(s_next, noise[0, place])
            values = torch.stack([q(net, s_next, a) for net in self.targets]).detach()
            return values.min(0).values if c.min_target else sum(values) / len(values)

        def mean_q(s, a):
            return sum(q(net, s, a).detach() for net in self.critics) / len(self.critics)

        cached = {}
        self.groups(pairs, replay, lambda s, a, _, __, p: cached.update({str(p): mean_q(s, a)}))
        losses = self.fit_critics(pairs, replay, next_value)

        def advantage(s, a, place):
            return cached[str(place)] - mean_q(s, draw(s, noise[1, place]))

        return losses | self.extract(pairs, replay, advantage, None)


class CPL:
    """Cloning for `bc_steps` updates, then the contrastive loss with a new optimiser."""

    def __init__(self, policy, settings):
        self.c, self.policy, self.count = settings, leaves(policy), 0
        self.optimizer = adam(settings.lr, self.policy)
        self.reference = None

    def networks(self) -> dict:
        return numbers(self.policy)

    def update(self, pairs, keep=None) -> dict:
        """`keep` are multipliers (layers, B * 2 * L, width), comparison after comparison."""
        c = self.c
        steps = pairs.actions.shape[2]
        scores, total = [], 0.0
        for i in range(len(pairs.labels)):
            both = []
            for segment in (0, 1):
                start = (2 * i + segment) * steps
                masks = None if keep is None else [tensor(m)[start : start + steps] for m in keep]
                s, a = (tensor(x[i, segment]) for x in (pairs.observations, pairs.actions))
                log_prob = self.log_prob(self.policy, s, a, masks)
                total = total - log_prob.sum()
                if self.reference is not None:
                    log_prob = log_prob - self.log_prob(self.reference, s, a, None).detach()
                both.append(c.alpha * log_prob.sum())
            scores.append(both)
        bc_loss = total / (len(pairs.labels) * 2 * steps)
        losses = {"bc_loss": bc_loss.item()}
        loss = bc_loss
        if self.count >= c.bc_steps:
            loss = 0.0
            for (first, second), y in zip(scores, pairs.labels, strict=True):
                if_second = second.exp() / (second.exp() + (c.bias * first).exp())
                if_first = first.exp() / (first.exp() + (c.bias * second).exp())
                loss = loss - (float(y) * if_second.log() + (1 - float(y)) * if_first.log())
            loss = loss / len(scores)
            losses["cpl_loss"] = loss.item()
            loss = loss + c.bc_weight * bc_loss
            done = self.count - c.bc_steps
            rate = c.lr * c.lr_factor * min(1.0, (done + 1) / c.warmup_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        set_grads(self.optimizer, loss)
        self.optimizer.step()
        self.count += 1
        if self.count == c.bc_steps:
            self.optimizer = adam(c.lr, self.policy)
            if c.reference:
                self.reference = leaves(numbers(self.policy))
                self.reference = {k: v.detach().clone() for k, v in self.reference.items()}
        return losses

    def log_prob(self, policy, s, a, keep) -> torch.Tensor:
        normal = density(policy, self.c, s, keep)
        if self.c.policy == "deterministic":
            return -((normal.mean - a) ** 2).sum(1)
        return normal.log_prob(a).sum(1)


class RankedCPL:
    """The contrastive loss on every pair of a batch, whose segments end in padding."""

    def __init__(self, policy, settings):
        self.c, self.policy = settings, leaves(policy)
        self.optimizer = adam(settings.lr, self.policy)

    def networks(self) -> dict:
        return numbers(self.policy)

    def update(self, batch, keep=None) -> dict:
        """`batch` are (B, L, ...); `keep` are multipliers (layers, B * L, width), segment after segment."""
        advantages, (count, length) = [], batch.valid.shape
        for i in range(count):
            real = int(batch.valid[i].sum())
            rows = slice(i * length, i * length + real)
            x = tensor(batch.observations[i][:real])
            depth = len(self.policy) // 2
            for k in range(depth):
                x = x @ self.policy[f"layers.{k}.weight"] + self.policy[f"layers.{k}.bias"]
                if k < depth - 1:
                    x = x if keep is None else x * tensor(keep[k][rows])
                    x = torch.relu(x)
            away = (torch.tanh(x) - tensor(batch.actions[i][:real])) / 2
            advantages.append(-(away**2).sum() / real / self.c.temperature)
        terms, right = [], 0
        for better in range(count):
            for worse in range(count):
                if batch.scores[better] > batch.scores[worse]:
                    high, low = advantages[better], self.c.bias * advantages[worse]
                    terms.append(-torch.log(high.exp() / (high.exp() + low.exp())))
                    right += int(advantages[better] > advantages[worse])
        loss = sum(terms) / len(terms)
        set_grads(self.optimizer, loss)
        self.optimizer.step()
        return {"cpl_loss": loss.item(), "accuracy": right / len(terms)}


class PrefIQL:
    """Rewards of its own, and `reference.IQL` on their mean; comparisons stand member after member."""

    def __init__(self, rewards, value, policy, critics, targets, settings, steps: int):
        self.members, self.c = [leaves(net) for net in rewards], settings.reward
        self.optimizers = [adam(self.c.lr, net) for net in self.members]
        self.iql = reference.IQL(value, policy, critics, targets, settings, steps)

    def networks(self) -> tuple:
        return [numbers(net) for net in self.members], *self.iql.networks()

    def rewards(self, net, s, a) -> torch.Tensor:
        r = mlp(net, torch.cat([tensor(s), tensor(a)], 1))[:, 0]
        return torch.tanh(r) if self.c.bounded else r

    def fit_reward(self, pairs) -> dict:
        losses, own = [], len(pairs.labels) // len(self.members)
        for m, (net, optimizer) in enumerate(zip(self.members, self.optimizers, strict=True)):
            loss = 0.0
            for i in range(m * own, (m + 1) * own):
                s, a = pairs.observations[i], pairs.actions[i]
                first, second = (self.rewards(net, s[j], a[j]).sum() for j in (0, 1))
                loss = loss + cross_entropy(second - first, float(pairs.labels[i])) / own
            set_grads(optimizer, loss)
            optimizer.step()
            losses.append(loss.item())
        return {"reward_loss": sum(losses) / len(losses)}

    def update(self, batch, uniforms=None) -> dict:
        """`batch` with its own rewards, which are not read."""
        rewards = [self.rewards(net, batch.observations, batch.actions) for net in self.members]
        mean = (sum(rewards) / len(rewards)).detach().numpy()
        return self.iql.update(batch._replace(rewards=mean), uniforms)
