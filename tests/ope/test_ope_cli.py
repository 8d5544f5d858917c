"""`corerl evaluate --method`: tables, files, choosing among runs, and what it refuses."""

import csv
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import config, train
from wording import refused, says

from corerl import cli
from corerl.algos import dt
from corerl.data import embedded
from corerl.data.tasks import Task, resolve
from corerl.errors import CorerlError
from corerl.ope import behaviour, evaluation, judgement, selection_report
from corerl.ope import cli as ope_cli
from corerl.policies.loaded_policy import Loaded
from corerl.preferences import reward_distances

torch.set_num_threads(1)
QUICK = ["--fqe", "steps=20", "hidden_width=8", "batch_size=16"]


@pytest.fixture(scope="module", autouse=True)
def few():
    """Twenty episodes of every set; the propensities are real."""
    load, patch = embedded.load, pytest.MonkeyPatch()
    patch.setattr(embedded, "load", lambda name, seed=0: load(name).select_episodes(np.arange(20)))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = {"bc": train(config(root / "bc", "bc", seeds=2))}
    made["iql"] = train(config(root / "iql", "iql", seeds=2))
    made["dt"] = None
    made["cql"] = train(
        config(root / "cql", "cql_discrete", own={"quantiles": 4}, task="corerl/cartpole")
    )
    return {name: str(path) for name, path in made.items()}


def evaluate(capsys, *arguments):
    status = cli.main(["evaluate", *arguments])
    return status, *capsys.readouterr()


