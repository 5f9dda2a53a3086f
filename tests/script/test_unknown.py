"""Tensors and numbers of which a run knows even the kind."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import smelt
from smelt.ir import DType
from smelt.ops.evaluate import evaluate
from tests.script.checking import agrees, by_evaluator, ended

X = torch.tensor([1.5, 0.5, 2.5, -1.0])
Y = torch.arange(6.0).reshape(2, 3)


def rows(x, i):
    total = x[i % 4].sum()
    total += torch.zeros(3).prod()
    return total, x.gather(0, i)


def kept(x, i):
    return torch.where(i > 0, x, -x) + torch.embedding(x[:, None], i)[:, 0]


@pytest.mark.parametrize("program", [rows, kept])
def test_positions_tell_nothing_of_what_they_choose_from(program):
    scripted = agrees(program, (X, torch.tensor([0, 2, 1, 3])), (X.double(), torch.tensor([0, 2, 1, 3])))
    assert all(y.type.dtype == DType.UNKNOWN for y in scripted.graph.body.yields)


def test_types_that_do_not_follow_from_unknown_ones_are_known():
    def f(x, i):
        return x > i, x.argmax(), x.sort()[1], x.sum(dtype=torch.float32)

    kinds = [y.type.dtype for y in smelt.script(f).graph.body.yields]
    assert kinds == [DType.BOOL, DType.I64, DType.I64, DType.F32]


def test_an_element_of_unknown_kind_stays_one_beside_a_number():
    def f(x):
        total = x.sum()
        return total + 1, total * 2.0, (total - 1).item()

    scripted = agrees(f, (X,), (X.double(),), (torch.tensor([1, 2]),))
    plus, times, item = (y.type for y in scripted.graph.body.yields)
    assert plus.dtype == times.dtype == DType.UNKNOWN and str(item) == "any"


def test_whether_a_tensor_has_an_attribute_asks_for_no_size():
    def f(y):
        return y + hasattr(y, "shape")

    scripted = agrees(f, (X,), (torch.tensor(2.0),))
    assert "sym_size" not in str(scripted.graph)


def highest(x, f: float):
    for one in x:
        if one > f:
            f = max(-32.0, min(32.0, one.item()))
    return f


def lowest(x, f: float):
    for one in x:
        if f >= one:
            f = max(-32.0, min(32.0, one.item()))
    return f, x == f, f != x


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", [highest, lowest])
def test_numbers_of_unknown_kind_are_compared_with_tensors(program):
    agrees(program, (X, 0.5), (X, 10.5), (X.int(), 0.5))


def texts_of_sizes(x):
    print(x.shape, x.stride(), tuple(x.shape), [x.shape[1:]])
    return f"{x.shape} {tuple(x.shape)} {x.stride()}", repr((x.shape, 1)), "%s" % (x.shape,), "{}".format(x.shape)  # noqa: UP031, UP032


def raises_sizes(x):
    raise ValueError("bad", x.shape, (x.stride(), 1))


@pytest.mark.filterwarnings("ignore:every run")
@pytest.mark.parametrize("program", [texts_of_sizes, raises_sizes])
def test_sizes_of_an_unknown_rank_are_told_as_the_program_has_them(program, capsys):
    scripted = agrees(program, (Y,), (Y[0],))
    capsys.readouterr()
    eager = ended(lambda: program(Y)), capsys.readouterr().out
    assert (ended(lambda: by_evaluator(scripted, Y)), capsys.readouterr().out) == eager


@pytest.mark.parametrize("kind", [int, float, complex])
def test_conversions_say_what_they_do_not_take(kind):
    def convert(x):
        return kind(x)

    scripted = agrees(convert, (Y,), (Y[:0],), (Y[0, 0],))
    assert ended(lambda: by_evaluator(scripted, Y)) == ended(lambda: kind(Y))


@pytest.mark.filterwarnings("ignore:every run")
@pytest.mark.parametrize("program", [round, lambda x: "a" + x, lambda x: [1] + x, lambda x: torch.cat(x)])  # noqa: RUF005
def test_errors_name_no_stand_in(program):
    scripted = agrees(lambda x: program(x), (Y,))
    assert ended(lambda: by_evaluator(scripted, Y)) == ended(lambda: program(Y))


def test_layouts_of_which_examples_tell_a_part_only():
    """Two examples that lie by columns, of other sizes: one stride is 1, the other is known in a call."""

    def by_rows(x):
        return x.contiguous().add_(1) * 2

    program = smelt.script(by_rows, example_inputs=[(torch.rand(4, 8).t(),), (torch.rand(4, 6).t(),)])
    module, columns, rows = program.to_fx(), torch.rand(4, 5).t(), torch.rand(5, 4)
    assert torch.equal(module(columns), by_rows(columns))
    assert torch.equal(evaluate(program.graph, program.inputs_for(columns))[0], by_rows(columns))
    with pytest.raises(AssertionError, match="with these strides"):
        module(rows)
    with pytest.raises(smelt.CaptureError, match="has strides"):
        program.inputs_for(rows)


def _appended(x, table):
    if x.sum() > 0:
        table["list"].append(0)
    return x + table["n"]


def _of_some_kind(x, items):
    y = x + 1
    items[0] = x.double()
    for item in items:
        y = y + (item.sum() if hasattr(item, "sum") else item)
    return y


@pytest.mark.parametrize(
    ("program", "given"),
    [(_appended, {"n": 0, "list": [1]}), (_of_some_kind, [torch.zeros(4), torch.ones(4)])],
    ids=["append", "hasattr"],
)
def test_what_may_be_of_any_kind_is_not_taken_for_a_tensor(program, given):
    with pytest.raises(smelt.CaptureError, match="may be of any kind"):
        smelt.script(program, example_inputs=(X, given))


def test_numbers_have_the_attributes_of_numbers():
    def f(x, n: int):
        m = int(x.sum())
        return x * (2 if hasattr(m, "bit_length") and hasattr(n, "real") and not hasattr(m, "sum") else 3)

    agrees(f, (X, 3), (X, 4))


def test_a_graph_that_asks_for_a_tensor_says_where_there_is_none():
    def total(x, items, table):
        items.append(table["n"])
        return x + items[-1].reshape(6).sum()

    given = X, [X, X], {"n": 0, "t": X}
    scripted = smelt.script(total, example_inputs=given)
    assert torch.equal(by_evaluator(scripted, X, [X], {"n": Y, "t": X}), X + Y.sum())
    with pytest.raises(smelt.SmeltError, match="takes a tensor, and it receives a int") as caught:
        by_evaluator(scripted, *given)
    assert caught.value.code == "S0107" and caught.value.where is not None
    assert caught.value.where.text.strip() == "return x + items[-1].reshape(6).sum()"
    with pytest.raises(RuntimeError, match="is invalid for input of size 4"):  # torch's own is as it was
        by_evaluator(scripted, X, [X], {"n": X, "t": X})


def test_errors_beside_a_number_of_any_kind_are_torchs_own():
    text = "graph added(%x: i64[4], %n: any) -> i64[4] {\n  %0: i64[4] = aten.add_.Tensor(%x, %n)\n  return %0\n}"
    graph = smelt.parse(text)
    assert torch.equal(evaluate(graph, [X.long(), 2])[0], X.long() + 2)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type Long"):
        evaluate(graph, [X.long(), 0.5])


def test_lists_of_tuples_of_an_example_are_inputs_like_others():
    def scaled(x, items):
        return [t * n for t, n in items]

    scripted = smelt.script(scaled, example_inputs=(X, [(X, 3), (X, 1)]))
    assert "captured" not in str(scripted.graph)  # no tensor of the example is in it
    for items in ([(X, 2)], [(X + 1, 4), (X, 0), (X * 2, 1)]):
        assert str(by_evaluator(scripted, X, items)) == str(scaled(X, items))


def test_a_graph_is_of_a_container_that_has_no_type_by_its_items():
    def counted(x, items):
        return x + sum(items), [len(items)]

    scripted = smelt.script(counted, example_inputs=(X, {1, 2}))
    assert str(by_evaluator(scripted, X, {2, 1})) == str(counted(X, {1, 2}))
    with pytest.raises(smelt.CaptureError, match=r"items is \{3\}, and the graph is of \{1, 2\}"):
        by_evaluator(scripted, X, {3})

    def of_objects(x, items):
        return x + items[0] * items[1].numerator

    scripted = smelt.script(of_objects, example_inputs=(X, [X, Fraction(1, 2)]))
    with pytest.raises(smelt.CaptureError, match="the graph is of"):
        by_evaluator(scripted, X, [X + 1, Fraction(1, 2)])
    assert torch.equal(scripted(X, [X + 1, Fraction(3, 2)]), X + (X + 1) * 3)
