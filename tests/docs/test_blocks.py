"""Every command of README and docs: run where it takes seconds, else composed and looked up by name."""

import argparse
import importlib
import importlib.util
import re
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from blocks import FENCED, INDENTED, ROOT, Command, commands, of_text, programs_blocks

from corerl import algos
from corerl.algos import td3_bc
from corerl.cli import COMMANDS, main
from corerl.config import Config
from corerl.data.tasks import resolve
from corerl.launch.arguments import sweeps
from corerl.launch.composition import cells
from corerl.report.published import shipped

FOUND = list(commands())
EMBEDDED = ("corerl/pendulum", "corerl/cartpole", "file/")
"""Tasks that a test can train on in a second."""
SMALL = ["steps=12", "eval.every=12", "eval.episodes=1", "processes=1", "compile=off"]
PLACEHOLDERS = {"RUN", "RUNS", "TASK", "PATH", "WHAT", "OTHER", "NAME", "COMMAND", "ID", "foo"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with what the pages' commands speak of: a run, files of one's own, labels, scores."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setattr("sys.argv", ["corerl"])
        steps = np.random.default_rng(0).normal(size=(60, 5)).round(3)
        table = pd.DataFrame(steps, columns=["obs_0", "obs_1", "obs_2", "action", "reward"])
        table = table.assign(done=[0] * 60, episode=np.arange(60) // 20)
        table["action"] = table["action"].clip(-1, 1)
        table[["x", "y", "speed", "torque"]] = table[["obs_0", "obs_1", "obs_2", "action"]]
        table.to_csv("robot.csv", index=False)
        parts = {"position": steps[:, :2], "velocity": steps[:, 2]}
        np.savez(
            "robot.npz",
            actions=table[["action"]].to_numpy(),
            rewards=table["reward"].to_numpy(),
            episode=table["episode"].to_numpy(),
            **{f"observations/{name}": part for name, part in parts.items()},
        )
        copied = Path(td3_bc.__file__).read_text(encoding="utf-8").replace('"td3_bc"', '"my_algo"')
        Path("my_algo.py").write_text(copied, encoding="utf-8")
        patch.setenv(algos.VARIABLE, "")
        Path("robot.py").write_text(
            "import gymnasium\n"
            'gymnasium.register("Arm-v0", max_episode_steps=20,\n'
            '    entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv")\n',
            encoding="utf-8",
        )
        Path("wagers.py").write_text(dict(programs_blocks("python"))["risk.md"], encoding="utf-8")
        Path("mine.yaml").write_text(dict(programs_blocks("yaml"))["sweeps.md"], encoding="utf-8")
        Path("mine.csv").write_text(dict(programs_blocks("csv"))["your_csv.md"], encoding="utf-8")
        Path("labels").mkdir()
        for name in ("labels.npz", "labels/anna.npz"):  # composed with checksum and length
            np.savez(name, length=64)
        assert main(["train", "algo=iql", "task=corerl/pendulum", "seeds=[0,3]", *SMALL]) == 0
        run = next(Path("runs/corerl/pendulum").glob("iql-*"))
        yield str(run)


def test_commands_are_found():
    text = '```\nA="x=1 y=2"\ncorerl train algo=iql \\\n    $A  # why\n```\n'
    text += "\n    corerl status z\n\nSo `corerl data info T`.\n"
    found = [(command.words[1:], command.block) for command in of_text(text, "page")]
    assert found[0] == (["train", "algo=iql", "x=1", "y=2"], True)
    assert found[1:] == [(["status", "z"], True), (["data", "info", "T"], False)]
    assert len({command.shown.split(":")[0] for command in FOUND}) > 8


@pytest.mark.parametrize("command", FOUND, ids=lambda command: command.shown)
def test_a_command_is_right(command: Command, workplace: str, capsys):
    program, *words = _unwrapped(command.words)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "pip":
        _installs(words)
    elif program == "python":
        _is_python(words)
    elif program == "corerl" and not any("..." in word for word in words):
        filled = [workplace if word in ("RUN", "OTHER") else word for word in words]
        if words[0] == "train":
            _trains(filled, command)
        else:
            _does(filled, command)


def _unwrapped(words: list[str]) -> list[str]:
    """A file of algos/, by path or as a module, is `corerl train algo=...`; so is one of the user's own."""
    if words[:2] == ["python", "my_algo.py"]:
        return ["corerl", "train", "algo=my_algo.py", *words[2:]]
    found = re.match(r"python (?:algos/(\w+)\.py|-m corerl\.algos\.(\w+))( |$)", " ".join(words))
    if found is None:
        return words
    rest = words[3:] if words[1] == "-m" else words[2:]
    return ["corerl", "train", f"algo={found.group(1) or found.group(2)}", *rest]


def _is_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert words[1] == "build" or importlib.util.find_spec(words[1])
    else:
        assert (ROOT / words[0]).is_file()


def _installs(words: list[str]) -> None:
    """Extras are those of pyproject.toml."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"corerl\[(.+?)\]", " ".join(words)):
        assert set(extra.split(",")) <= set(known["optional-dependencies"])


def _trains(words: list[str], command: Command) -> None:
    if "--help" in words:
        assert main(words) == 0
        return
    searches = any("sweeper" in word for word in words)
    named = {word.partition("=")[0] for word in words}
    if PLACEHOLDERS & {word.partition("=")[2] for word in words}:
        return
    if not command.block and not named & {"task", "sweep"}:
        return
    kept = [w for w in words[1:] if not w.lstrip("+").startswith("hydra") and w != "--dry-run"]
    if searches:  # ranges are for the sweeper; composed, each is left at its default
        kept = [word for word in kept if "(" not in word and word != "-m"]
    composed = _cells(tuple(kept))
    assert composed
    for cell in composed:
        resolve(cell.task)
    alone = len(composed) == 1 and composed[0].task.startswith(EMBEDDED)
    local = composed[0].algo.name in ("bc", "iql", "cql_discrete", "ipl")
    if command.block and alone and local and not searches:
        assert main(["train", *kept, *SMALL, "seeds=1"]) == 0


@cache
def _cells(arguments: tuple[str, ...]) -> list[Config]:
    return cells(list(arguments))


def _does(words: list[str], command: Command) -> None:
    """Options are those of the command, and names are known; then it is run where that is quick."""
    if words[0] not in COMMANDS:
        assert words[0] in ("train", "--help"), words[0]
        return
    module = importlib.import_module(COMMANDS[words[0]])
    parser = argparse.ArgumentParser(words[0])
    module.add_arguments(parser)
    if not command.block:
        _options_exist(parser, words)
        return
    args = parser.parse_args(words[1:])
    _names_are_known(args, words)
    if command.block and _is_quick(words):
        if words[0] == "evaluate" and "--pending" not in words:
            words = [*words, "--episodes", "1"]
        assert main(words) == 0


def _options_exist(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """In prose a command may be cut short; its options are the command's, or its subcommand's."""
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if inner and words[1] in (choices := inner[0].choices):
        parser = choices[words[1]]
    options = {name for action in parser._actions for name in action.option_strings}
    assert {word for word in words if word.startswith("--")} <= options


def _names_are_known(args: argparse.Namespace, words: list[str]) -> None:
    if words[0] == "bench":
        assert set(args.algo) <= set(algos.names())
    if words[0] == "report":
        assert set(args.published or []) <= set(shipped())
    if words[0] == "status" and args.what and not Path(args.what).exists():
        assert args.what in {*sweeps(), "runs"}
    for task in re.findall(r"^(?:corerl|d4rl|neorl2|gym)/\S+$", "\n".join(words), re.MULTILINE):
        if words[:2] not in (["data", "make"], ["data", "list"]):
            resolve(task)


def _is_quick(words: list[str]) -> bool:
    """Without downloads, other packages and long computing."""
    if words[0] == "evaluate":
        return not {"--method", "--rewards", "--select"} & set(words)
    if words[0] == "export":
        return words[-1].endswith(".pt2") or importlib.util.find_spec("onnxscript") is not None
    if words[0] == "report":
        return "mine.csv" in words
    if words[0] == "data":
        local = any(word.startswith(("corerl/pendulum", "robot.csv")) for word in words)
        return words[1] == "list" or (words[1] in ("info", "check") and local)
    return words[0] == "status"


@pytest.mark.parametrize("page, body", programs_blocks("python"))
def test_python_blocks_compile_and_import_what_is_there(page: str, body: str):
    compile(body, page, "exec")
    for line in re.findall(r"^from (corerl\S*) import (.+)$", body, re.MULTILINE):
        module = importlib.import_module(line[0])
        for name in line[1].split(","):
            attribute = name.strip()
            assert hasattr(module, attribute) or importlib.import_module(f"{line[0]}.{attribute}")


WIDTH = 75
"""Columns of a code block that a page of the site shows without scrolling."""


def shown_in_blocks(text: str) -> list[str]:
    """The lines of code blocks: fenced ones, and indented ones that are no item of a list or note."""
    indented = [block for block in INDENTED.findall(FENCED.sub("", text)) if "    - " not in block]
    return "".join([*(body for _, body in FENCED.findall(text)), *indented]).splitlines()


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: page.name,
)
def test_a_code_block_fits_the_page(page: Path):
    note = re.compile(r"^(!!!|\?\?\?).*\n(( {4}.*)?\n)+", re.MULTILINE)
    text = note.sub("\n", page.read_text(encoding="utf-8"))
    assert [line for line in shown_in_blocks(text) if len(line) > WIDTH] == []


def test_lines_of_both_kinds_of_blocks_are_measured():
    assert shown_in_blocks("```sh\na\n```\n\n    b\n\nc\n") == ["a", "    b", ""]


def test_links_between_files_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.slow
@pytest.mark.parametrize("name", algos.names())
def test_commands_of_an_algorithms_page_compose(name: str):
    page = importlib.import_module(f"corerl.algos.{name}").__doc__
    found = [_unwrapped(command.words) for command in of_text(page + "\n", name)]
    trained = [words[2:] for words in found if words[1] == "train"]
    assert trained
    for words in trained:
        assert cells([word for word in words if word != "--dry-run"])
