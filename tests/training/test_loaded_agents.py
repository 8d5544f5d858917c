"""A saved run acts as it was evaluated, whatever its algorithm, and says why where it cannot."""

import importlib
import json
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import wrappers
from scipy import stats
from small import config, run, train
from wording import refused, says

from corerl.cli import main
from corerl.config import Config, Eval
from corerl.data import tasks
from corerl.ope.policies import of_run
from corerl.policies.export import export
from corerl.policies.load import load, settings
from corerl.policies.loaded_policy import Loaded
from corerl.policies.restored import Restored
from corerl.policies.simulation import simulate
from corerl.preferences.reward_models import Markov
from corerl.preferences.sources import Preferences
from corerl.runs import checkpoint
from corerl.runs import directory as run_directory
from corerl.training.evaluation import Evaluator
from corerl.training.experience import Collect
from corerl.training.offline_to_online import Online

pytestmark = pytest.mark.usefixtures("short_episodes")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    def few(task, load=tasks.Task.load):
        return load(task).select_episodes(np.arange(10))

    monkeypatch.setattr(tasks.Task, "load", cache(few))


COLLECT = {"learning_starts": 10, "train_every": 4, "capacity": 100, "epsilon_steps": 20}
TINY = {"hidden_width": 8, "batch_size": 8}
COMPARED = TINY | {"preferences": Preferences(pairs=40, length=8), "crop": 4}
REWARD = Markov(steps=20, hidden_width=8, batch_size=4)
CASES = {
    "bc": TINY,
    "td3_bc": TINY,
    "iql": TINY,
    "iql both": TINY | {"phase": "both", "online": Online(pretrain_steps=20, warmup_steps=5)},
    "cql": TINY | {"samples": 2},
    "edac": TINY | {"critics": 3},
    "awac": TINY,
    "dt": {"width": 8, "layers": 1, "batch_size": 4, "context": 3},
    "cql_discrete": TINY | {"quantiles": 4},
    "qr_dqn": TINY
    | {"data": Collect(**COLLECT, eval_epsilon=0.0), "quantiles": 4, "target_every": 8},
    "sac": TINY | {"random_steps": 10, "capacity": 40},
    "cvar_tabular": {},
    "cvar_offline": TINY | {"policy_delay": 1},
    "pref_iql": COMPARED | {"reward": REWARD, "reward_first": True},
}
TASKS = {
    "cql_discrete": "corerl/cartpole",
    "qr_dqn": "gym/CartPole-v1",
    "sac": "gym/Pendulum-v1",
    "cvar_tabular": "risk/A",
}


def trained(root: Path, case: str, seeds, own: dict | None = None, **changes) -> Path:
    module = importlib.import_module(f"corerl.algos.{case.split()[0]}")
    task = changes.pop("task", TASKS.get(case, "corerl/pendulum"))
    options = {"steps": 40, "eval": Eval(20, 2), "compile": "off", "device": "cpu", "processes": 1}
    algo = module.Config(**CASES[case] | (own or {}))
    return train(Config(algo=algo, task=task, root=str(root), seeds=seeds, **options | changes))


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_agent_plays_as_it_was_evaluated(tmp_path, case):
    cell = trained(tmp_path, case, [3, 1])
    agent = load(cell)
    assert agent.seeds == [1, 3] and agent.steps == [40, 40]
    played = Evaluator(agent.task.make_env, agent.seeds, 2)(agent).returns
    alone = load(cell, seed=3)
    np.testing.assert_array_equal(Evaluator(agent.task.make_env, [3], 2)(alone).returns, played[1:])
    saved = {}
    for file in cell.glob("seeds-*/returns.jsonl"):
        last = json.loads(file.read_text().splitlines()[-1])
        saved[last["seed"]] = last["returns"]
    np.testing.assert_array_equal(played, [saved[1], saved[3]])


def test_one_agent_of_static_cvar_plays_for_every_level(tmp_path, capsys):
    few = Eval(200, 2)
    careful, bold = (
        trained(tmp_path / name, "cvar_offline", [3], {"tau": tau, "lr": 0.01}, steps=200, eval=few)
        for name, tau in (("careful", 0.1), ("bold", 0.9))
    )
    task = tasks.resolve("corerl/pendulum")
    levels = {tau: simulate(load(careful, tau=tau), task, 2) for tau in (0.1, 0.9)}
    own = simulate(load(bold), task, 2)
    np.testing.assert_array_equal(levels[0.9].returns, own.returns)
    assert (levels[0.1].returns != own.returns).any()
    for given in ([], ["--tau", "0.9"]):
        assert main(["evaluate", str(careful), "--episodes", "2", *given]) == 0
    kept = [json.loads(line) for line in (careful / "evaluations.jsonl").open()]
    assert [line["tau"] for line in kept] == [0.1, 0.9]
    assert kept[1]["returns"] == own.returns[0].tolist()
    assert "corerl/pendulum, tau 0.9" in capsys.readouterr().out


