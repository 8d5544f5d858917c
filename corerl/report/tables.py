"""One table model, and its text, markdown, LaTeX, CSV and HTML."""

import csv
import html
import io
import math
import re
from dataclasses import dataclass

UP, DOWN = "▲", "▼"
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Cell:
    """A number with its spread (std) or its interval (low, high), and the seeds behind it."""

    value: float
    std: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: str = ""
    interval: bool = False  # show [low, high], also where it is unknown
    top: bool = False  # the best of its row, or not distinguishable from it
    mark: str = ""  # UP or DOWN: differs from the reference column


@dataclass(frozen=True)
class Column:
    name: str
    n: str = ""  # shown in the head where all cells share it
    detail: str = ""  # where published numbers are from


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[Cell | None, ...]
    aggregate: bool = False
    key: str = ""  # the full name in the CSV, where the shown one is shortened


@dataclass(frozen=True)
class Table:
    """`name` is the stem of its files; `corner` heads the rows; notes go below."""

    name: str
    title: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    digits: int = 1
    notes: tuple[str, ...] = ()
    compares: bool = False  # holds published numbers beside ours; its first note is the rule


def shared_n(cells: list[Cell | None]) -> str:
    """The number of seeds that all cells of a column have, or "" where they differ."""
    counts = {c.n for c in cells if c is not None}
    return counts.pop() if len(counts) == 1 else ""


def _number(x: float, digits: int) -> str:
    text = f"{x:.{digits}f}"
    return text[1:] if text.startswith("-") and not float(text) else text


def _show(cell: Cell | None, column: Column, digits: int, pm: str = "±", missing: str = "–") -> str:
    if cell is None:
        return missing
    text = _number(cell.value, digits)
    if cell.interval:
        known = not math.isnan(cell.low)
        low, high = _number(cell.low, digits), _number(cell.high, digits)
        text += f" [{low}, {high}]" if known else " [n/a]"
    elif not math.isnan(cell.std):
        text += f" {pm} {_number(cell.std, digits)}"
    if cell.n and not column.n:
        text += f" (n={cell.n})"
    return text


def _head(column: Column) -> str:
    return f"{column.name} (n={column.n})" if column.n else column.name


def _grid(table: Table, **style: str) -> list[list[str]]:
    return [
        [_show(c, k, table.digits, **style) for c, k in zip(row.cells, table.columns, strict=True)]
        for row in table.rows
    ]


def to_text(table: Table) -> str:
    """Aligned columns, `*` after the best of a row."""
    grid = _grid(table)
    for row, texts in zip(table.rows, grid, strict=True):
        for i, cell in enumerate(row.cells):
            mark = "" if cell is None else ("*" if cell.top else cell.mark)
            texts[i] += mark or " "
    names = [table.corner, *(r.name for r in table.rows)]
    body = [[_head(c) + " " for c in table.columns], *grid]
    first = max(map(len, names))
    widths = [max(len(line[i]) for line in body) for i in range(len(table.columns))]
    lines = [
        "  ".join([name.ljust(first), *(t.rjust(w) for t, w in zip(line, widths, strict=True))])
        for name, line in zip(names, body, strict=True)
    ]
    rule = "-" * max(map(len, lines))
    lines[1:1] = [rule]
    for i, row in enumerate(table.rows):
        if row.aggregate and (i == 0 or not table.rows[i - 1].aggregate):
            lines.insert(i + 2, rule)
            break
    return "\n".join([table.title, "", *(s.rstrip() for s in lines), "", *table.notes, ""])


