import json
from pathlib import Path

import pytest
from trees import write_run
from wording import refused, says

from corerl.data.tasks import known_tasks, resolve
from corerl.report.load import load
from corerl.report.scorefiles import read_file, read_scores
from corerl.report.units import SUCCESS_TASKS

TASK = "d4rl/hopper-medium-v2"


def test_a_run_tree_is_read_in_full(tmp_path):
    write_run(tmp_path, TASK, "IQL", 60.0, seeds=(0, 1))
    write_run(tmp_path, TASK, "IQL", 60.0, seeds=(2, 3))
    write_run(tmp_path, "gym/Hopper-v5", "SAC", 30.0, normalised=False)
    results = load([tmp_path])
    iql = results.scores[results.scores["algorithm"] == "IQL"]
    assert len(iql) == 4 * 3
    last = iql[iql["step"] == 3000].set_index("seed")["score"]
    assert last.to_dict() == {0: 60.0, 1: 61.0, 2: 62.0, 3: 63.0}
    sac = results.scores[results.scores["algorithm"] == "SAC"]
    assert set(sac["unit"]) == {"raw"}
    assert sac["score"].max() == 320.0  # the column return
    assert len(results.environments) == 3
    assert results.runs["counted"].all()


def test_seeds_of_different_code_are_told(tmp_path):
    groups = [write_run(tmp_path, TASK, "IQL", seeds=(seed, seed + 1)) for seed in (0, 2)]
    groups += [write_run(tmp_path, TASK, "BC", seeds=(seed, seed + 1)) for seed in (0, 2)]
    groups += [write_run(tmp_path / "b", TASK, "CQL"), write_run(tmp_path, TASK, "CQL", seeds=(4,))]
    codes = ["old", "new", "own", "own", "old", "new"]
    for group, code in zip(groups, codes, strict=True):
        (group / "env.json").write_text(json.dumps({"code": code}))
    for note, name in zip(sorted(load([tmp_path]).notes), ("CQL", "IQL"), strict=True):
        says(note, f"{name} d4rl/hopper-medium-v2 code")


def test_a_seed_that_went_on_with_other_code_is_told(tmp_path):
    for name, code in (("IQL", ["old", "new"]), ("BC", ["own"])):
        group = write_run(tmp_path, TASK, name)
        (group / "env.json").write_text(json.dumps({"code": code}))
    (note,) = load([tmp_path]).notes
    says(note, "IQL code")
    says(note, "IQL code")


def test_what_is_not_pooled_needs_no_word_on_its_code(tmp_path):
    for config, code in (("aaaaaaaa", "old"), ("bbbbbbbb", "new")):
        group = write_run(tmp_path, TASK, "IQL", config=config, algo={"expectile": code})
        (group / "env.json").write_text(json.dumps({"code": code}))
    (note,) = load([tmp_path]).notes
    says(note, "expectile")


def test_runs_behind_links_are_read_once(tmp_path):
    kept = write_run(tmp_path / "disk", TASK, "IQL").parent
    own = write_run(tmp_path / "runs", TASK, "BC").parent
    (own.parent / kept.name).symlink_to(kept)
    (own / "again").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/disk").symlink_to(tmp_path / "disk")
    results = load([tmp_path / "runs"])
    assert sorted(results.runs["algorithm"]) == ["BC", "IQL"]
    (tmp_path / "all").symlink_to(tmp_path / "runs")
    assert len(load([tmp_path / "all"]).runs) == 2


def test_a_run_below_two_of_the_paths_is_read_once(tmp_path):
    group = write_run(tmp_path, TASK, "IQL")
    results = load([tmp_path, group.parent, group / ".." / group.name / "scores.csv"])
    assert results.scores.equals(load([tmp_path]).scores) and len(results.runs) == 1


def test_steps_of_a_run_that_goes_on_online_are_those_of_the_environment(tmp_path):
    both = {"phase": "both", "online": {"pretrain_steps": 2000}}
    write_run(tmp_path, TASK, "WSRL", algo=both)
    write_run(tmp_path, TASK, "IQL", algo=both | {"phase": "offline"})
    write_run(tmp_path, TASK, "RLPD", algo={"online": {"pretrain_steps": 0}})
    scores = load([tmp_path]).scores
    steps = {name: sorted(set(rows["step"])) for name, rows in scores.groupby("algorithm")}
    assert steps["WSRL"] == [-1000, 0, 1000]
    assert steps["IQL"] == steps["RLPD"] == [1000, 2000, 3000]


