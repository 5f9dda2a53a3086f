"""`schedule`: a model seen as its modules and as one graph, to be searched and shaped step by step.

Invariant: the model is read, never changed, and captured at the first search. All views of one schedule show the same
state; a step replaces that state as a whole, or raises and leaves it.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, overload

import torch

from smelt.compiler.object.interrupts import SignalsWait
from smelt.diag import ScheduleError, Span
from smelt.diag.collector import full_collections_later
from smelt.diag.notebook import text_box
from smelt.ir import Graph, Node, is_under
from smelt.parallel.module import positional
from smelt.pattern import Where
from smelt.scheduling.applying import states, take
from smelt.scheduling.catalogue import list_primitives, registered
from smelt.scheduling.comparing.differences import difference
from smelt.scheduling.comparing.verify import Verifying, checked, examples_of
from smelt.scheduling.finding.finding import reader
from smelt.scheduling.finding.hints import name_of, why_none
from smelt.scheduling.finding.match import Match, Matches
from smelt.scheduling.finding.selecting import as_matches, remembering, scope_of, selector_of
from smelt.scheduling.finding.target import Target, join
from smelt.scheduling.graphs.fusing import FuseSteps
from smelt.scheduling.graphs.graph_steps import GraphSteps
from smelt.scheduling.graphs.kernel_steps import KernelSteps
from smelt.scheduling.graphs.kernels import Kernels, kernels_of
from smelt.scheduling.modules import copying
from smelt.scheduling.modules.module_steps import annotations_of
from smelt.scheduling.modules.replacing import ReplaceSteps
from smelt.scheduling.paths import fits, paths_of
from smelt.scheduling.ranks.parallel_build import AnyMesh, build_on
from smelt.scheduling.ranks.parallel_steps import ParallelSteps
from smelt.scheduling.ranks.planning import graphs_on
from smelt.scheduling.state import State
from smelt.scheduling.steps import Log, Step, user_span
from smelt.scheduling.text import applied, to_json
from smelt.scheduling.tuning.knobs import Choose, first
from smelt.scheduling.tuning.tuning import Tuning


def schedule(model: torch.nn.Module, example_inputs: Any = None, *, verify_each: bool = False) -> Schedule:
    """A schedule of a model. It never changes the model.

    example_inputs: the arguments of a call (a tuple, one tensor, or a dict of arguments by name). With them sizes and
        types are known, and a copy of the model runs once, at the first search. Without, the model is captured from its
        source; it need not even run.
    verify_each: compare with the model after every step, on the example inputs; a step after which results or gradients
        differ is refused , and the error (StepError, a VerifyError) names the first value that does.
    """
    if not isinstance(model, torch.nn.Module):
        raise ScheduleError(
            f"{model!r} cannot be scheduled", why="it is no nn.Module", fix="give a module", code="S0605"
        )
    examples = None if example_inputs is None else _as_tuple(example_inputs, model)
    root = _Root(State(model, examples))
    if verify_each:
        examples_of(root.state)
        root.checks.append(checked)
    return Schedule(root, "")


def apply(text: str, model: torch.nn.Module, example_inputs: Any = None) -> Schedule:
    """The schedule that `to_json` wrote, applied to a model: one with more layers, other sizes, other weights.

    text names classes and functions to be imported; read one from elsewhere as you would read code. example_inputs: as
    of `schedule`.
    Raises: ScheduleError: S0611 for a text of another version or of something else, and what the first step raises that
        does not fit the model (S0601 a path, S0613 matches that are not there, ...).
    """
    made = schedule(model, example_inputs)
    made._root.state = applied(text, made._root.state)
    return made


class _Root:
    """What the views of a schedule share.

    checks: called with the state that a step leads to before it becomes the schedule's; one that raises refuses it.
    choose: answers knobs.
    """

    def __init__(self, state: State, choose: Choose = first) -> None:
        self.state = state
        self.choose = choose
        self.checks: list[Callable[[State], None]] = []

    def take(self, step: Step) -> None:
        after = take(self.state, step)
        if after is self.state:
            return  # it did not pay
        for check in self.checks:
            check(after)
        self.state = after


class _View:
    """What one module, and several, of a schedule have in common.

    path: from the root, with wildcards where several were selected so.
    """

    _root: _Root
    path: str

    def take(self, primitive: str, arguments: Mapping[str, Any], matches: Any = None, scope: str | None = None) -> Self:
        """As of `Steps`."""
        where = user_span()
        with SignalsWait(), full_collections_later():
            self._root.take(self._step(primitive, arguments, matches, scope, where))
        return self

    def _step(
        self, primitive: str, arguments: Mapping[str, Any], matches: Any, scope: str | None, where: Span | None
    ) -> Step:
        if matches is None:
            return Step(self.path, primitive, dict(arguments), where=where)
        state, given = self._root.state, as_matches(matches)
        path = scope
        if path is None:
            path = self.path if "*" in self.path else scope_of(state, given) if given else self.path
        paths = paths_of(state, path)
        if not paths:
            near = difflib.get_close_matches(str(path), [name for name in state.modules if name], n=1, cutoff=0.4)
            raise ScheduleError(
                f"the model has no module {path!r} to be the scope", where, why="the step edits the graph of one",
                fix=f"did you mean {near[0]!r}?" if near else "leave scope out", code="S0601",
            )  # fmt: skip
        selector = selector_of(state, given, paths)
        return Step(path, primitive, dict(arguments), selector, where)

    def kernels(self, name: str = "") -> Kernels:
        """The kernels that `fuse` made here and below, with the loops that the steps so far made of them.

        name: one kernel's, or that of all which one `fuse` made. Printed, each has its loops with their names;
        `kernel.llvm` and `kernel.assembly` are its code. Products, convolutions and attention, which are no loop nests,
        are left out. Raises: ScheduleError (S0614) where there is none.
        """
        return kernels_of(self._root.state, paths_of(self._root.state, self.path), name)

    def knob(self, name: str, choices: Sequence[Any]) -> Any:
        """One of the choices: the first, or while a scheduling function is tuned (`Schedule.tune`) each one after the
        other.

        It is the choice itself, so it may be an argument of any step, and decide which steps are applied. Raises:
        ScheduleError (S0631) if there is no choice, or this name had other choices before.
        """
        return self._root.choose(name, choices)

    def __getattr__(self, name: str) -> Any:
        if name in registered:
            return partial(self._take_registered, name)
        raise AttributeError(f"a schedule has no {name!r}; its primitives are {', '.join(list_primitives())}")

    def _take_registered(self, name: str, *given: Any, **arguments: Any) -> Self:
        if given:
            raise ScheduleError(
                f"{name} receives {len(given)} argument{'s' * (len(given) != 1)} without a name", user_span(),
                why="a step is data, in which arguments have names", fix=f"s.{name}(name=value)", code="S0607",
            )  # fmt: skip
        return self.take(name, arguments)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *registered]


class Schedule(_View, ReplaceSteps, FuseSteps, GraphSteps, KernelSteps, ParallelSteps, Verifying, Tuning):
    """One module of the model, and the modules below it.

    s["encoder.layer.0"] is the module at a path below, s["encoder.layer.*.attention"] all that fit; iteration gives the
    modules right below. `path` is counted from the whole model.
    """

    def __init__(self, root: _Root, path: str) -> None:
        self._root = root
        self.path = path

    @property
    def module(self) -> torch.nn.Module:
        """The current module, for reading; the user's own until a first step."""
        found = self._state.modules.get(self.path)
        if found is None:
            raise ScheduleError(
                f"there is no module {self.path!r} any more", why="a step replaced the module that contained it",
                fix="print the schedule to see its modules, or undo the step", code="S0601",
            )  # fmt: skip
        return found

    @property
    def log(self) -> Log:
        """The steps so far, all over the model."""
        return Log(self._state.steps)

    @property
    def reports(self) -> tuple[str, ...]:
        """What steps measured: times as operators and as kernels, bytes that are not written any more."""
        return self._state.reports

    def to_json(self) -> str:
        """The steps as text, for `smelt.apply`. Paths with wildcards stay so.

        Functions and classes that can be imported are named, other functions are written as graphs, modules with their
        tensors. Raises: ScheduleError (S0611) for what can be neither; the schedule itself works all the same.
        """
        return to_json(self._state)

    def diff(self, since: int = 0) -> str:
        """What the steps changed after the first `since` of them: the module tree and each edited graph by line.

        Raises: ScheduleError (S0607) where there are not so many steps.
        """
        chain = list(states(self._state))
        if type(since) is not int or not 0 <= since < len(chain):
            raise ScheduleError(
                f"there is no state after {since!r} steps", user_span(), why=f"{len(chain) - 1} were applied",
                fix=f"give a number from 0 to {len(chain) - 1}; print(s.log) shows the steps", code="S0607",
            )  # fmt: skip
        return difference(chain[since], self._state)

    @property
    def annotations(self) -> dict[str, dict[str, Any]]:
        """The marks that `annotate` put on parameters, by the parameter's path from the root."""
        return annotations_of(self._state.tree)

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """The parameters and buffers that stand under several names, as groups of their names from the root.

        Steps and builds keep them one; `verify` names a tie that a replacement has lost.
        """
        return copying.ties(self._state.tree)

    def undo(self) -> Self:
        """Revert the last step. Raises: ScheduleError (S0607) where there is none."""
        before = self._state.before
        if before is None:
            raise ScheduleError("there is no step to take back", why="the log is empty", code="S0607")
        self._root.state = before
        return self

    def build(self, *, share: bool = False, mesh: AnyMesh | None = None, rank: int | None = None) -> torch.nn.Module:
        """The whole model after the steps: a module of the same class, with the same keys, ties, flags and hooks.

        mesh: of the ranks that share the work: torch's DeviceMesh with named axes, of which this process is one. The
        module then has this rank's part of the parameters, and its forward and backward talk to the other ranks; a
        batch that is divided is passed as this rank's share of it. (With axes as {"tp": 2} and a rank's number it is a
        module to look at.)

        Code without a step computes bit for bit what the model does. No module of it is the user's; its parameters and
        buffers are copies, or with share=True the tensors of the model themselves. Nothing is initialised anew.
        Raises: ScheduleError (S0612) where a part of the model cannot be copied.
        """
        with SignalsWait(), full_collections_later():
            if mesh is not None:
                return build_on(self._state, mesh, rank)
            return self._state.build(share=share)

    def graphs(self, mesh: Mapping[str, int] | str, rank: int = 0) -> dict[str, Graph]:
        """What one rank of a mesh runs in training: "forward" and "backward"; of a pipeline, those of its stages.

        Collectives are nodes, where they are sent. Nothing is computed.
        Raises: ScheduleError (S0622, S0642), SmeltError (S0641) as `build` does.
        """
        return graphs_on(self._state, mesh, rank)

    @property
    def _state(self) -> State:
        return self._root.state

    def _become(self, state: State) -> None:
        self._root.state = state

    def _fork(self, choose: Choose) -> Schedule:
        root = _Root(self._state, choose)
        root.checks = self._root.checks
        return Schedule(root, self.path)

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the capture ends before the program does, if it does: code behind that cannot be found."""
        return tuple(self._state.captured[1])

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that belong to the module, in program order."""
        return tuple(
            node
            for target in self._state.captured[0]
            for node in target.nodes
            if is_under(target.path_of(node), self._state.first_names[id(self.module)])
        )

    def __getitem__(self, path: str) -> Any:
        if not isinstance(path, str):
            raise self._unknown(repr(path))
        full = join(self.path, path)
        if "*" in path:
            found = [name for name in self._state.modules if fits(name, full)]
            if found:
                return Selection(self._root, full, found)
        elif full in self._state.modules:
            return Schedule(self._root, full)
        raise self._unknown(path)

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        full = join(self.path, path)
        return any(fits(name, full) for name in self._state.modules) if "*" in path else full in self._state.modules

    def __iter__(self) -> Iterator[Schedule]:
        return (Schedule(self._root, join(self.path, name)) for name, _ in self.module.named_children())

    def __len__(self) -> int:
        return sum(1 for _ in self.module.named_children())

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "\n".join(self._rows(self.path.rpartition(".")[2] or type(self.module).__name__, ""))

    def __repr__(self) -> str:
        return f"<Schedule of {self.path or 'the whole'} ({type(self.module).__name__})>"

    def _repr_html_(self) -> str:
        return text_box(repr(self), str(self))

    def find(
        self,
        pattern: Any = None,
        *,
        where: Callable[[Any], bool] | None = None,
        escaping: bool = False,
    ) -> Matches:
        """All matches of a pattern, in program order; overlapping ones too (`.disjoint()` chooses).

        pattern: a function of tensors, in torch and `smelt.pattern`; a module (its parameters are free) or a graph; a
            module's class, or a regex of its name or an end of its path: its calls, and those that steps made under a
            name (`fused_0`); a predicate of `smelt.pattern`.
        where: a predicate on each match; without a pattern, on each node.
        escaping: also matches whose inner values are used outside (`match.escaping`). Values that the pattern returns
            may always be.
        Raises: ScheduleError: S0602 where the pattern cannot be read, S0603 where there is nothing to look for, S0604
            where one position has too many matches , S0605 where nothing of the model can be captured.
        """
        found = self._found(*_question(pattern, where, escaping))
        return found if found else self._none(found, pattern, escaping)

    def _none(self, found: Matches, pattern: Any, escaping: bool) -> Matches:
        """What was not found, with what may be amiss."""
        if pattern is not None:
            names = [name for name in self._state.modules if is_under(name, self.path)]
            found.sought = name_of(pattern)
            found.why_none = why_none(pattern, self._state.captured[0], names, escaping)
        return found

    def _found(self, find: Callable[[Target], list[Match]], where: Callable[[Any], bool] | None) -> Matches:
        first = self._state.first_names[id(self.module)]
        return Matches(
            match
            for target in self._state.captured[0]
            for match in find(target)
            if is_under(match.path, first) and (where is None or where(match)) and not self._state.is_hidden(match)
        )

    def _unknown(self, path: str) -> ScheduleError:
        below = [name[len(self.path) :].lstrip(".") for name in self._state.modules if is_under(name, self.path)]
        near = difflib.get_close_matches(path, [name for name in below if name], n=3, cutoff=0.4)
        where = self.path or type(self.module).__name__
        children = ", ".join(name for name, _ in self.module.named_children()) or "none"
        return ScheduleError(
            f"{where} has no module {path!r}", why=f"it has {children}",
            fix=f"did you mean {' or '.join(map(repr, near))}?" if near else "print the schedule to see its modules",
            code="S0601",
        )  # fmt: skip

    def _rows(self, name: str, indent: str) -> Iterator[str]:
        done = [text for path, text in self._state.notes if path == self.path]
        yield f"{indent}{name}: {type(self.module).__name__}" + (f"    # {'; '.join(done)}" if done else "")
        for child in self:
            yield from child._rows(child.path.rpartition(".")[2], indent + "  ")


