"""Types where sizes are unknown: never wrong for any sizes that the catalogue tries, and as sharp as sizes allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from smelt.diag import InternalError
from smelt.ir import INT, UNKNOWN_DIM, Arg, Builder, ListType, TensorType, Type, Value, fits, parse
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.convert import from_torch, type_of
from smelt.ops.record import OpRecord
from smelt.ops.registry import normalize, schema_of
from smelt.ops.typing import infer

MODES = ("first", "all", "rank", "numbers", "lists")


def widened(type_: TensorType, mode: str) -> TensorType:
    assert type_.shape is not None
    if mode == "rank":
        return TensorType(type_.dtype, None, None, type_.device)
    shape = tuple(
        UNKNOWN_DIM if mode == "all" or (mode == "first" and i == 0) else d for i, d in enumerate(type_.shape)
    )
    strides = None if type_.strides is None else (UNKNOWN_DIM,) * len(shape)
    return TensorType(type_.dtype, shape, strides, type_.device)


def operand(b: Builder, obj: Any, mode: str) -> Arg:
    """A call's argument as the graph has it, with less known of it."""
    if isinstance(obj, torch.Tensor):
        type_ = type_of(obj)
        return b.add_param(b.graph.body, "t", type_ if mode in ("", "numbers", "lists") else widened(type_, mode))
    if isinstance(obj, (list, tuple)):
        inner = [operand(b, o, mode) for o in obj]
        values = [v for v in inner if isinstance(v, Value)]
        if mode == "lists" and values and len(values) == len(inner) and len({v.type for v in values}) == 1:
            return b.add_param(b.graph.body, "l", ListType(values[0].type))
        return tuple(inner)
    if mode == "numbers" and type(obj) is int and obj >= 0:
        return b.add_param(b.graph.body, "n", INT)
    return from_torch(obj)


def types_of(name: str, sample: Any, mode: str) -> tuple[Type, ...]:
    b = Builder.new("g", {})
    schema = schema_of(name)
    assert schema is not None
    # Which dimension is meant stands in the program's text.
    modes = ["" if a.name.startswith("dim") and mode == "numbers" else mode for a in schema.positional]
    args = tuple(operand(b, a, m) for a, m in zip(sample.args, modes, strict=False))
    kwargs = {k: operand(b, a, "" if k.startswith("dim") else mode) for k, a in sample.kwargs.items()}
    positional, named = normalize(name, args, kwargs)
    return infer(name, positional, named)


def samples(record: OpRecord, most: int) -> Iterator[Any]:
    for i, sample in enumerate(record.samples()):
        if i == most:
            return
        tensors = [t for a in (*sample.args, *sample.kwargs.values()) for t in (a if isinstance(a, list) else [a])]
        if all(t.layout == torch.strided for t in tensors if isinstance(t, torch.Tensor)):
            yield sample


