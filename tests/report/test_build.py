import argparse
import json
import math
import re
import shlex
from concurrent.futures import ProcessPoolExecutor
from html.parser import HTMLParser
from itertools import product
from urllib.parse import unquote

import matplotlib.image
import pandas as pd
import pytest
from trees import sections, write_run
from wording import refused, says

from corerl.report import build, drawing, figures, files, rewards, run_tables
from corerl.report.cli import add_arguments
from corerl.report.load import load
from corerl.report.options import Options
from corerl.report.published import COLUMNS

TASKS = ("d4rl/hopper-medium-v2", "d4rl/walker2d-medium-v2")


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "runs"
    for task in TASKS:
        write_run(root, task, "IQL", 60.0)
        write_run(root, task, "TD3+BC", 50.0)
    write_run(root, TASKS[0], "CQL", state="failed", reached=1000, message="killed & <lost>")
    write_run(root, "gym/Hopper-v5", "SAC", 300.0, normalised=False)
    return root


def test_everything_is_written(report, tree):
    status, out, text, errors = report(tree, "--published", "d4rl_offline", "--title", "My runs")
    assert status == 0
    assert {p.name for p in (out / "d4rl").glob("*.svg")} == {
        "aggregates.svg",
        "profiles.svg",
        "improvement.svg",
        "efficiency.svg",
        "tasks.svg",
    }
    assert {p.name for p in (out / "gym-raw").glob("*.png")} == {"tasks.png"}
    for suffix in ("txt", "md", "tex", "csv"):
        assert (out / "d4rl" / f"scores.{suffix}").read_text()
        assert (out / "d4rl" / f"published-td3-bc.{suffix}").read_text()
    assert "IQM [95% CI]" in text and "61.0 ± 1.0" in text
    says(errors, "CQL d4rl/hopper-medium-v2 seeds 0-2")
    assert not [p for p in out.rglob("*") if p.name.startswith(".")]


def test_figures_say_the_steps_behind_them_best_and_the_note(report, tree, monkeypatch):
    feet, render = {}, drawing.render

    def kept(draw, name, foot):
        feet[name] = foot
        return render(draw, name, foot)

    monkeypatch.setattr(drawing, "render", kept)
    _, out, _, errors = report(tree, "--note", "十 & <less>")
    assert set(feet.values()) == {"3k steps; 十 & <less>"}
    assert errors.splitlines()[0] == "十 & <less>"
    says(errors, "十")
    assert '<p class="note">十 &amp; &lt;less&gt;</p>' in (out / "index.html").read_text()
    report(tree, "--best")
    assert feet["tasks"] == "3k steps"
    says(feet["aggregates"], "3k steps", lines=0)
    write_run(tree, TASKS[0], "BC", steps=2000)
    report(tree)
    assert feet["aggregates"] == ""


def test_a_second_process_draws_many_curves_as_the_first_would(report, tree, monkeypatch):
    _, out, *_ = report(tree)
    alone = {path: path.read_bytes() for path in out.rglob("tasks.*")}
    sent = []

    class Second(ProcessPoolExecutor):
        def submit(self, call, *job):
            sent.append(job[1])
            return super().submit(call, *job)

    monkeypatch.setattr(build, "MANY", 11)  # the other section has 9 evaluations
    monkeypatch.setattr(build, "ProcessPoolExecutor", Second)
    status, *_ = report(tree)
    assert (status, sent, len(alone)) == (0, ["tasks"], 4)
    assert {path: path.read_bytes() for path in alone} == alone


def test_a_second_report_leaves_nothing_of_the_first(report, tree, tmp_path):
    _, out, *_ = report(tree, "--published", "d4rl_offline")
    (out / "d4rl/published-mine.tex").write_text("a user's own")
    (tmp_path / "outside.txt").write_text("a user's own")
    with (out / "files.txt").open("a") as file:
        file.write("../outside.txt\n\n")
    write_run(tmp_path / "one", TASKS[0], "BC", seeds=(0,))
    report(tmp_path / "one")
    left = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert left - {"d4rl/published-mine.tex", "files.txt"} == set(
        (out / "files.txt").read_text().split()
    )
    assert "d4rl/published-td3-bc.tex" not in left and "d4rl/improvement.png" not in left
    assert "d4rl/scores.tex" in left and "d4rl/published-mine.tex" in left
    assert not (out / "gym-raw").exists() and (tmp_path / "outside.txt").exists()


