"""Triton kernels compiled for three architectures without a GPU, and what their PTX must and must not hold."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from smelt.codegen.kernels.nest import Expr, Nest, Reduce, Ref, Store
from smelt.codegen.kernels.operations import KERNEL_OPS, KernelOp
from smelt.codegen.triton.compile import ARCHITECTURES, compile_cuda, stage_texts
from smelt.codegen.triton.emit import emit_triton
from smelt.codegen.triton.layout import Form
from smelt.diag import InternalError, SmeltError
from smelt.ir import DType
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.machine.cache import CodeCache
from tests.kernels.nests import F32, at, const, layer_norm, load, nest, op, pointwise, reduce_rows, softmax
from tests.kernels.test_nest_emission import _embedding as embedding


def chain(dtype: DType) -> Nest:
    """x * y + x, two operators: each rounds."""
    x = load(0, 1, dtype=dtype)
    return pointwise([dtype] * 3, (4096,), op("add", op("mul", x, load(1, 1, dtype=dtype)), x))


def ptx(made: Nest, arch: int = 90) -> str:
    """The PTX of a nest's kernel."""
    return stage_texts(emit_triton(made).source, arch)["ptx"]


@pytest.mark.spread(3)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("form", ["rows", "chunk", "serial"])
def test_for_three_architectures(form: Form, arch: int) -> None:
    source = emit_triton(layer_norm(64, 1024), form).source
    code = compile_cuda([source], arch)[source.name]
    assert code.cubin.startswith(b"\x7fELF") and source.name.encode() in code.cubin
    assert (code.arch, code.warps, code.parameters) == (arch, source.warps, source.parameters)
    assert len(code.multiples) == len(code.parameters)
    assert CudaCode.from_bytes(code.to_bytes()) == code


@pytest.mark.parametrize("dtype", [F32, DType.F64, DType.BF16, DType.F16], ids=str)
def test_a_product_and_a_sum_are_not_contracted(dtype: DType) -> None:
    text = ptx(chain(dtype))
    assert "fma" not in text and "mul" in text and "add" in text
    if dtype.is_half:
        # Each of the two rounds to the narrow type.
        narrow = "bf16x2" if dtype is DType.BF16 else "f16x2"
        assert f"mul.rn.{narrow}" in text and f"add.rn.{narrow}" in text


def test_divisions_roots_and_extremes() -> None:
    text = ptx(pointwise([F32] * 3, (4096,), op("div", load(0, 1), op("sqrt", load(1, 1)))))
    assert "div.rn.f32" in text and "sqrt.rn.f32" in text and ".approx" not in text and ".ftz" not in text
    text = ptx(pointwise([F32] * 3, (4096,), op("max", load(0, 1), load(1, 1))))
    assert "max.NaN.f32" in text
    assert "max.NaN.f32" in ptx(reduce_rows("max", 64, 1024))
    text = ptx(pointwise([F32] * 3, (4096,), op("fmax", load(0, 1), load(1, 1))))
    assert "max.f32" in text and "NaN" not in text


def test_hints_make_wide_loads() -> None:
    wide, narrow = chain(F32), pointwise([F32] * 3, (4099,), op("add", load(0, 1), load(1, 1)))
    assert "ld.global.v4" in ptx(wide) and "st.global.v4" in ptx(wide)
    # A number of elements that nothing divides stops no wide load within it, but the mask of each element is its own.
    assert "ld.global.v4" not in ptx(narrow)
    kernel = emit_triton(wide, is_aligned=False)
    assert "ld.global.v4" not in stage_texts(kernel.source, 90)["ptx"]
    rows = softmax(64, 1024)
    assert "ld.global.v4" in ptx(rows) and "ld.global.v4" not in ptx(softmax(64, 1023))


def test_exp_is_libdevices_with_denormals() -> None:
    text = ptx(pointwise([F32] * 2, (4096,), op("exp", load(0, 1))))
    # Two steps of a fused multiply-add before the power of two.
    assert "ex2.approx" in text and "fma.rn.f32" in text
    assert ".ftz.f32" not in text.replace("ex2.approx.ftz.f32", "")


