"""Rewards from demonstrations: closed forms, brute force, what reaches the algorithms, refusals."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small import config, random_dataset, train
from wording import refused, says

from corerl.algos import cpl, iql
from corerl.config import Config
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.preferences.loading import refuse_recorded
from corerl.runs.directory import config_hash
from corerl.training import expert_rewards
from corerl.training.expert_rewards import Expert, otr, relabelled, seabo, transport_costs
from corerl.training.offline_to_online import Online
from corerl.training.preprocessing import Preprocess, load

BEST = 1
"""The episode of `three` that returns most."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORERL_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "expert_rewards"


def three() -> Dataset:
    """Three episodes of 2, 2 and 1 steps that return 3, 9 and 4; the last has no next state."""
    return Dataset.from_steps(
        "test/three",
        np.array([[0.0], [1], [10], [11], [20]]),
        np.array([[0.0, 0], [0, 1], [1, 0], [0, 0], [0, 0]]),
        [1, 2, 4, 5, 4],
        np.array([[1.0], [2], [11], [12], [21]]),
        terminated=[0, 1, 0, 1, 0],
        truncated=[0, 0, 0, 0, 1],
        has_next=[1, 1, 1, 1, 0],
    )


def on(data: Preprocess, dataset: Dataset | None = None, **algo) -> np.ndarray:
    run = SimpleNamespace(
        cfg=SimpleNamespace(algo=iql.Config(**algo)), task=resolve("corerl/pendulum")
    )
    return relabelled(run, dataset or three(), data).rewards


def vectors(dataset: Dataset, compare: str) -> np.ndarray:
    parts = {"s": dataset.observations, "a": dataset.actions}
    first, *others = compare
    after = dataset.next_observations
    return np.hstack([parts[first], *(after if x == "s" else parts[x] for x in others)])


# ------------------------------------------------------------------------------------------- SEABO


def test_seabo_by_hand(capsys):
    """Distances to episode 1: of (0, 0 0, 1) to (10, 1 0, 11) it is sqrt(100 + 1 + 100)."""
    nearest = np.sqrt([100 + 1 + 100, 81 + 2 + 81, 0, 0])
    expected = [*np.exp(-0.5 * nearest / 2), 0]  # the last row makes no transition
    np.testing.assert_allclose(on(Preprocess(rewards="seabo")), expected, rtol=1e-6)
    says(capsys.readouterr().err, "algo.data.rewards=seabo 5 test/three 1 9")


@pytest.mark.parametrize("compare", ["sas", "sa", "ss"])
def test_neighbours_are_those_of_brute_force(compare):
    dataset = random_dataset(500)
    expert = dataset.select_episodes(np.array([3, 7]))
    settings = Expert(compare=compare, beta=2.0, scale=3.0, per_size=False)
    rows, known = (vectors(x, compare).astype(np.float64) for x in (dataset, expert))
    distances = np.sqrt(np.square(rows[:, None] - known[None]).sum(-1)).min(1)
    found = seabo(dataset, expert, settings)
    np.testing.assert_allclose(found, 3 * np.exp(-2 * distances), rtol=1e-5)
    assert (found[60:80] == 3).all() and (found[:60] < 3).all()  # the expert's own are the largest


def test_a_demonstration_twice_is_one():
    dataset = random_dataset(200)
    one, two = (dataset.select_episodes(np.array(which)) for which in ([4], [4, 4]))
    assert (seabo(dataset, one, Expert()) == seabo(dataset, two, Expert())).all()


def test_distances_are_computed_once(cache, monkeypatch):
    dataset = random_dataset(200)
    expert = dataset.select_episodes(np.array([4]))
    found = seabo(dataset, expert, Expert())
    monkeypatch.setattr(expert_rewards, "cKDTree", None)
    assert (seabo(dataset, expert, Expert()) == found).all()
    assert (seabo(dataset, expert, Expert(beta=0.0)) == 1).all()  # of the same distances
    with pytest.raises(TypeError):  # other demonstrations have others
        seabo(dataset, dataset.select_episodes(np.array([5])), Expert())
    monkeypatch.undo()
    (file,) = cache.glob("*.npy")
    file.write_bytes(file.read_bytes()[:100])
    monkeypatch.setenv("CORERL_DATA", str(cache.parent))
    assert (seabo(dataset, expert, Expert()) == found).all()


