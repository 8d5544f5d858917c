"""CQL, AWAC and SAC-N/EDAC once more: float64 torch, one seed, one critic at a time, nothing shared.

Written from the equations and what is known of CORL's and the authors' code, not from corerl's files:
every action is passed through the whole critic, densities come from torch.distributions, gradients from
autograd, steps from torch.optim. A network is a dict of arrays with the names of corerl's MLP.
"""

import math

import numpy as np
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

Net = dict[str, torch.Tensor]


def leaves(net) -> Net:
    return {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in net.items()}


def numbers(net: Net) -> dict[str, np.ndarray]:
    return {k: v.detach().numpy() for k, v in net.items()}


def tensor(x) -> torch.Tensor:
    return torch.as_tensor(np.asarray(x), dtype=torch.float64)


def mlp(
    net: Net,
    x: torch.Tensor,
    prefix: str = "",
    *,
    activation=torch.relu,
    eps: float = 1e-5,
    norm_last: bool = False,
    keep=None,
) -> torch.Tensor:
    """Linear layers. Hidden ones have LayerNorm, where the network has any, before or after the activation.

    `keep` are multipliers of the hidden layers.
    """
    depth = sum(k.startswith(f"{prefix}layers.") and k.endswith("weight") for k in net)
    for i in range(depth):
        x = x @ net[f"{prefix}layers.{i}.weight"] + net[f"{prefix}layers.{i}.bias"]
        if i == depth - 1:
            return x
        x = activation(x) if norm_last else x
        if f"{prefix}norms.{i}.weight" in net:
            weight, bias = (net[f"{prefix}norms.{i}.{k}"].flatten() for k in ("weight", "bias"))
            x = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
        x = x if norm_last else activation(x)
        x = x if keep is None else x * tensor(keep[i])


