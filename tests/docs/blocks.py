"""The commands of README and of the pages under docs/, found in their blocks and in the prose."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAMS = ("corerl", "python", "pip", "make", "git")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n|\n)+)")
INLINE = re.compile(r"`(corerl [a-z]+ [^`]+)`")


class Command(NamedTuple):
    """One command as its words. `shown`: the file and the line as typed; `block`: not only in prose."""

    shown: str
    words: list[str]
    block: bool


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> Iterator[Command]:
    """Every command of every page."""
    for page in pages():
        yield from of_text(page.read_text(), page.name)


def of_text(text: str, name: str) -> Iterator[Command]:
    """The commands of one page; a name that is set in a block (`T=...`) is filled in after it."""
    fenced = [match for match in FENCED.findall(text)]
    prose = FENCED.sub("", text)
    blocks = [body for language, body in fenced if language in ("", "sh", "bash", "console")]
    blocks += INDENTED.findall(prose)
    for block in blocks:
        names: dict[str, str] = {}
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            yield from _of_line(line.strip(), names, name)
    for span in INLINE.findall(INDENTED.sub("", prose)):
        yield Command(f"{name}: {span}", shlex.split(span), False)


def _of_line(line: str, names: dict[str, str], page: str) -> Iterator[Command]:
    setting = re.match(r"([A-Z]+)=(.*)$", line)
    if setting:
        names[setting.group(1)] = " ".join(
            shlex.split(Template(setting.group(2)).substitute(names))
        )
    elif line.startswith(PROGRAMS):
        words = shlex.split(Template(line).safe_substitute(names), comments=True)
        yield Command(f"{page}: {line}", words, True)


def programs_blocks(language: str) -> list[tuple[str, str]]:
    """(page, body) of every fenced block in a language."""
    return [
        (page.name, body)
        for page in pages()
        for found, body in FENCED.findall(page.read_text())
        if found == language
    ]
