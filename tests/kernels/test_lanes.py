"""Every operation of the loop-nest language in every dtype against torch, on special values and all their pairs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from smelt.codegen.kernels.operations import DTYPES, OPS
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ELEMENTARY, ExprEmitter, is_supported
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag import InternalError
from smelt.ir import DType
from tests.kernels.machine import TORCH_DTYPE, machine_isas, run_op

ISAS = pytest.mark.parametrize("isa", machine_isas(), ids=lambda isa: isa.name)
Function = Callable[..., torch.Tensor]


def _fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Exactly: eager's gives NaN where the quotient overflows."""
    if not a.dtype.is_floating_point:
        return torch.fmod(a, b)
    pairs = zip(a.double().tolist(), b.double().tolist(), strict=True)
    nan = math.nan
    found = [nan if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0 else math.fmod(x, y) for x, y in pairs]
    return torch.tensor(found, dtype=torch.float64).to(a.dtype)


def _remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rest = _fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


TWO: dict[str, Function] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "idiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "rem": _remainder, "fmod": _fmod, "fmin": torch.fmin, "fmax": torch.fmax,
    "copysign": torch.copysign, "pow": torch.pow, "atan2": torch.atan2, "hypot": torch.hypot,
    "min": torch.minimum, "max": torch.maximum,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
}  # fmt: skip
ONE: dict[str, Function] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "isnan": torch.isnan, "isinf": torch.isinf,
    "signbit": torch.signbit, "not": torch.bitwise_not, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "round": torch.round, "frac": torch.frac, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "recip": torch.reciprocal,
    "exp": torch.exp, "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid, "sin": torch.sin,
    "log": torch.log, "expm1": torch.expm1, "atan": torch.atan,
}  # fmt: skip
INEXACT = {"pow", "atan2", "hypot", "sqrt", "rsqrt", "exp", "tanh", "erf", "sigmoid", "sin", "log", "expm1", "atan"}
TOLERANCE = {DType.F64: 5e-15, DType.F32: 4e-7, DType.F16: 2e-3, DType.BF16: 2.5e-2}


def _values(dtype: DType) -> torch.Tensor:
    kind = TORCH_DTYPE[dtype]
    if dtype is DType.BOOL:
        return torch.tensor([True, False])
    if dtype.is_floating:
        f = torch.finfo(kind)
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, math.inf, -math.inf, math.nan]
        special += [f.max, f.min, f.tiny, f.tiny / 4, -f.tiny / 4, 1 / 3, 100.3, -1e4, 1024.5, 1e-3, 255.0, -128.0]
        special += [f.max / 2, 12345.678, 8388607.5, 4194305.5, 1e-5]
        drawn = torch.randn(20, generator=torch.Generator().manual_seed(1)) * 10
        return torch.cat([torch.tensor(special, dtype=torch.float64).to(kind), drawn.to(kind)])
    i = torch.iinfo(kind)
    more = [-1, -2, -7, -100] if i.min < 0 else [200]
    return torch.tensor([0, 1, 2, 3, 7, i.max, i.min, i.max - 1, i.min + 1, 5, 100, 33, 63, 64, *more], dtype=kind)