@pytest.mark.spread(43)
@pytest.mark.parametrize("record", CATALOGUE, ids=lambda r: r.name)
def test_what_is_said_holds_for_the_sizes_that_there_are(record: OpRecord) -> None:
    _check(record, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("record", CATALOGUE, ids=lambda r: r.name)
def test_what_is_said_holds_for_more_sizes(record: OpRecord) -> None:
    _check(record, 20)


def _check(record: OpRecord, most: int) -> None:
    for sample in samples(record, most):
        try:
            exact = types_of(record.name, sample, "")
        except (InternalError, TypeError):
            continue
        for mode in MODES:
            try:
                said = types_of(record.name, sample, mode)
            except TypeError:
                # The schema wants a literal there.
                assert mode == "numbers"
                continue
            assert len(said) == len(exact)
            for wide, narrow in zip(said, exact, strict=True):
                listed = isinstance(wide, ListType) and all(
                    fits(e, wide.element) for e in getattr(narrow, "elements", ())
                )
                assert fits(narrow, wide) or listed, f"{mode}: {narrow} is not in {wide}"


def of(text: str) -> Type:
    return parse(f"graph g(%x: {text}) -> () {{ return }}").inputs[0].type


def told(op: str, *args: Any) -> tuple[Type, ...]:
    b = Builder.new("g", {})

    def read(arg: Any) -> Arg:
        if isinstance(arg, str):
            return b.add_param(b.graph.body, "v", of(arg))
        return tuple(map(read, arg)) if isinstance(arg, list) else arg

    return infer(op, tuple(map(read, args)))


def ask(op: str, *args: Any) -> str:
    return " ".join(map(str, told(op, *args)))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("relu.default", ["f32[_, 4]"], "f32[_, 4]"),
        ("relu.default", ["f32[_, _, _]"], "f32[_, _, _]"),
        ("add.Tensor", ["f32[_]", "f32[4]"], "f32[4]"),
        ("add.Tensor", ["f32[_, 4]", "f32[_, 4]"], "f32[_, 4]"),
        ("add.Tensor", ["f32[s, 4]", "f32[s, 4]"], "f32[s, 4]"),
        ("add.Tensor", ["f32[s]", "f32[t]"], "f32[_]"),
        ("add.Tensor", ["f32[?]", "f32[3]"], "f32[?]"),
        ("add.Tensor", ["f32[?]", "f64[?]"], "any"),
        ("add.Tensor", ["f32[?]", "i64[?]"], "f32[?]"),
        ("zeros.default", [["int", 4]], "f32[_, 4]"),
        ("reshape.default", ["f32[B, S, 64]", [-1, 64]], "f32[(B * S), 64]"),
        ("view.default", ["f32[B, 8]", [-1, 2, 4]], "f32[B, 2, 4]"),
        ("cat.default", [["f32[s, 4]", "f32[1, 4]"]], "f32[(s + 1), 4]"),
        ("cat.default", [["f32[s, 4]", "f32[s, 4]"]], "f32[(s * 2), 4]"),
        ("cat.default", ["list[f32[1, 4]]"], "f32[_, 4]"),
        ("stack.default", ["list[f32[3, 4]]"], "f32[_, 3, 4]"),
        ("select.int", ["f32[5, 4]", 0, "int"], "f32[4]"),
        ("select_scatter.default", ["f32[5, 4]", "f32[4]", 0, "int"], "f32[5, 4]"),
        ("slice.Tensor", ["f32[s, 4]", 0, 0, 100], "f32[_, 4]"),
        ("slice.Tensor", ["f32[s, 4]", 0, 0, 100000], "f32[_, 4]"),
        ("slice.Tensor", ["f32[5, 4]", 0, "int", "int"], "f32[_, 4]"),
        ("slice.Tensor", ["f32[s, 4]", 0, 1], "f32[(s - 1), 4]"),
        ("nonzero.default", ["f32[5, 4]"], "i64[_, 2]{1, _}"),
        ("masked_select.default", ["f32[5, 4]", "bool[5, 4]"], "f32[_]"),
        ("index.Tensor", ["f32[5, 4]", ["bool[5]"]], "f32[_, 4]"),
        ("index.Tensor", ["f32[5, 4]", ["i64[3]"]], "f32[3, 4]"),
        ("matmul.default", ["f32[B, S, 8]", "f32[8, 3]"], "f32[B, S, 3]"),
        ("linear.default", ["f32[_, 8]", "f32[3, 8]"], "f32[_, 3]"),
        ("transpose.int", ["f32[B, S]", 0, 1], "f32[S, B]{1, S}"),
        ("arange.default", ["int"], "i64[_]"),
        ("split.Tensor", ["f32[_, 4]", 2], "list[f32[_, 4]]"),
        ("squeeze.default", ["f32[_, 4]"], "f32[?]"),
        ("sum.default", ["any"], "any"),
        ("item.default", ["f32[]"], "float"),
        ("item.default", ["i64[1]"], "int"),
        ("item.default", ["bool[]"], "bool"),
        ("sym_size.int", ["f32[_]", 0], "int"),
        ("mul.Tensor", ["f32[3]", "float"], "f32[3]"),
        ("mul.Tensor", ["i64[3]", "float"], "f32[3]"),
    ],
)  # fmt: skip
def test_as_sharp_as_sizes_allow(op: str, args: list[Any], expected: str) -> None:
    assert ask(f"aten.{op}", *args) == expected


