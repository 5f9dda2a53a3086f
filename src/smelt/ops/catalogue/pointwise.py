"""Element by element: arithmetic, comparisons, activations, selection. NaN, -0.0 and promotion are torch's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from smelt._torch.seen.plain_sizes import plain_sizes
from smelt.ir import Arg, TensorType, Type
from smelt.ops.record import Call, Emitter, Lowering, OpRecord, Sample, Samples, Trait, sample, tensor_type
from smelt.ops.samples import (
    all_operands,
    arithmetic,
    binary,
    binary_float,
    binary_ints,
    bools,
    each,
    fixed,
    float_operands,
    floats,
    ints,
    positives,
    special,
    strided,
    unary,
    unary_float,
    unary_ints,
    with_number,
)


def _unary(name: str, samples: Samples = unary, oracle: str = "", **more: object) -> OpRecord:
    return OpRecord(f"aten.{name}.default", oracle or f"torch.{name}", samples, **more)  # type: ignore[arg-type]


def _binary(name: str, overload: str = "Tensor", samples: Samples = binary, **more: object) -> OpRecord:
    return OpRecord(f"aten.{name}.{overload}", f"torch.{name}", samples, **more)  # type: ignore[arg-type]


# --- lowerings


def _as(op: str) -> Lowering:
    """Another name of a binary operator."""
    return lambda b, call: b.call(op, call["self"], call["other"])


def _lower_square(b: Emitter, call: Call) -> Arg:
    return b.call("aten.pow.Tensor_Scalar", call["self"], 2)


def _lower_silu(b: Emitter, call: Call) -> Arg:
    return b.call("aten.mul.Tensor", call["self"], b.call("aten.sigmoid.default", call["self"]))


def _lower_relu6(b: Emitter, call: Call) -> Arg:
    return b.call("aten.hardtanh.default", call["self"], 0.0, 6.0)


def _lower_log_sigmoid(b: Emitter, call: Call) -> Arg:
    x = call["self"]
    negated = b.call("aten.neg.default", b.call("aten.abs.default", x))
    return b.call(
        "aten.sub.Tensor",
        b.call("aten.clamp.default", x, None, 0),
        b.call("aten.log1p.default", b.call("aten.exp.default", negated)),
    )


def _lower_softplus(b: Emitter, call: Call) -> Arg:
    x, beta, threshold = call["self"], call["beta"], call["threshold"]
    scaled = b.call("aten.mul.Tensor", x, beta)
    soft = b.call("aten.div.Tensor", b.call("aten.log1p.default", b.call("aten.exp.default", scaled)), beta)
    return b.call("aten.where.self", b.call("aten.gt.Scalar", scaled, threshold), x, soft)


def _lower_mish(b: Emitter, call: Call) -> Arg:
    return b.call(
        "aten.mul.Tensor", call["self"], b.call("aten.tanh.default", b.call("aten.softplus.default", call["self"]))
    )


def _lower_hardswish(b: Emitter, call: Call) -> Arg:
    x = call["self"]
    inner = b.call("aten.clamp.default", b.call("aten.add.Tensor", x, 3), 0, 6)
    return b.call("aten.div.Tensor", b.call("aten.mul.Tensor", x, inner), 6)


def _lower_hardsigmoid(b: Emitter, call: Call) -> Arg:
    inner = b.call("aten.clamp.default", b.call("aten.add.Tensor", call["self"], 3), 0, 6)
    return b.call("aten.div.Tensor", inner, 6)


def _lower_leaky_relu(b: Emitter, call: Call) -> Arg:
    x = call["self"]
    scaled = b.call("aten.mul.Tensor", x, call["negative_slope"])
    return b.call("aten.where.self", b.call("aten.gt.Scalar", x, 0), x, scaled)


def _lower_lerp(b: Emitter, call: Call) -> Arg:
    start, end, weight = call["self"], call["end"], call["weight"]
    return b.call("aten.add.Tensor", start, b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", end, start), weight))


def _lower_addcmul(b: Emitter, call: Call) -> Arg:
    product = b.call("aten.mul.Tensor", call["tensor1"], call["tensor2"])
    return b.call("aten.add.Tensor", call["self"], product, alpha=call["value"])


def _lower_addcdiv(b: Emitter, call: Call) -> Arg:
    quotient = b.call("aten.div.Tensor", call["tensor1"], call["tensor2"])
    return b.call("aten.add.Tensor", call["self"], quotient, alpha=call["value"])


def _scalar_as_tensor(op: str) -> Lowering:
    """`aten.add.Scalar(x, 2)` is `aten.add.Tensor(x, 2)`, which takes a number in the tensor's place."""

    def lower(b: Emitter, call: Call) -> Arg:
        alpha = call.get("alpha", 1)
        kwargs = {} if type(alpha) is int and alpha == 1 else {"alpha": alpha}
        return b.call(op, call["self"], call["other"], **kwargs)

    return lower


