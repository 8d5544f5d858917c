"""Builds a report: from paths to a folder of tables, figures and one page."""

import argparse
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from datetime import datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from corerl.errors import CorerlError
from corerl.report import colours, drawing, figures, rewards, risk
from corerl.report.figures import Plot
from corerl.report.files import announce, make_folder, replace_earlier, write
from corerl.report.formats import FORMATS, guarded, to_text
from corerl.report.load import FINISHED, load
from corerl.report.options import Options
from corerl.report.page import Picture, Words, page
from corerl.report.page_data import Data
from corerl.report.published import COLUMNS, read_published
from corerl.report.run_tables import reached
from corerl.report.scorefiles import holds_best
from corerl.report.sections import Section, fill, sections

LIVE = (
    "aggregates",
    "profiles",
    "efficiency",
    "improvement",
    "tasks",
)  # the page's script draws them
CURVES = ("tasks", "efficiency", "regret")  # of all evaluations, whichever of them counts
MANY = 20_000  # evaluations whose curves take longer to draw than a process to start
Drawing = tuple[str, Callable[[], tuple[bytes, bytes, bool]]]
"""A caption, and what waits for `drawing.render`."""
SWITCHES = ("best", "unequal", "risk", "rliable", "unfinished")


def build(args: argparse.Namespace) -> int:
    """Writes everything under `args.out`. 1 if a figure failed (all else is written), else 0."""
    if args.replicates < 1:
        raise CorerlError(f"--replicates {args.replicates} must be at least 1.")
    make_folder(args.out)
    options = Options(
        args.metric,
        args.baseline,
        args.replicates,
        args.best,
        args.unequal,
        args.risk,
        args.rliable,
    )
    results = load(args.paths, args.unfinished)
    if not args.best:
        _refuse_best(results.scores["file"].unique())
    tables = [read_published(name) for name in args.published]
    published = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)
    parts = sections(results, options)
    look = colours.looks(results.scores["algorithm"])
    pictures, failures = {}, []
    with ProcessPoolExecutor(1, get_context("spawn")) as second:  # starts with what is submitted
        begun = {s.folder: _begin_curves(s, look, options, args.note, second) for s in parts}
        for section in parts:
            fill(section, published, options)
            risk.add(section, options)
            rewards.add(section, options)
        plans = {s.folder: _plan(s, look, options, args.note, begun[s.folder]) for s in parts}
        announce(args.out, _files(parts, plans))
        data = Data(results, parts, look, args.out, options)
        for section in parts:
            folder = args.out / section.folder
            _write_tables(section, folder)
            pictures[section.folder] = _draw(section, folder, plans[section.folder], failures)
    notes = [*results.notes, *_unfinished_notes(results.runs), *_boxes(parts, args.note), *failures]
    if args.note:
        notes.insert(0, args.note)
    if args.published and not _beside(parts):
        names = ", ".join(args.published)
        notes.append(f"{names} has no number for the algorithms, tasks and units of this report.")
    written = datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z")
    words = Words(args.title, written, _command(args), notes)
    text = page(words, results, parts, pictures, data, options)
    write(args.out / "scores.csv", _used(parts, args.best).to_csv(index=False))
    index = write(args.out / "index.html", text)
    stems = {folder: [Path(p.file).stem for p in of] for folder, of in pictures.items()}
    replace_earlier(args.out, _files(parts, stems))
    _print(parts, notes, index)
    return 1 if failures else 0


def _refuse_best(files: Iterable[str]) -> None:
    for file in files:
        if holds_best(Path(file)):
            raise CorerlError(
                f"{file} holds the best evaluation of every run, not the last (see its column "
                "evaluation). Add --best, or report the original runs."
            )


def _beside(parts: list[Section]) -> bool:
    """Tells whether any published number stands in the report."""
    tables = [table for section in parts for table in [*section.tables, *section.others]]
    return any(table.name.startswith("published") for table in tables)


def _files(parts: list[Section], pictures: Mapping[str, Iterable[str]]) -> list[str]:
    """Lists the files of a report as named below its folder. `pictures` are each section's, by stem."""
    names = ["scores.csv", "index.html"]
    for section in parts:
        for table in [*section.tables, *section.others]:
            names += (f"{section.folder}/{table.name}.{suffix}" for suffix in FORMATS)
        for picture in pictures[section.folder]:
            names += (f"{section.folder}/{picture}.{suffix}" for suffix in ("png", "svg"))
    return names


def _write_tables(section: Section, folder: Path) -> None:
    for table in [*section.tables, *section.others]:
        for suffix, show in FORMATS.items():
            write(folder / f"{table.name}.{suffix}", show(table))


def _used(parts: list[Section], best: bool) -> pd.DataFrame:
    """Returns the tidy table of all counted scores: raw returns in `return`, the rest in `score`.

    The best scores say so, beside the steps that their runs made in all: those are what is held equal.
    """
    rows = []
    for section in parts:
        column = "score" if section.scored else "return"
        runs = section.runs.rename(columns={"score": column})
        if best:
            runs = runs.assign(step=runs["last_step"], evaluation="best")
        rows.append(runs[[*_KEYS, column, *(["evaluation"] if best else [])]])
    table = pd.concat(rows, ignore_index=True)
    for column in ("algorithm", "task"):
        table[column] = table[column].map(guarded)
    return table


_KEYS = ["algorithm", "task", "seed", "step", "config", "unit", "pretrained"]


# ---------------------------------------------------------------------------------------- figures