@pytest.mark.parametrize("path", [".", "..", "../.."])
def test_a_run_is_the_same_from_within(tmp_path, monkeypatch, path):
    both = {"phase": "both", "online": {"pretrain_steps": 2000}}
    group = write_run(tmp_path, TASK, "Cal-QL", algo=both)
    (group / "x").mkdir()
    monkeypatch.chdir(group if path == "." else group / "x")
    results = load([path])
    assert set(results.scores["pretrained"]) == {2000} and results.scores["step"].max() == 1000
    (settings,) = results.settings.values()
    assert settings["algo.phase"] == "both"


def test_the_steps_of_the_run_that_another_went_on_from_are_shown(tmp_path):
    group = write_run(tmp_path, TASK, "IQL", algo={"phase": "online"})
    facts = {"torch": "2.13.0", "pretrained": {"run": "runs/x", "steps": 20_000}}
    (group / "env.json").write_text(json.dumps(facts))
    scores = load([tmp_path]).scores
    assert set(scores["pretrained"]) == {20_000} and scores["step"].max() == 3000


def test_only_finished_seeds_count_and_the_rest_is_listed(tmp_path):
    write_run(tmp_path, TASK, "A", seeds=(0, 1, 2), diverged={1: 2000})
    write_run(tmp_path, TASK, "B", state="running", reached=2000)
    write_run(tmp_path, TASK, "C", state="failed", reached=1000, message="out of memory")
    write_run(tmp_path, TASK, "D", diverged={0: 500, 1: 500, 2: 500})
    results = load([tmp_path])
    assert set(zip(results.scores["algorithm"], results.scores["seed"], strict=True)) == {
        ("A", 0),
        ("A", 2),
    }
    out = results.runs[~results.runs["counted"]].set_index("algorithm")
    assert out["state"].to_dict() == {
        "A": "diverged",
        "B": "running",
        "C": "failed",
        "D": "diverged",
    }
    assert out["seeds"].to_dict() == {"A": "1", "B": "0-2", "C": "0-2", "D": "0-2"}
    assert out["step"].to_dict() == {"A": 2000, "B": 2000, "C": 1000, "D": 500}
    assert out.loc["C", "message"] == "out of memory"


def test_the_scores_of_a_run_named_by_their_file_are_judged_as_its_folder(tmp_path):
    files = [
        write_run(tmp_path, TASK, "A", seeds=(0, 1, 2), diverged={1: 3000}) / "scores.csv",
        write_run(tmp_path, TASK, "B", state="running", reached=2000) / "scores.csv",
    ]
    named, found = load(files), load([tmp_path])
    assert named.scores.equals(found.scores) and named.runs.equals(found.runs)
    assert set(named.scores["seed"]) == {0, 2} and named.settings == found.settings


def test_unfinished_counts_runs_but_never_diverged_seeds(tmp_path):
    write_run(tmp_path, TASK, "B", state="running", reached=2000, diverged={0: 2000})
    scores = load([tmp_path], unfinished=True).scores
    assert sorted(set(scores["seed"])) == [1, 2]


def test_a_nan_return_is_a_diverged_seed(tmp_path):
    file = write_run(tmp_path, TASK, "A") / "scores.csv"
    text = file.read_text()
    row = next(line for line in text.splitlines() if ",1,3000," in line)
    file.write_text(text.replace(row, f"{TASK},A,0a1b2c3d,1,3000,nan,nan,10,100,0"))
    results = load([tmp_path])
    assert sorted(set(results.scores["seed"])) == [0, 2]
    assert results.runs.set_index("state").loc["diverged", "step"] == 3000


def test_a_seed_that_stops_early_does_not_count(tmp_path):
    file = write_run(tmp_path, TASK, "A") / "scores.csv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if ",2,3000," not in line) + "\n")
    results = load([tmp_path])
    assert sorted(set(results.scores["seed"])) == [0, 1]
    assert "stopped early" in set(results.runs["state"])


