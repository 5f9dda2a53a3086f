"""Errors that eager raises where nobody uses the result: raised by all doors, after the effects before them alone."""

import copy

import pytest
import torch
import torch.nn.functional as F

import smelt

X = torch.linspace(-2, 2, 12).reshape(3, 4)
T = torch.tensor


def at_an_item(x, i):
    x[int(i)]


def in_a_row(x, i):
    x[0, int(i)]


def through_a_write(x, i):
    x.clone()[int(i)] = 1


def in_a_loop(x, i):
    for k in range(int(i)):
        x[k]


def in_a_branch(x, i):
    if x.sum() > -100:
        x[int(i)]


def of_rows(x, i):
    x[i]


def embedded(x, i):
    F.embedding(i, x)


def as_views(x, i):
    x.view(int(i), -1)


def widened(x, i):
    x[0].expand(3, int(i))


def narrowed(x, i):
    torch.narrow(x, 0, i, 2)


def made(x, i):
    torch.zeros(int(i))


def counted(x, i):
    x.topk(int(i))


def divided(x, i):
    T([4, 5]) // int(i)


def raised(x, i):
    T([4, 5]) ** int(i)


def of_other_sizes(x, i):
    x[x > 0] + torch.ones(6)[: int(i)]


def multiplied(x, i):
    x[:, : int(i)] @ x.t()


def placed(x, i):
    x.select_scatter(x[0], 0, int(i))


def drawn(x, i):
    torch.randint(0, int(i), (2,))


CASES = {
    at_an_item: (T(2), T(9)),
    in_a_row: (T(2), T(9)),
    through_a_write: (T(2), T(9)),
    in_a_loop: (T(3), T(4)),
    in_a_branch: (T(2), T(9)),
    of_rows: (T([0, 2]), T([0, 7])),
    embedded: (T([0, 2]), T([0, 7])),
    as_views: (T(4), T(5)),
    widened: (T(4), T(5)),
    narrowed: (T(1), T(5)),
    made: (T(2), T(-7)),
    counted: (T(2), T(7)),
    divided: (T(2), T(0)),
    raised: (T(2), T(-1)),
    of_other_sizes: (T(6), T(2)),
    multiplied: (T(4), T(2)),
    placed: (T(2), T(9)),
    drawn: (T(2), T(-1)),
}


def around(fn, is_used):
    """A program that writes before and after."""

    def unused(x, i, before, after):
        before.add_(1)
        fn(x, i)
        after.add_(1)
        return before * 2

    def used(x, i, before, after):
        before.add_(1)
        y = fn(x, i)
        after.add_(1)
        return before * 2, y

    return used if is_used else unused


def ended(call, i):
    """How a call ends: its error, its result, and what it wrote."""
    args = (X.clone(), i.clone(), torch.zeros(2), torch.zeros(2))
    torch.manual_seed(0)
    try:
        found = copy.deepcopy(call(*args))
    except Exception as error:
        found = (type(error), str(error))
    return str(found), [a.tolist() for a in args], torch.get_rng_state().sum().item()


@pytest.mark.spread(10)
@pytest.mark.parametrize("how", ["trace", "compile", "script"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_unused(fn, how):
    good, bad = CASES[fn]
    program = around(fn, is_used=False)
    assert "Error" in ended(program, bad)[0] and "Error" not in ended(program, good)[0]
    with torch.no_grad():
        if how == "trace":
            made = smelt.trace(program, (X.clone(), good, torch.zeros(2), torch.zeros(2)), check=False)
        else:
            made = getattr(smelt, how)(program)
        for i in (good, good, bad, good, bad):
            assert ended(made, i) == ended(program, i)


@pytest.mark.spread(2)
@pytest.mark.parametrize("literal", [False, True], ids=["free", "fixed"])
def test_a_number_that_comes_from_outside(literal):
    def program(x, n, before):
        before.add_(1)
        x[n]
        T([1, 2]) // n
        int(n / 3)
        return x * 2

    compiled = smelt.compile(program, dynamic=not literal)
    for n in (1, 2, 2, 0, 5, 2, -3, -4):
        found = []
        for call in (program, compiled):
            before = torch.zeros(2)
            try:
                result = call(X, n, before).tolist()
            except (IndexError, RuntimeError) as error:
                result = (type(error), str(error))
            found.append((result, before.tolist()))
        assert found[0] == found[1]


def test_a_float_that_is_no_int():
    def program(x, f):
        int(f)
        return x * f

    compiled = smelt.compile(program, dynamic=True)
    for f in (1.5, 2.5):
        assert torch.equal(compiled(X, f), X * f)
    with pytest.raises(OverflowError):
        compiled(X, float("inf"))
    with pytest.raises(ValueError, match="NaN"):
        compiled(X, float("nan"))


def test_a_trace_with_a_free_number_that_writes():
    def program(x, n, y):
        y.add_(n)
        return x[n]

    traced = smelt.trace(program, (X, 1, torch.zeros(2)), check=False, dynamic_shapes={"n": "N"})
    for n in (2, 0):
        y = torch.zeros(2)
        assert torch.equal(traced(X, n, y), X[n]) and y.tolist() == [n, n]
