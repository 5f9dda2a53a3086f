"""Guards on sizes and numbers: what is free may change, everything else is seen; native code says what Python says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from smelt.diag import InternalError, Span
from smelt.runtime.guards import GuardSet, NumberForm, SizeCheck, TensorForm


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def holds(guards: GuardSet, *args: Any, **kwargs: Any) -> bool:
    """What the check says; the exact tests, asked one by one, must agree."""
    found = guards.check(args, kwargs)
    assert guards.first_failed(args, kwargs) == found
    if found is not None:
        assert guards.explain(found, args, kwargs)
    return found is None


def made(*args: Any, free: Mapping[str, Any], checks: tuple[str, ...] = (), **named: Any) -> GuardSet:
    return GuardSet((), args, {}, free=free, checks=[SizeCheck(text) for text in checks], writes=False, **named)


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
NUMBERS = (0, 1, 2, 3, 5, 8, -1, -3, -4, 2**40, 2**62, -(2**63), 2**63 - 1)


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("text", CHECKS)
def test_checks(text: str, outcome: bool) -> None:
    free = {"args[0]": TensorForm(("B", 2)), "args[1]": NumberForm("n")}
    guards = GuardSet((), (torch.ones(4, 2), 3), {}, free=free, checks=[SizeCheck(text, outcome)], writes=False)
    for n in NUMBERS:
        for b in (2, 4, 7, 8):
            if text == "B % n == 0" and n == 0:
                # It is neither true nor false.
                assert not holds(guards, torch.ones(b, 2), n)
                continue
            assert holds(guards, torch.ones(b, 2), n) == (CHECKS[text](n, b) == outcome), (n, b)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3.0, float("nan"), float("inf")])
def test_checks_on_floats(value: float) -> None:
    for text in ("f >= 0", "f < 1.5", "f != f", "2 > f"):
        guards = made(torch.ones(2), 0.5, free={"args[1]": NumberForm("f")}, checks=(text,))
        assert holds(guards, torch.ones(2), value) == bool(eval(text, {"f": value})), text


def test_a_check_tells_its_line_and_its_values() -> None:
    where = Span("model.py", 7, 0)
    free = {"args[0]": TensorForm(("B", 2)), "args[1]": NumberForm("n")}
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
    free = {
        "args[0]['a'][0]": TensorForm(("B", 3)),
        "args[0]['a'][1]": NumberForm("n"),
        "kwargs['scale']": NumberForm(),
    }
    guards = GuardSet((), args, kwargs, free=free, checks=[SizeCheck("n == 2 * B")], writes=False)
    assert holds(guards, {"a": [torch.ones(5, 3), 10]}, scale=-1.0)
    assert not holds(guards, {"a": [torch.ones(5, 3), 11]}, scale=-1.0)
    assert not holds(guards, {"a": (torch.ones(5, 3), 10)}, scale=-1.0)
    assert not holds(guards, {"a": [torch.ones(5, 3), 10]}, scale=1)


def test_shared_memory_is_told_at_each_size() -> None:
    free = {"args[0]": TensorForm(("B",)), "args[1]": TensorForm(("C",))}
    guards = GuardSet((), (torch.ones(4), torch.ones(4)), {}, free=free, writes=True)
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