def test_a_second_report_leaves_nothing_of_a_first_that_was_killed(
    report, tree, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def killed(path, content):
        if path.suffix == ".png":
            raise Killed
        return files.write(path, content)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(build, "write", killed)
        report(tree, "--published", "d4rl_offline")
    (table,) = tmp_path.rglob("published-td3-bc.tex")
    write_run(tmp_path / "one", TASKS[0], "BC", seeds=(0,))
    _, out, *_ = report(tmp_path / "one")
    assert table.is_relative_to(out) and not table.exists()
    left = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert left - {"files.txt"} == set((out / "files.txt").read_text().split())


def test_a_table_of_which_nothing_fits_is_told(report, tree, tmp_path):
    assert "d4rl_offline" not in report(tree, "--published", "d4rl_offline")[3]
    write_run(tmp_path / "other", "gym/Hopper-v5", "SAC", normalised=False)
    says(report(tmp_path / "other", "--published", "d4rl_offline")[3], "d4rl_offline")


def test_reports_that_lie_among_runs_are_not_read(report, tree, tmp_path):
    _, out, *_ = report(tree)
    inside = out.rename(tree / "report")
    status, again, *_ = report(tree)
    assert status == 0
    assert (again / "scores.csv").read_text() == (inside / "scores.csv").read_text()
    assert report(inside)[0] == 0  # asked for by name, its scores are score files


def test_the_page_says_how_updates_ran(report, tmp_path):
    ran = "compile (CUDA graph capture failed: a reason)"
    write_run(tmp_path / "runs", TASKS[0], "IQL", ran=ran)
    write_run(tmp_path / "runs", TASKS[0], "CQL")  # from before it was known
    _, out, _, _ = report(tmp_path / "runs")
    page = (out / "index.html").read_text()
    rows = re.search(r'<h2 id="runs">.*?</section>', page, re.S)[0]
    assert "updates ran" in rows and rows.count(f"<td>{ran}</td>") == 1
    assert f'"compile":"{ran}"' in page.replace('": "', '":"')


def test_a_number_leads_to_its_own_runs_not_to_a_seed_that_diverged(report, tmp_path):
    write_run(tmp_path / "runs", TASKS[0], "IQL", diverged={2: 1500})
    _, out, _, _ = report(tmp_path / "runs")
    (text,) = re.findall(r'id="data">(.*?)</script>', (out / "index.html").read_text(), re.S)
    (group,) = json.loads(text)["groups"]
    assert (group["state"], group["steps"]) == ("done", "3,000")


@pytest.mark.parametrize("every", [2500, 1500])  # no step of the other task's; one
def test_tasks_without_common_steps_have_no_curve_of_their_aggregate(report, tmp_path, every):
    root = tmp_path / "runs"
    write_run(root, TASKS[0], "IQL")
    write_run(root, TASKS[1], "IQL", steps=2 * every, every=every)
    _, out, _, errors = report(root)
    assert (out / "d4rl" / "tasks.png").exists() and "Error" not in errors
    assert not (out / "d4rl" / "efficiency.png").exists()


def test_the_scores_it_writes_make_the_same_report(report, tree, tmp_path):
    _, out, first, _ = report(tree)
    (out / "scores.csv").rename(tmp_path / "scores.csv")
    _, _, second, _ = report(tmp_path / "scores.csv")
    assert first.split("Wrote")[0] == second.split("Wrote")[0]


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [v for k, v in attrs.items() if k in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br", "path", "use", "rect", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in ("path", "use", "rect"):
            assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else(report, tree):
    _, out, _, _ = report(tree, "--published", "d4rl_offline")
    text = (out / "index.html").read_text()
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    inner = {link[1:] for link in page.links if link.startswith("#")}
    assert inner <= set(page.ids)
    for link in page.links:  # to runs, and to pictures for readers without a script
        assert link.startswith("#") or (out / unquote(link)).exists()
    urls = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert urls <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # XML names
    assert "@import" not in text and "url(http" not in text
    assert (
        drawing.INK not in text.split("</style>")[1].split("<script")[0]
    )  # figures follow the page's colour


def test_the_page_holds_what_a_reader_needs(report, tree):
    _, out, _, _ = report(tree, "--baseline", "IQL")
    text = (out / "index.html").read_text()
    assert "killed &amp; &lt;lost&gt;" in text
    assert '<th scope="row">torch</th><td>2.13.0</td>' in text
    assert "--baseline IQL" in text
    says(text, f"{tree}")
    assert "n = 3" in text and "P(TD3+BC &gt; IQL)" in text


def test_the_command_it_names_has_every_option():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = [
        "a b",
        "c",
        "--out",
        "o",
        "--published",
        "x",
        "y",
        "--metric",
        "mean",
        "--baseline",
        "TD3+BC",
    ]
    words += [
        "--replicates",
        "7",
        "--title",
        "It's",
        "--note",
        "1/100 of 'it'",
        "--best",
        "--unequal",
        "--risk",
        "--rliable",
        "--unfinished",
    ]
    args, usual = parser.parse_args(words), parser.parse_args(["a"])
    assert not [name for name in vars(args) if getattr(args, name) == getattr(usual, name)]
    for given in (args, usual):
        assert parser.parse_args(shlex.split(build._command(given))[2:]) == given


def test_a_figure_that_fails_loses_nothing_else(report, tree, monkeypatch):
    def fail(*_):
        raise ValueError("no ink")

    monkeypatch.setattr(figures, "profile", fail)
    status, out, _, errors = report(tree)
    assert status == 1
    says(errors, "ValueError")
    assert (out / "index.html").exists() and (out / "d4rl" / "aggregates.png").exists()


def test_figures_are_pictures_of_some_size(report, tree):
    _, out, _, _ = report(tree)
    for file in out.rglob("*.png"):
        picture = matplotlib.image.imread(file)
        assert min(picture.shape[:2]) > 200 and picture[..., :3].std() > 0.02


def test_one_algorithm_one_task_one_seed_one_step(report, tmp_path):
    file = tmp_path / "one.csv"
    file.write_text("algorithm,task,seed,score\nA,d4rl/x,0,12.5\n")
    status, out, text, _ = report(file)
    assert status == 0
    assert "12.5 [n/a]" in text
    says(text, "seed")
    assert (out / "index.html").exists()


def test_best_is_named_wherever_it_is_used(report, tree):
    (cell,) = {path.parent for path in tree.rglob("walker2d-medium-v2/iql-*/config.yaml")}
    (cell / "reward_distances.csv").write_text("seed,data,starc,rank,linear\n0,x,0.5,0.5,0.5\n")
    _, out, text, _ = report(tree, "--best", "--published", "d4rl_offline")
    assert "last evaluation" not in text
    says((out / "d4rl/improvement.txt").read_text(), "best")
    assert "best score" in (out / "d4rl/rewards.txt").read_text()
    page = (out / "index.html").read_text()
    says(page, "best")
    row = re.search(r"<tr[^>]*>(?=<th[^>]*>walker2d-medium-v2: IQL, over x<)", page)[0]
    assert 'data-task="d4rl/walker2d-medium-v2"' in row and "IQL" in row  # the switches reach it


def test_a_correlation_that_a_seed_does_not_have_is_not_counted():
    cell = rewards._cell(pd.Series([0.5, math.nan, math.nan]))
    assert (cell.value, cell.n) == (0.5, "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--baseline", "IQLL"), "IQL"),
        (("--published", "d4rl"), "d4rl_offline"),
    ],
)
def test_wrong_names_get_a_sentence(report, tree, words, message):
    with refused(message):
        report(tree, *words)


