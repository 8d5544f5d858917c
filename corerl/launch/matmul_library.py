"""Choice of the library for float32 matrix products on this CPU: MKL, or oneDNN if faster and as exact.

torch gives its products to MKL, which on AMD's AVX-512 processors reaches half of what oneDNN does. What
selects oneDNN is torch's permission to round to bfloat16: a CPU without instructions for that computes in
float32 all the same, and another one would not. So both are timed on the products of an update, once per
machine, and oneDNN is taken only where its error against float64 is that of float32.

Environment: `ONEDNN_MAX_CPU_ISA`, where not set, is set to `AVX512_CORE` by the command line before torch is
loaded, which keeps oneDNN from AMX and from bfloat16 instructions.
"""

import functools
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from corerl.config import KERNELS
from corerl.errors import CorerlError
from corerl.runs import files
from corerl.runs.provenance import cpu_name

EXACT = 5e-6
"""Largest relative error of a float32 product here: they have 5e-7, TF32 5e-4, bfloat16 3e-3."""
GAIN = 1.1
"""By which oneDNN must be faster, so that a second measurement would say the same."""
SHAPES = ((256, 23, 256), (256, 256, 256), (256, 256, 1))
"""Rows, inner and columns of the products of a twin critic at batch 256."""

Product = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def _using(name: str) -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    use(name)
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def use(name: str) -> None:
    """Multiplies with `mkl` or `onednn` from here on."""
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if name == "onednn" else "ieee"


def _product(name: str) -> Product:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        with _using(name):
            return torch.bmm(a, b)

    return multiply


def choose(setting: str) -> str:
    """Returns `mkl` or `onednn` for `kernel=` `auto`, `mkl` or `onednn`.

    Raises:
        CorerlError: oneDNN is asked for where it is missing or does not compute in float32.
    """
    if setting not in KERNELS:
        raise CorerlError(f"kernel={setting} is not one of {', '.join(KERNELS)}.")
    if setting == "mkl" or (setting == "auto" and not _both()):
        return "mkl"
    if setting == "auto":
        return _remembered()
    if not torch.backends.mkldnn.is_available():
        raise CorerlError(
            "kernel=onednn is not possible, because this torch has no oneDNN. Use kernel=mkl."
        )
    worst = error(_product("onednn"))
    if worst > EXACT:
        raise CorerlError(
            f"kernel=onednn does not compute in float32 on this CPU (relative error {worst:.0e}). Use "
            "kernel=auto, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment."
        )
    return "onednn"


def _both() -> bool:
    return torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


@functools.cache
def _remembered() -> str:
    """Returns the choice that was measured on this machine before, else now."""
    path = Path.home() / ".cache" / "corerl" / "kernels.json"
    machine = "; ".join((cpu_name(), platform.node(), torch.__version__))
    machine += f"; ONEDNN_MAX_CPU_ISA={os.environ.get('ONEDNN_MAX_CPU_ISA')}"
    known = {}
    with suppress(OSError, ValueError):
        known = json.loads(path.read_text(encoding="utf-8"))
    if known.get(machine) not in ("mkl", "onednn"):
        known[machine] = faster(_product("mkl"), _product("onednn"))
        with suppress(
            OSError, CorerlError
        ):  # a home that cannot be written: measured again next time
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, known)
    return known[machine]


def faster(mkl: Product, onednn: Product, clock: Callable[[], float] = time.perf_counter) -> str:
    """Returns the faster one, by a margin and only where it is exact: `mkl` or `onednn`."""
    if error(onednn) > EXACT or _same(mkl, onednn):
        return "mkl"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = {mkl: float("inf"), onednn: float("inf")}
    try:
        for _ in range(6):  # in turn, so that a busy moment meets both
            for product in best:
                start = clock()
                for a, b in _operands():
                    product(a, b)
                best[product] = min(best[product], clock() - start)
    finally:
        torch.set_num_threads(threads)
    return "onednn" if best[mkl] > GAIN * best[onednn] else "mkl"


def _same(one: Product, other: Product) -> bool:
    """Tells whether both are equal bit for bit: without AVX-512 torch gives everything to MKL."""
    return all(torch.equal(one(a, b), other(a, b)) for a, b in _operands())


def error(product: Product) -> float:
    """Returns the largest relative error (Frobenius norm) over the products of an update."""
    return max(
        float((product(a, b).double() - exact).norm() / exact.norm())
        for a, b in _operands()
        for exact in [torch.bmm(a.double(), b.double())]
    )


@functools.cache
def _operands() -> list[tuple[Tensor, Tensor]]:
    """Draws both factors of each product, forward and backward: plain, and either one transposed."""
    rng = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(2, rows, columns, generator=rng)

    def transposed(rows: int, columns: int) -> Tensor:
        return normal(columns, rows).mT

    return [
        (left(rows, inner), right(inner, columns))
        for rows, inner, columns in SHAPES
        for left, right in ((normal, normal), (normal, transposed), (transposed, normal))
    ]