def _lower_where_other(b: Emitter, call: Call) -> Arg | None:
    x, other = call["self"], call["other"]
    if tensor_type(x).dtype.kind != "float" or type(other) not in (int, float):
        return None
    filler = b.call("aten.full.default", (), other, dtype=tensor_type(x).dtype)
    return b.call("aten.where.self", call["condition"], x, filler)


def _row_major(call: Call) -> tuple[Type, ...]:
    kind = tensor_type(call["self"])
    return (replace(kind, strides=None),)


def _masked(call: Call) -> tuple[Type, ...]:
    """Row-major whatever the operands' strides; torch's meta kernel keeps them."""
    kind, mask = tensor_type(call["self"]), tensor_type(call["mask"])
    with plain_sizes():
        sizes = tuple(torch.broadcast_shapes(kind.sizes, mask.sizes))
    return (TensorType.of(kind.dtype, sizes, device=kind.device),)


# --- samples


def _clamps() -> Iterator[Sample]:
    for x in all_operands():
        if x.dtype != torch.bool:
            yield sample(x, -1, 2)
            yield sample(x, None, 0.5)
            yield sample(x, 0)


def _wheres() -> Iterator[Sample]:
    yield sample(bools(3, 4), floats(3, 4), floats(3, 4, seed=1))
    yield sample(bools(4), strided(3, 4), torch.tensor(0.0))
    yield sample(bools(3, 1), floats(3, 4), ints(4))
    yield sample(bools(0, 3), floats(3), floats(0, 3))
    yield sample(bools(12), special(), torch.tensor(-0.0))


_shifts = fixed(
    lambda: [
        sample(ints(3, 4), ints(4, low=-2, high=70, seed=1)),
        sample(ints(8, dtype=torch.int8), torch.arange(-1, 7, dtype=torch.int8)),
        sample(ints(9, low=0, high=256, dtype=torch.uint8), torch.arange(9, dtype=torch.uint8)),
    ]
)
_shifts_by = fixed(
    lambda: [
        *(sample(ints(3, 4, low=-99, high=99, dtype=d), 2) for d in (torch.int8, torch.int32, torch.int64)),
        sample(ints(9, low=0, high=256, dtype=torch.uint8), 4),
        sample(ints(5), 63),
        sample(ints(5, dtype=torch.int32), 0),
    ]
)


def _masks(*values: float) -> Samples:
    def made() -> Iterator[Sample]:
        for value in values:
            yield sample(floats(3, 4), bools(3, 4), value)
            yield sample(strided(3, 4), bools(4), value)
            yield sample(floats(2, 1, 4), bools(3, 1), value)
            yield sample(torch.tensor(1.0), torch.tensor(True), value)

    return made


def _ternary() -> Iterator[Sample]:
    yield sample(floats(3, 4), floats(4, seed=1), positives(3, 1, seed=2))
    yield sample(floats(3, 4), floats(4, seed=1), positives(3, 1, seed=2), value=0.5)
    yield sample(strided(3, 4), floats(3, 4, seed=1), positives(4, seed=2))
    yield sample(special(), floats(12, seed=1), positives(12))


def _lerps(tensor_weight: bool) -> Samples:
    weights = (floats(4, seed=3), torch.tensor(0.25)) if tensor_weight else (0.25, 0.75, 2)
    return fixed(
        lambda: [
            *(sample(floats(3, 4), floats(3, 4, seed=1), w) for w in weights),
            *(sample(strided(3, 4), floats(3, 4, seed=1), w) for w in weights),
        ]
    )


_GELU = "arXiv:1606.08415"


def _gelus() -> Iterator[Sample]:
    yield from each(float_operands())
    yield from each(float_operands(), approximate="tanh")


_DIVISIONS = fixed(
    lambda: [
        *(
            sample(x, y, rounding_mode=mode)
            for mode in ("floor", "trunc", None)
            for x, y in (
                (floats(3, 4), positives(4, seed=1)),
                (ints(3, 4), ints(4, low=1)),
                (special(), special().flip(0)),
            )
        )
    ]
)
_ALPHAS = fixed(
    lambda: [
        sample(floats(3, 4), floats(4, seed=1), alpha=2),
        sample(floats(3, 4), floats(4, seed=1), alpha=0.5),
        sample(ints(3), ints(3, seed=1), alpha=3),
    ]
)


