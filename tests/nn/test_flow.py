"""Flows against the closed forms of Gaussian ones, and candidates against loops.

Data N(m, s^2) and noise N(0, 1) give the marginal velocity m (1 - t a(t)) + a(t) x with
a(t) = (t s^2 - (1 - t)) / ((1 - t)^2 + t^2 s^2), whose integral over [0, 1] is log s.
"""

import numpy as np
import pytest
import torch

from corerl import seeding
from corerl.nn import candidates, flow
from corerl.nn.critics import Critics


def slope(t, s):
    return (t * s * s - (1 - t)) / ((1 - t) ** 2 + t * t * s * s)


def gaussian(m: float, s: float) -> flow.Field:
    return lambda x, t: m * (1 - t * slope(t, s)) + slope(t, s) * x


NOISE = torch.tensor([[[-1.0], [0.0], [1.0]]], dtype=torch.float64)
"""Velocities that are affine in x carry these to mean - std, mean and mean + std."""


def mean_and_std(field: flow.Field, steps: int) -> tuple[float, float]:
    low, middle, high = flow.euler(field, NOISE, steps).flatten().tolist()
    assert high - middle == pytest.approx(middle - low)
    return middle, high - middle


def test_a_gaussian_flow_ends_in_its_data():
    assert mean_and_std(gaussian(0.4, 0.5), 20_000) == pytest.approx((0.4, 0.5), abs=1e-4)


def test_the_error_of_euler_is_of_first_order():
    errors = [abs(mean_and_std(gaussian(0.4, 0.5), n)[1] - 0.5) for n in (100, 200, 400)]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.03)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(
    ("one", "other", "weight", "expected"),
    [
        ((0.0, 0.5), (0.4, 0.5), 3.0, (1.2, 0.5)),
        ((0.3, 0.5), (0.4, 0.5), 0.0, (0.3, 0.5)),
        ((0.3, 0.5), (0.4, 0.5), 1.0, (0.4, 0.5)),
        ((0.0, 0.8), (0.0, 0.5), 3.0, (0.0, 0.8**-2 * 0.5**3)),
    ],
)
def test_guided_gaussian_flows_have_a_closed_form(one, other, weight, expected):
    """Equal stds: the mean m_0 + w (m_1 - m_0). Others: the std s_0^(1-w) s_1^w."""
    field = flow.guided(gaussian(*one), gaussian(*other), weight)
    assert mean_and_std(field, 20_000) == pytest.approx(expected, abs=3e-4)


def test_matching_error_by_hand():
    """t = 0.25 between -1 and 1 is at -0.5, the velocity there is 2, and the field says x + t and 3."""

    def field(x, t):
        return torch.cat([x[..., :1] + t, torch.full_like(t, 3.0)], -1)

    ends = torch.ones(1, 1, 2)
    error = flow.matching_error(field, ends, -ends, torch.full((1, 1, 1), 0.25))
    assert error.tolist() == [[pytest.approx(((-0.25 - 2) ** 2 + (3 - 2) ** 2) / 2)]]


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_the_closed_form_is_the_least_error(t):
    """Its derivatives by slope and intercept vanish on a million pairs of noise and data."""
    m, s = 0.4, 0.5
    rng = torch.Generator().manual_seed(0)
    noise, data = torch.randn(2, 1, 1_000_000, 1, generator=rng, dtype=torch.float64)
    line = torch.tensor(
        [slope(t, s), m * (1 - t * slope(t, s))], dtype=torch.float64, requires_grad=True
    )
    times = torch.full_like(noise, t)
    error = flow.matching_error(lambda x, _: line[0] * x + line[1], m + s * data, noise, times)
    (slopes,) = torch.autograd.grad(error.mean(), line)
    assert slopes.abs().max() < 5e-3  # 5 standard errors


def test_a_velocity_reads_state_point_and_conditions():
    net = flow.Velocity([3, 2], 1, seeding.generators([0, 1], "init"))
    s, x, t = torch.rand(2, 5, 3), torch.rand(2, 5, 2), torch.rand(2, 5, 1)
    weight, bias = net.layers[0].weight, net.layers[0].bias
    torch.testing.assert_close(net(s, x, t), torch.cat([s, x, t], -1) @ weight + bias)
    plain = flow.Velocity([3, 2], 0, seeding.generators([0, 1], "init"))
    assert plain(s, x).shape == (2, 5, 2)


def test_candidates_are_evaluated_and_taken_in_order():
    S, n, K, O, A = 2, 3, 4, 2, 2
    critic = Critics([O, A, 8], seeding.generators(range(S), "init"), 2)
    s, a = torch.rand(S, n, O), torch.rand(S, n, K, A)
    q = candidates.values(critic, s, a)
    assert q.shape == (S, 2, n, K)
    for k in range(K):
        torch.testing.assert_close(q[..., k], critic(s, a[:, :, k]))
    taken = candidates.best(a, q.amin(1))
    for i in np.ndindex(S, n):
        assert torch.equal(taken[i], a[i][q.amin(1)[i].argmax()])


def test_a_softmax_choice_has_its_probabilities():
    scores = torch.tensor([0.0, 1.0, 2.0]).expand(1, 1, 3)
    uniforms = (torch.arange(3000) + 0.5)[None] / 3000
    chosen = candidates.softmax_choice(scores.expand(1, 3000, 3), 0.5, uniforms)
    shares = torch.bincount(chosen.flatten(), minlength=3) / 3000
    torch.testing.assert_close(shares, torch.softmax(2 * scores.flatten(), 0), atol=1e-3, rtol=0)
    assert candidates.softmax_choice(scores, 0.0, torch.zeros(1, 1)).tolist() == [[2]]
    assert candidates.softmax_choice(scores, 1e9, torch.ones(1, 1)).tolist() == [[2]]
