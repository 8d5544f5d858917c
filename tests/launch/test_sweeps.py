"""Every file of sweeps/ composes to the cells of its table, with that table's settings."""

import csv
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from wording import refused, says

from corerl.cli import main
from corerl.config import Config, seed_list
from corerl.data import tasks
from corerl.launch import settings_tables
from corerl.launch.arguments import sweeps
from corerl.launch.composition import cells

TABLES = {  # cells, seeds, first seed, {(updates, between evaluations, episodes)}
    "corl_offline": (10 * 30, 4, 0, None),
    "cql_gym": (9, 4, 0, {(1_000_000, 5_000, 10)}),
    "cql_antmaze": (6, 4, 0, {(1_000_000, 50_000, 100)}),
    "cql_adroit": (12, 4, 0, {(1_000_000, 5_000, 10)}),
    "cql_kitchen": (3, 4, 0, {(250_000, 5_000, 10)}),
    "iql_gym": (9, 10, 0, {(1_000_000, 5_000, 10)}),
    "iql_antmaze": (6, 10, 0, {(1_000_000, 100_000, 100)}),
    "iql_adroit": (8, 10, 0, {(1_000_000, 5_000, 10)}),
    "iql_kitchen": (3, 10, 0, {(1_000_000, 5_000, 10)}),
    "rebrac_gym": (3 * 18, 10, 10, {(1_000_000, 5_000, 10)}),
    "rebrac_antmaze": (3 * 6, 10, 10, {(1_000_000, 50_000, 100)}),
    "rebrac_adroit": (3 * 12, 10, 10, {(1_000_000, 5_000, 10)}),
    "td3_bc_gym": (15, 5, 0, {(1_000_000, 5_000, 10)}),
    "spot_gym": (9, 5, 0, {(1_100_000, 5_000, 10)}),
    "spot_antmaze": (6, 5, 0, {(1_100_000, 50_000, 100)}),
    "lb_sac_gym": (18, 4, 0, None),
    "crr_gym": (12, 10, 0, {(500_000, 10_000, 10)}),
    "unifloral": (8, 5, 0, None),
    "dt_gym": (9, 3, 0, {(100_000, 10_000, 100)}),
}


@cache
def composed(name: str) -> list[Config]:
    return cells([f"sweep={name}"])


def protocol(cfg) -> tuple[int, int, int]:
    return cfg.steps, cfg.eval.every, cfg.eval.episodes


@pytest.mark.parametrize("name", TABLES)
def test_a_sweep_is_its_table(name):
    count, seeds, first, protocols = TABLES[name]
    jobs = composed(name)
    assert len(jobs) == count
    assert len({(job.label or job.algo.label, job.task) for job in jobs}) == count
    for job in jobs:
        assert seed_list(job.seeds) == list(range(first, first + seeds))
        tasks.resolve(job.task)
    if protocols:
        assert {protocol(job) for job in jobs} == protocols


def test_every_file_is_looked_at_and_hides_no_table():
    """A sweep of a table's name would compose configs/ instead: Hydra looks there first."""
    assert set(sweeps()) >= set(TABLES)
    assert not set(sweeps()) & {f.name[:-5] for f in files("corerl.configs").iterdir()}


@pytest.mark.parametrize("name", sorted(set(sweeps()) - set(TABLES)))
def test_every_other_sweep_composes_and_says_how_to_run(name):
    """Its first algorithm on its first task: all cells of all sweeps take minutes."""
    text = (files("corerl.sweeps") / f"{name}.yaml").read_text()
    assert f"#   corerl train sweep={name}" in text
    params = yaml.safe_load(text)["hydra"]["sweeper"]["params"]
    first = {key: params[key].split(",")[0].strip() for key in ("algo", "task")}
    for job in cells([f"sweep={name}", *(f"{key}={value}" for key, value in first.items())]):
        tasks.resolve(job.task)
        assert first["algo"] in (job.algo.name, job.table)


