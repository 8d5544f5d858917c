"""One HTML page that needs nothing but itself."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from corerl.report.html_tables import to_html
from corerl.report.section import Options, Section
from corerl.report.tables import plural

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1c1d; --soft: #5c6066; --line: #d9dce0; --page:
  #fff;
  --band: #f5f6f8; --top: #0b5cad; --up: #00734f; --down: #b23c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e7e9; --soft: #a2a7ae; --line: #3a3e44;
  --page: #16181b; --band: #1f2226; --top: #7cc0ff; --up: #4fd6a8; --down: #ff9d66; } }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--page);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
  sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .8rem; padding-top: 1rem; border-top: 1px solid
  var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p, li { max-width: 46rem; } .lead { color: var(--soft); margin: 0 0 1.2rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .9rem; } a { color:
  var(--top); }
figure { margin: 1.4rem 0; } figcaption { font-weight: 600; margin-bottom: .5rem; }
figure.plot { overflow-x: auto; } figure.plot.wide svg { min-width: 40rem; }
figure.plot svg { display: block; width: 100%; height: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(25rem, 100%), 1fr)); gap: 0
  2rem; }
.plots .wide { grid-column: 1 / -1; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
figure.table .scroll { width: fit-content; max-width: 100%; min-width: 24rem; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric:
  tabular-nums; }
th, td { padding: .38rem .8rem; text-align: right; white-space: nowrap; }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--line); background:
  var(--band); }
thead th:first-child, tbody th { text-align: left; position: sticky; left: 0; background:
  var(--page); }
thead th:first-child { background: var(--band); }
tbody th { font-weight: 400; } tbody tr + tr > * { border-top: 1px solid var(--line); }
tr:not(.aggregate) + tr.aggregate > * { border-top: 2px solid var(--soft); }
tr.aggregate th { font-weight: 600; } th small { display: block; font-weight: 400; color:
  var(--soft); }
td.top { font-weight: 700; color: var(--top); } td.missing { color: var(--soft); }
.up { color: var(--up); } .down { color: var(--down); }
.notes { color: var(--soft); font-size: .84rem; margin-top: .5rem; } .notes p { margin:
  .15rem 0; }
.note { border-left: 3px solid var(--line); padding-left: .8rem; color: var(--soft); }
table.plain td, table.plain th { text-align: left; white-space: normal; vertical-align: top; }
table.plain td { overflow-wrap: anywhere; }
pre { background: var(--band); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto;
  font-size: .84rem; }
details > summary { cursor: pointer; font-weight: 600; margin: 1.2rem 0; }
@media print { main { max-width: none; } .scroll { overflow: visible; border: 0; } }
"""


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its caption, the inline SVG, and whether it needs the page's width."""

    caption: str
    svg: str
    wide: bool = False
    first: bool = False  # before the section's table


