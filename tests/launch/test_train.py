"""The command line of training: what it composes, in which order, and what it says when it cannot."""

import math
import re
import sys
import tomllib
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import yaml
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from wording import says

from corerl import algos, config
from corerl.cli import main
from corerl.config import Config
from corerl.data import tasks
from corerl.errors import CorerlError
from corerl.launch import composition, last_scores, launch, settings_tables, status
from corerl.launch.arguments import _with_search
from corerl.launch.composition import cells
from corerl.launch.hydra_errors import sentence
from corerl.launch.train import _tell_best
from corerl.runs.directory import cell_directory, config_hash
from corerl.runs.files import Busy
from corerl.training.stopping import Interrupted


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["corerl"])


@pytest.fixture
def compose(monkeypatch, capsys):
    """`compose(*arguments)` gives the jobs that `corerl train` would launch."""

    def composed(*arguments: str) -> list[Config]:
        jobs: list[Config] = []
        monkeypatch.setattr(launch, "launch", lambda job, place: jobs.append(job))
        code = main(["train", *arguments])
        assert code == 0, capsys.readouterr().err
        return jobs

    return composed


# Precedence.


def test_defaults_are_the_dataclasses(compose):
    (job,) = compose("algo=iql", "task=gym/Pendulum-v1")
    module = import_module("corerl.algos.iql")
    assert job == Config(algo=module.Config(), task="gym/Pendulum-v1")
    assert type(job.algo) is module.Config and type(job.steps) is int


def test_embedded_tasks_take_minutes_where_nobody_says_how_long(compose):
    (job,) = compose("algo=iql", "task=corerl/pendulum")
    assert (job.steps, job.eval.every) == (10_000, 2_000)
    (job,) = compose("algo=edac", "task=corerl/pendulum")  # its table has 3,000,000 for every task
    assert job.steps == 10_000
    (job,) = compose("algo=cqn", "task=corerl/pendulum")  # and this one a row for this task
    assert (job.steps, job.eval.every) == (4_000, 500)
    (job,) = compose("algo=iql", "task=d4rl/hopper-medium-v2")
    assert job.steps == 1_000_000


def test_steps_that_are_given_are_the_run_that_they_always_were(compose):
    algo = import_module("corerl.algos.iql").Config()
    for steps in (1_000_000, 10_000):
        (job,) = compose("algo=iql", "task=corerl/pendulum", f"steps={steps}")
        assert job == Config(algo=algo, task="corerl/pendulum", steps=steps)


@pytest.mark.parametrize("task", ["pendulum", "cartpole", "halfcheetah-replay-regenerated"])
def test_every_algorithm_and_table_has_an_embedded_budget_that_fits_it(task):
    for name in [*algos.names(), *settings_tables.variants()]:
        algo = import_module(f"corerl.algos.{settings_tables.variants().get(name, name)}").Config()
        if task == "cartpole" and algo.actions == "continuous":
            continue
        config = Config(algo=algo, task=f"corerl/{task}", table=name)
        job = composition.typed(OmegaConf.structured(config), [])
        own = vars(job.algo)
        if task == "cartpole" and own.get("phase") == "both":
            continue  # fine-tuning acts with continuous actions alone
        assert job.steps <= 30_000, name
        reward = getattr(own.get("reward"), "steps", 0)
        first = max(reward, own.get("bc_steps", 0), own.get("random_steps", 0))
        if own.get("phase") == "both":
            first = max(first, job.algo.online.pretrain_steps)
            assert job.algo.online.pretrain_steps % job.eval.every == 0, name
        assert job.steps > first, name


def test_the_table_changes_defaults_and_the_command_line_changes_the_table(compose):
    (job,) = compose("algo=iql", "task=d4rl/antmaze-umaze-v2")
    assert (job.algo.expectile, job.algo.beta, job.algo.data.reward_shift) == (0.9, 10.0, -1.0)
    assert (job.eval.every, job.eval.episodes) == (100_000, 100)
    assert job.algo.discount == 0.99
    (job,) = compose(
        "algo=iql",
        "task=d4rl/antmaze-umaze-v2",
        "algo.expectile=0.7",
        "algo.data.reward_shift=0",
        "eval.episodes=3",
    )
    assert (job.algo.expectile, job.algo.beta, job.algo.data.reward_shift) == (0.7, 10.0, 0.0)
    assert (job.eval.every, job.eval.episodes) == (100_000, 3)


