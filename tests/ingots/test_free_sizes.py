"""Programs whose sizes are free: natively at the sizes that the file has native code for, compiled anew at others."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.runtime.ingot.free_sizes import read_expr, value_of
from smelt.runtime.ingot.json_text import Part
from smelt.runtime.ingot.load import load
from smelt.runtime.ingot.manifest import FORMAT
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
    assert FORMAT == 3
