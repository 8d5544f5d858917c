"""O-RAAC, CODAC and static CVaR with a stock once more: float64 torch, one seed, pairs and copies in loops.

Written from what the authors' codes are known to do and from the definitions, not from corerl's files: each
fraction is one pass of the network, pairs of quantiles are compared one by one, densities come from
torch.distributions, steps are torch.optim's. A network is a dict of arrays with the names of corerl's.
"""

import math

import torch
from reference_soft import Net, adam, leaves, mlp, numbers, polyak, set_grads, tensor
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F


def layer(net: Net, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ net[f"{name}.weight"] + net[f"{name}.bias"].reshape(-1)


def waves(tau, count: int, first: int) -> torch.Tensor:
    return torch.tensor(
        [math.cos(math.pi * i * float(tau)) for i in range(first, first + count)],
        dtype=torch.float64,
    )


def huber(u: torch.Tensor, kappa: float) -> torch.Tensor:
    """Of one difference, over kappa."""
    if kappa == 0:
        return abs(u)
    return (0.5 * u**2 if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)) / kappa


def pairs(theta, taus, y, weights, kappa) -> torch.Tensor:
    """One row: mean over predictions i of the sum over targets j of w_j |tau_i - 1{u < 0}| huber(u)."""
    total = 0.0
    for q, tau in zip(theta, taus, strict=True):
        for t, w in zip(y, weights, strict=True):
            u = t - q
            total = total + w * abs(float(tau) - float(u < 0)) * huber(u, kappa)
    return total / len(taus)


class ORAAC:
    def __init__(self, agent_parts, cfg):
        actor, critic, target_actor, target_critic, vae = agent_parts
        self.c = cfg
        self.actor, self.critic = leaves(actor), leaves(critic)
        self.target_actor, self.target_critic = leaves(target_actor), leaves(target_critic)
        self.actor_optimizer = adam(cfg.actor_lr, self.actor)
        self.critic_optimizer = adam(cfg.critic_lr, self.critic)
        self.vae = None
        if vae is not None:
            self.vae = leaves(vae)
            self.vae_optimizer = adam(cfg.vae_lr, self.vae)

    def networks(self) -> tuple:
        nets = (self.actor, self.critic, self.target_actor, self.target_critic, self.vae)
        return tuple(numbers(net) for net in nets if net is not None)

    def z(self, net: Net, s, a, tau) -> torch.Tensor:
        """One fraction for all rows, or one per row: `(B,)`."""
        columns = []
        for row in range(len(s)):
            t = tau if tau.ndim == 0 else tau[row]
            both = [self.phi(layer(net, "state", s[row])), self.phi(layer(net, "action", a[row]))]
            x = self.phi(layer(net, "both", torch.cat(both)))
            x = x * self.phi(layer(net, "embedding", waves(t, self.c.cosines, 0)))
            columns.append(layer(net, "head", self.phi(layer(net, "last", x)))[0])
        return torch.stack(columns)

    def phi(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x) if self.c.activation == "silu" else torch.relu(x)

    def policy(self, net: Net, s, latent) -> torch.Tensor:
        if self.vae is None:
            return torch.tanh(mlp(net, s))
        with torch.no_grad():
            limit = self.c.latent_clip
            z = latent.clamp(-limit, limit)
            b = torch.tanh(mlp(self.vae, torch.cat([s, z], 1), "decoder."))
        xi = torch.tanh(mlp(net, torch.cat([s, b], 1)))
        return (b + self.c.perturbation * xi).clamp(-1, 1)

    def distorted(self, u: torch.Tensor) -> torch.Tensor:
        if self.c.objective == "wang":
            normal = Normal(torch.zeros((), dtype=torch.float64), 1.0)
            return normal.cdf(normal.icdf(u) + self.c.eta)
        return u * (self.c.tau if self.c.objective == "naive" else 1)

    def iterate(self, batch, latents, uniforms) -> dict:
        """VAE and critic. `latents` (3, B, L); `uniforms` (B or 1, N + N + K)."""
        c, n = self.c, self.c.fractions
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        latents, uniforms = tensor(latents), tensor(uniforms)
        losses = {}
        if self.vae is not None:
            mean, log_std = mlp(self.vae, torch.cat([s, a], 1), "encoder.").chunk(2, 1)
            std = log_std.clamp(-4, 15).exp()
            decoded = mlp(self.vae, torch.cat([s, mean + std * latents[0]], 1), "decoder.")
            prior = Normal(torch.zeros_like(mean), torch.ones_like(std))
            divergence = kl_divergence(Normal(mean, std), prior).mean()
            loss = F.mse_loss(torch.tanh(decoded), a) + c.kl_weight * divergence
            set_grads(self.vae_optimizer, loss)
            self.vae_optimizer.step()
            losses["vae_loss"] = loss.item()
        u = uniforms.expand(len(s), -1)
        with torch.no_grad():
            a_next = self.policy(self.target_actor, s_next, latents[1])
            ahead = [self.z(self.target_critic, s_next, a_next, u[:, n + j]) for j in range(n)]
            y = [r + c.discount * (1 - d) * z for z in ahead]
        z = [self.z(self.critic, s, a, u[:, i]) for i in range(n)]
        rows = [
            pairs([q[b] for q in z], u[b, :n], [t[b] for t in y], [1 / n] * n, c.kappa)
            for b in range(len(s))
        ]
        loss = sum(rows) / len(rows)
        set_grads(self.critic_optimizer, loss)
        self.critic_optimizer.step()
        self.last = s, latents[2], u[:, 2 * n :]
        return losses | {"critic_loss": loss.item()}

    def improve(self) -> dict:
        """The actor on the last batch, and the targets."""
        s, latent, u = self.last
        a = self.policy(self.actor, s, latent)
        taus = self.distorted(u)
        value = sum(self.z(self.critic, s, a, taus[:, k]).mean() for k in range(u.shape[1]))
        loss = -value / u.shape[1]
        set_grads(self.actor_optimizer, loss)
        self.actor_optimizer.step()
        polyak(self.target_critic, self.critic, self.c.polyak)
        polyak(self.target_actor, self.actor, self.c.polyak)
        return {"actor_loss": loss.item()}


