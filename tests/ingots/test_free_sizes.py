"""Programs whose sizes are free: natively at the sizes that the file has native code for, compiled anew at others."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.runtime.ingot.free_sizes import read_expr, value_of
from smelt.runtime.ingot.load import load
from smelt.runtime.ingot.manifest import FORMAT
from smelt.runtime.ingot.size_table import Column, SizeTable
from smelt.runtime.ingot.texts import plan_json
from smelt.runtime.ingot.texts.json_text import Part
from tests.ingots.programs import Mlp
from tests.ingots.test_saved import agree, elsewhere


def pairs(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """Holds for an even number of rows, of which `y` has as many."""
    halves = x.view(x.shape[0] // 2, 2, 4).sum(1)
    if x.shape[0] > 6:
        halves = halves * 2
    return halves + y[:1], x.shape[0] * 3


def captured() -> Any:
    with torch.no_grad():
        n = smelt.Dim("n")
        return smelt.trace(pairs, arguments(4), dynamic_shapes={"x": {0: n}, "y": {0: n}})


def saved(program: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    program.save(buffer, **options)
    return buffer.getvalue()


def arguments(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4), torch.randn(rows, 4)


def test_sizes_with_native_code_need_no_compiler(tmp_path: Path) -> None:
    model = Mlp().eval()
    with torch.no_grad():
        program = smelt.trace(model, (torch.randn(3, 16),), dynamic_shapes={"x": {0: smelt.Dim("rows", max=64)}})
        program.save(tmp_path / "mlp", sizes=[{"rows": 32}, {"rows": 48}])
        calls = [((torch.randn(rows, 16),), {}) for rows in (32, 48)]
        is_native, why_not, results = elsewhere(tmp_path, {"mlp": (tmp_path / "mlp", calls)})["mlp"]
        assert is_native, why_not
        agree(results, [model(*args) for args, _ in calls])
        # A kernel that serves both is in the file once.
        entries = load(tmp_path / "mlp").manifest.entries
        one = load(saved(program, sizes=[{"rows": 32}])).manifest.entries
        assert entries["code/avx2/kernels.bin"].nbytes < 1.9 * one["code/avx2/kernels.bin"].nbytes


def test_other_sizes_are_compiled_anew() -> None:
    data = saved(captured())
    loaded, by_text = load(data), load(data, allow_native=False)
    with torch.no_grad():
        for rows in (4, 2, 6, 4):
            args = arguments(rows)
            for each in (loaded, by_text):
                agree(each(*args), pairs(*args))
    assert loaded.is_native and not by_text.is_native
    x, y = (t.requires_grad_() for t in arguments(6))
    loaded(x, y)[0].square().sum().backward()
    found, x.grad = x.grad, None
    pairs(x, y)[0].square().sum().backward()
    agree(found, x.grad)
    again = io.BytesIO()
    loaded.save(again)
    assert again.getvalue() == data


class Encoder(torch.nn.Module):
    """What an embedder does: positions, attention, a sum over tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words, self.places = torch.nn.Embedding(40, 32), torch.nn.Embedding(24, 32)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        weights = torch.softmax(self.q(h) @ self.k(h).transpose(1, 2) / 32**0.5, -1)
        return torch.nn.functional.gelu(self.out(weights @ self.v(h))).mean(1)


def test_all_sizes_of_a_range_need_no_compiler(tmp_path: Path) -> None:
    """Also those that plans take apart (1), in one file for all, with one copy of the weights."""
    model = Encoder().eval()
    batch, tokens = smelt.Dim("batch", max=3), smelt.Dim("tokens", max=24)
    with torch.no_grad():
        given = torch.randint(0, 40, (2, 9))
        program = smelt.trace(model, (given,), dynamic_shapes={"x": {0: batch, 1: tokens}})
        path = tmp_path / "encoder"
        program.save(path, sizes=[{"batch": range(1, 4), "tokens": range(1, 25)}], targets=["avx512", "avx2"])
        sizes = [(b, t) for b in (1, 2, 3) for t in range(1, 25)]
        calls = [((torch.randint(0, 40, size),), {}) for size in sizes]
        is_native, why_not, results = elsewhere(tmp_path, {"encoder": (path, calls)})["encoder"]
        assert is_native, why_not
        agree(results, [model(*args) for args, _ in calls])
        entry = load(path).entry("forward")
        assert all(entry.native(size) is not None for size in sizes)
        # The results are those of the program: the same kernels with the same words.
        native = load(path)
        for (args, _), size in zip(calls, sizes, strict=True):
            if 1 not in size:
                assert torch.equal(native(*args), program(*args))


