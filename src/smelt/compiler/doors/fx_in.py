"""Programs that torch captured, `torch.fx.GraphModule` and `torch.export.ExportedProgram`, as Programs of Smelt.

Invariant: what comes in is left as it was: its graph is copied before control flow is put in place of higher-order
operators, and what the recorded run wrote into its state, its arguments and the random generator is put back.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node

from smelt._torch.library.fx import GRAD_MODE, higher_order_name
from smelt.capture import tensors_of
from smelt.compiler.copies import copies_of
from smelt.compiler.doors.programs import control
from smelt.compiler.programs.program import Program
from smelt.compiler.programs.tracing import trace
from smelt.compiler.unit import Unit
from smelt.diag import CaptureError, Options, SmeltWarning, user_level

_CONTROL: Mapping[str, Callable[..., Any]] = {
    "cond": control.cond,
    "while_loop": control.while_loop,
    "scan": control.scan,
    "map_impl": control.map_impl,
}
# What lifts a constant out of the graph's text: the same for a program that is not changed any more. What asks a tensor
# for its truth: asked of Python, it may be the test of a loop. What sets the grad mode, where a capture sees it.
_PLAIN: Mapping[Any, Any] = {
    torch.ops.aten.is_nonzero.default: bool,
    torch.ops.aten.detach_.default: torch.ops.aten.detach.default,
    torch.ops.aten.lift_fresh_copy.default: torch.ops.aten.clone.default,
    **dict.fromkeys(GRAD_MODE, torch.set_grad_enabled),
}
_META = ("val", "example_value")


class _AnySizes(Program):
    """A Program that holds for the sizes it is called with: it is captured anew for others.

    lost: why regions without gradients may be missing in what it was made of; told when gradients are first asked for.
    """

    lost: str = ""

    def _by_op(self, unit: Unit, inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.lost and self._needs_grad(unit, inputs):
            warnings.warn(
                f"gradients of {unit.captured.name} may be others than the original program's: {self.lost}. Take them "
                "from smelt.trace(model), or from a torch.export.export(model) that was not decomposed",
                SmeltWarning,
                stacklevel=user_level(),
            )
            self.__dict__["lost"] = ""
        return super()._by_op(unit, inputs, args, kwargs)

    def _flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        inputs: list[torch.Tensor] = self.unit.signature.flatten(args, kwargs)
        return inputs


def from_fx(
    gm: GraphModule, example_inputs: Any = None, *, options: Mapping[str, Any] | Options | None = None
) -> Program:
    """The Program of a module of `torch.fx`.

    example_inputs: arguments to record it with (a tuple, or one tensor). Left out, tensors of zeros are made from what
    the graph says of its inputs; other sizes and dtypes are captured when they come. The module's parameters and
    buffers are the Program's. `cond`, `while_loop`, `scan` and `map` become branches and loops.
    Raises: CaptureError (S0106) where nothing tells what the inputs are, or this is no GraphModule; as `trace`.
    """
    if not isinstance(gm, GraphModule):
        raise CaptureError(
            f"a {type(gm).__qualname__} is no torch.fx.GraphModule",
            why="from_fx takes a GraphModule of torch.fx.symbolic_trace, make_fx or a backend of torch.compile",
            fix="use smelt.trace for modules and functions, smelt.from_exported for exported programs",
            code="S0106",
        )
    args = _inputs_by_meta(gm) if example_inputs is None else _as_tuple(example_inputs)
    return _program(gm, args, {}, options, "" if _has_regions(gm) else _LOST_BY_FX)


def from_exported(ep: torch.export.ExportedProgram, *, options: Mapping[str, Any] | Options | None = None) -> Program:
    """The Program of an exported program: called like the module that was exported, and it writes what that writes.

    It uses the exported program's own parameters and buffers. Dynamic sizes are captured as they come.
    Raises: CaptureError (S0106) where this is no exported program, or neither example inputs nor types tell what its
        inputs are; as `trace`.
    """
    if not isinstance(ep, torch.export.ExportedProgram):
        raise CaptureError(
            f"a {type(ep).__qualname__} is no torch.export.ExportedProgram",
            why="from_exported takes what torch.export.export or torch.export.load gives",
            fix="use smelt.trace for modules and functions, smelt.from_fx for a GraphModule",
            code="S0106",
        )
    module = ep.module()
    assert isinstance(module, GraphModule)
    lost = "" if ep.dialect == "TRAINING" or _has_regions(module) else _LOST_BY_DECOMPOSITIONS
    if ep.example_inputs is None:
        return _program(module, _inputs_by_meta(module), {}, options, lost)
    args, kwargs = ep.example_inputs
    return _program(module, tuple(args), dict(kwargs), options, lost)


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


_LOST_BY_FX = "torch.fx keeps no torch.no_grad() region"
_LOST_BY_DECOMPOSITIONS = "run_decompositions() keeps no torch.no_grad() region, and not every detach()"


def _has_regions(module: GraphModule) -> bool:
    """Whether a graph sets the grad mode, so that whatever made it keeps the regions that do."""
    graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes if node.op == "call_function"]
    return any(t in GRAD_MODE or getattr(t, "__name__", "") == "wrap_with_set_grad_enabled" for t in targets)


def _program(
    gm: GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any] | Options | None,
    lost: str,
) -> Program:  # fmt: skip
    source = with_control_flow(gm)
    with _everything_put_back(source, args, kwargs), warnings.catch_warnings():
        # What exported programs check of their inputs sets torch's own settings for a moment.
        warnings.filterwarnings("ignore", r".*changes ContextVar '(torch\.|dont_skip_tracing)", SmeltWarning)
        traced = trace(source, args, kwargs, check=False, options=options)
    program = _AnySizes(source, traced.unit.captured, Options.make(options))
    program.__dict__["lost"] = lost
    return program


@contextmanager
def _everything_put_back(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Undo what a run of the module writes."""
    tensors = [*module.parameters(), *module.buffers(), *tensors_of((args, kwargs))]
    before, random = copies_of(tensors), torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(random)
        with torch.no_grad():
            for tensor, held in zip(tensors, before, strict=True):
                if tensor.device.type != "meta" and not torch.equal(tensor, held):
                    tensor.copy_(held)