def test_a_finished_run_whose_file_lost_its_last_evaluation_does_not_count(tmp_path):
    group = write_run(tmp_path, TASK, "A", reached=2000)
    status = json.loads((group / "status.json").read_text())
    write_run(tmp_path, TASK, "B")
    for evaluated, names in ((3000, {"B"}), (2000, {"A", "B"}), (None, {"A", "B"})):
        (group / "status.json").write_text(json.dumps(status | {"evaluated": evaluated}))
        results = load([tmp_path])
        assert set(results.scores["algorithm"]) == names
    (group / "status.json").write_text(json.dumps(status | {"evaluated": 3000}))
    lost = load([tmp_path]).runs.set_index("algorithm").loc["A"]
    assert (lost["state"], lost["step"], lost["counted"]) == ("stopped early", 2000, False)


def test_the_line_a_kill_cut_is_ignored_in_a_running_run_only(tmp_path):
    folder = write_run(tmp_path, TASK, "A", state="running", reached=2000)
    with (folder / "scores.csv").open("a") as file:
        file.write(f"{TASK},A,0a1b")
    assert load([tmp_path], unfinished=True).scores["step"].max() == 2000
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"state": "done"}))
    with refused("scores.csv 8 3 10"):
        load([tmp_path])


def test_without_a_status_a_run_is_finished_if_it_reached_its_steps(tmp_path):
    for name, reached in (("A", 3000), ("B", 2000)):
        (write_run(tmp_path, TASK, name, reached=reached) / "status.json").unlink()
    results = load([tmp_path])
    assert set(results.scores["algorithm"]) == {"A"}
    assert results.runs.set_index("algorithm").loc["B", "state"] == "unknown"


def test_configurations_of_one_label_are_split_by_what_differs(tmp_path):
    for config, expectile in (("aaaaaaaa", 0.7), ("bbbbbbbb", 0.9)):
        for task in (TASK, "d4rl/walker2d-medium-v2"):
            write_run(tmp_path, task, "IQL", config=config, algo={"expectile": expectile})
    write_run(tmp_path, TASK, "BC")
    results = load([tmp_path])
    names = {"IQL expectile=0.7", "IQL expectile=0.9", "BC"}
    assert set(results.scores["algorithm"]) == names
    says(results.notes[0], "expectile")