def test_a_group_given_whole_beats_the_table(compose):
    (job,) = compose("algo=iql", "task=d4rl/antmaze-umaze-v2", "eval={episodes:3}")
    assert job.eval.episodes == 3 and job.eval.every == 5_000


def test_a_setting_is_also_known_by_the_name_that_it_had(compose):
    command = ("algo=rlpd", "task=d4rl/antmaze-umaze-v2")
    old, new = (compose(*command, f"algo.{key}=3") for key in ("asked", "critic_subsample"))
    assert old == new and old[0].algo.critic_subsample == 3  # 1 in the table
    jobs = compose("-m", *command, "algo.asked=2,3")
    assert [job.algo.critic_subsample for job in jobs] == [2, 3]
    assert cells(["-m", *command, "algo.asked=2,3"]) == jobs


@pytest.mark.parametrize(
    ("command", "spellings"),
    [
        ("algo=bc task=file/x.npz", ("env=Pendulum-v1", "env=gym/Pendulum-v1")),
        (
            "algo=iql task=corerl/pendulum algo.phase=online",
            [f"algo.online.checkpoint={folder}" for folder in ("runs/a/", "runs/a", "./runs//a")],
        ),
    ],
)
def test_one_environment_or_folder_is_one_run_however_it_is_spelled(compose, command, spellings):
    np.savez("x.npz", observations=np.zeros((4, 3)), actions=np.zeros((4, 1)))
    jobs = [compose(*command.split(), each)[0] for each in spellings]
    assert len({config_hash(job) for job in jobs}) == 1
    assert jobs[0] != compose(*command.split())[0]


def test_a_table_may_name_a_setting_as_it_was(compose, monkeypatch):
    monkeypatch.setattr(composition, "table", lambda name, task: {"algo.asked": 4})
    (job,) = compose("algo=rlpd", "task=corerl/pendulum")
    assert job.algo.critic_subsample == 4


def test_another_table_can_be_chosen_and_later_rows_win(compose):
    (job,) = compose("algo=iql", "task=d4rl/hopper-medium-v2", "table=iql_corl")
    assert job.algo.order == "joint" and job.algo.policy == "deterministic"
    (job,) = compose("algo=iql", "task=d4rl/walker2d-medium-v2", "table=iql_corl")
    assert job.algo.order == "joint" and job.algo.policy == "gaussian"
    (job,) = compose("algo=iql", "task=d4rl/hopper-medium-v2")
    assert job.algo.order == "value_first" and job.algo.data.return_range


@pytest.fixture
def afresh():
    """Tables are read once; a test that puts others in their place must leave none behind."""
    settings_tables.rows_of.cache_clear()
    yield
    settings_tables.rows_of.cache_clear()


def test_rows_of_a_table_apply_in_order(monkeypatch, tmp_path, afresh):
    file = tmp_path / "mine.yaml"
    file.write_text('"*": {a: 1, b: 1}\nd4rl/*: {b: 2}\nd4rl/pen-*: {b: 3}\n')
    other = tmp_path / "other.yaml"
    other.write_text('algo: bc\nbase: mine\n"*": {c: 1}\nd4rl/*: {b: 4}\n')
    monkeypatch.setattr(settings_tables, "_files", lambda: {"mine": file, "other": other})
    assert settings_tables.table("mine", "corerl/pendulum") == {"a": 1, "b": 1}
    assert settings_tables.table("mine", "d4rl/door-human-v1") == {"a": 1, "b": 2}
    assert settings_tables.table("mine", "d4rl/pen-human-v1") == {"a": 1, "b": 3}
    assert settings_tables.table("other", "corerl/pendulum") == {"a": 1, "b": 1, "c": 1}
    assert settings_tables.table("other", "d4rl/pen-human-v1") == {"a": 1, "b": 4, "c": 1}
    assert settings_tables.table("bc", "d4rl/pen-human-v1") == {}  # an algorithm without a file
    assert settings_tables._algorithm("other") == "bc" and settings_tables._algorithm("mine") == ""


def test_a_variant_is_an_algorithm_with_its_table(compose):
    (job,) = compose("algo=sac_n", "task=d4rl/hopper-medium-v2")
    (same,) = compose("algo=edac", "table=sac_n", "task=d4rl/hopper-medium-v2")
    assert job == same and (job.algo.name, job.label) == ("edac", "SAC-N")
    (job,) = compose("algo=sac_n", "task=d4rl/hopper-medium-v2", "algo.critics=7", "label=mine")
    assert (job.algo.critics, job.algo.eta, job.label) == (7, 0, "mine")
    (job,) = compose("algo=bc_10", "task=d4rl/antmaze-umaze-v2")
    assert (job.algo.best, job.eval.episodes) == (0.1, 100)  # the second from the base's table