def test_a_range_is_made_by_default_where_it_is_small() -> None:
    with torch.no_grad():
        rows = smelt.Dim("rows", max=64)
        x = torch.randn(3, 16)
        loaded = load(saved(smelt.trace(Mlp().eval(), (x,), dynamic_shapes={"x": {0: rows}}), targets=["avx2"]))
        wide = smelt.trace(Mlp().eval(), (x,), dynamic_shapes={"x": {0: smelt.Dim("rows", max=4096)}})
        assert load(saved(wide, targets=["avx2"])).entry("forward").sizes == ((3,),)
    assert ((1, 64),) in loaded.entry("forward").sizes


def figures(x: Tensor) -> tuple[Tensor, int, float]:
    """Of 2, 5 and 8 rows, the bounds and the middle of a range, the second is the same."""
    return x * 2, x.shape[0] % 3, x.shape[0] / 4


def power(x: Tensor) -> tuple[Tensor, int]:
    """Beyond 64 bits from 5 rows on."""
    return x * 2, x.shape[0] ** 30


def signed(x: Tensor) -> tuple[Tensor, float]:
    """-0.0 of an even number of rows, else 0.0."""
    return x * 2, (x.shape[0] % 2 - 1) * 0.0


@pytest.mark.parametrize("program", [figures, power, signed])
def test_numbers_that_follow_from_sizes(program: Any) -> None:
    with torch.no_grad():
        traced = smelt.trace(program, (torch.randn(5, 4),), dynamic_shapes=[{0: smelt.Dim("n", min=2, max=8)}])
        loaded = load(saved(traced, sizes=[{"n": range(2, 9)}], targets=["avx512", "avx2"]))
        for rows in range(2, 9):
            x = torch.randn(rows, 4)
            wanted = program(x)
            for found in (loaded(x), traced(x)):
                assert torch.equal(found[0], wanted[0]) and repr(found[1:]) == repr(wanted[1:])
        assert (((2, 8),) in loaded.entry("forward").sizes) == (program is not power)


class Sliced(torch.nn.Module):
    """Views of an argument and of state, one of them twice; behind a test on data, a view or a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(20, 4))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = x.shape[0]
        one = x[rows // 2 :, 1:]
        return one, one, x[-1], y.view(-1)[rows:].detach(), self.table[rows : 2 * rows], x * 2, either(x)


@smelt.script
def either(x: Tensor) -> Tensor:
    return x[1:] if x.sum() > 0 else x[1:] * 2


def test_views_that_follow_from_sizes() -> None:
    """They are views of the very tensors, with the strides that the program's have."""
    model = Sliced()
    with torch.no_grad():
        dims = [{0: smelt.Dim("n", min=2, max=8)}] * 2
        traced = smelt.trace(model, arguments(5), dynamic_shapes=dims)
        loaded = load(saved(traced, sizes=[{"n": range(2, 9)}], targets=["avx512", "avx2"]))
        assert set(loaded.entry("forward").sizes) == {((2, 8),)}
        for rows in range(2, 9):
            x, y = arguments(rows)
            for given in (x.abs(), -x.abs()):
                found, wanted = loaded(given, y), model(given, y)
                assert found[0] is found[1]
                for made, own in zip(found, wanted, strict=True):
                    assert torch.equal(made, own) and made.stride() == own.stride()
                    assert (made._base is given) == (own._base is given) and (made._base is y) == (own._base is y)
                assert found[4]._base is loaded.table
    assert loaded.is_native


def test_sizes_beyond_a_range_are_compiled_anew() -> None:
    with torch.no_grad():
        program = captured()
        data = saved(program, sizes=[{"n": range(2, 5)}])
        loaded = load(data)
        for rows in (2, 4, 6):
            args = arguments(rows)
            agree(loaded(*args), pairs(*args))
            assert (loaded.entry("forward").native((rows,)) is not None) == (rows < 6)
        for sizes in ({"n": range(7, 9)}, {"n": range(0)}, {"n": range(2, 6, 2)}, {"n": range(1 << 20)}):
            with pytest.raises(smelt.SmeltError, match="cannot be made for"):
                saved(program, sizes=[sizes])


