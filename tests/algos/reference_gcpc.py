"""GCPC once more: float64 torch, one seed, one window at a time, on torch's own encoder layers.

Written from what the authors' code computes (gcpc/model/trajnet.py and policynet.py of brown-palm/GCPC), not
from corerl's files. Hidden states are taken out of the sequence. Weights come and go by corerl's names.
"""

import math

import numpy as np
import torch
from reference_dt import layer, norm
from torch.nn import functional as F

SHARES = (0, 0.2, 0.4, 0.6, 0.8)
SAME = {"attention_norm": "norm1", "projection": "self_attn.out_proj", "mlp_norm": "norm2"}
SAME |= {"widen": "linear1", "narrow": "linear2"}


def positions(count: int, width: int) -> torch.Tensor:
    table = torch.zeros(count, width, dtype=torch.float64)
    for place in range(count):
        for i in range(0, width, 2):
            angle = place / 10_000 ** (i / width)
            table[place, i], table[place, i + 1] = math.sin(angle), math.cos(angle)
    return table


def encoder_layer(p: dict, name: str, width: int, heads: int) -> torch.nn.TransformerEncoderLayer:
    """torch's layer with the weights of corerl's block `name`."""
    made = torch.nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.0, F.gelu, norm_first=True, batch_first=True, dtype=torch.float64
    )
    joint = lambda kind: np.concatenate(  # noqa: E731
        [p[f"{name}.{part}.{kind}"].squeeze() for part in ("query", "key_value")], -1
    )
    state = {"self_attn.in_proj_weight": joint("weight").T, "self_attn.in_proj_bias": joint("bias")}
    for mine, theirs in SAME.items():
        state[f"{theirs}.weight"] = p[f"{name}.{mine}.weight"].squeeze().T
        state[f"{theirs}.bias"] = p[f"{name}.{mine}.bias"].squeeze()
    made.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()})
    return made


def block_of(made: torch.nn.TransformerEncoderLayer, p: dict, name: str) -> dict[str, np.ndarray]:
    """The layer's weights by corerl's names, in the shapes of `p`."""
    state = {k: v.detach().numpy() for k, v in made.named_parameters()}
    width = made.self_attn.embed_dim
    parts = np.split(state["self_attn.in_proj_weight"].T, [width], 1)
    biases = np.split(state["self_attn.in_proj_bias"], [width])
    found = {}
    for part, weight, bias in zip(("query", "key_value"), parts, biases, strict=True):
        found |= {f"{name}.{part}.weight": weight, f"{name}.{part}.bias": bias}
    for mine, theirs in SAME.items():
        found |= {
            f"{name}.{mine}.{kind}": state[f"{theirs}.{kind}"].T for kind in ("weight", "bias")
        }
    return {k: v.reshape(p[k].shape) for k, v in found.items()}


class GCPC:
    def __init__(self, settings, trajnet: dict, policy: dict):
        self.c, self.trajnet_arrays = settings, trajnet
        self.layers = {
            name: encoder_layer(trajnet, name, settings.width, settings.heads)
            for name in sorted(
                {k.rpartition(".")[0].rpartition(".")[0] for k in trajnet if "blocks" in k}
            )
        }
        free = {k: v for k, v in trajnet.items() if "blocks" not in k}
        self.p, self.q = (
            {k: torch.tensor(v, requires_grad=True) for k, v in arrays.items()}
            for arrays in (free, policy)
        )
        blocks = [w for made in self.layers.values() for w in made.parameters()]
        self.first, self.second = [*self.p.values(), *blocks], list(self.q.values())
        self.optimizers = (
            torch.optim.Adam(self.first, settings.encoder_lr),
            torch.optim.Adam(self.second, settings.lr),
        )

    def networks(self) -> tuple[dict, dict]:
        free, policy = ({k: v.detach().numpy() for k, v in of.items()} for of in (self.p, self.q))
        for name, made in self.layers.items():
            free |= block_of(made, self.trajnet_arrays, name)
        return {k: free[k] for k in self.trajnet_arrays}, policy

    def run(self, coder: str, tokens):
        for name, made in self.layers.items():
            if name.startswith(coder):
                tokens = made(tokens[None])[0]
        return norm(self.p, f"{coder}.norm", tokens)

    def encode(self, states, goal, shown: list[int]):
        slots, c = self.p["slots.weight"], self.c
        place = positions(c.slots + 1 + len(states), c.width)
        tokens = [slots + place[: c.slots]]
        tokens.append(layer(self.p, "embed_goal", goal[None]) + place[c.slots])
        observed = layer(self.p, "embed_state", states) + place[c.slots + 1 :]
        return self.run("encoder", torch.cat([*tokens, observed[shown]]))[: c.slots]

    def decode(self, slots, length: int):
        masked = self.p["unknown"].reshape(1, -1).expand(length, -1)
        tokens = torch.cat([slots, masked]) + positions(len(slots) + length, self.c.width)
        return layer(self.p, "predict", self.run("decoder", tokens)[len(slots) :])

    def length(self, draw: float) -> int:
        reached, share = self.c.whole, 0
        while draw >= reached and share < 4:
            share, reached = share + 1, reached + (1 - self.c.whole) / 4
        return max(1, int(self.c.history * (1 - SHARES[share])))

    def fit(self, batch, uniform) -> float:
        total, count = 0.0, 0.0
        for states, _, goal, achieved, valid, draws in zip(*batch, uniform, strict=True):
            shown = list(range(self.length(draws[0])))
            if self.c.mask == "mae_rc":
                keep = max(1, int(len(shown) * (1 - SHARES[int(draws[1] * 5)])))
                shown = sorted(sorted(shown, key=lambda i: draws[2 + i])[:keep])
            predicted = self.decode(self.encode(states, goal, shown), len(valid))
            for t in range(len(valid)):
                if valid[t] > 0:
                    total, count = total + ((predicted[t] - achieved[t]) ** 2).mean(), count + 1
        return self.step(0, self.first, total / count)

    def act(self, states, goal, seen: int):
        with torch.no_grad():
            slots = self.encode(states, goal, list(range(seen)))
        parts = torch.cat([states[seen - 1], goal])[None], slots.reshape(1, -1)
        names = "embed_state", "embed_slots"
        inside = [torch.relu(layer(self.q, n, x)) for n, x in zip(names, parts, strict=True)]
        hidden = torch.relu(layer(self.q, "body.layers.0", torch.cat(inside, 1)))
        return layer(self.q, "body.layers.1", hidden)[0]

    def update(self, batch, uniform) -> float:
        errors = []
        for states, actions, goal, _, _, draws in zip(*batch, uniform, strict=True):
            seen = self.length(draws[0])
            errors.append(((self.act(states, goal, seen) - actions[seen - 1]) ** 2).mean())
        return self.step(1, self.second, sum(errors) / len(errors))

    def step(self, phase: int, weights: list, loss) -> float:
        self.optimizers[phase].zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, self.c.max_grad_norm)
        self.optimizers[phase].step()
        return loss.item()