class Selection(_View, ReplaceSteps, FuseSteps, GraphSteps, KernelSteps, ParallelSteps, Sequence[Schedule]):
    """Several modules of one model, in its order; a step here is one step, applied to each of them."""

    def __init__(self, root: _Root, path: str, found: Sequence[str]) -> None:
        self._root, self.path = root, path
        self._parts = tuple(Schedule(root, name) for name in found)

    @overload
    def __getitem__(self, index: int) -> Schedule: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Schedule, ...]: ...
    def __getitem__(self, index: int | slice) -> Schedule | tuple[Schedule, ...]:
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)

    def find(
        self, pattern: Any = None, *, where: Callable[[Any], bool] | None = None, escaping: bool = False
    ) -> Matches:
        """What is found in each, each match once. Arguments, Raises: as of `Schedule.find`."""
        find, holds = _question(pattern, where, escaping)
        known: dict[tuple[Node, ...], Match] = {}
        for part in self:
            for match in part._found(find, holds):
                known.setdefault(match.nodes, match)
        found = Matches(known.values())
        return found if found or not len(self) else self[0]._none(found, pattern, escaping)

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def _question(
    pattern: Any, where: Callable[[Any], bool] | None, escaping: bool
) -> tuple[Callable[[Target], list[Match]], Callable[[Any], bool] | None]:
    """What finds a pattern in a graph, and what then must hold for a match. Arguments, Raises: as of `find`."""
    if pattern is None and where is None:
        raise ScheduleError(
            "find() looks for nothing", why="it received neither a pattern nor a predicate",
            fix="give a pattern, or where=", code="S0603",
        )  # fmt: skip
    if where is not None and not callable(where):
        raise ScheduleError(
            f"{where!r} is no predicate", why=f"it is of type {type(where).__name__}",
            fix="give a function of a match, or without a pattern of a node", code="S0602",
        )  # fmt: skip
    if pattern is None:
        assert where is not None
        pattern, where = where if isinstance(where, Where) else Where(where), None
    return remembering(reader(pattern, escaping)), where


def _as_tuple(given: Any, model: torch.nn.Module) -> tuple[Any, ...]:
    if isinstance(given, Mapping):
        args, others = positional(inspect.signature(type(model).forward), (), given)
        if others:
            raise ScheduleError(
                f"the example inputs have {', '.join(map(repr, others))}, which forward takes by name only",
                why="the examples of a schedule are positional arguments", fix="leave them out", code="S0622",
            )  # fmt: skip
        return args
    return tuple(given) if isinstance(given, Sequence) else (given,)
