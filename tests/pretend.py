"""A GPU that is not there: tensors on `cuda:0` whose numbers lie on the CPU, and torch's rules for them.

A run on it computes the CPU's numbers, and stops where a GPU would stop it: at an operation on tensors
of two devices, at a generator of the other device, at a tensor that numpy cannot see.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from corerl import seeding
from corerl.runs.replay_files import Ring

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal"),
    *("unique2", "_unique2", "unique_dim", "unique_consecutive"),
}
"""Operations after which the host knows a number of the device."""
MATH = 0
"""The attention that is made of products and softmax."""


class OnGpu(Tensor):
    """A tensor that says it is on the GPU. `numbers`: it, on the CPU.

    To torch's C++ it is on `meta`, which has gradients and no kernels that could be called by mistake.
    """

    @staticmethod
    def __new__(cls, numbers: Tensor):
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset()}
        return Tensor._make_wrapper_subclass(
            cls, numbers.shape, dtype=numbers.dtype, device="meta", **layout
        )

    def __init__(self, numbers: Tensor):
        self.numbers = numbers

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"OnGpu({self.numbers!r})"

    def tolist(self):
        return self.numbers.tolist()

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __getitem__(self, places):
        return super().__getitem__(_as_tensors(places))

    def __setitem__(self, places, value):
        super().__setitem__(_as_tensors(places), value)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


def _as_tensors(places):
    """Makes tensors of lists, which torch would put on `meta`."""
    if isinstance(places, tuple):
        return tuple(map(_as_tensors, places))
    return torch.tensor(places) if isinstance(places, list) else places


def computed(func, args, kwargs):
    """Computes on the CPU what a GPU is asked for, if a GPU would do that."""
    given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in given if isinstance(x, OnGpu)]
    if func is aten._fused_sdp_choice.default and there:
        return MATH
    on_gpu = _place(func, args, kwargs, bool(there))
    _refuse(func, kwargs, on_gpu, there, [x for x in given if not isinstance(x, OnGpu)])
    if there and func.__name__.split(".")[0] in WAITING:
        Machine.waits[func.__name__] += 1
    own = {k: CPU if k == "device" and v else v for k, v in kwargs.items() if k != "pin_memory"}
    plain_args, plain_kwargs = pytree.tree_map_only(OnGpu, lambda x: x.numbers, (args, own))
    out = func(*plain_args, **plain_kwargs)
    if not on_gpu:
        return args[0] if func is aten.copy_.default else out
    out = pytree.tree_map_only(Tensor, OnGpu, out)
    aliases = there and any(result.alias_info for result in func._schema.returns)
    return return_and_correct_aliasing(func, args, kwargs, out) if aliases else out


def _place(func, args, kwargs, there: bool) -> bool:
    """Tells whether the result is on the GPU."""
    if func is aten.copy_.default:
        return isinstance(args[0], OnGpu)
    wanted = kwargs.get("device")
    return there if wanted is None else torch.device(wanted).type in ("cuda", "meta")


def _refuse(func, kwargs, on_gpu: bool, there: list[Tensor], here: list[Tensor]) -> None:
    """Raises RuntimeError where a GPU does, and for one number of the CPU beside tensors of the GPU.

    That a GPU can compute with; a recorded graph would for ever take the number that there was.
    """
    if there and here and not func.__name__.startswith(("copy_", "_to_copy", "index")):
        raise RuntimeError(f"{func} got tensors of the GPU and of the CPU")
    generator = kwargs.get("generator")
    if generator is not None and (generator.initial_seed() in Machine.seeds) != on_gpu:
        raise RuntimeError(f"{func} got a generator of the other device")


class Machine(TorchDispatchMode):
    """Makes new tensors on the device that is asked for.

    `waits`: how often the host waited for a number. `seeds`: of the GPU's generators.
    """

    waits: Counter = Counter()  # noqa: RUF012
    seeds: set[int] = set()  # noqa: RUF012

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


def _generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Draws the CPU's numbers; torch shows a mode no more of a generator than its seed."""
    own = seeding.derive(seed, purpose)
    (Machine.seeds.add if torch.device(device).type == "cuda" else Machine.seeds.discard)(own)
    return torch.Generator().manual_seed(own)


class Stream:
    """A stream, or an event: everything has happened already."""

    def __init__(self, *_, **__):
        pass

    def synchronize(self) -> None:
        pass

    def record(self, stream: "Stream") -> None:
        pass


FUNCTIONS = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "is_initialized": lambda: True,
    "_lazy_init": lambda: None,
    "set_device": lambda _: None,
    "synchronize": lambda *_: None,
    "get_device_name": lambda *_: "a pretended GPU",
    "mem_get_info": lambda *_: (2**40, 2**40),
    "memory_reserved": lambda *_: 0,
    "memory_allocated": lambda *_: 0,
    "current_stream": Stream,
    "Event": Stream,
}
"""Of `torch.cuda`."""
OF = Ring.of


def _ring(places: Tensor, added: int) -> Ring:
    return OF(places.numbers if isinstance(places, OnGpu) else places, added)


@contextmanager
def gpu() -> Iterator[None]:
    """A block in which there is one, `cuda:0`; only with its number can it be found."""
    before = torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:
        for name, value in FUNCTIONS.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(seeding, "generator", _generator))
        stack.enter_context(patch.object(Ring, "of", staticmethod(_ring)))
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        Machine.waits.clear()
        stack.enter_context(Machine())
        yield


def on_cpu(state):
    """Returns nested state with the numbers of its tensors."""
    return pytree.tree_map_only(OnGpu, lambda x: x.numbers, state)