def test_names_of_others_stay_in_the_folder_and_out_of_the_page(report, tmp_path):
    file = tmp_path / "hostile.csv"
    names = ("..\\x/y", "a b/<b>$x^{$</b>", "a-b/z", "</script><script>alert(1)/t")
    rows = [f"=A|*b*,{name},{seed},{seed}" for name in names for seed in (0, 1)]
    file.write_text("algorithm,task,seed,score\n" + "\n".join(rows) + "\n")
    before = {path for path in tmp_path.rglob("*")}
    status, out, _, _ = report(file)
    assert status == 0
    made = {path for path in tmp_path.rglob("*")} - before
    assert all(path.is_relative_to(out) for path in made)
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {"x", "a-b", "a-b-2", "scores"}
    text = (out / "index.html").read_text()
    assert "<b>$x" not in text and "<script>alert" not in text
    assert "'=A|*b*" in (out / "scores.csv").read_text()
    (out / "scores.csv").rename(tmp_path / "again.csv")
    _, _, printed, _ = report(tmp_path / "again.csv")
    assert " =A|*b*" in printed


def test_a_folder_that_cannot_be_written_is_said_before_any_work(report, tree, tmp_path):
    (tmp_path / "out").write_text("a file")
    with refused("report"):
        report(tree)


def test_no_file_is_written_over_that_no_report_wrote(report, tmp_path):
    mine = tmp_path / "out" / "scores.csv"
    mine.parent.mkdir()
    mine.write_text("algorithm,task,seed,step,score\nA,x,0,10,1\nA,x,0,20,2\n")
    before = mine.read_bytes()
    with refused(f"{mine}"):
        report(mine)
    assert [path.name for path in mine.parent.iterdir()] == ["scores.csv"]
    assert mine.read_bytes() == before