def _sums() -> Iterator[Sample]:
    yield from (s for s in arithmetic() if not all(getattr(a, "dtype", None) == torch.bool for a in s.args))
    yield from _ALPHAS()


def _differences() -> Iterator[Sample]:
    yield from (s for s in _sums() if all(getattr(a, "dtype", None) != torch.bool for a in s.args))


def _tensor_differences() -> Iterator[Sample]:
    yield from (s for s in _differences() if isinstance(s.args[1], torch.Tensor))


def _unary_not_bool() -> Iterator[Sample]:
    yield from each(x for x in all_operands() if x.dtype != torch.bool)


POINTWISE: tuple[OpRecord, ...] = (
    _unary("abs", _unary_not_bool, traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.LIKE_OPERAND),
    _unary(
        "neg", _unary_not_bool, traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.WIDE_INSIDE | Trait.LIKE_OPERAND
    ),
    _unary("sign"),
    _unary("ceil", _unary_not_bool),
    _unary("floor", _unary_not_bool),
    _unary("round", _unary_not_bool),
    _unary("trunc", _unary_not_bool),
    _unary(
        "exp", traits=Trait.ANY_LAYOUT | Trait.COSTLY | Trait.FOLLOWS_PRODUCT | Trait.KEPT_IN_F32 | Trait.LIKE_OPERAND
    ),
    _unary("expm1", traits=Trait.KEPT_IN_F32),
    _unary("log", traits=Trait.COSTLY | Trait.KEPT_IN_F32 | Trait.LIKE_OPERAND),
    _unary("log2", traits=Trait.COSTLY | Trait.KEPT_IN_F32),
    _unary("log10", traits=Trait.KEPT_IN_F32),
    _unary("log1p", traits=Trait.KEPT_IN_F32),
    _unary("sqrt", traits=Trait.ANY_LAYOUT | Trait.COSTLY | Trait.LIKE_OPERAND),
    _unary("rsqrt", traits=Trait.ANY_LAYOUT | Trait.COSTLY | Trait.KEPT_IN_F32 | Trait.LIKE_OPERAND),
    _unary("reciprocal", traits=Trait.KEPT_IN_F32),
    _unary("sin", traits=Trait.COSTLY | Trait.LIKE_OPERAND),
    _unary("cos", traits=Trait.COSTLY | Trait.LIKE_OPERAND),
    _unary("tan", traits=Trait.COSTLY),
    _unary("asin"),
    _unary("acos"),
    _unary("atan"),
    _unary("sinh"),
    _unary("cosh"),
    _unary(
        "tanh",
        traits=Trait.ANY_LAYOUT
        | Trait.COSTLY
        | Trait.FOLLOWS_PRODUCT
        | Trait.WIDE_INSIDE
        | Trait.ACTIVATION
        | Trait.LIKE_OPERAND,
    ),
    _unary("asinh"),
    _unary("acosh"),
    _unary("atanh"),
    _unary(
        "sigmoid",
        traits=Trait.ANY_LAYOUT
        | Trait.COSTLY
        | Trait.FOLLOWS_PRODUCT
        | Trait.WIDE_INSIDE
        | Trait.ACTIVATION
        | Trait.LIKE_OPERAND,
    ),
    _unary("erf", traits=Trait.COSTLY | Trait.LIKE_OPERAND),
    _unary("erfc"),
    _unary("isnan"),
    _unary("logical_not"),
    _unary("isfinite", traits=Trait.NOT_ITERATED),
    _unary("isinf", traits=Trait.NOT_ITERATED),
    _unary("frac", unary_float),
    _unary("square", lower=_lower_square, exact=True, traits=Trait.IGNORES_AUTOCAST | Trait.LIKE_OPERAND),
    _unary("bitwise_not", unary_ints),
    _unary(
        "relu",
        _unary_not_bool,
        "torch.nn.functional.relu",
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.WIDE_INSIDE | Trait.ACTIVATION | Trait.LIKE_OPERAND,
    ),
    _unary("nan_to_num", traits=Trait.NOT_ITERATED),
    _unary(
        "relu6",
        unary_float,
        "torch.nn.functional.relu6",
        lower=_lower_relu6,
        exact=True,
        traits=Trait.ANY_LAYOUT
        | Trait.FOLLOWS_PRODUCT
        | Trait.IGNORES_AUTOCAST
        | Trait.NOT_ITERATED
        | Trait.WIDE_INSIDE
        | Trait.ACTIVATION,
    ),
    _unary(
        "silu",
        unary_float,
        "torch.nn.functional.silu",
        lower=_lower_silu,
        source="arXiv:1702.03118",
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.WIDE_INSIDE | Trait.ACTIVATION | Trait.LIKE_OPERAND,
    ),
    _unary(
        "gelu",
        _gelus,
        "torch.nn.functional.gelu",
        source=_GELU,
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.WIDE_INSIDE | Trait.ACTIVATION | Trait.LIKE_OPERAND,
    ),
    _unary(
        "mish",
        unary_float,
        "torch.nn.functional.mish",
        lower=_lower_mish,
        source="arXiv:1908.08681",
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.ACTIVATION,
    ),
    _unary(
        "softplus",
        unary_float,
        "torch.nn.functional.softplus",
        lower=_lower_softplus,
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.KEPT_IN_F32 | Trait.LIKE_OPERAND,
    ),
    _unary("log_sigmoid", unary_float, "torch.nn.functional.logsigmoid", result=_row_major, lower=_lower_log_sigmoid),
    _unary(
        "elu",
        unary_float,
        "torch.nn.functional.elu",
        source="arXiv:1511.07289",
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.ACTIVATION | Trait.LIKE_OPERAND,
    ),
    _unary("selu", unary_float, "torch.nn.functional.selu", source="arXiv:1706.02515", traits=Trait.IGNORES_AUTOCAST),
    _unary(
        "hardtanh",
        unary_float,
        "torch.nn.functional.hardtanh",
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.NOT_ITERATED | Trait.WIDE_INSIDE | Trait.LIKE_OPERAND,
    ),
    _unary(
        "hardswish",
        unary_float,
        "torch.nn.functional.hardswish",
        lower=_lower_hardswish,
        source="arXiv:1905.02244",
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.WIDE_INSIDE | Trait.ACTIVATION,
    ),
    _unary(
        "hardsigmoid",
        unary_float,
        "torch.nn.functional.hardsigmoid",
        lower=_lower_hardsigmoid,
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT,
    ),
    _unary(
        "leaky_relu",
        unary_float,
        "torch.nn.functional.leaky_relu",
        lower=_lower_leaky_relu,
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.WIDE_INSIDE | Trait.ACTIVATION | Trait.LIKE_OPERAND,
    ),
    _binary(
        "add",
        samples=_sums,
        traits=Trait.ANY_LAYOUT
        | Trait.ANY_NUMBER
        | Trait.FOLLOWS_PRODUCT
        | Trait.NUMBER_BESIDE
        | Trait.TAKES_RUN_NUMBERS
        | Trait.WIDE_INSIDE,
    ),
    _binary(
        "sub",
        samples=_differences,
        traits=Trait.ANY_LAYOUT
        | Trait.ANY_NUMBER
        | Trait.FOLLOWS_PRODUCT
        | Trait.NUMBER_BESIDE
        | Trait.TAKES_RUN_NUMBERS
        | Trait.WIDE_INSIDE,
    ),
    _binary(
        "mul",
        samples=arithmetic,
        traits=Trait.ANY_LAYOUT
        | Trait.ANY_NUMBER
        | Trait.COMMUTES
        | Trait.FOLLOWS_PRODUCT
        | Trait.NUMBER_BESIDE
        | Trait.TAKES_RUN_NUMBERS
        | Trait.WIDE_INSIDE,
    ),
    _binary(
        "div",
        samples=arithmetic,
        traits=Trait.ANY_LAYOUT
        | Trait.DIVIDES
        | Trait.FOLLOWS_PRODUCT
        | Trait.NUMBER_BESIDE
        | Trait.TAKES_RUN_NUMBERS
        | Trait.WIDE_INSIDE,
    ),
    _binary("pow", "Tensor_Tensor", binary_float, traits=Trait.COSTLY | Trait.KEPT_IN_F32),
    _binary(
        "pow",
        "Tensor_Scalar",
        with_number(2, 0.5, 3, -1, operands=unary_float),
        traits=Trait.ANY_LAYOUT | Trait.COSTLY | Trait.FOLLOWS_PRODUCT | Trait.KEPT_IN_F32 | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.pow.Scalar",
        "torch.pow",
        fixed(lambda: [sample(2.0, floats(3, 4)), sample(10000.0, floats(4))]),
        traits=Trait.COSTLY | Trait.KEPT_IN_F32 | Trait.NOT_ITERATED | Trait.TAKES_RUN_NUMBERS,
    ),
    # Integers divided by zero raise.
    OpRecord(
        "aten.div.Tensor_mode",
        "torch.div",
        _DIVISIONS,
        may_throw=True,
        traits=Trait.DIVIDES | Trait.NUMBER_BESIDE | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.add.Scalar",
        "torch.add",
        with_number(2, 0.5),
        lower=_scalar_as_tensor("aten.add.Tensor"),
        exact=True,
        traits=Trait.ANY_LAYOUT
        | Trait.ANY_NUMBER
        | Trait.FOLLOWS_PRODUCT
        | Trait.NUMBER_BESIDE
        | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.sub.Scalar",
        "torch.sub",
        with_number(2, 0.5, operands=_unary_not_bool),
        lower=_scalar_as_tensor("aten.sub.Tensor"),
        exact=True,
        traits=Trait.ANY_LAYOUT
        | Trait.ANY_NUMBER
        | Trait.FOLLOWS_PRODUCT
        | Trait.NUMBER_BESIDE
        | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.mul.Scalar",
        "torch.mul",
        with_number(2, 0.5),
        lower=_scalar_as_tensor("aten.mul.Tensor"),
        exact=True,
        traits=Trait.ANY_LAYOUT
        | Trait.ANY_NUMBER
        | Trait.COMMUTES
        | Trait.FOLLOWS_PRODUCT
        | Trait.NUMBER_BESIDE
        | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.div.Scalar",
        "torch.div",
        with_number(2, 0.5),
        lower=_scalar_as_tensor("aten.div.Tensor"),
        exact=True,
        traits=Trait.ANY_LAYOUT | Trait.DIVIDES | Trait.FOLLOWS_PRODUCT | Trait.NUMBER_BESIDE | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.rsub.Scalar",
        "torch.rsub",
        with_number(1, 0.5, operands=_unary_not_bool),
        traits=Trait.ANY_NUMBER | Trait.BY_ELEMENTS | Trait.FOLLOWS_PRODUCT | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.rsub.Tensor",
        "torch.rsub",
        _tensor_differences,
        traits=Trait.ANY_NUMBER | Trait.BY_ELEMENTS | Trait.TAKES_RUN_NUMBERS,
    ),
    _binary(
        "floor_divide",
        "default",
        fixed(lambda: [sample(ints(4), 2), sample(floats(4), positives(4))]),
        may_throw=True,
        traits=Trait.DIVIDES | Trait.NUMBER_BESIDE | Trait.SAME_SHAPE | Trait.TAKES_RUN_NUMBERS,
    ),
    _binary("remainder", samples=binary_float, may_throw=True, traits=Trait.DIVIDES | Trait.TAKES_RUN_NUMBERS),
    OpRecord(
        "aten.remainder.Scalar",
        "torch.remainder",
        with_number(3, 2.5, operands=_unary_not_bool),
        traits=Trait.DIVIDES | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.remainder.Scalar_Tensor",
        "torch.remainder",
        fixed(lambda: [sample(7.5, positives(4)), sample(-7, ints(4, low=1))]),
        may_throw=True,
        traits=Trait.DIVIDES,
    ),
    _binary("fmod", samples=binary_float, may_throw=True, traits=Trait.DIVIDES | Trait.TAKES_RUN_NUMBERS),
    _binary("atan2", "default", binary_float),
    _binary("maximum", "default", binary, traits=Trait.ANY_NUMBER | Trait.COMMUTES | Trait.FOLLOWS_PRODUCT),
    _binary("minimum", "default", binary, traits=Trait.ANY_NUMBER | Trait.COMMUTES | Trait.FOLLOWS_PRODUCT),
    _binary("max", "other", binary, lower=_as("aten.maximum.default"), exact=True, traits=Trait.COMMUTES),
    _binary("min", "other", binary, lower=_as("aten.minimum.default"), exact=True, traits=Trait.COMMUTES),
    _binary("fmax", "default", binary_float),
    _binary("fmin", "default", binary_float),
    _binary("eq", traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.COMMUTES | Trait.TAKES_RUN_NUMBERS),
    _binary("ne", traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.COMMUTES | Trait.TAKES_RUN_NUMBERS),
    _binary("lt", traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS),
    _binary("le", traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS),
    _binary("gt", traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS),
    _binary("ge", traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS),
    OpRecord(
        "aten.eq.Scalar",
        "torch.eq",
        with_number(0, 0.5),
        traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.COMMUTES | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.ne.Scalar",
        "torch.ne",
        with_number(0, 0.5),
        traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.COMMUTES | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.lt.Scalar",
        "torch.lt",
        with_number(0, 0.5),
        traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.le.Scalar",
        "torch.le",
        with_number(0, 0.5),
        traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.gt.Scalar",
        "torch.gt",
        with_number(0, 0.5),
        traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.ge.Scalar",
        "torch.ge",
        with_number(0, 0.5),
        traits=Trait.ANY_LAYOUT | Trait.ANY_NUMBER | Trait.TAKES_RUN_NUMBERS,
    ),
    _binary("logical_and", "default", traits=Trait.ANY_LAYOUT | Trait.COMMUTES),
    _binary("logical_or", "default", traits=Trait.ANY_LAYOUT | Trait.COMMUTES),
    _binary("logical_xor", "default", traits=Trait.ANY_LAYOUT | Trait.COMMUTES),
    _binary("bitwise_and", samples=binary_ints, traits=Trait.COMMUTES | Trait.TAKES_RUN_NUMBERS),
    _binary("bitwise_or", samples=binary_ints, traits=Trait.COMMUTES | Trait.TAKES_RUN_NUMBERS),
    _binary("bitwise_xor", samples=binary_ints, traits=Trait.COMMUTES | Trait.TAKES_RUN_NUMBERS),
    *(
        OpRecord(f"aten.{name}.{form}", oracle, _shifts if form == "Tensor" else _shifts_by)
        for side in ("left", "right")
        for name, scalar, oracle in (
            (f"bitwise_{side}_shift", "Tensor_Scalar", f"torch.bitwise_{side}_shift"),
            (f"__{side[0]}shift__", "Scalar", f"torch.Tensor.__{side[0]}shift__"),
        )
        for form in ("Tensor", scalar)
    ),
    OpRecord(
        "aten.clamp.default",
        "torch.clamp",
        _clamps,
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.clamp.Tensor",
        "torch.clamp",
        fixed(lambda: [sample(floats(3, 4), floats(4, seed=1)), sample(special(), None, torch.tensor(1.0))]),
    ),
    OpRecord(
        "aten.clamp_min.default",
        "torch.clamp_min",
        with_number(0, 0.5, operands=_unary_not_bool),
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.clamp_max.default",
        "torch.clamp_max",
        with_number(0, 0.5, operands=_unary_not_bool),
        traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord("aten.where.self", "torch.where", _wheres, traits=Trait.ANY_LAYOUT | Trait.FOLLOWS_PRODUCT),
    OpRecord(
        "aten.where.ScalarOther",
        "torch.where",
        fixed(lambda: [sample(bools(3, 4), floats(3, 4), 0.0), sample(bools(4), strided(3, 4), -1)]),
        lower=_lower_where_other,
        exact=True,
        traits=Trait.ANY_LAYOUT | Trait.FILLS | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.where.ScalarSelf",
        "torch.where",
        fixed(lambda: [sample(bools(3, 4), 0.0, floats(3, 4))]),
        traits=Trait.ANY_LAYOUT | Trait.FILLS | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.masked_fill.Scalar",
        "torch.masked_fill",
        _masks(0.0, float("-inf"), -1.0),
        result=_masked,
        traits=Trait.BY_ELEMENTS | Trait.FOLLOWS_PRODUCT | Trait.NOT_ITERATED | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.masked_fill.Tensor",
        "torch.masked_fill",
        fixed(lambda: [sample(floats(3, 4), bools(4), torch.tensor(2.0))]),
        result=_masked,
        traits=Trait.BY_ELEMENTS | Trait.NOT_ITERATED,
    ),
    OpRecord("aten.lerp.Scalar", "torch.lerp", _lerps(False), lower=_lower_lerp, traits=Trait.TAKES_RUN_NUMBERS),
    OpRecord("aten.lerp.Tensor", "torch.lerp", _lerps(True), lower=_lower_lerp),
    OpRecord(
        "aten.addcmul.default",
        "torch.addcmul",
        _ternary,
        lower=_lower_addcmul,
        traits=Trait.FOLLOWS_PRODUCT | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord("aten.addcdiv.default", "torch.addcdiv", _ternary, lower=_lower_addcdiv, traits=Trait.TAKES_RUN_NUMBERS),
)
