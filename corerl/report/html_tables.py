"""Tables as HTML: readable as they are, and marked for the page's script to filter, sort and copy."""

import html
import json
from collections.abc import Sequence
from typing import Any

from corerl.report.tables import (
    UP,
    Cell,
    Column,
    Row,
    Table,
    spread_text,
    title_text,
    value_text,
)


def to_html(table: Table, caption: bool = True) -> str:
    """Renders a `<figure>` with the table and its notes, which the page styles."""
    e = html.escape
    head = "".join(_head(column, table) for column in table.columns)
    body = "".join(_row(row, table) for row in table.rows)
    reported = "".join(f"<p>{e(note)}</p>" for note in table.notes)
    title = e(title_text(table))
    return (
        f'<figure class="table" data-name="{e(table.name)}" data-digits="{table.digits}" '
        f'data-title="{title}">'
        + (f"<figcaption>{title}</figcaption>" if caption else "")
        + f'<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">{e(table.corner)}</th>{head}'
        f'</tr></thead><tbody>{body}</tbody></table></div><div class="notes">{reported}</div></figure>'
    )


def _head(column: Column, table: Table) -> str:
    e = html.escape
    reported = [f"n = {column.n}"] if column.n else []
    reported += [f"{column.steps} steps"] if column.steps and not table.steps else []
    small = f"<small>{e(', '.join(reported))}</small>" if reported else ""
    title = f' title="{e(column.detail)}"' if column.detail else ""
    of = f' data-algorithm="{e(column.algorithm)}"' if column.algorithm else ""
    return f'<th scope="col"{title}{of}>{e(column.name)}{small}</th>'


def _row(row: Row, table: Table) -> str:
    e = html.escape
    about = "".join(
        f' data-{name}="{e(value)}"'
        for name, value in (
            ("task", "" if row.aggregate else row.task or row.key),
            ("metric", row.metric),
            ("algorithms", json.dumps(row.algorithms) if row.algorithms else ""),
        )
        if value
    )
    kind = ' class="aggregate"' if row.aggregate else ""
    cells = "".join(map(lambda c, k: _cell(c, k, table), row.cells, table.columns))
    return f'<tr{kind}{about}><th scope="row">{e(row.name)}</th>{cells}</tr>'


def _cell(cell: Cell | None, column: Column, table: Table) -> str:
    if cell is None:
        return '<td class="missing">–</td>'
    spread = spread_text(cell, column, table)
    shown = html.escape(value_text(cell, table.digits))
    if spread:
        shown += f' <span class="spread{" few" if cell.few else ""}">{html.escape(spread)}</span>'
    top = ' class="top"' if cell.top else ""
    ties = f' data-ties="{" ".join(map(str, cell.ties))}"' if cell.ties else ""
    steps = f' data-steps="{cell.span}"' if cell.budget else ""
    value = f' data-value="{float(cell.value)!r}"'
    return f"<td{top}{value}{ties}{steps}>{shown}{_mark(cell)}</td>"


def _mark(cell: Cell) -> str:
    if not cell.mark:
        return ""
    kind, word = ("up", "ours is higher") if cell.mark == UP else ("down", "ours is lower")
    return f'<span class="{kind}" title="{word}">{cell.mark}</span>'


class Link:
    """A cell that leads somewhere."""

    def __init__(self, href: str, text: str):
        self.html = f'<a href="{html.escape(href)}">{html.escape(text)}</a>'


def plain(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table of text. The page's script adds the button that copies it."""
    e = html.escape
    top = "".join(f'<th scope="col">{e(h)}</th>' for h in head)
    body = "".join(
        f'<tr><th scope="row">{e(str(r[0]))}</th>'
        + "".join(f"<td>{c.html if isinstance(c, Link) else e(str(c))}</td>" for c in r[1:])
        + "</tr>"
        for r in rows
    )
    return (
        '<figure class="table"><div class="scroll" tabindex="0"><table class="plain"><thead>'
        f'<tr>{top}</tr></thead><tbody>{body}</tbody></table></div><div class="notes"></div></figure>'
    )
