"""CQN against its transcription, by hand, and what its zoom-in promises."""

import math

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

from corerl.algos.cqn import CQN, Config
from corerl.nn.learner import Spec
from corerl.training.demonstrations import Demos

SMALL = {
    "hidden_width": WIDTH,
    "features": 4,
    "levels": 2,
    "bins": 3,
    "atoms": 5,
    "lr": 1e-2,
    "polyak": 0.1,
    "discount": 0.9,
    "batch_size": B - 6,
    "demos": Demos(rows=6),
}
VERSIONS = {
    "rlbench": {"margin": 0.3, "critic_weight": 0.5},
    "baseline": {
        "levels": 1,
        "bins": 7,
        "low": 0.0,
        "high": 3.0,
        "weight_decay": 0.0,
        "terminals": "ignore",
        "dominance_weight": 0.3,
    },
}


def make(**settings) -> CQN:
    return CQN(Config(**SMALL | settings), Spec(O, A, generators()))


def parts(agent: CQN, seed: int) -> tuple:
    return net(agent.critic, seed), net(agent.target, seed)


def draws(agent: CQN, count: int, rows: int = B) -> list[torch.Tensor]:
    rng = np.random.default_rng(4)
    return [as_tensor(rng.random((SEEDS, rows, agent.choices))) for _ in range(count)]


@pytest.mark.parametrize("version", VERSIONS)
def test_five_steps_equal_the_transcription(version, tolerance):
    agent = make(**VERSIONS[version])
    scramble(agent.critic, agent.target)
    references = [reference_arsq.CQN(*parts(agent, i), agent.cfg) for i in range(SEEDS)]
    for batch, uniforms in zip(make_batches(5), draws(agent, 5), strict=True):
        metrics = agent.update(batch, uniforms)
        for i, reference in enumerate(references):
            losses = reference.update(one_seed(batch, i), uniforms[i])
            assert_losses(metrics, i, losses, 10 * tolerance)
    for i, reference in enumerate(references):
        assert_networks(parts(agent, i), reference.networks(), tolerance)


@pytest.mark.parametrize("act_with", ["target", "online"])
def test_actions_equal_the_transcription(act_with):
    agent = make(act_with=act_with)
    scramble(agent.critic, agent.target)
    s = np.random.default_rng(3).normal(size=(SEEDS, 7, O))
    actions = agent.act(as_tensor(s))
    for i in range(SEEDS):
        reference = reference_arsq.CQN(*parts(agent, i), agent.cfg)
        network = reference.target if act_with == "target" else reference.critic
        expected = reference.greedy(network, torch.from_numpy(s[i]), A)
        np.testing.assert_allclose(actions[i], expected, atol=1e-6)


def test_equal_bins_are_drawn_and_others_are_not():
    """A fresh network has zeros as its output layer: all bins are equal."""
    agent = make(levels=1, bins=3)
    s, uniforms = torch.zeros(SEEDS, 4, O), torch.tensor([0.0, 0.33, 0.34, 0.99])
    uniforms = uniforms[:, None].expand(SEEDS, -1, A)
    drawn = agent.explore(s, torch.zeros(SEEDS, 4, A), uniforms)
    expected = torch.tensor([-2, -2, 0, 2])[:, None].expand(SEEDS, -1, A) / 3
    torch.testing.assert_close(drawn, expected)
    assert (agent.act(s) == drawn[:, :1]).all()  # evaluated, the first
    with torch.no_grad():
        agent.target.advantage.body.layers[-1].bias.unflatten(-1, (A, 3, 5))[..., 1, -1] += 1
    assert agent.explore(s, torch.zeros(SEEDS, 4, A), uniforms).abs().max() < 1e-6


def test_a_fresh_network_is_the_authors():
    """Orthogonal inside, zeros at the end: every law is uniform. No bias before a normalisation learns."""
    agent = make()
    for branch in (agent.critic.value, agent.critic.advantage):
        inside = branch.body.layers[1].weight
        torch.testing.assert_close(inside.mT @ inside, torch.eye(WIDTH).expand(SEEDS, -1, -1))
        assert not branch.body.layers[-1].weight.any()
        assert not any(p.any() for n, p in branch.named_parameters() if "bias" in n)
    learned = {id(p) for p in agent.optimizer.parameters}
    still = [n for n, p in agent.critic.named_parameters() if id(p) not in learned]
    names = ("features.bias", "body.layers.0.bias", "body.layers.1.bias")
    assert still == [f"{branch}.{name}" for branch in ("value", "advantage") for name in names]


