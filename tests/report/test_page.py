"""The page in a headless Chromium, by clicking."""

import json
import re
import shutil
import subprocess
from importlib import resources
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import chromium
from trees import write_run

from corerl.report import formats, stats
from corerl.report.figures import profile_taus
from corerl.report.load import load
from corerl.report.tables import number

TASKS = ("d4rl/halfcheetah-medium-v2", "d4rl/hopper-medium-v2", "d4rl/walker2d-medium-v2")
SHOWN = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
TEXTS = SHOWN + ".map(e => e.innerText)"
LEVELS = {"IQL": 50.0, "TD3+BC": 70.0, "BC": 40.0}


@pytest.fixture(scope="module")
def browser():
    yield from chromium()


@pytest.fixture
def page(browser, report, tmp_path):
    """`page(*words)` writes a report of runs and opens it; gives its folder. Errors fail the test."""
    root = tmp_path / "runs"
    for i, task in enumerate(TASKS):
        for name, level in LEVELS.items():
            steps = 3000 if name != "BC" else 2000
            algo = {"lr": 1e-3 if name == "BC" else 3e-4, "tau": 0.005}
            write_run(
                root, task, name, level + 7 * i, seeds=tuple(range(5)), steps=steps, algo=algo
            )
    write_run(root, "gym/Hopper-v5", "SAC", 300.0, normalised=False)

    def open_page(*words: str) -> Path:
        browser.get_log("browser")
        _, out, _, _ = report(root, "--published", "d4rl_offline", *words)
        browser.get((out / "index.html").as_uri())
        return out

    yield open_page
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def printed(script: str) -> str:
    """What the last expression of a script is in JavaScript."""
    done = subprocess.run(["node", "-p", script], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
@pytest.mark.parametrize("digits", [1, 2])
def test_numbers_are_rounded_as_python_rounds_them(digits):
    script = (resources.files("corerl.report") / "web/state.js").read_text()
    (fixed,) = re.findall(r"^function fixed.*?^}", script, re.DOTALL | re.MULTILINE)
    numbers = [sign * n / d for sign in (1, -1) for d in (8, 10, 1000) for n in range(200)]
    numbers += [0.05, 0.15, 62.25, 1e-9, -1e-9]
    shown = printed(f"{fixed}; {json.dumps(numbers)}.map(x => fixed(x, {digits})).join()")
    assert shown.strip().split(",") == [number(x, digits) for x in numbers]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
def test_what_is_copied_has_the_letters_of_the_files():
    script = (resources.files("corerl.report") / "web/latex.js").read_text()
    letters = json.dumps("".join(formats._TEX))
    shown = printed(f"{script}; [...{letters}].map(tex).join('\\n')")
    assert shown.splitlines() == list(formats._TEX.values())


def page_section(out: Path) -> dict:
    """Returns the data of the page's first section."""
    text = (out / "index.html").read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])["sections"][0]


def test_the_page_shows_the_estimates_of_the_statistics(report, tmp_path):
    """Of negative and tied scores, and unequal numbers of seeds."""
    rng, seeds = np.random.default_rng(0), {"At": 6, "Au": 3, "Bt": 5, "Bu": 4}
    rows = [
        (cell[0], f"x/{cell[1]}", seed, step, int(rng.integers(-20, 41)))
        for cell, count in seeds.items()
        for seed in range(count)
        for step in (1000, 2000)
    ]
    columns = ["algorithm", "task", "seed", "step", "score"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "own.csv", index=False)
    words = ("--metric", "mean", "--baseline", "A", "--replicates", "500")
    _, out, _, _ = report(tmp_path / "own.csv", *words)
    section, few = page_section(out), {"replicates": 500}
    history = load([tmp_path / "own.csv"]).scores
    runs = stats.final(history)
    drawn = {
        "profiles": stats.profiles(runs, profile_taus(runs["score"]), **few),
        "efficiency": stats.curves(history, "mean", **few),
    }
    for name, table in drawn.items():
        for algorithm, points in section[name].items():
            expected = table[table["algorithm"] == algorithm].iloc[:, 1:].to_numpy()
            at = np.isin(expected[:, 0].round(4), np.array(points)[:, 0].round(4))
            assert_same(points, expected[at])
            assert points[-1][0] == pytest.approx(expected[-1, 0])
    (pair,) = section["pairs"]
    e = stats.probability_of_improvement(runs, "B", "A", **few)
    assert_same([[pair[key] for key in ("value", "low", "high")]], [[e.value, e.low, e.high]])
    for algorithm, metric in product("AB", stats.METRICS):
        found = section["aggregates"][algorithm][metric]
        e = stats.estimate(runs, metric, algorithm, gamma=100.0, **few)
        assert_same([[found[key] for key in ("value", "low", "high")]], [[e.value, e.low, e.high]])
        assert (found["n"], found["few"]) == ({"A": "3-6", "B": "4-5"}[algorithm], True)


