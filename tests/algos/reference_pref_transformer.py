"""The Preference Transformer once more: float64 torch, one seed, one segment and one token at a time.

Written from the authors' code as described, not from corerl's files: additive masks, every token through
every block, and a learning rate computed by optax's formula.
"""

import math

import numpy as np
import torch
from reference_dt import layer, norm


def hidden(p, states, actions, valid, layers: int, heads: int, drop, causal: bool = True):
    """The state tokens after the last block, (L, width); `drop(place, x, head)` applies dropout."""
    tokens, number = [], 0
    for k in range(len(valid)):
        number += int(valid[k])
        time = p["embed_time.weight"][number if valid[k] else 0]
        tokens.append(layer(p, "embed_action", actions[k][None])[0] + time)
        tokens.append(layer(p, "embed_state", states[k][None])[0] + time)
    x = drop(0, norm(p, "embed_norm", torch.stack(tokens)))
    length, width = x.shape
    padded = -1e4 * (1 - torch.as_tensor(valid, dtype=x.dtype).repeat_interleave(2))
    future = torch.full((length, length), -1e4 * causal, dtype=x.dtype).triu(1)
    for i in range(layers):
        name = f"blocks.{i}."
        h = norm(p, name + "attention_norm", x)
        query = layer(p, name + "query", h)
        key, value = layer(p, name + "key_value", h).split(width, 1)
        size, mixed = width // heads, []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[:, part] @ key[:, part].T / size**0.5 + padded[None, :] + future
            mixed.append(drop(1 + 3 * i, torch.softmax(scores, 1), head) @ value[:, part])
        x = x + drop(2 + 3 * i, layer(p, name + "projection", torch.cat(mixed, 1)))
        h = torch.relu(layer(p, name + "widen", norm(p, name + "mlp_norm", x)))
        x = x + drop(3 + 3 * i, layer(p, name + "narrow", h))
    return norm(p, "norm", x)[1::2]


def rewards(p, h):
    if "preference.weight" in p:
        return layer(p, "preference", h)[:, -1]
    return layer(p, "head.layers.1", torch.relu(layer(p, "head.layers.0", h)))[:, 0]


def score(p, h, scale: str = "none"):
    """Of a segment: the mean over t of sum_j softmax_j(q_t k_j / scale) r_j, or of r_t."""
    r = rewards(p, h)
    if "preference.weight" not in p:
        return r.mean()
    parts, width = layer(p, "preference", h), h.shape[1]
    z = []
    for t in range(len(h)):
        w = [torch.dot(parts[t, :width], parts[j, width : 2 * width]) for j in range(len(h))]
        w = torch.softmax(torch.stack(w) / (math.sqrt(width) if scale == "width" else 1), 0)
        z.append((w * r).sum())
    return sum(z) / len(z)


class Reward:
    def __init__(self, parameters: dict, settings):
        self.c, self.k = settings, 0
        self.p = {k: torch.tensor(v, requires_grad=True) for k, v in parameters.items()}
        self.optimizer = torch.optim.AdamW(
            self.p.values(), lr=settings.lr / 10, weight_decay=settings.weight_decay
        )

    def network(self) -> dict[str, np.ndarray]:
        return {k: v.detach().numpy() for k, v in self.p.items()}

    def loss(self, observations, actions, labels, kept=None):
        """Fields are (B, 2, L, ...); `kept(place, segment, head, shape)` is a dropout mask or None."""
        terms = []
        for b in range(len(labels)):
            scores = []
            for side in range(2):

                def drop(place, x, head=0, n=2 * b + side):
                    mask = None if kept is None else kept(place, n, head, tuple(x.shape))
                    return x if mask is None else x * torch.as_tensor(mask) / (1 - self.c.dropout)

                s, a = observations[b, side], actions[b, side]
                h = hidden(self.p, s, a, [1] * len(s), self.c.layers, self.c.heads, drop)
                scores.append(score(self.p, h, self.c.scale))
            log_p = torch.log_softmax(torch.stack(scores), 0)
            terms.append(-((1 - labels[b]) * log_p[0] + labels[b] * log_p[1]))
        return sum(terms) / len(terms)

    def update(self, observations, actions, labels, kept) -> float:
        loss = self.loss(observations, actions, labels, kept)
        self.optimizer.param_groups[0]["lr"] = self.rate(self.k)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.k += 1
        return loss.item()

    def rate(self, k: int) -> float:
        low, peak, warm = self.c.lr / 10, self.c.lr, int(self.c.warmup * self.c.steps)
        if k < warm:
            return low + (peak - low) * k / warm
        share = min((k - warm) / (self.c.steps - warm), 1)
        cosine, floor = (1 + math.cos(math.pi * share)) / 2, low / peak
        return peak * ((1 - floor) * cosine + floor)

    def relabelled(self, states, actions, ends) -> np.ndarray:
        """r_t at every row, of the window that ends there, padded on the left with zeros."""
        out, start = [], 0
        for end in ends:
            for row in range(start, end):
                first = max(start, row - self.c.window + 1)
                pad = self.c.window - (row + 1 - first)
                window = [
                    torch.cat([torch.zeros(pad, x.shape[1], dtype=x.dtype), x[first : row + 1]])
                    for x in (states, actions)
                ]
                valid = [0] * pad + [1] * (row + 1 - first)
                plain = lambda place, x, head=0: x  # noqa: E731
                h = hidden(self.p, *window, valid, self.c.layers, self.c.heads, plain)
                out.append(rewards(self.p, h)[-1].item())
            start = end
        return np.array(out)
