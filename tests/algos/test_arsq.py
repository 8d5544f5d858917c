"""ARSQ against its transcription, by hand, and what its normalised advantages promise."""

import math
from itertools import product

import numpy as np
import pytest
import reference_arsq
import torch
from agreement import (
    SEEDS,
    WIDTH,
    A,
    B,
    O,
    as_tensor,
    assert_losses,
    assert_networks,
    generators,
    make_batches,
    net,
    one_seed,
    scramble,
    tiny,
)

from corerl.algos.arsq import ARSQ, Config
from corerl.nn.learner import Spec
from corerl.training.demonstrations import Demos

SMALL = {
    "hidden_width": WIDTH,
    "hidden_layers": 2,
    "levels": 2,
    "bins": 3,
    "polyak": 0.1,
    "discount": 0.9,
    "batch_size": B - 6,
    "demos": Demos(rows=6),
}
VERSIONS = {
    "margin": {"behaviour": "margin", "alpha": 0.5, "behaviour_floor": 0.1},
    "lse": {"levels": 1, "bins": 7, "alpha": 0.3, "behaviour_temperature": 2.0},
    "rlbench": {"behaviour": "margin", "behaviour_mean": "batch", "bellman_weight": 0.1},
}


def make(**settings) -> ARSQ:
    return ARSQ(Config(**SMALL | settings), Spec(O, A, generators()))


def parts(agent: ARSQ, seed: int) -> tuple:
    return tuple([net(x, seed, i) for i in range(2)] for x in (agent.critic, agent.target))


@pytest.mark.parametrize("version", VERSIONS)
def test_five_steps_equal_the_transcription(version, tolerance):
    agent = make(**VERSIONS[version])
    scramble(agent.critic, agent.target)
    references = [reference_arsq.ARSQ(*parts(agent, i), agent.cfg) for i in range(SEEDS)]
    for batch in make_batches(5):
        metrics = agent.update(batch)
        for i, reference in enumerate(references):
            losses = reference.update(one_seed(batch, i))
            assert_losses(metrics, i, losses, 10 * tolerance)
    for i, reference in enumerate(references):
        assert_networks(parts(agent, i), reference.networks(), tolerance)


@pytest.mark.parametrize("act_with", ["online", "target"])
def test_actions_equal_the_transcription(act_with):
    agent = make(act_with=act_with, alpha=0.5)
    scramble(agent.critic, agent.target)
    rng = np.random.default_rng(3)
    s, uniforms = rng.normal(size=(SEEDS, 7, O)), rng.random((SEEDS, 7, agent.choices))
    greedy = agent.act(as_tensor(s))
    drawn = agent.explore(as_tensor(s), as_tensor(uniforms))
    assert (greedy - drawn).abs().max() > 0.1
    for i in range(SEEDS):
        reference = reference_arsq.ARSQ(*parts(agent, i), agent.cfg)
        nets = reference.critics if act_with == "online" else reference.targets
        for j in range(7):
            state = torch.from_numpy(s[i, j])
            assert greedy[i, j].tolist() == pytest.approx(reference.act(nets, state, A))
            expected = reference.act(nets, state, A, uniforms[i, j])
            assert drawn[i, j].tolist() == pytest.approx(expected)


def by_hand(**settings) -> ARSQ:
    """One choice among three bins, whose raw advantages are the biases 0, 1 and 2 of both networks."""
    cfg = Config(
        **SMALL
        | {"hidden_layers": 0, "levels": 1, "alpha": 1.0, "batch_size": 1, "demos": Demos(rows=1)}
        | {"behaviour_weight": 1.0, "behaviour_floor": -10.0}
        | settings
    )
    agent = ARSQ(cfg, Spec(1, 1, generators(1)))
    with torch.no_grad():
        for p in (*agent.critic.parameters(), *agent.target.parameters()):
            p.zero_()
        agent.critic.advantage.layers[0].bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
        agent.critic.value.layers[0].bias[0, 1] = 3.0
        agent.target.value.layers[0].bias.copy_(torch.tensor([5.0, 4.0]).view(1, 2, 1, 1))
    return agent


NORM = math.log(1 + math.e + math.e**2)  # what is taken off every raw advantage


