"""Guards on sizes and numbers: what is free may change, everything else is seen; native code says what Python says."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from smelt.compiler.object.compiled_dispatch import Dispatcher, _slow
from smelt.compiler.object.compiled_native import native_entry
from smelt.diag import InternalError, Options, Span
from smelt.runtime.entering.entry_guards import native_guards
from smelt.runtime.guarding.guards import Form, GuardSet, NumberForm, SizeCheck, TensorForm


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


CODE = native_entry(Dispatcher, _slow, Options())


class Known(GuardSet):
    """Guards with the call that they were made from."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], **named: Any) -> None:
        super().__init__((), args, kwargs, **named)
        assert self.check(args, kwargs) is None and CODE is not None
        self.native = native_guards(self, args, kwargs, CODE.layout)


def holds(guards: Known, *args: Any, is_exact: bool = True, **kwargs: Any) -> bool:
    """What the check says; the exact tests, asked one by one, must agree, and native code.

    is_exact: native code needs no help of Python's.
    """
    found = guards.check(args, kwargs)
    assert guards.first_failed(args, kwargs) == found
    if found is not None:
        assert guards.explain(found, args, kwargs)
    if guards.native is not None:
        assert CODE is not None
        native = CODE.holds(guards.native, args, kwargs)
        assert native == (found is None) or (not is_exact and not native)
    return found is None


def made(*args: Any, free: Mapping[str, Any], checks: tuple[str, ...] = (), **named: Any) -> Known:
    found = [SizeCheck(text) for text in checks]
    return Known(args, {}, free=free, checks=found, writes=False, **named)


# --- numbers


class Whole(int):
    pass


@pytest.mark.parametrize("value", [0, 3, -5, 2**63 - 1, -(2**63)])
def test_ints_of_64_bits_are_free(value: int) -> None:
    guards = made(torch.ones(2), 3, free={"args[1]": NumberForm("n")})
    assert holds(guards, torch.ones(2), value)
    assert guards.free_values((torch.ones(2), value), {}) == {"n": value}


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, True, False, 3.0, Whole(3), "3", None, torch.tensor(3)])
def test_other_values_are_no_such_int(value: Any) -> None:
    assert not holds(made(torch.ones(2), 3, free={"args[1]": NumberForm("n")}), torch.ones(2), value)


@pytest.mark.parametrize("value", [0.0, -0.0, 2.5, float("inf"), float("nan"), 1e300])
def test_floats_are_free(value: float) -> None:
    assert holds(made(torch.ones(2), 0.5, free={"args[1]": NumberForm()}), torch.ones(2), value)


@pytest.mark.parametrize("value", [1, True, torch.tensor(0.5), __import__("numpy").float64(0.5), None])
def test_other_values_are_no_such_float(value: Any) -> None:
    assert not holds(made(torch.ones(2), 0.5, free={"args[1]": NumberForm()}), torch.ones(2), value)


def test_bools_are_free_and_no_ints() -> None:
    guards = made(torch.ones(2), True, free={"args[1]": NumberForm("b")})
    assert [holds(guards, torch.ones(2), v) for v in (True, False, 1, 0, None)] == [True, True, False, False, False]


# --- sizes


def test_a_free_size_may_change_and_nothing_else() -> None:
    x = torch.ones(4, 16)
    guards = made(x, free={"args[0]": TensorForm(("B", 16))})
    assert all(holds(guards, torch.ones(n, 16)) for n in (4, 1, 0, 7))
    changed = {
        "size": torch.ones(4, 17),
        "rank": torch.ones(4, 16, 1),
        "dtype": torch.ones(4, 16, dtype=torch.float64),
        "transposed": torch.ones(16, 4).t(),
        "a slice": torch.ones(4, 32)[:, :16],
        "expanded": torch.ones(1, 16).expand(4, 16),
        "a subclass": torch.nn.Parameter(torch.ones(4, 16), requires_grad=False),
        "another device": torch.ones(4, 16, device="meta"),
        "complex": torch.ones(4, 16, dtype=torch.complex64),
    }
    for name, value in changed.items():
        assert not holds(guards, value), name


def test_strides_by_expression() -> None:
    # A transposed (B, 16): its sizes are (16, B), its strides (1, 16).
    guards = made(torch.ones(4, 16).t(), free={"args[0]": TensorForm((16, "B"), (1, 16))})
    assert holds(guards, torch.ones(9, 16).t()) and not holds(guards, torch.ones(16, 9))
    # A transposed (16, B): strides (1, B).
    guards = made(torch.ones(16, 4).t(), free={"args[0]": TensorForm(("B", 16), (1, "B"))})
    assert holds(guards, torch.ones(16, 9).t())
    assert not holds(guards, torch.ones(9, 16)) and not holds(guards, torch.ones(16, 10).t()[:9])