@pytest.mark.spread(80)
@pytest.mark.parametrize(
    ("record", "dtype"),
    [(r, d) for r in KERNEL_OPS if r.name not in ("cast", "select") for d in sorted(r.operands, key=str)],
    ids=lambda p: p.name if isinstance(p, KernelOp) else str(p),
)
def test_every_operation_compiles(record: KernelOp, dtype: DType) -> None:
    result = DType.BOOL if record.gives_bool else dtype
    args: list[Expr] = [load(k, 1, dtype=dtype) for k in range(record.arity)]
    made = pointwise([*[dtype] * record.arity, result], (4096,), op(record.name, *args, dtype=result))
    source = emit_triton(made).source
    assert source.name in compile_cuda([source], 90)


@pytest.mark.spread(27)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "argmin", "argmax_element", "any"])
@pytest.mark.parametrize("dtype", [F32, DType.F64, DType.BF16, DType.I64, DType.U8, DType.BOOL], ids=str)
def test_every_reduction_compiles(kind: str, dtype: DType, arch: int) -> None:
    if kind == "any":
        dtype = DType.BOOL
    if (dtype is DType.BOOL) != (kind == "any"):
        dtype = F32
    sources = [emit_triton(reduce_rows(kind, 40, 300, dtype), form).source for form in ("rows", "chunk", "serial")]
    assert len(compile_cuda(sources, arch)) == 3


def test_an_error_word_is_stored_to() -> None:
    source = emit_triton(embedding(50, 64, 24)).source
    assert source.can_fail and source.parameters[3] == ("error", "*i32")
    assert "st.global" in stage_texts(source, 90)["ptx"]


def test_long_tensors_count_with_64_bits() -> None:
    n = 2**31
    source = emit_triton(pointwise([F32] * 2, (n,), op("neg", load(0, 1)))).source
    assert source.is_wide and source.parameters[-1] == ("w0", "i64")
    assert "mul.wide" in stage_texts(source, 90)["ptx"] or "s64" in stage_texts(source, 90)["ptx"]
    assert not emit_triton(pointwise([F32] * 2, (n // 2,), op("neg", load(0, 1)))).source.is_wide


# --- the cache


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    source = emit_triton(chain(F32)).source
    made = compile_cuda([source, source], 90, CodeCache(str(tmp_path)))
    assert list(made) == [source.name]
    # Another process finds it, and needs no Triton.
    code = f"""
import sys
sys.modules["triton"] = None
from smelt.codegen.triton.compile import compile_cuda
from smelt.codegen.triton.emit import emit_triton
from smelt.diag import SmeltError
from smelt.runtime.machine.cache import CodeCache
from tests.triton.test_compiled import chain
from smelt.ir import DType
cache = CodeCache({str(tmp_path)!r})
source = emit_triton(chain(DType.F32)).source
print(len(compile_cuda([source], 90, cache)[source.name].cubin))
try:
    compile_cuda([source], 80, cache)
except SmeltError as error:
    print(error.code, error.fix)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[0] == str(len(made[source.name].cubin)), done.stderr
    assert lines[1].startswith("S0305 install it: pip install --no-deps triton==")


def test_what_triton_refuses_is_an_error_with_the_text() -> None:
    source = emit_triton(chain(F32)).source
    broken = replace(source, text=source.text.replace("tl.load(b0 + i0", "tl.load(b0 + no_such"))
    with pytest.raises(InternalError, match="sm_90") as caught:
        compile_cuda([broken], 90)
    assert "no_such" in str(caught.value)


def test_bytes_that_are_no_kernel() -> None:
    for data in (b"", b"\x00" * 40, b"\x02\x00\x00\x00{}not elf"):
        with pytest.raises(ValueError, match="no kernel"):
            CudaCode.from_bytes(data)


def test_reductions_of_half_floats_accumulate_in_f32() -> None:
    body = [Reduce("s", "sum", op("cast", load(0, 512, 1, dtype=DType.BF16), dtype=F32), F32)]
    made = nest([DType.BF16, F32], (64,), (512,), [*body, Store(1, at(1, 0), op("mul", Ref("s", F32), const(0.5)))])
    text = ptx(made)
    assert "add.f32" in text or "add.rn.f32" in text
    assert "add.bf16" not in text


def test_another_version_of_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.codegen.triton.compile.TRITON", "3.5.0")
    source = emit_triton(chain(F32)).source
    with pytest.raises(SmeltError, match=r"need Triton 3\.5\.0"):
        compile_cuda([source], 90)
