"""A lint for prose: short sentences, no semicolons, the field's words."""

import re
import textwrap
from collections.abc import Iterator

LONGEST = 25
"""Words of a sentence. An inline code span, a link's address and a number count as one."""
BANNED = {
    r"numbered actions?": "discrete actions",
    r"begins? anew|began anew": "start over",
    r"anew": "again",
    r"is (said|told|refused)": "say who acts: prints, warns, raises an error",
    r"are (said|told|refused)": "say who acts: prints, warns, raises an error",
    r"laws? of (returns|the return)": "distribution",
    r"of one's own": "your own, custom",
    r"but for": "except",
    r"(goes|go|went) on": "resume, continue",
    r"none of (its|the|them)": "not one of",
    r"of (which|whose)": "two sentences",
}
_BOX = re.compile(r"^!!! .*\n((?: {4}.*\n)+)", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
_SKIPPED = re.compile(r"^( {4,}\S.*|\t.*|#.*|!\[.*|<.*|[-=]{3,})$", re.MULTILINE)
_SPAN = re.compile(r"`[^`]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:])[\s*_]+(?=[A-Z`\"(*_\d-]|corerl|gymnasium)")
_SHORT = re.compile(r"\b(e\.g|i\.e|etc|vs|al|cf|eq|Fig|Sec|App)\.")


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a Markdown page, of its table cells too, without code and headings."""
    text = _BOX.sub(lambda box: textwrap.dedent(box[1]), _FENCE.sub("", text))
    text = _LINK.sub(r"\1", _SPAN.sub("CODE", _SKIPPED.sub("", text)))
    text = _ROW.sub(lambda row: "\n\n".join(row[1].split("|")) + "\n\n", text)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text):
        flat = _SHORT.sub(r"\1", " ".join(paragraph.split())).lstrip("-*> ")
        yield from (s for s in _END.split(flat) if len(s.split()) > 1)


def problems(text: str) -> Iterator[str]:
    """Yields what is wrong with each sentence of a Markdown page."""
    for sentence in sentences(text):
        count = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        if count > LONGEST:
            yield f"{count} words: {sentence}"
        if ";" in sentence:
            yield f"semicolon: {sentence}"
        for pattern, better in BANNED.items():
            if re.search(rf"\b({pattern})\b", sentence, re.IGNORECASE):
                yield f"'{pattern}' ({better}): {sentence}"