# --------------------------------------------------------------------------------------------- OTR


def test_the_plan_of_two_states_each_has_its_closed_form():
    """With uniform weights the plan is (p, 1/2 - p; 1/2 - p, p), where p / (1/2 - p) is
    exp((c12 + c21 - c11 - c22) / (2 epsilon))."""
    angles = np.array([0.0, 0.3, 0.1, 0.35])
    unit = np.stack([np.cos(angles), np.sin(angles)], 1)
    cost = 1 - np.cos(angles[:2, None] - angles[None, 2:])
    ratio = np.exp((cost[0, 1] + cost[1, 0] - cost[0, 0] - cost[1, 1]) / 0.02)
    p = 0.5 * ratio / (1 + ratio)
    plan = np.array([[p, 0.5 - p], [0.5 - p, p]])
    found = transport_costs(2 * unit[:2], 5 * unit[2:])  # lengths do not count
    np.testing.assert_allclose(found, 2 * (plan * cost).sum(1), rtol=1e-4)  # 100 iterations


def test_the_plan_is_that_of_a_loop_over_logarithms():
    rng = np.random.default_rng(0)
    states, expert = rng.standard_normal((7, 3)), rng.standard_normal((5, 3))
    cost = np.empty((7, 5))
    for i, x in enumerate(states):
        for j, y in enumerate(expert):
            cost[i, j] = 1 - x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
    f, g = np.zeros(7), np.zeros(5)
    for _ in range(100):
        for j in range(5):
            g[j] = 0.01 * (np.log(1 / 5) - np.logaddexp.reduce((f - cost[:, j]) / 0.01))
        for i in range(7):
            f[i] = 0.01 * (np.log(1 / 7) - np.logaddexp.reduce((g - cost[i]) / 0.01))
    plan = np.exp((f[:, None] + g - cost) / 0.01)
    np.testing.assert_allclose(transport_costs(states, expert), 7 * (plan * cost).sum(1), rtol=1e-5)


def test_otr_rewards_each_episode_by_its_best_demonstration():
    dataset = random_dataset(60)
    expert = dataset.select_episodes(np.array([0, 2]))
    found = otr(dataset, expert, Expert())
    alone = [otr(dataset, dataset.select_episodes(np.array([i])), Expert()) for i in (0, 2)]
    assert (found[:20] == alone[0][:20]).all() and (found[40:] == alone[1][40:]).all()
    mean, std = dataset.observations.mean(0), dataset.observations.std(0) + 1e-6
    first, middle = ((dataset.observations[i : i + 20] - mean) / std for i in (0, 20))
    by_first = 5 * np.exp(-5 * transport_costs(middle, first) / 3)
    np.testing.assert_allclose(alone[0][20:40], by_first, rtol=1e-4)
    assert found[:20].mean() > 4.9 > found[20:40].mean()


def test_otr_chooses_the_demonstration_by_the_sum_of_rewards(monkeypatch):
    """One step on the expert's way and one far off it beat two in between, which cost less in sum."""
    costs = {"far": np.array([0.0, 1.0]), "between": np.array([0.45, 0.45])}
    monkeypatch.setattr(expert_rewards, "transport_costs", lambda _, known: costs[known])
    assert expert_rewards._nearest(None, ["between", "far"], decay=5.0) is costs["far"]
    assert expert_rewards._nearest(None, ["between", "far"], decay=0.1) is costs["between"]


# --------------------------------------------------------------------------------------------- UDS


def test_uds_keeps_the_best_episode_and_leaves_others_the_smallest_reward():
    assert on(Preprocess(rewards="uds")).tolist() == [1, 1, 4, 5, 1]
    two = Preprocess(rewards="uds", expert=Expert(episodes=2))
    assert on(two).tolist() == [1, 1, 4, 5, 4]


