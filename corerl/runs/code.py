"""The code of an algorithm: it may change where the settings that name a run stay as they are."""

import ast
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from corerl.errors import CorerlError
from corerl.runs.files import read_json


def digest(name: str) -> str:
    """Returns eight hex digits of an algorithm's file and of those that it imports from `corerl.algos`.

    Comments, docstrings and layout do not count: they change no number.
    """
    trees: dict[str, ast.Module] = {}
    _read(name, trees)
    text = "\n".join(_told(_bare(trees[key])) for key in sorted(trees))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def of_another(folders: Iterable[tuple[Path, list[int]]], name: str) -> list[int]:
    """Returns the seeds, of folders of a run, that were begun with other code; not those that do not tell."""
    told = [(begun, seeds) for folder, seeds in folders if (begun := _begun_with(folder))]
    now = digest(name) if told else ""  # reads files, which a fresh run need not
    return sorted(seed for begun, seeds in told if begun != now for seed in seeds)


def _begun_with(folder: Path) -> str | None:
    with suppress(CorerlError, AttributeError):  # a damaged file tells nothing
        return read_json(folder / "env.json").get("code")
    return None


def _read(name: str, trees: dict[str, ast.Module]) -> None:
    spec = find_spec(f"corerl.algos.{name}")
    if name in trees or spec is None or spec.origin is None:
        return
    trees[name] = ast.parse(Path(spec.origin).read_text())
    for node in ast.walk(trees[name]):
        if isinstance(node, ast.ImportFrom) and node.module == "corerl.algos":
            for alias in node.names:
                _read(alias.name, trees)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("corerl.algos."):
            _read(node.module.removeprefix("corerl.algos."), trees)


def _bare(tree: ast.Module) -> ast.Module:
    """Takes the docstrings out."""
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *_]:
                del node.body[0]
    return tree


def _told(node: object) -> str:
    """Writes a tree in the same way in every version of Python, unlike `ast.dump` and `ast.unparse`."""
    if isinstance(node, list):
        return f"[{','.join(map(_told, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, part) for name, part in ast.iter_fields(node) if part not in (None, [])]
    return f"{type(node).__name__}({','.join(name + '=' + _told(part) for name, part in fields)})"