def test_columns_are_what_was_put_in() -> None:
    draw = random.Random(5)
    for _ in range(200):
        numbers = sorted({0, *draw.sample(range(200), draw.randint(1, 60))})
        step = draw.choice((0, 1, -7, 64))
        values: dict[int, int | float] = {
            n: draw.choice((n * step, 5, n // 8, draw.randint(-9, 9), 0.5 * n)) for n in numbers
        }
        column = Column.of(values)
        again = Column.read(Part(json.loads(json.dumps(column.written())), "a plan"), 200)
        for number, value in values.items():
            assert column.at(number) == again.at(number) == value
            assert type(column.at(number)) is type(again.at(number)) is type(value)


def test_tables_that_are_none_are_refused() -> None:
    fine = {"low": [1], "count": [4], "taken": [[0, 1, 0]], "shares": [[0, 1, 0]], "columns": [[[0, 7, 1]]]}
    table = SizeTable.read(Part(fine, "a plan"))
    assert table.words(3) == (9,) and table.holds(4) and not table.holds(5) and not table.holds(0)
    for change in (
        {"low": [1, 1]}, {"low": [-1]}, {"count": [0]}, {"count": [1 << 40]}, {"taken": [[0, 0, 0]]}, {"taken": []},
        {"taken": [[1, 1, 0]]}, {"columns": [[[0, 7, 1], [0, 7, 1]]]}, {"columns": [[[0, "0x1p0", 1]]]},
        {"columns": [[[0, 1 << 64, 1]]]}, {"columns": [[[4, 7, 1]]]}, {"columns": [[]]}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises(smelt.PackageError):
            SizeTable.read(Part(fine | change, "a plan"))
    for word in ({"Word": [[[1, 1]], 0, False]}, {"Word": [[[0, 1]], 0]}, {"Word": [[0], 0, False]}, {"Use": 0}):
        with pytest.raises(smelt.PackageError):
            plan_json._Reader(1, [], lambda index: print, 1).number(Part(word, "a plan"))


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (arguments(5), "saved for"),  # not even
        (arguments(8), "saved for"),  # the other side of the test
        ((torch.randn(4, 4), torch.randn(2, 4)), r"args\[1\] has sizes \[2, 4\]"),
        ((torch.randn(4), torch.randn(4, 4)), r"args\[0\] has sizes"),
    ],
)
def test_sizes_that_it_is_not_for_are_refused(args: tuple[Tensor, Tensor], names: str) -> None:
    with pytest.raises(smelt.CaptureError, match=names):
        load(saved(captured(), targets=[]))(*args)


def test_sizes_to_compile_for_must_be_sizes_of_the_program() -> None:
    for sizes in ({"n": 5}, {"m": 4}, {"n": 8}):
        with pytest.raises(smelt.SmeltError, match="cannot be made for"):
            saved(captured(), sizes=[sizes])


def test_a_free_number_is_refused() -> None:
    with torch.no_grad():
        program = smelt.trace(lambda x, k: x * k, (torch.ones(3), 2), dynamic_shapes={"k": smelt.Dim("k")})
    with pytest.raises(smelt.PackageError, match="number k is free"):
        saved(program)


def test_expressions_of_a_file_stay_small() -> None:
    def read(value: Any) -> Any:
        return read_expr(Part(value, "manifest.json"), frozenset(("n",)))

    assert value_of(read(["max", ["-", "n", 9], ["%", "n", 4]]), {"n": 7}) == 3
    for value in (["//", "n", 0], ["*", "n", ["*", "n", 1 << 62]], ["ceil_div", 1, ["%", "n", 7]]):
        assert value_of(read(value), {"n": 7}) is None
    for value in ("m", ["**", "n", 9], ["+", "n"], ["+", "n", 1, 1], [], [["+"], 1, 2], None, 1.5, {"+": 1}, 1 << 63):
        with pytest.raises(smelt.PackageError):
            read(value)


def test_the_format_has_a_number() -> None:
    assert FORMAT == 4
