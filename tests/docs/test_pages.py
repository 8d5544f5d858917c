"""The pages that are made from the code say what the code says."""

import importlib
import re
import sys
import tomllib
from dataclasses import fields, is_dataclass

import pytest
import yaml
from blocks import ROOT, commands

from corerl import algos
from corerl.launch.composition import cells

sys.path.insert(0, str(ROOT / "docs"))

import algorithm_names
import algorithm_pages
import algorithm_results
import hooks


@pytest.mark.parametrize("name", algos.names())
def test_a_page_has_every_setting_with_its_default(name):
    page = algorithm_pages.page(name)
    config = importlib.import_module(f"corerl.algos.{name}").Config()
    settings = [f.name for f in fields(config) if f.name not in ("name", "label")]
    for setting in settings:
        value = getattr(config, setting)
        row = f"`algo.{setting}`"
        row += "" if is_dataclass(value) else f" | `{algorithm_pages._shown(value)}` |"
        assert row in page


@pytest.mark.parametrize("name", algos.names())
def test_numbered_differences_are_a_table(name):
    """Columns that do not line up would be shown as they are typed, and cut off."""
    assert not re.search(
        r"^ {4,}item {2}|^```\n *item {2}", algorithm_pages.page(name), re.MULTILINE
    )


def test_a_row_of_differences_goes_on_over_lines():
    lines = [
        "    item    authors        switch",
        " 1  layers  three of       hidden_layers",
        "            `512`          ",
        "    widths  two, a_b       -",
    ]
    assert algorithm_pages._differences(lines).splitlines()[2:] == [
        "| 1 | layers | three of `512` | `hidden_layers` |",
        r"|  | widths | two, a\_b | - |",
    ]
    assert not algorithm_pages._differences([*lines, " 2  a word that is too long"])


def test_a_long_command_of_a_docstring_goes_on_in_a_second_line():
    words = [f"algo.setting_{n}={n}" for n in range(6)]
    block = algorithm_pages.described(f"    corerl train algo=iql {' '.join(words)}").splitlines()
    assert block[1].endswith(" \\") and block[2].startswith("    algo.")
    assert max(map(len, block)) <= 75


def test_a_numbered_list_without_a_gap_is_a_table_and_other_lists_are_not():
    shown = algorithm_pages.described("Differs:\n 1. A_b\n    goes on.\n 2. C.")
    assert shown.splitlines()[0] == "Differs:"
    assert shown.splitlines()[-2:] == [r"| 1 | A\_b goes on. |", "| 2 | C. |"]
    assert "---" not in algorithm_pages.described("Differs:\n 2. A.\n 3. B.")


def test_prose_shows_what_a_docstring_says():
    markdown = pytest.importorskip("markdown")
    page = algorithm_pages.described("R^K and s~ < a_b [1] |x| `_c`.")
    shown = markdown.markdown(page, extensions=["tables"])
    assert shown == "<p>R^K and s~ &lt; a_b [1] |x| <code>_c</code>.</p>"


def test_a_page_has_comments_ranges_numbers_and_tables():
    page = algorithm_pages.page("iql")
    assert re.search(r"`algo.expectile` \| `0.7` \| \(0, 1\) \| .*tau", page)
    assert "`value_first`, `joint`" in page and "configs/iql_corl.yaml" in page
    assert "corerl train sweep=iql_gym --dry-run" in page
    assert "results/pendulum/index.md" in page and "d4rl/hopper-medium-v2 | " in page


def test_a_file_that_shares_a_label_has_a_title_and_no_numbers_of_the_other():
    page = algorithm_pages.page("iql_ogbench")
    assert page.startswith("# IQL (iql_ogbench)\n") and "(iql.md)" in page
    assert "halfcheetah-replay-regenerated, score" not in page
    assert "| --- | --- |\n| 1 | All losses" in page, "a numbered list is a table"
    assert algorithm_pages.page("iql").startswith("# IQL\n")


TRAINED = [
    (page.parent.name, name)
    for page in sorted((ROOT / "results" / "reproduced").glob("*/README.md"))
    for names in re.findall(r"algo=([a-z0-9_,]+)", page.read_text(encoding="utf-8"))
    for name in names.split(",")
    if name in algos.names()
]


@pytest.mark.parametrize("folder, name", sorted(set(TRAINED)))
def test_a_page_links_the_results_pages_whose_commands_train_it(folder, name):
    shown = algorithm_results.numbers(algorithm_names.own_label(name))
    assert f"(../results/{folder}/index.md)" in shown and "has no results" not in shown


