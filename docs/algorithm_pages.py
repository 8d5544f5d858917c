"""A page per algorithm: its docstring, its `Config`, its tables of `configs/`, and numbers of `results/`."""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from equations import drawn

from corerl import algos
from corerl.launch.arguments import sweeps
from corerl.launch.settings_tables import rows_of, variants
from corerl.report.tables import short

ROOT = Path(__file__).parents[1]
RATES = ROOT / "corerl" / "launch" / "rates.csv"
EXAMPLES = re.compile(r"\n\n(?: {4}(?:python|corerl) .*(?:\n|$)(?: {8}.*(?:\n|$))*)+")
"""A docstring's first commands; before them stands what the algorithm is."""
SYMBOLS = (
    "*Symbols: (s, a, r, s') is a transition, d is 1 if the episode terminates with it, and a' is an action "
    "in s'. γ is the discount. A bar marks a target network, and a tilde an action that the policy samples. "
    "E is a mean, over the dataset if it has the index D. 1(...) is 1 if the condition holds, else 0.*"
)
"""What the equations of all pages share. Each page explains its other symbols."""
SOURCE = re.compile(r"^    (\w+): (?:[^#\n]|\n {8})*?(?:# *(.*))?$", re.MULTILINE)


def page(name: str) -> str:
    """Everything that is known of one algorithm, as Markdown."""
    module = importlib.import_module(f"corerl.algos.{name}")
    config = module.Config()
    labels = {config.label, *(labels_of(variant) for variant in variants_of(name))}
    text = inspect.getdoc(module) or ""
    first = EXAMPLES.search(text)
    opening = text[: first.end()] if first else text
    parts = [
        f"# {config.label}" + f" ({name})" * (name != main_of(config.label)),
        described(opening),
        notes(name),
        "## Details and differences" * (opening != text),
        described(text[len(opening) :].strip("\n")),
        commands(name),
        f"Actions are {actions_of(config)}. Observations are vectors{' or images' * config.images}.",
        numbers(labels) if name == main_of(config.label) else elsewhere(config.label),
        cost(name),
        stumbles(name),
        "## Settings\n\n"
        "These are the default settings. Settings that depend on the task are listed below them. corerl "
        "checks that values are in the allowed range before a run begins.",
        *settings_of(config),
        *(per_task(table) for table in [name, *variants_of(name)]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def index() -> str:
    """The list of all algorithms, each with the first sentence of its file."""
    lines = [
        "# Algorithms",
        "",
        "Each algorithm is one file in `algos/`. The pages below are generated from these files.",
        "",
    ]
    lines += ["| `algo=` | algorithm | actions | variants |", "| --- | --- | --- | --- |"]
    for name in algos.names():
        module = importlib.import_module(f"corerl.algos.{name}")
        first = described((inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " "))
        also = ", ".join(f"`{variant}`" for variant in variants_of(name))
        actions = actions_of(module.Config)
        lines.append(f"| [`{name}`]({name}.md) | {_cell(first)} | {actions} | {also} |")
    return "\n".join(lines)


def actions_of(config: Any) -> str:
    """Returns the kinds of actions that an algorithm takes."""
    return config.actions.replace("any", "continuous or discrete")


def described(text: str) -> str:
    """A docstring as Markdown: prose with its formulas as they are typed, indented blocks as code."""
    return "\n\n".join(_block(block) for block in re.split(r"\n{2,}", text))


def _block(block: str) -> str:
    if block.lstrip().startswith("item  ") and (table := _differences(block.splitlines())):
        return table
    if block.startswith("    "):
        # A command that goes on in the next line of the file is one line of the docstring.
        code = re.sub(
            r"^(    (?:corerl|python) .*\S) {6,}", r"\1 \\\n        ", block, flags=re.MULTILINE
        )
        return "```\n" + inspect.cleandoc(f"\n{code}") + "\n```"
    return _prose(block)


def _prose(text: str) -> str:
    text = re.sub(r"\n( ?1\. )", r"\n\n\1", text)  # without an empty line Markdown sees no list
    pieces = re.split(r"(`[^`]*`)", text)
    prose = [p if i % 2 else re.sub(r"([<*_|\[\]^~])", r"\\\1", p) for i, p in enumerate(pieces)]
    return re.sub(
        r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", "".join(prose)
    )


def _differences(lines: list[str]) -> str:
    """A docstring's numbered list of differences as a table; nothing where its columns do not line up."""
    starts = [0, *(found.start() for found in re.finditer(r"(?<=  )\S", lines[0]))]
    if any(line[start - 1 : start].strip() for line in lines for start in starts[1:]):
        return ""
    rows: list[list[str]] = []
    for line in lines:
        ends = [*starts[1:], None]
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        if cells[0] or not rows or (cells[1] and any(cells[2:])):
            rows.append(cells)
        else:  # a line goes on
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    switch = rows[0].index("switch") if "switch" in rows[0] else None
    shown = [
        [
            f"`{c}`" if i == switch and re.fullmatch(r"[\w.=]{2,}", c) else _prose(c)
            for i, c in enumerate(row)
        ]
        for row in rows[1:]
    ]
    rule = ["---"] * len(starts)
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [[_prose(c) for c in rows[0]], rule, *shown]
    )


def notes(name: str) -> str:
    """When to choose the algorithm, its equations in the order of the code, and a picture."""
    path = ROOT / "docs" / "methods" / f"{name}.md"
    text = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    text = text.replace("## Equations\n", f"## Equations\n\n{SYMBOLS}\n", 1)
    return drawn(text.replace("](../../results/reproduced/", "](../results/"))


@cache
def main_of(label: str) -> str:
    """The algorithm whose page has a label's numbers: of the files with this label the shortest name."""
    files = {name: importlib.import_module(f"corerl.algos.{name}") for name in algos.names()}
    return min((name for name in files if files[name].Config().label == label), key=len)


def elsewhere(label: str) -> str:
    """Says where the numbers are of a file whose label is another's too."""
    return (
        f"## Numbers\n\nIn tables, its runs have the name {label}, like those of `{main_of(label)}`. "
        f"The page of [`{main_of(label)}`]({main_of(label)}.md) has the numbers of both."
    )


def variants_of(name: str) -> list[str]:
    """The names that `algo=` takes for this algorithm with other settings."""
    return [variant for variant, algorithm in variants().items() if algorithm == name]


def labels_of(variant: str) -> str:
    """The label that a table of settings gives its runs; empty where it keeps the algorithm's."""
    return next((row["label"] for row in rows_of(variant).values() if "label" in row), "")


def commands(name: str) -> str:
    """What to type for this algorithm."""
    own = [f"corerl train algo={name} --help"]
    own += [f"corerl train algo={variant} --help" for variant in variants_of(name)]
    own += [f"corerl train sweep={sweep} --dry-run" for sweep in sweeps() if name in _swept(sweep)]
    return "## Commands\n\n```\n" + "\n".join(own) + "\n```"


@cache
def _swept(sweep: str) -> set[str]:
    """The algorithms of a sweep's file."""
    content = yaml.safe_load((files("corerl.sweeps") / f"{sweep}.yaml").read_text(encoding="utf-8"))
    chosen = content.get("hydra", {}).get("sweeper", {}).get("params", {}).get("algo", "")
    chosen = ",".join([chosen, *(d["algo"] for d in content["defaults"] if "algo" in d)])
    names = {re.sub(r"\s", "", name) for name in re.sub(r"choice\(|\)", "", chosen).split(",")}
    return {variants().get(name, name) for name in names}


def settings_of(settings: Any, prefix: str = "algo.") -> Iterator[str]:
    """A table of a dataclass's own settings, then one per group inside it."""
    declared = {f.name: f.metadata for f in fields(settings)}
    values = {name: getattr(settings, name) for name in declared if name not in ("name", "label")}
    plain = {name: value for name, value in values.items() if not is_dataclass(value)}
    comments = _comments(type(settings))
    rows = ["| setting | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for name, value in plain.items():
        rows.append(
            f"| `{prefix}{name}` | `{_shown(value)}` | {_allowed(declared[name])} "
            f"| {_cell(described(comments.get(name, '')))} |"
        )
    yield "\n".join(rows)
    for name, value in values.items():
        if is_dataclass(value):
            reported = (inspect.getdoc(type(value)) or "").split("\n\n")[0]
            reported = (
                "" if reported.startswith(f"{type(value).__name__}(") else described(reported)
            )
            yield f"### `{prefix}{name}`\n\n{reported}"
            yield from settings_of(value, f"{prefix}{name}.")


def _comments(kind: type) -> dict[str, str]:
    """The comment beside each field, of a class and of those it extends."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = inspect.getsource(base).split("    def ")[0]
        comments |= {name: comment or "" for name, comment in SOURCE.findall(body)}
    return comments


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _allowed(metadata: Any) -> str:
    if "choices" in metadata:
        return ", ".join(f"`{choice}`" for choice in metadata["choices"])
    return metadata.get("interval", "").replace("inf", "∞")


def _cell(text: str) -> str:
    return text.replace("\n", " ").strip()


def per_task(table: str) -> str:
    """A file of `configs/` as it stands; nothing where there is none."""
    path = ROOT / "configs" / f"{table}.yaml"
    if not path.is_file():
        return ""
    text = "\n".join(
        f"    {line}".rstrip() for line in path.read_text(encoding="utf-8").splitlines()
    )
    title = f"configs/{table}.yaml: settings that depend on the task"
    return f'??? note "{title}"\n\n    ```yaml\n{text}\n    ```'


def numbers(labels: set[str]) -> str:
    """Our runs beside published numbers of the same task, then all published ones."""
    ours = _ours()
    ours = ours[ours.algorithm.isin(labels)]
    theirs = _published()
    theirs = theirs[theirs.algorithm.isin(labels)]
    parts = [
        "## Numbers",
        _our_table(ours, theirs) or "There is no table of results of this algorithm in `results/`.",
    ]
    for table, rows in theirs.groupby("table"):
        parts.append(_their_table(str(table), rows))
    return "\n\n".join(parts)


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


def cost(name: str) -> str:
    """Measured updates per second and hours of a million; nothing where nobody has measured them."""
    rates = pd.read_csv(RATES, comment="#", keep_default_na=False)
    rows = [
        f"| {row.settings or 'defaults'} | {row.device}{', ten seeds added up' * (row.kind == 'gpu')} "
        f"| {row.updates_per_s:g} "
        f"| {1e6 / row.updates_per_s / 3600:.1f} |"
        for row in rates[rates.algo == name].itertuples()
    ]
    if not rows:
        return ""
    head = [
        "| settings | device | updates/s | hours per million updates |",
        "| --- | --- | ---: | ---: |",
    ]
    reported = (
        "Speed of training one seed, without evaluation. `--dry-run` estimates it for other sizes."
    )
    return "\n".join(["## Cost", "", reported, "", *head, *rows])


def stumbles(name: str) -> str:
    """What users of public code stumbled on, with links to their threads."""
    found = yaml.safe_load((ROOT / "docs" / "stumbles.yaml").read_text(encoding="utf-8")).get(
        name, []
    )
    lines = [
        re.sub(r"\b([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", text)
        for text in found
    ]
    return (
        "\n".join(["## What users stumble on", "", *(f"- {line}" for line in lines)])
        if lines
        else ""
    )


@cache
def _published() -> pd.DataFrame:
    path = ROOT / "results" / "published" / "published.csv"
    return pd.read_csv(path, dtype=str, keep_default_na=False)


@cache
def _ours() -> pd.DataFrame:
    """The last evaluation of every run under `results/reproduced`, with the folder that it is from."""
    parts = []
    for path in sorted((ROOT / "results" / "reproduced").glob("*/scores.csv")):
        rows = pd.read_csv(path).assign(folder=path.parent.name)
        rows = rows.rename(columns={"updates": "step"}) if "step" not in rows else rows
        unit = "score" if "score" in rows else "return"
        if not {unit, "step"} <= set(rows):
            continue  # another layout; its own page shows it
        rows = rows.assign(value=rows[unit], unit=unit)
        rows = rows.assign(config=rows.get("config", ""), cell=rows.get("cell", ""))
        runs = rows.groupby(["algorithm", "task", "cell", "seed", "config"])
        rows = rows[rows.step == runs.step.transform("max")]
        parts.append(rows[["folder", "algorithm", "task", "cell", "seed", "step", "value", "unit"]])
    return pd.concat(parts, ignore_index=True)
