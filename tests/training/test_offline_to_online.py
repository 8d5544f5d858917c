"""The switch from data to environment: one counter, one directory, resumable across it."""

import contextlib
import json
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.wrappers import TransformReward
from small import config, flatten, goes_on, run, state_of
from wording import lacking, refused

from corerl.algos import (
    cal_ql,
    cql_official,
    iql,
    rebrac,
)
from corerl.older_settings import RENAMED
from corerl.policies.load import load
from corerl.runs import checkpoint, files
from corerl.runs import directory as run_directory
from corerl.runs.directory import cell_directory
from corerl.training import preprocessing, return_labels
from corerl.training import pretrained as pretrained_runs
from corerl.training.demonstrations import Demos
from corerl.training.environments import Environments
from corerl.training.offline_to_online import EndReward, Online, Phases
from corerl.training.run import Run

pytestmark = pytest.mark.usefixtures("load_once", "short_episodes")

OWN = {
    "iql": {"phase": "both", "online": Online(pretrain_steps=20, warmup_steps=10)},
    "awac": {"phase": "both", "online": Online(pretrain_steps=20)},
    "famo2o": {"phase": "both", "online": Online(pretrain_steps=20)},
    "cql": {"phase": "both", "samples": 2, "online": Online(pretrain_steps=20)},
    "cql_official": {"phase": "both", "samples": 2, "bc_steps": 24}
    | {"online": Online(pretrain_steps=20)},
    "ro2o": {
        "phase": "both",
        "critics": 3,
        "perturbations": 2,
        "online": Online(pretrain_steps=20, warmup_steps=10),
    },
    "rebrac": {"phase": "both", "online": Online(pretrain_steps=20, offline_ratio=0.5)},
    "spot": {"phase": "both", "vae_steps": 8, "vae_width": 8}
    | {"online": Online(pretrain_steps=20), "restart_optimizers": True},
    "cal_ql": {"samples": 2, "online": Online(pretrain_steps=20, offline_ratio=0.5)},
    "rlpd": {"utd": 2, "critics": 3, "online": Online(warmup_steps=10, offline_ratio=0.5)},
    "wsrl": {
        "utd": 2,
        "critics": 3,
        "samples": 2,
        "online": Online(pretrain_steps=20, warmup_steps=20, offline_ratio=0.0),
    },
    "arsq": {"phase": "both", "demos": Demos(rows=8), "online": Online(pretrain_steps=20)},
    "cqn": {
        "phase": "both",
        "levels": 1,
        "atoms": 5,
        "utd": 2,
        "demos": Demos(rows=8),
        "online": Online(pretrain_steps=20),
    },
}


def settings(root: Path, algo: str, seeds=2, **changes):
    cfg = config(root, algo, own=OWN[algo] | changes, steps=60, seeds=seeds)
    return replace(cfg, eval=replace(cfg.eval, every=20, episodes=1))


def train(cfg, seeds=(0, 1), stops: tuple[int, ...] = ()) -> Path:
    """Runs the job, stopped and resumed after each of `stops`; its group's folder."""
    for stop in (*stops, None):
        directory = train_until(stop, cfg, seeds)
    return directory


def train_until(stop: int | None, cfg, seeds=(0, 1)) -> Path:
    cell = cell_directory(cfg)
    cell.mkdir(parents=True, exist_ok=True)
    written = run_directory.settings(cfg) | {"seeds": len(seeds)}
    (cell / "config.yaml").write_text(yaml.safe_dump(written))
    return run(cfg, seeds, stop)


def rows(directory: Path) -> list[list[str]]:
    return [line.split(",") for line in (directory / "scores.csv").read_text().splitlines()[1:]]


@pytest.mark.parametrize("algo", OWN)
def test_stopped_before_at_and_after_the_switch_it_ends_as_unbroken(tmp_path, algo):
    state = goes_on(settings(tmp_path, algo), tmp_path, (14, 20, 26, 44))
    assert state["replay"]["added"] == (60 if algo == "rlpd" else 40)


@pytest.mark.parametrize("algo", ["iql", "cal_ql", "wsrl", "cqn"])
def test_a_run_can_be_loaded_wherever_it_stopped(tmp_path, algo):
    """Before the switch the replay of a stopped run is empty, and no online step could be made."""
    cfg = settings(tmp_path, algo)
    for stop in (14, 20, 26):
        directory = train_until(stop, cfg)
        agent = load(directory)
        saved = state_of(directory)["agent"]
        assert agent.steps == [stop, stop]
        assert flatten(agent.states()[0][1]["agent"].state_dict()) == flatten(saved)