def test_numbered_actions_by_every_method(runs, capsys):
    methods = "is,pdis,snis,snpdis,dr,sndr,fqe,cdf,sncdf"
    status, out, err = evaluate(
        capsys, runs["cql"], "--method", methods, "--epsilon", "0.3", "--horizon", "15", *QUICK
    )
    assert status == 0, err
    assert "propensities: recorded" in out
    says(out, "15 steps 20 episodes")
    assert "/ 20" in out and "0.0%" in out  # effective sample size and clipped weights
    with open(f"{runs['cql']}/ope.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == set(methods.split(","))
    # The same question again replaces its row, another adds one.
    options = ("--epsilon", "0.3", "--horizon", "15")
    evaluate(capsys, runs["cql"], "--method", "is", *options)
    evaluate(capsys, runs["cql"], "--method", "is", "--clip", "0.9", *options)
    with open(f"{runs['cql']}/ope.csv", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(rows) + 1


def test_other_questions_are_other_rows(runs, capsys):
    """Also beside rows of a time when the facts named no interval."""
    file = Path(runs["cql"], "ope.csv")
    old = "seed,method,statistic,value,low,high,episodes,ess,clipped,note,data,discount,facts\n"
    file.write_text(
        old + "0,fqe,mean,1,0,2,20,nan,nan,,corerl/cartpole,0.99,policy: as evaluated\n",
        encoding="utf-8",
    )
    fitted = ("--method", "fqe", "--fqe", "steps=1", "hidden_width=8", "batch_size=4")
    law = ("--method", "cdf", "--epsilon", "0.3", "--horizon", "5")
    asked = [
        fitted,
        (*fitted, "layer_norm=true"),
        (*fitted, "polyak=0.02"),
        (*fitted, "--interval", "t"),
        (*fitted, "--level", "0.5"),
        (*fitted, "--interval", "hoeffding"),
        (*fitted, "--interval", "hoeffding", "--bounds", "-20", "20"),
    ]
    for number, options in enumerate(asked):
        for _ in range(2 if options is fitted else 1):
            assert evaluate(capsys, runs["cql"], *options)[0] == 0
        with open(file, encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert len(rows) == number + 2
    assert rows[0]["value"] == "1"
    assert "interval: 95% bootstrap; fqe: 1 updates, batch 4, lr 0.0001, " in rows[1]["facts"]
    says(rows[2]["facts"], "hidden_width 8 layer_norm")
    assert "interval: 50% bootstrap" in rows[5]["facts"]
    says(rows[7]["facts"], "95% hoeffding -20 20")
    for upper in ("5", "20"):
        assert evaluate(capsys, runs["cql"], *law, "--upper", upper)[0] == 0
    with open(file, encoding="utf-8") as lines:
        facts = {row["facts"] for row in csv.DictReader(lines) if row["method"] == "cdf"}
    assert len(facts) == 2 and all("upper: " in text for text in facts)


def test_continuous_actions_by_kernel_density_and_fitted_behaviour(runs, capsys, monkeypatch):
    quick = partial(behaviour.fitted, steps=20, hidden_width=8)
    monkeypatch.setattr(evaluation, "fitted", quick)
    logged = ("--data", "corerl/pendulum-logged", "--horizon", "5")
    status, out, err = evaluate(capsys, runs["bc"], "--method", "snpdis", *logged)
    assert status == 0, err
    assert "gaussian kernel, bandwidth 1" in out
    says(out, "simulator")
    status, out, err = evaluate(
        capsys, runs["iql"], "--method", "snpdis", "--policy", "sample", "--clip", "0.9", *logged
    )
    assert status == 0, err
    says(out, "density")
    status, out, _ = evaluate(
        capsys, runs["bc"], "--method", "snis", "--behaviour", "fitted", "--horizon", "5"
    )
    says(out, "propensities")


def test_choosing_among_runs(runs, capsys, tmp_path):
    chosen = tmp_path / "chosen"
    status, out, err = evaluate(
        capsys, runs["bc"], runs["iql"], "--method", "fqe", "--select", str(chosen), *QUICK
    )
    assert status == 0, err
    assert "choosing among 4 policies" in out
    names = {"selection.csv", "policies.csv", "algorithms.csv", "selection.png"}
    assert {f.name for f in chosen.iterdir()} == names
    with open(chosen / "policies.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == ["BC", "BC", "IQL", "IQL"]
    assert [(row["seed"], row["updates"]) for row in rows] == [("0", "40"), ("1", "40")] * 2
    assert all(float(row["distance"]) > 0 for row in rows)
    with open(f"{runs['iql']}/seeds-1/scores.csv", encoding="utf-8") as file:
        assert rows[3]["return"] == str(float(list(csv.DictReader(file))[-1]["return"]))
    with open(chosen / "algorithms.csv", encoding="utf-8") as file:
        assert [(r["algorithm"], r["policies"]) for r in csv.DictReader(file)] == [
            ("BC", "2"),
            ("IQL", "2"),
        ]
    assert "overrated by" in out


@pytest.mark.parametrize(
    ("run", "other", "known"),
    [
        *(("iql", (), True), ("iql", ("--policy", "sample"), False)),
        *(("cql", (), True), ("cql", ("--epsilon", "0.1"), False)),
    ],
)
def test_errors_are_of_the_policy_that_training_evaluated(
    runs, capsys, tmp_path, run, other, known
):
    copy = shutil.copytree(runs[run], tmp_path / "copy")
    options = ("--method", "fqe", "--finite", "--discount", "1", "--select", f"{tmp_path}", *other)
    status, _, err = evaluate(capsys, runs[run], str(copy), *options, *QUICK)
    assert status == 0, err
    with open(tmp_path / "selection.csv", encoding="utf-8") as file:
        (row,) = [row for row in csv.DictReader(file) if row["method"] == "fqe"]
    assert (row["mse"] != "nan") == known


def test_a_label_with_brackets_is_printed_as_it_is(runs, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Loaded, "label", "IQL [wide] [/b]")
    options = ("--method", "fqe", "--select", str(tmp_path / "chosen"), *QUICK)
    status, out, err = evaluate(capsys, runs["iql"], *options)
    assert status == 0, err
    says(out, "IQL [wide] [/b] corerl/pendulum")
    assert any(line.split()[:4] == ["IQL", "[wide]", "[/b]", "2"] for line in out.splitlines())
    found = [reward_distances.Distance(0, "corerl/pendulum", 0.1, 0.9, 0.8, 5)]
    monkeypatch.setattr(reward_distances, "distances", lambda *_: found)
    status, out, err = evaluate(capsys, runs["iql"], "--rewards")
    assert status == 0, err
    says(out, "IQL [wide] [/b] corerl/pendulum reward")


@pytest.mark.parametrize(
    ("module", "show"), [(ope_cli, "_print"), (selection_report, "_print_selection")]
)
def test_estimates_are_kept_before_they_are_shown(
    runs, capsys, tmp_path, monkeypatch, module, show
):
    """As of `corerl evaluate | head`."""
    file, chosen = Path(runs["bc"], "ope.csv"), tmp_path / "chosen"
    file.unlink(missing_ok=True)

    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr(module, show, closed)
    monkeypatch.setattr(cli, "_drop_output", lambda: None)
    evaluate(capsys, runs["bc"], "--method", "fqe", "--select", str(chosen), *QUICK)
    assert file.exists()
    assert (chosen / "selection.csv").exists() == (module is selection_report)


def test_impossible_estimates_have_a_row_of_their_own(runs, capsys, tmp_path, monkeypatch):
    # Asked once for each policy of each run: two of BC, two of IQL.
    marks = iter([[True, False]] * 2 + [[False, False]] * 2)
    monkeypatch.setattr(judgement.Judgement, "impossible", lambda *_: np.array(next(marks)))
    options = ("--method", "fqe", "--select", str(tmp_path / "chosen"), *QUICK)
    status, out, err = evaluate(capsys, runs["bc"], runs["iql"], *options)
    assert status == 0, err
    assert "choosing among 4 policies" in out
    with open(tmp_path / "chosen" / "policies.csv", encoding="utf-8") as file:
        assert [row["fqe impossible"] for row in csv.DictReader(file)] == ["1", "0", "0", "0"]
    with open(tmp_path / "chosen" / "selection.csv", encoding="utf-8") as file:
        assert [row["method"] for row in csv.DictReader(file)] == [
            "fqe",
            "fqe, impossible ones last",
        ]


@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
def test_an_estimate_that_is_no_number_is_chosen_last(runs, capsys, tmp_path, monkeypatch, lost):
    value, answers = judgement.Judgement.of, iter([True] * 2 + [False] * 2)  # of BC, of IQL
    monkeypatch.setattr(
        judgement.Judgement, "of", lambda *of: value(*of) + (lost if next(answers) else 0)
    )
    options = ("--method", "fqe", "--finite", "--discount", "1", "--select", str(tmp_path / "x"))
    status, out, err = evaluate(capsys, runs["bc"], runs["iql"], *options, *QUICK)
    assert status == 0, err
    assert "choosing among 4 policies" in out
    with open(tmp_path / "x" / "policies.csv", encoding="utf-8") as file:
        values = [float(row["fqe"]) for row in csv.DictReader(file)]
    assert np.isfinite(values).tolist() == [False, False, True, True]
    with open(tmp_path / "x" / "algorithms.csv", encoding="utf-8") as file:
        ranks = [float(row["rank_by_estimate"]) for row in csv.DictReader(file)]
    assert ranks == pytest.approx([1 / 6, 5 / 6])
    with open(tmp_path / "x" / "selection.csv", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["mse"] == "nan"


def test_a_choice_says_whose_training_has_not_ended(runs, capsys, tmp_path):
    longer = tmp_path / "bc"
    shutil.copytree(runs["bc"], longer)
    settings = (longer / "config.yaml").read_text()
    (longer / "config.yaml").write_text(settings.replace("\nsteps: 40\n", "\nsteps: 1000\n"))
    options = ("--method", "fqe", "--select", str(tmp_path / "chosen"), *QUICK)
    status, out, err = evaluate(capsys, str(longer), runs["iql"], *options)
    assert status == 0 and "choosing among 4 policies" in out
    lines = [line for line in err.splitlines() if str(longer) in line]
    for line, seed in zip(lines, (0, 1), strict=True):
        says(line, f"{longer} {seed} 40")


def test_estimates_of_two_discounts_are_not_ranked_together(runs, capsys, tmp_path):
    other = train(config(tmp_path, "iql", own={"discount": 0.9}))
    options = ("--method", "fqe", "--select", str(tmp_path / "chosen"), *QUICK)
    status, _, err = evaluate(capsys, runs["iql"], str(other), *options)
    assert status == 2
    says(err, f"{runs['iql']} 0.99 {other} 0.9 --discount")
    assert not (tmp_path / "chosen").exists()
    assert evaluate(capsys, runs["iql"], str(other), "--discount", "0.95", *options)[0] == 0


def test_the_first_run_that_others_cannot_be_ranked_with_is_named():
    task = resolve("corerl/pendulum")
    one, two, three = (SimpleNamespace(path=f"runs/{name}") for name in "abc")
    same = {(task, 0.99): [one, two]}
    ope_cli._check_comparable(same)
    for acts in ({"history": 4}, {"action_range": ((-0.5,), (0.5,))}):
        with refused("action_range runs/a runs/c"):
            ope_cli._check_comparable(same | {(replace(task, **acts), 0.99): [three]})
    other = resolve("corerl/cartpole")
    with refused("runs/a corerl/pendulum runs/c corerl/cartpole --data"):
        ope_cli._check_comparable(same | {(other, 0.99): [three]})


def test_a_run_that_cannot_be_written_stops_no_other(runs, capsys, tmp_path):
    first = tmp_path / "bc"
    shutil.copytree(runs["bc"], first)
    (first / "ope.csv").unlink(missing_ok=True)
    both = (str(first), runs["iql"])
    for name in ("ope.csv", "evaluations.jsonl"):  # a folder of that name cannot be written
        (first / name).mkdir()
    options = ("--method", "fqe", "--select", str(tmp_path / "chosen"), *QUICK)
    status, out, err = evaluate(capsys, *both, *options)
    assert status == 2 and f"{first}/ope.csv" in err
    assert "BC trained on" in out
    says(out, f"{runs['iql']}/ope.csv")
    assert "choosing among 4 policies" in out and (tmp_path / "chosen/selection.csv").exists()
    status, out, err = evaluate(capsys, *both, "--episodes", "1")
    assert status == 2
    says(err, f"{first}/evaluations.jsonl")
    assert "BC trained on" in out and f"episode are in {runs['iql']}/evaluations.jsonl" in out


def test_a_run_that_is_named_twice_is_judged_once(runs, capsys, tmp_path):
    named = (runs["bc"], f"{runs['iql']}/../{Path(runs['iql']).name}/", runs["iql"])
    options = ("--method", "fqe", "--select", str(tmp_path / "chosen"), *QUICK)
    status, out, err = evaluate(capsys, *named, *options)
    assert status == 0, err
    assert "choosing among 4 policies" in out and out.count("IQL trained on") == 1


def test_choosing_by_fqe_on_data_with_cut_episodes(runs, capsys, tmp_path, monkeypatch):
    load = embedded.load

    def cut(name, seed=0):
        """The shortest episode stops without a terminal state."""
        dataset = load(name, seed)
        last = dataset.episode_ends[dataset.episode_lengths().argmin()] - 1
        ends = np.arange(len(dataset)) == last
        return replace(
            dataset,
            terminated=dataset.terminated & ~ends,
            truncated=dataset.truncated | ends,
        )

    monkeypatch.setattr(embedded, "load", cut)
    options = ("--method", "fqe", "--select", str(tmp_path / "chosen"), *QUICK)
    copy = shutil.copytree(runs["cql"], tmp_path / "cql")
    status, out, err = evaluate(capsys, runs["cql"], str(copy), *options)
    assert status == 0, err
    assert "of 20 episodes" in out and "left out" not in out and "choosing among 2" in out
    status, _, err = evaluate(capsys, runs["cql"], "--method", "is")
    assert status == 2 and "1 of 20 episodes" in err


def test_what_was_chosen_is_printed_where_it_cannot_be_written(runs, capsys):
    options = ("--method", "fqe", "--select", "/dev/null/chosen", *QUICK)
    status, out, err = evaluate(capsys, runs["bc"], *options)
    assert status == 2
    says(err, "/dev/null/chosen")
    assert "choosing among 2 policies" in out


@pytest.mark.parametrize(
    ("run", "options", "problem"),
    [
        *(
            (
                "bc",
                option.split(),
                f"{option.split()[0]}",
            )
            for option in (
                *("--data corerl/pendulum", "--policy act", "--epsilon 0", "--discount 0.9"),
                *("--horizon 5", "--leave-out-cut", "--behaviour auto", "--clip 0.9"),
                *("--kernel gaussian", "--bandwidth 1", "--interval t", "--level 0.95"),
                *("--bounds 0 1", "--upper 1", "--finite", "--fqe", "--select chosen"),
            )
        ),
        ("bc", ["--method", "fqee"], "fqee fqe"),
        ("bc", ["--method", "is"], "propensities"),
        ("bc", ["--method", "fqe", "--data", "corerl/cartpole"], "corerl/cartpole"),
        ("bc", ["--method", "fqe", "--horizon", "900", *QUICK], "episode 200 steps"),
        ("bc", ["--method", "fqe", "--discount", "1", *QUICK], "discount=1"),
        ("cql", ["--method", "is,cdf", "--interval", "t"], "interval=t cdf"),
        ("bc", ["--method", "fqe", "--fqe", "stepz=3"], "stepz"),
        ("bc", ["--method", "is", "--epsilon", "0.1"], "epsilon"),
        ("bc", ["--method", "is", "--policy", "sample"], "density"),
        ("cql", ["--method", "is", "--epsilon", "0"], "weights"),
    ],
)
def test_bad_input_is_refused_with_the_reason(runs, capsys, run, options, problem):
    status, _, err = evaluate(capsys, runs[run], *options)
    assert status == 2
    says(err, problem)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("steps=", "--fqe steps= 1000"),
        ("steps=10.5", "--fqe steps=10.5 1000"),
        ("steps=inf", "--fqe steps=inf 1000"),
        ("lr=abc", "--fqe lr=abc"),
        ("lr=1,steps=2", "--fqe lr=1,steps=2"),
        ("lr", "--fqe lr="),
        ("layer_norm=none", "--fqe layer_norm=none"),
        ("steps=0", "fqe.steps=0"),
        ("lr=-1", "fqe.lr=-1.0"),
        ("lr=nan", "fqe.lr=nan"),
        ("polyak=5", "fqe.polyak=5.0 0 1"),
        ("polyak=0", "fqe.polyak=0.0 0 1"),
        ("batch_size=0", "fqe.batch_size=0"),
        ("hidden_layers=-1", "fqe.hidden_layers=-1"),
        ("hidden_width=0", "fqe.hidden_width=0"),
        ("critics=0", "fqe.critics=0"),
    ],
)
def test_settings_of_fqe_are_checked_before_a_run_is_loaded(capsys, setting, problem):
    status, _, err = evaluate(capsys, "/no/run", "--method", "fqe", "--fqe", setting)
    assert status == 2
    says(err, problem, lines=1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--interval hoeffding --bounds 10 -10", "bounds=10 -10"),
        ("--interval hoeffding --bounds 5 5", "bounds=5 5"),
        ("--interval bernstein --bounds 0 inf", "bounds=0 inf"),
        (
            "--bounds 0 1",
            "interval=bootstrap",
        ),
    ],
)
def test_bounds_are_checked_before_a_run_is_loaded(capsys, options, problem):
    status, _, err = evaluate(capsys, "/no/run", "--method", "is", *options.split())
    assert status == 2
    says(err, problem)


def test_settings_of_fqe_have_their_field_s_type(runs, capsys):
    given = ("--fqe", "steps=2e1", "lr=1e-3", "layer_norm=False", "hidden_width=8", "batch_size=16")
    status, out, err = evaluate(capsys, runs["bc"], "--method", "fqe", *given)
    assert status == 0, err
    assert "fqe: 20 updates, batch 16, lr 0.001, hidden_width 8" in " ".join(out.split())


def test_a_policy_that_remembers_is_refused(tmp_path, capsys):
    own = {"width": 8, "layers": 1, "batch_size": 4, "context": 3}
    cfg = config(tmp_path, "bc")
    cell = train(type(cfg)(**(vars(cfg) | {"algo": dt.Config(**own)})))
    status, _, err = evaluate(capsys, str(cell), "--method", "fqe")
    assert status == 2
    says(err, "episode")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--method", "fqe", "--episodes", "3", "--risk"),
            "--episodes --risk",
        ),
        (("--rewards", "--method", "fqe"), "--rewards --method"),
        *(
            (("--method", *given.split()), problem)
            for given, problem in (
                ("is --policy sample", "corerl/cartpole epsilon"),
                (
                    "is --kernel uniform --bandwidth 0.01",
                    "--kernel --bandwidth",
                ),
                ("is --policy sample --bandwidth 0.01", "--bandwidth"),
                (
                    "fqe --clip 0.9 --behaviour fitted --kernel uniform",
                    "--behaviour --clip --kernel",
                ),
                ("is,snis --fqe steps=5", "snis --fqe"),
                ("is,sncdf --upper 9", "cdf --upper"),
            )
        ),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(runs, capsys, options, problem):
    status, _, err = evaluate(capsys, runs["cql"], *options)
    assert status == 2
    says(err, problem)


def test_no_simulator_is_needed(runs, capsys, monkeypatch):
    def missing(task):
        raise CorerlError("there is no simulator")

    monkeypatch.setattr(Task, "make_env", missing)
    status, out, err = evaluate(capsys, runs["bc"], "--method", "fqe", *QUICK)
    assert status == 0, err
    assert "fqe" in out