def test_one_name_for_two_sizes_and_expressions() -> None:
    free = {"args[0]": TensorForm(("B", "B * 2")), "args[1]": TensorForm(("B",))}
    guards = made(torch.ones(4, 8), torch.ones(4), free=free)
    assert holds(guards, torch.ones(5, 10), torch.ones(5))
    assert not holds(guards, torch.ones(5, 10), torch.ones(4))
    assert not holds(guards, torch.ones(5, 11), torch.ones(5))


CHECKS = {
    "n >= 0": lambda n, b: n >= 0,
    "n != 1": lambda n, b: n != 1,
    "n": lambda n, b: n != 0,
    "B % 8 == 0": lambda n, b: b % 8 == 0,
    "n % 3 == 2": lambda n, b: n % 3 == 2,
    "n % -3 == -1": lambda n, b: n % -3 == -1,
    "B * n + 2 * B * B - 1 <= 60": lambda n, b: b * n + 2 * b * b - 1 <= 60,
    "-n < B // 2": lambda n, b: -n < b // 2,
    "n // 4 == -1": lambda n, b: n // 4 == -1,
    "max(n, B) > min(7, 3 * n)": lambda n, b: max(n, b) > min(7, 3 * n),
    "0 < n <= B < 9": lambda n, b: 0 < n <= b < 9,
    "abs(n) == ceil_div(B, 2)": lambda n, b: abs(n) == -(-b // 2),
    "n < 2 or B > 6": lambda n, b: n < 2 or b > 6,
    "not (n == B)": lambda n, b: n != b,
    "B % n == 0": lambda n, b: n != 0 and b % n == 0,
    "B / 2 > n": lambda n, b: b / 2 > n,
    "n * n * n * n < 100": lambda n, b: n**4 < 100,
}
DIVIDED = ("B % n == 0",)
PYTHON = (
    ("n % -3 == -1", True), ("n % -3 == -1", False), ("0 < n <= B < 9", False),
    ("n < 2 or B > 6", True), ("B / 2 > n", True), ("B / 2 > n", False),
)  # fmt: skip
"""What native code leaves to Python."""
NUMBERS = (0, 1, 2, 3, 5, 8, -1, -3, -4, 2**40, 2**62, -(2**63), 2**63 - 1)


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("text", CHECKS)
def test_checks(text: str, outcome: bool) -> None:
    free = {"args[0]": TensorForm(("B", 2)), "args[1]": NumberForm("n")}
    calls = [(b, n) for b in (2, 4, 7, 8) for n in NUMBERS]
    # It is neither true nor false where it divides by 0.
    fits = [(b, n) for b, n in calls if not ("% n" in text and n == 0) and CHECKS[text](n, b) == outcome]
    first = (torch.ones(fits[0][0], 2), fits[0][1])
    guards = Known(first, {}, free=free, checks=[SizeCheck(text, outcome)], writes=False)
    assert (guards.native is None) == ((text, outcome) in PYTHON)
    for b, n in calls:
        is_exact = abs(n) < 2**30 and not (text in DIVIDED and n <= 0)
        assert holds(guards, torch.ones(b, 2), n, is_exact=is_exact) == ((b, n) in fits), (b, n)


def expression(draw: random.Random, depth: int) -> str:
    """Text over n, B and C."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(("n", "B", "C", "B", "C", str(draw.randint(-3, 9)), str(draw.choice((2**31, 2**40, 2**62)))))
    left, right = expression(draw, depth - 1), expression(draw, depth - 1)
    match draw.randrange(10):
        case 0 | 1 | 2:
            return f"({left} {draw.choice('+-*')} {right})"
        case 3 | 4:
            return f"({left} {draw.choice(('//', '%'))} {draw.randint(1, 7)})"
        case 5:
            return f"({left} // {right})"
        case 6:
            return f"{draw.choice(('max', 'min'))}({left}, {right})"
        case 7:
            return f"ceil_div({left}, {draw.randint(1, 7)})"
        case 8:
            return f"abs({left})"
        case _:
            return f"-{left}"


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", range(60))
def test_random_checks(seed: int) -> None:
    """Native code never lets a call pass that Python does not."""
    draw = random.Random(seed)
    scope = {"max": max, "min": min, "abs": abs, "ceil_div": lambda a, b: -(-a // b)}
    free = {"args[0]": TensorForm(("B", "C")), "args[1]": NumberForm("n")}
    calls = [(b, c, n) for b in (1, 2, 7) for c in (0, 3, 8) for n in (0, 1, -1, 5, -6, 2**40, -(2**63))]
    assert CODE is not None
    for _ in range(5):
        operator = draw.choice(("==", "!=", "<", "<=", ">", ">="))
        text = f"{expression(draw, 3)} {operator} {expression(draw, 2)}"
        found: dict[tuple[int, int, int], bool | None] = {}
        for call in calls:
            try:
                found[call] = bool(eval(text, scope, dict(zip("BCn", call, strict=True))))
            except ZeroDivisionError:
                found[call] = None
        for outcome in (True, False):
            fits = [call for call in calls if found[call] == outcome]
            if not fits:
                continue
            made_from = (torch.ones(fits[0][0], fits[0][1]), fits[0][2])
            guards = Known(made_from, {}, free=free, checks=[SizeCheck(text, outcome)], writes=False)
            for b, c, n in calls:
                holds(guards, x := torch.ones(b, c), n, is_exact=False)
                assert (guards.check((x, n), {}) is None) == (found[b, c, n] == outcome), (text, b, c, n)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3.0, float("nan"), float("inf")])
def test_checks_on_floats(value: float) -> None:
    for text in ("f >= 0", "f < 1.5", "f != f", "2 > f", "-0.5 != f"):
        seen = bool(eval(text, {"f": 0.5}))
        free = {"args[1]": NumberForm("f")}
        guards = Known((torch.ones(2), 0.5), {}, free=free, checks=[SizeCheck(text, seen)], writes=False)
        assert guards.native is not None
        assert holds(guards, torch.ones(2), value) == (bool(eval(text, {"f": value})) == seen), text


def test_one_name_for_two_numbers() -> None:
    guards = made(torch.ones(2), 3, 3, free={"args[1]": NumberForm("n"), "args[2]": NumberForm("n")})
    assert holds(guards, torch.ones(2), 4, 4) and not holds(guards, torch.ones(2), 4, 5)
    guards = made(torch.ones(2), 2, free={"args[0]": TensorForm(("n",)), "args[1]": NumberForm("n")})
    assert holds(guards, torch.ones(4), 4) and not holds(guards, torch.ones(4), 5)
    with pytest.raises(InternalError, match="two floats"):
        made(torch.ones(2), 0.5, 0.5, free={"args[1]": NumberForm("f"), "args[2]": NumberForm("f")})


def test_a_check_tells_its_line_and_its_values() -> None:
    where = Span("model.py", 7, "f")
    free: dict[str, Form] = {"args[0]": TensorForm(("B", 2)), "args[1]": NumberForm("n")}
    checks = [SizeCheck("B % 2 == 0", True, where), SizeCheck("n == 1", False)]
    guards = GuardSet((), (torch.ones(4, 2), 3), {}, free=free, checks=checks)
    found = [str(guard) for guard in guards.guards if guard.kind == "check"]
    assert found[0].startswith("B % 2 == 0: True") and "model.py:7" in found[0] and "not (n == 1)" in found[1]
    args = (torch.ones(5, 2), 3)
    failed = guards.check(args, {})
    assert failed is not None
    told = guards.explain(failed, args, {})
    assert "B % 2 == 0 does not hold for B = 5 (args[0].shape[0]), n = 3 (args[1])" in told and "model.py:7" in told


def test_places_in_containers_and_by_name() -> None:
    args, kwargs = ({"a": [torch.ones(2, 3), 4]},), {"scale": 2.0}
    free: dict[str, Any] = {
        "args[0]['a'][0]": TensorForm(("B", 3)),
        "args[0]['a'][1]": NumberForm("n"),
        "kwargs['scale']": NumberForm(),
    }
    guards = Known(args, kwargs, free=free, checks=[SizeCheck("n == B + 2")], writes=False)
    assert holds(guards, {"a": [torch.ones(5, 3), 7]}, scale=-1.0)
    assert not holds(guards, {"a": [torch.ones(5, 3), 8]}, scale=-1.0)
    assert not holds(guards, {"a": (torch.ones(5, 3), 7)}, scale=-1.0)
    assert not holds(guards, {"a": [torch.ones(5, 3), 7]}, scale=1)


def test_shared_memory_is_told_at_each_size() -> None:
    free = {"args[0]": TensorForm(("B",)), "args[1]": TensorForm(("C",))}
    guards = Known((torch.ones(4), torch.ones(4)), {}, free=free, writes=True)
    assert guards.native is not None
    memory = torch.ones(100)
    assert holds(guards, memory[:50], memory[50:])
    assert not holds(guards, memory[:51], memory[50:])
    assert not holds(guards, memory[20:], memory[:21])
    assert holds(guards, memory[50:50], memory[20:])


@pytest.mark.parametrize(
    ("free", "checks"),
    [
        ({"args[2]": NumberForm("n")}, ()),
        ({"args[1]": TensorForm(("B",))}, ()),
        ({"args[0]": NumberForm("n")}, ()),
        ({"args[0]": TensorForm(("B", "C"))}, ()),
        ({"args[0]": TensorForm(("B",))}, ("C == 2",)),
        ({"args[0]": TensorForm(("B",))}, ("B ==",)),
        ({"args[0]": TensorForm(("B",))}, ("B.real == 1",)),
        ({"args[0]": TensorForm(("B",))}, ("print(B)",)),
    ],
)
def test_what_cannot_be_is_refused(free: Mapping[str, Any], checks: tuple[str, ...]) -> None:
    with pytest.raises(InternalError):
        made(torch.ones(4), 3, free=free, checks=checks)
