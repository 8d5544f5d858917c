"""Pessimistic ensembles of rewards: by hand, offsets, limits, and an arm that one member alone likes."""

import pytest
import torch
from wording import refused

from corerl.nn.learner import Spec
from corerl.preferences.reward_models import Markov, pessimistic, unfitted

KINDS = ("worst", "uncertainty")


def test_by_hand():
    """Members (1, -1) and (3, -3), centred already: together their standard deviation is the root of 5."""
    rewards, root = torch.tensor([[[1.0, -1.0], [3.0, -3.0]]]), 5**0.5
    torch.testing.assert_close(
        pessimistic(rewards, "worst", 0.0), torch.tensor([[1.0, -3.0]]) / root
    )
    expected = torch.tensor(
        [[2.0 / root - 0.5 / 5, -2.0 / root - 0.5 / 5]]
    )  # the variance is 1 / 5
    torch.testing.assert_close(pessimistic(rewards, "uncertainty", 0.5), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_or_a_common_scale_changes_nothing(kind):
    rewards = torch.randn(2, 3, 50, dtype=torch.float64)
    moved = 7 * (rewards + torch.tensor([10.0, 0.0, -4.0])[:, None])
    torch.testing.assert_close(pessimistic(moved, kind, 0.3), pessimistic(rewards, kind, 0.3))


@pytest.mark.parametrize(
    ("kind", "members", "penalty"), [("worst", 1, 0.0), ("uncertainty", 3, 0.0)]
)
def test_limits_are_the_mean_in_standard_units(kind, members, penalty):
    rewards = torch.randn(2, members, 50, dtype=torch.float64)
    centred = rewards - rewards.mean(-1, keepdim=True)
    expected = centred.mean(1) / centred.square().mean((1, 2), keepdim=True).sqrt()[:, 0]
    torch.testing.assert_close(pessimistic(rewards, kind, penalty), expected)


@pytest.mark.parametrize(("kind", "taken"), [("mean", 2), ("worst", 1), ("uncertainty", 1)])
def test_an_arm_that_one_member_alone_likes_is_left(kind, taken):
    """Four members value arm 1 most, one lies about arm 2, which is rare in the batch."""
    arms = torch.tensor([0] * 24 + [1] * 25 + [2])
    honest, liar = torch.tensor([0.0, 1.0, 0.2]), torch.tensor([0.0, 1.0, 8.0])
    rewards = torch.stack([honest] * 4 + [liar])[None][..., arms]
    found = rewards.mean(1) if kind == "mean" else pessimistic(rewards, kind, 0.5)
    assert arms[found.argmax(-1)].tolist() == [taken]


@pytest.mark.parametrize("kind", ("mean", *KINDS))
def test_a_learned_reward_combines_as_it_is_told(kind):
    cfg = Markov(members=4, hidden_layers=1, hidden_width=8, ensemble=kind, penalty=0.2)
    reward = unfitted(cfg, Spec(2, 1, (), identities=[0, 1]))
    members = reward(torch.randn(2, 1, 6, 3))
    assert members.shape == (2, 4, 6)
    expected = members.mean(1) if kind == "mean" else pessimistic(members, kind, 0.2)
    torch.testing.assert_close(reward.combined(members), expected)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"ensemble": "best"}, "algo.reward.ensemble=best"),
        ({"penalty": -1.0}, "algo.reward.penalty=-1.0"),
    ],
)
def test_settings_that_are_none_raise_an_error(own, words):
    with refused(words):
        Markov(**own)
