"""Lists of known lengths that data put in order: one graph for all orders, as long as nobody can tell a copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.staging.flow import paths

DATA = ([3.0, 1.0, 2.0, 1.0], [0.0, 5.0, -1.0, 5.0], [-2.0, -2.0, 9.0, 1.0], [float("nan"), 1.0, 0.0, float("nan")])


def beam(x: torch.Tensor, width: int) -> Any:
    beams: list[Any] = [((), 0.0)]
    for step in range(3):
        found = []
        scores, tokens = (x + step).sin().topk(3)
        for tokens_before, before in beams:
            for score, token in zip(scores.tolist(), tokens.tolist(), strict=True):
                found.append(((*tokens_before, token), before + score))
        found.sort(key=lambda c: -c[1] / len(c[0]))
        beams = found[:width]
    return beams


def stable(x: torch.Tensor) -> Any:
    numbers = x.tolist()
    by_first = sorted(zip(numbers, "abcd", strict=True), key=_first)
    zeros = sorted([n * 0 for n in numbers]), sorted([-n * 0 for n in numbers], reverse=True)
    return (
        sorted(range(4), key=lambda i: numbers[i], reverse=True),
        by_first,
        zeros,
        sorted(zip("dcba", numbers, strict=True)),
    )


def _first(pair: Any) -> Any:
    return pair[0]


def by_tuples(x: torch.Tensor) -> Any:
    rows = [{"at": i, "score": v} for i, v in enumerate(x.tolist())]
    rows.sort(key=lambda row: (row["score"] > 0, -row["at"]))
    return rows


def picked_grows(x: torch.Tensor) -> Any:
    rows = [([i], v) for i, v in enumerate(x.tolist())]
    rows.sort(key=_second)
    rows[0][0].append(rows[1][0][0])
    return rows


def _second(pair: Any) -> Any:
    return pair[1]


def alias_grows(x: torch.Tensor) -> Any:
    rows = []
    for i, v in enumerate(x[:3].tolist()):
        row = [i]
        rows.append((row, v))
    rows.sort(key=_second)
    row.append(7)
    return rows


def copy_grows(x: torch.Tensor) -> Any:
    rows = [[v] for v in x[:3].tolist()]
    best = sorted(rows, key=_first)[0]
    best.append(7.0)
    return rows


def asks_identity(x: torch.Tensor) -> Any:
    rows = [(v, i) for i, v in enumerate(x[:3].tolist())]
    last = rows[-1]
    rows.sort(key=_first)
    return 1 if rows[0] is last else 2


def writes_tensors(x: torch.Tensor) -> Any:
    parts = [x[i : i + 1] + 1 for i in range(3)]
    ordered = sorted(parts, key=lambda part: part.sum())
    ordered[0].mul_(-3)
    return torch.cat(parts), torch.cat(ordered)


@dataclass
class Found:
    score: float
    tokens: list[int]


def objects(x: torch.Tensor) -> Any:
    found = [Found(v, [i]) for i, v in enumerate(x.tolist())]
    found.sort(key=lambda f: f.score)
    found[0].score += 1.0
    found[1].tokens.append(5)
    return [(f.score, f.tokens) for f in found]


def _seen(fn: Any, *args: Any) -> str:
    return repr(fn(*args))  # NaN and kinds of numbers included


@pytest.mark.parametrize("program", [stable, by_tuples, picked_grows, objects], ids=lambda p: p.__name__)
def test_one_graph_has_all_orders(program: Any) -> None:
    compiled = smelt.compile(program)
    for data in DATA:
        x = torch.tensor(data)
        assert _seen(compiled, x) == _seen(program, x)
    (row,) = compiled.stats().rows
    assert row.entry is not None and row.entry.is_staged


def test_a_beam_search_in_python_is_one_graph() -> None:
    compiled = smelt.compile(beam)
    for data in DATA[:3]:
        x = torch.tensor(data)
        got, want = compiled(x, 2), beam(x, 2)
        assert [tokens for tokens, _ in got] == [tokens for tokens, _ in want]
        assert [score for _, score in got] == pytest.approx([score for _, score in want])
    (row,) = compiled.stats().rows
    assert row.entry is not None and row.entry.is_staged
    assert not [node for node in row.entry.graph.walk() if node.op == "if"]


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", [alias_grows, copy_grows, asks_identity, writes_tensors], ids=lambda p: p.__name__)
def test_what_a_copy_would_not_show_is_as_in_eager(program: Any) -> None:
    compiled = smelt.compile(program)
    for data in DATA[:3]:
        x = torch.tensor(data)
        assert _seen(compiled, x) == _seen(program, x)


def unlike(x: torch.Tensor) -> Any:
    rows = [([0] * i, v) for i, v in enumerate(x.tolist())]
    rows.sort(key=_second)
    return rows


class Ranked:
    def __init__(self, score: float) -> None:
        self.score = score

    def __lt__(self, other: Ranked) -> bool:
        return self.score < other.score


def ranked(x: torch.Tensor) -> Any:
    return [r.score for r in sorted(map(Ranked, x.tolist()))]


@pytest.mark.parametrize(
    ("program", "most", "why"),
    [
        (unlike, 2, "a list of 6 items is put in an order that depends on data (test_ordering.py:{line} in unlike); "
                    "each order would be a separate path, 720 in all, for the list holds items of several lengths"),
        (ranked, 30, "the program has too many paths (test_ordering.py:{line} in ranked)"),
    ],
    ids=["unlike", "ranked"],
)  # fmt: skip
def test_ways_that_multiply_are_given_up_early_and_told(
    program: Any, most: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_MULTIPLIED", 12)
    explored: list[Any] = []
    explore = paths.Paths._explore
    monkeypatch.setattr(paths.Paths, "_explore", lambda self, *a: (explored.append(a), explore(self, *a))[1])
    compiled = smelt.compile(program)
    for data in ([3.0, 1.0, 2.0, 5.0, 0.0, 4.0], [0.0, 1.0, -2.0, 3.0, 9.0, 8.0]):
        x = torch.tensor(data)
        assert _seen(compiled, x) == _seen(program, x)
    assert len(explored) <= most
    told = [row.entry.why_paths for row in compiled.stats().rows if row.entry is not None]
    line = program.__code__.co_firstlineno + (2 if program is unlike else 1)
    assert any(why.format(line=line) in text.replace(f"{Path(__file__).parent}/", "") for text in told), told
    assert "stay in tensors" in str(smelt.explain(compiled).to_dict())