def test_a_finished_run_whose_replay_keeps_everything_can_be_loaded(tmp_path):
    directory = train(settings(tmp_path, "cal_ql"), seeds=[0])
    loaded = load(directory)
    assert loaded.steps == [60] and loaded.act(np.zeros(3)).shape == (1, 1)


@pytest.mark.parametrize(("steps", "reported"), [(40, True), (41, False)])
def test_a_run_that_ends_before_an_episode_must_have_says_that_it_does_not_learn(
    tmp_path, capsys, steps, reported
):
    cfg = replace(settings(tmp_path, "cal_ql"), steps=steps)
    directory = train(cfg, seeds=[0])
    assert (not lacking(capsys.readouterr().err, "online 20 steps")) == reported
    load(directory)
    assert not capsys.readouterr().err


def test_the_switch_is_scored_and_the_warm_up_changes_nothing(tmp_path):
    """Steps 20 to 40 act with the pre-trained policy: equal scores, as episodes' seeds are fixed."""
    scores = {int(row[4]): row[5] for row in rows(train(settings(tmp_path, "wsrl"), seeds=[0]))}
    assert scores[20] == scores[40] != scores[60]


def test_a_seed_fine_tunes_the_same_alone_as_in_company(tmp_path):
    both = train(settings(tmp_path / "both", "wsrl"), seeds=[0, 1])
    alone = train(settings(tmp_path / "alone", "wsrl"), seeds=[1])
    mine, theirs = (state_of(d)["replay"]["rows"] for d in (alone, both))
    torch.testing.assert_close(mine[0], theirs[1], rtol=1e-3, atol=1e-3)


def pretrained(tmp_path: Path, algo: str = "iql", **changes) -> Path:
    own = {"phase": "offline", "online": Online()} | changes
    cfg = settings(tmp_path / "before", algo, **own)
    train(cfg)
    for group in cell_directory(cfg).glob("seeds-*"):
        files.write_json(group / "status.json", {"state": "done", "step": 60})
    return cell_directory(cfg)


def continued(tmp_path: Path, cell: Path, algo: str = "iql", **changes):
    online = Online(checkpoint=str(cell), warmup_steps=40)
    own = {"phase": "online", "online": online} | changes
    return replace(settings(tmp_path / "after", algo, **own), steps=40)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_policy_that_goes_on_is_not_cloned_again(tmp_path, monkeypatch, resumed):
    kinds, cell = [], pretrained(tmp_path, "cql_official", bc_steps=20)
    for kind in ("warm_start", "update"):
        made = getattr(cql_official.OfficialCQL, kind)
        monkeypatch.setattr(
            cql_official.OfficialCQL,
            kind,
            lambda *x, made=made, kind=kind: (kinds.append(kind), made(*x))[1],
        )
    cfg = continued(tmp_path, cell, "cql_official", bc_steps=20)
    cfg.algo.online.warmup_steps = 10
    train(cfg, stops=(15,) if resumed else ())
    assert set(kinds) == {"update"} and len(kinds) >= 30


@pytest.mark.parametrize(
    ("algo", "part"), [("iql", "policy_optimizer"), ("arsq", "optimizer"), ("cqn", "optimizer")]
)
def test_the_whole_agent_is_restored_whoever_trained_beside_it(tmp_path, algo, part):
    cell = pretrained(tmp_path, algo)
    directory = train(
        continued(tmp_path, cell, algo), seeds=[1]
    )  # a warm-up throughout: nothing is learned
    before = state_of(cell / "seeds-0-1")["agent"]
    after = state_of(directory)["agent"]
    for gone in (before, after):  # shared by all seeds; the rate's schedule ends with pre-training
        gone.pop("normalizer"), gone.pop("schedule", None)
    own = {name: flatten(part) for name, part in after.items()}
    assert own.keys() == before.keys() and part in own

    def second(state):
        if isinstance(state, torch.Tensor) and state.ndim:
            return state[1:]
        if isinstance(state, dict):
            return {name: second(part) for name, part in state.items()}
        return [second(part) for part in state] if isinstance(state, list) else state

    assert own == {name: flatten(second(part)) for name, part in before.items()}


