"""Steps on matches that keep what is computed: `checkpoint`, `decompose`, `outline`, `inline`, `print_at`; `compile`.

before:  %1 = add(%x, %b)  %2 = gelu(%1)     outline:  %2 = tail_0(%x, %b)     inline: as before
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch

from smelt.capture import is_capturing
from smelt.compiler import compile
from smelt.diag import ScheduleError
from smelt.ir import Node, Value, values_in
from smelt.ops.convert import bind
from smelt.ops.effects import aliases
from smelt.ops.registry import overload
from smelt.scheduling.comparing.compare_runs import in_check
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.finding.match import Match, make_match
from smelt.scheduling.graphs.editing import Editor, PartOfGraph
from smelt.scheduling.graphs.graph_primitive import GraphPrimitive
from smelt.scheduling.graphs.regions import CheckpointedRegion, EagerRegion, graph_of, is_state
from smelt.scheduling.graphs.running import CALL
from smelt.scheduling.modules.functions import as_list
from smelt.scheduling.modules.module_steps_forward import described
from smelt.scheduling.modules.module_steps_methods import ModuleSteps
from smelt.scheduling.primitives import Primitive

_LINEAR = "aten.linear.default"


class CheckpointPart(GraphPrimitive):
    """Matched nodes that are computed again in backward."""

    name = "checkpoint"

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Put a call that keeps its inputs only in the place of each match."""
        for match in reversed(matches):
            _take_out(editor, editor.part([match]), "checkpointed", CheckpointedRegion)


class Outline(GraphPrimitive):
    """Matched nodes as one call with a name."""

    name = "outline"

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Put a call of the nodes in the place of each match."""
        for match in reversed(matches):
            part = editor.part([match])
            _take_out(editor, part, arguments["name"], EagerRegion)


class Inline(GraphPrimitive):
    """Calls that steps made, as their operators again."""

    name = "inline"

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Put the operators of what is called in the place of each call."""
        for match in reversed(matches):
            calls = [node for node in match.nodes if node.op == CALL]
            region = editor.calls.get(str(calls[0].args[0])) if len(calls) == 1 else None
            if region is None:
                raise ScheduleError(
                    "there is nothing to inline", match.nodes[0].span, why="it is no call that a step made",
                    fix='find one by its name: s.find("part_0")', code="S0607",
                )  # fmt: skip
            together = [calls[0], *(user for user in calls[0].result.users if isinstance(user, Node))]
            results = {value for node in together[1:] for value in node.results}
            part = editor.part([make_match(together, results, {}, match.target)])
            operands = calls[0].args[1] if isinstance(calls[0].args[1], tuple) else ()
            alone = isinstance(region, EagerRegion) and region.reads_nothing
            values = editor.inline(region, operands, part, reads_nothing=alone)
            if values is None:
                raise ScheduleError(
                    f"{calls[0].args[0]} cannot be inlined", part.where,
                    why="it does more than its operators say, or sizes are not known without example inputs",
                    fix="leave it a call", code="S0609",
                )  # fmt: skip
            ordered = [value for node in together[1:] for value in node.results]
            editor.put(part, [values[ordered.index(value)] for value in part.outputs])


class DecomposePart(GraphPrimitive):
    """Matched operators as the simpler ones that they are made of."""

    name = "decompose"

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Replace each operator that torch composes of others by these; a linear layer by a product and an addition."""
        done = 0
        for match in reversed(matches):
            for node in reversed(match.nodes):
                run = _parts_of(node)
                if run is None:
                    continue
                part = editor.part([make_match([node], set(node.results), {}, match.target)])
                operands = [value for arg in (*node.args, *node.kwargs.values()) for value in values_in(arg)]
                try:
                    values = editor.inline(_Rebuilt(run, node), operands, part)
                except ScheduleError:
                    continue  # torch does not compose it of others
                if values is not None:
                    editor.put(part, values)
                    done += 1
        if not done:
            raise ScheduleError(
                "nothing here is made of simpler operators", matches[0].nodes[0].span,
                why=", ".join(dict.fromkeys(node.op for match in matches for node in match.nodes)),
                fix="decompose composite operators, such as a linear layer with a bias", code="S0607",
            )  # fmt: skip


class PrintPart(GraphPrimitive):
    """What matches give is printed at each call."""

    name = "print_at"

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Put a call that prints behind each match; the values pass through it."""
        for match in reversed(matches):
            part = editor.part([match], hooks_allowed=True)
            values = list(part.outputs)
            show = _Show([value.name for value in values], editor.path, bool(arguments.get("values")))
            shown = editor.call(editor.free_name("print_at"), show, values, [value.type for value in values], part)
            editor.pass_through(values, shown)


class Compile(Primitive):
    """A module, or the whole, as a compiled object."""

    name = "compile"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        """Put the compiled module in the place of the module."""
        module = draft.module(at.path)
        known = set(inspect.signature(compile).parameters)
        odd = [name for name in arguments if name not in known]
        if odd:
            raise ScheduleError(
                f"compile has no argument {odd[0]!r}", why=f"it has {', '.join(sorted(known - {'f'}))}",
                fix=f"give it among the options: s.compile(options={{{odd[0]!r}: ...}})", code="S0607",
            )  # fmt: skip
        draft.put(at.path, compile(module, **arguments))
        draft.note(at.path, "compiled")


class _Rebuilt:
    """An operator's parts as a function of the values in its arguments."""

    def __init__(self, run: Callable[..., Any], node: Node) -> None:
        self.run, self.node = run, node

    def __call__(self, *operands: Any) -> list[Any]:
        values = [value for arg in (*self.node.args, *self.node.kwargs.values()) for value in values_in(arg)]
        known = dict(zip(values, operands, strict=True))
        args = [bind(arg, known) for arg in self.node.args]
        return as_list(self.run(*args, **{name: bind(arg, known) for name, arg in self.node.kwargs.items()}))


