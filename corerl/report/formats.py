"""A table as text, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
import textwrap

from corerl.report.tables import (
    DOWN,
    UP,
    Cell,
    Row,
    Table,
    head_text,
    spread_text,
    title_text,
    value_text,
)

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _whole(cell: Cell | None, spread: str, digits: int) -> str:
    return " ".join(filter(None, [value_text(cell, digits), spread]))


def _spreads(table: Table, row: Row) -> list[str]:
    return [spread_text(c, head, table) for c, head in zip(row.cells, table.columns, strict=True)]


def to_text(table: Table, width: int | None = None, colour: bool = False) -> str:
    """Renders aligned columns, `*` after what is emphasised.

    Args:
        width: a wider table continues below itself, in blocks of columns that fit.
        colour: for a terminal: the spread of few seeds is dim.
    """
    grid = [_text_row(table, row) for row in table.rows]
    names = [[row.name] for row in table.rows]
    if width and max((len(row.name) for row in table.rows), default=0) > width // 2:
        wrap = textwrap.TextWrapper(width // 3, subsequent_indent="  ").wrap
        names = [wrap(row.name) or [""] for row in table.rows]
    longest = max((len(line) for lines in names for line in lines), default=0)
    corner = _wrapped(table.corner, longest) if width else [table.corner]
    first = max(longest, *map(len, corner))
    bodies = [max(len(row[i]) for row in grid) for i in range(len(table.columns))]
    heads = [
        _wrapped(head_text(head, table), body) if width else [head_text(head, table)]
        for head, body in zip(table.columns, bodies, strict=True)
    ]
    widths = [max(body, *(len(t) + 1 for t in h)) for body, h in zip(bodies, heads, strict=True)]
    blocks = _blocks(widths, (width or 10**9) - first)
    lines = [*_fill(title_text(table), width), ""]
    for block in blocks:
        if len(blocks) > 1:
            some = f"columns {block[0] + 1} to {block[-1] + 1}"
            lines += [f"{some if len(block) > 1 else f'column {block[0] + 1}'} of {len(widths)}"]
        lines += [*_block(table, grid, names, corner, heads, widths, block, first, colour), ""]
    notes = [line for note in table.notes for line in _fill(note, width)]
    return "\n".join([*lines, *notes, ""])


def _block(table, grid, names, corner, heads, widths, block, first: int, colour: bool) -> list[str]:
    """Renders some columns of the table, with its names before them."""
    high = max(len(corner), *(len(heads[i]) for i in block))
    corners, *tops = (
        [""] * (high - len(head)) + head for head in (corner, *(heads[i] for i in block))
    )
    lines = [
        _line(name, first, [t.rjust(widths[i] - 1) + " " for t, i in zip(row, block, strict=True)])
        for name, *row in zip(corners, *tops, strict=True)
    ]
    rule = "-" * (first + sum(2 + widths[i] for i in block))
    lines.append(rule)
    for k, row in enumerate(table.rows):
        if row.aggregate and k and not table.rows[k - 1].aggregate:
            lines.append(rule)
        texts = [grid[k][i].rjust(widths[i]) for i in block]
        if colour:
            texts = [_dimmed(t, row.cells[i]) for t, i in zip(texts, block, strict=True)]
        lines += [_line(names[k][0], first, texts), *names[k][1:]]
    return lines


def _wrapped(head: str, width: int) -> list[str]:
    """Breaks a head into lines about as wide as its column: the words of the name, then the seeds."""
    name, _, reported = head.partition(" (n=")
    lines = textwrap.wrap(name, max(width - 1, 12), break_long_words=False) or [""]
    return [*lines, *textwrap.wrap(f"(n={reported}", max(width - 1, 12))] if reported else lines


def _fill(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, width) if width else [text]


def _text_row(table: Table, row: Row) -> list[str]:
    marks = [" " if c is None else "*" if c.top else c.mark or " " for c in row.cells]
    wholes = map(lambda c, s: _whole(c, s, table.digits), row.cells, _spreads(table, row))
    return [text + mark for text, mark in zip(wholes, marks, strict=True)]


def _line(name: str, first: int, texts: list[str]) -> str:
    return "  ".join([name.ljust(first), *texts]).rstrip()


def _blocks(widths: list[int], room: int) -> list[list[int]]:
    """Groups the columns in runs that fit beside the names. A column that never fits stands alone."""
    blocks: list[list[int]] = [[]]
    for i, width in enumerate(widths):
        if blocks[-1] and sum(2 + widths[k] for k in blocks[-1]) + 2 + width > room:
            blocks.append([])
        blocks[-1].append(i)
    return blocks


def _dimmed(text: str, cell: Cell | None) -> str:
    if cell is None or not cell.few:
        return text
    return re.sub(r"(?<=\d) ([\[±(].*)", rf" {DIM}\1{PLAIN}", text, count=1)


# --------------------------------------------------------------------------------------- Markdown


def escaped(text: str) -> str:
    """Escapes text of others in Markdown, so that nothing in it is markup, a link or a cell's end."""
    text = re.sub(r"[\\`*|<~$&]|(?<=\])\(", r"\\\g<0>", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\_", text)  # within a word it stands for itself


def to_markdown(table: Table) -> str:
    """Returns a GitHub table. What is emphasised is bold, the spread of few seeds is small."""
    heads = [table.corner, *(head_text(head, table) for head in table.columns)]
    lines = [
        f"**{escaped(title_text(table))}**",
        "",
        "| " + " | ".join(map(escaped, heads)) + " |",
        "|" + " --- |" + " ---: |" * len(table.columns),
    ]
    for row in table.rows:
        cells = [
            _markdown_cell(c, s, table.digits)
            for c, s in zip(row.cells, _spreads(table, row), strict=True)
        ]
        lines.append("| " + " | ".join([escaped(row.name), *cells]) + " |")
    return "\n".join([*lines, "", *(f"{escaped(note)}  " for note in table.notes), ""])


def _markdown_cell(cell: Cell | None, spread: str, digits: int) -> str:
    if cell is None:
        return value_text(cell, digits)
    if cell.few and spread:
        spread = f"<sub>{spread}</sub>"
    text = _whole(cell, spread, digits)
    return f"**{text}**" if cell.top else f"{text} {cell.mark}".rstrip()


# ------------------------------------------------------------------------------------------ LaTeX

_TEX = {c: "\\" + c for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {"\\": r"\textbackslash{}", "–": "--", "±": r"$\pm$", "×": r"$\times$"}
_TEX |= {UP: r"$\uparrow$", DOWN: r"$\downarrow$", "<": r"\textless{}", ">": r"\textgreater{}"}
_TEX |= {"|": r"\textbar{}", '"': r"\symbol{34}"}  # the default encoding has no \textquotedbl
_GREEK = "α alpha β beta γ gamma δ delta ε epsilon η eta θ theta κ kappa λ lambda μ mu π pi ρ rho σ sigma"
_GREEK = f"{_GREEK} τ tau φ phi ω omega".split()
_TEX |= {c: rf"$\{name}$" for c, name in zip(_GREEK[::2], _GREEK[1::2], strict=True)}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def to_latex(table: Table) -> str:
    """Returns a booktabs `tabular`. The title and notes are comments. Needs booktabs and xcolor."""
    lines = [
        *("% " + " ".join(note.split()) for note in (title_text(table), *table.notes)),
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        _tex_line([_tex(t) for t in (table.corner, *(head_text(h, table) for h in table.columns))]),
        r"\midrule",
    ]
    previous = None
    for row in table.rows:
        if previous is not None and row.aggregate and not previous.aggregate:
            lines.append(r"\midrule")
        spreads = _spreads(table, row)
        cells = [_tex_cell(c, s, table.digits) for c, s in zip(row.cells, spreads, strict=True)]
        lines.append(_tex_line([_tex(row.name), *cells]))
        previous = row
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _tex_line(texts: list[str]) -> str:
    # The command before a row would take a `[` or `*` at its beginning for an option.
    begin = "{}" if texts[0].startswith(("[", "*")) else ""
    return begin + " & ".join(texts) + r" \\"


def _tex_cell(cell: Cell | None, spread: str, digits: int) -> str:
    value = _tex(value_text(cell, digits))
    if cell is None:
        return value
    spread = _tex(spread)
    if cell.few and spread:
        spread = rf"\textcolor{{gray}}{{{spread}}}"
    text = " ".join(filter(None, [value, spread]))
    return rf"\textbf{{{text}}}" if cell.top else text + _tex(cell.mark)


# -------------------------------------------------------------------------------------------- CSV


def to_csv(table: Table) -> str:
    """Writes long form with full precision: one line per cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "column", "value", "std", "low", "high", "n", "steps", "source"])
    for row in table.rows:
        for head, cell in zip(table.columns, row.cells, strict=True):
            if cell is None:
                continue
            numbers = (cell.value, cell.std, cell.low, cell.high)
            shown = ["" if math.isnan(x) else repr(float(x)) for x in numbers]
            texts = [guarded(text) for text in (row.key or row.name, head.name, head.detail)]
            writer.writerow([*texts[:2], *shown, cell.n, cell.span, texts[2]])
    return out.getvalue()


def guarded(text: str) -> str:
    """Puts an apostrophe before text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def unguarded(text: str) -> str:
    """Returns the inverse of `guarded`."""
    return text[1:] if text[:1] == "'" and text[1:].startswith(FORMULA) else text


FORMATS = {"txt": to_text, "md": to_markdown, "tex": to_latex, "csv": to_csv}