def _pairs(dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
    values = _values(dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def _same(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> torch.Tensor:
    if not got.dtype.is_floating_point:
        return got == want
    same = (torch.isnan(got) & torch.isnan(want)) | ((got == want) & (torch.signbit(got) == torch.signbit(want)))
    if tolerance:
        # Eager makes some results below the normal range zero.
        tiny = torch.finfo(got.dtype).tiny * (1.2 if got.dtype is torch.bfloat16 else 0.01)
        near = (got.double() - want.double()).abs() <= tolerance * want.double().abs() + tiny
        same |= near & torch.isfinite(got)
    return same


def _operands(op: str, dtype: DType) -> tuple[torch.Tensor, ...]:
    if op not in TWO:
        return (_values(dtype),)
    a, b = _pairs(dtype)
    if op in ("idiv", "floordiv", "rem", "fmod") and not dtype.is_floating:
        good = b != 0
        if dtype is not DType.U8:
            good &= ~((b == -1) & (a == torch.iinfo(a.dtype).min))
        return a[good], b[good]
    if op in ("floordiv", "rem") and dtype.is_floating:
        # Beyond, eager's remainder is not one any more.
        quotient = (a.double() / b.double()).abs()
        good = ~(quotient >= 2.0 ** (10 if dtype.itemsize == 2 else 20)) | torch.isinf(a)
        return a[good], b[good]
    if op in ("min", "max", "fmin", "fmax"):
        good = ~((a == 0) & (b == 0))  # of two zeros eager gives either, by the position in its loop
        return a[good], b[good]
    return a, b


@pytest.mark.spread(10)
@ISAS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_torch(dtype: DType, isa: Isa) -> None:
    for op in sorted({**ONE, **TWO}):
        if not is_supported(op, dtype, isa):
            continue
        operands = _operands(op, dtype)
        if op == "erf" and dtype is DType.BF16:
            operands = (operands[0][(operands[0] - 1e-5).abs() > 1e-6],)  # eager's own is 2% off there
        want = (TWO.get(op) or ONE[op])(*operands)
        result = DType.BOOL if OPS[op].gives_bool else dtype
        assert want.dtype == TORCH_DTYPE[result], op
        # With one lane at a time, the sets between the best one and the baseline are given the best one's text.
        for lanes in (isa.f32_lanes,) if isa in machine_isas()[1:-1] else (1, isa.f32_lanes):
            got = run_op(op, result, operands, isa, lanes)
            same = _same(got, want, TOLERANCE.get(dtype, 0.0) if op in INEXACT else 0.0)
            wrong = (~same).nonzero().flatten().tolist()[:3]
            assert not wrong, (op, lanes, [([float(x[i]) for x in operands], got[i], want[i]) for i in wrong])


@pytest.mark.spread(6)
@ISAS
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source: DType, isa: Isa) -> None:
    for target in DTYPES:
        x = _values(source)
        if source.is_floating and target.is_integral:
            info = torch.iinfo(TORCH_DTYPE[target])
            wide = x.double()
            x = x[torch.isfinite(x) & (wide > max(info.min, -(2**31)) - 1) & (wide < min(info.max, 2**31) + 1)]
        for lanes in (1, isa.f32_lanes):
            got, want = run_op("cast", target, [x], isa, lanes), x.to(TORCH_DTYPE[target])
            assert bool(_same(got, want, 0.0).all()), (target, lanes, got, want)


@ISAS
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_every_narrow_float_is_kept_and_every_float_rounds_as_torch(dtype: DType, isa: Isa) -> None:
    kind = TORCH_DTYPE[dtype]
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(kind)
    kept = run_op("cast", dtype, [every], isa, isa.f32_lanes)
    assert bool(_same(kept, every, 0.0).all())
    halves = every.float()
    between = torch.cat([halves * 1.0004, (halves[1:] + halves[:-1]) / 2, torch.nextafter(halves, halves * 2)])
    rounded = run_op("cast", dtype, [between], isa, isa.f32_lanes)
    assert bool(_same(rounded, between.to(kind), 0.0).all())


def test_bfloat_nan_has_eagers_bits() -> None:
    isa = machine_isas()[0]
    x = torch.full((64,), math.nan)
    assert torch.equal(run_op("cast", DType.BF16, [x], isa, 16).view(torch.int16), x.bfloat16().view(torch.int16))


@ISAS
def test_fma_select_and_power_by_sign(isa: Isa) -> None:
    a, b = (t[torch.isfinite(t) & (t.abs() < 1e18)] for t in _pairs(DType.F32))
    a, b = a[: min(len(a), len(b))], b[: min(len(a), len(b))]
    c = b.flip(0)
    got = run_op("fma", DType.F32, [a, b, c], isa, isa.f32_lanes)
    scale = (a.double() * b.double()).abs() + c.double().abs()
    assert bool(((got.double() - (a.double() * b.double() + c.double())).abs() <= 2e-7 * scale + 1e-44).all())
    chosen = run_op("select", DType.F32, [a > b, a, b], isa, isa.f32_lanes)
    assert torch.equal(chosen, torch.where(a > b, a, b))


def test_each_operation_but_one_has_vector_code() -> None:
    assert {op.name for op in OPS.values() if not op.operands} == {"lgamma"}


def test_an_unknown_operation_is_refused() -> None:
    fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
    with pytest.raises(InternalError, match="lgamma"):
        ExprEmitter(fn, machine_isas()[0], 4).emit("lgamma", DType.F32, ["%x"])


@pytest.mark.spread(4)
@ISAS
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16], ids=str)
def test_functions_that_are_called_give_the_bits_of_those_written_out(isa: Isa, dtype: DType) -> None:
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 1e5, -1e6, 88.73, 0.5, 1e22]
    x = torch.cat([torch.linspace(-9, 9, 500), torch.tensor(special)]).to(TORCH_DTYPE[dtype])
    names = [n for n, o in OPS.items() if o.family in ELEMENTARY and is_supported(n, dtype, isa)]
    assert len(names) > 20
    for name in names:
        operands = [x, x.flip(0)][: OPS[name].arity]
        for lanes in (1, isa.f32_lanes):
            written, called = (run_op(name, dtype, operands, isa, lanes, calls=calls) for calls in (False, True))
            assert torch.equal(written.view(torch.uint8), called.view(torch.uint8)), (name, lanes)