def test_a_level_is_refused_where_play_has_none_or_it_is_out_of_range(iql, tmp_path):
    with refused("IQL tau"):
        load(iql, tau=0.5)
    with refused("tau=1.5 0 1"):
        load(trained(tmp_path, "cvar_offline", [0]), tau=1.5)


@pytest.fixture(scope="module")
def iql(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("iql"), "iql", [0, 2])


def test_actions_for_one_observation_or_many_one_seed_or_all(iql):
    rng = np.random.default_rng(0)
    many = rng.standard_normal((5, 3), dtype=np.float32)
    agent = load(iql)
    actions = agent.act(many)
    assert actions.shape == (2, 5, 1) and agent.act(many[0]).shape == (2, 1)
    np.testing.assert_allclose(agent.act(many[0]), actions[:, 0], rtol=1e-5)
    one = agent.only(2)
    assert one.act(many[0]).shape == (1,)
    np.testing.assert_array_equal(one.act(many), actions[1])
    np.testing.assert_array_equal(load(iql / "seeds-2").act(many), actions[1:])
    with refused("observations shape (3,)"):
        agent.act(many[:, :2])


def test_bytes_that_are_no_image_are_numbers(iql, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Loaded, "__call__", lambda self, x: seen.append(x.dtype) or torch.zeros(2, 1, 1)
    )
    load(iql).act(np.zeros(3, np.uint8))
    assert seen == [torch.float32]


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    return trained(
        tmp_path_factory.mktemp("maze"), "qr_dqn", [0], steps=12, eval=Eval(12, 0), task="maze/v1"
    )


def test_bytes_of_an_image_are_scaled_in_whatever_type_they_come(maze, monkeypatch):
    agent = load(maze)
    images = np.random.default_rng(0).integers(0, 256, (2, *agent.shapes.observation), np.uint8)
    seen = []
    monkeypatch.setattr(
        Loaded, "__call__", lambda self, x: seen.append(x) or torch.zeros(x.shape[:2])
    )
    for kind in (np.uint8, np.int64, np.int32):
        agent.act(images.astype(kind))
        assert seen[-1].dtype == torch.uint8 and (seen[-1][0].numpy() == images).all()
    agent.act(images / 255)
    assert seen[-1].dtype == torch.float32 and seen[-1].max() <= 1
    for wrong in (images.astype(np.float32), images.astype(int) + 1, -images.astype(int)):
        with refused("0"):
            agent.act(wrong)


def test_densities_are_of_the_sampled_actions(iql):
    """A policy whose play clips half of its draws: what is judged is the normal within the bounds."""
    agent = load(iql, 0)
    policy = agent.states()[0][1]["agent"].policy
    policy.body.layers[-1].bias.data.fill_(9.0)
    policy.log_std.data.fill_(np.log(0.4))
    states, grid = np.zeros((20_000, 3), np.float32), np.linspace(-1, 1, 20_000, dtype=np.float32)
    judged = of_run(agent, chance="sample", samples=1)
    density = np.exp(judged.log_prob(states, grid[:, None]))[0]
    mean = agent(torch.zeros(1, 1, 3)).item()
    law = stats.truncnorm((-1 - mean) / 0.4, (1 - mean) / 0.4, mean, 0.4)
    np.testing.assert_allclose(density, law.pdf(grid), rtol=1e-4)
    assert stats.kstest(judged.actions(states).ravel(), law.cdf).pvalue > 0.01
    assert "truncated" in judged.description
    played = agent.propose(torch.zeros(1, 1000, 3), torch.linspace(-1, 1, 1000).view(1, -1, 1))
    assert (played == 1).float().mean() > 0.4  # steering chooses among actions of play


# Policies that remember.


@pytest.fixture(scope="module", params=["dt", "cvar_offline", "cvar_tabular"])
def remembering(request, tmp_path_factory):
    return trained(tmp_path_factory.mktemp(request.param), request.param, [3, 1])


def rewarded(agent: Loaded) -> list[list]:
    """The rewards `(S, n)` that the policies are told from here on."""
    reported, reward = [], agent.reward
    agent.reward = lambda rewards: (reported.append(rewards.tolist()), reward(rewards))
    return reported


