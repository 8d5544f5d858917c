"""Every copy of a stacked network is the ordinary torch network with its weights."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from corerl import seeding
from corerl.nn import networks, policies
from corerl.nn.critics import Critics
from corerl.nn.encoders import Encoder
from corerl.nn.two_hot import symexp_bins, two_hot

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def rngs(seeds=(0, 1, 2)) -> list[torch.Generator]:
    return seeding.generators(seeds, "init")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference(mlp: networks.MLP, copy: tuple[int, ...], layer_norm: float | None) -> nn.Sequential:
    """One copy of `mlp` out of torch's own modules."""
    modules: list[nn.Module] = []
    for i, layer in enumerate(mlp.layers):
        linear = nn.Linear(*layer.weight.shape[-2:])
        linear.weight.data = layer.weight[copy].T.clone()
        linear.bias.data = layer.bias[copy][0].clone()
        modules.append(linear)
        if i < len(mlp.norms):
            modules.append(nn.ReLU())
            if layer_norm is not None:
                norm = nn.LayerNorm(linear.out_features, eps=layer_norm)
                norm.weight.data = mlp.norms[i].weight[copy][0].clone()
                norm.bias.data = mlp.norms[i].bias[copy][0].clone()
                modules.append(norm)
    return nn.Sequential(*modules)


@pytest.mark.parametrize("layer_norm", [None, 1e-6, 0.1])
@pytest.mark.parametrize("lead", [(3,), (3, 2), (3, 5)])
def test_a_copy_is_the_torch_network_with_its_weights(lead, layer_norm):
    mlp = networks.MLP([4, 8, 8, 2], lead, rngs(), layer_norm=layer_norm)
    with torch.no_grad():
        for norm in mlp.norms if layer_norm is not None else []:
            norm.weight.copy_(numbers(*norm.weight.shape, seed=1))
            norm.bias.copy_(numbers(*norm.bias.shape, seed=2))
    x = numbers(*lead, 6, 4)
    y = mlp(x)
    assert y.shape == (*lead, 6, 2)
    for copy in np.ndindex(*lead):
        torch.testing.assert_close(y[copy], reference(mlp, copy, layer_norm)(x[copy]), **CLOSE)


def test_gradients_of_a_copy_are_the_torch_networks():
    mlp = networks.MLP([4, 8, 2], (3, 2), rngs(), layer_norm=1e-5)
    x = numbers(3, 2, 6, 4)
    mlp(x).square().sum().backward()
    alone = reference(mlp, (1, 0), 1e-5)
    alone(x[1, 0]).square().sum().backward()
    torch.testing.assert_close(mlp.layers[0].weight.grad[1, 0], alone[0].weight.grad.T, **CLOSE)
    torch.testing.assert_close(mlp.norms[0].bias.grad[1, 0, 0], alone[2].bias.grad, **CLOSE)


def test_inputs_are_shared_between_heads_along_an_axis_of_size_one():
    critic = networks.MLP([4, 8, 1], (3, 2), rngs())
    x = numbers(3, 6, 4)
    y = critic(x[:, None])
    assert y.shape == (3, 2, 6, 1)
    assert torch.equal(y, critic(x[:, None].expand(3, 2, 6, 4).contiguous()))
    assert not torch.equal(y[:, 0], y[:, 1])


def test_the_activation_can_be_chosen():
    mlp = networks.MLP([4, 8, 2], (1,), rngs([0]), activation=torch.tanh)
    x = numbers(1, 6, 4)
    first, last = mlp.layers
    hidden = torch.tanh(x[0] @ first.weight[0] + first.bias[0])
    torch.testing.assert_close(mlp(x)[0], hidden @ last.weight[0] + last.bias[0], **CLOSE)


def test_a_plain_norm_has_its_epsilon_and_no_parameters():
    mlp = networks.MLP([4, 8, 2], (3,), rngs(), layer_norm=0.1, plain_norm=True)
    x, (first, last) = numbers(3, 6, 4), mlp.layers
    hidden = F.layer_norm(F.relu(first(x)), (8,), eps=0.1)
    torch.testing.assert_close(mlp(x), last(hidden), **CLOSE)
    assert not list(mlp.norms.parameters())


def test_every_dense_layer_of_an_encoder_is_activated_and_then_normed():
    encoder = Encoder((4,), 2, 8, rngs(), layer_norm=0.1, activation=torch.tanh)
    x = numbers(3, 6, 4)
    expected = x
    for layer in encoder.dense.layers:
        expected = F.layer_norm(torch.tanh(layer(expected)), (8,), eps=0.1)
    torch.testing.assert_close(encoder(x), expected, **CLOSE)


