"""Random types, literals and well-formed graphs for property tests of the IR."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from smelt.diag import Span
from smelt.ir import (
    BOOL,
    INT,
    UNKNOWN_DIM,
    Arg,
    Builder,
    Device,
    DictType,
    DType,
    Graph,
    Layout,
    ListType,
    MemoryFormat,
    OptionalType,
    ScalarType,
    Sym,
    SymExpr,
    TensorType,
    TupleType,
    Type,
    Value,
    arg_fits,
    fits,
)

names = st.text(string.ascii_letters + "_", min_size=1, max_size=4)
odd_names = st.one_of(names, st.text(min_size=1, max_size=5).filter(lambda s: not s.isspace()))
dims = st.recursive(
    st.one_of(st.integers(0, 9), names.map(lambda n: Sym("s" + n)), st.just(UNKNOWN_DIM)),
    lambda d: st.builds(SymExpr, st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]), d, d),
    max_leaves=3,
)
shapes = st.lists(dims, max_size=3).map(tuple)
tensor_types = st.builds(
    TensorType,
    st.sampled_from(list(DType)),
    st.one_of(st.none(), shapes),
    st.one_of(st.none(), shapes),
    st.sampled_from(["cpu", "cuda:0"]),
    st.sampled_from(["strided", "sparse_coo"]),
)
types = st.recursive(
    st.one_of(tensor_types, st.sampled_from(["int", "float", "str", "none", "any", "dtype"]).map(ScalarType)),
    lambda t: st.one_of(
        st.builds(ListType, t),
        st.builds(OptionalType, t),
        st.builds(DictType, t, t),
        st.lists(t, max_size=3).map(lambda ts: TupleType(tuple(ts))),
    ),
    max_leaves=4,
)
literals: st.SearchStrategy[Arg] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(allow_nan=True), st.text(max_size=5),
    st.sampled_from(list(DType)), st.sampled_from([Device("cpu"), Device("cuda:0")]),
    st.just(Layout("strided")), st.just(MemoryFormat("channels_last")),
)  # fmt: skip
spans = st.one_of(st.none(), st.builds(Span, odd_names, st.integers(1, 9999), st.one_of(st.just(""), odd_names)))


def _args(draw: st.DrawFn, visible: list[Value], depth: int = 2) -> Arg:
    kind = draw(st.integers(0, 3 if depth else 2))
    if kind == 3:
        return tuple(_args(draw, visible, depth - 1) for _ in range(draw(st.integers(0, 2))))
    return draw(st.sampled_from(visible)) if kind and visible else draw(literals)


def _one(draw: st.DrawFn, b: Builder, visible: list[Value], type_: Type) -> Arg:
    """Something of a type, or of a narrower one; made where there is none."""
    fitting: list[Arg] = [v for v in visible if fits(v.type, type_)]
    literal = draw(literals)
    fitting += [literal] * arg_fits(literal, type_)
    return draw(st.sampled_from(fitting)) if fitting else b.add("my.make.one", (), [type_]).result


def _node(draw: st.DrawFn, b: Builder, visible: list[Value], depth: int) -> None:
    b.span, b.scope, b.mode = (
        draw(spans),
        draw(st.sampled_from(["", "a.0.b", "odd path"])),
        draw(st.sampled_from(["", "no_grad"])),
    )
    results = draw(st.lists(types, max_size=2))
    kind = draw(st.sampled_from(["plain", "plain", "plain", "if", "for", "while"])) if depth else "plain"
    if kind == "plain":
        args = [_args(draw, visible) for _ in range(draw(st.integers(0, 3)))]
        kwargs = {k: _args(draw, visible) for k in draw(st.lists(odd_names, max_size=2, unique=True))}
        node = b.add(draw(st.sampled_from(["aten.add.Tensor", "my.op.default", "odd op"])), args, results, kwargs)
    elif kind == "if":
        node = b.add("if", (_one(draw, b, visible, BOOL),), results)
        for _ in range(2):
            _region(draw, b, node, [], results, visible, depth)
    else:
        inits = [_one(draw, b, visible, t) for t in results]
        carried = [("c", t) for t in results]
        if kind == "for":
            bounds = [_one(draw, b, visible, INT) for _ in range(3)]
            node = b.add("for", (*bounds, *inits), results)
            _region(draw, b, node, [("i", INT), *carried], results, visible, depth)
        else:
            node = b.add("while", inits, results)
            _region(draw, b, node, carried, [BOOL], visible, depth)
            _region(draw, b, node, carried, results, visible, depth)
    visible.extend(node.results)


def _region(draw, b, node, params, yields, visible, depth) -> None:  # type: ignore[no-untyped-def]
    region = b.add_region(node)
    inner = list(visible) + [b.add_param(region, n, t) for n, t in params]
    with b.inside(region):
        for _ in range(draw(st.integers(0, 2))):
            _node(draw, b, inner, depth - 1)
        b.finish([_one(draw, b, inner, t) for t in yields])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A well-formed graph with every kind of node, literal, type and name."""
    b = Builder.new(draw(odd_names), {n: draw(types) for n in draw(st.lists(odd_names, max_size=3, unique=True))})
    visible = list(b.graph.inputs)
    for _ in range(draw(st.integers(0, 5))):
        _node(draw, b, visible, 2)
    return b.finish([_args(draw, visible) for _ in range(draw(st.integers(0, 3)))])