def test_rewards_belong_to_the_actions_that_were_returned(remembering):
    """Of n episodes and as many seeds, `(n,)` would be credited to seeds."""
    agent = load(remembering)
    many = np.zeros((2, *agent.shapes.observation))
    one, reported = agent.only(3), rewarded(agent)
    agent.reset(2)
    agent.act(many)
    agent.earned([[1, 2], [3, 4]])
    for wrong in (1.0, [1, 2], [[1, 2]], [[1], [2]]):
        with refused("actions shape 2"):
            agent.earned(wrong)
    agent.reset()
    agent.act(many[0])
    agent.earned(np.array([5, 6]))
    assert reported == [[[1, 2], [3, 4]], [[5], [6]]]
    reported = rewarded(one)
    one.reset(2)
    one.act(many)
    one.earned([1, 2])
    one.reset()
    one.act(many[0])
    one.earned(3.0)
    assert reported == [[[1, 2]], [[3]]]
    with refused("shape (1,)"):
        one.earned([3.0])


def test_what_remembers_begins_by_itself_and_refuses_other_episodes(remembering):
    agent, again = load(remembering), load(remembering)
    many = np.zeros((3, *agent.shapes.observation))
    with refused("act() earned"):
        agent.earned([1.0, 1.0])
    again.reset(3)
    np.testing.assert_array_equal(agent.act(many), again.act(many))
    for other in (many[:2], many[0]):
        with refused("episodes 3"):
            agent.act(other)
    agent.reset(2)
    agent.act(many[:2])
    agent.reset(2)
    with refused("act() earned"):
        agent.earned(np.ones((2, 2)))


def test_observations_that_are_none_are_refused(iql, tmp_path):
    latest = load(trained(tmp_path, "bc", [0], history=4))
    for agent in (load(iql), latest):
        for wrong in (0.5, np.zeros((0, 3)), np.zeros((2, 2, 3)), "text"):
            with refused("observations shape"):
                agent.act(wrong)
            agent.reset()
    with refused("observations complex128"):
        load(iql).act(np.zeros(3, complex))
    with refused("observations 1"):
        load(iql).act(np.ma.masked_equal([0, 1, -9999], -9999))


def test_loading_changes_nothing_on_disk(iql):
    def files():
        return {f: f.read_bytes() for f in sorted(iql.rglob("*")) if f.is_file()}

    before = files()
    load(iql)
    assert files() == before


def test_an_exact_solution_is_told_when_it_is_found_and_not_when_it_acts(tmp_path, capsys):
    cell = trained(tmp_path, "cvar_tabular", [0])
    says(capsys.readouterr().out, "return")
    (cell / "seeds-0/solution.json").unlink()
    load(cell)
    assert not capsys.readouterr().out and not (cell / "seeds-0/solution.json").exists()


def test_of_a_save_cut_short_the_checkpoint_before_is_loaded(iql, tmp_path):
    """A kill between the two renames of a save leaves it alone, and training goes on from it."""
    cell = shutil.copytree(iql, tmp_path / "iql")
    for path in cell.glob("seeds-*/checkpoint.safetensors"):
        path.rename(checkpoint.previous(path))
    agent = load(cell)
    assert agent.seeds == [0, 2] and agent.steps == [40, 40]
    np.testing.assert_array_equal(agent.act(np.ones(3)), load(iql).act(np.ones(3)))
    assert not any(cell.glob("seeds-*/checkpoint.safetensors"))


def test_loading_resumes_no_episode_and_speaks_of_none(tmp_path, capsys):
    gymnasium.register(
        "Opaque-v0",
        lambda: wrappers.NormalizeReward(gymnasium.make("Pendulum-v1")),
    )
    own = TINY | {"random_steps": 10, "capacity": 40}
    cfg = config(tmp_path, "sac", own=own, task="gym/Opaque-v0", steps=24, eval=Eval(24, 1))
    cell = train(cfg)
    agent = load(cell)
    facts = export(cell, tmp_path / "policy.pt2")
    assert agent.act(np.zeros(3)).shape == (1, 1) and facts["difference"] < 1e-5
    assert "restore" not in capsys.readouterr().err


def of_a_gpu(state):
    """A nested state with the 16 bytes that a CUDA generator has in place of every stream's generators."""
    if isinstance(state, list):
        return [of_a_gpu(part) for part in state]
    if not isinstance(state, dict):
        return state
    if "generators" in state and "position" in state:
        return state | {"generators": torch.ones(len(state["generators"]), 16, dtype=torch.uint8)}
    return {name: of_a_gpu(part) for name, part in state.items()}


