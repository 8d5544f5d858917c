"""The faster of torch's and Triton's code for one shape on this GPU, by a race that is run once a machine."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

ERROR = 2.0
"""How many times torch's largest error, against float64, Triton's may have."""
TORCHS = "torch"
_known: dict[str, Callable] = {}


def of(torchs: Callable, tritons: Callable, relu: bool, *tensors: Tensor) -> Callable:
    """Returns `torchs`, or `tritons` with the fastest of its blocks, to be called with `(*tensors, relu)`.

    While a graph is recorded nothing can be timed, and a shape that is new there is torch's.
    """
    name = _name(torchs, relu, tensors)
    if name not in _known:
        if torch.cuda.is_current_stream_capturing():
            return torchs
        kept = _kept().get(name)
        if kept is None:
            kept = _race(torchs, tritons, relu, tensors)
            _keep(name, kept)
        _known[name] = torchs if kept == TORCHS else partial(tritons, block=tuple(kept))
    return _known[name]


def _name(torchs: Callable, relu: bool, tensors: tuple[Tensor, ...]) -> str:
    """Describes all that the fastest code, or its error, depends on."""
    shapes = [list(x.shape) for x in tensors]
    gpu = torch.cuda.get_device_name(tensors[0].device)
    precision = torch.get_float32_matmul_precision()
    return f"{gpu} torch {torch.__version__} {precision} {torchs.__name__} relu={relu} {shapes}"


def _race(torchs: Callable, tritons: Callable, relu: bool, like: tuple[Tensor, ...]) -> list | str:
    """Returns the fastest block that is as exact as torch's code, or `TORCHS`."""
    from corerl.nn.triton_matmul import BLOCKS

    generator = torch.Generator(like[0].device).manual_seed(0)
    tensors = [torch.randn(x.shape, generator=generator, device=x.device) for x in like]
    few = [x[:1] for x in tensors]  # of one copy, since float64 takes room
    exact = torchs(*(x.double() for x in few), relu)
    allowed = ERROR * error(
        _first(torchs(*tensors, relu)), exact
    )  # fewer copies may have other code
    times = {TORCHS: seconds(partial(torchs, *tensors, relu))}
    for block in BLOCKS:
        with suppress(Exception):  # what Triton cannot compile for this card, torch computes
            if error(tritons(*few, relu, block=block), exact) <= allowed:
                times[block] = seconds(partial(tritons, *tensors, relu, block=block))
    return min(times, key=times.__getitem__)


def _first(result: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """Returns the first copy of a result."""
    return tuple(x[:1] for x in result) if isinstance(result, tuple) else result[:1]


def error(result, exact) -> float:
    """Returns the largest difference of results, each a tensor or several."""
    pairs = zip(result, exact, strict=True) if isinstance(exact, tuple) else [(result, exact)]
    return max(float((mine.double() - right).abs().max()) for mine, right in pairs)


def seconds(call: Callable) -> float:
    """Returns how long the GPU takes for a call inside a graph, where the host launches nothing."""
    from triton.testing import do_bench_cudagraph

    return do_bench_cudagraph(call, rep=2, return_mode="min") / 1000


def _path() -> Path:
    """Returns a file beside the code that torch's compiler keeps."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "corerl_fastest.json"


def _kept() -> dict:
    with suppress(OSError, ValueError):
        return json.loads(_path().read_text(encoding="utf-8"))
    return {}


def _keep(name: str, fastest: list | str) -> None:
    path = _path()
    own = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps(_kept() | {name: fastest}), encoding="utf-8")
        own.replace(path)
