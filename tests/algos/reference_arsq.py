"""ARSQ and CQN once more: float64 torch, one seed, one network and one choice at a time.

Written from the equations and what is known of the authors' code, not from corerl's files: an interval
is a pair of edges, every context is built by walking along the choices, laws are projected atom by
atom, gradients come from autograd, steps from torch.optim. Behaviour losses are the authors', and
demonstrations carry a flag.
"""

from itertools import product

import numpy as np
import torch
from reference_soft import adam, leaves, mlp, numbers, polyak, set_grads, tensor


def walk(action, levels: int, bins: int, d: int):
    """The choices of dimension `d`, and its interval before each of them and after the last."""
    low, high, chosen, intervals = -1.0, 1.0, [], [(-1.0, 1.0)]
    for _ in range(levels):
        width = (high - low) / bins
        u = int(min(max(np.floor((action[d] - low) / width), 0), bins - 1))
        low, high = low + u * width, low + (u + 1) * width
        chosen.append(u)
        intervals.append((low, high))
    return chosen, intervals


def norm(net, x, prefix: str):
    centred = x - x.mean(-1, keepdim=True)
    x = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return x * net[f"{prefix}weight"][0] + net[f"{prefix}bias"][0]


class ARSQ:
    """Twin networks in a list, each a value and advantages with all heads."""

    def __init__(self, critics, targets, settings):
        self.c = settings
        self.critics, self.targets = [leaves(x) for x in critics], [leaves(x) for x in targets]
        self.optimizer = adam(settings.lr, *self.critics)

    def networks(self) -> tuple:
        return [numbers(n) for n in self.critics], [numbers(n) for n in self.targets]

    def soft(self, net, s, contexts, k: int):
        """A of the k-th choice `(n, bins)`, for states and their contexts."""
        heads = mlp(net, torch.cat([s, contexts], 1), "advantage.", activation=torch.tanh)
        g = heads[:, k * self.c.bins : (k + 1) * self.c.bins]
        top = g.max(1, keepdim=True).values
        return g - top - self.c.alpha * ((g - top) / self.c.alpha).exp().sum(1, keepdim=True).log()

    def value(self, net, s):
        return mlp(net, s, "value.", activation=torch.tanh)[..., 0]

    def sequence(self, action):
        """Each choice of an action with the centres of all dimensions before it, levels outermost."""
        c, dims = self.c, len(action)
        walks = [walk(action, c.levels, c.bins, d) for d in range(dims)]
        now = [0] * dims  # choices made of each dimension
        for level in range(c.levels):
            for d in range(dims):
                edges = [walks[j][1][now[j]] for j in range(dims)]
                yield walks[d][0][level], tensor([(low + high) / 2 for low, high in edges])
                now[d] += 1

    def behaviour(self, a, u: int):
        c = self.c
        others = [a[j] for j in range(c.bins) if j != u]
        if c.behaviour == "lse":
            t = c.behaviour_temperature
            height = t * torch.stack(others).div(t).logsumexp(0)
            return torch.clamp(height - a[u], min=c.behaviour_floor)
        return sum(torch.clamp(x - a[u], min=c.behaviour_floor) for x in others) / len(others)

    def update(self, batch) -> dict:
        c = self.c
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        rows, demos = len(r), c.demos.rows
        sequences = [list(self.sequence(x.numpy())) for x in a]
        v_next = torch.stack([self.value(net, s_next) for net in self.targets]).min(0).values
        y = (r + c.discount * (1 - d) * v_next).detach()
        bellman, behaviour, total_q = 0.0, 0.0, 0.0
        for net in self.critics:
            contexts = [torch.stack([x[k][1] for x in sequences]) for k in range(len(sequences[0]))]
            advantages = [self.soft(net, s, x, k) for k, x in enumerate(contexts)]
            for i in range(rows):
                soft = [x[i] for x in advantages]
                taken = [u for u, _ in sequences[i]]
                q = self.value(net, s[i]) + sum(x[u] for x, u in zip(soft, taken, strict=True))
                total_q = total_q + q / (2 * rows)
                bellman = bellman + (q - y[i]) ** 2 / rows
                if i < demos:
                    loss = sum(self.behaviour(x, u) for x, u in zip(soft, taken, strict=True))
                    size = demos if c.behaviour_mean == "demos" else rows
                    behaviour = behaviour + loss / size
        loss = c.bellman_weight * bellman + c.behaviour_weight * behaviour
        set_grads(self.optimizer, loss)
        self.optimizer.step()
        for target, online in zip(self.targets, self.critics, strict=True):
            polyak(target, online, c.polyak)
        losses = {"bellman_loss": bellman, "behaviour_loss": behaviour, "q": total_q}
        return {k: v.item() for k, v in losses.items()}

    @torch.no_grad()
    def act(self, nets, s, dims: int, uniforms=None):
        """One action, from one state: greedy, or by where each uniform number falls."""
        c = self.c
        low, high = [-1.0] * dims, [1.0] * dims
        for k in range(c.levels * dims):
            d = k % dims
            context = tensor([[(x + y) / 2 for x, y in zip(low, high, strict=True)]])
            a = torch.minimum(*(self.soft(net, s[None], context, k)[0] for net in nets))
            u = int(a.argmax())
            if uniforms is not None:
                shares = torch.exp((a - a.max()) / c.alpha).numpy()
                u = int(np.searchsorted(np.cumsum(shares / shares.sum()), uniforms[k], "right"))
            width = (high[d] - low[d]) / c.bins
            low[d] += u * width
            high[d] = low[d] + width
        return [(x + y) / 2 for x, y in zip(low, high, strict=True)]