@pytest.mark.parametrize(
    ("given", "seeds"), [("seeds=3", 3), ("seeds=[3,7]", [3, 7]), ("label=x", 5)]
)
def test_seeds_are_a_count_or_a_list(compose, given, seeds):
    (job,) = compose("algo=bc", "task=corerl/pendulum", given)
    assert job.seeds == seeds and type(job.seeds) is type(seeds)


def test_values_have_the_types_of_their_fields(compose):
    arguments = ["steps=10", "algo.lr=1", "algo.data.normalize_states=no", 'label="10% BC, best"']
    (job,) = compose("algo=bc", "task=corerl/pendulum", *arguments)
    assert job.steps == 10 and type(job.algo.lr) is float
    assert job.algo.data.normalize_states is False and job.label == "10% BC, best"


# Sweeps.


def test_a_sweep_runs_every_combination(compose):
    jobs = compose(
        "-m", "algo=bc,iql", "task=corerl/pendulum,d4rl/hopper-medium-v2", "algo.batch_size=64"
    )
    cells = [(job.algo.name, job.task, job.algo.batch_size) for job in jobs]
    assert cells == [
        (algo, task, 64)
        for algo in ("bc", "iql")
        for task in ("corerl/pendulum", "d4rl/hopper-medium-v2")
    ]
    assert [job.algo.data.return_range for job in jobs if job.algo.name == "iql"] == [False, True]


def test_settings_of_the_algorithm_can_be_swept(compose):
    jobs = compose(
        "-m", "algo=iql", "task=corerl/pendulum", "algo.expectile=0.5,0.9", "algo.beta=1"
    )
    assert [(job.algo.expectile, job.algo.beta) for job in jobs] == [(0.5, 1.0), (0.9, 1.0)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "algo=bc,iql_corl", "task=corerl/pendulum,d4rl/hopper-medium-v2", "algo.lr=1e-3"),
        ("-m", "algo=iql", "task=corerl/pendulum", "algo.expectile=0.5,0.9", "seeds=[3]"),
        ("-m", "algo=glob([bc_*,iql_c*])", "task=corerl/pendulum"),
        ("algo=sac_n", "task=d4rl/pen-human-v1", "eval={episodes:3}"),
        ("sweep=demo", "seeds=1", "algo=bc,rebrac"),
        ("-m", "algo=bc", "task='corerl/pendulum',\"gym/a b\"", "seeds=[3]"),
        ("-m", "algo=sac", "task=gym/gymnasium:Pendulum-v1", "label='a, b',c", "seeds=[3]"),
    ],
)
def test_the_listed_cells_are_those_that_run(compose, arguments):
    assert cells(list(arguments)) == compose(*arguments)


def test_settings_may_stand_behind_flags(monkeypatch, capsys):
    """As in `python algos/bc.py -m task=...`."""
    words = ["train", "algo=bc", "-m", "task=corerl/pendulum", "steps=100,200"]
    assert main([*words, "--cfg", "job", "seeds=3", "-p", "steps"]) == 0
    assert capsys.readouterr().out == "100\n200\n"
    seen = []
    monkeypatch.setattr(launch, "launch", lambda job, place: seen.append((job.steps, job.seeds)))
    assert main([*words, "seeds=3"]) == 0
    assert seen == [(100, 3), (200, 3)]


def test_a_failure_that_nobody_foresaw_stops_no_other_cell(monkeypatch, capsys):
    original = launch.launch

    def fails(job, place):
        if job.algo.name == "bc":
            raise TypeError("unforeseen")
        original(job, place)

    monkeypatch.setattr(launch, "launch", fails)
    small = ["algo.batch_size=16", "compile=off", "eval.episodes=1", "steps=4", "seeds=1"]
    arguments = ["-m", "algo=bc,td3_bc", "task=corerl/pendulum", *small]
    assert main(["train", *arguments]) == 2
    assert "corerl: TypeError: unforeseen" in capsys.readouterr().err
    failed, done = (next(iter(status.of_cell(job))) for job in cells(arguments))
    assert (failed.state, failed.message) == ("failed", "TypeError: unforeseen")
    assert "Traceback" in (cell_directory(cells(arguments)[0]) / "error.txt").read_text()
    assert done.state == "done"


