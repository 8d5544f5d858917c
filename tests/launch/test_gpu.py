"""`make gpu`, as far as it goes without one: every stage, what it writes, and that time ends it."""

import fcntl
import json
import threading
import time
from dataclasses import replace

import gpu
import gpu_page
import parallel_bench
import pytest
from wording import says

from corerl import algos
from corerl.bench.stopwatch import Case, Measured

TINY = {"hidden_width": 8, "batch_size": 8}
FACTS = {"gpu": "a card", "torch": "2.11.0", "python": "3.12.3", "corerl": "0.1", "git": "abc"}


def minutes(number: float) -> float:
    return time.monotonic() + 60 * number


def rate(algo: str, mode: str, seeds: int, rates: list[float], ran: str | None = None) -> dict:
    found = Measured(rates, ran or mode, 12.0, 3 * 2**20)
    case = Case(algo, {}, "cuda", mode, seeds)
    what = {"what": f"{algo} {mode} {seeds}", "case": case._asdict(), "rate": found.rate}
    return what | found._asdict()


def test_the_real_plan_is_of_all_algorithms_that_have_networks():
    plan = gpu.Plan(out=None)
    assert plan.names[:2] == ("iql", "rebrac")
    assert sorted((*plan.names, *gpu.WITHOUT_NETWORKS)) == algos.names()
    for name in plan.names:
        settings = gpu._quick(name, {})
        assert settings.get("random_steps", 0) <= 500
        assert json.loads(json.dumps(gpu._facts(Case(name, settings))))["algo"] == name


def test_a_case_that_cannot_run_keeps_no_other_from_it(tmp_path):
    wrong = Case("bc", {"hidden_width": "wide"}, size=1000)
    cases = [wrong, Case("bc", TINY, size=1000)]
    (_, problem), (_, measured) = parallel_bench.measured(
        [cases], 1, minutes(4), 1, tmp_path / "turn"
    )
    assert problem.startswith(("TypeError", "CorerlError"))
    assert measured.rate > 10 and measured.ran == "off"


def test_the_end_of_the_time_ends_a_measurement(tmp_path):
    start = time.monotonic()
    jobs = [[Case("bc", TINY)] * 2, [Case("iql", TINY)]]
    ended = list(parallel_bench.measured(jobs, 1, minutes(0), 2, tmp_path / "turn"))
    assert sorted(case.algo for case, _ in ended) == ["bc", "bc", "iql"]
    assert {reported for _, reported in ended} == {"out of time"}
    assert gpu._call(["false"], minutes(0)) == (124, "out of time")
    code, text = gpu._call(["sleep", "60"], minutes(0.02))
    assert code == 124 and text.endswith("out of time") and time.monotonic() - start < 30


def test_out_of_time_a_command_may_save(monkeypatch):
    saves = "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    code, text = gpu._call(["bash", "-c", saves], minutes(0.02))
    assert (code, text) == (124, "begun\nsaved\n\nout of time")
    monkeypatch.setattr(gpu, "SAVING", 1)
    code, text = gpu._call(["bash", "-c", "trap '' TERM; echo deaf; sleep 60"], minutes(0.02))
    assert (code, text) == (124, "deaf\n\nout of time")