def _plain(text: str) -> str:
    """Text of others in Markdown, so that nothing in it is markup, a link or a cell's end."""
    text = re.sub(r"[\\`*|<~$&]|(?<=\])\(", r"\\\g<0>", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\_", text)  # within a word it stands for itself


def to_markdown(table: Table) -> str:
    heads = [table.corner, *map(_head, table.columns)]
    lines = [
        f"**{_plain(table.title)}**",
        "",
        "| " + " | ".join(map(_plain, heads)) + " |",
        "|" + " --- |" + " ---: |" * len(table.columns),
    ]
    for row, texts in zip(table.rows, _grid(table), strict=True):
        cells = [
            f"**{t}**" if c is not None and c.top else t + (f" {c.mark}" if c and c.mark else "")
            for c, t in zip(row.cells, texts, strict=True)
        ]
        lines.append("| " + " | ".join([_plain(row.name), *cells]) + " |")
    return "\n".join([*lines, "", *(f"{_plain(n)}  " for n in table.notes), ""])


_TEX = {c: "\\" + c for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {
    "\\": r"\textbackslash{}",
    "–": "--",
    UP: r"$\uparrow$",
    DOWN: r"$\downarrow$",
    "±": r"$\pm$",
}
_TEX |= {"×": r"$\times$", "γ": r"$\gamma$"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def to_latex(table: Table) -> str:
    """A booktabs `tabular`; the title and notes are comments."""
    lines = [
        f"% {table.title}",
        *(f"% {n}" for n in table.notes),
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        " & ".join(map(_tex, [table.corner, *map(_head, table.columns)])) + r" \\",
        r"\midrule",
    ]
    previous = None
    for row, texts in zip(table.rows, _grid(table), strict=True):
        if previous is not None and row.aggregate and not previous.aggregate:
            lines.append(r"\midrule")
        cells = [
            rf"\textbf{{{_tex(t)}}}" if c is not None and c.top else _tex(t + (c.mark if c else ""))
            for c, t in zip(row.cells, texts, strict=True)
        ]
        lines.append(" & ".join([_tex(row.name), *cells]) + r" \\")
        previous = row
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def to_csv(table: Table) -> str:
    """Long form with full precision: one line per cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "column", "value", "std", "low", "high", "n", "source"])
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is not None:
                numbers = (cell.value, cell.std, cell.low, cell.high)
                shown = ["" if math.isnan(x) else repr(float(x)) for x in numbers]
                names = [guarded(t) for t in (row.key or row.name, column.name, column.detail)]
                writer.writerow([*names[:2], *shown, cell.n, names[2]])
    return out.getvalue()


def guarded(text: str) -> str:
    """Text that no spreadsheet takes for a formula: one that begins like one gets an apostrophe first."""
    return f"'{text}" if text.startswith(FORMULA) else text


def unguarded(text: str) -> str:
    """The inverse of `guarded`."""
    return text[1:] if text[:1] == "'" and text[1:].startswith(FORMULA) else text


def to_html(table: Table, caption: bool = True) -> str:
    """A `<figure>` with the table and its notes; styled by the page."""
    e = html.escape
    head = "".join(map(_html_head, table.columns))
    body = []
    for row, texts in zip(table.rows, _grid(table), strict=True):
        cells = "".join(
            f"<td{_class(c)}>{e(t)}{_mark(c)}</td>" for c, t in zip(row.cells, texts, strict=True)
        )
        kind = ' class="aggregate"' if row.aggregate else ""
        body.append(f'<tr{kind}><th scope="row">{e(row.name)}</th>{cells}</tr>')
    notes = "".join(f"<p>{e(n)}</p>" for n in table.notes)
    return (
        "<figure class='table'>"
        + (f"<figcaption>{e(table.title)}</figcaption>" if caption else "")
        + "<div class='scroll'><table>"
        f"<thead><tr><th scope='col'>{e(table.corner)}</th>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div><div class='notes'>{notes}</div></figure>"
    )


def _html_head(column: Column) -> str:
    title = f" title='{html.escape(column.detail)}'" if column.detail else ""
    count = f"<small>n = {html.escape(column.n)}</small>" if column.n else ""
    return f"<th scope='col'{title}>{html.escape(column.name)}{count}</th>"


def _class(cell: Cell | None) -> str:
    if cell is None:
        return " class='missing'"
    return " class='top'" if cell.top else ""


def _mark(cell: Cell | None) -> str:
    if cell is None or not cell.mark:
        return ""
    kind, word = ("up", "ours is higher") if cell.mark == UP else ("down", "ours is lower")
    return f"<span class='{kind}' title='{word}'> {cell.mark}</span>"


FORMATS = {"txt": to_text, "md": to_markdown, "tex": to_latex, "csv": to_csv}


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")