def test_what_counts_unfinished_and_what_diverged_is_noted(tmp_path):
    write_run(tmp_path, "d4rl/x", "A", seeds=(0, 1), diverged={1: 2000})
    write_run(tmp_path, "d4rl/x", "B", state="running", reached=2000)
    early, diverged = build._unfinished_notes(load([tmp_path], unfinished=True).runs)
    running = "B on d4rl/x, seeds 0-2 (running, step 2,000 of 3,000)."
    assert running in early
    says(diverged, "A d4rl/x 1 diverged")
    same, left_out = build._unfinished_notes(load([tmp_path]).runs)
    assert same == diverged and running in left_out != early


def test_settings_that_two_algorithms_have_unequally_on_one_task_are_listed(tmp_path):
    write_run(tmp_path, "d4rl/x", "IQL", algo={"lr": 1e-3, "tau": 0.1, "beta": 3})
    write_run(tmp_path, "d4rl/x", "BC", algo={"lr": 3e-4, "tau": 0.1})
    write_run(tmp_path, "d4rl/y", "IQL", algo={"lr": 1e-4, "tau": 0.2, "beta": 4})
    head, rows = run_tables._differing(load([tmp_path]))
    assert (head, rows) == (["setting", "BC", "IQL"], [("lr", "0.0003", "0.001, 0.0001")])


def test_sample_efficiency_is_of_the_chosen_metric_over_the_tasks_that_all_ran(
    tmp_path, monkeypatch
):
    for name, task in product(("IQL", "BC"), "wxyz"):
        level = {"w": 60.0, "x": 10.0, "y": 50.0, "z": 99.0}[task]
        if (name, task) != ("BC", "z"):
            write_run(tmp_path, f"d4rl/{task}", name, level)
    options, nothing = Options("mean", replicates=10), pd.DataFrame(columns=COLUMNS)
    (section,) = sections(load([tmp_path]), nothing, options)
    monkeypatch.setattr(figures, "efficiency", lambda table, *_: table)
    table = build._aggregate_plots(section, {}, options)["efficiency"][1]()
    own = section.history[section.history["task"] != "d4rl/z"]
    means = own.groupby(["algorithm", "step"])["score"].mean()
    found = table.set_index(["algorithm", "step"])["value"]
    assert found.to_dict() == pytest.approx(means.to_dict())
