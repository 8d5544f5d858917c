"""A seed is an identity: the same alone as in company, and deaf to what happens to other seeds.

Every algorithm is driven through its own `train`.
"""

import gymnasium
import pytest
import torch
from small import AVERSE, OFFLINE, Probe, parameters

from corerl.training.evaluation import Evaluator

TEN = list(range(10))
UPDATES = 8


@pytest.fixture(scope="module", params=OFFLINE + AVERSE)
def pair(request) -> tuple[Probe, Probe]:
    """Seed 3 alone and in a batch of ten, after the same updates."""
    return Probe(request.param, [3], updates=UPDATES), Probe(request.param, TEN, updates=UPDATES)


def test_initial_weights_are_bit_equal(pair):
    alone, together = (Probe(p.cfg.algo.name, p.seeds, updates=0) for p in pair)
    mine, theirs = parameters(alone.parts["agent"]), parameters(together.parts["agent"])
    weights = [name for name in mine if name.endswith("weight")]
    assert len(weights) >= 3
    for name in mine:
        assert torch.equal(mine[name][0], theirs[name][3]), name
    for name in (name for name in weights if "norm" not in name):
        assert not torch.equal(theirs[name][3], theirs[name][4]), name


def test_batches_are_bit_equal(pair):
    alone, together = pair
    assert len(alone.batches) == len(together.batches) == UPDATES
    for one, ten in zip(alone.batches, together.batches, strict=True):
        for mine, theirs in zip(one, ten, strict=True):
            assert torch.equal(mine[0], theirs[3])
        assert not torch.equal(ten.observations[3], ten.observations[4])


def test_noise_is_bit_equal(pair):
    alone, _ = pair
    noisy = {"td3_bc", "rebrac", "cql", "awac", "edac", "codac", "cvar_offline"}
    assert ("noise" in alone.parts) == (alone.cfg.algo.name in noisy)
    for name in alone.parts.keys() - {"agent", "buffer"}:
        mine, theirs = (probe.parts[name].next() for probe in pair)
        assert torch.equal(mine[0], theirs[3])
        assert not torch.equal(theirs[3], theirs[4])


def test_parameters_agree_after_updates(pair):
    alone, together = (parameters(probe.parts["agent"]) for probe in pair)
    for name in alone:
        mine, theirs, other = alone[name][0], together[name][3], together[name][4]
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: n + m)
        if mine.any() and "norm" not in name:
            assert (mine - theirs).abs().max() < 1e-2 * (mine - other).abs().max(), name


def test_metrics_agree_after_updates(pair):
    alone, together = (probe.metrics for probe in pair)
    assert alone[-1].keys() == together[-1].keys() and alone[-1]
    for one, ten in zip(alone, together, strict=True):
        for name, value in one.items():
            assert value.shape == (1,) and ten[name].shape == (10,), name
            torch.testing.assert_close(value[0], ten[name][3], rtol=1e-4, atol=1e-5)


class Disturbed(Probe):
    """Seed index 1 learns from other data than the buffer's; the others from their own."""

    disturb = staticmethod(lambda x: x)

    def alter(self, batch):
        fields = [x.clone() for x in batch]
        for field in fields:
            field[1] = self.disturb(field[1])
        return type(batch)(*fields)


class Scaled(Disturbed):
    disturb = staticmethod(lambda x: 1 - 3 * x)


class Poisoned(Disturbed):
    disturb = staticmethod(lambda x: torch.full_like(x, torch.nan))


@pytest.mark.parametrize("kind", [Scaled, Poisoned])
@pytest.mark.parametrize("algo", OFFLINE + AVERSE)
def test_seeds_never_leak(algo, kind):
    seeds = [0, 1, 2]
    clean, disturbed = (cls(algo, seeds, updates=UPDATES) for cls in (Probe, kind))
    before, after = (parameters(probe.parts["agent"]) for probe in (clean, disturbed))
    for name in before:
        for seed in (0, 2):
            assert torch.equal(before[name][seed], after[name][seed]), f"{name} of seed {seed}"
    changed = [n for n in before if not torch.equal(before[n][1], after[n][1])]
    weights = [name for name in before if "weight" in name and "normalizer" not in name]
    assert set(changed) >= set(weights), "the disturbed seed must have learnt something else"
    for one, other in zip(clean.metrics, disturbed.metrics, strict=True):
        for name in one:
            assert torch.equal(one[name][[0, 2]], other[name][[0, 2]]), name


@pytest.mark.parametrize("algo", OFFLINE + AVERSE)
def test_seeds_act_alike_and_apart(algo):
    probe = Probe(algo, [0, 1, 2], updates=2)
    observations = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0))
    actions = probe.act(observations)
    assert actions.shape == (3, 5, 2) and actions.abs().max() <= 1
    other = observations.clone()
    other[1] = torch.nan
    assert torch.equal(probe.act(other)[[0, 2]], actions[[0, 2]])
    swapped = probe.act(observations[:, [1, 0, 2, 3, 4]])
    torch.testing.assert_close(swapped[:, [1, 0]], actions[:, :2], rtol=1e-5, atol=1e-6)


class Recording(gymnasium.Wrapper):
    """Remembers the seeds that `reset` was given."""

    seen: list[int] = []  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        self.seen.append(seed)
        return super().reset(seed=seed, options=options)


def test_environment_seeds_are_the_seeds_own():
    def environment_seeds(seeds):
        Recording.seen = []
        play = Evaluator(lambda: Recording(gymnasium.make("CartPole-v1")), seeds, episodes=3)
        play(lambda x: torch.zeros(x.shape[:2], dtype=torch.int64))
        play.close()
        return [Recording.seen[i : i + 3] for i in range(0, len(Recording.seen), 3)]

    together, alone = environment_seeds(TEN), environment_seeds([3])
    assert alone == [together[3]]
    assert len({seed for row in together for seed in row}) == 30