class CQN:
    def __init__(self, critic, target, settings):
        self.c, self.critic, self.target = settings, leaves(critic), leaves(target)
        still = [k for k in self.critic if not self.learned(k)]
        self.optimizer = torch.optim.AdamW(
            [p for k, p in self.critic.items() if k not in still],
            lr=settings.lr,
            weight_decay=settings.weight_decay,
        )
        self.support = torch.linspace(
            settings.low, settings.high, settings.atoms, dtype=torch.float64
        )

    @staticmethod
    def learned(name: str) -> bool:
        """No layer before a normalisation has a bias that learns."""
        last = "body.layers.2." in name
        return not (name.endswith("bias") and "norm" not in name and not last)

    def networks(self) -> tuple:
        return numbers(self.critic), numbers(self.target)

    def logits(self, net, s, centre, level: int):
        """`(n, D, bins, atoms)` of states, their centres and one level."""
        c, (n, dims) = self.c, centre.shape
        one_hot = torch.zeros(n, c.levels, dtype=torch.float64)
        one_hot[:, level] = 1
        out = []
        for branch in ("value.", "advantage."):
            h = s @ net[f"{branch}features.weight"] + net[f"{branch}features.bias"][0]
            h = torch.tanh(norm(net, h, f"{branch}norm."))
            x = torch.cat([h, centre, one_hot], 1)
            out.append(mlp(net, x, f"{branch}body.", activation=lambda x: x * torch.sigmoid(x)))
        value, advantage = out[0].view(n, dims, 1, -1), out[1].view(n, dims, c.bins, -1)
        return value + advantage - advantage.mean(2, keepdim=True)

    def along(self, net, s, actions):
        """The choices `[row][D][L]` that make actions, and per level the laws of all bins on the way."""
        c, dims = self.c, actions.shape[1]
        walks = [[walk(x, c.levels, c.bins, d) for d in range(dims)] for x in actions]
        laws = []
        for level in range(c.levels):
            edges = np.array([[intervals[level] for _, intervals in row] for row in walks])
            laws.append(torch.softmax(self.logits(net, s, tensor(edges.mean(2)), level), -1))
        return [[chosen for chosen, _ in row] for row in walks], laws

    @torch.no_grad()
    def greedy(self, net, s, dims: int, uniforms=None):
        c = self.c
        low, high = np.full((len(s), dims), -1.0), np.full((len(s), dims), 1.0)
        for level in range(c.levels):
            laws = torch.softmax(self.logits(net, s, tensor((low + high) / 2), level), -1)
            q = (laws * self.support).sum(-1).numpy()
            u = q.argmax(2)
            if uniforms is not None:
                for i, d in zip(*np.nonzero(q.max(2) - q.min(2) < 1e-4), strict=True):
                    u[i, d] = int(uniforms[i, level * dims + d] * c.bins)
            width = (high - low) / c.bins
            low, high = low + u * width, low + (u + 1) * width
        return (low + high) / 2

    def project(self, law, r: float, gamma: float):
        """Atom by atom onto the neighbours, as in C51's algorithm 1."""
        c = self.c
        out = torch.zeros(c.atoms, dtype=torch.float64)
        step = (c.high - c.low) / (c.atoms - 1)
        for p, z in zip(law, self.support, strict=True):
            place = (min(max(float(r + gamma * z), c.low), c.high) - c.low) / step
            below = min(int(np.floor(place)), c.atoms - 2)
            out[below] += p * (below + 1 - place)
            out[below + 1] += p * (place - below)
        return out

    def update(self, batch, uniforms) -> dict:
        c = self.c
        s, a, r, s_next, d = (tensor(x) for x in batch[:5])
        rows, dims, demos = len(r), a.shape[1], c.demos.rows
        parts = c.levels * dims
        critic_loss = dominance = margin = 0.0
        best = self.greedy(self.critic, s_next, dims, uniforms)
        with torch.no_grad():
            then, next_laws = self.along(self.target, s_next, best)
        taken, laws = self.along(self.critic, s, a.numpy())
        for i, j, level in product(range(rows), range(dims), range(c.levels)):
            gamma = c.discount * (1 - float(d[i]) if c.terminals == "end" else 1.0)
            law, u = laws[level][i, j], taken[i][j][level]
            next_law = next_laws[level][i, j, then[i][j][level]]
            goal = self.project(next_law, float(r[i]), gamma)
            critic_loss = critic_loss - (goal * law[u].log()).sum() / (rows * parts)
            if i >= demos:
                continue
            mean = (law * self.support).sum(-1)
            for other in range(c.bins):
                share = 1 / (demos * parts * c.bins)
                ahead = law[u].cumsum(0) - law[other].cumsum(0)
                dominance = dominance + share * torch.relu(ahead).sum()
                margin = margin + share * torch.relu(c.margin - mean[u] + mean[other])
        loss = c.critic_weight * critic_loss + c.dominance_weight * dominance
        set_grads(self.optimizer, loss + c.margin_weight * margin)
        self.optimizer.step()
        polyak(self.target, self.critic, c.polyak)
        losses = {"critic_loss": critic_loss, "dominance_loss": dominance, "margin_loss": margin}
        return {k: v.item() for k, v in losses.items()}