def test_exploration_stays_among_the_bins_centres():
    agent = make(levels=2, bins=3, noise=0.5)
    scramble(agent.target)
    s = torch.randn(SEEDS, 1, O).expand(-1, 500, -1)
    drawn = agent.explore(s, torch.randn(SEEDS, 500, A), torch.rand(SEEDS, 500, agent.choices))
    ninths = (drawn * 9).round()
    torch.testing.assert_close(drawn, ninths / 9)
    assert (ninths % 2 == 0).all() and ninths.abs().max() == 8
    assert len(drawn[0].unique(dim=0)) > 10


def test_exploration_without_noise_is_the_best_action():
    agent = make(noise=0.0)
    scramble(agent.critic, agent.target)
    s, noise = torch.randn(SEEDS, 9, O), torch.full((SEEDS, 9, A), 9.0)
    drawn = agent.explore(s, noise, torch.rand(SEEDS, 9, agent.choices))
    torch.testing.assert_close(drawn, agent.act(s))


def by_hand(**settings) -> CQN:
    """One choice between two bins, laws on -1, 0 and 1, whatever the state."""
    cfg = Config(
        **SMALL
        | {"levels": 1, "bins": 2, "atoms": 3, "low": -1.0, "high": 1.0}
        | {"batch_size": 1, "demos": Demos(rows=1), "margin": 0.5}
        | {"critic_weight": 0.0, "dominance_weight": 0.0, "margin_weight": 0.0}
        | settings
    )
    return CQN(cfg, Spec(1, 1, generators(1)))


def set_laws(critic, first: list[float], second: list[float]) -> None:
    """Makes the two bins' probabilities these: logits are relative to the bins' mean, which V adds."""
    logits = torch.tensor([first, second]).log()
    with torch.no_grad():
        critic.value.body.layers[-1].bias.copy_(logits.mean(0))
        critic.advantage.body.layers[-1].bias.copy_(logits.flatten())


UNIFORMS = torch.zeros(1, 2, 1)


def test_distributional_loss_by_hand():
    agent = by_hand(critic_weight=2.0)
    set_laws(agent.critic, [0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    set_laws(agent.target, [0.1, 0.1, 0.8], [0.2, 0.3, 0.5])
    # The online network's best next bin is the second; the target's law of it is (0.2, 0.3, 0.5).
    # r = 0.2: its atoms move to -0.7, 0.2 and 1.1, clipped to 1. The first gives 0.7 of its 0.2 to -1, the
    # rest to 0, the second 0.8 of its 0.3 to 0 and the rest to 1: (0.14, 0.06 + 0.24, 0.06 + 0.5).
    # At the terminal, with r = 0.5, all of it goes half to 0 and half to 1.
    batch = tiny(s=[[0], [0]], a=[[-0.5], [0.5]], r=[0.2, 0.5], d=[0, 1])
    first = -(0.14 * math.log(0.5) + 0.30 * math.log(0.25) + 0.56 * math.log(0.25))
    second = -(0.5 * math.log(0.25) + 0.5 * math.log(0.5))
    loss, metrics = agent.loss(batch, UNIFORMS)
    assert loss.tolist() == pytest.approx([2 * (first + second) / 2])
    assert metrics["q"].tolist() == pytest.approx([(-0.25 + 0.25) / 2], abs=1e-6)


def test_demonstration_losses_by_hand():
    batch = tiny(s=[[0], [0]], a=[[-0.5], [0.5]])
    laws = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    # The first row alone is demonstrated, in the worse bin: CDFs (0.5, 0.75, 1) and (0.25, 0.5, 1) differ by
    # 0.25 twice, of two bins one counts. Means are -0.25 and 0.25: the margin lacks 0.5 + 0.5, itself 0.5.
    for name, expected in (("dominance_weight", 0.5 / 2), ("margin_weight", (1.0 + 0.5) / 2)):
        agent = by_hand(**{name: 2.0})
        set_laws(agent.critic, *laws)
        assert agent.loss(batch, UNIFORMS)[0].tolist() == pytest.approx([2 * expected])


def test_a_goal_is_a_law_whatever_the_reward():
    agent = make(levels=2)
    scramble(agent.critic, agent.target)
    for batch, uniforms in zip(make_batches(2), draws(agent, 2), strict=True):
        batch = batch._replace(rewards=2 * batch.rewards)
        goal = agent.goal(batch, uniforms)
        assert goal.shape == (SEEDS, 2, B, A, 5) and (goal >= 0).all()
        torch.testing.assert_close(goal.sum(-1), torch.ones(SEEDS, 2, B, A))
