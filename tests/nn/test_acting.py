"""Agents act, explore and judge actions at raw observations, which their policy sees normalised."""

import numpy as np
import pytest
import torch
from torch import nn

from corerl import seeding
from corerl.nn import acting, networks, policies

SEEDS, O, A = 2, 3, 2
MEAN, STD = np.array([1.0, -2.0, 0.5]), np.array([2.0, 0.5, 4.0])


def rngs() -> list[torch.Generator]:
    return seeding.generators(range(SEEDS), "init")


class Squashed(acting.PolicyActing):
    def __init__(self, normalizer: nn.Module):
        self.policy = policies.TanhGaussian([O, 8, A], (SEEDS,), rngs())
        self.normalizer = normalizer


class Gaussian(acting.PolicyActing):
    def __init__(self, normalizer: nn.Module):
        limits = {"log_std_min": -5.0, "log_std_max": 2.0}
        self.policy = policies.GaussianPolicy([O, 8, A], rngs(), **limits)
        self.normalizer = normalizer


class Numbered(acting.PolicyActing):
    def __init__(self, normalizer: nn.Module):
        self.policy = policies.CategoricalPolicy([O, 8, A], rngs())
        self.normalizer = normalizer


class Deterministic(acting.TanhActing):
    def __init__(self, normalizer: nn.Module):
        self.actor = networks.MLP([O, 8, A], (SEEDS,), rngs())
        self.normalizer = normalizer


@pytest.mark.parametrize("kind", [Squashed, Gaussian, Numbered, Deterministic])
def test_a_policy_sees_normalised_observations_whatever_it_is_asked(kind):
    agent, plain = kind(networks.Normalizer.of(MEAN, STD)), kind(nn.Identity())
    rng = torch.Generator().manual_seed(0)
    observations, noise = torch.randn(2, SEEDS, 50, O, generator=rng)
    noise, seen = noise[..., :A], (observations - torch.tensor(MEAN)) / torch.tensor(STD)
    drawn = nn.functional.one_hot((noise[..., 0] > 0).long(), A) if kind is Numbered else noise
    asked = {"act": (), "explore": (noise,), "log_prob": (drawn.float().clamp(-0.9, 0.9),)}
    for name, given in asked.items():
        if hasattr(agent, name):
            theirs = getattr(plain, name)(seen.float(), *given)
            torch.testing.assert_close(getattr(agent, name)(observations, *given), theirs)
            assert not torch.equal(getattr(plain, name)(observations, *given), theirs)