def with_control_flow(gm: GraphModule) -> GraphModule:
    """A copy of a module, over the same state, whose higher-order operators are Python's branches and loops."""
    held: dict[int, Any] = {}
    for tensor in (*gm.parameters(), *gm.buffers()):
        held[id(tensor)] = tensor
    for module in gm.modules():
        held.update({id(v): v for v in module.__dict__.values() if isinstance(v, torch.Tensor)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copies of modules that torch deprecates
        made = copy.deepcopy(gm, held)
    for module in made.modules():
        if isinstance(module, GraphModule):
            _replace_operators(module)
    return made


def _replace_operators(gm: GraphModule) -> None:
    changed = False
    for node in gm.graph.nodes:
        target = _control_of(node) or _PLAIN.get(node.target)
        if target is not None:
            node.target = target
            changed = True
    if changed:
        gm.recompile()
    gm.code  # noqa: B018  # a module that makes its code at the first call would change in the recorded run


def _control_of(node: Node) -> Callable[..., Any] | None:
    name = higher_order_name(node.target) if node.op == "call_function" else None
    return None if name is None else _CONTROL.get(name)


def _inputs_by_meta(gm: GraphModule) -> tuple[Any, ...]:
    """Inputs of the types that the graph's placeholders carry. Raises: CaptureError (S0106) where one carries none."""
    return tuple(_input_of(node) for node in gm.graph.nodes if node.op == "placeholder")


def _input_of(node: Node) -> Any:
    for name in _META:
        if name in node.meta:
            return _real(node.meta[name])
    found = node.meta.get("tensor_meta")
    if found is not None and isinstance(found.shape, torch.Size):
        made = torch.empty_strided(tuple(map(int, found.shape)), tuple(map(int, found.stride)), dtype=found.dtype)
        return made.zero_()
    if node.args:
        return node.args[0]  # its default
    raise CaptureError(
        f"nothing tells what the input {node.name} is",
        why="the graph was made without running it, and a program is recorded in a run",
        fix="give from_fx example_inputs",
        code="S0106",
    )


def _real(value: Any) -> Any:
    """A plain tensor or number like this one, which may have no data."""
    if isinstance(value, torch.Tensor):
        sizes, steps = [int(n) for n in value.shape], [int(n) for n in value.stride()]
        return torch.empty_strided(sizes, steps, dtype=value.dtype, device=value.device).zero_()
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)](value)
    return value


__all__ = ["from_exported", "from_fx", "with_control_flow"]
