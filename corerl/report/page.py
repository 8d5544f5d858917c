"""One HTML page that needs nothing but itself."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources

from corerl.report import page_data, run_tables
from corerl.report.html_tables import to_html
from corerl.report.load import Results
from corerl.report.options import Options
from corerl.report.sections import Section
from corerl.report.tables import plural

SCRIPTS = ("state", "charts", "figures", "latex", "runs", "tables", "main")


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its caption, its file beside the page, and the inline SVG where no script draws it."""

    caption: str
    file: str
    svg: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Words:
    """The texts of the page besides its numbers."""

    title: str
    written: str
    command: str
    notes: Sequence[str]


def page(
    words: Words,
    results: Results,
    sections: Sequence[Section],
    pictures: dict[str, list[Picture]],
    data: page_data.Data,
    options: Options,
) -> str:
    """Renders the whole document. `pictures` maps a section's folder to its figures."""
    e = html.escape
    links = [(s.folder, s.heading) for s in sections]
    links += [("runs", "runs and settings")] if len(results.runs) else []
    links += [("left-out", "runs not counted")] if len(run_tables.uncounted(results.runs)) else []
    links += [("how", "how it was made")]
    nav = "".join(f'<a href="#{a}">{e(text)}</a>' for a, text in links)
    body = "".join(_section(s, pictures.get(s.folder, [])) for s in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{e(words.title)}</title><style>{_web('page.css')}</style></head><body><main>"
        f'<h1>{e(words.title)}</h1><p class="lead">{e(_summary(sections, words, options))}</p>'
        f"<nav>{nav}</nav>{_notes(words.notes)}{body}"
        f"{run_tables.runs(results, data)}{run_tables.left_out(results.runs)}"
        f"{_how(results, words.command, options)}</main>"
        f'<script type="application/json" id="data">{data.text}</script><script>"use strict";\n{_script()}'
        "</script></body></html>\n"
    )


def _web(name: str) -> str:
    return (resources.files("corerl.report") / "web" / name).read_text(encoding="utf-8")


def _script() -> str:
    return "{\n" + "\n".join(_web(f"{name}.js") for name in SCRIPTS) + "}\n"


def _summary(sections: Sequence[Section], words: Words, options: Options) -> str:
    runs = sum(len(s.runs) for s in sections)
    tasks = len({t for s in sections for t in s.runs["task"]})
    algorithms = len({a for s in sections for a in s.algorithms})
    return (
        f"{plural(algorithms, 'algorithm')}, {plural(tasks, 'task')}, {plural(runs, 'run')}. "
        f"The {options.protocol} counts. Written {words.written}."
    )


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{html.escape(n)}</p>' for n in notes)


def _section(section: Section, pictures: list[Picture]) -> str:
    first, *rest = [to_html(t) for t in section.tables if not t.compares]
    rules = list(dict.fromkeys(t.notes[0] for t in section.tables if t.compares))
    beside = "".join(to_html(replace(t, notes=t.notes[1:])) for t in section.tables if t.compares)
    if beside:
        rest.append(f"<h3>Beside published numbers</h3>{_notes(rules)}{beside}")
    still = "".join(_plot(p) for p in pictures if p.svg)
    without = "".join(_linked(p) for p in pictures if not p.svg)
    others = "".join(
        f"<details><summary>{html.escape(t.title)}</summary>{to_html(t, caption=False)}</details>"
        for t in section.others
    )
    return (
        f'<section><h2 id="{section.folder}">{html.escape(section.heading)}</h2>'
        f'{_notes(section.notes)}{first}<div class="pooled"></div><div class="curves"></div>'
        f"<noscript>{without}</noscript>{still}{''.join(rest)}{others}</section>"
    )


def _plot(picture: Picture) -> str:
    kind = "plot static wide" if picture.wide else "plot static"
    caption = html.escape(picture.caption)
    return f'<figure class="{kind}"><figcaption>{caption}</figcaption>{picture.svg}</figure>'


def _linked(picture: Picture) -> str:
    caption = html.escape(picture.caption)
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<img src="{html.escape(picture.file)}" alt="{caption}" style="max-width:100%"></figure>'
    )


def _how(results: Results, command: str, options: Options) -> str:
    protocol = (
        f"<p>The {html.escape(options.protocol)} is its score. Scores of tasks with reference "
        "returns are 100 × (return − min) / (max − min). Aggregates follow Agarwal et al. 2021 "
        "(rliable): the IQM is the mean of the middle half of all runs. Intervals come from a "
        "bootstrap that draws seeds with replacement within every task. With one seed on some task "
        "there is no interval. n is the number of seeds. The switches hide algorithms and tasks, and do not "
        "change numbers.</p>"
    )
    return (
        f'<section><h2 id="how">How it was made</h2>{protocol}<p>To write this page again:</p>'
        f"<pre>{html.escape(command)}</pre>{run_tables.environments(results.environments)}</section>"
    )
