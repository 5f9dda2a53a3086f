"""A function in pieces: made anew, with the same defaults, globals and cells, whenever more is known of it.

Invariant: a call that is under way goes on in the pieces that it began with.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch

from smelt.capture.convert import CannotConvert
from smelt.capture.reads.reads import ReadLog
from smelt.capture.splitting.code import Source
from smelt.capture.splitting.flow import stores
from smelt.capture.splitting.plan import Marks, Place, Plan, place_of
from smelt.capture.splitting.plan import Piece as Run
from smelt.compiler.object.compiled_types import Settings
from smelt.compiler.split.splitting_pieces import Break, Piece
from smelt.diag import Span

_BINDINGS = 256  # modules that one piece is compiled for; for others it runs as it is


class Unsplit(Exception):
    """A function that stays whole; the text says why."""


class Owner(Protocol):
    """The program that a split function belongs to."""

    settings: Settings
    around: dict[int, CodeType]

    def pick(self, fn: Any) -> Any:
        """What runs in the place of a callee."""

    def measured(self, piece: Callable[..., Any]) -> Callable[..., Any]:
        """The piece itself, or what takes its time."""

    def refused(self, region: Region, log: ReadLog, error: Exception | None, is_small: bool) -> None:
        """A piece cannot be compiled."""

    def note(self, found: Break) -> None:
        """Remember why something runs in Python."""


class _Pieces:
    """What the code of a split function reaches through its constant: `pick`, and the pieces by number."""

    def __init__(self, pick: Callable[[Any], Any]) -> None:
        self.pick = pick


class SplitFunction:
    """One function of a split program. Raises: Unsplit where it cannot be one."""

    def __init__(self, original: FunctionType, owner: Owner, marks: Marks) -> None:
        try:
            self.source = Source(original)
        except CannotConvert as error:
            raise Unsplit(error.reason) from None
        self.original, self.owner, self.marks = original, owner, marks
        self._code, self._defaults, self._named = original.__code__, original.__defaults__, original.__kwdefaults__
        self._regions: dict[tuple[Place, tuple[str, ...], tuple[str, ...]], Region] = {}
        self.regions: list[Region] = []
        plan = self.source.planner.plan(marks)
        if len(plan.pieces) == 1 and not marks.lines:
            self.divide(plan.pieces[0])  # nothing tells what in it is to blame
        try:
            self.replan()
        except (SyntaxError, ValueError, RecursionError) as error:
            raise Unsplit(f"its code cannot be made: {error}") from None

    def replan(self) -> None:
        """Take up what the marks say now."""
        plan: Plan = self.source.planner.plan(self.marks)
        pieces = _Pieces(self.owner.pick)
        regions = []
        for number, run in enumerate(plan.pieces):
            key = (run.place, run.needs, run.gives)
            region = self._regions.get(key)
            if region is None:
                region = self._regions[key] = Region(self, run)
            regions.append(region)
            setattr(pieces, f"run_{number}", region)
        made = self.source.around(self.original, plan, pieces)
        self.owner.around[id(made.__code__)] = made.__code__
        self.function, self.plan, self.regions = made, plan, regions

    def fits(self) -> bool:
        """Whether the function is still what it was when it was split."""
        now = self.original
        return now.__code__ is self._code and now.__defaults__ is self._defaults and now.__kwdefaults__ is self._named

    def divide(self, run: Run) -> None:
        """Make two runs of one that cannot be compiled where nothing tells which statement is to blame."""
        if len(run.body) > 1:
            self.marks.cuts.add(place_of([run.body[len(run.body) // 2]]))
        else:
            self.marks.opened.add(run.place)

    def keep(self, run: Run) -> None:
        """Run these statements in Python."""
        for node in run.body:
            self.marks.lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))

    @property
    def lines_kept(self) -> int:
        """How many lines of it run in Python."""
        code = self._code
        lines = {line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno}
        return len(lines - {n for r in self.regions for n in range(r.run.place[0], r.run.place[2] + 1)})

    def span(self, run: Run) -> Span:
        """Where a run of statements begins."""
        return Span(self._code.co_filename, run.place[0], self._code.co_qualname)


class Region:
    """A run of statements of a split function. It is compiled for each module that it gets, as a closure over it."""

    def __init__(self, of: SplitFunction, run: Run) -> None:
        self.of, self.run = of, run
        self._whole = of.source.piece(of.original, run, {})
        stored = stores(*run.body)
        self._may_hold = [name not in stored for name in run.needs]
        self._bindings: dict[tuple[int, ...], tuple[Callable[..., Any], list[int]]] = {}
        self.pieces: list[Piece] = []

    def __call__(self, *args: Any) -> Any:
        key = tuple([id(a) if isinstance(a, torch.nn.Module) else 0 for a in args])
        found = self._bindings.get(key)
        if found is None:
            found = self._bind(key, args)
        call, free = found
        return self.of.owner.measured(call)(*[args[i] for i in free])

    def _bind(self, key: tuple[int, ...], args: tuple[Any, ...]) -> tuple[Callable[..., Any], list[int]]:
        of, names = self.of, self.run.needs
        is_held = [bool(key[i]) and self._may_hold[i] for i in range(len(args))]
        free = [i for i in range(len(args)) if not is_held[i]]
        if len(self._bindings) >= _BINDINGS:
            return self._whole, list(range(len(args)))
        held = {names[i]: args[i] for i in range(len(args)) if is_held[i]}
        function = of.source.piece(of.original, self.run, held)
        first, last = self.run.place[0], self.run.place[2]
        name = f"{function.__qualname__}, line{f's {first} to {last}' if last > first else f' {first}'}"
        piece = Piece(function, name, of.owner.settings, self._refused)
        self.pieces.append(piece)
        self._bindings[key] = (piece, free)
        return piece, free

    def _refused(self, log: ReadLog, error: Exception | None, is_small: bool) -> None:
        self.of.owner.refused(self, log, error, is_small)
