"""An algorithm's file that lies outside the package: found, trained in processes, loaded, never mistaken."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from wording import refused, says

from corerl import algos, cli
from corerl.algos import td3_bc
from corerl.launch.composition import cells
from corerl.launch.settings_tables import register
from corerl.launch.tiny_cells import shrunk
from corerl.policies.load import load
from corerl.runs import code

TINY = (
    "task=corerl/pendulum",
    "seeds=2",
    "steps=2",
    "processes=2",
    "eval.episodes=0",
    "compile=off",
)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setenv(algos.VARIABLE, "")
    monkeypatch.setattr(algos, "__path__", [*algos.__path__])
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    monkeypatch.undo()
    register.cache_clear()


@pytest.fixture
def mine(tmp_path):
    """A copy of TD3+BC that imports what lies beside it."""
    text = Path(td3_bc.__file__).read_text(encoding="utf-8").replace('"td3_bc"', '"my_td3"')
    text = text.replace("import torch\n", "import beside_my_td3\nimport torch\n", 1)
    (tmp_path / "beside_my_td3.py").touch()
    path = tmp_path / "my_td3.py"
    path.write_text(text)
    return path


def test_a_copied_file_trains_as_a_script_and_its_policy_loads(mine, tmp_path):
    command = [sys.executable, str(mine), *TINY, "algo.hidden_width=4"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    (cell,) = (tmp_path / "runs/corerl/pendulum").glob("my_td3-*")
    assert sorted(path.name for path in cell.glob("seeds-*")) == ["seeds-0", "seeds-1"]
    with refused("my_td3 CORERL_ALGOS=path/to/my_td3.py"):
        load(cell)
    algos.add(mine)
    assert load(cell).act([0.0, 1.0, 0.0]).shape == (2, 1)


def test_it_stands_beside_others_and_takes_a_table_of_its_own(mine):
    mine.with_suffix(".yaml").write_text("corerl/*: {algo.alpha: 7}\n")
    own, other = cells(["-m", f"algo={mine},td3_bc", "task=corerl/pendulum"])
    assert (own.algo.name, own.algo.alpha) == ("my_td3", 7)
    assert type(other.algo) is td3_bc.Config and other.algo.alpha == 2.5


MINIMAL = """
from dataclasses import dataclass
import beside_minimal
from corerl.algos import base_of_minimal
from corerl.config import Settings

@dataclass
class Config(Settings):
    name: str = "minimal"
    label: str = "Minimal"
    scale: int = 10 * beside_minimal.SCALE + base_of_minimal.SCALE

def train(cfg, run):
    pass
