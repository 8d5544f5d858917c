"""MR.Q once more: float64 torch, one seed, one critic at a time, returns and bins row by row.

Written from the paper's description and what is known of the authors' code (facebookresearch/MRQ at
8a44a7d), not from corerl's file: every step of a piece is walked through in order, gradients come from
autograd, steps and clipping from torch.
"""

import numpy as np
import torch
from reference_soft import leaves, numbers, polyak, set_grads, tensor
from torch.nn.functional import elu


def norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def forward(net, x, prefix: str, activation):
    """Hidden layers, each normalised before its activation."""
    depth = sum(k.startswith(f"{prefix}layers.") and k.endswith("weight") for k in net)
    for i in range(depth):
        x = x @ net[f"{prefix}layers.{i}.weight"] + net[f"{prefix}layers.{i}.bias"][0]
        x = activation(norm(x)) if i < depth - 1 else x
    return x


class MRQ:
    """`nets` and `targets` are (encoder, policy, [critic, critic])."""

    def __init__(self, nets, targets, settings):
        self.c = settings
        self.nets, self.targets = (
            [leaves(x[0]), leaves(x[1]), *map(leaves, x[2])] for x in (nets, targets)
        )
        rates = (settings.encoder_lr, settings.policy_lr, settings.critic_lr)
        groups = (self.nets[:1], self.nets[1:2], self.nets[2:])
        self.optimizers = [
            torch.optim.AdamW(
                [p for net in group for p in net.values()],
                lr=rate,
                weight_decay=settings.weight_decay,
            )
            for group, rate in zip(groups, rates, strict=True)
        ]
        self.scale, self.target_scale = 1.0, 1.0

    def networks(self) -> tuple:
        return tuple(
            (numbers(x[0]), numbers(x[1]), [numbers(net) for net in x[2:]])
            for x in (self.nets, self.targets)
        )

    @staticmethod
    def features(net, s):
        return elu(norm(forward(net, s, "state.", elu)))

    @staticmethod
    def joined(net, z, a):
        of_action = elu(a @ net["action.weight"] + net["action.bias"][0])
        return forward(net, torch.cat([z, of_action], 1), "both.", elu)

    @staticmethod
    def policy(net, z):
        """Before tanh."""
        return forward(net, z, "", torch.relu)

    @staticmethod
    def q(net, joined):
        return forward(net, joined, "", elu)[:, 0]

    def two_hot(self, r: float):
        c = self.c
        marks = np.linspace(-c.reward_limit, c.reward_limit, c.reward_bins)
        marks = np.sign(marks) * (np.exp(np.abs(marks)) - 1)
        out = torch.zeros(c.reward_bins, dtype=torch.float64)
        r = min(max(r, marks[0]), marks[-1])
        below = max(i for i in range(c.reward_bins - 1) if i == 0 or marks[i] <= r)
        share = (r - marks[below]) / (marks[below + 1] - marks[below])
        out[below], out[below + 1] = 1 - share, share
        return out

    def update_encoder(self, pieces, met: float) -> dict:
        s, a, r, after, end, counted = (tensor(x) for x in pieces)
        c, rows = self.c, len(s)
        encoder, z = self.nets[0], self.features(self.nets[0], s)
        dynamics = reward = ends = 0.0
        for k in range(c.horizon):
            out = (
                self.joined(encoder, z, a[:, k]) @ encoder["model.weight"]
                + encoder["model.bias"][0]
            )
            over, z, logits = (
                out[:, 0],
                out[:, 1 : 1 + c.hidden_width],
                out[:, 1 + c.hidden_width :],
            )
            goal = self.features(self.targets[0], after[:, k]).detach()
            for i in range(rows):
                if not counted[i, k]:
                    continue
                dynamics = dynamics + (z[i] - goal[i]).pow(2).mean() / rows
                law = torch.softmax(logits[i], 0).log()
                reward = reward - (self.two_hot(float(r[i, k])) * law).sum() / rows
                ends = ends + (over[i] - end[i, k]) ** 2 / rows
        loss = c.dynamics_weight * dynamics + c.reward_weight * reward
        set_grads(self.optimizers[0], loss + c.end_weight * met * ends)
        self.optimizers[0].step()
        losses = {"dynamics_loss": dynamics, "reward_loss": reward, "end_loss": ends}
        return {k: v.item() for k, v in losses.items()}

    def copy(self, size: float) -> None:
        for target, net in zip(self.targets, self.nets, strict=True):
            polyak(target, net, 1.0)
        self.scale, self.target_scale = size, self.scale

    @torch.no_grad()
    def goal(self, pieces, noise):
        _, _, r, after, end, counted = (tensor(x) for x in pieces)
        c, ys = self.c, []
        for i in range(len(r)):
            total, ahead = 0.0, 1.0
            for k in range(c.n_step):
                if counted[i, k]:
                    if c.terminal_reward or not end[i, k]:
                        total += ahead * float(r[i, k])
                    ahead *= c.discount
                    final, last = bool(end[i, k]), after[i, k][None]
            z = self.features(self.targets[0], last)
            jitter = (c.target_noise * noise[i]).clamp(-c.target_clip, c.target_clip)
            a = (torch.tanh(self.policy(self.targets[1], z)) + jitter).clamp(-1, 1)
            lowest = min(
                float(self.q(n, self.joined(self.targets[0], z, a))) for n in self.targets[2:]
            )
            total += 0.0 if final else ahead * self.target_scale * lowest
            ys.append(total / self.scale)
        return tensor(ys)

    def update(self, pieces, noise) -> tuple[dict, np.ndarray]:
        c = self.c
        s, a, *_ = (tensor(x) for x in pieces)
        y = self.goal(pieces, tensor(noise))
        z = self.features(self.nets[0], s).detach()
        joined = self.joined(self.nets[0], z, a[:, 0]).detach()
        errors = torch.stack([self.q(net, joined) - y for net in self.nets[2:]])
        huber = torch.where(errors.abs() < 1, 0.5 * errors**2, errors.abs() - 0.5)
        critic_loss = huber.mean()
        set_grads(self.optimizers[2], critic_loss)
        torch.nn.utils.clip_grad_norm_(self.optimizers[2].param_groups[0]["params"], c.max_norm)
        self.optimizers[2].step()
        raw = self.policy(self.nets[1], z)
        joined = self.joined(self.nets[0], z, torch.tanh(raw))
        value = sum(self.q(net, joined).mean() for net in self.nets[2:]) / 2
        policy_loss = c.flatness * (raw**2).mean() - value
        set_grads(self.optimizers[1], policy_loss)
        self.optimizers[1].step()
        largest = errors.detach().abs().max(0).values.numpy()
        priorities = np.maximum(largest, c.smallest_priority) ** c.priority_power
        losses = {"critic_loss": critic_loss.item(), "policy_loss": policy_loss.item()}
        return losses, priorities
