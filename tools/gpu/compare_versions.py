"""Speed of two versions of corerl on one GPU, in turn, and where the time of this one goes.

    pip install --no-deps --no-build-isolation --target BEFORE /path/to/an/older/checkout
    python tools/gpu/compare_versions.py BEFORE          at most six minutes, alone on the card
    python tools/gpu/compare_versions.py BEFORE --dry    tiny and on the CPU

The figures of the two versions are in `before/gpu.json` and `after/gpu.json` below `--out`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from corerl.bench.stopwatch import Case, measure
from corerl.runs import files

NAMES = ("iql", "td3_bc", "rebrac", "cql", "edac", "sac", "dt", "ipl")
SECONDS = 150
"""For the rates of one version."""
RATES = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
import gpu
out, names, dry, seconds = json.loads(sys.argv[1])
plan = gpu.dry(Path(out)) if dry else gpu.Plan(Path(out))
plan = replace(plan, names=tuple(names), modes=plan.modes[:1])
sys.exit(gpu.run(plan, ["bench"], time.monotonic() + seconds))
"""
"""What both versions can do."""


def rates(folder: Path | None, out: Path, names: list[str], dry: bool) -> dict[str, float]:
    """Returns updates per second by `algorithm mode seeds` of the version in `folder`, or of this one."""
    folders = [Path(__file__).parent, *([] if folder is None else [folder.resolve()])]
    path = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    given = json.dumps([str(out), names, dry, SECONDS])
    subprocess.run([sys.executable, "-P", "-c", RATES, given], env=os.environ | path, check=False)
    found = (files.read_json(out / "gpu.json") or {}).get("bench", [])
    return {one["what"]: one["rate"] for one in found if "rate" in one}


def kernels(case: Case, most: int = 12) -> list[str]:
    """Returns a line for each kernel that takes the most time in one window: share, microseconds, calls."""
    on_gpu = case.device != "cpu"
    seen: list[profile] = []

    def windows() -> Iterator[None]:
        kind = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
        with profile(activities=[kind]) as watched:
            seen.append(watched)
            yield

    found = measure(case, windows())
    updates = found.rate / case.seeds  # in a window of a second
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times = [(getattr(one, field), one.count, one.key) for one in seen[0].key_averages()]
    total, calls = sum(t for t, *_ in times), sum(n for _, n, _ in times)
    lines = [f"{total / updates:9.1f} us and {calls / updates:.0f} kernels an update"]
    for time, count, name in sorted(times, reverse=True)[:most]:
        share = 100 * time / total
        lines.append(f"{time / updates:9.1f} us {share:4.0f} % {count / updates:5.1f} {name[:90]}")
    return lines


def main(arguments: list[str]) -> int:
    """Prints both versions' rates, and the kernels of IQL, TD3+BC and CQL."""
    parser = argparse.ArgumentParser()
    parser.add_argument("before", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/bench/compare"))
    parser.add_argument("--algo", nargs="+", default=list(NAMES))
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args(arguments)
    before = rates(args.before, args.out / "before", args.algo, args.dry)
    after = rates(None, args.out / "after", args.algo, args.dry)
    for what in dict.fromkeys([*before, *after]):
        old, new = before.get(what, float("nan")), after.get(what, float("nan"))
        print(f"{what:20} {old:9,.0f} -> {new:9,.0f} updates/s   x {new / old:.2f}", flush=True)
    device, mode, seeds = ("cpu", "off", 1) if args.dry else ("cuda", "graph", 10)
    for name in [name for name in ("iql", "td3_bc", "cql") if name in args.algo]:
        torch._dynamo.reset()
        lines = kernels(Case(name, {}, device, mode, seeds, size=10_000))
        print(name, *lines, sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
