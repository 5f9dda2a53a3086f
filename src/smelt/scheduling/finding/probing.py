"""Probes: copies of a model that run once, so that something is learnt of it.

Invariant: the model, its tensors, and the random states are bit for bit as before afterwards, also where a run raises.
A probe has modules and tensors of its own; the memory of large parameters is the model's. What a captured run writes
there is put back.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt.capture import capture, is_capturing
from smelt.capture.reads.saved_memory import Keeper
from smelt.scheduling.graphs.scheduled import scheduled_of
from smelt.scheduling.modules import copying

_LARGE = 1 << 14  # bytes; less is copied in the time in which it is shared


class Probe:
    """A copy of a model: `module`, for captures in `entered` blocks and nowhere else, as it shares memory.

    Raises: ScheduleError (S0612) where a part of the model cannot be copied.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        shared = _shared(model) if is_seen(model) else {}
        self._keeper = Keeper(shared.values())
        with _kept_random():
            self.module = copying.build(model, {key: _same_memory(tensor) for key, tensor in shared.items()})

    @contextlib.contextmanager
    def entered(self) -> Iterator[torch.nn.Module]:
        """A block in which the copy may run: what it writes into shared memory is put back at the end."""
        with _kept_random():
            try:
                with torch.random.fork_rng(devices=[]), self._keeper.watching():
                    yield self.module
            finally:
                self._keeper.restore()


@contextlib.contextmanager
def probe_of(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """A probe for one block. Raises: ScheduleError (S0612) where a part of the model cannot be copied."""
    with Probe(model).entered() as probe:
        yield probe


@contextlib.contextmanager
def _kept_random() -> Iterator[None]:
    """Python's and NumPy's random numbers stay where they are."""
    python, numpy = random.getstate(), sys.modules.get("numpy.random")
    drawn: Any = numpy.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(drawn)


def run_seen(probe: torch.nn.Module, args: Sequence[Any]) -> None:
    """Run a probe, if only to see what happens. Raises: whatever it raises."""
    if is_seen(probe):
        capture(probe, args)  # for what it watches; the graph is not needed
    else:
        probe(*args)


def is_seen(model: torch.nn.Module) -> bool:
    """Whether all that a captured run of the model writes is seen."""
    if is_capturing():
        return False  # a run within a recorded program is no capture of its own
    for module in model.modules():
        # Scripted code and replicas run elsewhere; a scheduled forward has a thread for its captures.
        if isinstance(module, torch.jit.ScriptModule | torch.nn.DataParallel) or scheduled_of(module) is not None:
            return False
    return True


def _shared(model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Parameters whose memory a probe has in common with the model, by id."""
    memory: dict[int, set[int]] = {}
    for tensor in copying.tensors(model):
        if tensor.layout is torch.strided and tensor.device.type != "meta" and not _is_wrapper(tensor):
            memory.setdefault(tensor.untyped_storage().data_ptr(), set()).add(id(tensor))
    return {
        id(parameter): parameter
        for parameter in model.parameters()
        if _is_plain(parameter)
        and parameter.nbytes >= _LARGE
        and memory.get(parameter.untyped_storage().data_ptr()) == {id(parameter)}
    }


def _is_plain(parameter: torch.nn.Parameter) -> bool:
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.layout is torch.strided
        and parameter.device.type == "cpu"
        and parameter.is_leaf
        and not parameter.is_inference()
        and not parameter.is_quantized
        and not (parameter.is_conj() or parameter.is_neg())
    )


def _is_wrapper(tensor: torch.Tensor) -> bool:
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def _same_memory(parameter: torch.Tensor) -> torch.nn.Parameter:
    # With a version counter of its own: not even that of the model's moves.
    return torch.nn.Parameter(parameter.data, parameter.requires_grad)