@pytest.mark.parametrize(
    "name, folder",
    {
        "dr_rpo": "dr_rpo",
        "cvar_tabular": "demo",
        "orpo_sac": "orpo",
        "subpo": "subpo",
        "mex": "exploration",
        "pebble": "preferences_online",
        "two_atom": "two_atom",
    }.items(),
)
def test_results_of_a_sweep_or_of_labels_with_settings_are_on_the_page(name, folder):
    assert f"(../results/{folder}/index.md)" in algorithm_pages.page(name)


def test_a_label_with_settings_is_the_algorithm_s():
    assert algorithm_names.label_in("CQL weighting=uniform") == "CQL"
    assert algorithm_names.label_in("TD3+BC, alpha 5") == "TD3+BC"
    assert algorithm_names.label_in("IQL+SEABO of 1") == "IQL+SEABO"
    assert algorithm_names.label_in("IQLearn") == ""


@pytest.mark.parametrize("folder", [path.name for path in hooks.reproduced()])
def test_a_results_page_begins_with_its_result(folder):
    assert len(algorithm_results.result_of(folder)) > 30


def test_published_numbers_stand_beside_ours_of_the_same_unit_with_their_protocol():
    cell = r"neorl2/DMSD, actor_layers=2 actor_lr=0.001, return \| 565.0 ± 0.7 \| 3 \| 1,000,000 +\|  \|"
    assert re.search(cell, algorithm_pages.page("bc"))
    assert (
        "65.1&nbsp;±&nbsp;1.6 (NeoRL-2, 1M steps, lowest validation error, best of 6 "
        in algorithm_pages.page("bc")
    )
    assert "(CleanRL, 1M steps, training episodes at 1M steps)" in algorithm_pages.page("sac")


def test_what_users_stumble_on_names_settings_that_exist():
    reported = yaml.safe_load((ROOT / "docs" / "stumbles.yaml").read_text())
    assert set(reported) <= set(algos.names())
    for name, texts in reported.items():
        page = algorithm_pages.page(name)
        assert "## What users stumble on" in page
        named = re.findall(r"`(algo\.[\w.]+?)(?:=[^`]*)?`", " ".join(texts))
        assert all(f"`{setting}`" in page for setting in named), (name, named)
        threads = re.findall(r"[\w.-]+/[\w.-]+#(\d+)", " ".join(texts))
        assert page.count("/issues/") >= len(threads)


def test_names_of_other_libraries_stand_beside_settings_that_exist():
    text = (ROOT / "docs" / "coming_from.md").read_text()
    rows = [row.split(" | ")[0] for row in re.findall(r"^\| (.*`.*) \|$", text, re.M)]
    assert len(rows) > 15
    pages = {
        name: algorithm_pages.page(name) for name in ("iql", "td3_bc", "sac", "spot", "rebrac")
    }
    for row in rows:
        of = re.match(r"(IQL|TD3\+BC|SAC|SPOT): ", row)
        shown = pages[of[1].lower().replace("+", "_")] if of else "".join(pages.values())
        for setting in re.findall(r"`(algo\.[\w.]+?)(?:=[^`]*)?`", row):
            assert f"`{setting}`" in shown, row


def test_the_first_run_of_sac_has_what_its_page_says_of_cleanrl():
    (command,) = [
        c for c in commands() if c.shown.startswith("coming_from.md: corerl train algo=sac")
    ]
    (cell,) = cells(command.words[2:])
    algo = cell.algo
    assert (algo.critic_lr, algo.temperature_lr) == (1e-3, 1e-3)  # 8 of algos/sac.py
    assert (algo.actor_lr, algo.random_steps, algo.init) == (3e-4, 5000, "torch")


def test_runs_that_are_judged_are_named_by_algorithm():
    """A task's folder has the runs of every page before, and one run alone can be meant by it."""
    judged = [c for c in commands() if c.words[:2] == ["corerl", "evaluate"] and c.block]
    named = [word for c in judged for word in c.words if word.startswith("runs/")]
    assert named and all(word.endswith("*") for word in named), named


def test_the_readme_links_every_algorithm():
    """To its file. docs/hooks.py leads these links to the pages of the site."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(algos/(\w+)\.py\)", text)) == set(algos.names())


def test_a_page_tells_what_an_update_costs():
    assert "## Cost" in algorithm_pages.page("iql") and "| 168 | 1.7 |" in algorithm_pages.page(
        "iql"
    )


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert importlib.import_module("corerl").__version__ == version


def test_a_changed_page_is_built_and_hosted():
    for workflow in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        assert yaml.safe_load(workflow.read_text())["jobs"], workflow.name