def test_a_cell_that_fails_stops_no_other(monkeypatch, capsys):
    seen = []

    def fails(job, place):
        seen.append(job.algo.name)
        if job.algo.name != "iql":
            raise CorerlError(f"{job.algo.name} cannot.")

    monkeypatch.setattr(launch, "launch", fails)
    assert main(["train", "-m", "algo=bc,iql,td3_bc", "task=corerl/pendulum"]) == 2
    assert seen == ["bc", "iql", "td3_bc"]
    error = capsys.readouterr().err
    says(error, "2")
    assert "bc cannot." in error and "td3_bc cannot." in error
    assert "Traceback" not in error


@pytest.mark.parametrize("finished", [True, False])
def test_another_process_s_cell_is_no_problem_once_it_is_done(monkeypatch, capsys, finished):
    original = launch.launch

    def taken(job, place):
        if finished or job.algo.name != "bc":
            original(job, place)
        if job.algo.name == "bc":
            raise Busy("bc is another's.")

    monkeypatch.setattr(launch, "launch", taken)
    small = ["algo.batch_size=16", "compile=off", "eval.episodes=1", "steps=4", "seeds=1"]
    arguments = ["-m", "algo=bc,td3_bc", "task=corerl/pendulum", *small]
    assert main(["train", *arguments]) == (0 if finished else 2)
    assert capsys.readouterr().err.count("bc is another's.") == (1 if finished else 2)


def test_settings_for_d4rls_sets_are_told_for_minaris_like_them(monkeypatch, capsys):
    monkeypatch.setattr(launch, "launch", lambda job, place: None)
    task = "task=minari/D4RL/antmaze/umaze-v1"
    assert main(["train", "algo=iql", task, "algo.beta=5"]) == 0
    reported = capsys.readouterr().err
    says(reported, "algo.expectile=0.9 algo.data.reward_shift=-1.0")
    assert "algo.beta" not in reported
    main(["train", "algo=iql", "task=minari/D4RL/pointmaze/umaze-v2"])
    main(["train", "algo=iql", "task=d4rl/antmaze-umaze-v2"])
    main(["train", "algo=ipl", "task=minari/D4RL/pen/human-v2"])  # only a row for all of D4RL
    assert "algo.expectile" not in capsys.readouterr().err


def test_two_sweeps_at_once_are_refused(capsys):
    assert main(["train", "sweep=demo", "sweep=neorl2"]) == 2
    says(capsys.readouterr().err, "sweep=")