def q(net: Net, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Q at `(B, O)` and `(B, A)`: `(B,)`."""
    return mlp(net, torch.cat([s, a], 1))[:, 0]


def squashed(mean: torch.Tensor, log_std: torch.Tensor) -> TransformedDistribution:
    return TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))


def draw(policy, s, noise) -> tuple[torch.Tensor, torch.Tensor]:
    """An action per state and its log-density; `policy(s)` gives mean and log-std."""
    mean, log_std = policy(s)
    a = torch.tanh(mean + log_std.exp() * noise)
    u = mean + log_std.exp() * noise
    gaussian = Normal(mean, log_std.exp()).log_prob(u).sum(1)
    return a, gaussian - torch.log(1 / torch.cosh(u) ** 2).sum(1)


def adam(lr: float, *nets: Net) -> torch.optim.Adam:
    return torch.optim.Adam([p for net in nets for p in net.values()], lr=lr)


def share_output(*ensembles: list[Net]) -> None:
    """Gives all critics of an ensemble the first one's output layer, as one leaf."""
    for critics in ensembles:
        last = max(k for k in critics[0] if k.startswith("layers.")).split(".")[1]
        for net in critics[1:]:
            net.update({k: critics[0][k] for k in net if k.startswith(f"layers.{last}.")})


def share_norms(*ensembles: list[Net]) -> None:
    """Gives all critics of an ensemble the first one's layer normalisations."""
    for critics in ensembles:
        for net in critics[1:]:
            net.update({k: critics[0][k] for k in net if k.startswith("norms.")})


def joined(nets: list[Net]) -> Net:
    """Every leaf once, numbered, also one that several networks share."""
    distinct = {id(p): p for net in nets for p in net.values()}
    return dict(enumerate(distinct.values()))


def set_grads(optimizer: torch.optim.Adam, loss: torch.Tensor) -> None:
    """The gradient of `loss` for this optimiser's parameters alone, kept for its next step."""
    parameters = optimizer.param_groups[0]["params"]
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    for p, g in zip(parameters, grads, strict=True):
        p.grad = torch.zeros_like(p) if g is None else g


@torch.no_grad()
def polyak(target: Net, online: Net, rate: float) -> None:
    for k in target:
        target[k].copy_((1 - rate) * target[k] + rate * online[k])


class CQL:
    def __init__(
        self, policy, critics, targets, log_alpha: float, log_alpha_prime: float, settings
    ):
        self.c = settings
        self.policy, self.critics = leaves(policy), [leaves(x) for x in critics]
        self.targets = [leaves(x) for x in targets]
        if settings.shared_output:
            share_output(self.critics, self.targets)
        self.log_alpha = leaves({"value": log_alpha})
        self.log_alpha_prime = leaves({"value": log_alpha_prime})
        self.alpha_optimizer = adam(settings.policy_lr, self.log_alpha)
        self.prime_optimizer = adam(settings.critic_lr, self.log_alpha_prime)
        self.policy_optimizer = adam(settings.policy_lr, self.policy)
        self.critic_optimizer = adam(settings.critic_lr, joined(self.critics))
        self.order = getattr(settings, "order", "joint")  # which cql_official alone has
        self.bc_steps = getattr(settings, "bc_steps", 0)
        self.count = 0

    def networks(self) -> tuple:
        critics, targets = [[numbers(n) for n in nets] for nets in (self.critics, self.targets)]
        scalars = [numbers(x)["value"] for x in (self.log_alpha, self.log_alpha_prime)]
        return numbers(self.policy), critics, targets, *scalars

    def distribution(self, s):
        mean, log_std = mlp(self.policy, s, "body.").chunk(2, 1)
        if "multiplier.value" in self.policy:
            log_std = self.policy["multiplier.value"] * log_std + self.policy["offset.value"]
        return mean, log_std.clamp(self.c.log_std_min, self.c.log_std_max)

    def alpha(self) -> torch.Tensor:
        value = self.log_alpha["value"]
        value = torch.log1p(value.exp()) if self.c.tuning == "softplus" else value.exp()
        return (self.c.alpha * value).detach()

    def update(self, batch, noise, uniforms) -> dict:
        """`noise` is (K, B, A): for the policy, the backup, the proposals at s and those at s'."""
        c = self.c
        self.count += 1
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        noise, uniforms = tensor(noise), tensor(uniforms)
        n, dims = c.samples, a.shape[1]
        m = 1 if c.max_backup == "off" else n
        parts = noise.split([1, m, n, n])

        pi, log_pi = draw(self.distribution, s, parts[0][0])
        wanted = -dims if c.target_entropy is None else c.target_entropy
        entropy_gap = (log_pi + wanted).detach().mean()
        loss = -self.log_alpha["value"] * entropy_gap
        if c.tuning == "softplus":
            at_next = [draw(self.distribution, s_next, x)[1] for x in parts[1]]
            lack = (-torch.stack(at_next) + dims).detach().mean()
            loss = c.alpha * torch.log1p(self.log_alpha["value"].exp()) * lack
        if c.tune_alpha:
            set_grads(self.alpha_optimizer, loss)
            if self.order == "alpha_first":
                self.alpha_optimizer.step()
        alpha = self.alpha()
        if self.count <= self.bc_steps:
            mean, log_std = self.distribution(s)
            good = squashed(mean, log_std).log_prob(a.clamp(-1 + 2**-20, 1 - 2**-20)).sum(1)
        else:
            good = torch.minimum(*(q(net, s, pi) for net in self.critics))
        policy_loss = (alpha * log_pi - good).mean()

        with torch.no_grad():
            y = r + c.discount * (1 - d) * self.next_value(s_next, parts[1], alpha)
        bellman, gaps = 0.0, []
        for net in self.critics:
            bellman = bellman + ((q(net, s, a) - y) ** 2).mean()
            gaps.append(self.gap(net, s, a, s_next, parts, uniforms))
        prime = self.log_alpha_prime["value"].exp().clamp(0, 1e6)
        if c.lagrange == "off":
            penalty = c.weight * sum(gaps)
        elif c.lagrange == "young_geng":
            penalties = [prime * c.weight * (gap - c.threshold) for gap in gaps]
        else:
            penalties = [prime * (c.weight * gap - c.threshold) for gap in gaps]
        if c.lagrange != "off":
            penalty = sum(penalties)
            set_grads(self.prime_optimizer, -0.5 * penalty)
        set_grads(self.policy_optimizer, policy_loss)
        set_grads(self.critic_optimizer, bellman + penalty)
        if c.tune_alpha and self.order == "joint":
            self.alpha_optimizer.step()
        for optimizer in (self.policy_optimizer, self.critic_optimizer, self.prime_optimizer):
            optimizer.step()
        polyak(joined(self.targets), joined(self.critics), c.polyak)
        gap = sum(gaps) / 2
        losses = {"policy_loss": policy_loss, "bellman_loss": bellman, "gap": gap}
        return {k: v.item() for k, v in losses.items()}

    def next_value(self, s_next, noises, alpha) -> torch.Tensor:
        values = []  # per action: both critics and the log-density
        for noise in noises:
            a, log_pi = draw(self.distribution, s_next, noise)
            values.append((*(q(net, s_next, a) for net in self.targets), log_pi))
        first, second, log_pi = (torch.stack(x) for x in zip(*values, strict=True))
        if self.c.max_backup == "per_critic":
            return torch.minimum(first.max(0).values, second.max(0).values)
        best = torch.minimum(first, second).argmax(0)
        rows = torch.arange(len(s_next))
        value = torch.minimum(first, second)[best, rows]
        soft = getattr(self.c, "backup_entropy", False)
        return value - alpha * log_pi[best, rows] if soft else value

    def gap(self, net, s, a, s_next, parts, uniforms) -> torch.Tensor:
        c = self.c
        values, log_mu = [], []
        for u in uniforms:
            values.append(q(net, s, 2 * u - 1))
            log_mu.append(torch.full_like(values[-1], a.shape[1] * math.log(0.5)))
        for states, noises in ((s, parts[2]), (s_next, parts[3])):
            for noise in noises:
                action, log_pi = draw(self.distribution, states, noise)
                values.append(q(net, s, action.detach()))
                log_mu.append(log_pi.detach())
        if c.importance_sampling:
            values = [v - m for v, m in zip(values, log_mu, strict=True)]
        else:
            values.append(q(net, s, a))
        total = sum((v / c.temperature).exp() for v in values)
        gap = c.temperature * total.log() - q(net, s, a)
        low = -math.inf if c.gap_min is None else c.gap_min
        high = math.inf if c.gap_max is None else c.gap_max
        return gap.clamp(low, high).mean()


class AWAC:
    """CORL's order: critics with the old policy, policy with the new critics, then the targets."""

    def __init__(self, policy, critics, targets, settings):
        self.c, self.policy = settings, leaves(policy)
        self.critics, self.targets = [leaves(x) for x in critics], [leaves(x) for x in targets]
        self.policy_optimizer = adam(settings.lr, self.policy)
        self.critic_optimizer = adam(settings.lr, *self.critics)

    def networks(self) -> tuple:
        critics, targets = [[numbers(n) for n in nets] for nets in (self.critics, self.targets)]
        return numbers(self.policy), critics, targets

    def distribution(self, s) -> Normal:
        log_std = self.policy["log_std"].clamp(self.c.log_std_min, self.c.log_std_max)
        return Normal(mlp(self.policy, s, "body."), log_std.exp().expand(len(s), -1))

    def draw(self, s, noise):
        normal = self.distribution(s)
        return (normal.mean + normal.stddev * noise).clamp(-1, 1).detach()

    def update(self, batch, noises) -> dict:
        """`noises` (2, B, A): for the next states and for the states."""
        c = self.c
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        noises = tensor(noises)
        low = [q(net, s_next, self.draw(s_next, noises[0])) for net in self.targets]
        y = (r + c.discount * (1 - d) * torch.minimum(*low)).detach()
        critic_loss = sum(((q(net, s, a) - y) ** 2).mean() for net in self.critics)
        set_grads(self.critic_optimizer, critic_loss)
        self.critic_optimizer.step()
        value = torch.minimum(*(q(net, s, self.draw(s, noises[1])) for net in self.critics))
        advantage = (torch.minimum(*(q(net, s, a) for net in self.critics)) - value).detach()
        weight = (advantage / c.temperature).exp().clamp(max=c.max_weight)
        policy_loss = -(weight * self.distribution(s).log_prob(a).sum(1)).mean()
        set_grads(self.policy_optimizer, policy_loss)
        self.policy_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        return {"critic_loss": critic_loss.item(), "policy_loss": policy_loss.item()}


class EDAC:
    """SAC-N where eta is 0. Action gradients by autograd, twice; pairs of critics in a double loop."""

    def __init__(self, policy, critics, targets, log_alpha, settings):
        self.c, self.policy = settings, leaves(policy)
        self.critics, self.targets = [leaves(x) for x in critics], [leaves(x) for x in targets]
        self.log_alpha = leaves({"value": log_alpha})
        self.alpha_optimizer = adam(settings.alpha_lr, self.log_alpha)
        self.policy_optimizer = adam(settings.policy_lr, self.policy)
        share_norms(self.critics, self.targets)
        self.critic_optimizer = adam(settings.critic_lr, joined(self.critics))

    def networks(self) -> tuple:
        critics, targets = [[numbers(n) for n in nets] for nets in (self.critics, self.targets)]
        return numbers(self.policy), critics, targets, numbers(self.log_alpha)["value"]

    def distribution(self, s):
        mean, log_std = mlp(self.policy, s, "body.").chunk(2, 1)
        return mean, log_std.clamp(self.c.log_std_min, self.c.log_std_max)

    def minimum(self, nets, s, a) -> torch.Tensor:
        return torch.stack([q(net, s, a) for net in nets]).min(0).values

    def update(self, batch, noises) -> dict:
        """`noises` (3, B, A): for the temperature, the actor and the next states."""
        c, joint = self.c, self.c.order == "joint"
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        noises = tensor(noises)
        log_pi = draw(self.distribution, s, noises[1 if joint else 0])[1].detach()
        set_grads(self.alpha_optimizer, -self.log_alpha["value"] * (log_pi - a.shape[1]).mean())
        if not joint:
            self.alpha_optimizer.step()
        alpha = self.log_alpha["value"].exp().detach()
        pi, log_pi = draw(self.distribution, s, noises[1])
        policy_loss = (alpha * log_pi - self.minimum(self.critics, s, pi)).mean()
        set_grads(self.policy_optimizer, policy_loss)
        if not joint:
            self.policy_optimizer.step()
        with torch.no_grad():
            a_next, log_pi_next = draw(self.distribution, s_next, noises[2])
            value = self.minimum(self.targets, s_next, a_next) - alpha * log_pi_next
            y = r + c.discount * (1 - d) * value
        bellman = sum(((q(net, s, a) - y) ** 2).mean() for net in self.critics)
        diversity = self.diversity(s, a) if c.eta else torch.zeros((), dtype=torch.float64)
        set_grads(self.critic_optimizer, bellman + c.eta * diversity)
        if joint:
            self.alpha_optimizer.step()
            self.policy_optimizer.step()
        self.critic_optimizer.step()
        polyak(joined(self.targets), joined(self.critics), c.polyak)
        losses = {"policy_loss": policy_loss, "bellman_loss": bellman, "diversity": diversity}
        return {k: v.item() for k, v in losses.items()}

    def diversity(self, s, a) -> torch.Tensor:
        directions = []
        for net in self.critics:
            action = a.clone().requires_grad_()
            g = torch.autograd.grad(q(net, s, action).sum(), action, create_graph=True)[0]
            directions.append(g / (g.norm(dim=1, keepdim=True) + 1e-10))
        n, total = len(directions), 0.0
        for i in range(n):
            for j in range(n):
                if i != j:
                    total = total + (directions[i] * directions[j]).sum(1).mean()
        return total / (n - 1)