def test_one_measures_while_none_starts_and_a_process_that_dies_gives_its_turn_on(tmp_path):
    starting, one, other = ((tmp_path / "turn").open("w") for _ in range(3))
    for file in (starting, one):
        fcntl.flock(file, fcntl.LOCK_SH)

    def waits(windows) -> threading.Thread:
        waiting = threading.Thread(target=next, args=(windows,), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        return waiting

    first = waits(parallel_bench.turns(2, one))  # which gives up its own share
    starting.close()  # as the system closes a dead process's files
    first.join(10)
    assert not first.is_alive()
    second = waits(parallel_bench.turns(1, other))
    one.close()
    second.join(10)
    assert not second.is_alive()
    other.close()


def test_the_last_stage_has_all_of_the_time_that_is_left(tmp_path, monkeypatch):
    given, start = {}, time.monotonic()
    for stage in gpu.STAGES:

        def reported(plan, until, found, stage=stage):
            given[stage] = round((until - start) / 60, 1)
            return []

        monkeypatch.setattr(gpu, f"_{stage}", reported)
    monkeypatch.setattr(gpu.provenance, "environment", lambda device: FACTS)
    gpu.run(gpu.dry(tmp_path), ["tests"], start + 600)
    gpu.run(gpu.dry(tmp_path), ["train", "bench"], start + 600)
    assert given == {"tests": 10.0, "bench": 6.0, "train": 10.0}


def test_a_stage_that_fails_is_told_and_the_others_have_their_turn(tmp_path, monkeypatch):
    def bench(plan, until, found):
        yield rate("iql", "graph", 10, [1.0])
        raise RuntimeError("no memory left")

    monkeypatch.setattr(gpu.provenance, "environment", lambda device: FACTS)
    monkeypatch.setattr(gpu, "_bench", bench)
    monkeypatch.setattr(gpu, "_call", lambda *_: (0, "fine"))
    assert gpu.run(gpu.dry(tmp_path), ["bench", "demo"], minutes(1)) == 1
    text = (tmp_path / "gpu.md").read_text()
    assert "RuntimeError: no memory left" in text and "| iql | graph | 10 |" in text
    assert "## Sweep=demo" in text
    monkeypatch.setattr(gpu, "_bench", lambda *_: [])
    assert gpu.run(gpu.dry(tmp_path), ["bench"], minutes(1)) == 0
    assert "no memory left" not in (tmp_path / "gpu.md").read_text()


def test_a_later_call_measures_what_no_call_has(tmp_path, monkeypatch):
    asked = []

    def measured(jobs, windows, until, workers, turn):
        asked.extend((case.algo, case.compile, case.seeds) for job in jobs for case in job)
        return [(case, "out of time") for job in jobs for case in job]

    monkeypatch.setattr(gpu.provenance, "environment", lambda device: FACTS)
    monkeypatch.setattr(parallel_bench, "measured", measured)
    plan = replace(gpu.dry(tmp_path), names=("iql", "sac"), modes=("graph", "off"))
    gpu.run(plan, ["bench"], minutes(1))
    names, modes = ("iql", "sac"), ("graph", "off")
    first = [(name, mode, seeds) for mode in modes for name in names for seeds in (2, 1)]
    assert asked == first
    gpu.Found(plan).add("bench", rate("iql", "graph", 2, [5.0]))
    gpu.Found(plan).add("bench", rate("sac", "off", 1, [5.0]))
    asked.clear()
    gpu.run(plan, ["bench"], minutes(1))
    assert asked == first[1:-1]
    text = (tmp_path / "gpu.md").read_text()
    assert text.count("| 5 |") == 2 and "iql graph 1 (out of time)" in text


def test_what_is_found_is_kept_for_a_later_call_on_the_same_machine_and_code(tmp_path, monkeypatch):
    monkeypatch.setattr(
        gpu.provenance, "environment", lambda device: FACTS | {"gpu": None, "cpu": "a CPU"}
    )
    plan = gpu.dry(tmp_path)
    found = gpu.Found(plan)
    found.add("bench", rate("iql", "graph", 10, [1.0]))
    found.add("bench", rate("iql", "graph", 10, [30_000.0, 20_000.0, 40_000.0]))
    again = gpu.Found(plan)
    again.add("bench", rate("rebrac", "graph", 10, [20_000.0], ran="compile"))
    assert [row["rate"] for row in again.content["bench"]] == [30_000, 20_000]
    text = (tmp_path / "gpu.md").read_text()
    assert "| iql | graph | 10 | 30,000 | 3,000 | 12 | 3 |" in text
    assert "| rebrac | graph: compile | 10 | 20,000 | 2,000 | 12 | 3 |" in text
    assert "IQL, ten seeds, batch 256: 3,000 updates/s of each seed, aim 2,500: reached" in text
    assert (
        "ReBRAC, ten seeds, batch 256: 2,000 updates/s of each seed, aim 2,500: **missed**" in text
    )
    written = {"gpu": None, "git": "abc-dirty"}  # where the page itself is in git
    monkeypatch.setattr(gpu.provenance, "environment", lambda device: FACTS | written)
    assert "bench" in gpu.Found(plan).content
    monkeypatch.setattr(gpu, "_code", lambda: "another")  # where an installed wheel has no revision
    assert "bench" not in gpu.Found(plan).content


def test_what_each_test_said_is_kept_and_a_later_call_runs_those_that_have_not_passed(
    tmp_path, monkeypatch
):
    plan, asked = gpu.dry(tmp_path), []
    monkeypatch.setattr(gpu.provenance, "environment", lambda device: FACTS)
    said = {
        "[iql]": (0, "1 passed in 3s"),
        "[sac]": (1, "assert 1 == 2\n1 failed in 3s"),
        "inputs_and_advances_state": (gpu.OUT_OF_TIME, "out of time"),
        "second_gpu": (0, "1 skipped in 3s"),
    }

    def call(command, until):
        assert command[1:4] == ["-P", "-m", "pytest"]
        (test,) = [test for test in said if command[-1].endswith(test)]
        asked.append(test)
        return said[test]

    monkeypatch.setattr(gpu, "_call", call)
    assert gpu.run(plan, ["tests"], minutes(1)) == 1
    assert asked == list(said)
    text = (tmp_path / "gpu.md").read_text()
    assert "1 passed, 1 failed" in text and "assert 1 == 2" in text
    assert "test of a recording (out of time); test of a second GPU (skipped)" in text
    said |= {"[sac]": said["[iql]"], "inputs_and_advances_state": said["[iql]"]}
    asked.clear()
    assert gpu.run(plan, ["tests"], minutes(1)) == 0
    assert asked == list(said)[1:]
    assert "3 passed, 0 failed" in (tmp_path / "gpu.md").read_text()


def test_the_training_stages_run_commands_and_read_what_they_leave(tmp_path, monkeypatch):
    plan = gpu.dry(tmp_path)

    def call(command, until):
        folder = plan.runs / plan.task / "iql-1" / "seeds-0-1"
        folder.mkdir(parents=True, exist_ok=True)
        status = {"state": "done", "step": 40, "steps": 40, "seeds": [0, 1], "updates_per_s": 9.0}
        (folder / "status.json").write_text(json.dumps(status | {"compile": "graph", "score": 7.5}))
        return 0, "fine"

    monkeypatch.setattr(gpu, "_call", call)
    assert gpu.run(plan, ["train", "demo"], minutes(1)) == 0
    text = (tmp_path / "gpu.md").read_text()
    assert "algo=iql seeds=2" in text and "sweep=demo" in text
    assert "done at 40 of 40, 2 seeds, 9 updates/s of each seed, ran as graph, score 7.5" in text


def test_a_page_of_nothing_says_where(tmp_path):
    assert gpu_page.page({"machine": FACTS | {"gpu": None, "cpu": "a CPU"}}).count("no GPU") == 1


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 2
    says(capsys.readouterr().err, "device=cuda")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_whole_of_it_dry(tmp_path):
    assert gpu.main(["--dry", "--out", str(tmp_path), "--minutes", "20"]) == 0
    text = (tmp_path / "gpu.md").read_text()
    assert text.count("| off |") == 4 and "Wrote" in text and text.count("done at") == 5