def _begin_curves(
    section: Section, look: dict, options: Options, note: str, second: Executor
) -> dict[str, Drawing]:
    """Begins the learning curves, if there are any. A second process draws many while this process works."""
    if not len(figures.curved(section.history)):
        return {}
    draw = partial(figures.tasks, section.history, look, section.axis)
    job = (drawing.render, draw, "tasks", _foot(section, "tasks", options, note))
    caption = "Learning curves: mean over seeds, with 95% t intervals where there are at least three seeds"
    far = len(section.history) > MANY
    return {"tasks": (caption, second.submit(*job).result if far else partial(*job))}


def _draw(
    section: Section, folder: Path, plan: dict[str, Drawing], failures: list[str]
) -> list[Picture]:
    """Draws and writes what the section has data for. A figure that fails is noted, not fatal."""
    pictures = []
    for name, (caption, drawn) in plan.items():
        try:
            png, svg, wide = drawn()
        except Exception as error:
            failures.append(
                f"The figure {folder / name} could not be drawn ({type(error).__name__}: {error}). "
                "Everything else was written."
            )
            continue
        write(folder / f"{name}.png", png)
        write(folder / f"{name}.svg", svg)
        live = name in LIVE and (section.scored or name == "tasks")
        inline = "" if live else drawing.inline(svg, f"{section.folder}-{name}", caption)
        pictures.append(Picture(caption, f"{section.folder}/{name}.png", inline, wide))
    return pictures


def _foot(section: Section, figure: str, options: Options, note: str) -> str:
    """Returns what stands below a figure, which travels without its page: steps, --best, and the note."""
    best = options.best and figure not in CURVES
    steps = section.steps and f"{section.steps} steps"
    return "; ".join(filter(None, [steps, best and options.protocol, note]))


def _plan(
    section: Section, look: dict, options: Options, note: str, begun: dict[str, Drawing]
) -> dict[str, Drawing]:
    """Returns {file stem: drawing} of the figures that the section has data for."""
    plots = {} if section.aggregates is None else _aggregate_plots(section, look, options)
    plots |= begun | risk.plots(section, look, options)
    foot = {name: _foot(section, name, options, note) for name in plots}
    return {
        name: begun.get(name) or (caption, partial(drawing.render, draw, name, foot[name]))
        for name, (caption, draw) in plots.items()
    }


def _aggregate_plots(section: Section, look: dict, options: Options) -> dict[str, Plot]:
    order, axis = section.algorithms, section.axis
    plan = {
        "aggregates": (
            "Aggregates with 95% intervals",
            lambda: figures.aggregates(section.aggregates, look, order, options.metrics),
        ),
        "profiles": (
            "Performance profiles with 95% bands",
            lambda: figures.profile(section.profiles, look, axis),
        ),
    }
    if section.efficiency is not None:
        plan["efficiency"] = (
            "Sample efficiency with 95% bands",
            lambda: figures.efficiency(section.efficiency, look, options.metric, axis),
        )
    if section.improvement is not None and len(section.improvement):
        plan["improvement"] = (
            "Probability of improvement with 95% intervals",
            lambda: figures.improvement(section.improvement, look),
        )
    return plan


# ------------------------------------------------------------------------------------------ words


def _boxes(parts: list[Section], note: str) -> list[str]:
    letters = drawing.boxes([*(n for s in parts for n in [*s.algorithms, *s.tasks]), note])
    reported = f"The figures' font has no {letters[:20]}, so PNG and SVG show boxes instead."
    return [reported] if letters else []


def _unfinished_notes(runs: pd.DataFrame) -> list[str]:
    counted = runs["counted"].astype(bool)
    lines = []
    early = runs[counted & (runs["state"] != FINISHED)]
    if len(early):
        lines.append(f"These unfinished runs are counted too: {_list(early)}.")
    diverged = runs[runs["state"] == "diverged"]
    if len(diverged):
        lines.append(
            f"These runs diverged, so every number below leaves them out: {_list(diverged)}. The other "
            "seeds then make the algorithm look better than it is."
        )
    rest = runs[~counted & (runs["state"] != "diverged")]
    if len(rest):
        lines.append(f"These runs are not counted: {_list(rest)}.")
    lines += runs.loc[runs["state"] == "pending", "message"].unique().tolist()
    return lines


def _list(runs: pd.DataFrame, most: int = 4) -> str:
    shown = [
        f"{r.algorithm} on {r.task}, seeds {r.seeds} ({r.state}, step {reached(r)})"
        for r in runs.head(most).itertuples()
    ]
    more = [f"and {len(runs) - most} more groups of seeds"] if len(runs) > most else []
    return "; ".join([*shown, *more])


def _command(args: argparse.Namespace) -> str:
    """Returns the command that writes this report again."""
    words = ["corerl", "report", *map(str, args.paths), "--out", str(args.out)]
    if args.published:
        words += ["--published", *args.published]
    if args.baseline:
        words += ["--baseline", args.baseline]
    words += ["--note", args.note] if args.note else []
    words += ["--metric", args.metric, "--replicates", str(args.replicates), "--title", args.title]
    words += [f"--{name}" for name in SWITCHES if getattr(args, name)]
    return shlex.join(words)


def _wrapped(note: str, width: int | None) -> str:
    """Breaks a note into lines, but no path."""
    if width is None:
        return note
    return textwrap.fill(note, width, break_long_words=False, break_on_hyphens=False)


def _print(parts: list[Section], notes: list[str], index: Path) -> None:
    """Prints the tables as wide as the terminal, or whole where the output is none."""
    colour = sys.stdout.isatty()
    known = colour or "COLUMNS" in os.environ
    width = shutil.get_terminal_size().columns if known else None
    for section in parts:
        for table in section.tables:
            print(to_text(table, width, colour))
        for note in section.notes:
            print(_wrapped(note, width))
        print()
    for note in notes:
        print(note, file=sys.stderr)
    print(f"Wrote {index}")
