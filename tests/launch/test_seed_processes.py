"""Seeds in processes of their own: what corerl prints about them, and how they stop."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from small import config

from corerl.launch import seed_processes, worker
from corerl.runs import files
from corerl.runs.directory import cell_directory
from corerl.runs.progress import Display
from corerl.training.stopping import Interrupted


class Child:
    """A process that is not there: at each look it does the next thing, and after them it has ended."""

    def __init__(self, *events, start=lambda: None):
        self._events, self.start, self.reported = list(events), start, []

    @property
    def exitcode(self):
        if not self._events:
            return worker.DONE
        return self._events.pop(0)()

    def is_alive(self):
        return True

    def terminate(self):
        self.reported.append(signal.SIGTERM)


def trained(cfg, monkeypatch, child: Child):
    """Trains seed 0 by this child."""
    context = SimpleNamespace(Process=lambda **_: child)
    monkeypatch.setattr(seed_processes.multiprocessing, "get_context", lambda _: context)
    with Display("BC", [[0]], 1, cfg.steps) as display:
        return seed_processes.train(cfg, [[0]], 1, display)


def publish(cfg, state: str, step: int, **more) -> None:
    folder = cell_directory(cfg) / "seeds-0"
    files.make_directory(folder)
    status = {"state": state, "step": step, "steps": cfg.steps, "seeds": [0], "updates_per_s": 9.0}
    files.write_json(folder / "status.json", status | more)


def now() -> dict:
    return {"updated": time.time(), "learning": True, "began_at": 20}


@pytest.mark.parametrize("age", [60.0, -60.0], ids=["of an earlier attempt", "its own"])
def test_the_reason_of_a_death_is_this_attempts(tmp_path, age):
    cfg = config(tmp_path, "bc")
    file = cell_directory(cfg) / "seeds-0" / "error.txt"
    file.parent.mkdir(parents=True)
    file.write_text("before")
    since = file.stat().st_mtime + age
    with open(tmp_path / "stderr", "w+", encoding="utf-8") as stderr:
        stderr.write("the reason\n")
        job = seed_processes.Job(cfg, [0])
        seed_processes._keep_reason(seed_processes.Child(None, job, since, stderr), 1)
    assert file.read_text() == ("the reason" if age > 0 else "before")


@pytest.mark.parametrize("before", [{}, {"updated": 1e9, "learning": True}])  # {}: by older code
def test_the_last_attempts_end_is_not_told_as_this_ones(tmp_path, monkeypatch, capsys, before):
    cfg = config(tmp_path, "bc")
    publish(cfg, "failed", 20, **before)
    child = Child(
        lambda: None,
        lambda: publish(cfg, "running", 20, **now()),
        lambda: publish(cfg, "done", 40, **now()),
    )
    assert trained(cfg, monkeypatch, child) == [(0, [0])]
    began, ended = capsys.readouterr().err.splitlines()
    assert began.endswith("from step 20") and "seeds-0" in began
    assert "step 40/40" in ended and ended.endswith("done")


def test_what_another_process_has_done_since_the_plan_is_told(tmp_path, monkeypatch, capsys):
    cfg = config(tmp_path, "bc")
    publish(cfg, "done", 40, updated=time.time() - 9, learning=True)
    trained(cfg, monkeypatch, Child())
    assert capsys.readouterr().err.rstrip().endswith("done")


def test_a_stop_while_a_child_starts_reaches_it(tmp_path, monkeypatch):
    child = Child(lambda: None, start=lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        trained(config(tmp_path, "bc"), monkeypatch, child)
    assert child.reported == [signal.SIGTERM]


def test_a_second_stop_is_not_told_as_saved(tmp_path, monkeypatch):
    def stop_twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt) as caught:
        trained(config(tmp_path, "bc"), monkeypatch, Child(lambda: None, start=stop_twice))
    assert caught.type is not Interrupted


def test_seeds_over_processes_train_from_a_thread(tmp_path, monkeypatch):
    ended = []
    thread = threading.Thread(
        target=lambda: ended.extend(trained(config(tmp_path, "bc"), monkeypatch, Child()))
    )
    thread.start()
    thread.join(timeout=60)
    assert ended == [(0, [0])]
