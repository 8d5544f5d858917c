"""Policies, and the temperature of their entropy.

Each maps observations `(*lead, B, O)` to actions `(*lead, B, A)`. `mode` gives the action to evaluate, `draw`
a random one from noise that is passed in, and `log_prob` the density of given ones.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.nn.learner import Spec
from corerl.nn.networks import MLP, Scalar, orthogonal


class PolicyNoise(NamedTuple):
    """Standard normal draws `(S, B, A)` for samples of the policy."""

    next_actions: Tensor
    actions: Tensor


class GaussianPolicy(nn.Module):
    """A Gaussian whose mean depends on the state and whose log-std is one vector for all states.

    Args:
        sizes: features of the observation, of each hidden layer, and of the action.
        rngs, others: as for `MLP`.
        log_std_min, log_std_max: the log-std is clamped to this range.
        bound: applied to the mean, such as tanh; samples themselves are not squashed.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        rngs: Sequence[torch.Generator],
        *,
        log_std_min: float,
        log_std_max: float,
        bound: Callable[[Tensor], Tensor] = torch.tanh,
        **others,
    ):
        super().__init__()
        self.body = MLP(sizes, (len(rngs),), rngs, **others)
        self.log_std = nn.Parameter(torch.zeros(len(rngs), 1, sizes[-1]))
        self.limits = (log_std_min, log_std_max)
        self.bound = bound

    def forward(self, observations: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """Returns the mean. `keep` holds dropout masks, as for `MLP`."""
        return self.bound(self.body(observations, keep))

    @property
    def std(self) -> Tensor:
        """The standard deviation `(S, 1, A)`."""
        return torch.exp(self.log_std.clamp(*self.limits))

    def mode(self, observations: Tensor) -> Tensor:
        """Returns the action to evaluate, `(S, B, A)`: the mean within the bounds."""
        return self(observations).clamp(-1, 1)

    def draw(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Draws actions `(S, B, A)` with normal noise, clipped to the bounds."""
        return (self(observations) + self.std * noise).clamp(-1, 1)

    def gaussian(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean and log-std of the normal whose draws are clipped."""
        return self(observations), self.log_std.clamp(*self.limits)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, B)` of given actions, before clipping."""
        return gaussian_log_prob(*self.gaussian(observations), actions)

    def log_prob_given(self, mean: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, B)` of `actions` around the mean that `forward` gave."""
        return gaussian_log_prob(mean, self.log_std.clamp(*self.limits), actions)


class UnitGaussian(MLP):
    """A Gaussian policy of standard deviation 1, with `GaussianPolicy`'s methods: `(S, B, O)` to `(S, B, A)`.

    Args:
        sizes: features of the observation, of each hidden layer, and of the action.
        rngs, others: as for `MLP`.
    """

    def __init__(self, sizes: Sequence[int], rngs: Sequence[torch.Generator], **others):
        super().__init__(sizes, (len(rngs),), rngs, **others)

    def mode(self, observations: Tensor) -> Tensor:
        """Returns the action to evaluate, `(S, B, A)`: the mean within the bounds."""
        return self(observations).clamp(-1, 1)

    def draw(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Draws actions `(S, B, A)` with normal noise, clipped to the bounds."""
        return (self(observations) + noise).clamp(-1, 1)

    def gaussian(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean and log-std of the normal whose draws are clipped."""
        mean = self(observations)
        return mean, torch.zeros_like(mean)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, B)` of given actions, before clipping."""
        return self.log_prob_given(self(observations), actions)

    def log_prob_given(self, mean: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(S, B)` of `actions` around the mean that `forward` gave."""
        return gaussian_log_prob(mean, torch.zeros_like(mean), actions)


class CategoricalPolicy(nn.Module):
    """Probabilities of A discrete actions, with `GaussianPolicy`'s methods.

    Actions are one-hot vectors `(S, B, A)`, as buffers hold discrete ones.

    Args:
        sizes: features of the observation, of each hidden layer, and the number of actions.
        rngs, others: as for `MLP`.
    """

    def __init__(self, sizes: Sequence[int], rngs: Sequence[torch.Generator], **others):
        super().__init__()
        self.body = MLP(sizes, (len(rngs),), rngs, **others)

    def forward(self, observations: Tensor, keep: Sequence[Tensor] | None = None) -> Tensor:
        """Returns the logits. `keep` holds dropout masks, as for `MLP`."""
        return self.body(observations, keep)

    def mode(self, observations: Tensor) -> Tensor:
        """Returns the action to evaluate, the likeliest one's number `(S, B)`."""
        return self(observations).argmax(-1)

    def draw(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Draws actions `(S, B, A)` from normal noise: the largest logit plus Gumbel noise."""
        logits = self(observations)
        gumbel = -torch.log(-torch.special.log_ndtr(noise))
        return F.one_hot((logits + gumbel).argmax(-1), logits.shape[-1]).to(logits.dtype)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-probability `(S, B)` of given actions."""
        return self.log_prob_given(self(observations), actions)

    def log_prob_given(self, logits: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-probability `(S, B)` of `actions` under the logits that `forward` gave."""
        return categorical_log_prob(logits, actions)


def unsquashed(
    cfg: Any, spec: Spec, *, bound: Callable[[Tensor], Tensor] = torch.tanh, **others
) -> GaussianPolicy | CategoricalPolicy:
    """Returns a Gaussian policy, or a categorical one where actions are discrete, on the spec's device.

    Args:
        cfg: with `hidden_layers`, `hidden_width`, `log_std_min` and `log_std_max`.
        bound: of the Gaussian's mean. others: as for `MLP`.
    """
    sizes = [spec.observation_dim, *[cfg.hidden_width] * cfg.hidden_layers, spec.action_dim]
    if spec.discrete:
        return CategoricalPolicy(sizes, spec.rngs, **others).to(spec.device)
    limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
    return GaussianPolicy(sizes, spec.rngs, bound=bound, **limits, **others).to(spec.device)


class TanhGaussian(nn.Module):
    """A squashed Gaussian policy, a = tanh(u): u is normal with mean and log-std from the state.

    Haarnoja et al. 2018 (arXiv:1801.01290), appendix C. The last layer yields mean and log-std.

    Args:
        sizes: features of the observation, of each hidden layer, and of the action.
        lead, rngs, others: as for `MLP`.
        log_std_min, log_std_max: the log-std is clamped to this range.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        lead: tuple[int, ...],
        rngs: Sequence[torch.Generator],
        *,
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
        **others,
    ):
        super().__init__()
        sizes = [*sizes[:-1], 2 * sizes[-1]]
        self.body = MLP(sizes, lead, rngs, **others)
        self.limits = (log_std_min, log_std_max)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean and log-std of u, each `(*lead, B, A)`."""
        mean, log_std = self.body(observations).chunk(2, dim=-1)
        return mean, log_std.clamp(*self.limits)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Samples actions `(*lead, B, A)`, with log-densities `(*lead, B)`. `noise` is standard normal."""
        return squash(*self(observations), noise)

    def draw(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Draws actions `(*lead, B, A)` with normal noise."""
        return self.sample(observations, noise)[0]

    def sample_many(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Samples K actions per state `(S, K, B, A)`, from noise of that shape. Log-densities `(S, K, B)`."""
        mean, log_std = self(observations)
        return squash(mean[:, None], log_std[:, None], noise)

    def mode(self, observations: Tensor) -> Tensor:
        """Returns tanh of the mean, `(*lead, B, A)`: the action to evaluate."""
        return torch.tanh(self(observations)[0])

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the log-density `(*lead, B)` of given actions. Those at ±1 count as the nearest inside."""
        limit = 1 - 2**-20  # a power of two, which float32 holds exactly
        u = torch.atanh(actions.clamp(-limit, limit))
        return gaussian_log_prob(*self(observations), u) - log_tanh_slope(u).sum(-1)


class ScaledTanhGaussian(TanhGaussian):
    """A squashed Gaussian with a learned scale and shift of its log-std (young-geng)."""

    def __init__(self, *args, multiplier: float, offset: float = -1.0, **kwargs):
        super().__init__(*args, **kwargs)
        seeds = self.body.layers[0].weight.shape[0]
        self.multiplier = Scalar(multiplier, seeds)
        self.offset = Scalar(offset, seeds)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(observations).chunk(2, dim=-1)
        scale, shift = self.multiplier()[:, None, None], self.offset()[:, None, None]
        return mean, (scale * log_std + shift).clamp(*self.limits)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Returns tanh(mean + std * noise) `(..., A)` and its log-density `(...)`, for any broadcast."""
    u = mean + torch.exp(log_std) * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return torch.tanh(u), (gaussian - log_tanh_slope(u)).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """Returns log(1 - tanh(u)^2), exact also where tanh(u) rounds to 1."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


def smoothed(actions: Tensor, noise: Tensor, std: float, clip: float) -> Tensor:
    """Adds clipped noise to a target policy's actions (TD3, Fujimoto et al. 2018, eq. 14)."""
    return (actions + (noise * std).clamp(-clip, clip)).clamp(-1, 1)


class CompoundPolicy(nn.Module):
    """A policy of a vector or discrete action and, beside it, a further numbered one.

    Args:
        sizes: features of the input and of each hidden layer, which are tanh.
        counts: features or number of the actions, and of the further one; 0: there is none.
        discrete: whether actions are discrete.
        rngs: as for `MLP`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        counts: tuple[int, int],
        discrete: bool,
        rngs: Sequence[torch.Generator],
    ):
        super().__init__()
        self.discrete, self.counts = discrete, counts
        options = {"output_init": orthogonal(0.01), "activation": torch.tanh}
        self.body = MLP([*sizes, sum(counts)], (len(rngs),), rngs, **options)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns means in [-1, 1] or logits of the actions, and logits of the further one, `(S, B, ...)`."""
        actions, further = self.body(inputs).split(self.counts, -1)
        return (actions if self.discrete else torch.tanh(actions)), further

    def log_prob(
        self, inputs: Tensor, actions: Tensor, further: Tensor, std: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns log pi `(S, B)` of actions and further ones (numbers, `(S, B)`), and the numbers' entropy.

        `std`: of vector actions, normal around the means.
        """
        output, further_logits = self(inputs)
        heads = [(further_logits, further)] if self.counts[1] else []
        log_prob, entropy = torch.zeros_like(output[..., 0]), torch.zeros_like(output[..., 0])
        if self.discrete:
            heads.append((output, actions))
        else:
            log_prob = gaussian_log_prob(output, std.log().expand_as(output), actions)
        for logits, taken in heads:
            log_probs = F.log_softmax(logits, -1)
            log_prob = log_prob + log_probs.gather(-1, taken[..., None]).squeeze(-1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(-1)
        return log_prob, entropy


def draw_number(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draws numbers `(S, B)` with the probabilities of `logits` `(S, B, A)`, by uniform draws `(S, B)`."""
    above = uniform[..., None] >= F.softmax(logits, -1).cumsum(-1)
    return above.sum(-1).clamp(max=logits.shape[-1] - 1)


class Temperature(nn.Module):
    """SAC's alpha per seed, `(S,)`, kept positive by its logarithm."""

    def __init__(self, seeds: int, initial: float = 1.0):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((seeds,), math.log(initial)))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


def categorical_log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """Returns the log-probability of one-hot actions, over the last axis."""
    return (F.log_softmax(logits, -1) * actions).sum(-1)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """Returns the log-density of a diagonal Gaussian, summed over the last axis."""
    scaled = (value - mean) * torch.exp(-log_std)
    return (-0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
