"""`action_range`: policies that act in a part of the environment's range."""

import json
from dataclasses import replace

import numpy as np
import pytest
from small import config, train
from wording import refused, says

import corerl
from corerl.commands.data_export import rollouts
from corerl.config import Data, Eval
from corerl.data import action_range
from corerl.data.dataset import Dataset
from corerl.data.tasks import of, resolve
from corerl.launch.launch import launch
from corerl.policies.export import export

LOW, HIGH = -0.02, 0.06


@pytest.fixture
def recorded(tmp_path) -> dict:
    """A file of pendulum's shapes, whose torques of -0.04 to 0.12 are a small part of -2 to 2."""
    rng, rows = np.random.default_rng(0), 60
    torques = rng.uniform(2 * LOW, 2 * HIGH, (rows, 1)).astype(np.float32)
    torques[:2, 0] = 2 * LOW, 2 * HIGH
    arrays = {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": torques,
        "rewards": rng.normal(size=rows).astype(np.float32),
        "truncated": np.arange(rows) % 20 == 19,
        "behaviour_log_prob": np.full(rows, -3.0, np.float32),
    }
    np.savez(tmp_path / "small.npz", **arrays)
    where = {"task": f"file/{tmp_path}/small.npz", "env": "gym/Pendulum-v1", "data": Data()}
    return where | {"eval": Eval(every=4, episodes=1), "steps": 4}


def test_what_the_data_did_is_what_the_environment_is_told(tmp_path, recorded):
    cfg = config(tmp_path, "bc", **recorded)
    whole = of(cfg).load()
    cfg.action_range = [LOW, [HIGH]]
    part = of(cfg).load()
    assert [part.actions.min(), part.actions.max()] == pytest.approx([-1, 1], abs=1e-5)
    env = of(cfg).make_env()
    reported = np.array([env.get_wrapper_attr("action")(a) for a in part.actions])
    np.testing.assert_allclose(reported, whole.actions, atol=1e-7)
    assert env.get_wrapper_attr("action")(np.array([3.0]))[0] == pytest.approx(HIGH)
    assert env.action_space.low == -1 and env.action_space.high == 1
    # A density per unit: the environment's is 2 torques, the policy's 0.04 of those.
    np.testing.assert_allclose(whole.behaviour_log_prob, -3 + np.log(2), rtol=1e-6)
    np.testing.assert_allclose(part.behaviour_log_prob, -3 + np.log(2 * 0.04), rtol=1e-6)


def test_it_holds_in_training_loading_and_export(tmp_path, recorded):
    agent = corerl.load(train(config(tmp_path, "bc", **recorded, action_range=[LOW, HIGH])))
    assert agent.task.action_range == ((LOW,), (HIGH,))
    assert np.abs(agent.task.load().actions).max() == pytest.approx(1, abs=1e-5)
    played = rollouts(agent, 1)[0].actions
    assert played.min() >= LOW and played.max() <= HIGH
    facts = export(agent.path, tmp_path / "policy.pt2", units="env")
    low, high = json.loads(facts["actions"].removeprefix("(n, 1) in "))
    assert low + high == pytest.approx([2 * LOW, 2 * HIGH], abs=1e-6)


def test_data_with_small_actions_is_told_what_to_set(tmp_path, recorded, capsys):
    launch(config(tmp_path, "bc", **recorded))
    reported = capsys.readouterr().err
    says(reported, "range")
    assert "action_range=[-0.02,0.06]" in reported
    launch(config(tmp_path, "bc", **recorded, action_range=[LOW, HIGH]))
    assert "action_range" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", [0.5, [0.1], [0.1, 0.1], [-2, 0], [0, float("nan")], ["a", 1], [[0, 0.5], [0.2, 0.4]]]
)
def test_a_range_that_is_none_is_refused(given):
    with refused("action_range="):
        action_range.parse(given)


def test_what_it_does_not_fit_is_named(tmp_path, recorded):
    cfg = config(tmp_path, "bc", **recorded)
    cfg.action_range = [-0.01, 0.06]
    with refused("0 -0.02 -0.01 0.06"):
        of(cfg).load()
    cfg.action_range = [[-1, -1], [1, 1]]
    with refused("action_range 2 1 actions"):
        of(cfg).make_env()
    discrete = replace(resolve("corerl/cartpole"), action_range=((-0.5,), (0.5,)))
    with refused("continuous"):
        discrete.load()
    with refused("continuous"):
        discrete.make_env()


def test_several_dimensions_have_ranges_of_their_own():
    given = np.array([[0.1, -0.5], [0.3, 0.5], [0.2, 0.0]], np.float32)
    data = Dataset.from_arrays(np.zeros((3, 1)), given, np.zeros(3), truncated=[0, 0, 1])
    part = action_range.narrowed(data, action_range.parse([[0.1, -0.5], [0.3, 0.5]]))
    np.testing.assert_allclose(part.actions, [[-1, -1], [1, 1], [0, 0]], atol=1e-6)
