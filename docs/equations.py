"""Equations of a page, `$$` on lines of their own, drawn as SVG, so that a reader fetches nothing."""

import html
import io
import re
from functools import cache

from matplotlib import mathtext, rc_context
from matplotlib.font_manager import FontProperties

BLOCK = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)


def drawn(markdown: str) -> str:
    """Returns the page with a picture for every equation; its LaTeX is read aloud instead."""
    return BLOCK.sub(lambda block: _svg(" ".join(block[1].split())), markdown)


@cache
def _svg(latex: str) -> str:
    """Raises ValueError where the equation has what matplotlib does not know."""
    file = io.BytesIO()
    with rc_context(
        {
            "mathtext.fontset": "stix",
            "svg.fonttype": "path",
            "svg.hashsalt": latex,
            "savefig.transparent": True,
        }
    ):
        mathtext.math_to_image(f"${latex}$", file, format="svg", prop=FontProperties(size=13))
    svg = file.getvalue().decode()
    unread = r"<metadata>.*?</metadata>|<!--.*?-->"
    svg = re.sub(unread, "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = svg.replace(
        "<svg", f'<svg class="equation" role="img" aria-label="{html.escape(latex)}"', 1
    )
    return re.sub(r"\s*\n\s*", " ", svg)
