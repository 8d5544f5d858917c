"""The code of an algorithm: it may change where the settings that name a run stay as they are."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from corerl.errors import CorerlError
from corerl.runs.files import read_json, write_json

PACKAGE = "corerl.algos"
FOREIGN = {"corerl", *sys.stdlib_module_names}
"""What no file beside an algorithm's stands for."""


def digest(name: str) -> str:
    """Returns eight hex digits of an algorithm's `trees`.

    Comments, docstrings and layout do not count: they change no number.
    """
    text = "\n".join(_spelled(tree) for _, tree in sorted(trees(name).items()))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def trees(name: str) -> dict[str, ast.Module]:
    """Returns the parsed files of an algorithm, by module: its own and those that it imports.

    Followed are imports from `corerl.algos` and, of a user's own file, of what lies beside it.

    Raises:
        SyntaxError: a file is no Python.
    """
    first = f"{PACKAGE}.{name}"
    spec = find_spec(first)
    found: dict[str, ast.Module] = {}
    left = {first: Path(spec.origin)} if spec and spec.origin else {}
    while left:
        module, path = left.popitem()
        found[module] = _parsed(path.read_text(encoding="utf-8"), str(path))
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        for other in _imported(found[module], package):
            file = None if other in found else _file(other, Path(spec.origin).parent)
            left |= {other: file} if file else {}
    return found


def of_another(folders: Iterable[tuple[Path, list[int]]], name: str) -> list[int]:
    """Returns the seeds, of folders of a run, that were begun with other code. Not those that do not tell."""
    reported = [(begun, seeds) for folder, seeds in folders if (begun := _begun_with(folder))]
    now = digest(name) if reported else ""  # reads files, which a fresh run need not
    return sorted(seed for begun, seeds in reported if begun != now for seed in seeds)


def goes_on(folder: Path, name: str) -> bool:
    """Tells whether a run resumes with other code than its last updates had, and notes that in `env.json`."""
    made = _begun_with(folder)
    made = [made] if isinstance(made, str) else made
    now = digest(name)
    if not made or made[-1] == now:
        return False
    path = folder / "env.json"
    write_json(path, read_json(path) | {"code": [*made, now]})
    return True


def _begun_with(folder: Path) -> str | list[str] | None:
    """Returns the code of a run. Several, in their order, where its updates had them one after the other."""
    with suppress(CorerlError, AttributeError):  # a damaged file tells nothing
        return read_json(folder / "env.json").get("code")
    return None


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yields what may be a module: `from a import b` is of `a`, and perhaps of `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = getattr(node, "module", None)
            if getattr(node, "level", 0):
                start = ".".join(filter(None, [package.rsplit(".", node.level - 1)[0], start]))
            for alias in node.names:
                name = f"{start}.{alias.name}" if start else alias.name
                yield from accumulate(name.split("."), "{}.{}".format)


def _file(module: str, beside: Path) -> Path | None:
    shipped = Path(find_spec(PACKAGE).origin).parent
    inside = module.startswith(f"{PACKAGE}.")
    if not inside and (beside == shipped or module.split(".")[0] in FOREIGN):
        return None
    name = module.removeprefix(f"{PACKAGE}.")
    for folder in (shipped, beside) if inside else (beside,):
        path = folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    spec = find_spec(module) if inside and "." not in name else None
    return Path(spec.origin) if spec and spec.origin else None


@cache  # a process that begins run after run reads the same files each time
def _parsed(text: str, path: str) -> ast.Module:
    return ast.parse(text, path)


@cache
def _spelled(tree: ast.Module) -> str:
    return _reported(tree)


def _reported(node: object) -> str:
    """Writes a tree in the same way in every version of Python, unlike `ast.dump` and `ast.unparse`."""
    if isinstance(node, list):
        return f"[{','.join(map(_reported, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(n, part) for n, part in map(_bare, ast.iter_fields(node)) if part not in (None, [])]
    return (
        f"{type(node).__name__}({','.join(name + '=' + _reported(part) for name, part in fields)})"
    )


def _bare(field: tuple[str, object]) -> tuple[str, object]:
    """Leaves out a docstring."""
    match field:
        case "body", [ast.Expr(value=ast.Constant()), *rest]:
            return "body", rest
    return field
