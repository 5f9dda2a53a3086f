"""A program that cannot be one graph, in pieces: what is compiled of it, what runs in Python, and why.

    refused("appends to log", model.py:7)     forward: line 7 runs in Python, what stands around it is pieces;
        ==>                                   whoever calls forward, up to the program itself, calls it so

A *node* is something the program calls: a function, a method, a module. It is compiled whole until it is refused; then
its function is *split*: runs of statements become pieces, the statements between them run in Python, and each asks here
(`pick`) what stands for the callee. So refusals go down until only what has to runs in Python.

Invariant: nothing of the user's changes: no attribute, no function's code, no module's class. What runs in the place of
a function is another function over the same globals and cells, and only the split program calls it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from math import inf
from threading import get_ident
from time import perf_counter
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from smelt._torch.seen.module_call import call_with_forward
from smelt._torch.seen.saved_hooks import is_in_checkpoint
from smelt.capture.reads.reads import ReadLog
from smelt.capture.reads.reads_effects import file_kind, hands_on
from smelt.capture.reads.reads_values import COMPILED_TARGET, has_own_lookup
from smelt.capture.splitting.plan import Marks
from smelt.compiler.deciding.trial import Trial, first_trial
from smelt.compiler.deciding.worth import Worth
from smelt.compiler.object.compiled_types import Entry, NotDifferentiable, Settings, Unmade
from smelt.compiler.split.splitting_function import Region, SplitFunction, Unsplit
from smelt.compiler.split.splitting_pieces import MIN_OPERATORS, Break, Piece, operators, places_of, without_pieces
from smelt.diag import Span

_MADE_ANEW = 64  # callees of one definition, after which another is taken to be made at each call
_NODES = 4096
_GENERATOR = 0x20
_MEASURED_CALL = 16  # each of which tells how much of the time is spent in pieces
_IDLE_CALLS = 8  # after which a program that has no piece runs as it is


class Node:
    """Something that the program calls. plain: it runs as it is; split: its function in pieces."""

    __slots__ = ("compiled", "name", "plain", "split", "target", "why")

    def __init__(self, target: Any) -> None:
        self.target = target
        self.name = getattr(target, "__qualname__", type(target).__name__)
        self.compiled: Piece | None = None
        self.split: SplitFunction | None = None
        self.plain = False
        self.why = ""


class Splits:
    """The pieces of one program. settings: how each of them is compiled. times: what a call took in pieces and in eager
    mode, where the first comparison decided against the pieces. has_gradients: whether autograd goes back from results:
    then a call's own time says little, and only the first comparison, which counts the way back, decides.
    """

    def __init__(self, target: Any, name: str, settings: Settings) -> None:
        self.target, self.name, self.settings = target, name, settings
        self.breaks: dict[Break, None] = {}
        self.around: dict[int, CodeType] = {}
        self._marks: dict[tuple[str, str], Marks] = {}
        self._nodes: dict[Any, Node] = {}
        self._functions: dict[int, SplitFunction] = {}
        self._made: dict[CodeType, int] = {}
        self._lock = threading.RLock()
        self._calls = 0
        self._measuring: int | None = None
        self._pieces_s = 0.0
        self._fastest = (inf, 0.0)  # the whole, and of it the pieces
        self.is_idle = False
        self.has_gradients = False
        self._trial: Trial | None = None
        self._is_stopped = False  # nothing more is built for its pieces, which is another program to compare
        self.times: tuple[float, float] | None = None
        self.worth = Worth()

    # ---------------------------------------------------------------- the program

    def start(self, log: ReadLog, error: Exception | None) -> bool:
        """Split the program where this refusal points to; whether it can be split.

        What pieces give has eager's elements, sizes and strides, and shares memory as in eager; which of two tensors is
        the base, and how often it was written, a program that asks for it finds out as it is only.
        """
        if log.asks_memory:
            return False
        with self._lock:
            self.mark(log, error)
            self._trial = self._new_trial()
            node = self._node_of(self.target)
            return node is not None and self._split(node)

    def _new_trial(self) -> Trial | None:
        return first_trial(self.settings.ledger, has_gradients=self.has_gradients)

    def more(self, log: ReadLog, error: Exception | None) -> None:
        """Take up another refusal of the program."""
        self.is_idle = self.is_idle or log.asks_memory
        with self._lock:
            self.mark(log, error)

    def refresh(self) -> None:
        """Take the present contents of parameters into all pieces."""
        for piece in self.running():
            piece.refresh()

    def run(self, /, *args: Any, **kwargs: Any) -> Any:
        """The program's answer."""
        node = self._node_of(self.target)
        assert node is not None
        if self.is_idle or self.is_left:
            return self.target(*args, **kwargs)
        ledger = self.settings.ledger
        if ledger is not None and ledger.refused and not self._is_stopped:
            self._is_stopped, self._trial = True, self._new_trial()
        trial = self._trial
        if (
            trial is not None
            and not (trial.has_gradients and is_in_checkpoint())
            and trial.lock.acquire(blocking=False)
        ):
            try:
                trial.catch_up()
                if not trial.is_over:
                    pieces = functools.partial(self._run_pieces, node)
                    return trial.run(self.target if trial.is_eagers_turn else pieces, args, kwargs)
            finally:
                if trial.is_over:
                    self._trial, self.times = None, trial.times if trial.is_lost else None
                trial.lock.release()
        return self.target(*args, **kwargs) if self.is_left else self._run_pieces(node, *args, **kwargs)

    def _run_pieces(self, node: Node, /, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if self._calls == _IDLE_CALLS:
            self.is_idle = not self.running()
        measured = self._calls % _MEASURED_CALL == 0 and self._measuring is None
        if measured:
            self._measuring, self._pieces_s, start = get_ident(), 0.0, perf_counter()
        try:
            if self.has_gradients:
                return self._runner(node, self.target)(*args, **kwargs)
            return self.worth.run(self._runner(node, self.target), self.target, args, kwargs)
        except BaseException as error:
            error.__traceback__ = without_pieces(error.__traceback__, self.around)
            raise
        finally:
            if measured:
                self._measuring = None
                self._fastest = min(self._fastest, (perf_counter() - start, self._pieces_s))

    def measured(self, piece: Callable[..., Any]) -> Callable[..., Any]:
        """A piece whose time counts, in a call that is measured."""
        if self._measuring != get_ident():
            return piece

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return piece(*args, **kwargs)
            finally:
                self._pieces_s += perf_counter() - start

        return timed

    @property
    def is_left(self) -> bool:
        """Whether it took longer in pieces, and runs as it is."""
        return self.worth.is_lost or self.times is not None

    @property
    def share(self) -> float | None:
        """How much of the time of a call its pieces take, in the fastest that was measured; None before the first."""
        whole, pieces = self._fastest
        return pieces / whole if whole < inf else None

    # ---------------------------------------------------------------- what is called

    def pick(self, fn: Any) -> Any:
        """What runs in the place of a callee; mostly it is the callee itself."""
        key: Any = id(fn)
        if type(fn) is MethodType:
            key = (id(fn.__func__), id(fn.__self__))
        node = self._nodes.get(key)
        if node is None:
            node = self._node_of(fn)
            if node is None:
                return fn
        if node.plain:
            return fn
        return self._runner(node, fn)

    def _runner(self, node: Node, fn: Any) -> Any:
        if node.split is None:
            if node.compiled is not None:
                return node.compiled if self._measuring is None else self.measured(node.compiled)
            if isinstance(fn, torch.nn.Module):
                return _module_call(fn, self.pick(fn.forward))
            return fn
        if not node.split.fits():
            return fn
        if type(fn) is MethodType:
            return MethodType(node.split.function, fn.__self__)
        return node.split.function

    def _node_of(self, fn: Any) -> Node | None:
        key: Any = (id(fn.__func__), id(fn.__self__)) if type(fn) is MethodType else id(fn)
        node = self._nodes.get(key)
        if node is not None or len(self._nodes) >= _NODES:
            return node
        function = _function_of(fn)
        if function is None:
            return None
        with self._lock:
            node = self._nodes.get(key)
            if node is not None:
                return node
            if not self._is_lasting(fn):
                made = self._made[function.__code__] = self._made.get(function.__code__, 0) + 1
                if made > _MADE_ANEW:
                    return None
            node = Node(fn)
            self._begin(node, function)
            self._nodes[key] = node  # with its callee, which lives from now on: the id names nothing else
            return node

    def _is_lasting(self, fn: Any) -> bool:
        """Whether a callee is a module of the program's own, or a method of one: the same at the next call."""
        owner = getattr(fn, "__self__", fn)
        if not isinstance(owner, torch.nn.Module) or not isinstance(self.target, torch.nn.Module):
            return False
        return any(module is owner for module in self.target.modules())

    def _begin(self, node: Node, function: FunctionType) -> None:
        if node.target is self.target:
            return
        marks = self._marks.get(_key(function.__code__))
        if (marks is not None and marks.lines) or function.__code__.co_flags & _GENERATOR:
            self._split(node)
        else:
            node.compiled = Piece(node.target, node.name, self.settings, functools.partial(self._refused, node))

    def _refused(self, node: Node, log: ReadLog, error: Exception | None, is_small: bool) -> None:
        """A callee cannot be compiled whole."""
        with self._lock:
            node.compiled = None
            if is_small:
                node.plain, node.why = True, str(error)
                return
            self.mark(log, error)
            self._split(node)

    def _split(self, node: Node) -> bool:
        fn = node.target
        try:
            if isinstance(fn, torch.nn.Module):
                if call_with_forward() is None or fn._compiled_call_impl is not None:
                    raise Unsplit("its call cannot be split")
                inner = self._node_of(fn.forward)
                if inner is None:
                    raise Unsplit("its forward is not the user's")
                # A hook may be what cannot be compiled; without hooks it is the forward.
                if not _has_hooks(fn) and inner.split is None and not self._split(inner):
                    raise Unsplit(inner.why)
                return True
            function: Any = fn.__func__ if isinstance(fn, MethodType) else fn
            split = self._functions.get(id(function))
            if split is None:
                split = SplitFunction(function, self, self._marks.setdefault(_key(function.__code__), Marks()))
                self._functions[id(function)] = split
            node.split = split
            node.compiled = None
        except Unsplit as why:
            node.plain, node.why = True, str(why)
            found = _function_of(fn)
            code = None if found is None else found.__code__
            where = None if code is None else Span(code.co_filename, code.co_firstlineno, code.co_qualname)
            self.note(Break(f"{node.name} is Python as a whole: {why}", where))
            return False
        return True

    # ---------------------------------------------------------------- refusals

    def refused(self, region: Region, log: ReadLog, error: Exception | None, is_small: bool) -> None:
        """A run of statements cannot be compiled."""
        of, run = region.of, region.run
        with self._lock:
            if is_small:
                of.keep(run)
                of.replan()
            else:
                here = _key(of.original.__code__)
                lines = range(run.place[0], run.place[2] + 1)
                found = self.mark(log, error)
                if not any((file, function) == here and line in lines for file, function, line in found):
                    if len(run.body) == 1:
                        self.note(Break(next((what for what, _ in places_of(log, error)), ""), of.span(run)))
                    of.divide(run)
                    of.replan()

    def mark(self, log: ReadLog, error: Exception | None) -> set[tuple[str, str, int]]:
        """Note the lines that a refusal points to: where it happened, and those that called it."""
        self.has_gradients |= isinstance(error, NotDifferentiable)
        found: set[tuple[str, str, int]] = set()
        changed: set[tuple[str, str]] = set()
        for what, stack in places_of(log, error):
            if stack:
                self.note(Break(what, stack[0]))
            for span in stack:
                found.add((span.file, span.function, span.line))
                marks = self._marks.setdefault((span.file, span.function), Marks())
                if span.line not in marks.lines:
                    marks.lines.add(span.line)
                    changed.add((span.file, span.function))
        for split in self._functions.values():
            if _key(split.original.__code__) in changed:
                split.replan()
        return found

    def note(self, found: Break) -> None:
        """Remember why something runs in Python."""
        self.breaks.setdefault(found)

    def running(self) -> list[Piece]:
        """The pieces that run compiled."""
        found = [piece for split in self.split_functions for region in split.regions for piece in region.pieces]
        found += [node.compiled for node in self.nodes if node.compiled is not None]
        return [piece for piece in found if any(row.entry is not None for row in piece.stats().rows)]

    @property
    def split_functions(self) -> list[SplitFunction]:
        """Those that run in pieces."""
        return list(self._functions.values())

    @property
    def nodes(self) -> list[Node]:
        """All that was called by a statement that runs in Python, and could be compiled."""
        return list(self._nodes.values())


def _key(code: CodeType) -> tuple[str, str]:
    return code.co_filename, code.co_qualname


def _function_of(fn: Any) -> FunctionType | None:
    """The function that a callee runs, where it is one that may be compiled or split."""
    if hasattr(type(fn), COMPILED_TARGET):
        return None
    if isinstance(fn, torch.nn.Module):
        if isinstance(fn, torch.jit.ScriptModule) or not _is_called_as_usual(type(fn)):
            return None
        forward = getattr(fn.forward, "__func__", fn.forward)
        return forward if type(forward) is FunctionType else None
    function = fn.__func__ if type(fn) is MethodType else fn
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    return function if file_kind(code.co_filename) == "user" or hands_on(code) else None


def _is_called_as_usual(cls: type) -> bool:
    """Whether calling modules of this class is torch's own doing, while a program is recorded, too."""
    owner = next(base for base in cls.__mro__ if "__call__" in vars(base))
    return owner is torch.nn.Module and not has_own_lookup(cls)


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _module_call(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    call = call_with_forward()
    if call is None or module._compiled_call_impl is not None:
        return module
    return functools.partial(call, forward, module)


def split_program(
    target: Any, name: str, settings: Settings, log: ReadLog, error: Exception | None, entry: Entry | Unmade | None
) -> Splits | None:
    """The program in pieces, after what a run of it did; None where that does not pay or cannot be."""
    count = operators(entry)
    if count is not None and count < MIN_OPERATORS:
        return None
    try:
        splits = Splits(target, name, settings)
        return splits if splits.start(log, error) else None
    except Exception:  # whatever is wrong here, the program runs as it is
        if settings.options.strict:
            raise
        return None
