"""The offline algorithms once more: plain numpy, float64, one seed, every gradient by hand.

Written from the papers' equations and what is known of the authors' code, not from corerl's files, so
that agreement of the two is evidence. A network is a dict with the names and layout of corerl's MLP:
`layers.i.weight (in, out)`, `layers.i.bias (1, out)`, `norms.i.weight` and `norms.i.bias (1, out)`.
A batch has the fields of corerl's Batch without the seed axis; `settings` is the algorithm's Config.
Each `update` changes the networks in place and returns the losses of its last gradients.
"""

import numpy as np

Net = dict[str, np.ndarray]


def mlp(net: Net, x: np.ndarray, keep=None, eps: float = 1e-6):
    """The output, and what `mlp_grad` needs. A hidden layer: ReLU, LayerNorm if any, dropout if any."""
    tape = []
    last = _depth(net) - 1
    for i in range(last):
        z = x @ net[f"layers.{i}.weight"] + net[f"layers.{i}.bias"]
        h, unit, spread = np.maximum(z, 0), None, None
        if f"norms.{i}.weight" in net:
            centred = h - h.mean(1, keepdims=True)
            spread = np.sqrt((centred**2).mean(1, keepdims=True) + eps)
            unit = centred / spread
            h = unit * net[f"norms.{i}.weight"] + net[f"norms.{i}.bias"]
        mask = 1.0 if keep is None else keep[i]
        tape.append((x, z, unit, spread, mask))
        x = h * mask
    tape.append((x,))
    return x @ net[f"layers.{last}.weight"] + net[f"layers.{last}.bias"], tape


def mlp_grad(net: Net, tape, dy: np.ndarray) -> tuple[Net, np.ndarray]:
    """Gradients of every parameter and of the input, from the gradient `dy` of the output."""
    grads = {}
    last = _depth(net) - 1
    for i in reversed(range(last + 1)):
        if i < last:
            _, z, unit, spread, mask = tape[i]
            dy = dy * mask
            if unit is not None:
                grads[f"norms.{i}.weight"] = (dy * unit).sum(0, keepdims=True)
                grads[f"norms.{i}.bias"] = dy.sum(0, keepdims=True)
                d = dy * net[f"norms.{i}.weight"]
                along = (d * unit).mean(1, keepdims=True)
                dy = (d - d.mean(1, keepdims=True) - unit * along) / spread
            dy = dy * (z > 0)
        grads[f"layers.{i}.weight"] = tape[i][0].T @ dy
        grads[f"layers.{i}.bias"] = dy.sum(0, keepdims=True)
        dy = dy @ net[f"layers.{i}.weight"].T
    return grads, dy


def _depth(net: Net) -> int:
    return sum(name.startswith("layers.") and name.endswith("weight") for name in net)


class Adam:
    """Kingma and Ba, Algorithm 1, with their constants."""

    def __init__(self, net: Net, lr: float):
        self.net, self.lr, self.t = net, lr, 0
        self.m = {k: np.zeros_like(v) for k, v in net.items()}
        self.v = {k: np.zeros_like(v) for k, v in net.items()}

    def step(self, grads: Net, factor: float = 1.0) -> None:
        assert grads.keys() == self.net.keys()
        self.t += 1
        for k, g in grads.items():
            self.m[k] = 0.9 * self.m[k] + 0.1 * g
            self.v[k] = 0.999 * self.v[k] + 0.001 * g**2
            m, v = self.m[k] / (1 - 0.9**self.t), self.v[k] / (1 - 0.999**self.t)
            self.net[k] -= self.lr * factor * m / (np.sqrt(v) + 1e-8)


def polyak(target: Net, online: Net, rate: float) -> None:
    for k in target:
        target[k] = (1 - rate) * target[k] + rate * online[k]


