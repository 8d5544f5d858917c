"""The page results/bench/gpu.md, from what the stages of gpu.py found."""

from typing import Any

AIMS = (
    # what, algorithm, mode, seeds, updates per second of each seed
    ("IQL, ten seeds, batch 256", "iql", "graph", 10, 2500),
    ("ReBRAC, ten seeds, batch 256", "rebrac", "graph", 10, 2500),
)


def page(found: dict[str, Any]) -> str:
    """Writes everything found so far as Markdown."""
    parts = [
        "# On a GPU\n",
        "`make gpu` writes this page. The numbers are those of the last call on this machine and code.\n",
        _machine(found["machine"]),
        _tests(found.get("tests", []), bool(found["machine"]["gpu"])),
        _bench(found.get("bench", [])),
        _aims(found.get("bench", [])),
        *(_run(run) for stage in ("train", "demo") for run in found.get(stage, [])),
        _broken(found.get("broken", {})),
        _seconds(found.get("seconds", {})),
    ]
    return "\n".join(part for part in parts if part)


def line(result: dict[str, Any]) -> str:
    """Formats one result for the terminal."""
    if "rate" in result:
        return f"{result['what']}: {result['rate']:,.0f} updates/s in sum, {result['ran']}"
    reported = result.get("problem") or result.get("reported") or f"status {result.get('status')}"
    return f"{result['what']}: {reported.strip().splitlines()[-1] if reported.strip() else 'done'}"


def _machine(facts: dict[str, Any]) -> str:
    where = facts["gpu"] or f"no GPU, on {facts['cpu']}"
    return (
        f"{where}, torch {facts['torch']}, Python {facts['python']}, corerl {facts['corerl']} at "
        f"{facts['git']}, float32 (precision=highest).\n"
    )


def _tests(tests: list[dict[str, Any]], on_gpu: bool) -> str:
    if not tests:
        return ""
    if not on_gpu:
        return "## Tests\n\nNone: there is no GPU here.\n"
    failed = [test for test in tests if test["failed"]]
    missing = [f"{test['what']} ({test['problem']})" for test in tests if "problem" in test]
    text = (
        "## Tests\n\nEager, compiled and captured updates are the same numbers, a test for each algorithm: "
        f"{len(tests) - len(failed) - len(missing)} passed, {len(failed)} failed.\n"
    )
    if missing:
        text += f"\nNot tested: {'; '.join(missing)}.\n"
    for test in failed:
        text += f"\n**{test['what'].capitalize()} failed**:\n\n```\n{test['reported']}\n```\n"
    return text


def _bench(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    head = [
        "algorithm",
        "compile",
        "seeds",
        "updates/s in sum",
        "of each seed",
        "start s",
        "GPU MB",
    ]
    lines = [
        "## Updates per second",
        "",
        "The loop of `corerl bench` at each paper's sizes (ReBRAC at batch 256). Each figure is a median of "
        "windows of a second in which no other process works. A start includes compiling unless the "
        "cache on the disk has it.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * 3}{'---:|' * 4}",
    ]
    for row in (row for row in rows if "rate" in row):
        case, seeds = row["case"], row["case"]["seeds"]
        ran = (
            case["compile"] if case["compile"] == row["ran"] else f"{case['compile']}: {row['ran']}"
        )
        numbers = (row["rate"], row["rate"] / seeds, row["start"], row["memory"] / 2**20)
        cells = [case["algo"], ran, str(seeds), *(f"{number:,.0f}" for number in numbers)]
        lines.append(f"| {' | '.join(cells)} |")
    missing = [f"{row['what']} ({row['problem']})" for row in rows if "rate" not in row]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    fallen = [
        f"{row['what']} ({row['problem']})" for row in rows if "rate" in row and row["problem"]
    ]
    if fallen:
        lines += ["", f"Ran otherwise than asked for: {'; '.join(fallen)}."]
    return "\n".join(lines) + "\n"


def _aims(rows: list[dict[str, Any]]) -> str:
    rates = {
        (row["case"]["algo"], row["case"]["compile"], row["case"]["seeds"]): row["rate"]
        for row in rows
        if "rate" in row
    }
    lines = []
    for what, algo, mode, seeds, aim in AIMS:
        if (algo, mode, seeds) in rates:
            rate = rates[algo, mode, seeds] / seeds
            verdict = "reached" if rate >= aim else "**missed**"
            lines.append(f"- {what}: {rate:,.0f} updates/s of each seed, aim {aim:,}: {verdict}")
    return "\n".join(["## Aims", "", *lines, ""]) if lines else ""


def _run(run: dict[str, Any]) -> str:
    text = f"## {run['what'][0].upper()}{run['what'][1:]}\n\n"
    if "command" in run:
        text += f"`{run['command']}`: status {run['status']}, {run['seconds']:,} s.\n\n"
    for one in run.get("runs", []):
        seeds = len(one["seeds"])
        result = one["score"] if one["score"] is not None else one["return"]
        reported = (
            ""
            if result is None
            else f", {'score' if one['score'] is not None else 'return'} {result:.1f}"
        )
        text += (
            f"- {one['state']} at {one['step']:,} of {one['steps']:,}, {seeds} seeds, "
            f"{one['updates_per_s']:,.0f} updates/s of each seed, ran as {one['compile']}{reported}\n"
        )
    if run.get("reported"):
        text += f"\n```\n{run['reported'].strip()}\n```\n"
    return text


def _broken(broken: dict[str, str]) -> str:
    reported = [
        f"Stage `{stage}` failed:\n\n```\n{text.strip()}\n```\n"
        for stage, text in broken.items()
        if text
    ]
    return "\n".join(["## What failed\n", *reported]) if reported else ""


def _seconds(seconds: dict[str, int]) -> str:
    if not seconds:
        return ""
    return (
        "Seconds taken: " + ", ".join(f"{name} {taken}" for name, taken in seconds.items()) + ".\n"
    )
