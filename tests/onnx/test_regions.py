"""Branches, loops, lists and what must hold in graphs, as If, Loop, scan outputs, sequences and checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from tests.control.generate import Generator, inputs
from tests.onnx.harness import Session, assert_alike, exported, model_of, onnx


def _compare(seed: int) -> None:
    text = Generator(seed).text()
    graph, given = parse(text), inputs(seed)
    model = model_of(graph)
    assert not model.refused, (seed, model.refused)
    wanted = evaluate(graph, [t.clone() for t in given])
    found = Session(model.message({})).run({f"in{i}": t for i, t in enumerate(given)})
    try:
        assert_alike(found, wanted)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}:\n{text}") from error


def test_random_graphs() -> None:
    for seed in range(25):
        _compare(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(5))
def test_many_random_graphs(part: int) -> None:
    for seed in range(1000 + 200 * part, 1200 + 200 * part):
        _compare(seed)


# --- programs


def gathered(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    out = []
    for i in range(int(n)):
        x = torch.tanh(x) + i
        out.append(x)
    return torch.stack(out, 1), len(out)


def gathered_behind_some(x: Tensor, n: Tensor) -> Tensor:
    out = [x * 2, x + 1]
    for i in range(int(n)):
        out.append(x * i)
    return torch.cat(out, 1)


def appended_sometimes(x: Tensor, n: Tensor) -> tuple[int, Tensor]:
    out = [x]
    for i in range(int(n)):
        if (x * i).sum() > 3:
            out.append(x * i)
    return len(out), out[-1]


def numbers(x: Tensor, n: Tensor) -> tuple[int, float, list[float]]:
    found, k, total = [], 0, 0.0
    while k * k < n:
        k += 1
        total = total / 2 + x.sum().item() // k
        found.append(total % 3)
    return k - 7 // 2, total, found


def nested(x: Tensor, n: Tensor) -> Tensor:
    for i in range(int(n)):
        k = 0
        while x.sum() < i - 0.3 and k < 4:
            x, k = x + 0.5, k + 1
        if x.sum() > 2:
            x = x - x.mean()
            for _ in range(k):
                x = x * 1.5
        elif k > 1:
            x = x.sin()
    return x


def swapped(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x, x + 1
    for _ in range(int(n)):
        a, b = b, a * 2
    return a, b


def raised(x: Tensor, n: Tensor) -> Tensor:
    for i in range(int(n)):
        x = x * 2
        if x.abs().max() > 6 and i > 1:
            raise ValueError(f"step {i} is at {x.max()}")
    return x


def written(x: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros(6, 2)
    for i in range(int(n)):
        out[i] = x[0] * i
        out[i, 1] += 3
    return out


def of_masks(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, int]:
    y = x.clone()
    y[x > 0] = 7
    picked = x[x > n]
    return y, picked * 2, picked.numel()


def listed(x: Tensor, n: Tensor) -> tuple[list[Tensor], int]:
    out = [x]
    for i in range(int(n)):
        assert x.sum() < 6 + i
        x = x + 1
        out.append(x)
    return out, len(out)


def dividing(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    return torch.arange(4) // n, 12 // int(n)


_X = torch.tensor([[0.5, -1.0], [2.0, 0.25], [-0.5, 1.5]])
_COUNTS = (3, 0, 1, 5)
PROGRAMS: dict[Callable[..., Any], tuple[int, ...]] = {
    gathered: (3, 0, 1, 5), gathered_behind_some: _COUNTS, appended_sometimes: _COUNTS, numbers: (9, 0, 30),
    nested: _COUNTS, swapped: _COUNTS, raised: _COUNTS, written: _COUNTS, of_masks: (0, 1, -9), listed: (1, 0, 2),
    dividing: (3, -2, 0),
}  # fmt: skip


def _outcome(run: Callable[[], Any]) -> list[Any] | None:
    """What a call gives, flat; None for an error."""
    try:
        found = run()
    except Exception:
        return None
    return list(found) if isinstance(found, (list, tuple)) else [found]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_are_loops_and_branches(program: Callable[..., Any], tmp_path: Path) -> None:
    with torch.no_grad():
        model = exported(smelt.script(program, example_inputs=[(_X, torch.tensor(3))]), tmp_path)
        session = Session(model.path)
        for count in PROGRAMS[program]:
            given = _X.clone(), torch.tensor(count)
            wanted = _outcome(lambda given=given: program(*given))
            found = _outcome(lambda given=given: session.run(dict(zip(model.inputs, given, strict=True))))
            assert (wanted is None) == (found is None), (count, wanted, found)
            if wanted is not None and found is not None:
                assert_alike(found, wanted)


def _kinds(graph: Any) -> list[str]:
    found = []
    for node in graph.node:
        found.append(node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _kinds(attribute.g)
    return found


def test_a_list_that_a_loop_fills_is_a_scan_output(tmp_path: Path) -> None:
    with torch.no_grad():
        model = exported(smelt.script(gathered, example_inputs=[(_X, torch.tensor(3))]), tmp_path)
    graph = onnx.load(model.path).graph
    assert not [kind for kind in _kinds(graph) if "Sequence" in kind]
    (loop,) = [node for node in graph.node if node.op_type == "Loop"]
    body = loop.attribute[0].g
    assert len(body.output) > len(body.input) - 1  # one more than the loop carries


def test_a_path_holds_for_its_data_only(tmp_path: Path) -> None:
    def path(x: Tensor) -> Any:
        return {"big": x * 2} if x.sum() > 0 else {"small": x, "sum": x.sum()}

    with torch.no_grad(), pytest.warns(smelt.SmeltWarning):
        model = exported(smelt.trace(path, (_X,)), tmp_path)
    session = Session(model.path)
    assert_alike(session.run({"x0": _X}), [_X * 2])
    with pytest.raises(Exception, match=r"must hold: the value that the program was captured for, True at .*path"):
        session.run({"x0": -_X})
