"""A page per algorithm: its docstring, its `Config`, its tables of `configs/`, and numbers of `results/`."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from algorithm_names import sharing, sweeps_of, variants_of
from algorithm_results import numbers
from equations import drawn

from corerl import algos

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
    main = sharing(config.label)[0]
    text = inspect.getdoc(module) or ""
    first = EXAMPLES.search(text)
    opening = text[: first.end()] if first else text
    parts = [
        f"# {config.label}" + f" ({name})" * (name != main),
        described(opening),
        notes(name),
        "## Details and differences" * (opening != text),
        described(text[len(opening) :].strip("\n")),
        commands(name),
        f"Actions are {actions_of(config)}. Observations are vectors{' or images' * config.images}.",
        elsewhere(config.label, main) if name != main else numbers(config.label),
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
        long = re.compile(r"^(?:corerl|python) [^#\n\\]{69,}$", re.MULTILINE)
        code = long.sub(
            lambda line: " \\\n    ".join(textwrap.wrap(line[0], 70, break_on_hyphens=False)),
            inspect.cleandoc(f"\n{code}"),
        )
        return f"```\n{code}\n```"
    return _numbered(block) or _prose(block)


def _numbered(block: str) -> str:
    """A list of numbered differences as a table, below what introduces it; nothing for other blocks."""
    before, *rest = re.split(r"^ ?(\d+)\. ", block, flags=re.MULTILINE)
    if not rest or rest[::2] != [str(n + 1) for n in range(len(rest) // 2)]:
        return ""
    head = [_prose(before.strip("\n")), ""] if before.strip() else []
    texts = [_prose(" ".join(text.split())) for text in rest[1::2]]
    rows = [f"| {n} | {text} |" for n, text in enumerate(texts, 1)]
    return "\n".join([*head, "| item | what differs |", "| --- | --- |", *rows])


def _prose(text: str) -> str:
    pieces = re.split(r"(`[^`]*`)", text)
    plain = (p if i % 2 else p.replace("<", "&lt;") for i, p in enumerate(pieces))
    prose = [p if i % 2 else re.sub(r"([*_|\[\]])", r"\\\1", p) for i, p in enumerate(plain)]
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


def elsewhere(label: str, main: str) -> str:
    """Says where the numbers are of a file whose label is another's too."""
    return (
        f"## Numbers\n\nIn tables, its runs have the name {label}, like those of `{main}`. "
        f"The page of [`{main}`]({main}.md) has the numbers of both."
    )


def commands(name: str) -> str:
    """What to type for this algorithm."""
    own = [f"corerl train algo={name} --help"]
    own += [f"corerl train algo={variant} --help" for variant in variants_of(name)]
    own += [f"corerl train sweep={sweep} --dry-run" for sweep in sweeps_of(name)]
    return "## Commands\n\n```\n" + "\n".join(own) + "\n```"


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