def test_recurrent_layers_are_not_tried_on_what_does_not_fit() -> None:
    """torch's own kernels do not look: they would read past the end of operands of other sizes."""
    lstm = torch.nn.LSTM(4, 6, 2, bidirectional=True)
    for batch, states, length in ((3, 5, 2), (3, 3, 0), (7, 2, 4)):
        sizes = [f"f32[{length}, {batch}, 4]", [f"f32[4, {states}, 6]"] * 2]
        weights = [f"f32{list(w.shape)}" for w in lstm._flat_weights if isinstance(w, torch.Tensor)]
        with pytest.raises(InternalError, match="no recurrent layer takes"):
            ask("aten.lstm.input", *sizes, weights, True, 2, 0.0, False, True, False)
    assert ask("aten.lstm.input", "f32[2, 3, 4]", ["f32[4, 3, 6]"] * 2, weights, True, 2, 0.0, False, True, False) == (
        "f32[2, 3, 12] f32[4, 3, 6] f32[4, 3, 6]"
    )
    unknown = ("f32[_, _, 4]", ["f32[4, _, 6]"] * 2)
    assert ask("aten.lstm.input", *unknown, weights, True, 2, 0.0, False, True, False).startswith("f32[_, _, 12]")


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)])
@pytest.mark.parametrize(
    ("x", "state", "weights", "batch_first", "expected"),
    [
        ("f32[_, _, _]", "f32[_, _, _]", ("f32[_, _]", "f32[_, _]", "f32[_]", "f32[_]"), False,
         ("f32[_, _, _]", "f32[1, _, _]")),
        ("f32[_, _, _]", "f32[1, _, 6]", ("f32[{g}, 4]", "f32[{g}, 6]", "f32[{g}]", "f32[{g}]"), False,
         ("f32[_, _, 6]", "f32[1, _, 6]")),
        ("f32[_, _, 4]", "f32[1, 3, _]", ("f32[{g}, 4]", "f32[{g}, 6]", "f32[{g}]", "f32[{g}]"), True,
         ("f32[3, _, 6]{{6, 18, 1}}", "f32[1, 3, 6]")),
        ("f32[?]", "f32[?]", ("f32[?]",) * 4, False, ("f32[?]", "f32[?]")),
    ],
)  # fmt: skip
def test_recurrent_layers_of_unknown_sizes(
    name: str, gates: int, x: str, state: str, weights: tuple[str, ...], batch_first: bool, expected: tuple[str, str]
) -> None:
    """Whoever changes one size must change others with it, so trials alone would tell sizes that need not be."""
    given = [w.format(g=6 * gates) for w in weights]
    states = [state, state] if name == "lstm" else state
    out, hidden = (e.format() for e in expected)
    found = ask(f"aten.{name}.input", x, states, given, True, 1, 0.0, False, False, batch_first)
    assert found == " ".join([out, *([hidden] * (2 if name == "lstm" else 1))])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("layer", [torch.nn.LSTM(4, 6, 2, proj_size=5), torch.nn.RNN(4, 6, 2, bidirectional=True)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_layers_of_unknown_sizes_are_as_in_eager(layer: torch.nn.RNNBase, batch_first: bool) -> None:
    layer.batch_first = batch_first
    x = torch.randn(2, 3, 4)
    out, states = layer(x)
    ways = 2 if layer.bidirectional else 1
    given = [f"f32[{2 * ways}, _, {n}]" for n in ((5, 6) if isinstance(layer, torch.nn.LSTM) else (6,))]
    name = "lstm" if isinstance(layer, torch.nn.LSTM) else "rnn_tanh"
    weights = [f"f32{list(w.shape)}" for w in layer._flat_weights if isinstance(w, torch.Tensor)]
    args = (given if len(given) > 1 else given[0], weights, True, 2, 0.0, False, layer.bidirectional, batch_first)
    for sizes in ("f32[_, _, 4]", "f32[2, _, 4]", "f32[_, 3, 4]"):
        found = told(f"aten.{name}.input", sizes, *args)
        for type_, tensor in zip(found, [out, *(states if isinstance(states, tuple) else [states])], strict=True):
            assert isinstance(type_, TensorType)
            assert fits(TensorType.of(type_.dtype, tensor.shape, tensor.stride()), type_)