class CODAC:
    def __init__(self, agent_parts, cfg):
        policy, critics, target_policy, targets, log_alpha, log_alpha_prime = agent_parts
        self.c = cfg
        self.policy, self.critics = leaves(policy), [leaves(x) for x in critics]
        self.target_policy, self.targets = leaves(target_policy), [leaves(x) for x in targets]
        self.log_alpha = leaves({"value": log_alpha})
        self.log_alpha_prime = leaves({"value": log_alpha_prime})
        self.alpha_optimizer = adam(cfg.policy_lr, self.log_alpha)
        self.prime_optimizer = adam(cfg.critic_lr, self.log_alpha_prime)
        self.policy_optimizer = adam(cfg.policy_lr, self.policy)
        self.critic_optimizers = [adam(cfg.critic_lr, net) for net in self.critics]

    def networks(self) -> tuple:
        critics, targets = ([numbers(n) for n in nets] for nets in (self.critics, self.targets))
        scalars = [numbers(x)["value"] for x in (self.log_alpha, self.log_alpha_prime)]
        return numbers(self.policy), critics, numbers(self.target_policy), targets, *scalars

    def normed(self, net: Net, name: str, x: torch.Tensor) -> torch.Tensor:
        x = layer(net, f"{name}.linear", x)
        weight, bias = net[f"{name}.norm.weight"].reshape(-1), net[f"{name}.norm.bias"].reshape(-1)
        return F.layer_norm(x, x.shape[-1:], weight, bias)

    def z(self, net: Net, s, a, taus) -> torch.Tensor:
        """`(B,)` at one fraction per row."""
        x = torch.cat([s, a], 1)
        for i in range(self.c.hidden_layers - 1):
            x = torch.relu(self.normed(net, f"base.{i}", x))
        wave = torch.stack([waves(t, self.c.cosines, 1) for t in taus])
        x = x * torch.sigmoid(self.normed(net, "embedding", wave))
        return layer(net, "head", torch.relu(self.normed(net, "merge", x)))[:, 0]

    def distribution(self, policy: Net, s) -> Normal:
        mean, log_std = mlp(policy, s, "body.").chunk(2, 1)
        return Normal(mean, log_std.clamp(-20, 2).exp())

    def draw(self, policy: Net, s, noise):
        normal = self.distribution(policy, s)
        u = normal.mean + normal.stddev * noise
        log_prob = normal.log_prob(u).sum(1) - torch.log(1 / torch.cosh(u) ** 2).sum(1)
        return torch.tanh(u), log_prob

    @staticmethod
    def partition(u):
        """Middles and lengths of the pieces, `(B, N)`."""
        lengths = (u + 0.1) / (u + 0.1).sum(1, keepdim=True)
        ends = torch.cumsum(lengths, 1)
        starts = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        return (starts + ends) / 2, lengths

    def density(self, taus):
        """g' of the distortion g: 1/tau up to tau, or the slope of Phi(Phi^-1(t) - eta)."""
        c = self.c
        if c.objective == "naive":
            density = (taus < c.tau).double() / c.tau
        elif c.objective == "wang":
            normal = Normal(torch.zeros((), dtype=torch.float64), 1.0)
            x = normal.icdf(taus)
            density = (normal.log_prob(x - c.eta) - normal.log_prob(x)).exp()
        else:
            density = torch.ones_like(taus)
        return density if c.weight_limit is None else density.clamp(max=c.weight_limit)

    def alpha(self):
        return self.log_alpha["value"].detach().exp().item() if self.c.tune_alpha else self.c.alpha

    def update(self, batch, noise, uniforms, which, proposed) -> dict:
        c, n = self.c, self.c.fractions
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        noise, uniforms, proposed = (tensor(x) for x in (noise, uniforms, proposed))
        here, there = noise[2 : 2 + c.samples], noise[2 + c.samples :]
        a_new, log_pi = self.draw(self.policy, s, noise[0])
        target = -a.shape[1] if c.target_entropy is None else c.target_entropy
        if c.tune_alpha:
            loss = -self.log_alpha["value"] * (log_pi.detach() + target).mean()
            set_grads(self.alpha_optimizer, loss)
            self.alpha_optimizer.step()
        alpha = self.alpha()

        with torch.no_grad():
            a_next, log_next = self.draw(self.target_policy, s_next, noise[1])
            taus, masses = self.partition(uniforms[1])
            ahead = [
                torch.minimum(*(self.z(net, s_next, a_next, taus[:, j]) for net in self.targets))
                for j in range(n)
            ]
            y = [r + c.discount * (1 - d) * (z - alpha * log_next) for z in ahead]
            candidates = [(2 * p - 1, -a.shape[1] * math.log(2)) for p in proposed]
            candidates += [self.draw(self.policy, s, e) for e in here]
            candidates += [self.draw(self.policy, s_next, e) for e in there]
        hats, _ = self.partition(uniforms[0])
        places = torch.as_tensor(which).argsort()[: c.penalty_fractions].tolist()
        regression, gaps = 0.0, []
        for net in self.critics:
            z = [self.z(net, s, a, hats[:, i]) for i in range(n)]
            rows = [
                pairs([q[b] for q in z], hats[b], [t[b] for t in y], masses[b], c.kappa)
                for b in range(len(s))
            ]
            regression = regression + sum(rows) / len(rows)
            gap = -torch.stack(z).mean()
            for i in places:
                weighed = [self.z(net, s, x, hats[:, i]) - density for x, density in candidates]
                gap = gap + torch.logsumexp(torch.stack(weighed), 0).mean() / len(places)
            gaps.append(gap)
        prime = self.log_alpha_prime["value"].exp()
        if c.threshold is None:
            penalty = c.weight * sum(gaps)
        else:
            penalty = sum(prime.detach() * (c.weight * gap - c.threshold) for gap in gaps)
            excess = sum(c.weight * gap.detach() - c.threshold for gap in gaps) / 2
            set_grads(self.prime_optimizer, -prime * excess)
        for optimizer in self.critic_optimizers:
            set_grads(optimizer, regression + penalty)
        for optimizer in self.critic_optimizers:
            optimizer.step()
        if c.threshold is not None:
            self.prime_optimizer.step()

        taus, masses = self.partition(uniforms[2])
        weights = self.density(taus) * masses
        values = [
            sum(weights[:, i] * self.z(net, s, a_new, taus[:, i]) for i in range(n))
            for net in self.critics
        ]
        policy_loss = (alpha * log_pi - torch.minimum(*values)).mean()
        set_grads(self.policy_optimizer, policy_loss)
        self.policy_optimizer.step()
        polyak(self.target_policy, self.policy, c.polyak)
        for mine, online in zip(self.targets, self.critics, strict=True):
            polyak(mine, online, c.polyak)
        return {
            "quantile_loss": regression.item(),
            "gap": sum(gap.item() for gap in gaps) / 2,
            "policy_loss": policy_loss.item(),
        }


