"""One thread, the precision in which an algorithm and its transcription are compared, and who calls what."""

import pytest
import torch

torch.set_num_threads(1)  # networks of 8 units: a second thread only waits


@pytest.fixture(params=[(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["float64", "float32"])
def tolerance(request):
    """How far the two may differ, relative and absolute, with everything built in that precision.

    In float64 only the order of summation differs; 1e-9 is tight enough to tell an epsilon of 1e-6 from
    1e-5. Float32 is what users run: 1e-7 per operation on losses of order 1 to 1000 stays inside 1e-5,
    as long as no gradient cancels to rounding, since Adam divides by its size. The fixed data of these
    tests has none; a failure in float32 alone, of a single weight, would be that and not an error.
    """
    dtype, tolerance = request.param
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield tolerance
    torch.set_default_dtype(before)


@pytest.fixture
def float64():
    """Builds everything in that precision, where rounding would hide or make a difference."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def calls(monkeypatch):
    """`calls(cls, names)` is a list of (name, arguments) that grows with every call of these methods.

    It is one list, whatever classes it is asked for.
    """
    log: list[tuple[str, tuple]] = []

    def reported(name: str, own):
        def method(self, *args, **more):
            log.append((name, args))
            return own(self, *args, **more)

        return method

    def watch(cls: type, names: str) -> list[tuple[str, tuple]]:
        for name in names.split():
            monkeypatch.setattr(cls, name, reported(name, getattr(cls, name)))
        return log

    return watch