def test_images_of_bytes_are_scaled_and_those_of_floats_are_not():
    encoder = Encoder((1, 36, 36), 0, 0, rngs())
    images = torch.randint(256, (3, 2, 1, 36, 36), dtype=torch.uint8)
    torch.testing.assert_close(encoder(images), encoder(images / 255))


def test_images_may_lie_in_memory_with_their_channels_last():
    """As those of an environment do that transposes a camera's."""
    encoder = Encoder((3, 52, 52), 0, 0, rngs([0]))
    images = torch.rand(1, 5, 52, 52, 3).permute(0, 1, 4, 2, 3)
    torch.testing.assert_close(encoder(images), encoder(images.contiguous()))


@pytest.mark.parametrize(
    ("init", "scale"), [(networks.torch_init, 1 / 3), (networks.variance_scaling(2.0), 2)]
)
def test_convolutions_begin_by_all_pixels_that_an_output_sees(init, scale):
    """The variance of a weight is `scale` by 64, 512 and 576 inputs."""
    encoder = Encoder((1, 36, 36), 0, 0, rngs(), init=init)
    for layer, inputs in zip(encoder.convolutions, (64, 32 * 16, 64 * 9), strict=True):
        bound = math.sqrt(3 * scale / inputs)
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
        assert bool(layer.bias.any()) == (init is networks.torch_init)


@pytest.mark.parametrize("shared", [False, True])
def test_only_the_last_layer_of_critics_has_the_outputs_initialisation(shared):
    inits = {"init": networks.uniform(0.5), "output_init": networks.uniform(1e-3)}
    hidden, last = Critics([3, 2, 8], rngs(), shared_output=shared, **inits).layers
    assert hidden.weight.abs().max() > 0.4 and last.weight.abs().max() <= 1e-3


def test_a_learned_positive_number_begins_at_one():
    torch.testing.assert_close(networks.SoftplusScalar(3)(), torch.ones(3))


def test_a_seed_has_the_same_weights_alone_and_in_company():
    def make(seeds):
        return networks.MLP(
            [4, 8, 2], (len(seeds), 2), rngs(seeds), init=networks.orthogonal()
        ).state_dict()

    together, alone = make(range(10)), make([3])
    assert all(torch.equal(alone[name][0], together[name][3]) for name in alone)
    assert not torch.equal(together["layers.0.weight"][3], together["layers.0.weight"][4])
    assert not torch.equal(alone["layers.0.weight"][0, 0], alone["layers.0.weight"][0, 1])


@pytest.mark.parametrize(
    ("init", "weight_bound", "bias_bound"),
    [
        (networks.torch_init, 1 / 20, 1 / 20),
        (networks.uniform(), 1 / 20, 1 / 20),
        (networks.uniform(0.003), 0.003, 0.003),
        (networks.uniform(bias=0.1), 1 / 20, None),
        (networks.xavier(), math.sqrt(6 / (400 + 300)), None),
        (networks.xavier(0.5), 0.5 * math.sqrt(6 / (400 + 300)), None),
    ],
)
def test_uniform_inits_fill_their_range(init, weight_bound, bias_bound):
    layer = networks.Linear(400, 300, (2,), rngs((0, 1)), init)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    assert 0.999 * weight_bound < weight.abs().max() <= weight_bound
    assert abs(weight.mean()) < 0.01 * weight_bound
    torch.testing.assert_close(weight.std().item(), weight_bound / 3**0.5, rtol=0.01, atol=0)
    if bias_bound is not None:
        assert 0.98 * bias_bound < bias.abs().max() <= bias_bound


@pytest.mark.parametrize(
    ("init", "constant"),
    [
        (networks.uniform(bias=0.1), 0.1),
        (networks.orthogonal(), 0.0),
        (networks.xavier(), 0.0),
    ],
)
def test_constant_biases(init, constant):
    layer = networks.Linear(5, 7, (2, 3), rngs((0, 1)), init)
    assert torch.equal(layer.bias.detach(), torch.full((2, 3, 1, 7), constant))


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
def test_orthogonal_init_is_orthogonal(shape):
    layer = networks.Linear(*shape, (2, 2), rngs((0, 1)), networks.orthogonal(math.sqrt(2)))
    for weight in layer.weight.detach().view(-1, *shape):
        gram = weight @ weight.T if shape[0] <= shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, 2 * torch.eye(min(shape)), rtol=0, atol=1e-5)


def test_dropout_masks_keep_the_mean():
    uniforms = seeding.uniform([0, 1], "dropout", (200, 500)).next()
    masks = networks.dropout_masks(uniforms, 0.1)
    assert set(masks.unique().tolist()) == {0.0, np.float32(1 / 0.9)}
    assert abs((masks == 0).double().mean() - 0.1) < 0.005
    assert abs(masks.double().mean() - 1) < 0.005
    assert torch.equal(networks.dropout_masks(uniforms, 0.0), torch.ones_like(uniforms))


