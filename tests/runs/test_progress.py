"""What a person sees while seeds train, at 80 columns and without a terminal."""

import io

import pytest
from rich.console import Console
from wording import says

from corerl.runs.progress import Display, duration


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def status(seed: int, step: int, state: str = "running", **other) -> dict:
    plain = {"updates_per_s": 182.4, "score": 85.12, "return": None, "waiting_for": ""}
    where = {"seeds": [seed], "state": state, "step": step, "steps": 10_000, "learning": True}
    return where | plain | other


@pytest.fixture
def clock() -> Clock:
    return Clock()


def display(clock: Clock, seeds: int = 6, at_once: int = 2, **other) -> Display:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    title = "IQL corerl/mujoco/halfcheetah-medium-replay-regenerated"
    groups = [[seed] for seed in range(seeds)]
    return Display(title, groups, at_once, 10_000, console=console, clock=clock, **other)


def seen(shown: Display) -> list[str]:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(shown.lines())
    return console.file.getvalue().splitlines()


def test_before_anything_is_known_it_says_what_it_waits_for(clock):
    clock.now = 0
    shown = display(clock, place="cell 2 of 9")
    clock.now = 3
    head, first, second, queued = seen(shown)
    assert "cell 2 of 9" in head and "0:00:03" in head
    assert "seed 0" in first and "starting" in first and "seed 1" in second
    assert queued.strip() == "queued    seeds 2-5"


def test_rate_eta_and_score_fit_80_columns(clock):
    shown = display(clock, place="cell 12 of 90")
    shown.show("", status(0, 10_000, "done", score=90.0))
    shown.show("", status(1, 10_000, "done", score=80.0))
    shown.show("", status(2, 4_000))
    shown.show("", status(3, 9_999, updates_per_s=7.25, score=None, **{"return": -12345.6}))
    lines = seen(shown)
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].endswith("cell 12 of 90   0:00:00, ETA 0:02:17") and "…" in lines[0]
    assert all(
        part in lines[1] for part in ("seed 2", "40 %", "182/s", "ETA 0:00:32", "score 85.1")
    )
    assert all(part in lines[2] for part in ("seed 3", "99 %", "7.2/s", "return -12,345.6"))
    assert "done      seeds 0-1   score 85.0" in lines[3]
    assert lines[4].strip() == "queued    seeds 4-5"


def test_the_last_program_has_no_other_beside_it(clock):
    shown = display(clock, seeds=2)
    shown.show("", status(0, 10_000, "done"))
    shown.show("", status(1, 9_000, updates_per_s=10.0))
    assert seen(shown)[0].endswith("ETA 0:01:40")


def test_compiling_and_evaluating_are_told_with_their_time(clock):
    shown = display(clock)
    shown.show("", status(0, 0, waiting_for="compiling the update: up to 30 s"))
    shown.show("", status(1, 5_000, waiting_for="evaluating"))
    clock.now = 12
    shown.show("", status(0, 0, waiting_for="compiling the update: up to 30 s"))
    _, first, second, _ = seen(shown)
    says(first, "compiling 0:00:12")
    assert "evaluating" in second and "50 %" in second


def test_failed_and_stopped_seeds_stay_visible(clock):
    shown = display(clock, seeds=3)
    shown.show("", status(0, 40, "failed", score=None))
    shown.show("", status(1, 40, "interrupted", score=None))
    text = "\n".join(seen(shown))
    assert "failed    seed 0" in text and "stopped   seed 1" in text


def test_many_programs_at_once_take_few_lines(clock):
    shown = display(clock, seeds=64, at_once=64)
    for seed in range(64):
        shown.show("", status(seed, 100))
    lines = seen(shown)
    assert len(lines) == 14 and "52 more running, 9,485/s together" in lines[-1]


def test_a_long_training_says_so_at_once_and_once(clock, capsys):
    shown = display(clock, seeds=10, place="cell 1 of 4")
    shown._steps = 1_000_000
    random_ones = [(0, False), (5_000, False)]  # quick, and no sign of what comes
    for second, (step, learning) in enumerate(
        [*random_ones, (9_000, True), (9_050, True), (9_200, True), (9_900, True)]
    ):
        clock.now = second
        shown.show("", status(0, step, learning=learning))
    reported = capsys.readouterr().err
    says(reported, "10 seeds 1,000,000 2 13.9 100/s 1 4 steps")
    assert reported.count("13.9") == 1


def test_how_long_it_takes_is_told_by_each_seeds_own_steps(clock, capsys):
    """Two resumed seeds are far apart, and each makes 100 steps a second."""
    shown = display(clock, seeds=2)
    shown._steps = 1_000_000
    for second in range(4):
        clock.now = second
        for seed, began in enumerate((500_000, 1_000)):
            shown.show("", status(seed, began + 100 * second))
    assert "about 2.1 hours at 100/s each" in capsys.readouterr().err


def test_a_short_one_says_nothing(clock, capsys):
    shown = display(clock)
    for second, step in enumerate((0, 150, 350, 550)):
        clock.now = second
        shown.show("", status(0, step))
    assert not capsys.readouterr().err


def test_without_a_terminal_a_line_every_30_seconds(clock, capsys):
    shown = display(clock, place="cell 2 of 9")
    shown.show("IQL x seeds-0", status(0, 10_000, "done"))
    shown.show("IQL x seeds-1", status(1, 0))
    shown.show("IQL x seeds-1", status(1, 5_000))
    for second in range(1, 61):
        clock.now = second
        shown.print_if_due()
    ended, *lines = capsys.readouterr().err.splitlines()
    assert "IQL x seeds-0  step 10,000/10,000  182/s  done  score 85.1" in ended
    assert len(lines) == 2
    for part in ("cell 2 of 9: 1 of 6 seeds done, 2 running (25 %", "3 queued", "; score 85.1"):
        assert part in lines[0], lines[0]


def test_a_resumed_run_says_once_from_where_it_goes_on(clock, capsys):
    shown = display(clock)
    for step in (4_321, 4_400):  # the first status that is seen is not the first that is written
        shown.show("IQL x seeds-0", status(0, step, began_at=4_000))
    shown.show("IQL x seeds-1", status(1, 20, began_at=0))
    (line,) = capsys.readouterr().err.splitlines()
    says(line, "IQL x seeds-0 4,000")


def test_it_is_redrawn_while_nothing_is_reported(clock):
    """The live picture asks for its lines by itself: during an evaluation no status comes."""
    shown = display(clock)
    with shown:
        clock.now = 61
        shown._live.refresh()
    assert "0:01:01" in shown._console.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "2 minutes"), (5400, "1.5 hours"), (200_000, "2.3 days")]
)
def test_durations_are_in_the_unit_that_people_use(seconds, text):
    assert duration(seconds) == text