def assert_same(found, expected) -> None:
    """Compares estimates before two ends, which rows in another order put a little elsewhere."""
    found, expected = np.array(found, float), np.array(expected, float)
    np.testing.assert_allclose(found[:, :-2], expected[:, :-2], rtol=1e-6, atol=1e-9)
    width = (expected[:, -1] - expected[:, -2]).max()
    np.testing.assert_allclose(found[:, -2:], expected[:, -2:], atol=0.25 * width)


def click(browser, selector: str, text: str = "") -> None:
    """Clicks the first visible element of this text, as a person would."""
    found = [
        e for e in browser.execute_script(SHOWN, selector) if text in e.get_attribute("innerText")
    ]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", found[0])
    found[0].click()


def switch(browser, name: str) -> None:
    for box in ("algorithms", "tasks"):
        if not browser.execute_script(f"return document.querySelector('.{box}').open"):
            click(browser, f"#switches .{box} summary")
    click(browser, ".chip", name)


def table(browser, name: str = "scores") -> dict[str, list[str]]:
    """{row: cells} of what is shown of the first table of this name."""
    rows = browser.execute_script(
        "const shown = e => e.checkVisibility();"
        f"return [...document.querySelector('figure[data-name={name}]').querySelectorAll('tr')]"
        ".filter(shown).map(r => [...r.cells].filter(shown).map(c => c.innerText))"
    )
    return {row[0]: row[1:] for row in rows}


def emphasised(browser, task: str) -> list[str]:
    return browser.execute_script(TEXTS, f"figure[data-name=scores] tr[data-task='{task}'] .top")


def test_an_algorithm_that_is_switched_off_disappears_everywhere(browser, page):
    page()
    before = table(browser)
    assert [len(cells) for cells in before.values()] == [3] * 8
    assert emphasised(browser, TASKS[0]) == []  # BC has other steps
    assert any("unequal" in t for t in browser.execute_script(TEXTS, ".notes p"))
    switch(browser, "BC")  # is the last of that text: TD3+BC comes first
    after = table(browser)
    assert not [head for head in after["task"] if head.startswith("TD3+BC")]
    assert browser.execute_script(SHOWN, ".chart [data-algorithm='TD3+BC']") == []
    assert "TD3+BC beside" not in " ".join(browser.execute_script(TEXTS, "figcaption"))
    assert after["IQM [95% CI]"] == before["IQM [95% CI]"][1:]
    switch(browser, "TD3+BC")
    assert table(browser) == before
    click(browser, ".chip[data-name='BC']")
    assert [cell.split()[0] for cell in emphasised(browser, TASKS[0])] == ["72.0"]
    assert not any("unequal" in t for t in browser.execute_script(TEXTS, ".notes p"))
    click(browser, ".reset")
    assert table(browser) == before