@pytest.mark.parametrize("name", sweeps())
def test_the_page_of_sweeps_names_it(name):
    page = Path(__file__).parents[2] / "docs" / "sweeps.md"
    assert f"`{name}`" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_the_comment_says_how_to_run_and_to_report(name):
    text = (files("corerl.sweeps") / f"{name}.yaml").read_text()
    root = yaml.safe_load(text)["root"]
    assert f"#   corerl train sweep={name}" in text
    assert f"#   corerl report {root}" in text
    assert "--published d4rl_offline" in text


def test_corls_table_has_corls_settings():
    jobs = {(j.label or j.algo.label, j.task): j for j in composed("corl_offline")}
    assert {label for label, _ in jobs} == {
        *("BC", "10% BC", "TD3+BC", "AWAC", "CQL", "IQL", "ReBRAC", "SAC-N", "EDAC", "DT")
    }
    hopper, maze, ant = (
        f"d4rl/{n}" for n in ("hopper-medium-v2", "maze2d-umaze-v1", "antmaze-umaze-v2")
    )
    assert protocol(jobs["SAC-N", hopper]) == (3_000_000, 5_000, 10)
    assert protocol(jobs["DT", hopper]) == (100_000, 5_000, 100)
    assert protocol(jobs["AWAC", hopper]) == (1_000_000, 1_000, 10)
    assert protocol(jobs["BC", maze]) == (1_000_000, 5_000, 100)
    assert protocol(jobs["EDAC", ant]) == (3_000_000, 5_000, 10)
    assert protocol(jobs["ReBRAC", ant]) == (1_000_000, 50_000, 100)
    assert jobs["10% BC", hopper].algo.best == 0.1 and jobs["BC", hopper].algo.best == 1
    assert (jobs["SAC-N", hopper].algo.critics, jobs["SAC-N", hopper].algo.eta) == (500, 0)
    assert jobs["TD3+BC", ant].algo.data.normalize_states
    assert jobs["IQL", hopper].algo.policy == "deterministic"
    assert jobs["ReBRAC", hopper].algo.critic_bc_coef == 0.01  # CORL's; the paper's run had 0.001


def test_corls_finetuning_has_corls_settings():
    """configs/finetune of tinkoff-ai/CORL at 6afec90 (ReBRAC: of corl-team/CORL at eeeeef2)."""
    jobs = {(job.label or job.algo.label, job.task): job for job in composed("corl_finetune")}
    assert len(jobs) == 6 * 10
    assert {label for label, _ in jobs} == {"AWAC", "CQL", "IQL", "SPOT", "Cal-QL", "ReBRAC"}
    for (label, task), job in jobs.items():
        fits = 100_000 if label == "SPOT" else 0  # updates of its auto-encoder
        assert (job.steps, job.algo.online.pretrain_steps) == (2_000_000 + fits, 1_000_000 + fits)
        assert (job.algo.phase, job.seeds) == ("both", 4)
        often = "antmaze" not in task and label != "ReBRAC"
        every = (5_000, 10) if often else (50_000, 100)
        assert (job.eval.every, job.eval.episodes) == every, (label, task)
    maze, door = "d4rl/antmaze-umaze-v2", "d4rl/door-cloned-v1"
    assert [jobs["AWAC", task].algo.temperature for task in (maze, door)] == [0.1, 0.1]
    assert (
        jobs["AWAC", maze].algo.data.reward_shift == jobs["IQL", maze].algo.data.reward_shift == -1
    )
    iql = [jobs["IQL", task].algo for task in (maze, door)]
    assert [(x.expectile, x.beta, x.dropout) for x in iql] == [(0.9, 10.0, 0.0), (0.8, 3.0, 0.1)]
    coefficients = {
        "antmaze-umaze-v2": (0.003, 0.002),
        "antmaze-umaze-diverse-v2": (0.003, 0.001),
        "antmaze-medium-play-v2": (0.001, 0.0005),
        "antmaze-medium-diverse-v2": (0.001, 0.0),
        "antmaze-large-play-v2": (0.002, 0.001),
        "antmaze-large-diverse-v2": (0.002, 0.002),
        "pen-cloned-v1": (0.05, 0.5),
        "door-cloned-v1": (0.01, 0.1),
        "hammer-cloned-v1": (0.1, 0.5),
        "relocate-cloned-v1": (0.1, 0.01),
    }
    for name, coefficient in coefficients.items():
        algo, walks = jobs["ReBRAC", f"d4rl/{name}"].algo, "antmaze" in name
        assert (algo.actor_bc_coef, algo.critic_bc_coef) == coefficient
        assert (algo.actor_lr, algo.critic_lr) == (3e-4, 5e-5 if walks else 3e-4)
        assert (algo.discount, algo.data.reward_scale) == ((0.999, 100) if walks else (0.99, 1))
        assert (algo.batch_size, algo.hidden_layers, algo.critic_layer_norm) == (256, 3, True)
        assert (algo.online.offline_ratio, algo.min_bc_share) == (0.5, 0.5)
        assert algo.online.warmup_steps == 0 and not algo.data.normalize_states
    calibrated = [jobs["Cal-QL", task].algo for task in (maze, door)]
    assert [(x.weight, x.critic_layers, x.lagrange) for x in calibrated] == [
        *((5.0, 5, True), (1.0, 3, False)),
    ]
    scales = [(x.data.reward_scale, x.data.reward_shift) for x in calibrated]
    assert scales == [(10.0, -5.0), (1.0, 0.0)]
    for algo in calibrated:
        assert (algo.policy_layers, algo.max_backup, algo.online.offline_ratio) == (3, True, 0.5)


