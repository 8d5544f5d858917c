"""QR-DQN against its transcription, by hand, and as a run that learns."""

from dataclasses import replace

import pytest
import torch
from reference_distributional import QRDQN as Reference
from reference_distributional import SEEDS, A, O, agree, make_transitions
from small import config, run

from corerl import seeding
from corerl.algos import hra, iqn, md3qn
from corerl.algos.qr_dqn import QRDQN, Config
from corerl.buffers.frame_replay import Transitions
from corerl.nn.encoders import Encoder
from corerl.nn.learner import Spec
from corerl.risk.quantiles import huber_quantile_loss
from corerl.training.experience import Collect

SMALL = {"hidden_layers": 2, "hidden_width": 8, "lr": 1e-2}
SWITCHES = {
    "paper": {},
    "double": {"double": True},
    "kappa": {"kappa": 0.3},
    "absolute": {"kappa": 0.0},
    "clipped": {"max_grad_norm": 0.1, "adam_eps": 1.0},  # which Adam would else undo
}


def agent_of(seeds=SEEDS, **changes):
    cfg = Config(**SMALL, quantiles=5, **changes)
    return QRDQN(cfg, Spec((O,), A, seeding.generators(range(seeds), "init")))


@pytest.mark.parametrize("switch", SWITCHES)
def test_five_updates_equal_the_equations(switch, tolerance):
    agent = agent_of(**SWITCHES[switch])
    agree(Reference, agent, agent.quantiles, make_transitions(5, 1), None, tolerance)


def test_the_loss_by_hand():
    # tau = 1/4 at 0 meets u = 2, -1, 1/2: (1.5 + 3 * .5 + .125) / 4; tau = 3/4 at 1 mirrors it.
    quantiles, targets = torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, -1.0, 0.5]])
    loss = huber_quantile_loss(quantiles, targets, torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(loss, torch.tensor([2 * (1.5 + 1.5 + 0.125) / 4 / 3]))


def test_the_best_action_is_that_of_the_mean():
    agent = agent_of(1)
    with torch.no_grad():
        agent.quantiles.head.weight.zero_()
        bias = torch.zeros(A, 5)
        bias[1], bias[2, 0] = 1.0, 4.0  # a mean of 1 beats a largest quantile of 4
        agent.quantiles.head.bias.copy_(bias.view(1, 1, -1))
    assert agent.act(torch.zeros(1, 3, O)).tolist() == [[1, 1, 1]]


def logged(agent, network, laws) -> dict[str, float]:
    """What an update tells of a network that gives these laws `(A, ...)`, of one row for every action."""
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(laws.view(1, 1, -1))
    zeros, rewards = torch.zeros(1, A, O), torch.zeros(1, A, laws.shape[-1])
    batch = Transitions(zeros, torch.arange(A)[None], rewards, zeros, torch.ones(1, A))
    return {name: value.item() for name, value in agent.update(batch).items()}


def test_what_is_logged_by_hand():
    """Values are means over rows of the expected total; spreads are deviations within a row and source."""
    number = torch.arange(4.0)[:, None]  # of the action; 1.5 on average
    agent = agent_of(1)
    reported = logged(agent, agent.quantiles, number + torch.arange(5.0))
    assert (reported["value"], reported["spread"]) == pytest.approx((3.5, 2**0.5))
    spec = Spec((O,), A, seeding.generators([0], "init"))
    agent = md3qn.MD3QN(md3qn.Config(**SMALL, particles=3), replace(spec, sources=2))
    particles = torch.stack([number + torch.tensor([0.0, 3.0, 6.0]), number.expand(-1, 3)], -1)
    reported = logged(agent, agent.particles, particles)
    assert (reported["value"], reported["spread"]) == pytest.approx((1.5 + 3 + 1.5, 6**0.5 / 2))
    agent = hra.HRA(hra.Config(**SMALL), replace(spec, sources=2))
    reported = logged(agent, agent.heads, torch.cat([number, 2 * number], -1))
    assert reported["value"] == pytest.approx(4.5)


def test_stacked_convolutions_are_each_seeds_own():
    rngs = seeding.generators([0, 1, 2], "init")
    encoder = Encoder((4, 84, 84), 1, 6, rngs, padding="same")
    images = torch.randint(256, (3, 2, 4, 84, 84), dtype=torch.uint8)
    together = encoder(images)
    assert together.shape == (3, 2, 6) and encoder.dense.layers[0].weight.shape[1] == 11 * 11 * 64
    for seed in range(3):
        layers = [torch.nn.LazyConv2d(c, k, s) for c, k, s in ((32, 8, 4), (64, 4, 2), (64, 3, 1))]
        x = images[seed].float() / 255
        # TensorFlow's SAME on 84, 21 and 11 pixels.
        for layer, ours, pad in zip(layers, encoder.convolutions, (2, (1, 2), 1), strict=True):
            before, after = pad if isinstance(pad, tuple) else (pad, pad)
            x = torch.nn.functional.pad(x, (before, after, before, after))
            layer(x)
            layer.weight.data, layer.bias.data = ours.weight[seed], ours.bias[seed]
            x = torch.relu(layer(x))
        linear = encoder.dense.layers[0]
        alone = torch.relu(x.flatten(1) @ linear.weight[seed] + linear.bias[seed])
        torch.testing.assert_close(together[seed], alone, rtol=1e-4, atol=1e-5)


SMALL_MAPS, PADDED = 7 * 7 * 64, 11 * 11 * 64


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda spec: QRDQN(Config(), spec).quantiles, [(SMALL_MAPS, 512), (512, 6 * 200)]),
        (
            lambda spec: iqn.IQN(iqn.Config(), spec).quantiles,
            [(64, SMALL_MAPS), (SMALL_MAPS, 512), (512, 6)],
        ),
        (
            lambda spec: md3qn.MD3QN(md3qn.Config(), replace(spec, sources=3)).particles,
            [(PADDED, 512), (512, 6 * 200 * 3)],
        ),
        (
            lambda spec: md3qn.MD3QN(md3qn.Config(padding="valid"), spec).particles,
            [(SMALL_MAPS, 512), (512, 6 * 200)],
        ),
        (
            lambda spec: hra.HRA(hra.Config(), replace(spec, sources=3)).heads,
            [(PADDED, 512), (512, 6 * 3)],
        ),
    ],
    ids=["qr_dqn", "iqn", "md3qn", "mmdqn", "hra"],
)
def test_layers_behind_the_convolutions_are_the_authors(make, shapes):
    """IQN multiplies the features of the convolutions themselves (eq. 4)."""
    network = make(Spec((4, 84, 84), 6, seeding.generators([0], "init")))
    weights = [p for n, p in network.named_parameters() if n.endswith("weight")]
    dense = [tuple(p.shape[-2:]) for p in weights[3:]]
    assert [tuple(p.shape[-4:]) for p in weights[:3]] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]
    assert sorted(dense) == sorted(shapes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qr_dqn", "iqn"])
def test_it_learns_to_balance_a_pole(tmp_path, name):
    from corerl.launch.settings_tables import table

    rows = table(name, "gym/CartPole-v1")
    data = {k.removeprefix("algo.data."): v for k, v in rows.items() if ".data." in k}
    own = {k.removeprefix("algo."): v for k, v in rows.items() if ".data." not in k}
    own = {"batch_size": 32, "hidden_width": 128} | own | {"data": Collect(**data)}
    cfg = config(tmp_path, name, own=own, task="gym/CartPole-v1", steps=20_000)
    last = (run(cfg, seeds=[0]) / "scores.csv").read_text().splitlines()[-1]
    assert float(last.split(",")[5]) > 150