def test_a_search_makes_the_score_large(monkeypatch, capsys, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    tried = []
    monkeypatch.setattr(launch, "launch", lambda job, place: tried.append(job.algo.expectile))
    monkeypatch.setattr(last_scores, "objective", lambda job: 100 * job.algo.expectile)
    sampler = ["hydra/sweeper=optuna", "hydra/sweeper/sampler=tpe"]
    options = [f"hydra.sweeper.{x}" for x in ("n_trials=4", "n_jobs=1")]
    searched = ["algo=iql", "task=corerl/pendulum", "algo.expectile=interval(0.5,0.9)"]
    assert main(["train", "-m", *sampler, *options, *searched]) == 0
    assert len(tried) == 4 and 0.5 <= min(tried) < max(tried) <= 0.9
    best = f"best {100 * max(tried):.2f} with algo.expectile={max(tried)}"
    assert best in capsys.readouterr().err
    assert main(["train", "-m", *sampler, *options, *searched]) == 0
    assert tried[4:] == tried[:4]  # the same command goes on with the same trials


class OptunaSweeper(Sweeper):
    """Stands for Optuna's where that is not installed: makes three trials, and keeps what it is told."""

    __module__ = "hydra_plugins.pretended"
    reported: ClassVar[list] = []

    def __init__(self, **settings):
        self.reported.clear()

    def setup(self, *, config, **given):
        self.folder = Path(config.hydra.sweep.dir)
        self.launcher = Plugins.instance().instantiate_launcher(config=config, **given)

    def sweep(self, arguments):
        trials = [[*arguments, f"algo.lr={lr}"] for lr in (0.1, 0.2, 0.3)]
        self.reported += [job.return_value for job in self.launcher.launch(trials, 0)]
        best = {"best_params": {"algo.lr": 0.1}, "best_value": 2.0}
        self.folder.mkdir(exist_ok=True)
        (self.folder / "optimization_results.yaml").write_text(yaml.safe_dump(best))


class Elsewhere(Launcher):
    """Trains nothing in this process."""

    __module__ = "hydra_plugins.pretended"

    def setup(self, **given):
        pass

    def launch(self, job_overrides, initial_job_idx):
        return []


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setitem(sys.modules, "hydra_plugins.pretended", sys.modules[__name__])
    for plugin in (OptunaSweeper, Elsewhere):
        Plugins.instance().register(plugin)
    return ["-m", "hydra.sweeper._target_=hydra_plugins.pretended.OptunaSweeper", "algo=bc"]


def test_optuna_is_told_none_of_a_trial_without_a_score(monkeypatch, capsys, pretended):
    scored = {0.1: 2.0, 0.2: math.nan}

    def launched(job, place):
        if job.algo.lr not in scored:
            raise CorerlError("lr is refused.")

    monkeypatch.setattr(launch, "launch", launched)
    monkeypatch.setattr(last_scores, "objective", lambda job: scored[job.algo.lr])
    searched = [*pretended, "task=corerl/pendulum", "root=mine"]
    assert main(["train", *searched]) == 2
    assert OptunaSweeper.reported == [2.0, None, None]
    reported = capsys.readouterr().err
    says(reported, "2.00 algo.lr=0.1 mine/")
    assert reported.endswith("lr is refused.\n")


def test_a_search_that_ran_elsewhere_tells_its_best(capsys, pretended):
    elsewhere = "hydra.launcher._target_=hydra_plugins.pretended.Elsewhere"
    assert main(["train", *pretended, "task=corerl/pendulum", "root=mine", elsewhere]) == 0
    says(capsys.readouterr().err, "2.00 algo.lr=0.1 mine/")


def test_a_search_goes_on_after_a_failed_trial(monkeypatch, capsys):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    monkeypatch.setattr(launch, "launch", lambda job, place: None)
    given = [100.0, math.nan, 300.0, math.nan]
    monkeypatch.setattr(last_scores, "objective", lambda job: given.pop(0))
    options = [f"hydra.sweeper.{x}" for x in ("n_trials=4", "n_jobs=1")]
    searched = ["algo=iql", "task=corerl/pendulum", "algo.expectile=interval(0.5,0.9)"]
    arguments = ["train", "-m", "hydra/sweeper=optuna", *options, *searched]
    assert main(arguments) == 0
    assert not given and "corerl: best 300.00 with" in capsys.readouterr().err
    given += [math.nan] * 4
    assert main(arguments) == 2
    says(capsys.readouterr().err, "trial score")


def test_what_a_search_leaves_open_is_added_and_what_it_gives_stays():
    optuna = ["-m", "hydra/sweeper=optuna"]
    assert _with_search(["-m", "algo=bc"]) == ["-m", "algo=bc"]
    direction, seed = "hydra.sweeper.direction=maximize", "hydra.sweeper.sampler.seed=0"
    assert _with_search(optuna) == [*optuna, direction, seed]
    own = [*optuna, "hydra.sweeper.direction=minimize", "+hydra.sweeper.sampler.seed=5"]
    assert _with_search(own) == own
    grid = [*optuna, "hydra/sweeper/sampler=grid"]
    assert _with_search(grid) == [*grid, direction]


def test_the_objective_is_the_mean_of_the_last_scores(tmp_path):
    (cfg,) = cells(["algo=bc", "task=corerl/pendulum", "seeds=[4,7]", "steps=20"])
    cell = cell_directory(cfg)
    header = "task,algorithm,config,seed,step,return,score,episodes,length,return_std,success"
    for seed, score in ((4, 10.0), (7, 30.0)):
        assert math.isnan(last_scores.objective(cfg))  # one seed has none yet, or diverged
        folder = cell / f"seeds-{seed}"
        folder.mkdir(parents=True)
        rows = [
            f"t,BC,c,{seed},{step},-1.0,{value},2,5,0.1,"
            for step, value in ((10, 99.0), (20, score))
        ]
        (folder / "scores.csv").write_text("\n".join([header, *rows]) + "\n")
    assert last_scores.objective(cfg) == 20.0


def test_ctrl_c_stops_the_whole_sweep(monkeypatch, capsys):
    seen = []

    def stopped(job, place):
        seen.append(job.algo.name)
        raise Interrupted

    monkeypatch.setattr(launch, "launch", stopped)
    arguments = ["train", "-m", "algo=bc,iql", "task=corerl/pendulum", 'label="a b"']
    assert main(arguments) == 130
    assert seen == ["bc"]
    says(capsys.readouterr().err, "corerl train -m")


def test_nothing_is_written_but_by_the_run_itself(compose, tmp_path):
    compose("algo=bc", "task=corerl/pendulum")
    assert not list(tmp_path.iterdir())


# Tables and dataclasses as they are shipped.

TABLES = [f for f in files("corerl.configs").iterdir() if f.name.endswith(".yaml")]
ROWS = [
    pytest.param(file.name[:-5], pattern, rows.get("*", {}) | row, id=f"{file.name[:-5]} {pattern}")
    for file in TABLES
    if file.name != "config.yaml"
    for rows in [yaml.safe_load(file.read_text()) or {}]
    for pattern, row in rows.items()
    if pattern not in ("algo", "base")
]


@cache
def defaults(algo: str) -> DictConfig:
    config = Config(algo=import_module(f"corerl.algos.{algo}").Config(), task="corerl/pendulum")
    return OmegaConf.structured(config)


def fits(row: dict, algo: str) -> bool:
    """Whether every key of the row is a setting of the algorithm and every value in its range."""
    try:
        filled = deepcopy(defaults(algo))
        for key, value in row.items():
            OmegaConf.update(filled, key, value)
        OmegaConf.to_object(filled)
    except OmegaConfBaseException:
        return False
    return True


@pytest.mark.parametrize(("name", "pattern", "row"), ROWS)
def test_every_row_names_known_tasks_and_settings(name, pattern, row):
    known = [*tasks.known_tasks(), *(f"gym/{id}" for id in gymnasium.registry)]
    chosen, _, of_task = pattern.rpartition(":")  # configs/budgets.yaml names an algorithm first
    assert any(fnmatchcase(task, of_task) for task in known), "matches no task"
    algo = chosen or settings_tables.variants().get(name, name)
    candidates = [algo] if algo in algos.names() else algos.names()
    assert any(fits(row, algo) for algo in candidates)


@pytest.mark.parametrize("algo", algos.names())
def test_every_algorithm_has_a_config_with_its_name(algo):
    config = import_module(f"corerl.algos.{algo}").Config()
    assert config.name == algo and config.label


# Errors: one sentence, status 2, no traceback.


@pytest.mark.parametrize("name", ["hydra/sweeper/optuna", "hydra/launcher/submitit_slurm"])
def test_what_comes_with_an_extra_names_it_where_it_is_not_installed(name):
    reported = sentence(MissingConfigException(f"Could not find '{name}'", name, ["basic"]))
    extra = reported.rpartition('pip install "corerl[')[2].rstrip('"]')
    metadata = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert extra in metadata["project"]["optional-dependencies"]


RUN = ["algo=iql", "task=corerl/pendulum"]
PROBLEMS = {
    # what is missing
    ("algo=iql",): "task=",
    ("task=corerl/pendulum",): "algo=iql",
    ("-m", "task=corerl/pendulum"): "algo",
    ("task=corerl/pendulum", "--dry-run"): "algo=iql",
    ("-m", "algo=iql,bcc", RUN[1], "--dry-run"): "bcc bc",
    ("algo=rebrac", "task=corerl/pendulum", "algo.lr=1e-3"): (
        "algo.lr algo=rebrac algo.actor_lr algo.critic_lr"
    ),
    (*RUN, "algo.expctile=0.8", "--dry-run"): "algo.expctile algo=iql",
    (*RUN, "algo.expectile=1.5", "--dry-run"): "algo.expectile=1.5 0 1",
    # names that do not exist
    ("algo=iqll", RUN[1]): "iqll iql",
    ("algo=", RUN[1]): "bc iql",
    ("-m", "algo=iql,tdd3_bc", RUN[1]): "tdd3_bc td3_bc",
    ("algo=iql", "task=d4rl/hoper-medium-v2"): "d4rl/hopper-medium-v2",
    ("algo=iql", "task=hopper-medium-v2"): "<collection>/<name>",
    (*RUN, "stepz=10"): "stepz steps",
    (*RUN, "expectile=0.8"): "expectile algo.expectile",
    (*RUN, "algo.expctile=0.8"): ("algo.expctile algo=iql algo.expectile"),
    (*RUN, "data.normalize_states=true"): "algo.data.normalize_states",
    (*RUN, "algo.data.normalise_states=true"): "algo.data.normalize_states",
    (*RUN, "eval.evry=3"): "eval.evry eval.every",
    (*RUN, "algo.behaviour_floor=0.3"): ("algo.behaviour_floor algo=iql arsq"),
    (*RUN, "algo.alpha=3"): "algo.alpha algo=iql arsq codac",
    (*RUN, "algo.gamma=0.9"): ("algo.gamma algo=iql --help"),
    (*RUN, "max_timesteps=9"): "max_timesteps algo=iql --help",
    ("-m", "algo=iql,bc", RUN[1], "algo.expectile=0.7"): "algo.expectile algo=bc",
    (*RUN, "table=iql_cor"): "iql_cor configs/ iql_corl",
    (*RUN, "table=config"): "config configs/",
    ("algo=bc", "task=d4rl/pen-human-v1", "table=iql"): ("configs/iql.yaml algo.beta algo=bc"),
    ("algo=cql", "task=d4rl/pen-human-v1", "table=cql_official"): "algo=cql_official",
    ("sweep=dem",): "dem demo_risk",
    (*RUN, "hydra/launcher=joblb"): "hydra/launcher joblb",
    # values of the wrong type
    (*RUN, "steps=ten"): "steps=ten",
    (*RUN, "steps=1e5"): "steps=100000.0 1000",
    (*RUN, "steps="): "steps=",
    (*RUN, "steps=null"): "steps=null",
    (*RUN, "algo.expectile=high"): "algo.expectile=high",
    (*RUN, "algo.expectile=[0.7,0.8]"): "algo.expectile=[0.7, 0.8]",
    (*RUN, "algo.cosine=maybe"): "algo.cosine=maybe",
    (*RUN, "task=null"): "task=null",
    (*RUN, "device=[1]"): "device=[1]",
    (*RUN, "eval={every:x}"): "eval.every=x",
    (*RUN, "eval=3"): "eval=3 eval.every=",
    (*RUN, "algo.data=x"): "algo.data.return_range=",
    (*RUN, "wandb=online"): "wandb.mode=",
    (*RUN, "algo.expectile=0.7,0.8"): "-m",
    (*RUN, "seeds=1,2"): "-m seeds=[1,2]",
    (*RUN, "processes=many"): "processes=many",
    # values out of range
    (*RUN, "steps=-4"): "steps=-4",
    (*RUN, "eval.every=0"): "eval.every=0",
    (*RUN, "processes=0"): "processes=0",
    (*RUN, "algo.hidden_width=1000000000000000000"): "16,384",
    (*RUN, "algo.lr=1e30"): "algo.lr=1e+30 10",
    (*RUN, "steps=1e30"): "steps=1e+30",
    (*RUN, "algo.expectile=1.5"): "algo.expectile=1.5 0 1",
    (*RUN, "algo.data.clip_actions=3"): "algo.data.clip_actions=3.0 0 1",
    (*RUN, "algo.policy=gausian"): "algo.policy=gausian",
    (*RUN, "seeds=0"): "seeds=0 seeds=10",
    (*RUN, "seeds=abc"): "seeds=abc",
    (*RUN, "seeds=[1,1]"): "seeds=[1, 1]",
    (*RUN, "seeds=[1,-1]"): "seeds=[3,7]",
    (*RUN, "seeds=true"): "seeds=True",
    (*RUN, "device=gpu"): "device=gpu cuda:N",
    (*RUN, "compile=fast"): "compile=fast",
    (*RUN, "wandb.mode=on"): "wandb.mode=on",
    (*RUN, "algo.name=bc"): "algo.name=bc name",
    # grammar
    (*RUN, "steps"): "steps name=value",
    (*RUN, "-m", "algo.lr=1e-3.lr=1e-3,3e-4"): "algo.lr=1e-3.lr=1e-3,3e-4",
    (*RUN, "label=(x"): "label=(x",
    (*RUN, "+new=3"): "+new=3",
    (*RUN, "~steps"): "~steps",
    (*RUN, "--multirun=3"): "--multirun/-m",
    (*RUN, "--config-dir"): "--config-dir/-cd",
    (*RUN, "--config-dir", "nowhere"): "--config-dir nowhere",
    (*RUN, "--seeds", "3"): "--seeds name=value seeds=10",
    # folders
    (*RUN, "root=/dev/null/runs"): "/dev/null/runs/",
}


@pytest.mark.parametrize(("arguments", "words"), PROBLEMS.items(), ids=map(" ".join, PROBLEMS))
def test_bad_input_is_one_sentence(capsys, tmp_path, arguments, words):
    assert main(["train", *arguments]) == 2
    out, error = capsys.readouterr()
    assert error.startswith("corerl: ") and not out
    says(error, words, lines=1)
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"runs"}, "Hydra left files"
    assert not list(tmp_path.rglob("seeds-*"))


