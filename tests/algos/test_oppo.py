"""OPPO: losses by hand, gradients of z*, updates against a transcription, what latents tell, runs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import reference_dt
import reference_pref_transformer
import torch
from agreement import assert_networks, net, scramble
from small import run
from wording import refused

from corerl import seeding
from corerl.algos import oppo
from corerl.buffers.sequences import Windows
from corerl.config import Config, Eval
from corerl.data.tasks import resolve
from corerl.nn.learner import Spec
from corerl.policies.load import restored
from corerl.preferences import loading, teachers
from corerl.preferences.buffer import PairBuffer, Pairs
from corerl.preferences.sources import Preferences

O, A, K, L, B, S = 3, 2, 4, 5, 6, 2


def settings(**own) -> oppo.Config:
    tiny = {"context": K, "width": 8, "heads": 2, "layers": 2, "max_timestep": 9, "latent": 3}
    tiny |= {"batch_size": B, "warmup_steps": 3, "lr": 1e-2, "weight_decay": 0.1}
    return oppo.Config(**(tiny | own))


def agent_of(seeds=range(S), **own) -> oppo.OPPO:
    rngs = seeding.generators(seeds, "init")
    return oppo.OPPO(settings(**own), Spec(O, A, rngs, identities=seeds))


# Losses.


def test_the_triplet_by_hand():
    """z* at 0: distances 3 : 1 with every label, 1 : 1.5, and two alike."""
    best, labels = torch.zeros(1, 1), torch.tensor([[1.0, 0.0, 0.5, 0.0, 0.0]])
    z = torch.tensor(
        [[[3.0], [1.0]], [[3.0], [1.0]], [[3.0], [1.0]], [[1.0], [-1.5]], [[2.0], [2.0]]]
    )
    for i, expected in enumerate((0.0, 3.0, 2.0, 0.5, 1.0)):
        loss, _ = oppo.triplet(best, z[None, i : i + 1], labels[:, i : i + 1])
        assert float(loss) == pytest.approx(expected)
    loss, accuracy = oppo.triplet(best, z[None], labels)
    assert float(loss) == pytest.approx(6.5 / 5) and float(accuracy) == pytest.approx(2 / 4)


def test_the_gradient_of_the_latent_is_a_difference_of_unit_vectors():
    best = torch.tensor([[0.5, -1.0]], requires_grad=True)
    near, far = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.3])
    z = torch.stack([near, far])[None, None]
    loss, _ = oppo.triplet(best, z, torch.zeros(1, 1))
    unit = [(best[0] - x).detach() / (best[0] - x).detach().norm() for x in (near, far)]
    (found,) = torch.autograd.grad(loss.sum(), best)
    torch.testing.assert_close(found[0], unit[0] - unit[1])
    away = torch.stack([best.detach()[0], torch.tensor([9.0, 9.0])])[None, None]
    (found,) = torch.autograd.grad(oppo.triplet(best, away, torch.zeros(1, 1))[0].sum(), best)
    assert (found == 0).all(), "a rejected one that is farther by more than the margin"


def test_the_norm_term_is_flat_inside_the_ball():
    z = torch.tensor([[[0.3, 0.4], [3.0, 4.0]]], requires_grad=True)
    found = oppo.excess(oppo.length(z), "hinge")
    assert found.tolist() == [[0.0, 4.0]]
    (gradient,) = torch.autograd.grad(found.sum(), z)
    torch.testing.assert_close(gradient[0], torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    assert oppo.excess(oppo.length(z), "square").tolist() == [[0.25, 16.0]]


# Updates.


def data(seed: int):
    rng = np.random.default_rng(seed)

    def tensor(*shape):
        return torch.as_tensor(rng.normal(size=shape))

    valid = torch.ones(S, B, K, dtype=torch.float64)
    valid[:, 0, :2] = 0  # a window that is shorter
    windows = Windows(
        tensor(S, B, K, O), tensor(S, B, K, A).tanh(), valid * 0, valid.cumsum(-1).long(), valid
    )
    labels = torch.as_tensor(rng.choice([0.0, 0.5, 1.0], (S, B)))
    pairs = Pairs(tensor(S, B, 2, L, O), tensor(S, B, 2, L, A).tanh(), labels)
    return windows, pairs, tensor(S, B, K, O)


class Transcription:
    """One seed, one window and one segment at a time, without dropout."""

    def __init__(self, agent: oppo.OPPO, seed: int):
        def copied(part):
            return {k: torch.tensor(v, requires_grad=True) for k, v in net(part, seed).items()}

        self.c = agent.cfg
        self.encoder, self.decoder = copied(agent.encoder), copied(agent.decoder)
        self.best = agent.best[seed].detach().clone().requires_grad_(True)
        decay = {"weight_decay": self.c.weight_decay}
        self.adams = [
            torch.optim.AdamW(p, rate, **decay)
            for p, rate in (
                (self.decoder.values(), self.c.lr),
                (self.encoder.values(), self.c.lr),
                ([self.best], self.c.latent_lr),
            )
        ]
        self.count = 0

    def encode(self, states, actions, valid):
        drop = lambda place, x, head=0: x  # noqa: E731
        sizes = (self.c.layers, self.c.heads)
        h = reference_pref_transformer.hidden(
            self.encoder, states, actions, valid.numpy(), *sizes, drop, causal=False
        )
        head = [reference_dt.layer(self.encoder, f"head.layers.{i}", x) for i, x in ((0, h),)]
        z = reference_dt.layer(self.encoder, "head.layers.1", torch.relu(head[0]))
        return z[valid > 0].mean(0)

    def triplet(self, best, z, label):
        first, second = ((best - x).square().sum().sqrt() for x in z)
        if label == 0.5:
            return (first - second).abs()
        near, far = (second, first) if label == 1 else (first, second)
        return torch.relu(1 + near - far)

    def latents(self, pairs):
        every = torch.ones(L, dtype=torch.float64)
        return [
            [self.encode(s, a, every) for s, a in zip(*pair, strict=True)]
            for pair in zip(pairs.observations, pairs.actions, strict=True)
        ]

    def update(self, windows, pairs, noise):
        c, errors, lengths = self.c, [], []
        drop = lambda place, x, head=0: x  # noqa: E731
        for b in range(B):
            w = Windows(*(x[b] for x in windows))
            z = self.encode(w.observations, w.actions, w.valid)
            seen = w._replace(
                observations=w.observations + c.state_noise * noise[b], returns_to_go=[z] * K
            )
            actions = reference_dt.actions(self.decoder, seen, c.layers, c.heads, torch.relu, drop)
            errors.append(((actions - w.actions)[w.valid > 0] ** 2).flatten())
            lengths.append(z.norm())
        compared = self.latents(pairs)
        preference = sum(
            self.triplet(self.best.detach(), z, y)
            for z, y in zip(compared, pairs.labels, strict=True)
        )
        lengths = torch.stack([*lengths, *(z.norm() for two in compared for z in two)])
        over = torch.relu(lengths - 1) if c.norm == "hinge" else (lengths - 1) ** 2
        loss = torch.cat(errors).mean() + c.preference_weight * preference / B
        loss = loss + c.norm_weight * over.mean()
        for adam in self.adams:
            adam.zero_grad()
        loss.backward()
        for network in (self.decoder, self.encoder):
            torch.nn.utils.clip_grad_norm_(network.values(), c.max_grad_norm)
        self.adams[0].param_groups[0]["lr"] = c.lr * min((self.count + 1) / c.warmup_steps, 1)
        self.count += 1
        for adam in self.adams[:2]:
            adam.step()
        with torch.no_grad():
            compared = self.latents(pairs)
        loss = (
            sum(self.triplet(self.best, z, y) for z, y in zip(compared, pairs.labels, strict=True))
            / B
        )
        loss.backward()
        self.adams[2].step()


@pytest.mark.parametrize("own", [{}, {"norm": "square", "preference_weight": 0.3, "layers": 1}])
def test_updates_equal_the_transcription(float64, own):
    agent = agent_of(**own)
    scramble(agent.encoder, agent.decoder)
    others = [Transcription(agent, i) for i in range(S)]
    for k in range(4):
        windows, pairs, noise = data(k)
        agent.update(windows, pairs, noise, None)
        for i, other in enumerate(others):
            own = Pairs(*(x[i] for x in pairs[:3]))
            other.update(Windows(*(x[i] for x in windows)), own, noise[i])
    for i, other in enumerate(others):
        theirs = [
            {k: v.detach().numpy() for k, v in p.items()} for p in (other.encoder, other.decoder)
        ]
        assert_networks([net(agent.encoder, i), net(agent.decoder, i)], theirs, 1e-8)
        torch.testing.assert_close(agent.best[i], other.best, rtol=1e-8, atol=1e-9)


def test_padding_changes_no_latent(float64):
    agent = agent_of()
    windows, _, _ = data(0)
    other = windows.observations.clone()
    other[:, 0, :2] += 5.0
    one, two = (
        agent.encoder(x, windows.actions, windows.valid) for x in (windows.observations, other)
    )
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_keys_drop_units_in_every_pass_alone():
    agent = agent_of(dropout=0.5)
    keys = torch.arange(S * agent.places, dtype=torch.int32).view(S, -1)
    parts = agent.split(keys)
    assert [x.shape[1] for x in parts] == [7, 7, 7]
    _, pairs, _ = data(0)
    pairs = Pairs(*(x.float() for x in pairs[:3]))
    assert not torch.equal(agent.encode_pairs(pairs), agent.encode_pairs(pairs, parts.pairs))
    torch.testing.assert_close(agent.encode_pairs(pairs), agent.encode_pairs(pairs))


# Learning.


def test_latents_tell_which_held_out_segment_is_preferred(tmp_path):
    """By -|z - z*|, and not at first. Labels are of returns, on Pendulum."""
    preferences = Preferences(pairs=500, length=20)
    own = {"context": 8, "width": 16, "heads": 2, "layers": 1, "latent": 4, "batch_size": 32}
    own |= {"lr": 3e-3, "latent_lr": 3e-2, "warmup_steps": 10, "preferences": preferences}
    cfg = Config(
        algo=oppo.Config(**own),
        task="corerl/pendulum",
        steps=250,
        eval=Eval(every=250, episodes=1),
        root=str(tmp_path),
        compile="off",
    )
    agent = restored(cfg, run(cfg, (0,))).state["agent"]
    first = oppo.OPPO(cfg.algo, Spec(3, 1, seeding.generators([0], "init")))
    held_out = teachers.teach(resolve("corerl/pendulum").load(), replace(preferences, seed=9))
    compared, _ = loading.prepared(
        SimpleNamespace(task=held_out), held_out, cfg.algo.data, agent.normalizer
    )
    batch = PairBuffer(compared, [0], 300).last(500)
    right = [
        float(oppo.triplet(x.best, x.encode_pairs(batch), batch.labels)[1]) for x in (first, agent)
    ]
    assert right[1] > 0.9 > right[0]


def job(root, **changes) -> Config:
    own = {"context": 5, "width": 8, "layers": 1, "latent": 3, "batch_size": 8}
    algo = oppo.Config(**own, preferences=Preferences(pairs=10, length=6))
    cell = {"task": "corerl/pendulum", "steps": 20, "eval": Eval(every=10, episodes=2)}
    often = {"log_every": 4, "save_every": 4, "save_minutes": 0, "root": str(root)}
    return Config(algo=algo, compile="off", **(cell | often | changes))


def test_a_segment_longer_than_the_time_table_raises_an_error(tmp_path):
    cfg = job(tmp_path)
    with refused("algo.max_timestep=5 6"):
        run(replace(cfg, algo=replace(cfg.algo, max_timestep=5)))
