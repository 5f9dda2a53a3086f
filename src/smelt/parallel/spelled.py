"""A rank's model as a program that can be captured: what `smelt.compile` sees where a training step calls it.

    @smelt.compile
    def step(x, y):                    def rank_forward(*args, **kwargs):
        loss = model(x, y)     ==>         if args[0].shape == (4, 128) and ... _module.training is True:
        loss.backward()                        return _run_0(args, kwargs)      # linear, smelt_dist.all_reduce, ...
        optimizer.step()                   return _other(args, kwargs)

So forward, collectives, backward and update of a step are one graph of the rank, and one native call. The text is that
of the rank's graph as Python, one function for each kind of call.

Invariant: what the text does is what `PartedForward` does on the same arguments.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from keyword import iskeyword
from typing import Any

import torch

from smelt.capture.structure.signature import Signature
from smelt.codegen.python import python_source
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, Graph, TensorType, Value
from smelt.ir.nodes import map_values
from smelt.ops.effects import aliases, effects
from smelt.ops.lowering import GraphEmitter
from smelt.rewrite import Rewriter

_numbers = count()
_PLAIN = (bool, int, float, str, type(None))


@record
class Kind:
    """One kind of call.

    graph: the rank's, with its state by name. args, kwargs: what such a call is given. said: what ranks compare in each
    call, without and with gradients. captured: tensors by the names that the graph has for them. flags: `training` of
    each module.
    """

    graph: Graph
    signature: Signature
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    said: tuple[str, str]
    captured: Mapping[str, Any]
    flags: Mapping[str, bool]


def spelled_forward(
    module: torch.nn.Module, kinds: Sequence[Kind], axes: Mapping[str, str], positional: Callable[..., Any],
    other: Callable[..., Any],
) -> Callable[..., Any]:  # fmt: skip
    """What stands for a rank's forward where a program that calls it is captured.

    axes: how collectives call the mesh's. positional: a call in one spelling. other: what runs any other call.
    """
    space: dict[str, Any] = {"_positional": positional, "_other": other, "_module": module}
    lines = ["def rank_forward(*args, **kwargs):", "    args, kwargs = _positional(args, kwargs)"]
    for number, kind in enumerate(kinds):
        tests = _conditions("args", kind.args) + _conditions("kwargs", dict(kind.kwargs))
        if any(test is None for test in tests):
            continue
        tests += [f"{_attribute(path, 'training')} is {flag}" for path, flag in kind.flags.items()]
        inner = _loaded(_text_of(kind, axes), {
            "_module": module, "_captured": dict(kind.captured), "_constants": dict(kind.graph.constants),
            "_rebuild": kind.signature.rebuild,
        })  # fmt: skip
        space[f"_run_{number}"] = inner["run"]
        lines += ["    if (", *(f"        {'and ' * (i > 0)}{test}" for i, test in enumerate(tests)), "    ):"]
        lines += [f"        return _run_{number}(args, kwargs)"]
    lines.append("    return _other(args, kwargs)")
    found: Callable[..., Any] = _loaded("import torch\n\n\n" + "\n".join(lines) + "\n", space)["rank_forward"]
    return found


def _text_of(kind: Kind, axes: Mapping[str, str]) -> str:
    graph = _renamed(kind.graph, axes)
    entries = []
    for node in graph.walk():
        if node.op in STATE_OPS:
            name = str(node.args[0])
            owner, _, last = name.rpartition(".")
            entries.append(f"{name!r}: {f'_captured[{name!r}]' if node.op == 'captured' else _attribute(owner, last)}")
    entries += [f"{name!r}: _constants[{name!r}]" for name in graph.constants]
    given = list(kind.signature.inputs)
    lines = ["def run(args, kwargs):", "    state = {", *(f"        {e}," for e in dict.fromkeys(entries)), "    }"]
    if given:
        told = " if torch.is_grad_enabled() else ".join(repr(text) for text in reversed(kind.said))
        lines.append(f"    said = {told}")
        lines.append(f"    first = torch.ops.smelt_dist.agree({given[0]}, said, {next(iter(axes.values()))!r})")
        given[0] = "first"
    lines.append(f"    outputs = forward({', '.join(['state', *given])})")
    lines.append("    return _rebuild(outputs, args, kwargs)")
    return python_source(graph, "A rank's share of a model.") + "\n\n" + "\n".join(lines) + "\n"


def _loaded(text: str, space: dict[str, Any]) -> dict[str, Any]:
    """The names that a text defines, as a module of which a debugger, and a capture, find the lines."""
    name = f"<rank {next(_numbers)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    space["__name__"] = "smelt_rank"
    exec(compile(text, name, "exec"), space)
    return space


def _renamed(graph: Graph, axes: Mapping[str, str]) -> Graph:
    """A copy whose collectives name this process's axes."""
    made = graph.clone()
    rewriter = Rewriter(made)
    for node in made.walk():
        if node.op.startswith("dist.") and node.args and node.args[-1] in axes:
            rewriter.set_arguments(node, (*node.args[:-1], axes[str(node.args[-1])]), node.kwargs)
    _read_apart(made, rewriter)
    return made


def _read_apart(graph: Graph, rewriter: Rewriter) -> None:
    """Read copies of what is written, too: torch refuses backward where something that it has saved changed since, and
    a batch norm saves the running mean."""
    emitter, nodes = GraphEmitter(rewriter.builder, rewriter.adopt), list(graph.walk())
    written = {v for node in nodes for v in effects(node).writes if isinstance(v.type, TensorType)}
    for node in nodes:
        if effects(node).writes or any(aliases(node)) or written.isdisjoint(node.operands()):
            continue

        def read(value: Value) -> Arg:
            return emitter.call("aten.clone.default", value) if value in written else value

        with rewriter.builder.at(node):
            args = tuple(map_values(arg, read) for arg in node.args)
            kwargs = {name: map_values(arg, read) for name, arg in node.kwargs.items()}
        rewriter.set_arguments(node, args, kwargs)


def _attribute(path: str, name: str) -> str:
    text = "_module"
    for one in [*(path.split(".") if path else []), name]:
        text = f"{text}.{one}" if one.isidentifier() and not iskeyword(one) else f"getattr({text}, {one!r})"
    return text


def _conditions(path: str, value: Any) -> list[str | None]:
    """What holds of arguments that are like these, as expressions; None where no expression says it."""
    if isinstance(value, torch.Tensor):
        return [f"{path}.shape == {tuple(value.shape)}", f"{path}.dtype == {value.dtype}"]
    if type(value) in (tuple, list):
        inner = [test for i, item in enumerate(value) for test in _conditions(f"{path}[{i}]", item)]
        return [f"len({path}) == {len(value)}", *inner]
    if type(value) is dict:
        inner = [test for key, item in value.items() for test in _conditions(f"{path}[{key!r}]", item)]
        return [f"list({path}) == {list(value)}", *inner]
    if type(value) in _PLAIN:
        return [f"{path} is {value}" if value is None or isinstance(value, bool) else f"{path} == {value!r}"]
    return [None]