def test_a_label_names_no_setting_that_tells_nothing_more(tmp_path):
    for config, pairs in (("aaaaaaaa", 500), ("bbbbbbbb", 1000)):
        settings = {"preferences": {"pairs": pairs, "source": "script"}, "warmup": pairs // 2}
        write_run(tmp_path, TASK, "IPL", config=config, algo=settings)
    assert set(load([tmp_path]).scores["algorithm"]) == {"IPL warmup=250", "IPL warmup=500"}


def test_a_setting_is_named_by_the_parts_that_no_other_ends_in(tmp_path):
    for config, lr in (("aaaaaaaa", 1e-3), ("bbbbbbbb", 1e-4)):
        algo = {"lr": 3e-4, "reward": {"lr": lr}, "preferences": {"pairs": int(1 / lr)}}
        for seeds, task in (((0, 1), TASK), ((0,), f"{TASK}x")):
            write_run(tmp_path, task, "IPL", config=config, algo=algo, seeds=seeds)
    extra = {"lr": 3e-4, "reward": {"lr": 1e-3}, "preferences": {"pairs": 10_000}}
    write_run(tmp_path, TASK, "IPL", config="cccccccc", algo=extra, seeds=(0, 1))
    assert set(load([tmp_path]).scores["algorithm"]) == {
        "IPL pairs=1000 reward.lr=0.001",
        "IPL pairs=10000 reward.lr=0.001",
        "IPL pairs=10000 reward.lr=0.0001",
    }


def test_a_folder_with_scores_alone_is_a_score_file(tmp_path):
    for name in ("one", "two/deeper"):
        (tmp_path / name).mkdir(parents=True)
        text = f"algorithm,task,seed,step,score\nA,{name[:3]}/x,0,1000,1.5\n"
        (tmp_path / name / "scores.csv").write_text(text)
        (tmp_path / name / "README.md").write_text("words")
    assert set(load([tmp_path]).scores["task"]) == {"one/x", "two/x"}


def test_the_scores_of_a_report_are_no_runs_beside_those_that_it_was_made_from(tmp_path, report):
    write_run(tmp_path / "runs", TASK, "IQL")
    before = load([tmp_path / "runs"]).scores
    _, out, _, _ = report(tmp_path / "runs")
    assert load([out]).scores["score"].tolist() == [50.0, 51.0, 52.0]  # the last ones
    out.rename(tmp_path / "report")
    for path in (tmp_path / "report").iterdir():
        path.rename(tmp_path / "runs" / (path.name if path.is_file() else "tables"))
    assert load([tmp_path / "runs"]).scores.equals(before)


@pytest.mark.parametrize(
    "name", ["demo", "regenerated", "preferences", "sac", "offline_core", "neorl2"]
)
def test_committed_results_are_read(name):
    folder = Path(__file__).parents[2] / "results/reproduced" / name
    scores = load([folder]).scores
    assert len(scores) == len((folder / "scores.csv").read_text().splitlines()) - 1


def test_units_are_those_of_the_tasks(tmp_path):
    known = [task for task in known_tasks() if not task.startswith("d4rl/antmaze-")]
    for task in known:
        assert task.startswith(SUCCESS_TASKS) == resolve(task).scored_by_success
    for name in (task for task in known_tasks() if task.startswith("d4rl/antmaze-")):
        assert resolve(name).reference == (0.0, 1.0)  # a return of 1 is a solved episode


def test_the_unit_is_said_or_seen(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(
        "algorithm,task,seed,score,success,unit\n"
        "A,x/a,0,80,0.8,\nA,x/a,1,100,1.0,\nA,x/b,0,80,0.8,\nA,x/b,1,99,1.0,\n"
        "A,x/c,0,80,,success\nA,ogbench/d,0,80,,\n"
    )
    units = load([file]).scores.groupby("task")["unit"].first()
    expected = {"x/a": "success", "x/b": "normalised", "x/c": "success", "ogbench/d": "success"}
    assert units.to_dict() == expected


def test_a_row_that_says_raw_counts_its_return(tmp_path):
    text = "algorithm,task,seed,score,return,unit\nA,x/t,0,66.3,2100,raw\nA,x/t,1,66.3,2100,\n"
    (tmp_path / "a.csv").write_text(text)
    found = load([tmp_path / "a.csv"]).scores
    assert found[["unit", "score"]].to_numpy().tolist() == [["raw", 2100], ["normalised", 66.3]]


def test_steps_tell_runs_apart_also_where_a_part_has_steps_of_its_own(tmp_path):
    for config, steps in (("aaaaaaaa", 1000), ("bbbbbbbb", 2000)):
        algo = {"preferences": {"values": {"steps": 7}}}
        write_run(tmp_path, TASK, "IPL", config=config, algo=algo, steps=steps)
    assert set(load([tmp_path]).scores["algorithm"]) == {"IPL steps=1000", "IPL steps=2000"}


def test_a_task_has_one_unit_over_all_files(tmp_path):
    """A seed of 0 and 0 solved says nothing; every seed on a CPU is a file."""

    def unit(*rows: str) -> str:
        for i, row in enumerate(rows):
            text = f"algorithm,task,seed,score,success,unit\nA,x/a,{i},{row}\n"
            (tmp_path / f"{i}.csv").write_text(text)
        found = load([tmp_path / f"{i}.csv" for i in range(len(rows))]).scores["unit"]
        return " ".join(found.unique())

    assert unit("0,0,", "25,0,", "0,0,") == "normalised"
    assert unit("0,0,", "25,0.25,", "80,0.8,") == "success"
    assert unit("25,0.25,", "80,0.8,", "80,0.9,") == "normalised"
    assert unit("0,0,", "0,0,") == unit("0,,", "5,,") == "normalised"
    assert unit("0,0,", "40,,success") == "success"
    assert unit("0,0,normalised", "25,0.25,") == "normalised success"  # a file says otherwise


def test_a_task_of_one_configuration_without_the_setting_keeps_the_label(tmp_path):
    for config, pairs in (("aaaaaaaa", 500), ("bbbbbbbb", 1000)):
        write_run(tmp_path, TASK, "IPL", config=config, algo={"pairs": pairs})
    write_run(tmp_path, "d4rl/walker2d-medium-v2", "IPL", config="cccccccc", algo={"pairs": None})
    write_run(tmp_path, "d4rl/walker2d-expert-v2", "IPL", config="dddddddd", algo={"pairs": 500})
    scores = load([tmp_path]).scores
    assert scores.groupby("task")["algorithm"].unique().map(sorted).to_dict() == {
        TASK: ["IPL pairs=1000", "IPL pairs=500"],
        "d4rl/walker2d-medium-v2": ["IPL"],
        "d4rl/walker2d-expert-v2": ["IPL pairs=500"],
    }


def test_configurations_without_a_readable_difference_are_split_by_hash(tmp_path):
    for config in ("aaaaaaaa", "bbbbbbbb"):
        write_run(tmp_path, TASK, "IQL", config=config)
    assert set(load([tmp_path]).scores["algorithm"]) == {"IQL [aaaaaaaa]", "IQL [bbbbbbbb]"}


def score_file(path: Path, config: str, tasks: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"IQL,{task},{seed},1000,1.5,{config}{task[-1]}\n" for task in tasks for seed in (0, 1)]
    path.write_text("algorithm,task,seed,step,score,config\n" + "".join(rows), encoding="utf-8")
    return path


def test_score_files_with_configurations_of_their_own_are_split_by_file(tmp_path):
    tasks = ["x/a", "x/b"]
    files = [score_file(tmp_path / n / "scores.csv", n, tasks) for n in ("mine", "theirs")]
    results = load(files)
    found = results.scores.groupby("algorithm")["task"].unique().map(list).to_dict()
    assert found == {"IQL (mine)": tasks, "IQL (theirs)": tasks}
    says(results.notes[0], "file")
    assert len(results.notes) == 1
    plain = [score_file(tmp_path / f"{n}.csv", n, tasks) for n in ("old", "new")]
    assert set(load(plain).scores["algorithm"]) == {"IQL (old)", "IQL (new)"}
    assert set(load(files[:1]).scores["algorithm"]) == {"IQL"}
    apart = [score_file(tmp_path / f"{n}.csv", n, [f"x/{n}"]) for n in ("c", "d")]
    assert set(load(apart).scores["algorithm"]) == {"IQL"}, "their tasks tell them apart"


@pytest.mark.parametrize("step", [1000, 2000])
@pytest.mark.parametrize("config", ["", "0a1b2c3d"])
def test_the_same_seeds_in_two_score_files_are_two_rows(tmp_path, step, config):
    """Rows of other steps would pass as evaluations of one run, of which the last counts."""
    files = [tmp_path / f"{name}.csv" for name in ("mine", "theirs")]
    for file, at, score in zip(files, (1000, step), (70, 30), strict=True):
        rows = [f"IQL,x/a,{seed},{at},{score},{config}\n" for seed in range(5)]
        file.write_text("algorithm,task,seed,step,score,config\n" + "".join(rows))
    results = load(files)
    means = results.scores.groupby("algorithm")["score"].mean().to_dict()
    assert means == {"IQL (mine)": 70.0, "IQL (theirs)": 30.0}
    (note,) = results.notes
    says(note, "seeds")


def test_seeds_that_are_pooled_over_score_files_are_told(tmp_path):
    for name, seed, config in (("a", 0, ""), ("b", 1, ""), ("c", 0, "one"), ("d", 1, "one")):
        text = f"algorithm,task,seed,score,config\nIQL,x/a,{seed},1,{config}\n"
        (tmp_path / f"{name}.csv").write_text(text)
    results = load([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert set(results.scores["algorithm"]) == {"IQL"} and len(results.notes) == 1
    says(results.notes[0], "IQL seeds")
    assert not load([tmp_path / "a.csv"]).notes
    assert not load([tmp_path / "c.csv", tmp_path / "d.csv"]).notes, "they say that they are one"
    write_run(tmp_path / "runs", TASK, "IQL", seeds=(0, 1))
    write_run(tmp_path / "runs", TASK, "IQL", seeds=(2, 3))
    assert not load([tmp_path / "runs"]).notes


def test_a_score_file_beside_runs_is_named_and_the_runs_keep_their_label(tmp_path):
    write_run(tmp_path / "runs", TASK, "IQL")
    write_run(tmp_path / "runs", "d4rl/walker2d-medium-v2", "IQL")
    old = score_file(tmp_path / "old" / "scores.csv", "old", [TASK])
    scores = load([tmp_path / "runs", old]).scores
    assert scores.groupby("algorithm")["task"].nunique().to_dict() == {"IQL": 2, "IQL (old)": 1}


def test_the_same_seed_twice_is_refused(tmp_path):
    for tree in ("one", "two"):
        write_run(tmp_path / tree, TASK, "IQL")
    with refused("IQL d4rl/hopper-medium-v2 0"):
        load([tmp_path])


def test_nothing_to_report_is_one_sentence(tmp_path):
    with refused("runs"):
        load([tmp_path])
    with refused("absent"):
        load([tmp_path / "absent"])
    write_run(tmp_path, TASK, "IQL", state="running", reached=1000)
    with refused("1 --unfinished"):
        load([tmp_path])


def test_a_run_that_failed_before_its_first_score_is_listed(tmp_path):
    write_run(tmp_path, TASK, "IQL")
    failed = write_run(tmp_path, TASK, "CQL", state="failed", message="no data")
    (failed / "scores.csv").unlink()
    runs = load([tmp_path]).runs.set_index("algorithm")
    assert runs.loc["CQL", ["state", "task", "message"]].tolist() == ["failed", TASK, "no data"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("algorithm,task,seed\nA,t,0\n", "score return"),
        ("algorithm,task,score\nA,t,0\n", "seed"),
        ("algorithm,task,seed,score\nA,t,0,1\nA,t,1,x1\n", "3 x1"),
        ("algorithm,task,seed,score\nA,t,0.5,1\n", "2 0.5"),
        ("algorithm,task,seed,score\nA,t,0,1\nA,t,1\n", "3 4"),
        ("algorithm,task,seed,score\nA,t,0,1\nA,t,1,2,3\n", "3 5 4"),
        ("algorithm,task,seed,score\nA,t,0,1\nA,t,1,nan\n", "3"),
        ("algorithm,task,seed,score\nA,t,0,1\nA,t,1,inf\n", "3"),
        ("algorithm,task,seed,score\n,t,0,1\n", "2"),
        (
            "algorithm,task,seed,score,unit\nA,t,0,1,\nA,t,1,1,percent\n",
            "3 percent",
        ),
        ("algorithm,task,seed,score\nA,../t,0,1\n", "2 ../t"),
        ("algorithm,task,seed,score\nA,d4rl/a/../..,0,1\n", "2"),
        ("algorithm,task,seed,score\nA,/etc/x,0,1\n", "2"),
        ("algorithm,task,seed,score\nA,t\0x,0,1\n", "2"),
        (
            "algorithm,task,seed,score\nA,t,0,1\n" + "A" * 201 + ",t,0,1\n",
            "3 200",
        ),
        ("algorithm,task,seed,score\n" + "A" * 200_000 + ",t,0,1\n", "field"),
        (
            "algorithm,task,seed,score,return\nA,t,0,1,2\nA,t,1,,2\n",
            "3",
        ),
    ],
)
def test_a_corrupt_file_is_named_with_its_row(tmp_path, text, message):
    file = tmp_path / "mine.csv"
    file.write_text(text)
    with refused(message) as error:
        read_scores(file)
    assert str(file) in str(error.value)


def test_binary_rubbish_is_refused(tmp_path):
    for name in ("a.csv", "a.npz", "a.json.gz", "a.txt"):
        (tmp_path / name).write_bytes(b"\x80\x02\xff\x00rubbish")
        with refused(name):
            read_file(tmp_path / name)


@pytest.mark.parametrize("name", ["status.json", "env.json", "../config.yaml"])
def test_corrupt_neighbours_are_named(tmp_path, name):
    folder = write_run(tmp_path, TASK, "IQL")
    (folder / name).write_text("{ half a")
    with refused(name.removeprefix("../")):
        load([tmp_path])


def test_blank_lines_at_the_end_are_no_damage_but_those_between_are(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("algorithm,task,seed,score\nA,t,0,1\n\n  \n")
    assert len(read_scores(file)) == 1
    file.write_text("algorithm,task,seed,score\n\nA,t,0,1\n")
    with refused("2 0"):
        read_scores(file)


def test_a_tidy_file_may_leave_out_steps(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("task, algorithm, seed, score\nd4rl/x, A, 0, 1.5\nd4rl/x, A, 1, -2\n")
    table = load([file]).scores
    assert table["score"].tolist() == [1.5, -2.0]
    assert set(table["unit"]) == {"normalised"}