def test_a_sweep_that_builds_on_nothing_is_told_what_it_lacks(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("hydra: {sweeper: {params: {algo: bc, task: corerl/pendulum}}}")
    assert main(["train", f"sweep={path}"]) == 2
    error = capsys.readouterr().err
    says(error, "mine.yaml defaults _self_")


DAMAGED = {
    "defaults:\n  - config\nseeds: [1\n": "while parsing a flow sequence",
    "defaults:\nseeds: 1\n": "Invalid defaults list in 'mine'",
    "seeds: \x00": "special characters are not allowed",
    b"seeds: \xff": "invalid start byte",
}


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(("content", "reason"), DAMAGED.items())
def test_a_damaged_sweep_is_one_sentence(capsys, tmp_path, content, reason, dry):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    flags = ["--config-dir", str(tmp_path), "--config-name", "mine", "-m"]
    assert main(["train", *flags, *RUN, *(["--dry-run"] if dry else [])]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_sweep_without_a_sweeper_is_one_sentence(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [config, _self_]\nhydra:\n  sweeper:\n")
    flags = ["--config-dir", str(tmp_path), "--config-name", "mine", "-m", "--dry-run"]
    assert main(["train", *flags, *RUN]) == 2
    says(capsys.readouterr().err, "hydra.sweeper")


def test_a_gpu_that_is_absent_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["train", *RUN, "device=cuda"]) == 2
    error = capsys.readouterr().err
    says(error, "device=cuda")
    assert error.count("\n") == 1


# Help.


def test_hydra_moves_no_run(capsys, tmp_path):
    assert main(["train", "algo=bc", "task=corerl/pendulum", "hydra.job.chdir=true"]) == 2
    says(capsys.readouterr().err, "hydra.job.chdir")


def test_what_hydra_shows_are_the_settings_that_run(capsys):
    words = ["train", "-m", "algo=td3_bc,bc", "task=corerl/pendulum"]
    assert main([*words, "--cfg", "job", "-p", "algo.name"]) == 0
    assert capsys.readouterr().out == "td3_bc\nbc\n"
    assert main([*words, "--cfg", "job"]) == 0
    shown = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["steps"] for each in shown] == [cfg.steps for cfg in cells(words[1:])]
    assert main([*words[:1], "algo=bc", *words[3:], "--cfg", "hydra", "-p", "hydra.sweep"]) == 0
    assert "not done" not in capsys.readouterr().err
    assert main([*words, "--cfg", "job", "-p", "algo.nme"]) == 2
    says(capsys.readouterr().err, "--package algo.nme")
    assert main(["train", "--hydra-help"]) == 2


def test_help_shows_every_setting_with_its_comment(capsys):
    assert main(["train", "algo=iql", "--help"]) == 0
    text = capsys.readouterr().out
    for line in ("steps=1000000", "algo.expectile=0.7", "algo.data.return_range=False"):
        (shown,) = [given for given in text.splitlines() if given.strip().startswith(line)]
        assert "# " in shown
    assert "eval.every=5000" in text and "wandb.mode=disabled" in text
    assert main(["train", "algo=bc,td3_bc_corl", "-h"]) == 0
    text = capsys.readouterr().out
    assert "algo.policy_noise=" in text and "algo.best_discount=" in text
    assert main(["train", "algo=iqll", "--help"]) == 2
    says(capsys.readouterr().err, "iqll iql_corl")


def test_help_has_room_for_a_comment_of_one_line():
    for file in [*Path(algos.__file__).parent.glob("*.py"), Path(config.__file__)]:
        longer = re.findall(r"^    \w+: [^\n]* # [^\n]*\n    # ", file.read_text(), re.MULTILINE)
        assert not longer, file


@pytest.mark.parametrize(
    ("written", "reported"),
    [
        ({"best_value": 1.234, "best_params": {"algo.lr": 0.1}}, "best 1.23 with algo.lr=0.1 "),
        ({"best_evaluated_result": 1.2}, "found "),
        ({"best_value": None, "best_params": {}}, "found "),
        (None, "found "),
    ],
)
def test_what_a_search_found_is_told_whatever_the_sweeper_wrote(
    tmp_path, capsys, written, reported
):
    (tmp_path / "optimization_results.yaml").write_text(yaml.safe_dump(written))
    _tell_best(tmp_path)
    assert capsys.readouterr().err.startswith(f"corerl: {reported}")