@pytest.mark.parametrize("together", [[0], [0, 1]])
def test_a_tensor_without_seeds_is_restored_as_it_is(tmp_path, monkeypatch, together):
    made = iql.IQL.__init__

    def with_mean(self, cfg, spec):
        made(self, cfg, spec)
        self.feature_mean = torch.zeros(3)

    monkeypatch.setattr(iql.IQL, "__init__", with_mean)
    cell, mean = pretrained(tmp_path), torch.tensor([1.0, 2.0, 3.0])
    (group,) = cell.glob("seeds-*")
    saved = checkpoint.load_checkpoint(group / "checkpoint.safetensors")
    saved["state"]["agent"]["feature_mean"] = mean
    checkpoint.save_checkpoint(group / "checkpoint.safetensors", saved)
    run = Run(continued(tmp_path, cell), together, lambda *_: None)
    agent = iql.IQL(run.cfg.algo, run.spec(*preprocessing.load(run, run.cfg.algo.data, 8)))
    pretrained_runs.restore(agent, str(cell), run, ["iql"])
    torch.testing.assert_close(agent.feature_mean, mean)


def test_a_run_that_has_begun_needs_the_one_it_began_from_no_more(tmp_path):
    cell = pretrained(tmp_path)
    cfg = continued(tmp_path, cell)
    train_until(20, cfg)
    cell.rename(tmp_path / "elsewhere")
    assert load(train(cfg)).steps == [40, 40]


def test_a_run_says_how_many_steps_are_behind_it(tmp_path):
    cell = pretrained(tmp_path)
    first = train(continued(tmp_path, cell), seeds=[1])
    said = json.loads((first / "env.json").read_text())["pretrained"]
    assert said == {"run": str(cell), "steps": 60}
    files.write_json(first / "status.json", {"state": "done", "step": 40})
    second = continued(tmp_path / "third", first.parent)
    said = json.loads((train(second, seeds=[1]) / "env.json").read_text())["pretrained"]
    assert said == {"run": str(first.parent), "steps": 100}


@pytest.mark.parametrize(
    ("changes", "job", "message"),
    [
        ({}, {"action_range": [-1, 1]}, "action_range -1 1"),
        ({}, {"task": "risk/pointmass"}, "corerl/pendulum risk/pointmass"),
        ({}, {"history": 2}, "critic.layers.0.weight shape 2 4 16"),
        ({"hidden_width": 8}, {}, "algo.hidden_width 16 8"),
        ({"hidden_layers": 3}, {}, "algo.hidden_layers 2 3"),
        ({"activation": "tanh"}, {}, "algo.activation relu tanh"),
        ({"layer_norm": True}, {}, "algo.layer_norm False True"),
        ({"policy": "deterministic"}, {}, "algo.policy gaussian deterministic"),
        ({"log_std_max": -1.0}, {}, "algo.log_std_max 2.0 -1.0"),
        (
            {"data": preprocessing.Preprocess(clip_actions=1 - 1e-5, reward_scale=2.0)},
            {},
            "algo.data.reward_scale 1.0 2.0",
        ),
        ({}, {"seeds": [5]}, "5"),
    ],
)
def test_another_task_or_network_is_refused(tmp_path, changes, job, message):
    cfg = continued(tmp_path, pretrained(tmp_path), **changes)
    seeds = job.pop("seeds", [0])
    with refused(message):
        train(replace(cfg, **job), seeds=seeds)


@pytest.mark.parametrize(
    ("there", "normalised", "message"),
    [
        ({"columns": {"observations": ["b", "a"]}}, False, "observations b a"),
        ({"columns": {"actions": ["u"]}}, False, "data.columns.actions ['u']"),
        ({"action_high": 2.0}, False, "data.action_high 2.0"),
        ({"sha256": "11"}, True, "data.sha256 11"),
        ({"sha256": "11", "columns": {"episode": "e"}}, False, None),
    ],
)
def test_a_file_must_be_read_alike(tmp_path, there, normalised, message):
    own = {"data": preprocessing.Preprocess(clip_actions=1 - 1e-5, normalize_states=normalised)}
    cell = pretrained(tmp_path, **own)
    read = yaml.safe_load((cell / "config.yaml").read_text())
    (cell / "config.yaml").write_text(yaml.safe_dump(read | {"data": there}))
    with refused(message) if message else contextlib.nullcontext():
        train(continued(tmp_path, cell, **own), seeds=[0])


