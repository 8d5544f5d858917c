"""Goals that are some columns of a state: the environment shows whole goals, and agents read a part."""

import pytest
import torch
from small import config, train

from corerl.buffers.goals import Goals
from corerl.policies.load import load


@pytest.mark.parametrize("name", ["gcbc", "gcivl", "crl"])
def test_an_agent_acts_by_its_columns_of_the_goal_alone(tmp_path, name):
    """Also after a reload."""
    own = {"goals": Goals(columns=[1]), "hidden_width": 8, "hidden_layers": 1, "batch_size": 8}
    cfg = config(tmp_path, name, own=own, task="corerl/goal-maze", steps=4)
    policy = load(train(cfg))
    shown = torch.randn(1, 5, 4)
    actions = policy(shown)
    assert torch.equal(policy(shown + torch.tensor([0.0, 0, 9, 0])), actions)
    assert (policy(shown + torch.tensor([0.0, 0, 0, 9])) != actions).any()
