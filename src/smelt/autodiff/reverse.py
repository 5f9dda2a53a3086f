"""Reverse mode over one region: gradients are handed from results to operands, last node first.

A value used several times gets the sum over its uses, the last one first: the order in which autograd adds them, so
that sums round alike. An operator without a gradient of its own takes torch's: `py.vjp`, one library node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt._torch.autocast import is_composite
from smelt.autodiff.activity import is_differentiated, may_depend
from smelt.autodiff.control import reverse_control
from smelt.autodiff.shapes import fitted, laid_as
from smelt.diag import SmeltError
from smelt.ir import STATE_OPS, Arg, Node, Region, TensorType, TupleType, Value, print_node, values_in
from smelt.ops.catalogue import gradient_of, record_of
from smelt.ops.catalogue.gradients.forms import FORMS
from smelt.ops.dry_calls import without_gradient
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter, write
from smelt.ops.ranks.expert_rows import GRADIENTS
from smelt.ops.record import Lowering, as_torch_does
from smelt.ops.registry import arguments_of, schema_of
from smelt.ops.torch_gradients import NAME
from smelt.rewrite import Rewriter

Grad = Value | list[Value | None]
"""Of a tensor its gradient; of a tuple one for each element, None where it has none."""


class Reverse:
    """Gradients of the values of one graph, written where the rewriter's builder is. active: values that have one.

    tells: the graph computes of each gradient, too, whether autograd has it (`present`), or None in its place.
    """

    def __init__(self, rewriter: Rewriter, active: set[Value], *, tells: bool = False) -> None:
        self.rewriter = rewriter
        self.emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
        self.active = active
        self.grads: dict[Value, Grad] = {}
        self.tells = tells
        self._present: dict[tuple[Value, int | None], Arg] = {}
        self._now: Arg = True  # whether what is handed on is there

    # --- gradients of values

    def add(self, value: Value, grad: Value | None, element: int | None = None, present: Arg = None) -> None:
        """One more use of a value (of an element of a tuple) has this gradient. present: whether autograd has it; by
        default where it has those of the results of the node that is handed through."""
        if grad is None:
            return
        if not isinstance(value.type, TensorType | TupleType):
            raise of_no_tensor(value)
        if self.tells:
            key, found = (value, element), self._now if present is None else present
            self._present[key] = self.either(self._present.get(key, False), found)
        type_ = value.type
        if element is not None:
            assert isinstance(type_, TupleType)
            parts = self.grads.setdefault(value, [None] * len(type_.elements))
            assert isinstance(parts, list)
            parts[element] = self._sum(parts[element], self._fitted(grad, type_.elements[element]))
            return
        before = self.grads.get(value)
        assert not isinstance(before, list)
        self.grads[value] = self._sum(before, self._fitted(grad, type_))

    def give(self, arg: Arg, grad: Grad | None, present: Arg = None) -> None:
        """The same for what may be no value, or one without a gradient."""
        if isinstance(arg, Value) and arg in self.active and not isinstance(grad, list):
            self.add(arg, grad, present=present)

    def present(self, value: Value) -> Arg:
        """Whether autograd has a gradient of a value: a bool, or a value that says so."""
        return self._present.get((value, None), False)

    def either(self, a: Arg, b: Arg) -> Arg:
        """Whether one of two gradients is there."""
        if a is True or b is True:
            return True
        return b if a is False else a if b is False or a == b else self.emitter.call("py.or_", a, b)

    def fork(self, active: set[Value]) -> Reverse:
        """Gradients of a region's values, apart from those around it."""
        return Reverse(self.rewriter, active, tells=self.tells)

    def _fitted(self, grad: Value, type_: object) -> Value:
        return fitted(self.emitter, grad, type_) if isinstance(type_, TensorType) else grad

    def _sum(self, before: Value | None, grad: Value) -> Value:
        return grad if before is None else self.emitter.call("aten.add.Tensor", before, grad)

    def gradient(self, value: Value) -> Value | None:
        """A tensor's gradient; None where nothing depends on it."""
        found = self.grads.get(value)
        assert not isinstance(found, list)
        return found

    # --- nodes

    def expand(self, region: Region) -> None:
        """Put forms that have gradients in place of composites that have none of their own."""
        for node in list(region):
            for inner in node.regions:
                self.expand(inner)
            if not node.regions and self._is_on_path(node):
                self._expand(node)

    def _expand(self, node: Node) -> None:
        form = FORMS.get(node.op) or _exact_form(node)
        if form is None or node.mode:
            return
        builder = self.emitter.builder
        before = node.prev
        with builder.at(node):
            parts = write(node, self.emitter, form)
            if parts is None or len(parts) != _count(node):
                return
            # What reads a result was given its memory layout.
            pairs = [(old, laid_as(self.emitter, new, old.type)) for old, new in _pairs(node, parts)]
        added: list[Node] = []
        one = node.prev
        while one is not None and one is not before:
            added.append(one)
            one = one.prev
        for old, new in pairs:
            if isinstance(new, Value) and old in self.active:
                self.active.add(new)
            self.rewriter.replace_all_uses(old, new)
        for made in reversed(added):
            if any(v in self.active for v in made.operands()):
                self.active.update(r for r in made.results if may_depend(r.type))
        if not any(r.users for r in node.results):
            self.rewriter.erase(node)
        for made in reversed(added):
            if made.parent is not None:
                self._expand(made)

    def _is_on_path(self, node: Node) -> bool:
        return any(r in self.active for r in node.results)

    def region(self, region: Region) -> None:
        """Hand gradients through all nodes of a region."""
        for node in reversed(list(region)):
            self._node(node)

    def _node(self, node: Node) -> None:
        if node.op in STATE_OPS or not self._is_on_path(node) or not any(r in self.grads for r in node.results):
            return
        builder = self.emitter.builder
        saved = builder.span, builder.scope
        builder.span, builder.scope = node.span, node.scope
        self._now = self._of_node(node)
        try:
            if node.op == "unpack":
                self._unpack(node)
            elif node.op == "write":
                self._write(node)
            elif node.regions:
                reverse_control(self, node)
            elif is_differentiated(node) and any(v in self.active for v in node.operands()):
                self._operator(node)
        finally:
            builder.span, builder.scope = saved
            self._now = True

    def _of_node(self, node: Node) -> Arg:
        """Whether autograd has a gradient of one of a node's results."""
        found: Arg = not self.tells
        for result in node.results if self.tells else ():
            count = len(result.type.elements) if isinstance(result.type, TupleType) else 0
            for element in (None, *range(count)):
                found = self.either(found, self._present.get((result, element), False))
        return found

    def _unpack(self, node: Node) -> None:
        (source,) = node.args
        assert isinstance(source, Value)
        for i, result in enumerate(node.results):
            self.add(source, self.gradient(result), i, self.present(result) if self.tells else None)

    def _write(self, node: Node) -> None:
        value = node.args[1]
        if isinstance(value, Value) and value in self.active:
            self.add(value, self.gradient(node.result))

    def _operator(self, node: Node) -> None:
        rule, schema = gradient_of(node.op), schema_of(node.op)
        grads = self._of_results(node)
        collective = GRADIENTS.get(node.op)
        if collective is not None and isinstance(grads[0], Value):
            self.give(node.args[0], collective(self.emitter, node.args, node.kwargs, grads[0]))
            return
        if schema is not None and _is_sparse(arguments_of(schema, node.args, node.kwargs)):
            raise _cannot(node, "its gradient is a sparse tensor")
        if rule is not None and schema is not None and _is_real(node):
            call = arguments_of(schema, node.args, node.kwargs)
            parts = rule(self.emitter, call, tuple(node.results), grads)
            if parts is not None:
                for name, make in parts.items():
                    if any(v in self.active for v in values_in(call[name])):
                        self._hand_on(call[name], make())
                return
        self._by_torch(node, grads)

    def _of_results(self, node: Node) -> tuple[Value | None, ...]:
        found: list[Value | None] = []
        for result in node.results:
            grad = self.grads.get(result)
            if isinstance(result.type, TupleType):
                found += grad if isinstance(grad, list) else [None] * len(result.type.elements)
            else:
                assert not isinstance(grad, list)
                found.append(grad)
        return tuple(found)

    def _hand_on(self, arg: Arg, grad: Arg) -> None:
        if isinstance(arg, Value):
            if arg in self.active and isinstance(arg.type, TupleType) and isinstance(grad, tuple):
                for i, one in enumerate(grad):
                    self.add(arg, one if isinstance(one, Value) else None, i)
            elif arg in self.active and isinstance(grad, Value):
                self.add(arg, grad)
            elif arg in self.active and grad is not None:
                raise of_no_tensor(arg)
        elif isinstance(arg, tuple) and isinstance(grad, tuple):
            for one, other in zip(arg, grad, strict=True):
                self._hand_on(one, other)

    def _by_torch(self, node: Node, grads: Sequence[Value | None]) -> None:
        if effects(node).rng or not effects(node).is_pure or (node.op.startswith("py.") and node.op != NAME):
            raise _cannot(node, "it has no gradient here")
        args = (*node.args, *node.kwargs.values())
        given = list(values_in(args))
        absent = without_gradient(node, self.active.__contains__, grads)
        positions = tuple(i for i, v in enumerate(given) if v in self.active and v not in absent)
        if not positions:
            return
        made = self.emitter.calls(NAME, node.op, positions, tuple(grads), tuple(node.kwargs), *args)
        for i, grad in zip(positions, made, strict=True):
            self.add(given[i], grad)


