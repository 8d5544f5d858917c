"""Notes on algorithms: their equations can be drawn, and they name what the code has."""

import importlib
import inspect
import re
import sys

import prose
import pytest
from blocks import ROOT

from corerl import algos
from corerl.data.tasks import resolve
from corerl.errors import CorerlError
from corerl.launch.settings_tables import variants

sys.path.insert(0, str(ROOT / "docs"))

import algorithm_pages
import equations

NOTES = sorted((ROOT / "docs" / "methods").glob("*.md"))


def words(algorithm: str) -> set[str]:
    """The names in an algorithm's file and in what it imports of this package."""
    module = importlib.import_module(f"corerl.algos.{algorithm}")
    imported = [inspect.getmodule(value) for value in vars(module).values()]
    sources = {m for m in imported if m and m.__name__.startswith("corerl.")} | {module}
    return {word for each in sources for word in re.findall(r"[\w.]+", inspect.getsource(each))}


@pytest.mark.parametrize("path", NOTES, ids=lambda path: path.stem)
def test_equations_are_drawn_and_names_are_the_code_s(path):
    text = path.read_text(encoding="utf-8")
    assert path.stem in algos.names()
    assert text.startswith("## When to choose it\n") and "\n## Equations\n" in text
    drawn = algorithm_pages.notes(path.stem)
    assert drawn.count("<svg") == text.count("$$") / 2 > 0 and "$$" not in drawn
    text_alone = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    known = words(path.stem) | {*algos.names(), *variants(), "configs/"}
    named = [re.sub(r"\w+=|algo\.|\(\)", "", name) for name in re.findall(r"`([^`]*)`", text_alone)]
    named = [name for name in named if not name.startswith(("corerl ", "make "))]
    assert [name for name in named if name not in known and not is_task(name)] == []
    assert list(prose.problems(text_alone)) == []
    pictures = re.findall(r"\]\(([^)]*\.png)\)", text)
    assert all((path.parent / picture).is_file() for picture in pictures)


def is_task(name: str) -> bool:
    try:
        return "/" in name and bool(resolve(name))
    except CorerlError:
        return False


def test_every_algorithm_has_a_note():
    assert {path.stem for path in NOTES} == set(algos.names())


def test_an_equation_is_read_aloud_and_takes_the_text_s_colour():
    svg = equations.drawn("a\n\n$$\n\\gamma\n< 1\n$$\n")
    assert svg.startswith("a\n\n<svg") and 'aria-label="\\gamma &lt; 1"' in svg
    assert "#ffffff" not in svg and "\n" not in svg.strip().split("\n\n")[1]
