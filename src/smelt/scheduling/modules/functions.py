"""A function as operators: captured on stand-ins for the operands that it is put on.

Invariant: nothing of the program runs; random numbers are afterwards what they were.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt._torch.seen.record_patches import Patches
from smelt.capture import capture
from smelt.capture.reads.reads import RecorderBusy, record_reads
from smelt.compiler.pipeline import functional_graph
from smelt.diag import Options, ScheduleError, SmeltError, Span
from smelt.diag.records import distinct_record
from smelt.ir import Arg, Graph, TensorType, Type, Value
from smelt.ops.convert import dummy_of, to_torch

_patches = Patches()


@distinct_record
class Inlined:
    """A function's graph, the operands of its inputs, the tensors that it found outside, by name, and what it read."""

    graph: Graph
    operands: tuple[Arg, ...]
    state: Mapping[str, torch.Tensor]
    reads: tuple[Any, ...] = ()


def inlined(
    function: Callable[..., Any], operands: Sequence[Arg], where: Span | None, *, reads_nothing: bool = False
) -> Inlined | None:
    """The operators of a function on these operands; None where a graph does not do all that it does.

    reads_nothing: known to read nothing besides its operands, also where nobody can watch (a recording is under way).
    Raises: ScheduleError (S0608) where it cannot run on such operands, or gives something else than tensors.
    """
    try:
        return _inlined(function, operands, where, 0, reads_nothing)
    except ScheduleError:
        # Some functions have no answer for zeros (a division), others none for ones (an index).
        return _inlined(function, operands, where, 1, reads_nothing)


def _inlined(
    function: Callable[..., Any], operands: Sequence[Arg], where: Span | None, fill: int, reads_nothing: bool
) -> Inlined | None:
    dummies: dict[Value, torch.Tensor] = {}
    own_gradients = Gradients()
    with torch.random.fork_rng(devices=[]), own_gradients.watched():
        given = [_stand_in(arg, dummies, fill) for arg in operands]
        log = None
        try:
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(RecorderBusy):
                    log = stack.enter_context(record_reads({"f": function}, tuple(given), {}))
                captured = capture(function, given, {}, specialize=True)
        except Exception as error:
            raise _cannot_run(function, error, operands, where) from error
    results = _results(captured.result, function, where)
    if captured.error is not None or captured.graph is None or captured.conversions or own_gradients.why:
        return None
    is_known = reads_nothing if log is None else log.is_replayable
    if not is_known:
        return None  # what it reads is known to nobody, or it does more than a graph: it is called each time
    try:
        graph, _ = functional_graph(captured.graph, Options(), captured.entangled)
    except SmeltError:
        return None
    if any(node.op in ("write", "expect") or node.regions for node in graph.walk()):
        return None
    if len(graph.outputs) != len({id(t) for t in results}) or captured.signature is None:
        return None
    order = {id(result): i for i, result in reversed(list(enumerate(_distinct(results))))}
    graph.body.set_yields(tuple(graph.outputs[order[id(result)]] for result in results))
    places = {id(tensor): value for value, tensor in dummies.items()}
    inputs = captured.signature.flatten(tuple(given), {})
    state = {path: entry.tensor for (_, path), entry in captured.state.entries.items()}
    return Inlined(
        graph, tuple(places[id(tensor)] for tensor in inputs), state, () if log is None else tuple(log.reads)
    )


def run_on_stand_ins(function: Callable[..., Any], operands: Sequence[Arg], where: Span | None) -> list[torch.Tensor]:
    """What a function gives for stand-ins of these operands. Raises: as `inlined`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            result = function(*[_stand_in(arg, {}) for arg in operands])
        except Exception:
            try:
                result = function(*[_stand_in(arg, {}, fill=1) for arg in operands])
            except Exception as error:
                raise _cannot_run(function, error, operands, where) from error
    return _results(result, function, where)


def stand_ins(types: Sequence[Type]) -> list[torch.Tensor]:
    """A tensor of each type, of random numbers. Random numbers of the program stay as they are."""
    with torch.random.fork_rng(devices=[]):
        return [_stand_in_of(type_) for type_ in types]


def as_list(result: Any) -> list[Any]:
    """The results of a call as a list: of a tuple or list its items, else the one thing."""
    return list(result) if isinstance(result, tuple | list) else [result]


class Gradients:
    """Whether something defines gradients of its own (`torch.autograd.Function`), which no operator tells of."""

    def __init__(self) -> None:
        self.why = ""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look for the time of a block; without gradients there is nothing to see."""
        if not torch.is_grad_enabled():
            yield
            return
        watcher = self

        def make(original: Any) -> Any:
            def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
                watcher.why = f"{cls.__name__} defines gradients of its own"
                return original.__get__(None, cls)(*args, **kwargs)

            return classmethod(apply)

        with _patches.replaced(torch.autograd.Function, "apply", make):
            yield


def _stand_in(arg: Arg, dummies: dict[Value, torch.Tensor], fill: int = 0) -> Any:
    """A tensor of an operand's type: random numbers, of integers and truth values all the same one."""
    if isinstance(arg, tuple):
        return [_stand_in(item, dummies, fill) for item in arg]
    if not isinstance(arg, Value):
        return to_torch(arg)
    if arg not in dummies:
        if not isinstance(arg.type, TensorType):
            raise ScheduleError(f"%{arg.name} is {arg.type}, and no operand of a replacement", code="S0608")
        dummies[arg] = _stand_in_of(arg.type, fill)
    return dummies[arg]


def _stand_in_of(type_: Type, fill: int = 0) -> torch.Tensor:
    assert isinstance(type_, TensorType)
    made = dummy_of(type_)
    # Its memory from end to end: elements of an expanded tensor share theirs.
    memory = made.as_strided((made.untyped_storage().nbytes() // made.itemsize,), (1,), 0)
    with torch.no_grad():
        _ = memory.normal_() if made.is_floating_point() or made.is_complex() else memory.fill_(fill)
    return made


def _results(result: Any, function: Callable[..., Any], where: Span | None) -> list[torch.Tensor]:
    found = as_list(result)
    if not found or not all(isinstance(item, torch.Tensor) for item in found):
        raise ScheduleError(
            f"{name_of(function)} gives {type(result).__name__}, not tensors", where,
            why="what it replaces gives tensors", fix="return a tensor, or a tuple of tensors", code="S0608",
        )  # fmt: skip
    return found


def _distinct(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _cannot_run(
    function: Callable[..., Any], error: Exception, operands: Sequence[Arg], where: Span | None
) -> ScheduleError:
    types = ", ".join(str(arg.type) if isinstance(arg, Value) else repr(arg) for arg in operands)
    return ScheduleError(
        f"{name_of(function)} cannot stand here: {type(error).__name__}: {error}", where,
        why=f"it was tried on ({types})", fix="give one that takes these", code="S0608",
    )  # fmt: skip


def name_of(function: Any) -> str:
    """A function's or module's name for messages."""
    function = getattr(function, "function", function)
    return str(getattr(function, "__qualname__", type(function).__name__))


def signature_of(function: Any) -> inspect.Signature | None:
    """The parameters of a function or of a module's forward, None where they cannot be told."""
    try:
        return inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    except (TypeError, ValueError):
        return None


class Applied(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """What the function gives."""
        return self.function(*args, **kwargs)

    def extra_repr(self) -> str:
        """The function's name."""
        return name_of(self.function)