@pytest.mark.parametrize("case", ["sac", "iql both"])
def test_what_a_gpu_trained_acts_and_is_exported_on_a_cpu(tmp_path, case):
    task = TASKS.get(case, "corerl/pendulum")
    cfg = config(tmp_path, case.split()[0], own=CASES[case], task=task, eval=Eval(20, 1))
    file = run(cfg, (0, 1)) / "checkpoint.safetensors"
    cell = file.parents[1]
    (cell / "config.yaml").write_text(yaml.safe_dump(run_directory.settings(cfg) | {"seeds": 2}))
    seen = np.ones(3, np.float32)
    expected = load(cell).act(seen)
    checkpoint.save_checkpoint(file, of_a_gpu(checkpoint.load_checkpoint(file)))
    np.testing.assert_array_equal(load(cell).act(seen), expected)
    if case == "sac":  # whose replay has a stream too, and an export of its own way to restore it
        assert export(cell, tmp_path / "policy.pt2", 1)["difference"] < 1e-5


def test_a_buffer_that_came_later_is_not_needed_to_act(iql, tmp_path):
    cell = shutil.copytree(iql, tmp_path / "iql")
    for file in cell.glob("seeds-*/checkpoint.safetensors"):
        saved = checkpoint.load_checkpoint(file)
        del saved["state"]["buffer"]
        checkpoint.save_checkpoint(file, saved)
    seen = np.ones(3, np.float32)
    np.testing.assert_array_equal(load(cell).act(seen), load(iql).act(seen))


def test_a_policy_acts_plays_and_is_exported_without_its_data(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "mine.npz",
        observations=rng.standard_normal((200, 3), np.float32),
        actions=rng.uniform(-1, 1, (200, 1)).astype(np.float32),
        rewards=rng.standard_normal(200, np.float32),
        terminals=np.zeros(200, bool),
        timeouts=np.arange(1, 201) % 20 == 0,
    )
    monkeypatch.chdir(tmp_path)
    task, few = "file/mine.npz", Eval(20, 1)
    alone, played = (
        trained(tmp_path / name, "td3_bc", [0, 1], task=task, env=env, eval=few)
        for name, env in (("alone", None), ("played", "gym/Pendulum-v1"))
    )
    seen = rng.standard_normal((5, 3), np.float32)
    before = [load(cell).act(seen) for cell in (alone, played)]
    (tmp_path / "mine.npz").unlink()
    monkeypatch.setattr(tasks.Task, "load", lambda self: pytest.fail("the data was read"))
    for cell, actions in zip((alone, played), before, strict=True):
        np.testing.assert_array_equal(load(cell).act(seen), actions)
        assert export(cell, tmp_path / "policy.pt2", 1)["difference"] < 1e-5
    assert main(["evaluate", str(played), "--episodes", "2"]) == 0


def test_an_agent_of_other_code_is_named(iql, tmp_path, capsys):
    load(iql)
    assert not capsys.readouterr().err
    cell = shutil.copytree(iql, tmp_path / "iql")
    for file in cell.glob("seeds-*/env.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"code": "00000000"}))
    load(cell, 2)
    says(capsys.readouterr().err, f"{cell} 2 iql.py")


def test_settings_of_a_run_under_the_names_that_they_had(tmp_path):
    algo = {"name": "rlpd", "asked": 1, "utd": 3}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"task": "corerl/pendulum", "algo": algo}))
    cfg = settings(tmp_path)
    assert (cfg.algo.critic_subsample, cfg.algo.utd, cfg.algo.critics) == (1, 3, 10)


def test_what_cannot_be_loaded_says_why(iql, tmp_path):
    with refused("nowhere"):
        load(tmp_path / "nowhere")
    with refused("7"):
        load(iql, 7)
    for wrong in ("2", [2], 2.0):
        with refused("seeds"):
            load(iql, wrong)
    with refused("tau='x"):
        load(iql, tau="x")
    with refused("7 0 2"):
        load(iql).only(7)
    assert load(iql.parents[2]).path == iql  # the only run below the root
    with refused("config.yaml"):
        load(tmp_path)
    bc = trained(tmp_path, "bc", 1)
    with refused("density"):
        load(bc).log_prob(torch.zeros(1, 1, 3), torch.zeros(1, 1, 1))
    trained(tmp_path / "another", "bc", 1, steps=20)
    with refused("2"):
        load(tmp_path)
    (bc / "config.yaml").write_text("algo: {name: nothing}")
    with refused("config.yaml nothing"):
        load(bc)


def test_an_own_agent_that_keeps_no_settings_has_its_density():
    agent = SimpleNamespace(log_prob=lambda states, actions: states[..., 0])
    restored = Restored([0], 1, {"agent": agent}, None, None, {})
    assert restored.log_prob(torch.ones(1, 2), torch.zeros(1, 1)).tolist() == [1]