@pytest.mark.parametrize(
    ("algo", "changes", "message"),
    [
        ("cql", {"tuning": "softplus"}, "algo.tuning log softplus"),
        ("cql", {"alpha": 2.0}, None),
        ("arsq", {"alpha": 2.0}, "algo.alpha 0.1 2.0"),
        ("cqn", {"low": -3.0}, "algo.low -2.0 -3.0"),
        ("iql", {"lr": 1e-4, "discount": 0.9, "beta": 1.0, "dropout": 0.1, "batch_size": 4}, None),
    ],
)
def test_what_weights_mean_must_be_the_same_and_how_they_learn_need_not(
    tmp_path, algo, changes, message
):
    cell = pretrained(tmp_path, algo)
    with refused(message) if message else contextlib.nullcontext():
        train(continued(tmp_path, cell, algo, **changes), seeds=[0])


def test_parts_of_a_network_that_would_be_left_behind_are_refused(tmp_path):
    cell = pretrained(tmp_path, layer_norm=True)
    settings = yaml.safe_load((cell / "config.yaml").read_text())
    del settings["algo"]["layer_norm"]  # as a setting that no comparison knows
    (cell / "config.yaml").write_text(yaml.safe_dump(settings))
    with refused("critic"):
        train(continued(tmp_path, cell), seeds=[0])


def test_settings_that_an_older_run_does_not_name_had_their_defaults(tmp_path):
    cell = pretrained(tmp_path)
    settings = yaml.safe_load((cell / "config.yaml").read_text())
    for added in ("activation", "layer_norm"):
        del settings["algo"][added]
    (cell / "config.yaml").write_text(yaml.safe_dump(settings))
    train(continued(tmp_path, cell), seeds=[0])
    with refused("algo.activation relu gelu"):
        train(continued(tmp_path, cell, activation="gelu"), seeds=[0])


def test_settings_of_an_older_name_are_compared_under_todays(tmp_path, monkeypatch):
    cell = pretrained(tmp_path, activation="gelu")
    file = cell / "config.yaml"
    file.write_text(file.read_text().replace("activation:", "nonlinearity:"))
    monkeypatch.setitem(RENAMED, "algo.nonlinearity", "algo.activation")
    with refused("algo.activation gelu relu"):
        train(continued(tmp_path, cell), seeds=[0])


def test_another_algorithm_or_an_unfinished_run_is_refused(tmp_path):
    cell = pretrained(tmp_path)
    cfg = continued(tmp_path, cell, "rlpd")
    with refused("iql rlpd"):
        train(cfg, seeds=[0])
    files.write_json(cell / "seeds-0-1" / "status.json", {"state": "running", "step": 30})
    with refused("seeds-0-1 30"):
        train(continued(tmp_path, cell), seeds=[0])
    with refused("folder run"):
        train(continued(tmp_path, tmp_path / "nothing"), seeds=[0])


def phases_of(tmp_path: Path, **changes) -> tuple[Phases, Run]:
    cfg = settings(tmp_path, "iql", **changes)
    run = Run(cfg, [0, 1], lambda *_: None)
    buffer, normalizer = preprocessing.load(run, cfg.algo.data, cfg.algo.batch_size)
    return Phases(cfg.algo, run, buffer, SimpleNamespace(normalizer=normalizer)), run


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_experienced_is_kept_on_the_scale_of_the_data(tmp_path, ended):
    recorded = Run(settings(tmp_path, "iql"), [0], lambda *_: None).dataset()
    middle = recorded.episode_starts[recorded.episode_returns().argmin()] + 100
    end = float(recorded.rewards[middle]) if ended else None  # so that the range is another
    data = preprocessing.Preprocess(
        end_reward=end,
        return_range=True,
        reward_scale=2.0,
        reward_shift=-1.0,
        clip_actions=0.5,
        normalize_states=True,
    )
    phases, run = phases_of(tmp_path, data=data)
    before = phases.envs.look()[:, 0].numpy().copy()
    phases.step(torch.tensor([[[1.0]], [[-0.1]]]))
    angle, speed = np.arctan2(before[:, 1], before[:, 0]), before[:, 2]
    torque = 2 * np.array([0.5, -0.1])  # the action that is kept is the one that was taken
    raw = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    dataset = run.dataset().ended_by(end) if ended else run.dataset()
    returns = dataset.episode_returns()
    mean, std = dataset.obs_stats()
    for i in range(2):
        observations, actions, rewards, following, *_ = phases.replay.recorded(i)
        expected = 2 * raw[i] * 1000 / (returns.max() - returns.min()) - 1
        assert rewards[0] == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(observations[0], (before[i] - mean) / std, rtol=1e-5)
        reached = phases.envs.look()[i, 0].numpy()
        np.testing.assert_allclose(following[0], (reached - mean) / std, rtol=1e-5)
        assert actions[0] == pytest.approx([0.5] if i == 0 else [-0.1])


