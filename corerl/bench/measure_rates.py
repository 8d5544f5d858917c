"""Measures updates per second of every size of sweeps/, as rows of corerl/launch/rates.csv.

python -m corerl.bench.measure_rates [cpu | cuda]
"""

import csv
import json
import sys

from corerl.bench.stopwatch import Case, measure_processes
from corerl.errors import CorerlError
from corerl.launch.arguments import sweeps
from corerl.launch.composition import cells
from corerl.launch.rates import size_of
from corerl.runs import provenance


def measure(device: str) -> None:
    """Prints a row per size of the sweeps' cells: one thread and one seed on a CPU, ten seeds on a GPU."""
    facts = provenance.environment(device)
    seeds, mode = (1, "compile") if device == "cpu" else (10, "graph")
    place = f"{facts['cpu']}, one core" if device == "cpu" else facts["gpu"]
    jobs = (job for name in sweeps() for job in cells([f"sweep={name}"]))
    sizes = {size_of(job.algo.name, vars(job.algo), "") for job in jobs}
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["algo", "settings", "kind", "device", "updates_per_s"])
    for name, _, *own in sorted(sizes):
        case = Case(name, dict(own), device, mode, seeds)
        settings = json.dumps(dict(own)).replace('"', "") if own else ""
        try:
            found = measure_processes(1, case, 5)  # a process each: compiled code adds up
        except CorerlError:  # an exact algorithm needs a task of its own
            print(
                f"corerl: left out {name} {settings}, whose speed could not be measured",
                file=sys.stderr,
            )
            continue
        kind = "cpu" if device == "cpu" else "gpu"
        table.writerow([name, settings, kind, place, f"{found.rate:.4g}"])
        sys.stdout.flush()


if __name__ == "__main__":
    measure(sys.argv[1] if len(sys.argv) > 1 else "cpu")