def test_a_task_that_is_switched_off_stays_in_the_aggregates(browser, page):
    page()
    before = table(browser)
    assert browser.execute_script(TEXTS, ".notes .live") == []
    switch(browser, TASKS[1])
    rows = table(browser)
    assert "hopper-medium-v2" not in rows and len(rows) == 7
    assert rows == {name: cells for name, cells in before.items() if name != "hopper-medium-v2"}
    notes = browser.execute_script(TEXTS, ".notes .live")
    assert len(notes) == 2 and all("all 3 tasks" in note for note in notes)
    assert len(browser.execute_script(SHOWN, "[data-chart^='curve d4rl']")) == 2


def test_switches_hide_rows_of_rliables_table_and_keep_its_numbers(browser, page):
    page("--rliable")
    before = table(browser, "rliable")
    switch(browser, TASKS[0].rpartition("/")[2])
    assert table(browser, "rliable") == before
    notes = browser.execute_script(TEXTS, "figure[data-name=rliable] .notes p")
    assert notes[0] == "Aggregates and probabilities are over all 3 tasks, hidden ones included."
    click(browser, ".chip[data-name='TD3+BC']")
    after = table(browser, "rliable")
    assert after == {name: cells for name, cells in before.items() if "TD3+BC" not in name}
    assert len(after) < len(before)


def test_a_column_sorts_down_up_and_back(browser, page):
    page()
    before = list(table(browser))
    click(browser, "figure[data-name=scores] .sort", "IQL")
    down = list(table(browser))
    assert down[1:4] == before[3:0:-1] and down[4:] == before[4:]
    click(browser, "figure[data-name=scores] .sort", "IQL")
    assert list(table(browser)) == before
    click(browser, "figure[data-name=scores] .sort", "IQL")
    assert list(table(browser)) == before
    assert (
        browser.execute_script("return document.querySelector('th[aria-sort]').ariaSort") == "none"
    )


def test_curves_show_single_seeds(browser, page):
    page()
    assert browser.execute_script(SHOWN, ".seed") == []
    click(browser, "#single-seeds")
    curves = "[data-chart='curve d4rl/hopper-medium-v2']"
    assert len(browser.execute_script(SHOWN, f"{curves} .seed")) == 15
    assert len(browser.execute_script(SHOWN, f"{curves} .line")) == 3


def test_a_number_leads_to_its_runs_and_their_settings(browser, page):
    out = page()
    click(browser, f"tr[data-task='{TASKS[1]}'] .leads", "59.0")
    (text,) = browser.execute_script(TEXTS, "dialog")
    assert "IQL on d4rl/hopper-medium-v2" in text
    scores = browser.execute_script(TEXTS, "dialog figure:nth-of-type(1) tbody tr")
    assert [line.split("\t")[:3] for line in scores] == [
        [f"{s}", f"{57 + s}", "3,000"] for s in range(5)
    ]
    (link,) = set(browser.execute_script(SHOWN + ".map(e => e.getAttribute('href'))", "dialog a"))
    assert (out / link / "scores.csv").exists()
    assert "algo.lr\t0.0003\t" in text and "0.001" in text  # BC's differs
    assert "algo.tau" not in text
    click(browser, "dialog summary")
    assert "algo.tau\t0.005" in browser.execute_script(TEXTS, "dialog")[0]
    click(browser, "dialog .close")
    assert browser.execute_script(SHOWN, "dialog") == []


def test_what_is_copied_is_the_latex_of_the_files(browser, page):
    out = page()
    for name in ("scores", "improvement", "published-iql"):
        click(browser, f"figure[data-name={name}] .copy")
        copied = browser.execute_script("return document.querySelector('dialog textarea').value")
        written = (out / "d4rl" / f"{name}.tex").read_text().splitlines()
        assert [line for line in copied.splitlines() if line[0] != "%"] == [
            line for line in written if line[0] != "%"
        ]
        click(browser, "dialog .close")
    switch(browser, "IQL")
    click(browser, "figure[data-name=scores] .copy")
    copied = browser.execute_script("return document.querySelector('dialog textarea').value")
    assert "{lrr}" in copied and "IQL" not in copied
    click(browser, "dialog .close")
    click(browser, "[data-chart='curve d4rl/hopper-medium-v2'] .copy")
    copied = browser.execute_script("return document.querySelector('dialog textarea').value")
    assert copied.count(r"\addlegendentry") == 2 and "\\addlegendentry{IQL}" not in copied
    assert "(3000,79)" in copied  # TD3+BC ends there