def test_a_failure_that_was_played_is_found_by_its_reward(tmp_path, monkeypatch):
    """-0.3 is another number in float32, in which data is kept, and so is what it is scaled to."""
    task = type(Run(settings(tmp_path, "iql"), [0], lambda *_: None).task)
    make = task.make_training_env
    fail = partial(TransformReward, func=lambda reward: -0.3)
    monkeypatch.setattr(task, "make_training_env", lambda self: fail(make(self)))
    data = preprocessing.Preprocess(reward_scale=3.0, reward_shift=-1.0)
    phases, _ = phases_of(tmp_path, data=data)
    for _ in range(4):
        phases.step(torch.zeros(2, 1, 1))
    played = phases.replay.recorded()[2]
    label = return_labels.label_of(cal_ql.Config(failure_reward=-0.3, data=data))
    assert label(played).tolist() == pytest.approx([-190.0] * 4)


class Counting(gymnasium.Wrapper):
    """Rewards 1, 2, 3, ... since the last reset."""

    def reset(self, **options):
        self.count = 0
        return self.env.reset(**options)

    def step(self, action):
        observation, _, terminated, truncated, info = self.env.step(action)
        self.count += 1
        return observation, float(self.count), terminated, truncated, info


def test_a_step_of_the_end_reward_ends_the_environments_episode(tmp_path, monkeypatch):
    task = type(Run(settings(tmp_path, "iql"), [0], lambda *_: None).task)
    make = task.make_training_env
    monkeypatch.setattr(task, "make_training_env", lambda self: Counting(make(self)))
    data = preprocessing.Preprocess(end_reward=3.0, reward_shift=-10.0)
    phases, _ = phases_of(tmp_path, data=data)
    for _ in range(7):
        phases.step(torch.zeros(2, 1, 1))
    for i in range(2):
        _, _, rewards, _, terminated, truncated = phases.replay.recorded(i)
        assert rewards.tolist() == [-9, -8, -7, -9, -8, -7, -9]
        assert terminated.tolist() == [False, False, True] * 2 + [False]
        assert not truncated.any()
    assert phases.metrics()["episode_return"].tolist() == [1 + 2 + 3] * 2  # as the environment pays


@pytest.mark.parametrize("ends", [(True, False), (False, True)])
def test_ends_of_the_environments_own_stay_what_they_are(ends):
    class Ends(gymnasium.Env):
        def step(self, action):
            return np.zeros(1), 5.0, *ends, {}

    assert EndReward(Ends(), 3.0).step(None)[2:4] == ends


@pytest.mark.parametrize(("capacity", "kept"), [(12, 12), (1000, 15)])
def test_a_replay_keeps_as_many_steps_as_it_is_told(tmp_path, capacity, kept):
    phases, _ = phases_of(tmp_path, online=Online(pretrain_steps=20, capacity=capacity))
    for _ in range(15):
        phases.step(torch.zeros(2, 1, 1))
    assert len(phases.replay) == kept


def test_batches_are_the_datas_until_the_switch_and_then_mixed_as_they_are_told(tmp_path):
    phases, _ = phases_of(tmp_path, online=Online(pretrain_steps=20, offline_ratio=0.25))
    for _ in range(3):
        phases.step(torch.zeros(2, 1, 1))
    played = torch.from_numpy(np.stack([phases.replay.recorded(i)[2] for i in range(2)]))
    found = [torch.isin(phases.sample(step).rewards, played).sum(1) for step in (20, 21)]
    assert [x.tolist() for x in found] == [[0, 0], [12, 12]]  # of 16


def test_an_environment_of_other_sizes_than_its_data_is_refused(tmp_path):
    run = Run(settings(tmp_path, "iql"), [0], lambda *_: None)
    data = SimpleNamespace(observation_dim=4, action_dim=1)
    with refused("3 observation 1 action 4"):
        Phases(run.cfg.algo, run, data, None)