def test_bellman_loss_by_hand():
    agent = by_hand(behaviour_weight=0.0)
    # Actions -1 and 0.1 lie in the bins 0 and 1: A = -NORM and 1 - NORM. y = 1 + 0.9 * min(5, 4) = 4.6, and
    # -2 at the terminal. V is 0 and 3.
    batch = tiny(s=[[0], [0]], a=[[-1.0], [0.1]], r=[1.0, -2.0], d=[0, 1])
    errors = [(v - NORM - 4.6) ** 2 + (v + 1 - NORM + 2) ** 2 for v in (0, 3)]
    assert agent.loss(batch)[0].tolist() == pytest.approx([sum(errors) / 2])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"behaviour": "lse"}, math.log(1 + math.e**2) - 1),
        (
            {"behaviour": "lse", "behaviour_temperature": 2.0},
            2 * math.log(1 + math.e) - 1,
        ),
        ({"behaviour": "margin"}, (-1 + 1) / 2),
        ({"behaviour": "margin", "behaviour_floor": -0.5}, (-0.5 + 1) / 2),
        ({"behaviour": "margin", "behaviour_floor": 1.5}, 1.5),
        ({"behaviour": "margin", "behaviour_floor": -0.5, "behaviour_mean": "batch"}, 0.125),
    ],
)
def test_behaviour_losses_by_hand(settings, expected):
    """The demonstrated action lies in bin 1, others are 1 below and 1 above; two equal networks; the second
    row is no demonstration."""
    agent = by_hand(bellman_weight=0.0, **settings)
    batch = tiny(s=[[0], [0]], a=[[0.1], [-1.0]])
    assert agent.loss(batch)[0].tolist() == pytest.approx([2 * expected], abs=1e-6)


def test_the_value_is_the_soft_maximum_over_all_actions():
    """alpha * log sum exp (A / alpha) = 0 over every joint action, so that V needs no next action."""
    agent = make(alpha=0.2)
    scramble(agent.critic)
    grid = torch.tensor(list(product(torch.linspace(-8 / 9, 8 / 9, 9).tolist(), repeat=A)))
    s = torch.randn(SEEDS, 1, O).expand(-1, len(grid), -1)
    taken, contexts = agent.sequence(grid.expand(SEEDS, -1, -1))
    soft = agent.soft(agent.critic.advantage(s, contexts))
    joint = soft.gather(-1, taken[:, None, ..., None].expand(-1, 2, -1, -1, 1)).sum(2)[..., 0]
    torch.testing.assert_close(
        (joint / 0.2).logsumexp(-1), torch.zeros(SEEDS, 2), atol=1e-4, rtol=0
    )
    assert joint.std() > 0.1


def test_sampled_actions_follow_the_policy():
    """One network twice: the shares of sampled actions are exp(A / alpha) of the joint action."""
    agent = make(alpha=0.5, levels=1)
    scramble(agent.critic)
    with torch.no_grad():
        for p in agent.critic.parameters():
            p[:, 1] = p[:, 0]
    s = torch.randn(SEEDS, 1, O).expand(-1, 20_000, -1)
    drawn = agent.explore(s, torch.rand(SEEDS, 20_000, A))
    taken, contexts = agent.sequence(drawn)
    soft = agent.soft(agent.critic.advantage(s, contexts))[:, 0]
    density = (soft.gather(-1, taken[..., None]).sum(1)[..., 0] / 0.5).exp().detach()
    for i in range(SEEDS):
        actions, counts = drawn[i].unique(dim=0, return_counts=True)
        for action, count in zip(actions, counts, strict=True):
            first = (drawn[i] == action).all(-1).nonzero()[0]
            assert count / 20_000 == pytest.approx(float(density[i, first]), abs=0.015)


def test_a_context_knows_what_was_chosen_and_nothing_later():
    agent = make(levels=2, bins=3)
    taken, contexts = agent.sequence(torch.tensor([[[0.9, -0.9]]]).expand(SEEDS, -1, -1))
    assert taken[0, :, 0].tolist() == [2, 0, 2, 0]
    expected = [[0, 0], [2 / 3, 0], [2 / 3, -2 / 3], [8 / 9, -2 / 3]]
    torch.testing.assert_close(contexts[0, :, 0], torch.tensor(expected))


def test_a_fresh_network_is_the_authors():
    """Orthogonal, times sqrt(2) inside and 0.01 at the end; so Q starts at V - alpha * L * D * log B."""
    agent = make(alpha=0.3)
    for layers in (agent.critic.value.layers, agent.critic.advantage.layers):
        assert not any(layer.bias.any() for layer in layers)
        inside, last = layers[1].weight, layers[-1].weight
        torch.testing.assert_close(
            inside.mT @ inside, 2 * torch.eye(WIDTH).expand(SEEDS, 2, -1, -1)
        )
        assert torch.linalg.matrix_norm(last, 2).tolist() == [[pytest.approx(0.01)] * 2] * SEEDS
    _, metrics = agent.loss(make_batches(1)[0])
    expected = metrics["value"] - 0.3 * agent.choices * math.log(3)
    torch.testing.assert_close(metrics["q"], expected, atol=0.05, rtol=0)


@pytest.mark.slow
def test_with_a_margin_compiled_is_eager():
    cfg = make(behaviour="margin").cfg
    agents = [ARSQ(cfg, Spec(O, A, generators(), mode=mode)) for mode in ("off", "compile")]
    for agent in agents:
        for batch in make_batches(3):
            agent.update(batch)
    for one, other in zip(*(agent.critic.parameters() for agent in agents), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
