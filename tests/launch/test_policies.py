"""What is done with a trained policy: evaluated, shown, filmed, exported, and its episodes kept."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from small import config, random_dataset
from wording import refused, says

import corerl
from corerl.cli import main
from corerl.commands.data_export import Recorder, rollouts
from corerl.config import Eval
from corerl.data import d4rl, export, minari, tasks
from corerl.data.files import own_files
from corerl.data.tasks import resolve
from corerl.launch import launch, worker
from corerl.launch.task_arguments import task_of
from corerl.policies import export as exporting
from corerl.policies import record, simulation
from corerl.policies.export import export as export_policy
from corerl.policies.loaded_policy import Loaded
from corerl.runs.directory import cell_directory
from corerl.training.experience import Collect


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Seeds 0 and 3 of TD3+BC, trained as one program, as on a GPU."""
    cfg = config(tmp_path_factory.mktemp("policies"), "td3_bc", seeds=[0, 3], steps=20)
    launch.write_settings(cfg)
    assert worker.train(cfg, [0, 3], lambda *_: None) == worker.DONE
    return cell_directory(cfg)


@pytest.fixture(scope="module")
def discrete(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("discrete")
    cfg = config(root, "cql_discrete", task="corerl/cartpole", steps=10)
    launch.launch(cfg)
    return cell_directory(cfg)


@pytest.fixture(scope="module")
def exploring(tmp_path_factory) -> Path:
    """QR-DQN, seeds 0 and 3 together and 5 alone; half of its actions are random when it is evaluated.

    The state of a maze holds a list that grows.
    """
    data = Collect(learning_starts=8, capacity=40, eval_epsilon=0.5)
    own = {"data": data, "target_every": 8}
    root = tmp_path_factory.mktemp("exploring")
    cfg = config(root, "qr_dqn", own=own, task="maze/v3-vector", seeds=[0, 3, 5], eval=Eval(40, 1))
    launch.write_settings(cfg)
    for seeds in ([0, 3], [5]):
        assert worker.train(cfg, seeds, lambda *_: None) == worker.DONE
    return cell_directory(cfg)


# Evaluating.


def test_evaluation_prints_scores_and_keeps_every_return(run, capsys):
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    text = capsys.readouterr().out
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").open()]
    assert [line["seed"] for line in lines] == [0, 3]
    assert {line["step"] for line in lines} == {20} and len(lines[0]["returns"]) == 2
    for line in lines:
        mean = np.mean(line["returns"])
        assert f"{mean:.2f}" in text
        assert f"{resolve('corerl/pendulum').normalize(mean):.1f}" in text
        assert f"± {np.std(line['returns'], ddof=1):.2f}" in text


def test_one_episode_has_no_spread(run, capsys):
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0
    table, reported = capsys.readouterr().out.split("2 seeds, ")
    assert "±" not in table and "(± is the standard deviation over seeds)" in reported


def test_evaluation_tells_the_tail_where_it_is_asked_for(run, capsys):
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert "CVaR" not in capsys.readouterr().out
    assert main(["evaluate", str(run), "--episodes", "2", "--risk"]) == 0
    text = capsys.readouterr().out
    last = [json.loads(line) for line in (run / "evaluations.jsonl").open()][-1]
    tail = f"{min(last['returns']):.4g} (0.05)"
    assert f"seed {last['seed']}, 2 episodes: mean " in text and tail in text


def test_initial_states_are_not_those_of_training_and_equal_seeds_share_them(run):
    agent = corerl.load(run)
    known = [json.loads(line) for line in (run / "seeds-0_3" / "returns.jsonl").open()]
    fresh = simulation.simulate(agent, agent.task, 2).returns
    assert not np.isin(fresh, [line["returns"] for line in known]).any()
    np.testing.assert_array_equal(
        simulation.simulate(agent.only(3), agent.task, 2).returns, fresh[1:]
    )


def test_a_policy_acts_only_where_it_can(run, capsys):
    assert main(["evaluate", str(run), "--episodes", "1", "--task", "gym/HalfCheetah-v4"]) == 2
    says(capsys.readouterr().err, "gym/HalfCheetah-v4")
    assert main(["evaluate", str(run), "--episodes", "1", "--task", "gym/Pendulum-v1"]) == 0
    assert "in gym/Pendulum-v1" in capsys.readouterr().out


class ThreeActions(gymnasium.Wrapper):
    """CartPole with a third action."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.action_space = gymnasium.spaces.Discrete(3)


def test_a_policy_of_numbered_actions_acts_only_among_as_many(discrete, capsys):
    gymnasium.register("CartPoleOfThreeActions-v0", ThreeActions)
    other = "gym/CartPoleOfThreeActions-v0"
    assert main(["evaluate", str(discrete), "--episodes", "1", "--task", other]) == 2
    reported = capsys.readouterr().err
    says(reported, f"actions Discrete(2) {other} Discrete(3)")
    assert main(["evaluate", str(discrete), "--episodes", "1", "--task", "gym/CartPole-v1"]) == 0


class Unstable(gymnasium.Wrapper):
    """Pendulum for 5 steps; those of `bad`, by the order in which they are made, raise at the third."""

    made, bad = 0, ()

    def __init__(self):
        super().__init__(gymnasium.make("Pendulum-v1", max_episode_steps=5))
        self.steps, self.fails = 0, Unstable.made in Unstable.bad
        Unstable.made += 1

    def step(self, action):
        self.steps += 1
        if self.fails and self.steps == 8:
            raise FloatingPointError("the simulation is unstable")
        return self.env.step(action)


@pytest.fixture
def unstable(monkeypatch):
    monkeypatch.setattr(tasks.Task, "_make", lambda self: Unstable())
    monkeypatch.setattr(Unstable, "made", 0)

    def fail(*bad):
        Unstable.made, Unstable.bad = 0, bad

    return fail


def test_a_crashed_seed_is_told_and_counts_nothing(run, unstable, capsys):
    unstable(1)  # of seed 0, in its second episode
    (run / "evaluations.jsonl").unlink(missing_ok=True)
    assert main(["evaluate", str(run), "--episodes", "20"]) == 0
    reported = capsys.readouterr()
    assert "seed 0 crashed in evaluation (FloatingPointError" in reported.err
    kept = [json.loads(line)["returns"] for line in (run / "evaluations.jsonl").open()]
    assert kept[0] is None and len(kept[1]) == 20
    assert f"1 of 2 seeds, 20 episodes each: return {np.mean(kept[1]):.2f}, score" in reported.out
    assert "nan" not in reported.out


@pytest.mark.parametrize("command", [["evaluate"], ["data", "export"], ["record"]])
def test_a_crash_of_the_only_seed_is_one_sentence(run, unstable, capsys, tmp_path, command):
    if command == ["record"]:
        pytest.importorskip("pygame")
    unstable(0)
    out = {"evaluate": [], "data": [str(tmp_path / "x.hdf5")]}.get(
        command[0], ["--out", str(tmp_path / "x.gif")]
    )
    assert main([*command, str(run), *out, "--seed", "3", "--episodes", "20"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    says(line, "corerl/pendulum FloatingPointError")
    assert "unstable; test_policies.py, line " in line and not any(tmp_path.iterdir())


def test_what_a_step_gives_amiss_is_told_without_a_line_of_ours(run, unstable, monkeypatch):
    unstable()
    monkeypatch.setattr(
        Unstable, "step", lambda self, action: (np.zeros(3), np.nan, False, False, {})
    )
    with refused("ValueError reward nan", simulation.Crash):
        simulation.simulate(corerl.load(run, 3), resolve("corerl/pendulum"), 1)


def test_an_error_of_the_policy_is_not_the_environments(run, unstable, monkeypatch):
    unstable(0)
    agent = corerl.load(run)

    def broken(self, observations):
        raise ZeroDivisionError

    monkeypatch.setattr(Loaded, "__call__", broken)
    with pytest.raises(ZeroDivisionError):
        simulation.simulate(agent, agent.task, 1)


def test_data_without_a_method_is_refused(run, capsys):
    assert main(["evaluate", str(run), "--data", "corerl/pendulum"]) == 2
    says(capsys.readouterr().err, "--method")


# Showing.


def test_a_film_has_a_picture_per_state(run, tmp_path, capsys):
    pytest.importorskip("pygame")
    imageio = pytest.importorskip("imageio.v3")
    out = tmp_path / "film.gif"
    assert main(["record", str(run), "--seed", "3", "--out", str(out)]) == 0
    assert "201 frames" in capsys.readouterr().out
    first, last = imageio.imread(out, index=0), imageio.imread(out, index=150)
    assert first.std() > 0 and (first != last).any()
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


def test_an_environment_that_cannot_be_drawn_is_named(run, tmp_path):
    with refused("risk/D1"):
        record.drawn(resolve("risk/D1").make_env(), "rgb_array", "risk/D1")
    with refused(".mp4 .gif"):
        record.run(_arguments(run, out=tmp_path / "film.mov"))
    for fps in (0, -1, np.nan, np.inf):
        with refused(f"--fps {fps}"):
            record.run(_arguments(run, out=tmp_path / "film.gif", fps=fps))


def _arguments(run: Path, **other):
    from argparse import Namespace

    return Namespace(
        **({"run": str(run), "seed": 0, "episodes": 1, "task": None, "fps": None} | other)
    )


def test_what_drawing_lacks_is_named():
    with (
        refused("OpenGL"),
        record.telling_what_is_missing("x"),
    ):
        raise AttributeError("'NoneType' object has no attribute 'eglQueryString'")
    with refused("corerl[video]"), record.telling_what_is_missing("x"):
        raise ImportError("pygame is not installed")
    with pytest.raises(ZeroDivisionError), record.telling_what_is_missing("x"):
        raise ZeroDivisionError


def test_without_a_screen_play_points_to_record(run, monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["play", str(run)]) == 2
    says(capsys.readouterr().err, "corerl record")


def test_a_window_is_drawn_and_returns_are_told(run, monkeypatch, capsys):
    pytest.importorskip("pygame")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    modes = []
    drawn = record.drawn

    def seen(env, mode, id):
        modes.append(mode)
        return drawn(env, "rgb_array", id)

    monkeypatch.setattr(record, "drawn", seen)
    assert main(["play", str(run), "--episodes", "1"]) == 0
    assert modes == ["human"] and "episode 0: return" in capsys.readouterr().out


# Exporting the policy.


@pytest.mark.parametrize("count", [1, 7])
def test_onnx_holds_one_seed_of_a_group(run, tmp_path, count):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    import onnxruntime

    facts = export_policy(run, tmp_path / "p.onnx", 3)
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    x = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    (got,) = session.run(None, {"observation": x})
    agent = corerl.load(run)
    assert got.shape == (count, 1)
    np.testing.assert_allclose(got, agent.only(3).act(x), atol=1e-5)
    assert np.abs(got - agent.only(0).act(x)).max() > 1e-3
    assert (
        facts["seed"] == 3
        and session.get_modelmeta().custom_metadata_map["task"] == "corerl/pendulum"
    )
    import onnx

    weights = sum(p.numel() for p in agent._parts[0].state["agent"].actor.parameters()) / 2
    kept = sum(np.prod(x.dims) for x in onnx.load(tmp_path / "p.onnx").graph.initializer)
    assert weights <= kept < 1.1 * weights  # one seed's, and the normaliser's


def test_torch_export_in_units_of_the_environment(run, tmp_path, capsys):
    out = tmp_path / "p.pt2"
    assert main(["export", str(run), "--seed", "0", str(out), "--units", "env"]) == 0
    says(capsys.readouterr().out, "difference")
    x = torch.randn(5, 3)
    got = torch.export.load(out).module()(x)
    np.testing.assert_allclose(got, 2 * corerl.load(run, 0).act(x.numpy()), atol=1e-5)


@pytest.mark.parametrize(("low", "high"), [(-1000, 1000), (300, 301)])
def test_a_difference_is_of_the_bounds(low, high):
    bounds = (np.array([bound], np.float32) for bound in (low, high))
    policy = exporting.Policy(lambda x: x, *bounds)
    actions = torch.linspace(-1, 1, 101)[:, None]
    expected = policy.scaled(actions)
    for off in (5e-6, 5e-4):
        far = policy.difference(policy.scaled(actions - off), expected)
        assert (far > exporting.TOLERANCE) == (off > exporting.TOLERANCE)
    assert np.isnan(policy.difference(expected * np.nan, expected))


def test_where_rounding_decides_between_two_actions_either_is_right():
    policy = exporting.Policy(lambda x: (x > 1).float(), None, None)
    probe = torch.tensor([[1.0], [1.1], [0.0]])
    expected = policy(probe)
    other = 1 - expected
    assert policy.tied(probe, other[None], expected).tolist() == [True, False, False]
    assert not policy.tied(probe, expected[None], expected).any()


def test_numbered_actions_are_exported_as_numbers(discrete, tmp_path):
    facts = export_policy(discrete, tmp_path / "p.pt2")
    x = torch.randn(50, 4)
    got = torch.export.load(tmp_path / "p.pt2").module()(x)
    np.testing.assert_array_equal(got, corerl.load(discrete, 0).act(x.numpy()))
    assert facts["actions"] == "numbers (n,)"


@pytest.mark.parametrize("seed", [3, 5])
def test_what_is_exported_is_greedy(exploring, tmp_path, capsys, seed):
    assert main(["export", str(exploring), "--seed", str(seed), str(tmp_path / "p.pt2")]) == 0
    says(capsys.readouterr().out, "action 0.5")


@pytest.mark.parametrize(("off", "kept"), [(5e-3, True), (5e-2, False)])
def test_a_file_is_there_once_it_was_compared(run, tmp_path, monkeypatch, off, kept):
    out, of_file = tmp_path / "p.pt2", exporting._of_file
    out.write_bytes(b"an earlier one")

    def differs(path, probe):
        assert out.read_bytes() == b"an earlier one"
        return of_file(path, probe) + off

    monkeypatch.setattr(exporting, "_of_file", differs)
    monkeypatch.setattr(exporting, "_units", lambda task: np.float32([[-1000], [1000]]))
    if kept:
        export_policy(run, out, units="env")
        assert of_file(out, torch.randn(3, 3)).shape == (3, 1)
    else:
        with refused("fault"):
            export_policy(run, out, units="env")
        assert out.read_bytes() == b"an earlier one"
    assert [path.name for path in tmp_path.iterdir()] == ["p.pt2"]


@pytest.mark.parametrize(("objective", "greedy"), [("mean", True), ("static", False)])
def test_only_an_objective_that_follows_the_rewards_is_not_exported(tmp_path, objective, greedy):
    data = Collect(learning_starts=8, capacity=40)
    own = {"data": data, "target_every": 8, "objective": objective, "low": 0.0, "high": 1.0}
    cfg = config(tmp_path, "cvar", own=own, task="maze/v3-vector", steps=12, eval=Eval(12, 1))
    launch.launch(cfg)
    if greedy:
        assert export_policy(cell_directory(cfg), tmp_path / "p.pt2")["difference"] < 1e-5
    else:
        with refused("episode"):
            export_policy(cell_directory(cfg), tmp_path / "p.pt2")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory) -> Path:
    """Learned from images' bytes."""
    own = {"data": Collect(learning_starts=8, capacity=40), "target_every": 8}
    root = tmp_path_factory.mktemp("seeing")
    cfg = config(root, "qr_dqn", own=own, task="maze/v1", steps=12, eval=Eval(12, 0))
    launch.launch(cfg)
    return cell_directory(cfg)


def test_a_policy_of_bytes_says_so_and_leaves_gradients_on(seeing, tmp_path, capsys):
    out = tmp_path / "p.pt2"
    assert main(["export", str(seeing), str(out)]) == 0
    assert "uint8 (n, 3, 84, 84)" in capsys.readouterr().out
    policy = torch.export.load(out).module()
    assert policy(torch.zeros(2, 3, 84, 84, dtype=torch.uint8)).shape == (2,)
    with pytest.raises((RuntimeError, AssertionError)):
        policy(torch.zeros(2, 3, 84, 84))
    assert torch.is_grad_enabled()


def test_a_full_disk_is_told_and_ends_no_process(run, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with refused("p.pt2"):
        export_policy(run, tmp_path / "p.pt2")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_says_so(run, tmp_path, monkeypatch):
    with refused(".onnx .pt2"):
        export_policy(run, tmp_path / "p.pt")
    (tmp_path / "file").touch()
    with refused("p.pt2"):
        export_policy(run, tmp_path / "file" / "p.pt2")
    monkeypatch.setattr(Loaded, "remembers", property(lambda self: True))
    with refused("episode"):
        export_policy(run, tmp_path / "p.pt2")


# Exporting data.

DATA = random_dataset(100)


def test_d4rls_layout_is_read_back_by_both_readers(tmp_path):
    cut = replace(DATA, has_next=~DATA.truncated)
    export.to_hdf5(cut, tmp_path / "x.hdf5", {"source": "a test"})
    theirs, ours = d4rl.read(tmp_path / "x.hdf5"), own_files.load(str(tmp_path / "x.hdf5"))
    for field in ("observations", "actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(theirs, field), getattr(DATA, field))
    for field in own_files.fields_of(cut):
        np.testing.assert_array_equal(getattr(ours, field), getattr(cut, field))


def test_an_own_files_export_reads_back_with_its_environment(tmp_path, capsys):
    """Torques in [-2, 2] and their propensities are scaled once, with `env` on the way back or not."""
    torques, likely = 2 * DATA.actions[:, :1], np.linspace(-3, 1, 100, dtype=np.float32)
    arrays = {"obs": DATA.observations, "rewards": DATA.rewards, "truncated": DATA.truncated}
    np.savez(tmp_path / "x.npz", **arrays, actions=torques, behaviour_log_prob=likely)
    task, out, env = f"file/{tmp_path}/x.npz", tmp_path / "x.hdf5", "env=gym/Pendulum-v1"
    assert main(["data", "export", task, str(out)]) == 2
    says(capsys.readouterr().err, "env=gym/ID")
    assert main(["data", "export", task, str(out), env]) == 0
    for settings in ([env], []):
        back = task_of(f"file/{out}", settings).load()
        np.testing.assert_allclose(back.actions, DATA.actions[:, :1], atol=1e-6)
        np.testing.assert_allclose(back.behaviour_log_prob, likely + np.log(2), atol=1e-6)
    reported = task_of(f"file/{out}", ["data.action_low=-2", "data.action_high=2"]).load()
    np.testing.assert_allclose(reported.actions, DATA.actions[:, :1] / 2, atol=1e-6)
    assert main(["data", "info", task, "data.action_low=-4", "data.action_high=4"]) == 0
    low, high = np.quantile(torques / 4, [0, 1])
    assert f"1 in [{low:.3g}, {high:.3g}]" in capsys.readouterr().out


def test_settings_are_of_files_of_ones_own(run, tmp_path, capsys):
    for what in (str(run), "corerl/pendulum"):
        assert main(["data", "export", what, str(tmp_path / "x.hdf5"), "env=gym/Pendulum-v1"]) == 2
        says(capsys.readouterr().err, "file/PATH corerl/pendulum")


def test_minari_has_the_environments_own_actions(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert (
        main(
            [
                "data",
                "export",
                str(run),
                "minari/test/pendulum-v0",
                "--episodes",
                "1",
                "--seed",
                "3",
            ]
        )
        == 0
    )
    import minari as library

    raw = library.MinariDataset(tmp_path / "test/pendulum-v0/data")
    (episode,) = raw.iterate_episodes()
    played, seeds = rollouts(corerl.load(run, 3), 1)
    assert seeds == [3]
    np.testing.assert_allclose(episode.actions, 2 * played.actions, atol=1e-6)
    assert raw.spec.env_spec.id == "Pendulum-v1"
    back = tasks.resolve("minari/test/pendulum-v0").load()
    for field in ("observations", "rewards", "next_observations", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(back, field), getattr(played, field), field)
    assert main(["data", "export", str(run), "minari/test/pendulum-v0"]) == 2
    says(capsys.readouterr().err, "test/pendulum-v0 exists")


def test_minari_without_an_environment_leaves_unknown_ends_out(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    cut = replace(DATA, has_next=~DATA.truncated)
    left_out = export.to_minari(cut, "test/cut-v0", None, {"algorithm_name": "a test"})
    assert left_out == DATA.truncated.sum()
    back = minari.load("test/cut-v0")
    np.testing.assert_array_equal(back.observations, cut.observations[cut.has_next])
    np.testing.assert_allclose(back.actions, cut.actions[cut.has_next], atol=1e-6)
    assert back.terminated.sum() == cut.terminated.sum()


def test_a_minari_dataset_is_there_once_it_is_whole(tmp_path, monkeypatch):
    import minari as library

    now, killed = tmp_path / "now", tmp_path / "killed"
    create = library.create_dataset_from_buffers

    def dies(*args, **kwargs):
        create(*args, **kwargs)
        shutil.copytree(now, killed)
        raise KeyboardInterrupt

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(now))
    monkeypatch.setattr(library, "create_dataset_from_buffers", dies)
    with pytest.raises(KeyboardInterrupt):
        export.to_minari(DATA, "test/x-v0", None, {})
    assert [path.name for path in now.iterdir()] == [".test.x-v0.lock"]
    monkeypatch.setattr(library, "create_dataset_from_buffers", create)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(killed))
    assert minari.local() == [] and library.list_local_datasets() == {}
    export.to_minari(DATA, "test/x-v0", None, {})
    assert minari.local() == list(library.list_local_datasets()) == ["test/x-v0"]
    assert library.namespace.list_local_namespaces() == ["test"]
    assert sorted(path.name for path in killed.iterdir()) == [".test.x-v0.lock", "test"]


def test_a_runs_episodes_are_those_that_are_evaluated(run, tmp_path):
    agent = corerl.load(run)
    kept, seeds = rollouts(agent, 2)
    assert seeds == [0, 3]
    returns = simulation.simulate(agent, agent.task, 2).returns
    np.testing.assert_allclose(kept.episode_returns(), returns.ravel(), rtol=1e-5)
    assert len(kept) == 4 * 200 and kept.has_next.all()


class InPlace(gymnasium.Env):
    """It scales the action that it is given in place, and shows its state's own memory."""

    def reset(self, **kwargs):
        self.state = np.zeros(1)
        return self.state, {}

    def step(self, action):
        action *= 0.5
        self.state += action
        return self.state, 1.0, False, False, {}


def test_steps_are_recorded_as_they_were_also_where_the_environment_writes_in_place():
    steps = []
    env = Recorder(InPlace(), steps)
    env.reset()
    for _ in range(2):
        env.step(np.ones(1))
    rows = [(before.item(), action.item(), after.item()) for before, action, _, after, *_ in steps]
    assert rows == [(0.0, 1.0, 0.5), (0.5, 1.0, 1.0)]


def test_a_crashed_seeds_episodes_are_left_out(run, unstable, tmp_path, capsys):
    """Its last ones have no end, and would be joined to another seed's first."""
    unstable(1)
    out = tmp_path / "x.hdf5"
    assert main(["data", "export", str(run), str(out), "--episodes", "20"]) == 0
    reported = capsys.readouterr().out
    assert "TD3+BC on corerl/pendulum, seed 3, 20 episodes each" in reported
    assert "100 steps, 20 episodes" in reported
    kept = own_files.load(str(out))
    assert (kept.episode_lengths() == 5).all()
    follows = ~(kept.terminated | kept.truncated)[:-1]
    np.testing.assert_array_equal(
        kept.next_observations[:-1][follows], kept.observations[1:][follows]
    )


def test_another_kind_of_file_is_refused(run, capsys):
    assert main(["data", "export", str(run), "x.csv"]) == 2
    says(capsys.readouterr().err, ".hdf5 minari/")
