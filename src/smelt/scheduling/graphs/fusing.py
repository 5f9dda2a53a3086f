"""`fuse`: a named region that runs as native kernels; `fuse_horizontal`: several linear layers of one input as one.

    before:  %1 = add(%x, %b)  %2 = gelu(%1)              after:  %2 = bias_gelu(%x, %b)
    before:  %q = linear(%x, ..)  %k = linear(%x, ..)     after:  %q, %k = qkv(%x, ..)

Where gradients are asked for, a region runs operator by operator, and so does autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch.nn import functional as F

from smelt.capture import is_capturing
from smelt.diag import ScheduleError
from smelt.ir import Arg, Node, TensorType, Type, Value, contiguous_strides
from smelt.runtime.guarding.guard_constants import Constants
from smelt.scheduling.comparing import measuring
from smelt.scheduling.draft import Draft, Selected, Withdrawn
from smelt.scheduling.finding.forms import VIEW, key_of
from smelt.scheduling.finding.match import Match, make_match
from smelt.scheduling.graphs.editing import Editor
from smelt.scheduling.graphs.graph_primitive import GraphPrimitive
from smelt.scheduling.graphs.regions import NativeRegion, graph_of, is_state
from smelt.scheduling.modules.functions import stand_ins
from smelt.scheduling.primitives import Steps

_LINEAR = "aten.linear.default"
_ADDMM = "aten.addmm.default"


class Fuse(GraphPrimitive):
    """Matched nodes as a region that runs as native kernels."""

    name = "fuse"

    def __init__(self) -> None:
        # Layers of one kind have equal regions, which are measured once.
        self._measured: dict[tuple[Any, ...], tuple[float, float]] = {}

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        """Take the step and measure it; one that is slower is not taken, unless it is to be kept."""
        super().apply(draft, at, **arguments)
        scope = draft.scope(at.path)
        for name, region, types in [item for item in scope.edited.regions if item[0].startswith(arguments["name"])]:
            if not scope.is_concrete:
                draft.report(at.path, f"{name}: not measured, since sizes are not known without example inputs")
                continue
            assert isinstance(region, NativeRegion)
            key = (region.key, *types)
            measured = self._measured.get(key) or _measured(region, types)
            self._measured[key] = measured
            _judge(draft, at, name, region, measured, keep=bool(arguments.get("keep")))

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Put a call of the region in the place of each match."""
        for match in reversed(matches):
            part = editor.part([match])
            if any(node.op == "write" for node in part.nodes):
                raise ScheduleError(
                    "a region that writes to buffers cannot be one kernel", part.where,
                    why="its writes stand at the end of the program", fix="switch it to eval, or match less of it",
                    code="S0609",
                )  # fmt: skip
            graph, operands = graph_of(part, editor, arguments["name"])
            region = NativeRegion(graph, editor.calls, sum(map(is_state, operands)))
            name = editor.free_name(arguments["name"])
            editor.regions.append((name, region, tuple(value.type for value in operands)))
            types = [value.type for value in part.outputs]
            editor.put(part, editor.call(name, region, operands, types, part))


def _measured(region: NativeRegion, types: Sequence[Type]) -> tuple[float, float]:
    """The seconds of a region as operators, and as kernels."""
    given = stand_ins(types)
    eager, native = measuring.seconds([lambda: region.run(*given), lambda: region(*given)])
    return eager, native


def _judge(
    draft: Draft, at: Selected, name: str, region: NativeRegion, measured: tuple[float, float], *, keep: bool
) -> None:
    """Report what was measured. Raises: Withdrawn where the kernels are slower and need not be kept."""
    eager, native = measured
    saved = sum(
        value.type.numel * value.type.dtype.itemsize
        for node in region.graph.body
        for value in node.results
        if isinstance(value.type, TensorType) and value not in region.graph.outputs and not _is_view(node)
    )  # fmt: skip
    said = f"{name}: {eager * 1e6:.0f} us as operators, {native * 1e6:.0f} us as kernels, {saved:,} bytes not written"
    if native > eager and not keep:
        raise Withdrawn(f"{said}; slower, and so not applied (keep=True applies it all the same)")
    draft.report(at.path, said)


