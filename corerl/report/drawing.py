"""Rendering of a figure as PNG and SVG, and the SVG within a page."""

import html
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

GREY = "#8c8f94"


INK = "#1b1c1d"  # the one colour of all text and axes; a page may turn it into its own


HALF = (4.8, 3.1)  # inches; two of these stand side by side on the page


LEGEND = 8  # points


LETTER = 0.55  # the mean width of a letter, of its size


PNG = {"compress_level": 4}  # three quarters of the usual level's time for 2% more bytes


STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": LEGEND,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "text.parse_math": False,  # a dollar in a name is a dollar
    **{
        key: INK
        for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    },
}


def grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list]:
    """Makes a figure of inches and its panels, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def render(draw: Callable[[], Figure], name: str, foot: str = "") -> tuple[bytes, bytes, bool]:
    """Renders what `draw` gives, with `foot` below it: (PNG, SVG, whether it needs the page's width).

    `name` makes the SVG's ids the same every time.
    """
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = draw()
        if foot:
            _write_below(figure, foot)
        png, svg = io.BytesIO(), io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+")  # one for each letter: see `boxes`
            figure.set_dpi(200)
            figure.get_layout_engine().execute(figure)
            figure.set_layout_engine(None)  # with one, savefig lays out and draws everything twice
            figure.savefig(png, format="png", dpi=200, facecolor="white", pil_kwargs=PNG)
            figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
    return png.getvalue(), svg.getvalue(), figure.get_figwidth() > HALF[0]


def _write_below(figure: Figure, text: str) -> None:
    """Writes a text below all panels, in lines that fit. The figure grows by them."""
    lines = textwrap.wrap(text, int(72 * figure.get_figwidth() / (LETTER * LEGEND)))
    figure.set_figheight(figure.get_figheight() + 1.5 * LEGEND / 72 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=LEGEND)


def boxes(texts: Iterable[str]) -> str:
    """Returns the letters that the font lacks, for which a figure has boxes."""
    font = get_font(findfont(FontProperties()))
    return "".join(
        dict.fromkeys(c for text in texts for c in text if not font.get_char_index(ord(c)))
    )


def inline(svg: bytes, name: str, label: str) -> str:
    """Returns the SVG for a page: no prologue, no background, text in the page's colour, ids of its own."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace(f"fill: {INK}", "fill: currentColor")
    text = text.replace(f"stroke: {INK}", "stroke: currentColor").replace(
        "fill: #ffffff", "fill: none"
    )
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
