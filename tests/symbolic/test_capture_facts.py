"""What a capture with symbols says of them: origins, ranges, names, guards with their lines; and what has none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from smelt.capture import capture
from smelt.capture.result import Captured
from tests.symbolic.capture_harness import Free, check, compare, everything, holds, run, symbolic


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def text(found: Captured) -> str:
    assert found.graph is not None
    return str(found.graph)


def doubled(x: Any) -> Any:
    return x * 2


def added(x: Any, y: Any) -> Any:
    return x + y


def limited(x: Any) -> Any:
    if x.shape[0] > 100:
        return x
    return x + 1


def test_origins_say_where_a_symbol_is_read() -> None:
    found = symbolic(lambda x, n: x * n, (f(4, 6), 3))
    symbols = found.sizes.symbols  # type: ignore[union-attr]
    assert [(name, o.input, o.dim, o.hint) for name, o in symbols.items()] == [
        ("B", 0, 0, 4), ("S", 0, 1, 6), ("n", 1, None, 3),
    ]  # fmt: skip
    assert symbols["B"].range.low == 2 and symbols["B"].range.high is None  # type: ignore[union-attr]
    assert text(found).startswith("graph _lambda_(%x: f32[B, S], %n: int) -> f32[B, S] {")


def test_a_float_has_no_range_and_is_an_input() -> None:
    found = symbolic(lambda x, a: x * a, (f(4), 0.5))
    assert found.sizes.symbols["f"].range is None  # type: ignore[union-attr]
    assert "%a: float" in text(found)
    for value in (math.nan, math.inf, -0.0):
        compare(lambda x, a: x * a, found, (f(4), value))


def test_names_and_ranges_are_those_asked_for() -> None:
    found = symbolic(limited, (f(4, 6),), spec={("args[0]", 0): Free("rows", 1, 64)})
    assert "f32[rows, 6]" in text(found)
    assert not found.sizes.guards  # type: ignore[union-attr]
    assert holds(found, (f(64, 6),)) and holds(found, (f(1, 6),)) and not holds(found, (f(65, 6),))
    compare(limited, found, (f(1, 6),))


def test_one_name_is_one_symbol() -> None:
    spec = {("args[0]", 0): Free("B"), ("args[1]", 0): Free("B")}
    found = symbolic(added, (f(4, 6), f(4, 6)), spec=spec)
    assert text(found).count("f32[B, 6]") >= 3 and not found.sizes.guards  # type: ignore[union-attr]
    other = capture(added, (f(4, 6), f(1, 6)), dynamic=spec)
    assert other.sizes is None and "B is 4 in one argument and 1 in another" in other.warnings[0]


def test_equal_symbols_are_printed_with_one_name_and_guarded() -> None:
    found = symbolic(added, (f(4, 6), f(4, 6)))
    assert "B2" not in text(found) and "S2" not in text(found)
    assert found.sizes.equal == {"B2": "B", "S2": "S"}  # type: ignore[union-attr]
    assert not holds(found, (f(4, 6), f(5, 6)))


def test_guards_have_the_line_that_asked() -> None:
    found = symbolic(limited, (f(4, 6),))
    (guard,) = found.sizes.guards  # type: ignore[union-attr]
    assert guard.span is not None and guard.span.file == __file__
    assert guard.span.line == limited.__code__.co_firstlineno + 1
    assert guard.check({"B": 100, "S": 6}) and not guard.check({"B": 101, "S": 6})


def test_a_fixed_symbol_is_a_number_in_the_graph() -> None:
    found = symbolic(lambda x: x * [1.0, 2.0, 3.0][x.shape[0]], (f(2, 6),))
    assert found.sizes.fixed == {"B": 2} and "f32[2, S]" in text(found)  # type: ignore[union-attr]
    assert not holds(found, (f(3, 6),))


def test_sizes_0_and_1_are_no_symbols_by_themselves() -> None:
    found = symbolic(doubled, (f(4, 1),))
    assert "f32[B, 1]" in text(found)
    empty = symbolic(doubled, (f(4, 0),))
    assert "f32[B, 0]" in text(empty)
    scalar = symbolic(lambda x, n: x * n, (f(), 2))
    assert "%x: f32[]" in text(scalar)


@pytest.mark.parametrize("named", [0, 1])
def test_a_named_size_of_0_or_1_is_a_symbol(named: int) -> None:
    found = symbolic(doubled, (f(named, 6),), spec={("args[0]", 0): Free("B", 0)})
    for size in (0, 1, 2, 5):
        if holds(found, (f(size, 6),)):
            compare(doubled, found, (f(size, 6),))
    assert holds(found, (f(named, 6),))


def test_strides_of_a_dense_input_follow_from_its_sizes() -> None:
    found = symbolic(doubled, (f(6, 4).t(),))
    assert "%x: f32[B, S]{1, B}" in text(found)
    compare(doubled, found, (f(7, 5).t(),))
    last = symbolic(doubled, (f(2, 3, 4, 6).to(memory_format=torch.channels_last),))
    assert "f32[B, C, H, W]{((C * H) * W), 1, (C * W), C}" in text(last).replace("(W * C)", "(C * W)")
    compare(doubled, last, (f(3, 5, 7, 2).to(memory_format=torch.channels_last),))


def test_other_strides_are_numbers() -> None:
    found = symbolic(doubled, (f(4, 16)[:, :6],))
    assert "%x: f32[B, S]{16, 1}" in text(found)
    expanded = symbolic(doubled, (f(6).expand(4, 6),))
    assert "%x: f32[B, S]{0, 1}" in text(expanded)
    compare(doubled, expanded, (f(3).expand(5, 3),))


def test_arguments_that_share_memory_keep_their_sizes() -> None:
    x = f(4, 6)
    args = (x, x[1:])
    found = capture(lambda a, b: a.sum() + b.sum(), args, dynamic=everything(args))
    assert found.sizes is not None and not found.sizes.symbols
    assert "%a: f32[4, 6]" in text(found)


def test_a_tensor_passed_twice_is_one_input() -> None:
    x = f(4, 6)
    found = capture(added, (x, x), dynamic=everything((x, x)))
    assert found.sizes is not None and list(found.sizes.symbols) == ["B", "S"]


def test_parameters_stay_static() -> None:
    layer = torch.nn.Linear(6, 3)
    found = symbolic(layer, (f(4, 6),))
    assert found.sizes.fixed == {"S": 6} and "f32[3, 6] = param" in text(found)  # type: ignore[union-attr]


def test_keyword_arguments() -> None:
    def program(x: Any, *, n: Any = 2, scale: Any = None) -> Any:
        return x[:n] if scale is None else x[:n] * scale

    kwargs = {"n": 3, "scale": 0.5}
    found = symbolic(program, (f(4, 6),), kwargs)
    other = {"n": 5, "scale": 2.5}
    x = f(7, 2)
    assert torch.equal(run(found, (x,), other), program(x, **other))


def test_what_is_no_number_stays_part_of_the_program() -> None:
    args = (f(4, 6), True, "a", None)
    found = capture(lambda x, flag, mode, n: x * 2 if flag and mode == "a" and n is None else x, args,
                    dynamic=everything(args))  # fmt: skip
    assert found.sizes is not None and set(found.sizes.symbols) == {"B", "S"}
    assert found.constants == {"args[1]": True, "args[2]": "a", "args[3]": None}


def test_nothing_is_run_twice_and_nothing_stays_changed() -> None:
    seen: list[str] = []

    def program(x: Any) -> Any:
        seen.append("run")
        x.add_(1)
        return x * x.shape[0]

    x = f(4, 6)
    before = x.clone()
    found = capture(program, (x,), dynamic=everything((x,)))
    assert found.sizes is not None
    assert torch.equal(x, before + 1) and torch.equal(found.result, x * 4)
    assert seen == ["run"]


def test_gradients_are_left_to_eager_kernels() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.ReLU())
    x = f(4, 6).requires_grad_()
    found = capture(layer, (x,), dynamic={("args[0]", 0): Free("B")})
    assert found.sizes is not None and "f32[B, 3]" in text(found)


def test_an_op_without_symbolic_kernel_fixes_its_sizes_and_says_so() -> None:
    found = check(lambda x: torch.kron(x, x), (f(4, 6),), outside=((f(5, 6),),))
    assert {str(g) for g in found.sizes.guards} == {"B == 4", "S == 6"}  # type: ignore[union-attr]


def test_guard_texts_have_no_negative_side() -> None:
    def program(x: Any, y: Any) -> Any:
        if x.shape[0] < y.shape[0] * 2 + 3 and x.shape[1] >= 5:
            return x.sum() + y.sum()
        return x.sum()

    found = symbolic(program, (f(4, 6), f(5)))
    assert [str(g) for g in found.sizes.guards] == ["B <= 2*N + 2", "5 <= S"]  # type: ignore[union-attr]