def test_a_variants_table_begins_with_that_of_its_base():
    assert (
        settings_tables.variants()["bc_10"] == "bc"
        and settings_tables.variants()["sac_n"] == "edac"
    )
    assert settings_tables.variants()["td3_bc_rebrac"] == "rebrac"
    corl = settings_tables.table("iql_corl", "d4rl/pen-human-v1")
    tuned = settings_tables.table("iql_rebrac", "d4rl/pen-human-v1")
    changed = {key for key in tuned if tuned[key] != corl.get(key)}
    assert changed <= {"algo.beta", "algo.expectile", "algo.log_std_min"}
    assert tuned["algo.log_std_min"] == -5 and tuned.keys() >= corl.keys()


def test_a_part_of_a_sweep_can_be_named():
    jobs = cells(["sweep=corl_offline", "algo=bc_10", "task=corerl/pendulum", "seeds=[7]"])
    (job,) = jobs
    assert (job.algo.name, job.algo.best, job.seeds) == ("bc", 0.1, [7])


# Settings of the variants that only sweeps name, against the reference tables.


def read(shared, name: str) -> list[dict[str, str]]:
    with open(shared / "reference" / "hparams" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_baselines_are_as_rebracs_authors_tuned_them(shared):
    rows = {
        f"d4rl/{row['dataset']}": row for row in read(shared, "rebrac_paper_tuned_baselines.csv")
    }
    names = ("rebrac_gym", "rebrac_antmaze", "rebrac_adroit")
    jobs = {(j.label or j.algo.label, j.task): j for name in names for j in composed(name)}
    assert {task for _, task in jobs} == rows.keys() and len(rows) == 36
    for task, row in rows.items():
        iql, td3 = jobs["IQL", task].algo, jobs["TD3+BC", task].algo
        assert iql.beta == float(row["iql_beta_evaluated"]), task
        assert iql.expectile == float(row["iql_expectile_evaluated"]), task
        assert iql.order == "joint" and iql.data.normalize_states  # CORL's code
        assert td3.name == "rebrac" and td3.actor_bc_coef == float(row["td3bc_actor_bc_paper"]), (
            task
        )
        antmaze = "antmaze" in task
        assert (td3.critic_bc_coef, td3.critic_layer_norm, td3.hidden_layers) == (0, False, 2)
        assert (td3.batch_size, td3.actor_lr, td3.discount) == (256, 3e-4, 0.99)
        assert (td3.critic_lr, td3.data.reward_scale) == ((5e-5, 100) if antmaze else (3e-4, 1))


def test_corls_own_rebrac_and_td3_bc(shared):
    theirs = {
        (row["algorithm"], f"d4rl/{row['dataset']}", row["param"]): row["value"]
        for row in read(shared, "corl_offline.csv")
    }
    for job in composed("corl_offline"):
        if job.table == "rebrac_corl":
            for key in ("actor_bc_coef", "critic_bc_coef"):
                assert getattr(job.algo, key) == float(theirs["rebrac", job.task, key]), job.task
        if job.table == "td3_bc_corl":
            given = theirs["td3_bc", job.task, "normalize"] == "true"
            assert job.algo.data.normalize_states == given


def test_a_sweep_may_be_a_file_of_ones_own(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    grid = "hydra: {sweeper: {params: {algo: 'bc,td3_bc', task: corerl/pendulum}}}"
    file.write_text(f"defaults: [config, _self_]\nsteps: 7\ncompile: off\n{grid}\n")
    found = [(cfg.algo.name, cfg.steps, cfg.compile) for cfg in cells([f"sweep={file}", "seeds=2"])]
    assert found == [("bc", 7, "off"), ("td3_bc", 7, "off")]
    assert main(["status", str(file), f"root={tmp_path}"]) == 0
    assert "10 seeds missing" in capsys.readouterr().out
    with refused("sweep=PATH.yaml"):
        cells([f"sweep={tmp_path / 'none.yaml'}"])


def test_a_setting_in_a_sweeps_file_stands_before_the_tables(tmp_path):
    file = tmp_path / "mine.yaml"
    grid = "hydra: {sweeper: {params: {algo: rebrac, task: neorl2/Simglucose}}}"
    file.write_text(f"defaults: [config, _self_]\nalgo: {{batch_size: 64}}\n{grid}\n")
    (cfg,) = cells([f"sweep={file}"])
    assert (cfg.algo.batch_size, cfg.algo.actor_bc_coef) == (64, 10.0)  # 256 and 10.0 in the table
    (cfg,) = cells([f"sweep={file}", "algo.batch_size=32"])
    assert cfg.algo.batch_size == 32


def test_a_sweeps_file_may_set_what_only_the_chosen_algorithm_has(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [config, _self_]\nalgo: {critic: {expectile: 0.8}}\n")
    (cfg,) = cells([f"sweep={file}", "algo=qcs", "task=corerl/pendulum"])
    assert cfg.algo.critic.expectile == 0.8


@pytest.mark.parametrize("name", ["config", "iql"])
def test_a_sweeps_file_that_is_named_as_corerls_own_settings_is_refused(tmp_path, name):
    file = tmp_path / f"{name}.yaml"
    file.write_text("defaults: [config, _self_]\nsteps: 7\n")
    with refused(f"{name}.yaml"):
        cells([f"sweep={file}", "algo=bc", "task=corerl/pendulum"])


@pytest.mark.parametrize(
    ("line", "overrides", "reported"),
    [
        ("step: 1000", (), "mine step steps"),
        ("steps: 1e5", (), "mine steps=100000.0"),
        ("algo: {expectile: 0.8}", (), "algo.expectile hydra.sweeper.params"),
        ("algo: {expectile: 0.8}", ("algo=bc",), "mine algo.expectile algo=bc"),
        ("algo: [iql, bc]", (), "mine.yaml hydra.sweeper.params"),
    ],
)
def test_a_mistake_in_a_sweeps_file_is_told_as_one_on_the_command_line(
    tmp_path, line, overrides, reported
):
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults: [config, _self_]\ntask: corerl/pendulum\n{line}\n")
    with refused(reported):
        cells([f"sweep={file}", *overrides])


@pytest.mark.parametrize("key", ["algo", "task"])
def test_a_list_in_the_grid_of_a_sweeps_file_is_told_how_several_values_are_written(tmp_path, key):
    file, grid = tmp_path / "mine.yaml", {"algo": "bc", "task": "corerl/pendulum"}
    content = {"hydra": {"sweeper": {"params": grid | {key: ["a", "b"]}}}}
    file.write_text(yaml.safe_dump({"defaults": ["config", "_self_"]} | content))
    with refused(f"{key} {key}"):
        cells([f"sweep={file}"])


@pytest.mark.parametrize("word", ["task=glob(corerl/pend*)", "algo=glob(xyz*)"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_glob_that_finds_nothing_is_no_success(tmp_path, capsys, word, dry):
    words = ["-m", "algo=bc", "task=corerl/pendulum", word, f"root={tmp_path}", *dry]
    assert main(["train", *words]) != 0
    says(capsys.readouterr().err, "glob()")