class StaticCVaR:
    """`low`, `high`: the range to which stocks are kept."""

    def __init__(self, agent_parts, low: float, high: float, cfg):
        actor, critics, target_actor, targets = agent_parts
        self.c, self.low, self.high = cfg, low, high
        self.actor, self.critics = leaves(actor), [leaves(x) for x in critics]
        self.target_actor, self.targets = leaves(target_actor), [leaves(x) for x in targets]
        self.actor_optimizer = adam(cfg.lr, self.actor)
        self.critic_optimizer = adam(cfg.lr, *self.critics)

    def networks(self) -> tuple:
        critics, targets = ([numbers(n) for n in nets] for nets in (self.critics, self.targets))
        return numbers(self.actor), critics, numbers(self.target_actor), targets

    def reported(self, c):
        """The stock as a network sees it: -1 at the lowest, 1 at the highest."""
        return ((c - self.low) / (self.high - self.low) * 2 - 1)[:, None]

    def pi(self, net: Net, s, c):
        return torch.tanh(mlp(net, torch.cat([s, self.reported(c)], 1)))

    def z(self, net: Net, s, c, a):
        return mlp(net, torch.cat([s, self.reported(c), a], 1))

    def iterate(self, batch, stocks, noise) -> dict:
        """A critic update; `stocks` (J * B,) of J copies of the batch, `noise` (J * B, A)."""
        cfg, n = self.c, self.c.fractions
        fields = [tensor(x) for x in batch[:5]]
        s, a, r, s_next, d = (torch.cat([x] * cfg.stocks) for x in fields)
        c, noise = tensor(stocks), tensor(noise)
        with torch.no_grad():
            left = ((c - r) / cfg.discount).clamp(self.low, self.high)
            jitter = (cfg.policy_noise * noise).clamp(-cfg.noise_clip, cfg.noise_clip)
            a_next = (self.pi(self.target_actor, s_next, left) + jitter).clamp(-1, 1)
            ahead = torch.minimum(*(self.z(net, s_next, left, a_next) for net in self.targets))
            y = r[:, None] + cfg.discount * (1 - d)[:, None] * ahead
        taus = [(2 * i + 1) / (2 * n) for i in range(n)]
        loss = 0.0
        for net in self.critics:
            z = self.z(net, s, c, a)
            rows = [pairs(z[b], taus, y[b], [1 / n] * n, cfg.kappa) for b in range(len(s))]
            loss = loss + n * sum(rows) / len(rows)
        set_grads(self.critic_optimizer, loss)
        self.critic_optimizer.step()
        self.last = s, a, c
        return {"critic_loss": loss.item()}

    def improve(self) -> dict:
        s, a, c = self.last
        mine = self.pi(self.actor, s, c)
        z = self.z(self.critics[0], s, c, mine)
        missing = torch.relu(c[:, None] - z).mean()
        weight = self.c.alpha / missing.item()
        loss = self.c.imitation * F.mse_loss(mine, a) + weight * missing
        set_grads(self.actor_optimizer, loss)
        self.actor_optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, self.c.polyak)
        polyak(self.target_actor, self.actor, self.c.polyak)
        return {"actor_loss": loss.item(), "shortfall": missing.item()}