"""


def minimal(folder, text=MINIMAL, scale=1, base=2, name="minimal"):
    folder.mkdir(exist_ok=True)
    (folder / "beside_minimal.py").write_text(f"SCALE = {scale}\n")
    (folder / "base_of_minimal.py").write_text(f"SCALE = {base}\n")
    path = folder / f"{name}.py"
    path.write_text(text.replace('minimal"', f'{name}"'))
    return path


@pytest.mark.parametrize("task", ["corerl/pendulum", "gym/Pendulum-v1"])
def test_a_config_that_answers_nothing_is_checked_for_nothing(tmp_path, task, capsys):
    command = [*TINY, f"algo={minimal(tmp_path)}", f"root={tmp_path}", "eval.later=true"]
    assert cli.main(["train", *command, f"task={task}", "eval.episodes=1"]) == 0
    assert "corerl: Minimal" not in capsys.readouterr().err


ANSWERS = {
    "actions = 'discrete'": "minimal actions Box",
    "knows_goals = True": "minimal goals",
    "learns_from_data = True": "gym/Pendulum-v1 dataset",
    "data: str = 'mine'": "gym/Pendulum-v1 dataset",
    "policy_delay: int = 3": "steps=2 algo.policy_delay=3",
    "def steps_multiple(self): return self.scale, 'algo.scale'": "steps=2 algo.scale=12",
    "def first_phase(self): return self.scale, 'algo.scale'": "steps=2 algo.scale=12",
    "random_steps: int = 4": "Minimal 4 algo.random_steps",
    "def first_update(self): return self.scale, 'algo.scale'": "Minimal 12 algo.scale",
}


@pytest.mark.parametrize(("answer", "problem"), ANSWERS.items())
def test_what_a_config_answers_is_checked(tmp_path, answer, problem, capsys):
    file = minimal(tmp_path, MINIMAL.replace("\ndef train", f"    {answer}\n\ndef train"))
    command = [*TINY, f"algo={file}", "task=gym/Pendulum-v1", f"root={tmp_path}"]
    warned = problem.startswith("Minimal")
    assert cli.main(["train", *command]) == (0 if warned else 2)
    says(capsys.readouterr().err, problem)


def test_a_cell_is_shrunk_by_what_its_config_answers(tmp_path):
    lines = (
        "    beside_steps: int = 500",
        "    def first_update(self): return self.beside_steps, 'algo.beside_steps'",
        "    def steps_multiple(self): return 4, 'algo.beside_steps'",
    )
    text = MINIMAL.replace("\ndef train", "\n".join((*lines, "", "def train")))
    (cfg,) = cells([f"algo={minimal(tmp_path, text)}", "task=corerl/pendulum"])
    small = shrunk(cfg, str(tmp_path))
    assert (small.algo.beside_steps, small.steps) == (12, 12 + 2 * 4)


def scales(*files):
    jobs = cells(["-m", f"algo={','.join(map(str, files))}", "task=corerl/pendulum"])
    return [job.algo.scale for job in jobs]


def test_another_file_of_the_name_takes_its_place_with_what_lies_beside_it(tmp_path):
    first, second = minimal(tmp_path / "a"), minimal(tmp_path / "b", scale=3, base=4)
    assert scales(first) == [12]
    begun = code.digest("minimal")
    assert scales(second) == [34] and code.digest("minimal") != begun
    assert scales(first) == [12] and code.digest("minimal") == begun
    minimal(tmp_path / "a", scale=567)
    assert scales(first) == [5672], "an edited neighbour was not read anew"


def test_neighbours_of_one_name_stay_each_with_their_file(tmp_path):
    first = minimal(tmp_path / "a")
    second = minimal(tmp_path / "b", scale=3, base=4, name="other_minimal")
    assert scales(first, second) == [12, 34]


def test_two_files_of_one_name_are_refused_together(tmp_path):
    first, second = minimal(tmp_path / "a"), minimal(tmp_path / "b")
    with refused(f"{first} {second}"):
        scales(first, second)
    assert scales(first, tmp_path / "b" / ".." / "a" / "minimal.py") == [12, 12]


def test_a_path_may_stand_in_quotes_as_hydra_has_them(tmp_path):
    file = minimal(tmp_path / "my own")
    for named in (f"'{file}'", f'"{file}",bc', f"bc, '{file}'"):
        jobs = cells(["-m", f"algo={named}", "task=corerl/pendulum"])
        assert "minimal" in [job.algo.name for job in jobs]


@pytest.mark.parametrize("where", ["beside", "from here", "elsewhere"])
def test_a_sweeps_file_names_a_file(tmp_path, monkeypatch, capsys, where):
    minimal(tmp_path / "sweep", name="own_of_a_sweep")
    file = tmp_path / ("sweep" if where != "from here" else "") / "mine.yaml"
    named = {"beside": "own_of_a_sweep.py", "from here": "sweep/own_of_a_sweep.py"}
    params = {"algo": f"bc, {named.get(where, 'none.py')}", "task": "corerl/pendulum"}
    sweep = {"defaults": ["config", "_self_"], "hydra": {"sweeper": {"params": params}}}
    file.write_text(
        yaml.safe_dump(sweep | {"root": str(tmp_path / "runs"), "steps": 7, "seeds": 1})
    )
    monkeypatch.chdir(tmp_path)
    command = [f"sweep={file}", "device=cpu", "processes=1", "eval.episodes=0"]
    if where == "elsewhere":
        with refused("none.py"):
            cells(command)
        assert [job.algo.name for job in cells([*command, "algo=td3_bc"])] == ["td3_bc"]
        return
    assert [job.algo.name for job in cells(command)] == ["bc", "own_of_a_sweep"]
    assert cli.main(["status", str(file)]) == 0 and "Minimal" in capsys.readouterr().out
    assert cli.main(["train", *command, "--dry-run"]) == 0
    assert cli.main(["train", *command, "algo.hidden_width=4"]) == 2  # which one of the two lacks
    assert "algo.hidden_width" in capsys.readouterr().err
    assert cli.main(["train", *command]) == 0
    assert {path.name[:3] for path in (tmp_path / "runs/corerl/pendulum").iterdir()} == {
        "bc-",
        "own",
    }


@pytest.mark.parametrize("setting", ["algo.extra.x=1", "algo.extra={x: 1}"])
def test_an_entry_of_a_dictionary_is_no_setting(tmp_path, setting):
    text = MINIMAL.replace("    scale", "    extra: dict = field(default_factory=dict)\n    scale")
    file = minimal(tmp_path, text.replace("import dataclass", "import dataclass, field"))
    with refused("algo.extra"):
        cells([f"algo={file}", "task=corerl/pendulum", setting])


def test_an_edited_table_is_read_anew(mine):
    def alpha(row: str) -> float:
        mine.with_suffix(".yaml").write_text(row)
        (job,) = cells([f"algo={mine}", "task=corerl/pendulum"])
        return job.algo.alpha

    assert [alpha(f"corerl/*: {{algo.alpha: {value}}}") for value in (7, 8)] == [7, 8]
    with refused("my_td3.yaml 1"):
        alpha("corerl/*: {algo.alpha: 7")
    with refused("my_td3.yaml"):
        alpha("corerl/*: 7")
    with refused(f"{mine.parent!s}/my_td3.yaml"):
        alpha("corerl/*: {algo.alpah: 7}")


MISTAKES = {
    (
        "import base",
        "import not_there, base",
    ): "4 ModuleNotFoundError not_there",
    ("cfg, run", "cfg, run +* 3"): "13 SyntaxError",
    (
        "label: str =",
        "label: str; more: int = 3 #",
    ): "7 TypeError label",
    ('str = "Minimal"', "list = [3]"): "7 ValueError",
    ("beside_minimal.SCALE", "beside_minimal.NONE"): "11 AttributeError",
    (
        "class Config",
        "class Settings",
    ): "Config",
    ("train", "learn"): "train",
    ("(Settings)", ""): "Config corerl.config Settings",
    ("@dataclass\n", ""): "Config @dataclass",
    ('label: str = "Minimal"', ""): "Config label",
    ('name: str = "minimal"', ""): "Config name",
    ("label: str", "label: type"): "Config label",
    ("label: str", "label: dict[tuple, set]"): "Config",
    (
        'str = "Minimal"',
        'int = "Minimal"',
    ): "Minimal label",
}


@pytest.mark.parametrize(("change", "problem"), MISTAKES.items())
def test_a_mistake_is_told_in_a_sentence_before_anything_trains(tmp_path, change, problem, capsys):
    text = MINIMAL.replace("from corerl.algos import base", "import base").replace(*change)
    assert text != MINIMAL
    assert cli.main(["train", f"algo={minimal(tmp_path, text)}", *TINY]) == 2
    reported = capsys.readouterr().err
    says(reported, f"minimal.py {problem}", lines=1)
    assert "launcher" not in reported


def test_a_mistake_in_a_neighbour_names_that(tmp_path):
    path = minimal(tmp_path)
    neighbour = tmp_path / "beside_minimal.py"
    neighbour.write_text("\nfrom corerl.algos.minimal import Config\n")
    with refused(f"{neighbour} 2 ImportError"):
        scales(path)
    neighbour.write_text("\n\nSCALE = (\n")
    with refused(f"{neighbour} 3 SyntaxError"):
        scales(path)


def test_a_typo_with_another_algorithm_is_told_beside_a_file_with_a_mistake(tmp_path):
    algos.add(minimal(tmp_path, "import not_there"))
    with refused("algo.alfa algo=td3_bc algo.alpha"):
        cells(["algo=td3_bc", "task=corerl/pendulum", "algo.alfa=1"])


def test_a_copy_that_kept_its_name_is_never_taken_for_the_original(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "td3_bc.py"
    kept.write_text(Path(td3_bc.__file__).read_text(encoding="utf-8"))
    monkeypatch.setattr(sys, "argv", [str(kept), *TINY])
    with pytest.raises(SystemExit) as ended:
        cli.run_file(str(kept))
    assert ended.value.code == 2
    says(capsys.readouterr().err, f"{kept}")
    renamed = kept.rename(tmp_path / "my_td3.py")  # but not the name in its Config
    with refused("name"):
        cells([f"algo={renamed}", "task=corerl/pendulum"])


@pytest.mark.parametrize(
    ("name", "problem"),
    [("none.py", "none.py"), ("my-algo.py", "my_algo.py"), ("sac_n.py", "my_sac_n.py")],
)
def test_what_cannot_be_an_algorithms_file_is_refused(tmp_path, name, problem):
    if name != "none.py":
        (tmp_path / name).touch()
    with refused(problem):
        cells([f"algo={tmp_path / name}", "task=corerl/pendulum"])


def test_a_file_without_build_trains_and_the_loader_says_what_to_add(mine, tmp_path):
    mine.write_text(mine.read_text().replace("build = TD3BC\n", ""))
    assert cli.main(["train", f"algo={mine}", *TINY, f"root={tmp_path}"]) == 0
    (cell,) = (tmp_path / "corerl/pendulum").glob("my_td3-*")
    with refused("my_td3.py build = MyAgent"):
        load(cell)
