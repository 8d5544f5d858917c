"""Settings by default and by task: the transcriptions read them, and cannot notice a wrong one.

A task's values are from the sources that the comments name. They guard against a change.
"""

from operator import attrgetter
from typing import Any

import default_settings
import pytest
from small import cell


def test_every_default_has_been_reviewed():
    reviewed = default_settings.SNAPSHOT.read_text(encoding="utf-8")
    command = "run python tests/default_settings.py and read its diff"
    assert reviewed == default_settings.snapshot(), command


AT_ONCE = {"levels": 1, "bins": 41}
TWICE = {"levels": 2, "bins": 7}
PAPERS_ENTROPY = {"tune_alpha": True, "target_entropy": -3.0}
TASKS: list[tuple[str, str, dict[str, Any]]] = [
    # ARSQ-main/d4rl, cfgs/.
    ("arsq", "halfcheetah-medium-v2", {"alpha": 0.01, "behaviour": "lse", "behaviour_weight": 1.0}),
    (
        "arsq",
        "walker2d-medium-replay-v2",
        {"behaviour": "margin", "behaviour_weight": 0.1} | AT_ONCE,
    ),
    ("arsq", "hopper-medium-v2", {"behaviour": "lse", "behaviour_weight": 0.5} | TWICE),
    (
        *("arsq", "hopper-medium-replay-v2"),
        {"behaviour": "margin", "behaviour_weight": 0.03, "behaviour_floor": 1.0} | TWICE,
    ),
    ("arsq", "hopper-medium-expert-v2", {"behaviour_weight": 2.0, "behaviour_floor": -1.0} | TWICE),
    ("arsq", "walker2d-medium-v2", {"behaviour_weight": 10.0, "behaviour_floor": 0.0} | AT_ONCE),
    # The same, of the baseline.
    (
        *("cqn", "walker2d-medium-v2"),
        {"low": 0.0, "high": 4000.0, "critic_weight": 1.0, "margin": 1.0, "polyak": 0.005}
        | {"noise": 0.1, "lr": 1e-4, "weight_decay": 0.0, "dominance_weight": 1.0}
        | AT_ONCE,
    ),
    ("cqn", "hopper-medium-expert-v2", {"margin_weight": 0.1, "dominance_weight": 0.01} | TWICE),
    ("cqn", "hopper-medium-replay-v2", {"margin_weight": 1.0, "dominance_weight": 1.0} | TWICE),
    # CORL's files.
    ("awac", "hopper-medium-v2", {"temperature": 0.3333, "data.normalize_states": True}),
    ("awac", "pen-human-v1", {"temperature": 0.1, "data.reward_shift": 0.0}),
    ("awac", "antmaze-umaze-v2", {"temperature": 0.1, "data.reward_shift": -1.0}),
    ("edac", "halfcheetah-medium-v2", {"critics": 10, "eta": 1.0}),
    ("edac", "walker2d-medium-expert-v2", {"critics": 10, "eta": 5.0}),
    ("edac", "hopper-medium-v2", {"critics": 50, "eta": 1.0}),
    ("edac", "pen-human-v1", {"critics": 20, "eta": 1000.0}),
    ("edac", "pen-cloned-v1", {"critics": 20, "eta": 10.0}),
    ("edac", "door-cloned-v1", {"critics": 50, "eta": 200.0}),
    (
        *("cql", "antmaze-umaze-v2"),
        {"weight": 5.0, "lagrange": "young_geng", "threshold": 0.8, "max_backup": "min_first"}
        | {"gap_min": -200.0, "policy_lr": 1e-4, "critic_layers": 5, "policy_layers": 3}
        | {"data.reward_scale": 10.0, "data.reward_shift": -5.0},
    ),
    ("cql", "door-human-v1", {"weight": 1.0, "policy_lr": 1e-4, "lagrange": "off"}),
    # configs/d4rl_configs.json.
    ("codac", "halfcheetah-medium-v2", {"weight": 10.0, "threshold": 10.0, "tune_alpha": False}),
    ("codac", "hopper-medium-v2", {"weight": 10.0, "policy_lr": 3e-5} | PAPERS_ENTROPY),
    ("codac", "walker2d-medium-replay-v2", {"weight": 1.0, "policy_lr": 3e-6} | PAPERS_ENTROPY),
    (
        *("codac", "halfcheetah-medium-expert-v2"),
        {"weight": 0.1, "threshold": None, "policy_lr": 3e-4, "tune_alpha": False},
    ),
    # nakamotoo/Cal-QL, scripts/*.sh.
    (
        *("cal_ql", "antmaze-large-play-v2"),
        {"data.reward_scale": 10.0, "data.reward_shift": -5.0, "failure_reward": 0.0}
        | {"critic_layers": 4, "policy_layers": 2, "hidden_width": 256, "lagrange": True}
        | {"weight": 5.0, "threshold": 0.8, "online.pretrain_steps": 1_000_000},
    ),
    (
        *("cal_ql", "adroit/pen-binary"),
        {"data.reward_scale": 10.0, "data.reward_shift": 5.0, "failure_reward": -1.0}
        | {"critic_layers": 3, "policy_layers": 2, "hidden_width": 512, "lagrange": False}
        | {"weight": 1.0, "online.pretrain_steps": 20_000, "online.offline_ratio": 0.5},
    ),
    # QT's eta, clip and K.
    ("dtr", "halfcheetah-medium-v2", {"eta": 5.0, "max_grad_norm": 15.0, "context": 5}),
    ("dtr", "halfcheetah-medium-expert-v2", {"eta": 0.4, "max_grad_norm": 15.0, "context": 20}),
    ("dtr", "hopper-medium-v2", {"eta": 1.0, "max_grad_norm": 9.0, "context": 20}),
    ("dtr", "walker2d-medium-v2", {"eta": 2.0, "max_grad_norm": 5.0, "context": 20}),
]


@pytest.mark.parametrize(("name", "task", "expected"), TASKS)
def test_a_tasks_settings_stay_what_they_are(name, task, expected):
    cfg = cell(name, task if "/" in task else f"d4rl/{task}")
    assert {key: attrgetter(key)(cfg.algo) for key in expected} == expected