def test_a_draw_at_the_rate_is_kept():
    assert networks.dropout_masks(torch.tensor([0.25, 0.5]), 0.5).tolist() == [0, 2]


def test_dropout_acts_after_each_hidden_activation():
    mlp = networks.MLP([4, 8, 8, 2], (3,), rngs())
    x = numbers(3, 6, 4)
    keep = [networks.dropout_masks(numbers(3, 6, 8, seed=i).abs(), 0.5) for i in (1, 2)]
    a, b, c = mlp.layers
    expected = c(F.relu(b(F.relu(a(x)) * keep[0])) * keep[1])
    assert torch.equal(mlp(x, keep), expected)
    assert not torch.equal(mlp(x), expected)


def test_gaussian_log_prob_is_torchs():
    mean, log_std, value = numbers(3, 6, 2), numbers(3, 1, 2, seed=1), numbers(3, 6, 2, seed=2)
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(value).sum(-1)
    torch.testing.assert_close(policies.gaussian_log_prob(mean, log_std, value), expected, **CLOSE)


def test_normalizer_is_part_of_the_state():
    normalizer = networks.Normalizer.of(np.array([1.0, -2.0]), np.array([2.0, 0.5]))
    x = torch.tensor([[3.0, -2.0], [1.0, -1.0]])
    assert torch.equal(normalizer(x), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    other = networks.Normalizer.of(np.zeros(2), np.ones(2))
    other.load_state_dict(normalizer.state_dict())
    assert torch.equal(other(x), normalizer(x))
    assert not list(normalizer.parameters())


def test_squashed_gaussian_is_torchs_transformed_distribution():
    mean, log_std, noise = (
        numbers(3, 6, 2),
        0.3 * numbers(3, 6, 2, seed=1),
        numbers(3, 6, 2, seed=2),
    )
    action, log_prob = policies.squash(mean, log_std, noise)
    normal = torch.distributions.Normal(mean.double(), log_std.double().exp())
    tanh = torch.distributions.transforms.TanhTransform()
    u = mean.double() + log_std.double().exp() * noise.double()
    squashed = torch.distributions.TransformedDistribution(normal, tanh)
    torch.testing.assert_close(action.double(), torch.tanh(u), rtol=0, atol=1e-6)
    expected = squashed.log_prob(torch.tanh(u)).sum(-1)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-4)


def test_density_of_given_actions_and_of_sampled_ones_agree():
    policy = policies.TanhGaussian([4, 8, 2], (3,), rngs())
    x, noise = numbers(3, 6, 4), numbers(3, 6, 2, seed=1)
    actions, log_prob = policy.sample(x, noise)
    torch.testing.assert_close(policy.log_prob(x, actions), log_prob, rtol=1e-3, atol=1e-3)
    assert torch.equal(policy.mode(x), policy.sample(x, torch.zeros_like(noise))[0])
    assert policy.log_prob(x, torch.ones(3, 6, 2)).isfinite().all()


def test_a_number_is_never_one_without_probability():
    logits, uniform = (
        torch.tensor([[[-200.0, 0.0, 0.0, -200.0]] * 3]),
        torch.tensor([[0.0, 0.5, 0.99]]),
    )
    assert policies.draw_number(logits, uniform).tolist() == [[1, 2, 2]]
    assert policies.draw_number(logits, torch.ones(1, 3)).max() == 3


def test_what_is_no_number_has_no_bins_and_spoils_no_other():
    shares = two_hot(torch.tensor([math.nan, 0.0]), symexp_bins(2.0, 5, torch.device("cpu")))
    assert shares[0].isnan().any() and shares[1].tolist() == [0, 0, 1, 0, 0]


def test_a_log_std_is_held_within_haarnojas_limits():
    policy = policies.TanhGaussian([1, 2], (1,), rngs([0]))
    with torch.no_grad():
        policy.body.layers[0].weight.fill_(100)
    _, log_std = policy(torch.tensor([[[-1.0], [1.0]]]))
    assert log_std.tolist() == [[[-20, -20], [2, 2]]]


def test_log_tanh_slope_is_exact_far_out():
    u = torch.tensor([-40.0, -9.0, 0.0, 0.5, 9.0, 40.0], requires_grad=True)
    slope = policies.log_tanh_slope(u)
    exact = [math.log(4) - 2 * abs(v) - 2 * math.log1p(math.exp(-2 * abs(v))) for v in u.tolist()]
    torch.testing.assert_close(slope.tolist(), exact, rtol=1e-5, atol=1e-6)
    slope.sum().backward()
    torch.testing.assert_close(u.grad, -2 * torch.tanh(u.detach()), rtol=1e-5, atol=1e-6)
