"""The rooms of the house: what may import what, and that the package list names them all."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "envs": {"risk"},
    "nn": set(),
    "risk": set(),
    "data": {"envs"},
    "buffers": {"data", "runs"},  # how a replay is kept on the disk
    "runs": {"data"},
    "training": {"nn", "risk", "data", "buffers", "runs"},
    "policies": {"training", "nn", "data", "runs"},
    "preferences": {"policies", "training", "nn", "risk", "data", "buffers", "runs"},
    "algos": {"training", "preferences", "nn", "risk", "data", "buffers", "runs"},
    "launch": {
        *("algos", "policies", "training", "preferences", "nn", "data", "buffers", "runs"),
    },
    "bench": {"launch", "algos", "training", "nn", "data", "runs"},
    "recipes": {"launch", "algos", "training", "nn", "data", "buffers", "envs", "runs"},
    "commands": {"launch", "policies", "preferences", "data", "runs"},
    "ope": {"policies", "preferences", "nn", "risk", "data", "runs"},
    "report": {"data", "runs", "risk"},
}
"""Which other rooms each may import; everything may import `OPEN`."""
OPEN = {"corerl", "errors", "config", "older_settings", "seeding"}
ROOT_FILES = OPEN - {"corerl"} | {"cli", "__init__", "__main__"}
EXCEPTIONS = {
    "corerl/__main__.py": {"cli"},
    "corerl/cli.py": {"launch", "report"},  # the command line leads to both
    "corerl/ope/cli.py": {"launch"},  # plays pending evaluations with the numerics of training
    "corerl/ope/selection.py": {"report"},  # the colours that algorithms have in every figure
}


def sources() -> list[Path]:
    folders = ("corerl", "algos", "envs")
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def room_of(path: Path) -> str:
    first, *rest = path.relative_to(ROOT).parts
    return first if first != "corerl" else rest[0] if len(rest) > 1 else path.stem


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Every name that is imported from this package, as `corerl.nn.optim.Adam`, wherever it stands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "corerl")


def under_main(path: Path) -> set[str]:
    """What only `python algos/iql.py` imports."""
    main = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.If)]
    return {f"{n.module}" for block in main for n in block.body if isinstance(n, ast.ImportFrom)}


def test_every_import_follows_an_arrow():
    for path in sources():
        here = room_of(path)
        allowed = ROOMS.get(here, set()) | OPEN | {here}
        allowed |= EXCEPTIONS.get(str(path.relative_to(ROOT)), set())
        allowed |= {"cli"} if "corerl.cli" in under_main(path) else set()
        for name in imports(path):
            there = name.split(".")[1] if "." in name else "corerl"
            assert there in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_only_a_few_files_stand_outside_the_rooms():
    assert {path.stem for path in (ROOT / "corerl").glob("*.py")} == ROOT_FILES
    folders = {path.parent.name for path in (ROOT / "corerl").glob("*/__init__.py")}
    assert folders | {"algos", "envs"} == set(ROOMS)


def test_no_two_files_import_each_other_at_the_top():
    modules = {}
    for path in sources():
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        parts = parts if parts[0] == "corerl" else ["corerl", *parts]
        modules[".".join(parts).removesuffix(".__init__")] = path

    def known(name: str) -> str | None:
        return name if name in modules else name.rpartition(".")[0]

    graph = {
        module: {known(name) for name in imports(path, top_level=True)} - {module, "corerl"}
        for module, path in modules.items()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_text_names_its_encoding():
    """In other locales than UTF-8's, and on Windows, Python's default is another."""
    text = {"read_text", "write_text"}
    for path in [*sources(), *(ROOT / "docs").glob("*.py")]:
        for call in (n for n in ast.walk(ast.parse(path.read_bytes())) if isinstance(n, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            binary = any("b" in ast.unparse(mode).strip("'") for mode in call.args[1:2])
            if name in text or (isinstance(call.func, ast.Name) and name == "open" and not binary):
                named = {keyword.arg for keyword in call.keywords}
                assert "encoding" in named, f"{path.relative_to(ROOT)}, line {call.lineno}"


def test_the_package_list_is_the_tree():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    moved = {folder: name for name, folder in listed["package-dir"].items()}
    found = set()
    for file in (path for top in moved for path in (ROOT / top).rglob("__init__.py")):
        folder = str(file.parent.relative_to(ROOT))
        found.add(moved.get(folder, folder.replace("/", ".")))
    assert set(listed["packages"]) == found


def test_no_two_test_files_have_one_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), "pytest takes a test file for the other of its name"


def test_a_clone_beside_a_script_does_not_hide_the_package(tmp_path):
    (tmp_path / "corerl" / "runs" / "corerl").mkdir(parents=True)  # a clone, and what it trained
    (tmp_path / "script.py").write_text(
        "from corerl.nn.learner import Stateful; from corerl.algos import iql; print(iql.IQL)"
    )
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "corerl.algos.iql.IQL" in ended.stdout, ended.stderr
