"""What `explain` says of free sizes and numbers: origins, ranges, guards with lines, why calls compiled anew."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.sizes.size_texts import readable


def either_sign(x: Any, n: Any) -> Any:
    y = x**2
    return (n + 1) * y if n >= 0 else y / n


def by_eight(x: Any) -> Any:
    if x.shape[0] % 8 == 0:
        return x.view(-1, 8).sum(1)
    return x.sum(1)


def called(f: Any, *calls: tuple[Any, ...], **options: Any) -> smelt.Report:
    compiled = smelt.compile(f, **options)
    for call in calls:
        compiled(*call)
    return smelt.explain(compiled)


def test_symbols_with_origin_and_range() -> None:
    x = torch.randn(3, 4)
    report = called(either_sign, (x, 2), (x, 3), (x, -3))
    assert [
        (row["entry"], row["symbol"], row["represents"], row["range"], row["at capture"]) for row in report.symbols
    ] == [
        (1, "n", "args[1]", "any", 3),
        (2, "n", "args[1]", "any", -3),
    ]
    sizes = called(lambda x: x * 2, (x,), dynamic_shapes={"x": {0: smelt.Dim("B", min=2, max=64), 1: "S"}}).symbols
    assert [(row["symbol"], row["represents"], row["range"]) for row in sizes] == [
        ("B", "args[0].shape[0]", "2..64"),
        ("S", "args[0].shape[1]", "1.."),
    ]


def test_guards_with_the_line_that_asked() -> None:
    x = torch.randn(3, 4)
    report = called(either_sign, (x, 2), (x, 3), (x, -3))
    checks = {(row["entry"], row["guard"]): row["where"] for row in report.guards if row["kind"] == "check"}
    assert set(checks) == {(1, "n >= 0"), (2, "n <= -1")}
    assert all("test_explain_sizes.py" in where and "either_sign" in where for where in checks.values())
    texts = [row["guard"] for row in called(by_eight, (torch.randn(16, 2),), dynamic=True).guards]
    assert any(text.replace(" ", "") in ("B%8==0", "not(B%8!=0)") for text in texts), texts


def test_why_a_call_compiled_anew() -> None:
    x = torch.randn(3, 4)
    report = called(either_sign, (x, 2), (x, 3), (x, -3))
    why = [row["why"] for row in report.graphs]
    assert why[0] == "the first call of its kind"
    assert why[1] == "value of args[1] was 2, now 3"
    assert "n >= 0 does not hold for n = -3 (args[1])" in why[2] and "either_sign" in why[2]


def test_what_is_fixed_and_why() -> None:
    def f(x: Any) -> Any:
        if x.shape[0] == 4:
            return x * 2
        return x + 1

    (row,) = called(f, (torch.randn(4),), dynamic=True).symbols
    assert row["note"].startswith("must be 4, because of") and "test_explain_sizes.py" in row["note"]


def test_plans_are_counted() -> None:
    calls = [(torch.randn(rows, 6),) for rows in (3, 5, 7, 5)]
    report = called(lambda x: torch.softmax(x, -1), *calls)
    assert report.graphs[1]["plans"].startswith("2 made, 0 of them lowered alone, found 1 times; 1 for many sizes")
    assert {row["sizes"] for row in report.kernels if row["entry"] == 1} == {"B=5", "B=7"}


def test_reports_are_plain_data_and_text() -> None:
    x = torch.randn(3, 4)
    report = called(either_sign, (x, 2), (x, 3))
    assert json.loads(json.dumps(report.to_dict()))["symbols"][0]["symbol"] == "n"
    assert "Sizes and numbers" in str(report)
    assert "none is free" in str(called(either_sign, (x, 2)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-n <= 0", "n >= 0"),
        ("0 <= n", "n >= 0"),
        ("S - 512 <= 0", "S <= 512"),
        ("-B*S + 2 <= 0", "B * S >= 2"),
        ("2*B - 3*S + 4 <= 0", "2 * B + 4 <= 3 * S"),
        ("((n) % 8) == 0", "n % 8 == 0"),
        ("f - g <= 0", "f - g <= 0"),
        ("floordiv(n, 2.0) < 3", "floordiv(n, 2.0) < 3"),
    ],
)
def test_comparisons_as_a_person_writes_them(text: str, shown: str) -> None:
    assert readable(text, {"f", "g"}) == shown


def test_readable_says_the_same() -> None:
    for text in (
        "-n <= 0",
        "-B*S + B - 3 <= 0",
        "2*B - 3*S + 4 <= 0",
        "-2*B + 7 != 0",
        "B - S == 0",
        "0 <= n",
        "3 != B",
        "-1 < S",
        "-B - S - 3 < 0",
    ):
        for n in range(-4, 5):
            for m in range(-4, 5):
                names = {"n": n, "B": n, "S": m}
                assert eval(text, names.copy()) == eval(readable(text), names.copy()), (text, n, m)


def test_the_calls_of_an_entry_are_all_those_it_answered() -> None:
    report = called(either_sign, *((torch.ones(3), n) for n in (2, 2, 3, 4, 5)))
    assert [row["calls"] for row in report.to_dict()["graphs"]] == [2, 3]


def test_what_changed_at_each_call_is_one_row() -> None:
    def f(x: Any, cache: Any) -> Any:
        return x + cache[0][0].sum() + cache[0][1].sum()

    calls = [(torch.ones(2), {0: (torch.ones(n, 3), torch.ones(n))}) for n in range(2, 8)]
    report = called(f, *calls, (torch.ones(3), {0: calls[-1][1][0]}), dynamic=False)
    rows = {row["guard"]: row["times"] for row in report.recompiles}
    assert rows == {
        "shape of args[1][0][0] took 6 values, (2, 3) first and (7, 3) last": 15,
        "shape of args[0] was (2,), now (3,)": 6,
    }
