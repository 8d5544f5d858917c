"""Pages read at first sight: short sentences, no semicolons, the field's words."""

import re

import prose
import pytest
from blocks import ROOT

PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/README.md"]
PAGES += [f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))]
RESULTS = sorted((ROOT / "results" / "reproduced").glob("*/README.md"))
PAGES += [page.relative_to(ROOT).as_posix() for page in RESULTS]
PAGES += ["results/bench/README.md", "results/bench/h100.md", "results/datasets/README.md"]
PAGES += ["results/published/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_at_first_sight(page):
    assert list(prose.problems((ROOT / page).read_text(encoding="utf-8"))) == []


AFTER_A_LIST = re.compile(
    r"^(?:[-*]|\d+\.) .*\n(?: +\S.*\n|(?:[-*]|\d+\.) .*\n)*\n {4}\S", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES)
def test_no_commands_are_indented_after_a_list(page):
    """Markdown takes them for a paragraph of the last item. A fence keeps their lines."""
    assert AFTER_A_LIST.findall((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("Runs resume. They skip what is done.", 0),
        ("A run resumes; it skips what is done.", 1),
        ("It learns numbered actions.", 1),
        (" ".join(["word"] * 26) + ".", 1),
        (" ".join(["word"] * 25) + ". " + " ".join(["Word"] * 25) + ".", 0),
        ('!!! note "Smaller"\n    A run resumes; it skips what is done.\n', 1),
        ("| a; b | c |\n|---|---|\n| d | e; f |\n", 2),
        ("```\na; b\n```\n\n    a; b\n\n`a; b` [is](a;b) code.", 0),
    ],
)
def test_the_lint_sees_what_it_is_for(text, problems):
    assert len(list(prose.problems(text))) == problems


def test_the_changes_of_a_release_fit_a_page():
    release = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert len(release.strip().splitlines()) <= 60
