"""What the page of an algorithm says of `results/`: our runs, pages that name it, published numbers."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from algorithm_names import label_in, labels_of, sharing, sweeps_of, variants_of

from corerl.report.tables import short

REPRODUCED = Path(__file__).parents[1] / "results" / "reproduced"
FIRST = re.compile(r"# [^\n]*\n\n\*\*(.+?)\*\*", re.DOTALL)
"""A results page's sentence of result: it stands first, in bold."""
COLUMNS = ["folder", "label", "algorithm", "task", "cell", "seed", "step", "value", "unit"]


def numbers(label: str) -> str:
    """Our runs beside published numbers of the same task, other pages of ours, then all published ones."""
    names = sharing(label)
    labels = set().union(*(labels_of(name) for name in names))
    ours = _ours()
    ours = ours[ours.label.isin(labels)]
    theirs = _published()
    theirs = theirs[theirs.algorithm.isin(labels)]
    more = [folder for folder in pages_naming(names) if folder not in set(ours.folder)]
    parts = ["## Numbers", _our_table(ours, theirs), _linked(more)]
    if not any(parts[1:]):
        parts.append("`results/` has no results of this algorithm.")
    parts += [_their_table(str(table), rows) for table, rows in theirs.groupby("table")]
    return "\n\n".join(part for part in parts if part)


def pages_naming(names: list[str]) -> Iterator[str]:
    """The folders of `results/reproduced` whose commands train one of these algorithms."""
    trained = [*names, *(variant for name in names for variant in variants_of(name))]
    swept = [sweep for name in names for sweep in sweeps_of(name)]
    named = rf"algo=(?:\w+,)*(?:{'|'.join(trained)})\b|sweep=(?:{'|'.join(swept) or '-'})\b"
    for page in sorted(REPRODUCED.glob("*/README.md")):
        if re.search(named, page.read_text(encoding="utf-8")):
            yield page.parent.name


def _linked(folders: list[str]) -> str:
    """A list of results pages, each with its sentence of result."""
    if not folders:
        return ""
    lines = [
        f"- [{folder}](../results/{folder}/index.md): {result_of(folder)}" for folder in folders
    ]
    return "\n".join(["These results pages also run this algorithm:", "", *lines])


def result_of(folder: str) -> str:
    """The sentence of result at the top of a results page."""
    found = FIRST.match((REPRODUCED / folder / "README.md").read_text(encoding="utf-8"))
    assert found, (
        f"results/reproduced/{folder}/README.md does not begin with a bold sentence of result"
    )
    return re.sub(r"\s+", " ", found[1])


def _our_table(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    if not len(ours):
        return ""
    lines = [
        "| task | ours | seeds | steps | published | runs |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for (folder, algorithm, task, cell, unit), rows in ours.groupby(
        ["folder", "algorithm", "task", "cell", "unit"]
    ):
        spread = f" ± {rows.value.std():.1f}" if len(rows) > 1 else ""
        alike = (theirs.task == task) & (theirs.algorithm == algorithm) & (theirs.metric == unit)
        reported = theirs[alike].drop_duplicates(["mean", "std", "steps", "protocol"])
        shown = [_published_number(row) for row in reported.itertuples()]
        steps = "to ".join(f"{step:,} " for step in sorted({rows.step.min(), rows.step.max()}))
        lines.append(
            f"| {', '.join(filter(None, (task, cell, unit)))} "
            f"| {rows.value.mean():.1f}{spread} | {len(rows)} | {steps} "
            f"| {'<br>'.join(shown)} | [{algorithm} in {folder}](../results/{folder}/index.md) |"
        )
    reported = (
        "The table shows the mean and standard deviation over seeds of the last evaluation. The last column "
        "links to the runs and their settings. Do not compare our numbers with published ones that have "
        "more steps or another protocol."
    )
    return "\n".join([reported, "", *lines])


def _published_number(row: Any) -> str:
    spread = f"&nbsp;±&nbsp;{float(row.std):.1f}" if row.std else ""
    steps = f", {short(float(row.steps))} steps" if row.steps else ""
    protocol = f", {row.protocol}" if row.protocol else ""
    return f"{float(row.mean):.1f}{spread} ({row.source.split(' (')[0]}{steps}{protocol})"


def _their_table(table: str, rows: pd.DataFrame) -> str:
    lines = [f'??? note "{len(rows)} published numbers: corerl report ... --published {table}"', ""]
    lines += [
        "    | task | mean | seeds | steps | unit, protocol | source |",
        "    | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows.itertuples():
        spread = f" ± {row.std}" if row.std else ""
        protocol = f"{row.metric}, {row.protocol}" if row.protocol else row.metric
        lines.append(
            f"    | {row.algorithm}: {row.task} | {row.mean}{spread} | {row.seeds} | {row.steps} "
            f"| {protocol} | {row.source} |"
        )
    return "\n".join(lines)


@cache
def _published() -> pd.DataFrame:
    path = REPRODUCED.parent / "published" / "published.csv"
    return pd.read_csv(path, dtype=str, keep_default_na=False)


@cache
def _ours() -> pd.DataFrame:
    """The last evaluation of every run under `results/reproduced`, with the folder that it is from."""
    parts = []
    for path in sorted(REPRODUCED.glob("*/scores.csv")):
        rows = pd.read_csv(path).assign(folder=path.parent.name)
        rows = rows.rename(columns={"updates": "step"}) if "step" not in rows else rows
        unit = "score" if "score" in rows else "return"
        if not {unit, "step"} <= set(rows):
            continue  # another layout; its own page shows it
        rows = rows.assign(value=rows[unit], unit=unit)
        rows = rows.assign(config=rows.get("config", ""), cell=rows.get("cell", ""))
        runs = rows.groupby(["algorithm", "task", "cell", "seed", "config"])
        rows = rows[rows.step == runs.step.transform("max")]
        rows = rows.assign(label=rows.algorithm.map(label_in))
        parts.append(rows[COLUMNS])
    return pd.concat(parts, ignore_index=True)