class _Show:
    """Prints tensors and gives them on."""

    def __init__(self, names: Sequence[str], path: str, values: bool) -> None:
        self.names, self.path, self.values = names, path, values

    def __call__(self, *given: torch.Tensor) -> list[torch.Tensor]:
        # A recorded program would hold for the values that were printed.
        silent = is_capturing() or in_check.get()
        for name, tensor in () if silent else zip(self.names, given, strict=True):
            where = f"{self.path} %{name}" if self.path else f"%{name}"
            print(where, described(tensor.detach()), *([tensor] if self.values else []))
        return list(given)


def _take_out(editor: Editor, part: PartOfGraph, name: str, make: type[EagerRegion]) -> None:
    graph, operands = graph_of(part, editor, name)
    called = editor.free_name(name)
    overwritten = frozenset(i for i, value in enumerate(operands) if _is_overwritten(value))
    region = make(graph, editor.calls, overwritten)
    values = editor.call(called, region, operands, [value.type for value in part.outputs], part)
    editor.put(part, values)


def _is_overwritten(value: Value) -> bool:
    """Whether a buffer is written to somewhere in the program."""
    users = [user for user in value.users if isinstance(user, Node)]
    return is_state(value) and any(user.op == "write" and user.args[0] is value for user in users)


def _parts_of(node: Node) -> Callable[..., Any] | None:
    """The parts of an operator as a function of its arguments, None where it has none."""
    if node.op == _LINEAR:
        has_bias = len(node.args) > 2 and isinstance(node.args[2], Value)
        return _product_and_sum if has_bias else None
    found = overload(node.op)
    return None if found is None or aliases(node)[0] else found.decompose


def _product_and_sum(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight) + bias


class GraphSteps(ModuleSteps):
    """Steps that are taken on a module, or on matches in it."""

    def checkpoint(self, match: Match | Sequence[Match] | None = None, *, scope: str | None = None) -> Self:
        """Save only this module's arguments for backward, or the operands of the matched nodes.

        before:  y = layer(x)                    the layer's intermediate values are saved until backward
        after:   y = checkpoint(layer, x)        x is saved; backward runs the layer again
        Results and gradients are the same: the same random numbers are drawn again, keyword arguments may come in any
        order, and running statistics of norms count each batch once. Without gradients nothing changes.
        scope: as of `replace`. Elsewhere called: checkpoint (torch, Slapo), remat (JAX).
        Raises: ScheduleError: S0607 where the module is never called itself, or has had this step; S0609, S0610 for
            matches that overlap or cannot be moved past side effects.
        """
        return super().checkpoint() if match is None else self.take("checkpoint", {}, match, scope)

    def decompose(self, match: Match | Sequence[Match] | None = None, *, scope: str | None = None) -> Self:
        """Compute a linear layer as a product and an addition; of matches, all that is made of simpler operators.

        before:  y = linear(x, weight, bias)     after:  h = linear(x, weight);  y = h + bias
        Parameters and keys stay. scope: as of `replace`. Elsewhere called: decompose (Slapo).
        Raises: ScheduleError (S0607) for what is no nn.Linear, or has no bias; for matches of simple operators only.
        """
        return super().decompose() if match is None else self.take("decompose", {}, match, scope)

    def print_at(
        self,
        which: Literal["input", "output"] | Match | Sequence[Match] = "output",
        *,
        values: bool = False,
        scope: str | None = None,
    ) -> Self:
        """Print what a module returns or receives, or the results of matched nodes, at each call.

        before:  y = fc(x)          after:  y = fc(x);  print("fc: output float32[2, 4] min -1.2 mean 0.1 max 1.5")
        which: of this module, or a match. values: the whole tensors, too. Runs of `verify` print nothing, and where a
        larger program is compiled around it, matches do not. scope: as of `replace`. Elsewhere called: Print (Slapo).
        Raises: ScheduleError (S0607) where the module is never called itself.
        """
        if isinstance(which, str):
            return super().print_at(which, values=values)
        return self.take("print_at", {"values": values}, which, scope)

    def outline(self, match: Match | Sequence[Match], *, name: str = "part", scope: str | None = None) -> Self:
        """Make the matched nodes one call in the graph; of several matches each separately.

        before:  %1 = add(%x, %b)  %2 = gelu(%1)        after:  %2 = part_0(%x, %b)
        It computes what it did, bit for bit. scope: as of `replace`.
        Raises: ScheduleError (S0609, S0610) for matches that overlap or cannot be moved past side effects.
        """
        return self.take("outline", {"name": name}, match, scope)

    def inline(self, match: Match | Sequence[Match], *, scope: str | None = None) -> Self:
        """Replace a call that a step made (`outline`, `fuse`, `replace`) by its operators.

        before:  %2 = part_0(%x, %b)                    after:  %1 = add(%x, %b)  %2 = gelu(%1)
        Raises: ScheduleError: S0607 for what is no such call, S0609 where it does more than its operators say.
        """
        return self.take("inline", {}, match, scope)

    def compile(self, **options: Any) -> Self:
        """Run this module, or the whole, through `smelt.compile`; options are those of that function.

        before:  model(x)                               after:  smelt.compile(model)(x)
        Earlier and later steps are part of the compiled program. Elsewhere called: build(target=...) (TVM).
        Raises: SmeltError (S0301) for a wrong option.
        """
        return self.take("compile", options)
