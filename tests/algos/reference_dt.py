"""The Decision Transformer once more: float64 torch, one seed, one window at a time.

Written from the paper and what is known of the authors' Gym code (additive masks of -1e4, every token
through every block, windows cut by Python loops), not from corerl's files.
"""

import numpy as np
import torch

from corerl.buffers.sequences import Windows


def window(observations, actions, rewards, start: int, end: int, first: int, length: int, scale):
    """The authors' batch entry: rows first to first + K of the episode [start, end), left-padded."""
    stop = min(first + length, end)
    pad = length - (stop - first)
    mean, std = observations.mean(0), observations.std(0) + 1e-6
    states = np.concatenate([np.zeros((pad, observations.shape[1])), observations[first:stop]])
    to_go = [sum(float(r) for r in rewards[i:end]) / scale for i in range(first, stop)]
    return Windows(
        (states - mean) / std,
        np.concatenate([np.full((pad, actions.shape[1]), -10.0), actions[first:stop]]),
        np.array([0.0] * pad + to_go),
        np.array([0] * pad + list(range(first - start, stop - start))),
        np.array([0.0] * pad + [1.0] * (stop - first)),
    )


def layer(p, name: str, x):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def norm(p, name: str, x):
    centred = x - x.mean(-1, keepdim=True)
    spread = torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
    return centred / spread * p[f"{name}.weight"] + p[f"{name}.bias"]


def actions(p, w: Windows, layers: int, heads: int, activation, drop):
    """Predicted actions (K, A) of one window; `drop(place, x)` applies dropout."""
    tokens = []
    for k in range(len(w.valid)):
        time = p["embed_time.weight"][int(w.timesteps[k])]
        tokens.append(layer(p, "embed_return", w.returns_to_go[k].reshape(1, -1))[0] + time)
        tokens.append(layer(p, "embed_state", w.observations[k][None])[0] + time)
        tokens.append(layer(p, "embed_action", w.actions[k][None])[0] + time)
    x = drop(0, norm(p, "embed_norm", torch.stack(tokens)))
    length, width = x.shape
    padded = -1e4 * (1 - w.valid.repeat_interleave(3))
    future = torch.full((length, length), -torch.inf, dtype=x.dtype).triu(1)
    for i in range(layers):
        name = f"blocks.{i}."
        h = norm(p, name + "attention_norm", x)
        query = layer(p, name + "query", h)
        key, value = layer(p, name + "key_value", h).split(width, 1)
        size = width // heads
        mixed = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[:, part] @ key[:, part].T / size**0.5 + padded[None, :] + future
            weights = torch.softmax(scores, 1)
            mixed.append(drop(1 + 3 * i, weights, head) @ value[:, part])
        x = x + drop(2 + 3 * i, layer(p, name + "projection", torch.cat(mixed, 1)))
        h = activation(layer(p, name + "widen", norm(p, name + "mlp_norm", x)))
        x = x + drop(3 + 3 * i, layer(p, name + "narrow", h))
    return torch.tanh(layer(p, "action", norm(p, "norm", x)))[1::3]


class DT:
    def __init__(self, parameters: dict, settings, activation=torch.relu):
        self.c, self.activation = settings, activation
        self.p = {k: torch.tensor(v, requires_grad=True) for k, v in parameters.items()}
        self.optimizer = torch.optim.AdamW(
            self.p.values(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda n: min((n + 1) / settings.warmup_steps, 1)
        )

    def network(self) -> dict[str, np.ndarray]:
        return {k: v.detach().numpy() for k, v in self.p.items()}

    def update(self, batch: Windows, kept) -> float:
        """`kept(place, window, head, shape)` is the dropout mask, or None; batch fields are (B, K, ...)."""
        c, errors, weights = self.c, [], []
        for b in range(len(batch.valid)):
            w = Windows(*(x[b].double() for x in batch))

            def drop(place, x, head=0, b=b):
                mask = kept(place, b, head, tuple(x.shape))
                return x if mask is None else x * torch.as_tensor(mask) / (1 - c.dropout)

            predicted = actions(self.p, w, c.layers, c.heads, self.activation, drop)
            valid = w.valid > 0
            errors.append(((predicted - w.actions)[valid] ** 2).flatten())
            weights.append(w.valid.numel() * predicted.shape[1])
        total = torch.cat(errors)
        loss = total.mean() if c.loss_over == "valid" else total.sum() / sum(weights)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.p.values(), c.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        return loss.item()


def kept(key: int, size: int, rate: float) -> np.ndarray:
    """The first `size` dropout decisions of a key, in unsigned arithmetic."""
    key = np.uint32(key & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        x = np.arange(size, dtype=np.uint32) ^ key
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D) + key
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x = x ^ (x >> np.uint32(16))
    return (x % 2**24) / 2**24 >= rate - 2**-26


def masks(keys: list[int], cfg, tokens: int = 3):
    """Dropout decisions place by place, numbered through windows, heads, tokens and features.

    Of a step's `tokens` the second is a state, and the last block computes states only.
    """

    def at(place, window, head, shape):
        if cfg.dropout == 0:
            return None
        attention, last = place % 3 == 1, (place - 1) // 3 == cfg.layers - 1
        heads = cfg.heads if attention else 1
        used = slice(1, None, tokens) if last and place else slice(None)
        rows = len(range(shape[0])[used])
        size = rows * shape[1]
        every = kept(keys[place], (window + 1) * heads * size, cfg.dropout)
        whole = np.ones(shape, bool)
        whole[used] = every[(window * heads + head) * size :][:size].reshape(rows, shape[1])
        return whole

    return at