def _is_view(node: Node) -> bool:
    parts = node.op.split(".")
    return len(parts) > 1 and parts[1] in (
        "view",
        "reshape",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "expand",
        "slice",
    )


class MergedLinear:
    """Several linear layers over one input as one product; parameters stay those of the layers.

    has_bias: for each layer. is_turned: weights are f[in, out], as `addmm` takes them. Without gradients the
    joined weights are kept, as long as the layers' are what they were.
    """

    def __init__(self, sizes: Sequence[int], has_bias: Sequence[bool], *, is_turned: bool = False) -> None:
        self.sizes, self.has_bias, self.is_turned = tuple(sizes), tuple(has_bias), is_turned
        self._held: Constants | None = None
        self._joined: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def __call__(self, x: torch.Tensor, *state: torch.Tensor) -> list[torch.Tensor]:
        weight, bias = self._weights(state)
        if self.is_turned:
            assert bias is not None
            return list(torch.addmm(bias, x, weight).split(self.sizes, -1))
        return list(F.linear(x, weight, bias).split(self.sizes, -1))

    def _weights(self, state: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in state)
        if needs_grad or is_capturing():
            return self._join(state)
        held, joined = self._held, self._joined
        same = held is not None and len(held.tensors) == len(state)
        if (
            held is None
            or joined is None
            or not same
            or any(a is not b for a, b in zip(held.tensors, state, strict=True))
        ):
            held = None
        if held is None or joined is None or not held.unchanged():
            held = Constants(list(state))
            with torch.no_grad():
                joined = self._join(state)
            self._held, self._joined = held, joined
        return joined

    def _join(self, state: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        count = len(self.sizes)
        weights, given = state[:count], iter(state[count:])
        if self.is_turned:
            return torch.cat(weights, 1), torch.cat(state[count:])
        if not any(self.has_bias):
            return torch.cat(weights), None
        rows = zip(weights, self.has_bias, strict=True)
        return torch.cat(weights), torch.cat([next(given) if b else w.new_zeros(w.shape[0]) for w, b in rows])


class FuseHorizontal(GraphPrimitive):
    """Linear layers of one input as one."""

    name = "fuse_horizontal"

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Put one call in the place of the linear layers of the matches; what follows them stays."""
        nodes = [_linear_of(match) for match in matches]
        if len(nodes) < 2:
            raise _not_alike("there is one only", nodes[0], "select the matches of several layers")
        first, is_turned = nodes[0], nodes[0].op == _ADDMM
        x, weights, biases = [list(column) for column in zip(*map(_factors, nodes), strict=True)]
        for node, other in zip(nodes, x, strict=True):
            if node.op != first.op or not _is_one(other, x[0]):
                raise _not_alike("they have different inputs", node, "select layers of one input")
        target = matches[0].target
        part = editor.part([make_match([node], set(node.results), {}, target) for node in nodes])
        kinds = {_described(arg, is_turned) for arg in weights}
        if len(kinds) != 1 or not all(isinstance(w, Value) and is_state(w) for w in weights):
            raise _not_alike("their weights differ in dtype or width", first, "select layers of one kind")
        sizes = [_rows(weight, is_turned) for weight in weights]
        if is_turned and not all(_is_row(bias, size) for bias, size in zip(biases, sizes, strict=True)):
            raise _not_alike("what one adds is no row of its own width", first, "select layers with plain biases")
        merged = MergedLinear(sizes, [bias is not None for bias in biases], is_turned=is_turned)
        operands: list[Arg] = [x[0], *weights, *(bias for bias in biases if bias is not None)]
        name = editor.free_name(arguments["name"])
        types = _slices([value.type for value in part.outputs], sizes)
        ordered = {node: i for i, node in enumerate(nodes)}
        values = editor.call(name, merged, operands, types, part, mode=part.mode)
        editor.put(part, [values[ordered[_maker(value)]] for value in part.outputs])


def _linear_of(match: Match) -> Node:
    found = [node for node in match.nodes if node.op == _LINEAR or (node.op == _ADDMM and not node.kwargs)]
    if len(found) != 1:
        raise _not_alike(f"a match has {len(found)} linear layers", match.nodes[0], "let the pattern have one")
    return found[0]


def _bias(node: Node) -> Arg:
    return node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")


def _maker(value: Value) -> Node:
    assert value.node is not None
    return value.node


def _factors(node: Node) -> tuple[Arg, Arg, Arg]:
    """What a linear layer is given: its input, the weight, the bias."""
    if node.op == _ADDMM:
        return node.args[1], node.args[2], node.args[0]
    return node.args[0], node.args[1], _bias(node)


def _is_one(a: Arg, b: Arg) -> bool:
    """Whether two values are the same, or one seen in the same sizes."""
    if a is b:
        return True
    if not isinstance(a, Value) or not isinstance(b, Value) or a.node is None or b.node is None:
        return False
    if key_of(a.node) != VIEW or key_of(b.node) != VIEW or a.type != b.type:
        return False
    return isinstance(a.type, TensorType) and a.type.is_static and _is_one(a.node.args[0], b.node.args[0])


def _is_row(bias: Arg, size: int) -> bool:
    type_ = bias.type if isinstance(bias, Value) else None
    return isinstance(type_, TensorType) and type_.shape == (size,)


def _described(weight: Arg, is_turned: bool) -> Any:
    type_ = weight.type if isinstance(weight, Value) else None
    if not isinstance(type_, TensorType) or not type_.shape:
        return weight
    return type_.dtype, type_.shape[:1] if is_turned else type_.shape[1:]


def _rows(weight: Arg, is_turned: bool) -> int:
    assert isinstance(weight, Value) and isinstance(weight.type, TensorType)
    return int(weight.type.sizes[1 if is_turned else 0])


def _slices(types: Sequence[Type], sizes: Sequence[int]) -> list[Type]:
    """The types of slices of one contiguous result."""
    found: list[Type] = []
    for type_ in types:
        if not isinstance(type_, TensorType) or not type_.is_static:
            found.append(type_)
            continue
        whole = (*type_.sizes[:-1], sum(sizes))
        found.append(TensorType.of(type_.dtype, type_.sizes, contiguous_strides(whole), type_.device))
    return found


def _not_alike(why: str, node: Node, fix: str) -> ScheduleError:
    return ScheduleError("these are no linear layers that can be one", node.span, why=why, fix=fix, code="S0609")


class FuseSteps(Steps):
    """The typed methods of this module's primitives."""

    def fuse(
        self,
        match: Match | Sequence[Match],
        *,
        name: str = "fused",
        keep: bool = False,
        scope: str | None = None,
    ) -> Self:
        """Run the matched nodes as native kernels; of several matches each separately.

        before:  %1 = add(%x, %b)   %2 = gelu(%1)          after:  %2 = fused_0(%x, %b)
        If gradients are needed, the nodes run unchanged, with torch's gradients. `s.reports` has the measured times and
        the values that are not written any more. A region that measures slower than its operators is not applied, with
        a warning, unless keep. scope: the module whose graph is edited, if it should be a larger one than the smallest
        that contains the match.
        Elsewhere called: fuse (Slapo), compute_inline + fuse (TVM).
        Raises: ScheduleError: S0609 if an inner value escapes the match, or an effect is between its nodes; S0610 if a
            hook is inside.
        """
        return self.take("fuse", {"name": name, "keep": keep}, match, scope)

    def fuse_horizontal(self, matches: Sequence[Match], *, name: str = "merged", scope: str | None = None) -> Self:
        """Compute several linear layers of one input (q, k, v) as one.

        before:  %q = linear(%x, %wq)  %k = linear(%x, %wk)     after:  %q, %k = merged_0(%x, %wq, %wk)
        matches: each with one linear layer (or `addmm`, whose weight is transposed); other nodes in them stay.
            Parameters stay the layers' own: keys and
        checkpoints are as before, they train, and tied ones stay tied. Without gradients the merged weights stay in
        memory beside them, and are merged anew after a change.
        Elsewhere called: replace with a FusedQKV (Slapo).
        Raises: ScheduleError (S0609) where the layers have different inputs, dtypes or widths.
        """
        return self.take("fuse_horizontal", {"name": name}, list(matches), scope)
