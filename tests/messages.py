"""Writes tests/messages.txt: every text of the source that users see, for one review in one place.

    python tests/messages.py

Texts are strings of four words or more that are no docstrings, and the comments of settings, which
`corerl train algo=X --help` prints. An expression in an f-string is shown as `{...}`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SNAPSHOT = Path(__file__).with_suffix(".txt")
WORDS = 4


def sources() -> list[Path]:
    return [f for room in ("corerl", "algos", "envs") for f in sorted((ROOT / room).rglob("*.py"))]


def texts(source: str) -> Iterator[tuple[str, bool]]:
    """Yields the texts of a file from top to bottom, and whether each is the comment of a setting."""
    tree, lines = ast.parse(source), source.splitlines()
    seen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            seen.update(id(part) for part in node.values)
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    ends = {lines[field.lineno - 1], lines[field.end_lineno - 1]}
                    comments = [line.rpartition("  # ")[2] for line in ends if "  # " in line]
                    found += [(field.lineno, f"{field.target.id}: {c}", True) for c in comments]
        if id(node) not in seen and (text := shown(node)) and is_prose(text):
            found.append((node.lineno, text, False))
    yield from ((text, comment) for _, text, comment in sorted(found))


def shown(node: ast.AST) -> str:
    """Returns a string's text on one line, empty for other nodes."""
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{...}" for p in node.values)
        return " ".join("".join(parts).split())
    return " ".join(node.value.split()) if _is_text(node) else ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_prose(text: str) -> bool:
    return sum(word.strip(".,:;()").isalpha() for word in text.split()) >= WORDS


def snapshot() -> str:
    files = ((f, [text for text, _ in texts(f.read_text(encoding="utf-8"))]) for f in sources())
    return "\n".join(
        f"{file.relative_to(ROOT).as_posix()}\n" + "".join(f"    {text}\n" for text in found)
        for file, found in files
        if found
    )


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