def _exact_form(node: Node) -> Lowering | None:
    """The same in simpler operators, of an operator without a gradient: as its record says, or as torch's code does."""
    if gradient_of(node.op) is not None:
        return None
    record = record_of(node.op)
    if record is not None and record.exact and record.lower is not None:
        return record.lower
    return as_torch_does(node.op) if is_composite(node.op) and not effects(node).rng else None


def _count(node: Node) -> int:
    if len(node.results) == 1 and isinstance(node.result.type, TupleType):
        return len(node.result.type.elements)
    return len(node.results)


def _pairs(node: Node, parts: Sequence[Arg]) -> list[tuple[Value, Arg]]:
    """Each result and its replacement; of a tuple the results of the nodes that unpack it."""
    if len(node.results) == 1 and isinstance(node.result.type, TupleType):
        users = [user for user in node.result.users if isinstance(user, Node) and user.op == "unpack"]
        return [pair for user in users for pair in zip(user.results, parts, strict=True)]
    return list(zip(node.results, parts, strict=True))


def _is_sparse(call: Mapping[str, Arg]) -> bool:
    """Whether a call (`embedding`, `gather`) asks for a sparse gradient."""
    return call.get("sparse") is True or call.get("sparse_grad") is True


def _is_real(node: Node) -> bool:
    types = [v.type for v in (*node.operands(), *node.results)]
    return all(not isinstance(t, TensorType) or t.dtype.kind != "complex" for t in types)


def of_no_tensor(value: Value) -> SmeltError:
    """Of a value that a gradient leads to, but that is a list, a dictionary, or anything."""
    return SmeltError(
        f"%{value.name} cannot be differentiated",
        value.node.span if value.node is not None else None,
        why=f"it is {value.type}, which may hold tensors that have gradients",
        fix="hand tensors on by themselves, or stacked (torch.stack)",
        code="S0303",
    )


def _cannot(node: Node, why: str) -> SmeltError:
    return SmeltError(
        f"{node.op} cannot be differentiated",
        node.span,
        why=f"{why}; at {print_node(node).splitlines()[0]}",
        fix="leave it out of what gradients are needed of (torch.no_grad, detach), or run the program eagerly",
        code="S0303",
    )