def page(
    title: str,
    written: str,
    sections: Sequence[Section],
    pictures: dict[str, list[Picture]],
    left_out: pd.DataFrame,
    environments: list[dict[str, Any]],
    notes: Sequence[str],
    command: str,
    options: Options,
) -> str:
    """The whole document. `pictures` maps a section's name to its figures."""
    e = html.escape
    names = [s.folder for s in sections]
    links = [(a, s.heading) for a, s in zip(names, sections, strict=True)]
    links += [("left-out", "runs not counted")] if len(left_out) else []
    links += [("how", "how it was made")]
    nav = "".join(f'<a href="#{a}">{e(text)}</a>' for a, text in links)
    body = "".join(
        _section(s, a, pictures.get(a, [])) for s, a in zip(sections, names, strict=True)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{e(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{e(title)}</h1><p class="lead">{e(_summary(sections, written, options))}</p>'
        f"<nav>{nav}</nav>{_notes(notes)}{body}{_left_out(left_out)}"
        f"{_how(environments, command, options)}</main></body></html>\n"
    )


def _summary(sections: Sequence[Section], written: str, options: Options) -> str:
    runs = sum(len(s.runs) for s in sections)
    tasks = len({t for s in sections for t in s.runs["task"]})
    algorithms = len({a for s in sections for a in s.algorithms})
    return (
        f"{plural(algorithms, 'algorithm')}, {plural(tasks, 'task')}, {plural(runs, 'run')}; "
        f"the {options.protocol} counts. Written {written}."
    )


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{html.escape(n)}</p>' for n in notes)


def _section(section: Section, anchor: str, pictures: list[Picture]) -> str:
    first, *rest = [to_html(t) for t in section.tables if not t.compares]
    beside = "".join(to_html(replace(t, notes=t.notes[1:])) for t in section.tables if t.compares)
    rules = list(dict.fromkeys(t.notes[0] for t in section.tables if t.compares))
    if beside:
        rest.append(f"<h3>Beside published numbers</h3>{_notes(rules)}{beside}")
    lead = [p for p in pictures if p.first]
    plots = "".join(_plot(p) for p in pictures if not p.first)
    others = "".join(
        f"<details><summary>{html.escape(t.title)}</summary>{to_html(t, caption=False)}</details>"
        for t in section.others
    )
    return (
        f'<section><h2 id="{anchor}">{html.escape(section.heading)}</h2>'
        f'{_notes(section.notes)}{"".join(map(_plot, lead))}{first}<div class="plots">{plots}</div>'
        f"{''.join(rest)}{others}</section>"
    )


def _plot(picture: Picture) -> str:
    kind = "plot wide" if picture.wide else "plot"
    caption = html.escape(picture.caption)
    return f'<figure class="{kind}"><figcaption>{caption}</figcaption>{picture.svg}</figure>'


def _left_out(runs: pd.DataFrame) -> str:
    if not len(runs):
        return ""
    rows = [
        (r.algorithm, r.task, r.seeds, r.state, reached(r), r.message, r.file)
        for r in runs.itertuples()
    ]
    head = ("algorithm", "task", "seeds", "state", "step", "message", "file")
    return (
        '<section><h2 id="left-out">Runs not counted</h2><p>These runs are in no number above '
        f"unless a note says so.</p>{_plain(head, rows)}</section>"
    )


def reached(run: Any) -> str:
    """`"300,000 of 1,000,000"`: how far a row of the list of runs came."""
    step = "–" if pd.isna(run.step) else f"{int(run.step):,}"
    return step if pd.isna(run.steps) else f"{step} of {int(run.steps):,}"


def _how(environments: list[dict[str, Any]], command: str, options: Options) -> str:
    protocol = (
        f"<p>The {html.escape(options.protocol)} is its score. Scores of tasks with reference "
        "returns are 100 × (return − min) / (max − min). Aggregates follow Agarwal et al. 2021 "
        "(rliable): the IQM is the mean of the middle half of all runs; intervals come from a "
        "bootstrap that draws seeds with replacement within every task. With one seed on some task "
        "there is no interval. n is the number of seeds.</p>"
    )
    table = _plain(("setting", "value (runs)"), environment_rows(environments))
    seen = f"<h3>Software and hardware</h3>{table}" if environments else ""
    return (
        f'<section><h2 id="how">How it was made</h2>{protocol}<p>To write this page again:</p>'
        f"<pre>{html.escape(command)}</pre>{seen}</section>"
    )


def environment_rows(environments: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(key, values with how many runs had each) over all env.json, nested keys joined by dots."""
    counts: dict[str, dict[str, int]] = {}
    for environment in environments:
        for key, value in _flat(environment):
            values = counts.setdefault(key, {})
            values[value] = values.get(value, 0) + 1
    rows = []
    for key, values in counts.items():
        shown = [f"{v} ({n})" for v, n in values.items()]
        more = f", and {len(shown) - 3} more" if len(shown) > 3 else ""
        rows.append((key, next(iter(values)) if len(shown) == 1 else ", ".join(shown[:3]) + more))
    return rows


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in tree.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            rows.append((f"{prefix}{key}", str(value)))
    return rows


def _plain(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    e = html.escape
    top = "".join(f"<th>{e(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{e(str(c))}</td>" for c in r) + "</tr>" for r in rows)
    return (
        f'<div class="scroll"><table class="plain"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
