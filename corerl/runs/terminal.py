"""Tables on a terminal: without frames, so that 80 columns hold them."""

from collections.abc import Collection, Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def table(columns: Iterable[str], left: Collection[str] = (), title: str | None = None) -> Table:
    """Makes a table to be filled.

    Args:
        columns: their heads. A number stands flush right and whole; a line break in a head saves room.
        left: those of them that hold words, flush left, in as many lines as it takes.
        title: as it is, without markup.
    """
    made = Table(
        title=None if title is None else plain(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        words = column in left
        justify = "left" if words else "right"
        made.add_column(column, justify=justify, no_wrap=not words, overflow="fold")
    return made


def console() -> Console:
    """Returns the console of standard output. In a file or a pipe, wide enough for every table."""
    own = Console()
    return own if own.is_terminal else Console(width=180)


def plain(text: str, style: str = "") -> Text:
    """Returns `text` as it is: brackets are no markup, and what would steer a terminal is spelled out."""
    return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in text), style)