def q(net: Net, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    return mlp(net, np.concatenate([s, a], 1))[0][:, 0]


def tanh_policy(net: Net, s: np.ndarray) -> np.ndarray:
    return np.tanh(mlp(net, s)[0])


def policy_grad(net: Net, s: np.ndarray, d_action: np.ndarray, keep=None) -> Net:
    """Gradients of tanh(mlp(s)) from the gradient of the action; d tanh(z) = 1 - tanh(z)^2."""
    z, tape = mlp(net, s, keep)
    return mlp_grad(net, tape, d_action * (1 - np.tanh(z) ** 2))[0]


def regress_critics(critics, optimizers, batch, y: np.ndarray, share: float = 1.0) -> float:
    """One step of `share` * sum_i mean (Q_i(s, a) - y)^2; the loss before it."""
    loss = 0.0
    for net, optimizer in zip(critics, optimizers, strict=True):
        out, tape = mlp(net, np.concatenate([batch.observations, batch.actions], 1))
        error = out[:, 0] - y
        loss += share * np.mean(error**2)
        optimizer.step(mlp_grad(net, tape, share * 2 * error[:, None] / len(y))[0])
    return loss


def action_grad_of_q(net: Net, s: np.ndarray, a: np.ndarray, dq: np.ndarray) -> np.ndarray:
    """sum_b dq_b * grad_a Q(s_b, a_b): `(B, A)`."""
    _, tape = mlp(net, np.concatenate([s, a], 1))
    return mlp_grad(net, tape, dq[:, None])[1][:, s.shape[1] :]


def smoothed_target_action(target_actor: Net, batch, noise, settings) -> np.ndarray:
    """clip(pi'(s') + clip(N(0, 0.2^2), +-0.5), +-1), from standard normal draws."""
    jitter = np.clip(settings.policy_noise * noise, -settings.noise_clip, settings.noise_clip)
    return np.clip(tanh_policy(target_actor, batch.next_observations) + jitter, -1, 1)


class BC:
    """min mean over batch and dimensions of (tanh(f(s)) - a)^2."""

    def __init__(self, policy: Net, settings):
        self.policy, self.optimizer = policy, Adam(policy, settings.lr)

    def update(self, batch) -> dict:
        error = tanh_policy(self.policy, batch.observations) - batch.actions
        self.optimizer.step(policy_grad(self.policy, batch.observations, 2 * error / error.size))
        return {"policy_loss": np.mean(error**2)}


class TD3BC:
    """Iterations 1, 2, ...: critics at each, actor and targets where the count divides by the delay."""

    def __init__(self, actor: Net, critics, target_actor: Net, target_critics, settings):
        self.actor, self.critics, self.settings = actor, critics, settings
        self.target_actor, self.target_critics = target_actor, target_critics
        self.actor_optimizer = Adam(actor, settings.lr)
        self.critic_optimizers = [Adam(c, settings.lr) for c in critics]
        self.count = 0

    def networks(self) -> tuple:
        return self.actor, self.critics, self.target_actor, self.target_critics

    def iterate(self, batch, noise) -> dict:
        c = self.settings
        self.count += 1
        a_next = smoothed_target_action(self.target_actor, batch, noise, c)
        q_next = np.min([q(t, batch.next_observations, a_next) for t in self.target_critics], 0)
        y = batch.rewards + c.discount * (1 - batch.terminated) * q_next
        losses = {"critic_loss": regress_critics(self.critics, self.critic_optimizers, batch, y)}
        if self.count % c.policy_delay == 0:
            losses["actor_loss"] = self.improve(batch)
            polyak(self.target_actor, self.actor, c.polyak)
            for target, online in zip(self.target_critics, self.critics, strict=True):
                polyak(target, online, c.polyak)
        return losses

    def improve(self, batch) -> float:
        """-lambda mean Q_1(s, pi) + mean over batch and dims (pi - a)^2, lambda = alpha / mean |Q_1|."""
        s = batch.observations
        pi = tanh_policy(self.actor, s)
        q1 = q(self.critics[0], s, pi)
        weight = self.settings.alpha / np.mean(np.abs(q1))
        error = pi - batch.actions
        through_q = action_grad_of_q(self.critics[0], s, pi, np.full(len(s), -weight / len(s)))
        self.actor_optimizer.step(policy_grad(self.actor, s, through_q + 2 * error / error.size))
        return -weight * np.mean(q1) + np.mean(error**2)


class ReBRAC:
    """Iterations 0, 1, ...: critics at each, actor and targets where the index divides by the delay."""

    def __init__(self, actor: Net, critics, target_actor: Net, target_critics, settings):
        self.actor, self.critics, self.settings = actor, critics, settings
        self.target_actor, self.target_critics = target_actor, target_critics
        self.actor_optimizer = Adam(actor, settings.actor_lr)
        self.critic_optimizers = [Adam(c, settings.critic_lr) for c in critics]
        self.index = 0

    def networks(self) -> tuple:
        return self.actor, self.critics, self.target_actor, self.target_critics

    def iterate(self, batch, noise, shares=(1.0, 1.0)) -> dict:
        """`shares` are what is left of beta_1 and beta_2 while fine-tuning."""
        c = self.settings
        a_next = smoothed_target_action(self.target_actor, batch, noise, c)
        q_next = np.min([q(t, batch.next_observations, a_next) for t in self.target_critics], 0)
        penalty = shares[1] * c.critic_bc_coef * ((a_next - batch.next_actions) ** 2).sum(1)
        y = batch.rewards + c.discount * (1 - batch.terminated) * (q_next - penalty)
        losses = {"critic_loss": regress_critics(self.critics, self.critic_optimizers, batch, y)}
        if self.index % c.policy_delay == 0:
            before = {k: v.copy() for k, v in self.actor.items()}
            losses["actor_loss"] = self.improve(batch, shares[0] * c.actor_bc_coef)
            # The authors mix the actor's target with the actor of before its step, the critics' targets
            # with the critics of after theirs.
            polyak(self.target_actor, before if c.stale_actor_target else self.actor, c.polyak)
            for target, online in zip(self.target_critics, self.critics, strict=True):
                polyak(target, online, c.polyak)
        self.index += 1
        return losses

    def improve(self, batch, beta: float) -> float:
        """mean [beta_1 |pi - a|^2 - lambda min_i Q_i(s, pi)], lambda = 1 / mean |min_i Q_i|, constant."""
        c, s = self.settings, batch.observations
        pi = tanh_policy(self.actor, s)
        both = np.stack([q(net, s, pi) for net in self.critics])
        low = both.min(0)
        weight = 1 / np.mean(np.abs(low)) if c.normalize_q else 1.0
        error = pi - batch.actions
        d_action = beta * 2 * error / len(s)
        for i, net in enumerate(self.critics):  # the gradient goes to the smaller critic only
            chosen = both.argmin(0) == i
            d_action = d_action + action_grad_of_q(net, s, pi, -weight / len(s) * chosen)
        self.actor_optimizer.step(policy_grad(self.actor, s, d_action))
        return np.mean(beta * (error**2).sum(1) - weight * low)


class IQL:
    """`value_first`: V, then actor and Q with the new V (authors). `joint`: all with the old V (CORL)."""

    def __init__(self, value: Net, policy: Net, critics, targets, settings, steps: int):
        """`policy` is a network with its names under `body.`, and `log_std` (1, A)."""
        self.value, self.policy, self.critics, self.targets = value, policy, critics, targets
        self.settings, self.steps, self.count = settings, steps, 0
        self.value_optimizer = Adam(value, settings.lr)
        self.critic_optimizers = [Adam(c, settings.lr) for c in critics]
        self.policy_optimizer = Adam(policy, settings.lr)

    def networks(self) -> tuple:
        return self.value, self.policy, self.critics, self.targets

    def update(self, batch, uniforms=None) -> dict:
        c = self.settings
        s, a = batch.observations, batch.actions
        old_value = {k: v.copy() for k, v in self.value.items()}
        target_q = np.min([q(t, s, a) for t in self.targets], 0)
        losses = {"value_loss": self.fit_value(s, target_q)}
        value = self.value if c.order == "value_first" else old_value
        advantage = target_q - mlp(value, s)[0][:, 0]
        losses["policy_loss"] = self.extract(s, a, advantage, uniforms)
        v_next = mlp(value, batch.next_observations)[0][:, 0]
        y = batch.rewards + c.discount * (1 - batch.terminated) * v_next
        share = 1.0 if c.critic_loss == "sum" else 0.5
        losses["critic_loss"] = regress_critics(
            self.critics, self.critic_optimizers, batch, y, share
        )
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        self.count += 1
        return losses

    def fit_value(self, s, target_q) -> float:
        """mean |tau - 1(u < 0)| u^2, u = min_i Q'_i - V."""
        v, tape = mlp(self.value, s)
        u = target_q - v[:, 0]
        weight = np.abs(self.settings.expectile - (u < 0))
        self.value_optimizer.step(
            mlp_grad(self.value, tape, (-2 * weight * u / len(u))[:, None])[0]
        )
        return np.mean(weight * u**2)

    def extract(self, s, a, advantage, uniforms) -> float:
        """-mean min(exp(beta A), 100) log N(a; tanh(f(s)), exp(clip(log_std))^2), or weighted MSE."""
        c = self.settings
        keep = None if uniforms is None else (uniforms >= c.dropout) / (1 - c.dropout)
        weight = np.minimum(np.exp(c.beta * advantage), c.max_weight)[:, None]
        body = {k.removeprefix("body."): v for k, v in self.policy.items() if k != "log_std"}
        raw = self.policy["log_std"]
        error, n = np.tanh(mlp(body, s, keep)[0]) - a, len(s)
        if c.policy == "deterministic":
            loss = np.mean(weight[:, 0] * (error**2).sum(1))
            d_mean, d_log_std = 2 * weight * error / n, np.zeros_like(raw)
        else:
            log_std = np.clip(raw, c.log_std_min, c.log_std_max)
            scaled = (error / np.exp(log_std)) ** 2
            log_prob = (-0.5 * scaled - log_std - 0.5 * np.log(2 * np.pi)).sum(1)
            loss = -np.mean(weight[:, 0] * log_prob)
            d_mean = weight * error / np.exp(2 * log_std) / n
            inside = (raw >= c.log_std_min) & (raw <= c.log_std_max)
            d_log_std = inside * (weight * (1 - scaled)).sum(0, keepdims=True) / n
        grads = {f"body.{k}": g for k, g in policy_grad(body, s, d_mean, keep).items()}
        factor = (1 + np.cos(np.pi * self.count / self.steps)) / 2 if c.cosine else 1.0
        self.policy_optimizer.step(grads | {"log_std": d_log_std}, factor)
        return loss