def test_labels_that_differ_in_one_setting_are_told_apart_beside_intervals(
    browser, report, tmp_path
):
    middles = (f"beta=0.05 policy_noise=0.{k} normalise=True" for k in (1, 2))
    ends = ("perturbation=0.05", "perturbation=0.25", f"{'x' * 40}=1", f"{'x' * 40}=2", "a b")
    ends += tuple(middles)
    cells = product(ends, "ab", range(5), (1, 2))
    rows = [f"O-RAAC {e},x/{t},{seed},{step},{seed}" for e, t, seed, step in cells]
    (tmp_path / "own.csv").write_text("algorithm,task,seed,step,score\n" + "\n".join(rows) + "\n")
    _, out, _, _ = report(tmp_path / "own.csv")
    browser.get((out / "index.html").as_uri())
    labels = "[...document.querySelectorAll('[data-chart=iqm] text:has(tspan)')]"
    lines = browser.execute_script(
        f"return {labels}.map(t => [...t.querySelectorAll('tspan')].map(l => l.textContent))"
    )
    assert [" ".join(line) for line in lines[:2]] == [f"O-RAAC {e}" for e in ends[:2]]
    assert len({tuple(line) for line in lines}) == 7 and lines[4] == ["O-RAAC a b"]
    assert [" ".join(line) for line in lines[5:]] == [f"O-RAAC {e}" for e in ends[5:]]
    assert browser.execute_script(f"return Math.min(...{labels}.map(t => t.getBBox().x))") >= 0
    edges = f"{labels}.map(t => t.getBBox()).flatMap(b => [b.y, b.y + b.height])"
    edges = browser.execute_script(f"return {edges}")
    assert edges == sorted(edges)  # none over another


def emulate(browser, width: int, media: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})


def test_the_page_fits_a_phone_and_paper(browser, page):
    page()
    wide = "return document.documentElement.scrollWidth"
    try:
        emulate(browser, 390, "")
        browser.refresh()
        assert browser.execute_script(wide) <= 390
        (hint, *_) = browser.execute_script(TEXTS, ".goes-on")
        assert re.match(r"\d more columns? →", hint)
        click(browser, ".goes-on")
        script = (
            "const frame = document.querySelector('.scroll');"
            "return new Promise(done => setTimeout(() => done(frame.scrollLeft), 800))"
        )
        assert browser.execute_script(script) > 50
        emulate(browser, 720, "print")
        assert browser.execute_script(SHOWN, ".copy, .goes-on, nav, .chip[data-kind=tasks]") == []
        assert len(browser.execute_script(SHOWN, ".chip")) == 4  # the legend
        assert browser.execute_script(wide) <= 720
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_names_of_others_are_text_in_the_browser(browser, report, tmp_path):
    name = '<img src=x onerror="window.hit=1">'
    quoted = name.replace('"', '""')
    cells = product("ab", (0, 1), (1, 2))
    rows = [f'"{quoted}",x/</script>{t},{seed},{step},{seed}' for t, seed, step in cells]
    (tmp_path / "bad.csv").write_text("algorithm,task,seed,step,score\n" + "\n".join(rows) + "\n")
    _, out, _, _ = report(tmp_path / "bad.csv")
    browser.get((out / "index.html").as_uri())
    click(browser, ".leads")
    assert name in browser.execute_script(TEXTS, "dialog")[0]
    assert browser.execute_script("return window.hit") is None
