"""Second names: operators that mean another one, argument for argument. Each lowers to the name that passes know."""

from __future__ import annotations

import torch

from smelt.ir import Arg
from smelt.ops.record import Alias, Call, Emitter, Lowering, OpRecord, Samples, Trait, sample
from smelt.ops.samples import (
    arithmetic,
    binary_ints,
    bools,
    fixed,
    floats,
    ints,
    positives,
    strided,
    unary,
    unary_float,
    with_number,
)


def _renamed(op: str) -> Lowering:
    def lower(b: Emitter, call: Call) -> Arg:
        keep = {k: v for k, v in call.items() if k in _KEYWORDS and v != _KEYWORDS[k]}
        return b.call(op, *(v for k, v in call.items() if k not in _KEYWORDS), **keep)

    return lower


# Keyword-only arguments of the operators below, with the value that may be left out.
_KEYWORDS: dict[str, Arg] = {"alpha": 1, "rounding_mode": "", "dtype": None}


def _same(
    name: str, target: str, oracle: str, samples: Samples, alias: Alias = "fresh", traits: Trait = Trait.NONE
) -> OpRecord:
    lower = _renamed(f"aten.{target}")
    return OpRecord(f"aten.{name}", oracle, samples, lower=lower, exact=True, alias=alias, traits=traits)


_TWO = fixed(
    lambda: [
        sample(floats(3, 4), floats(4, seed=1)),
        sample(strided(3, 4), torch.tensor(2.5)),
        sample(ints(3), ints(3, low=1)),
    ]
)
_BITS = fixed(lambda: [sample(ints(3, 4), 6), sample(bools(3), True), sample(ints(4).to(torch.uint8), 15)])
_POSITIVE = fixed(lambda: [sample(floats(3, 4), positives(4))])

SYNONYMS: tuple[OpRecord, ...] = (
    _same(
        "multiply.Tensor",
        "mul.Tensor",
        "torch.multiply",
        arithmetic,
        traits=Trait.ANY_NUMBER | Trait.BY_ELEMENTS | Trait.NUMBER_BESIDE,
    ),
    _same(
        "subtract.Tensor",
        "sub.Tensor",
        "torch.subtract",
        _TWO,
        traits=Trait.ANY_NUMBER | Trait.BY_ELEMENTS | Trait.NUMBER_BESIDE,
    ),
    _same(
        "divide.Tensor",
        "div.Tensor",
        "torch.divide",
        _TWO,
        traits=Trait.BY_ELEMENTS | Trait.DIVIDES | Trait.NUMBER_BESIDE,
    ),
    _same("true_divide.Tensor", "div.Tensor", "torch.true_divide", _TWO, traits=Trait.DIVIDES | Trait.NUMBER_BESIDE),
    _same(
        "divide.Tensor_mode",
        "div.Tensor_mode",
        "torch.divide",
        fixed(lambda: [sample(floats(3), positives(3), rounding_mode="floor")]),
        traits=Trait.BY_ELEMENTS | Trait.DIVIDES | Trait.NUMBER_BESIDE,
    ),
    _same("absolute.default", "abs.default", "torch.absolute", unary_float),
    _same("negative.default", "neg.default", "torch.negative", unary_float),
    _same(
        "clip.default",
        "clamp.default",
        "torch.clip",
        fixed(lambda: [sample(floats(3, 4), -0.5, 0.5), sample(floats(3), None, 0)]),
        traits=Trait.IGNORES_AUTOCAST,
    ),
    _same("greater.Tensor", "gt.Tensor", "torch.greater", _TWO, traits=Trait.BY_ELEMENTS),
    _same("greater_equal.Tensor", "ge.Tensor", "torch.greater_equal", _TWO, traits=Trait.BY_ELEMENTS),
    _same("less.Tensor", "lt.Tensor", "torch.less", _TWO, traits=Trait.BY_ELEMENTS),
    _same("less_equal.Tensor", "le.Tensor", "torch.less_equal", _TWO, traits=Trait.BY_ELEMENTS),
    _same("not_equal.Tensor", "ne.Tensor", "torch.not_equal", _TWO, traits=Trait.BY_ELEMENTS),
    _same("greater.Scalar", "gt.Scalar", "torch.greater", with_number(0), traits=Trait.BY_ELEMENTS),
    _same("less.Scalar", "lt.Scalar", "torch.less", with_number(0), traits=Trait.BY_ELEMENTS),
    _same("arctan.default", "atan.default", "torch.arctan", unary),
    _same("arccos.default", "acos.default", "torch.arccos", unary),
    _same("arcsin.default", "asin.default", "torch.arcsin", unary),
    _same("fix.default", "trunc.default", "torch.fix", unary_float),
    _same("special_expit.default", "sigmoid.default", "torch.special.expit", unary),
    _same("special_erf.default", "erf.default", "torch.special.erf", unary),
    _same(
        "special_softmax.default",
        "softmax.int",
        "torch.special.softmax",
        fixed(lambda: [sample(floats(3, 4), -1)]),
        traits=Trait.ANY_RANK,
    ),
    _same(
        "__and__.Tensor",
        "bitwise_and.Tensor",
        "torch.bitwise_and",
        binary_ints,
        traits=Trait.BY_ELEMENTS | Trait.SAME_SHAPE,
    ),
    _same(
        "__or__.Tensor",
        "bitwise_or.Tensor",
        "torch.bitwise_or",
        binary_ints,
        traits=Trait.BY_ELEMENTS | Trait.SAME_SHAPE,
    ),
    _same("__xor__.Tensor", "bitwise_xor.Tensor", "torch.bitwise_xor", binary_ints, traits=Trait.SAME_SHAPE),
    _same(
        "__and__.Scalar", "bitwise_and.Scalar", "torch.bitwise_and", _BITS, traits=Trait.BY_ELEMENTS | Trait.SAME_SHAPE
    ),
    _same("__or__.Scalar", "bitwise_or.Scalar", "torch.bitwise_or", _BITS, traits=Trait.BY_ELEMENTS | Trait.SAME_SHAPE),
    _same("__xor__.Scalar", "bitwise_xor.Scalar", "torch.bitwise_xor", _BITS, traits=Trait.SAME_SHAPE),
    _same(
        "concat.default",
        "cat.default",
        "torch.concat",
        fixed(lambda: [sample([floats(2), floats(3)])]),
        traits=Trait.IGNORES_AUTOCAST,
    ),
    _same("concatenate.default", "cat.default", "torch.concatenate", fixed(lambda: [sample([floats(2), floats(3)])])),
    _same(
        "swapaxes.default",
        "transpose.int",
        "torch.swapaxes",
        fixed(lambda: [sample(floats(3, 4), 0, 1)]),
        "view",
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.IGNORES_AUTOCAST | Trait.PERMUTES,
    ),
    _same(
        "swapdims.default",
        "transpose.int",
        "torch.swapdims",
        fixed(lambda: [sample(floats(3, 4), 0, 1)]),
        "view",
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.IGNORES_AUTOCAST,
    ),
    _same(
        "moveaxis.int",
        "movedim.int",
        "torch.moveaxis",
        fixed(lambda: [sample(floats(2, 3, 4), 0, 2)]),
        "view",
        traits=Trait.ANY_RANK,
    ),
    _same(
        "_unsafe_view.default",
        "view.default",
        "torch.Tensor.view",
        fixed(lambda: [sample(floats(3, 4), [12])]),
        "maybe",
        traits=Trait.AT_START | Trait.CARRIES_STRIDES | Trait.RESHAPES | Trait.TO_SIZES | Trait.WHOLE_VIEW,
    ),
)