@pytest.mark.parametrize(
    ("online", "message"),
    [
        (Online(pretrain_steps=60), "steps=60"),
        (Online(pretrain_steps=25), "eval.every=20"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(tmp_path, online, message):
    with refused(message):
        phases_of(tmp_path, online=online)


def test_where_nothing_is_evaluated_the_switch_is_anywhere(tmp_path):
    run = Run(settings(tmp_path, "iql", online=Online(pretrain_steps=25)), [0], lambda *_: None)
    run.cfg.eval.episodes = 0
    buffer, normalizer = preprocessing.load(run, run.cfg.algo.data, run.cfg.algo.batch_size)
    agent = SimpleNamespace(normalizer=normalizer)
    assert Phases(run.cfg.algo, run, buffer, agent).after == 25


def test_calls_of_several_updates_do_not_straddle_the_switch(tmp_path):
    cfg = settings(tmp_path, "rebrac", policy_delay=3)
    with refused("3"):
        train(cfg, seeds=[0])


@pytest.mark.parametrize(
    "bad", [{"offline_ratio": 1.5}, {"warmup_steps": -1}, {"pretrain_steps": -1}, {"capacity": 0}]
)
def test_settings_out_of_range_are_refused(bad):
    with refused("algo.online"):
        Online(**bad)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"phase": "fine-tune"}, "algo.phase=fine-tune"),
        ({"phase": "both"}, "algo.online.pretrain_steps"),
        ({"online": Online(checkpoint="runs/x")}, "algo.phase=online"),
    ],
)
def test_phases_that_contradict_themselves_are_refused(own, message):
    with refused(message):
        iql.Config(**own)


class Crashing(gymnasium.Wrapper):
    """Raises at the third step after each reset, where it is told to."""

    def __init__(self, env, crashes: bool):
        super().__init__(env)
        self.crashes, self.count = crashes, 0

    def step(self, action):
        self.count += 1
        if self.crashes and self.count == 3:
            raise FloatingPointError("the simulation is unstable")
        return super().step(action)


def crashing(*seeds: int) -> Environments:
    numbers = iter(range(3))
    return Environments(
        lambda: Crashing(gymnasium.make("Pendulum-v1"), next(numbers) in seeds), range(3)
    )


def test_a_crash_in_one_seeds_environment_spares_the_others(capsys):
    envs, whole = crashing(1), crashing()
    for i in range(5):
        mine, theirs = (e.step(torch.full((3, 1, 1), 0.1 * i)) for e in (envs, whole))
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one[[0, 2]], other[[0, 2]])
        assert np.isnan(mine.rewards[1]) == (i >= 2)
    assert (
        "seed 1 crashed (FloatingPointError: the simulation is unstable)" in capsys.readouterr().err
    )
    assert envs.episode_returns.isneginf().tolist() == [False, True, False]
    again = crashing()
    again.load_state_dict(envs.state_dict())
    assert np.isnan(again.step(torch.zeros(3, 1, 1)).rewards).tolist() == [False, True, False]


def test_a_crash_in_the_first_episode_makes_its_seed_of_cal_ql_diverge_alone(tmp_path, monkeypatch):
    """Labels wait for the ends of episodes, of which that seed has none."""
    task, numbers = type(Run(settings(tmp_path, "iql"), [0], lambda *_: None).task), count()
    make = task.make_training_env
    monkeypatch.setattr(
        task, "make_training_env", lambda self: Crashing(make(self), next(numbers) == 1)
    )
    directory = train(settings(tmp_path, "cal_ql"))
    assert json.loads((directory / "status.json").read_text())["diverged"].keys() == {"1"}
    first = state_of(directory)["agent"]["critic"]["layers.0.weight"]
    assert first[0].isfinite().all() and first[1].isnan().any()


def test_the_last_crash_is_raised():
    envs = crashing(0, 1, 2)
    with pytest.raises(FloatingPointError):
        for _ in range(3):
            envs.step(torch.zeros(3, 1, 1))


def test_rebracs_penalties_fade():
    """CORL: the actor's falls linearly to half, the critic's is off, once acting begins."""
    cfg = rebrac.Config()
    device = torch.device("cpu")
    assert rebrac._bc_factors(cfg, 1.0, False, device).tolist() == [1, 1]
    assert rebrac._bc_factors(cfg, 0.75, True, device).tolist() == [0.75, 0]
    assert rebrac._bc_factors(cfg, 0.2, True, device).tolist() == [0.5, 0]
