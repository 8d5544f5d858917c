"""DTR once more: float64 torch and Python loops, one seed at a time.

Written from what is known of the paper and the authors' code, not from corerl's files; the transformer is
that of reference_dt.
"""

import numpy as np
import reference_dt
import torch


def leaves(parameters: dict) -> dict:
    return {k: torch.tensor(v, requires_grad=True) for k, v in parameters.items()}


def arrays(parameters: dict) -> dict[str, np.ndarray]:
    return {k: v.detach().numpy() for k, v in parameters.items()}


def mlp(p: dict, x, activation):
    depth = len(p) // 2
    for i in range(depth):
        x = x @ p[f"layers.{i}.weight"] + p[f"layers.{i}.bias"][0]
        if i < depth - 1:
            x = activation(x)
    return x[..., 0]


class Reward:
    """An ensemble of one seed: soft cross-entropy over the sums of both segments."""

    def __init__(self, members: list[dict], settings):
        self.c, self.members = settings, [leaves(member) for member in members]
        every = [p for member in self.members for p in member.values()]
        self.optimizer = torch.optim.Adam(every, lr=settings.lr)

    def reward(self, member: dict, x):
        slope = 0.01 if self.c.activation == "leaky_relu" else 0.0
        out = mlp(member, x, lambda h: torch.where(h > 0, h, slope * h))
        if self.c.sigmoid:
            return 1 / (1 + torch.exp(-out))
        return torch.tanh(out) if self.c.bounded else out

    def update(self, observations, actions, labels, importance=None) -> tuple[float, float]:
        """Fields are (M, B, 2, L, ...); the mean cross-entropy and accuracy over members."""
        losses, accuracies, away = [], [], []
        for m, member in enumerate(self.members):
            terms, right = [], []
            for b in range(len(labels[m])):
                scores = []
                for side in range(2):
                    found = [
                        self.reward(member, torch.cat([s, a])[None])[0]
                        for s, a in zip(observations[m, b, side], actions[m, b, side], strict=True)
                    ]
                    total, steps = sum(found), len(found)
                    scores.append(total if self.c.score == "sum" else total / steps)
                    for r, w in zip(
                        found, () if importance is None else importance[m, b, side], strict=False
                    ):
                        away.append((r - w * total) ** 2 / (2 * steps * len(labels[m])))
                log_p = torch.log_softmax(torch.stack(scores), 0)
                y = labels[m, b]
                terms.append(-((1 - y) * log_p[0] + y * log_p[1]))
                if y != 0.5:
                    right.append(float((scores[1] > scores[0]) == (y > 0.5)))
            losses.append(sum(terms) / len(terms))
            accuracies.append(np.mean(right) if right else 0.0)
        self.optimizer.zero_grad()
        (sum(losses) + self.c.prior * sum(away)).backward()
        self.optimizer.step()
        return sum(losses).item() / len(losses), float(np.mean(accuracies))


class DTR:
    """`policy`, `critics` (two) and copies of them for the targets; `settings` is a Config."""

    def __init__(self, policy, critics, target_policy, target_critics, settings, steps: int):
        self.c, self.steps, self.k = settings, steps, 0
        self.policy, self.critics = leaves(policy), [leaves(c) for c in critics]
        self.target_policy = {k: torch.tensor(v) for k, v in target_policy.items()}
        self.target_critics = [{k: torch.tensor(v) for k, v in c.items()} for c in target_critics]
        self.policy_optimizer = torch.optim.Adam(
            self.policy.values(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        both = [p for critic in self.critics for p in critic.values()]
        self.critic_optimizer = torch.optim.Adam(both, lr=settings.lr)
        self.both = both

    def networks(self) -> tuple:
        online = arrays(self.policy), [arrays(c) for c in self.critics]
        return *online, arrays(self.target_policy), [arrays(c) for c in self.target_critics]

    def act(self, policy, w, kept, b: int):
        def drop(place, x, head=0):
            mask = kept(place, b, head, tuple(x.shape))
            return x if mask is None else x * torch.as_tensor(mask) / (1 - self.c.dropout)

        return reference_dt.actions(policy, w, self.c.layers, self.c.heads, torch.relu, drop)

    def q(self, critic, states, actions):
        return mlp(critic, torch.cat([states, actions], -1), torch.nn.functional.mish)

    def update(self, batch, kept_target, kept_policy, order: float) -> dict[str, float]:
        """Fields of `batch` are (B, K, ...); `kept_*` give the dropout masks of both passes."""
        c, windows = (
            self.c,
            [type(batch)(*(x[b].double() for x in batch)) for b in range(len(batch[0]))],
        )
        last = c.context - 1
        errors = [[], []]
        for b, w in enumerate(windows):
            with torch.no_grad():
                action = self.act(self.target_policy, w, kept_target, b)[last]
                value = min(self.q(t, w.observations[last], action) for t in self.target_critics)
            for i in range(last):
                if w.valid[i] == 0:
                    continue
                y = sum(c.discount ** (j - i) * w.rewards[j] for j in range(i, last))
                y = y + c.discount ** (last - i) * (1 - w.terminated[last]) * value
                for k, critic in enumerate(self.critics):
                    errors[k].append((self.q(critic, w.observations[i], w.actions[i]) - y) ** 2)
        critic_loss = sum(torch.stack(e).mean() for e in errors)
        self.step(self.critic_optimizer, critic_loss, self.both)

        imitation, values = [], [[], []]
        for b, w in enumerate(windows):
            actions = self.act(self.policy, w, kept_policy, b)
            for i in range(c.context):
                if w.valid[i] == 0:
                    continue
                imitation.append((actions[i] - w.actions[i]) ** 2)
                for k, critic in enumerate(self.critics):
                    values[k].append(self.q(critic, w.observations[i], actions[i]))
        one, other = (torch.stack(v) for v in (values if order > 0.5 else values[::-1]))
        bc_loss = torch.cat(imitation).mean()
        q_loss = -one.mean() / other.abs().mean().detach()
        loss = c.bc_coef * bc_loss + c.eta * self.k / self.steps * q_loss
        self.step(self.policy_optimizer, loss, list(self.policy.values()))

        if self.k > c.ema_start and self.k % c.ema_every == 0:
            self.follow(self.target_policy, self.policy, c.ema)
        for target, critic in zip(self.target_critics, self.critics, strict=True):
            self.follow(target, critic, c.polyak)
        self.k += 1
        iterations = max(1, int(np.ceil(self.steps / c.lr_every)))  # a broken last round counts
        rate = c.lr * (np.cos(np.pi * (self.k // c.lr_every) / iterations) + 1) / 2
        for optimizer in (self.policy_optimizer, self.critic_optimizer):
            optimizer.param_groups[0]["lr"] = rate
        return {
            "critic_loss": critic_loss.item(),
            "bc_loss": bc_loss.item(),
            "q_loss": q_loss.item(),
        }

    def step(self, optimizer, loss, parameters) -> None:
        for p in parameters:
            p.grad = None
        loss.backward(inputs=parameters)
        torch.nn.utils.clip_grad_norm_(parameters, self.c.max_grad_norm)
        optimizer.step()

    @torch.no_grad()
    def follow(self, target: dict, online: dict, share: float) -> None:
        for name in target:
            target[name] = (1 - share) * target[name] + share * online[name]
