"""`script`: a program from its source, nothing run, as a `Program` that is specialized at its calls.

Invariant: a call answers as eager does; the graph of the source is for a person to read, for the evaluator, and for
errors before any run. What runs is compiled for the arguments at hand, with guards (`smelt.compile`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.capture import capture, is_capturing
from smelt.capture.scripting import Scripted, script_graph
from smelt.capture.staging.objects.outside import nothing_outside
from smelt.capture.staging.stage import stage
from smelt.compiler.build import build
from smelt.compiler.object.compiled import Compiled, make_compile
from smelt.compiler.object.interrupts import SignalsWait
from smelt.compiler.pipeline import check_options
from smelt.compiler.profile_hook import watch_natively
from smelt.compiler.programs.program import Program
from smelt.compiler.programs.program_calls import SELF, renamed
from smelt.compiler.unit import Unit
from smelt.diag import CaptureError, Options, SmeltError, SmeltWarning
from smelt.ir import Graph

_compile = make_compile(build, check_options)


def script(
    f: Callable[..., Any],
    *,
    example_inputs: Any = None,
    options: Mapping[str, Any] | Options | None = None,
) -> ScriptedProgram:
    """The program of a function, method or nn.Module, from its source; nothing runs.

    example_inputs: the arguments of a call (a tuple, or one tensor), or a list of such tuples: they give types, and
        sizes that all of them share. Else types come from annotations (`smelt.f32["B", 768]`), defaults and use.
    Raises: CaptureError: S0109 for what cannot be scripted, with the line; S0106 for a parameter of unknown type; S0110
        for an error of types that no run could avoid.
    """
    chosen = Options.make(options)
    check_options(chosen)
    target = f.smelt_target if isinstance(f, Compiled) else f
    if not callable(target):
        raise CaptureError(
            f"{target!r} cannot be scripted", why="it is not callable", fix="give a function or an nn.Module",
            code="S0106",
        )  # fmt: skip
    examples = _examples(example_inputs)
    watch_natively(chosen)
    with SignalsWait():
        scripted = script_graph(target, examples)
    if scripted.raises:
        left_out = " and ".join(scripted.parameters.left_out)
        which = f"{scripted.captured.name} without {left_out}" if left_out else scripted.captured.name
        now = ", with its current state" if scripted.changes_state else ""
        text = f"every run of {which} ends here{now}: {scripted.raises}"
        if scripted.raised_at is None:
            warnings.warn(text, SmeltWarning, stacklevel=2)
        else:
            warnings.warn_explicit(text, SmeltWarning, scripted.raised_at.file, scripted.raised_at.line)
    return ScriptedProgram(target, scripted, chosen, examples)


def _examples(given: Any) -> list[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    if given is None:
        return []
    if isinstance(given, list) and given and all(isinstance(item, tuple) for item in given):
        return [(item, {}) for item in given]
    return [(tuple(given) if isinstance(given, (tuple, list)) else (given,), {})]


class ScriptedProgram(Program):
    """A program from source.

    graph: what the source says, for any arguments that its types allow. graph_for(*args): the graph that runs for these
    arguments; the program runs once to make it, as at a first call.
    """

    def __init__(
        self, source: Callable[..., Any], scripted: Scripted, options: Options, examples: Sequence[Any] = ()
    ) -> None:
        super().__init__(source, scripted.captured, options)
        self._scripted, self._examples = scripted, examples
        self._compiled: Any = None

    def _add(self, captured: Any, training: tuple[bool, ...] | None = None) -> Unit:
        try:
            unit = Unit.of(captured, self._options, captured.state.current)
        except SmeltError:
            # Types that are too open for a pass: the graph as the program calls it.
            unit = Unit(captured, self._options, captured.state.current, captured.graph)
        self._known = None
        self._units[self._setting(), (), (), ()] = unit
        return unit

    def inputs_for(self, /, *args: Any, **kwargs: Any) -> list[Any]:
        """The inputs of `graph` for a call, for `smelt.ops.evaluate`. Raises: CaptureError (S0107) where none fit."""
        inputs = self._scripted.parameters.inputs(args, kwargs)
        self.unit.check_inputs(inputs)
        return inputs

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """The program's answer."""
        if SELF in kwargs:
            kwargs = renamed(kwargs, SELF, "self")
        if is_capturing():
            return self._source(*args, **kwargs)
        if self._compiled is None:
            object.__setattr__(self, "_compiled", _compile(self._source, options=self._options))
        return self._compiled(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_again, (self._source, self._options, self._examples))

    def graph_for(self, /, *args: Any, **kwargs: Any) -> Graph:
        """The optimized graph that runs for these arguments; the program runs once."""
        captured = capture(self._source, args, kwargs, specialize=True)
        if captured.error is not None:
            raise captured.error
        if captured.conversions:
            with nothing_outside():
                staged = stage(self._source, args, kwargs, native=captured)
            captured = captured if staged.error is not None else staged
        return Unit.of(captured, self._options).optimize()


def _again(source: Callable[..., Any], options: Options, examples: Sequence[Any]) -> ScriptedProgram:
    """A program from what it was pickled or deep-copied as: its source, scripted anew."""
    return ScriptedProgram(source, script_graph(source, examples), options, examples)