def test_demonstrations_of_another_task_are_its_best(monkeypatch):
    other = replace(three(), id="test/other", rewards=np.float32([1, 1, 0, 0, 0]))
    monkeypatch.setattr(
        expert_rewards.tasks, "another", lambda task, id: SimpleNamespace(load=lambda: other)
    )
    assert on(Preprocess(rewards="uds")).tolist() == [1] * 5 + [1, 1]  # they join the data
    found = on(Preprocess(rewards="seabo"))
    assert (found[:2] == 1).all() and (found[2:] < 1).all()


def test_the_end_reward_ends_the_episodes_of_another_task_too(monkeypatch):
    """The best of two that were one is the second step."""
    other = replace(three(), id="test/other", rewards=np.float32([4, 5, 0, 0, 0]))
    monkeypatch.setattr(
        expert_rewards.tasks, "another", lambda task, id: SimpleNamespace(load=lambda: other)
    )
    assert on(Preprocess(rewards="uds", end_reward=4.0)).tolist() == [1] * 5 + [5]


# -------------------------------------------------------------------- in the algorithms, refusals


@pytest.mark.parametrize("kind", ["iql", "td3_bc", "rebrac", "awac", "cql", "edac", "bc"])
def test_every_offline_algorithm_takes_them(kind, tmp_path, capfd):
    cfg = config(tmp_path, kind, steps=6)
    cfg.algo.data.rewards = "seabo"
    train(cfg)
    says(capfd.readouterr().err, "algo.data.rewards=seabo 100,000 corerl/pendulum")


def test_runs_with_recorded_rewards_keep_their_names():
    cfg = Config(algo=iql.Config(), task="d4rl/hopper-medium-v2")
    assert config_hash(cfg) == "bc9ec2c7"
    names = {
        config_hash(replace(cfg, algo=replace(cfg.algo, data=replace(cfg.algo.data, **changed))))
        for changed in ({"rewards": "seabo"}, {"rewards": "seabo", "expert": Expert(episodes=2)})
    }
    assert len(names) == 2


def test_rewards_that_cannot_be_made_are_refused():
    seabo_of = Preprocess(rewards="seabo")
    with refused("algo.data.rewards=demos seabo otr uds"):
        Preprocess(rewards="demos")
    with refused("algo.data.rewards=seabo algo.phase=online algo.phase=offline"):
        on(seabo_of, phase="online")
    online = iql.Config(phase="online", online=Online(offline_ratio=0.0), data=seabo_of)
    run = SimpleNamespace(cfg=SimpleNamespace(algo=online))
    with refused("algo.data.rewards=seabo algo.phase=online algo.phase=offline"):
        load(run, seabo_of, 4)  # also where the dataset is in no batch
    with refused("algo.data.expert.episodes=4 3 test/three"):
        on(Preprocess(rewards="otr", expert=Expert(episodes=4)))
    with refused("test/three algo.data.expert.compare=sa"):  # a demonstration of one step
        on(seabo_of, three().with_rewards(np.float32([0, 0, 0, 0, 1])))
    numbered = replace(three(), actions=np.arange(5))
    with refused("algo.data.rewards=seabo test/three algo.data.rewards=uds"):
        on(seabo_of, numbered)
    assert on(Preprocess(rewards="uds"), numbered).tolist() == [1, 1, 4, 5, 1]


def test_demonstrations_of_other_spaces_or_without_an_end_are_refused(tmp_path):
    np.savez(
        tmp_path / "endless.npz", observations=[[0.0], [1]], actions=[[0.0], [1]], rewards=[0.0, 1]
    )
    for task, words in {
        "corerl/maze-stitch": "corerl/maze-stitch (2,) (1,) algo.data.expert.task",
        f"file/{tmp_path}/endless.npz": "endless.npz terminated truncated episode",
    }.items():
        with refused(words):
            on(Preprocess(rewards="seabo", expert=Expert(task=task)))


def test_learned_rewards_are_no_demonstrated_ones():
    data = Preprocess(rewards="otr")
    with refused("algo.data.rewards=otr comparisons"):
        refuse_recorded(data)
    with refused("algo.data.rewards=otr comparisons"):
        cpl.Config(data=data)
