"""A pattern, read from a function, a module or a graph: what must be there, what is free, what may be used outside.

Invariant: only what the outputs need belongs to a pattern; what it checks on the way (ranks, lengths) does not.
Parameters of a function, and the parameters and buffers of a module, are free; a number's parameter takes any number.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from smelt.compiler import script
from smelt.diag import ScheduleError, SmeltError, SmeltWarning, Span
from smelt.ir import Arg, Graph, Node, Type, Value, values_in
from smelt.ir.type_order import may_hold_tensor
from smelt.pattern import CALL_MODULE, NAMED, NAMESPACE, OPTIONAL, register
from smelt.scheduling.finding.forms import STATE, commutes, is_arithmetic, item_of, key_of, named_arguments
from smelt.scheduling.finding.terms import Terms


class Pattern:
    """What a search looks for.

    nodes: those to be found, in order. inputs: free values by name. outputs: values that may be used outside.
    steps: what is visited in a search, with items of lists and optional operators.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        register()
        needed = _needed(graph)
        everything = list(graph.walk())
        self.terms = Terms(everything)
        self.arguments: dict[Node, dict[str, Arg]] = {}
        self.keys: dict[Node, str] = {}
        self.inputs: dict[Value, str] = {param: param.name for param in graph.inputs}
        self.names: dict[str, Value] = {}
        self.steps: list[Node] = []
        self.nodes: list[Node] = []
        for node in everything:
            if node not in needed:
                continue
            if node.op in STATE:
                self.inputs.update({result: result.name for result in node.results})
            elif node.op == NAMED:
                self.names[str(node.args[0])] = self.resolve(node.result)
            elif node.op != "const" and not is_arithmetic(node):
                self._add(node)
        self.outputs = {self.resolve(value) for arg in graph.outputs for value in values_in(arg)}
        if not self.nodes:
            raise ScheduleError(
                f"the pattern {graph.name} has nothing to look for", _where(graph),
                why="it contains no operator and no module that could be found in a program",
                fix="let it compute something with its parameters, and return it", code="S0603",
            )  # fmt: skip
        self._users = {value: self._count_users(value) for node in self.nodes for value in node.results}

    def resolve(self, value: Value) -> Value:
        """The value that a name was given to."""
        while value.node is not None and value.node.op == NAMED and isinstance(value.node.args[1], Value):
            value = value.node.args[1]
        return value

    def most_users(self, value: Value) -> int | None:
        """How many nodes use an inner value; None where more may."""
        return None if value in self.outputs else self._users[value]

    def swapped(self, node: Node) -> bool:
        """Whether the two operands of a node may stand either way, and that makes a difference."""
        call = self.arguments[node]
        if not commutes(self.keys[node], call):
            return False
        pair = [call.get("self"), call.get("other")]
        if pair[0] is pair[1]:
            return False
        # Two free values that stand nowhere else: the other reading is this one with the names changed.
        return not all(isinstance(v, Value) and v in self.inputs and sum(v.users.values()) == 1 for v in pair) or (
            _type_of(pair[0]) != _type_of(pair[1])
        )

    def _add(self, node: Node) -> None:
        if node.regions:
            raise ScheduleError(
                f"the pattern {self.graph.name} has a branch or a loop", node.span,
                why="a pattern is matched as written, along one path",
                fix="write one pattern for each path, or annotate the parameters so that it is decided", code="S0602",
            )  # fmt: skip
        self.steps.append(node)
        self.arguments[node] = named_arguments(node)
        self.keys[node] = key_of(node)
        if node.op != OPTIONAL and not (node.results and item_of(node.results[0])):
            self.nodes.append(node)
        if node.op == CALL_MODULE:
            _check_regex(str(node.args[0]), node.span)

    def _count_users(self, value: Value) -> int | None:
        users = set()
        for user in value.users:
            if isinstance(user, Node) and user.op == NAMED:
                return None
            if isinstance(user, Node) and user in self.arguments:
                if user.op.startswith(NAMESPACE):
                    return None
                users.add(user)
        return len(users)


def read_pattern(given: Any) -> Pattern:
    """The pattern that a function, a module or a graph describes.

    Raises: ScheduleError: S0602 where it cannot be captured, S0603 where there is nothing to look for.
    """
    if isinstance(given, Graph):
        return Pattern(given)
    if isinstance(given, torch.nn.Module) or _is_function(given):
        register()
        return Pattern(_scripted(given))
    if callable(given):
        raise ScheduleError(
            f"{given!r} is no pattern", why="it has no source that says how many arguments it takes",
            fix=f"write it as a function: lambda x: {getattr(given, '__name__', 'f')}(x)", code="S0602",
        )  # fmt: skip
    raise ScheduleError(
        f"{given!r} is no pattern", why=f"it is of type {type(given).__name__}",
        fix="give a function of tensors, a module or its class, a graph, a regex of a module's name, "
        "or a predicate of smelt.pattern", code="S0602",
    )  # fmt: skip


def _is_function(given: Any) -> bool:
    return isinstance(given, FunctionType) or hasattr(given, "__func__")


def _scripted(given: Callable[..., Any]) -> Graph:
    name = getattr(given, "__qualname__", type(given).__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        try:
            graph = script(given).graph
        except SmeltError as error:
            raise ScheduleError(
                f"the pattern {name} cannot be captured: {error.what}", error.where,
                why=error.why or "a pattern is a function of tensors, read like a program",
                fix="write it with torch's operators, each number a parameter with its type (scale: float); "
                "a predicate on nodes is passed as find(where=...)",
                code="S0602",
            ) from error  # fmt: skip
    last = graph.body.last
    if last is not None and last.op == "py.raise":
        said = ": ".join(str(arg) for arg in last.args)
        raise ScheduleError(
            f"the pattern {name} cannot be captured", last.span, why=f"every run of it raises {said}",
            fix="correct it; it is read like a program that runs", code="S0602",
        )  # fmt: skip
    return graph


def _needed(graph: Graph) -> set[Node]:
    """The nodes that the outputs depend on."""
    found: set[Node] = set()
    waiting = [value for arg in graph.outputs for value in values_in(arg)]
    while waiting:
        node = waiting.pop().node
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(node.operands())
    return found


def _check_regex(which: str, where: Span | None) -> None:
    if which.startswith("type:"):
        return
    check_regex(which, where)


def check_regex(text: str, where: Span | None = None) -> None:
    """Raises: ScheduleError (S0602) where a regex does not compile."""
    try:
        re.compile(text)
    except re.error as error:
        raise ScheduleError(
            f"{text!r} is no regular expression", where, why=str(error), fix="escape what is meant literally",
            code="S0602",
        ) from error  # fmt: skip


def _where(graph: Graph) -> Span | None:
    return next((node.span for node in graph.walk() if node.span is not None), None)


def _type_of(arg: Arg) -> Type | None:
    return arg.type if isinstance(arg, Value) else None


def is_number(value: Value) -> bool:
    """Whether a value is one of Python's, not a tensor or what holds tensors."""
    return not may_hold_tensor(value.type)
