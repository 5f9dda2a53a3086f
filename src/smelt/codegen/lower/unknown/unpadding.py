"""What leaves a program: padded tensors in memory of their own size, and views of these as views of them.

    %4: f32[18, 8] = ...                     %5: f32[_, 8] = aten.slice.Tensor(%4, 0, None, %n)
    return (%4 that counts)            ==>   %6: f32[_, 8] = aten.clone.default(%5); return %6

Why: a result may live for long, be written to a file, be asked for its storage. Invariant: a result lies in memory that
is as large as the exact program's, and shares it with what it shares it with there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.lower.memory.geometry import Geometry, row_major, view_geometry
from smelt.codegen.lower.memory.sharing import returns_itself, view_source
from smelt.codegen.lower.unknown.outside_memory import reached
from smelt.codegen.lower.unknown.returned_slices import is_copy
from smelt.codegen.lower.unknown.values import Buffer, Padded, Parts
from smelt.ir import Arg, MemoryFormat, Node, TensorType, Type, Value, map_values
from smelt.ops.effects import aliases

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting


class Leaving:
    """The outputs of one attempt, each value of the old graph made once."""

    def __init__(self, rewriting: Rewriting) -> None:
        self._rewriting = rewriting
        self._made: dict[Value, Arg] = {}

    def value(self, old: Value) -> Arg:
        """What leaves for a value of the old graph. Raises: Exact."""
        if old not in self._made:
            if not any(isinstance(self._rewriting.held.get(v), (Padded, Buffer, Parts)) for v in reached([old])):
                self._made[old] = self._rewriting.exact_value(self._rewriting.held[old], old.type, old)
            elif old.node is not None and self._is_view(old):
                placed = self._placed(old)
                if placed is not None:
                    self._made[old] = placed
                else:
                    self._view(old.node)
            else:
                self._made[old] = self._own(old)
        return self._made[old]

    def _view(self, node: Node) -> None:
        """The node once more, on what its operands are where they leave."""
        shared = {v for sources in aliases(node) for v in sources}

        def operand(value: Value) -> Arg:
            held = self._rewriting.held[value]
            return self.value(value) if value in shared else self._rewriting.exact_value(held, value.type, value)

        args = [map_values(arg, operand) for arg in node.args]
        kwargs = {name: map_values(arg, operand) for name, arg in node.kwargs.items()}
        made = self._rewriting.builder.add(node.op, args, [r.type for r in node.results], kwargs)
        self._made.update(zip(node.results, made.results, strict=True))

    def _placed(self, old: Value) -> Value | None:
        """A view of rows as a place in their memory, which native code makes; None where no numbers tell it."""
        root = old
        while root.node is not None and self._is_view(root) and not returns_itself(root.node):
            sources = aliases(root.node)[root.node.results.index(root)]
            if len(sources) != 1:
                return None
            root = sources[0]
        held, whole = self._rewriting.held[old], self._rewriting.held[root]
        if root is old or not isinstance(held, Padded) or not isinstance(whole, Padded):
            return None
        (count, *others), memory = held.counts or (None,), self.value(root)
        if any(n is not None for n in (*others, *whole.counts[1:])) or whole.counts[0] is not count:
            return None
        if not isinstance(count, Value) or not isinstance(memory, Value) or not _is_copied(memory):
            return None
        lies = lies_in(held.tensor, whole.tensor)
        if lies is None or lies.sizes != held.type.sizes or not _lies_so(lies, old.type):
            return None
        sizes: tuple[Arg, ...] = (count, *lies.sizes[1:])
        args: tuple[Arg, ...] = (memory, sizes, lies.strides, lies.offset)
        return self._rewriting.builder.add("aten.as_strided.default", args, [old.type]).result

    def _is_view(self, old: Value) -> bool:
        """Whether a result is memory of what its node was given, and nothing else; lists may only be of such memory."""
        node = old.node
        if node is None or node.regions:
            return False
        sources = aliases(node)[node.results.index(old)]
        lists = [v for v in sources if isinstance(self._rewriting.held[v], (Parts, Buffer))]
        return bool(sources) and all(map(self._is_view, lists))

    def _own(self, old: Value) -> Arg:
        """The exact tensor in memory of its own, unless it is there already."""
        exact = self._rewriting.exact_value(self._rewriting.held[old], old.type, old)
        node = exact.node if isinstance(exact, Value) else None
        if node is None or node.op != "aten.slice.Tensor" or not isinstance(old.type, TensorType):
            return exact
        form = "contiguous_format" if old.type.strides is None else "preserve_format"
        kwargs = {"memory_format": MemoryFormat(form)}
        return self._rewriting.builder.add("aten.clone.default", (exact,), [old.type], kwargs).result


def lies_in(tensor: Value, whole: Value) -> Geometry | None:
    """How a view lies in the tensor of known size that it is of; None where it is none, or strides do not tell."""
    if tensor is whole:
        return Geometry.of(whole.type) if isinstance(whole.type, TensorType) else None
    node = tensor.node
    if node is None or node.regions:
        return None
    number = node.results.index(tensor)
    if node.op == "unpack":
        (packed,) = node.operands()
        if packed.node is None:
            return None
        node = packed.node
    source = view_source(node)
    at = None if source is None else lies_in(source, whole)
    found = None if source is None or at is None else view_geometry(node, source, at)
    return None if found is None else found[number]


def _lies_so(lies: Geometry, type_: Type) -> bool:
    """Whether a view's strides, known numbers, are what a type of unknown size says."""
    if not isinstance(type_, TensorType) or any(type(n) is not int for n in (*lies.sizes, *lies.strides, lies.offset)):
        return False
    return lies.strides == (row_major(lies.sizes).strides if type_.strides is None else type_.strides)


def _is_copied(memory: Value) -> bool:
    return memory.node is not None and is_copy(memory.node)
