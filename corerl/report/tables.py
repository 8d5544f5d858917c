"""One table model: cells of numbers with their spread, and what is shown of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UP, DOWN = "▲", "▼"
ENOUGH_SEEDS = 5
"""With fewer, a spread is grey, carries its n, and is never a reason for emphasis."""


@dataclass(frozen=True)
class Cell:
    """A number with its spread (std) or its interval (low, high), and the seeds and steps behind it."""

    value: float
    std: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: str = ""
    interval: bool = False  # whether to show [low, high], even if it is unknown
    top: bool = False  # whether it is bold, as the best of its row or tied with the best
    mark: str = ""  # UP or DOWN if our number is higher or lower than this one
    # Distinct steps of its runs, None where some are unknown; empty where all are.
    budget: tuple[int | None, ...] = ()
    pretrained: int = 0  # updates on the data before those steps
    ties: tuple[int, ...] = ()  # columns that this cell would be tied with if they were the best

    @property
    def few(self) -> bool:
        """Tells whether so few seeds stand behind it that its spread says little."""
        return self.n != "" and int(self.n.partition("-")[0]) < ENOUGH_SEEDS

    @property
    def steps(self) -> str:
        """`10k`, `2k-3k` where seeds differ, `20k+10k` after 20,000 updates on the data, or nothing."""
        if not self.budget:
            return ""
        known = [steps for steps in self.budget if steps is not None]
        ends = "-".join(dict.fromkeys([short(known[0]), short(known[-1])]))
        unknown = " or unknown" if None in self.budget else ""
        return (f"{short(self.pretrained)}+" if self.pretrained else "") + ends + unknown

    @property
    def span(self) -> str:
        """Its steps in full for programs: `2000`, `2000-3000`, `2000-?` where some are unknown."""
        ends = dict.fromkeys([*self.budget[:1], *self.budget[-1:]])
        return "-".join("?" if steps is None else str(steps) for steps in ends)


@dataclass(frozen=True)
class Column:
    """`n` and `steps` are shown in the head where all cells share them."""

    name: str
    n: str = ""
    steps: str = ""
    detail: str = ""  # source of published numbers
    algorithm: str = ""  # algorithm whose runs the column shows


@dataclass(frozen=True)
class Row:
    """One line. `key` is the full name in the CSV, where the shown one is shortened."""

    name: str
    cells: tuple[Cell | None, ...]
    aggregate: bool = False
    key: str = ""
    task: str = ""  # the row's task, if the key is something else
    metric: str = ""  # name of the metric, if the row is an aggregate
    algorithms: tuple[str, ...] = ()  # the row's algorithms, if the columns do not name them


@dataclass(frozen=True)
class Table:
    """`name` is the stem of its files. `corner` heads the rows. Notes go below."""

    name: str
    title: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    digits: int = 1
    notes: tuple[str, ...] = ()
    compares: bool = False  # whether it shows published numbers (its first note is the rule)
    steps: str = ""  # steps that all cells share, for the title


def shared(values: Iterable[str]) -> str:
    """Returns the one value of all, or nothing where they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else ""


def column(
    name: str, cells: Sequence[Cell | None], detail: str = "", algorithm: str = ""
) -> Column:
    """Returns a column whose head says what all its cells have in common."""
    known = [cell for cell in cells if cell is not None]
    n, steps = shared(cell.n for cell in known), shared(cell.steps for cell in known)
    return Column(name, n, steps, detail, algorithm)


def same_budget(a: Cell, b: Cell) -> bool:
    """Tells whether both rest on runs of the same number of steps, or nobody knows of either."""
    return a.budget == b.budget and len(a.budget) < 2


def short(steps: float) -> str:
    """Writes numbers briefly: `10k`, `1.5M`, `12,345`."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        text = f"{steps / size:g}"  # of six digits
        if steps >= size and steps % (size // 100) == 0 and float(text) == steps / size:
            return text + letter
    return f"{steps:,.0f}"


def plural(count: int, word: str) -> str:
    """Counts in words: `1 run`, `2 runs`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def digits_of(cells: Iterable[Cell | None]) -> int:
    """Returns the decimals with which every spread, or mean without one, shows a digit. At least 1.

    What rounding leaves of a zero beside the table's other numbers counts as zero.
    """
    sizes = []
    for cell in filter(None, cells):
        mean = abs(cell.value)
        spread = cell.std > 1e-6 * mean  # a smaller one comes of float32's rounding
        sizes += [cell.std if spread else mean]
    least = 1e-12 * max(sizes, default=0.0)
    return max([1, *(-math.floor(math.log10(size)) for size in sizes if size > least)])


# ---------------------------------------------------------------------------------- what is shown


def number(x: float, digits: int) -> str:
    """Formats a number, rounded and never `-0.0`."""
    text = f"{x:.{digits}f}"
    return text[1:] if text.startswith("-") and not float(text) else text


def value_text(cell: Cell | None, digits: int) -> str:
    """Returns the number alone, or a dash."""
    return "–" if cell is None else number(cell.value, digits)


def spread_text(cell: Cell | None, head: Column, table: Table) -> str:
    """Returns the text after the number: its spread, and the seeds and steps that the head does not say."""
    if cell is None:
        return ""
    texts = []
    if cell.interval:
        texts.append(_interval(cell, table.digits))
    elif not math.isnan(cell.std):
        texts.append(f"± {number(cell.std, table.digits)}")
    reported = []
    if cell.n and (cell.few if cell.interval else not head.n):
        reported.append(f"n={cell.n}")
    if cell.steps and not head.steps and not table.steps:
        reported.append(f"{cell.steps} steps")
    return " ".join([*texts, *([f"({', '.join(reported)})"] if reported else [])])


def _interval(cell: Cell, digits: int) -> str:
    """Writes `[low, high]`. Where seeds do not differ at all, the width would be 0 and says nothing."""
    if math.isnan(cell.low) or cell.low == cell.high:
        return "[n/a]"
    return f"[{number(cell.low, digits)}, {number(cell.high, digits)}]"


def head_text(head: Column, table: Table) -> str:
    """Writes a column's head: `IQL (n=10, 1M steps)`."""
    reported = [f"n={head.n}"] if head.n else []
    reported += [f"{head.steps} steps"] if head.steps and not table.steps else []
    return f"{head.name} ({', '.join(reported)})" if reported else head.name


def title_text(table: Table) -> str:
    """Returns the title, with the steps that all cells share."""
    return f"{table.title}, {table.steps} steps" if table.steps else table.title
