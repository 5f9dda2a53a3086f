"""A run on small zeros tells the types that torch's meta kernels tell, without the imports behind those."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.diag import InternalError
from smelt.ir import FLOAT, Builder, DType, TensorType, TupleType, Value
from smelt.ops import meta, typing
from smelt.ops.typing import infer
from smelt.ops.unknown_sizes import is_static_call

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
SHAPES = [
    TensorType.of(F32, (2, 3, 4, 5)),
    TensorType.of(F32, (2, 3, 4, 5), (60, 1, 15, 3)),
    TensorType.of(F32, (2, 3, 4, 5), (60, 5, 15, 1)),
    TensorType.of(F32, (2, 3, 4, 5), (0, 20, 5, 1)),
    TensorType.of(F32, (2, 0, 4, 5)),
    TensorType.of(DType.BF16, (2, 3, 4, 5)),
]
CALLS: dict[str, tuple[Any, ...]] = {
    "aten.add.Tensor": (0, 1),
    "aten.mul.Tensor": (0, 2.5),
    "aten.div.Tensor": (0, 0),
    "aten.gt.Scalar": (0, 0),
    "aten.gelu.default": (0,),
    "aten.where.self": (2, 0, 1),
    "aten.clamp.default": (0, 0, 6),
    "aten.sum.dim_IntList": (0, (-1,), True),
    "aten.mean.dim": (0, (2, 3)),
    "aten.amax.default": (0, (0,)),
    "aten.softmax.int": (0, -1),
    "aten.cat.default": ((0, 0), 1),
    "aten.constant_pad_nd.default": (0, (1, 2)),
    "aten.adaptive_avg_pool2d.default": (0, (1, 1)),
}


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("type_", SHAPES, ids=str)
def test_zeros_tell_what_meta_kernels_tell(op: str, type_: TensorType, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = {"x": type_, "y": TensorType.of(F32, (4, 1)), "c": TensorType.of(BOOL, (4, 5))}
    values = Builder.new("f", operands).graph.inputs

    def bound(arg: Any, is_tensor: bool) -> Any:
        if isinstance(arg, tuple):
            return tuple(bound(a, is_tensor and op == "aten.cat.default") for a in arg)
        return values[arg] if is_tensor and type(arg) is int else arg

    tensors = {"aten.add.Tensor": 2, "aten.div.Tensor": 2, "aten.where.self": 3}.get(op, 1)
    args = tuple(bound(arg, i < tensors) for i, arg in enumerate(CALLS[op]))
    key, _ = meta.call_key(args, {})
    by_meta = meta._run(op, key, "meta")
    monkeypatch.setattr(meta, "meta_kernels_are_loaded", lambda: False)
    meta._meta_outcome.cache_clear()
    assert meta._is_quick(op, key)
    quick = meta._meta_outcome(op, key)
    meta._meta_outcome.cache_clear()
    if isinstance(by_meta, str):
        assert isinstance(quick, str)
    else:
        assert quick == by_meta


def test_what_is_large_or_draws_random_numbers_is_not_tried() -> None:
    def is_quick(op: str, type_: TensorType, *rest: Any) -> bool:
        value: Value = Builder.new("f", {"x": type_}).graph.inputs[0]
        return meta._is_quick(op, meta.call_key((value, *rest), {})[0])

    small = TensorType.of(F32, (4, 4))
    assert is_quick("aten.neg.default", small)
    assert not is_quick("aten.neg.default", TensorType.of(F32, (1 << 12, 1 << 12)))
    assert not is_quick("aten.neg.default", TensorType.of(F32, (4, 4), device="cuda"))
    assert not is_quick("aten.constant_pad_nd.default", small, (1 << 20, 1 << 20))
    assert not is_quick("aten.bernoulli.p", small, 0.5)
    assert not is_quick("aten.neg_.default", small)
    assert not is_quick("aten.dropout.default", small, 0.5, True)


def test_a_trial_leaves_random_numbers_alone() -> None:
    value = Builder.new("f", {"x": TensorType.of(F32, (4, 4))}).graph.inputs[0]
    before = torch.get_rng_state()
    assert meta.data_outcome("aten.bernoulli.p", (value, 0.5), {})[0].types == (value.type,)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_impossible_view_is_refused_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Builder.new("f", {"x": TensorType.of(F32, (4, 6), (1, 4))}).graph.inputs[0]
    monkeypatch.setattr(meta, "fake_tensors", None)
    with pytest.raises(InternalError, match="view"):
        infer("aten.view.default", (value, (24,)))


@pytest.mark.parametrize("op", ["nonzero", "nonzero_numpy", "where", "argwhere", "masked_select"])
def test_sizes_that_follow_data_are_unknown(op: str) -> None:
    """Also of composites, which torch does not mark: a run on zeros alone would find that nothing is there."""
    value = Builder.new("f", {"x": TensorType.of(BOOL, (4, 3))}).graph.inputs[0]
    (found,) = infer(f"aten.{op}.default", (value, value) if op == "masked_select" else (value,), {})
    for type_ in found.elements if isinstance(found, TupleType) else (found,):
        assert isinstance(type_, TensorType) and not type_.is_static


_OF_ONES: dict[str, tuple[Any, ...]] = {
    "aten.add.Tensor": (1.0,), "aten.mul.Tensor": (2.5,), "aten.gt.Scalar": (0,), "aten.clamp.default": (0, 1),
    "aten.sin.default": (), "aten.gelu.default": (), "aten.pow.Tensor_Scalar": (2,), "aten.zeros_like.default": (),
    "aten.where.ScalarOther": (), "aten.masked_fill.Scalar": (), "aten.clone.default": (),
    "aten.leaky_relu.default": (),
}  # fmt: skip


@pytest.mark.parametrize("op", _OF_ONES)
@pytest.mark.parametrize("are_loaded", [False, True])
def test_strides_of_single_elements_are_the_cpus(op: str, are_loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a dimension has one element its stride is nobody's to read, and kernels without data choose another."""
    monkeypatch.setattr(meta, "meta_kernels_are_loaded", lambda: are_loaded)
    meta._meta_outcome.cache_clear()
    function = getattr(torch.ops.aten, op.split(".")[1])
    for sizes, strides in (((4, 1), (1, 4)), ((1, 4), (1, 1)), ((3, 1), (1, 3)), ((2, 1, 4), (16, 1, 2))):
        tensor = torch.empty_strided(sizes, strides).zero_()
        value = Builder.new("f", {"x": TensorType.of(F32, sizes, strides)}).graph.inputs[0]
        if op == "aten.where.ScalarOther" or op == "aten.masked_fill.Scalar":
            mask = Builder.new("f", {"m": TensorType.of(BOOL, sizes)}).graph.inputs[0]
            chosen = tensor.new_zeros(sizes, dtype=torch.bool)
            (got, given) = ((mask, value, 0.0), (chosen, tensor, 0.0))
            if op == "aten.masked_fill.Scalar":
                got, given = (value, mask, 0.0), (tensor, chosen, 0.0)
        else:
            got, given = (value, *_OF_ONES[op]), (tensor, *_OF_ONES[op])
        (found,) = infer(op, got)
        assert isinstance(found, TensorType) and found.steps == function(*given).stride(), (sizes, strides)
    meta._meta_outcome.cache_clear()


FLOATS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten.addcdiv.default", ("x", "x", "x"), {"value": "float"}),
    ("aten.mul.Tensor", ("n", "float"), {}),
    ("aten.div.Tensor", ("turned", "float"), {}),
    ("aten.clamp.default", ("n", "float"), {}),
    ("aten.pow.Scalar", ("float", "n"), {}),
    ("aten.lerp.Scalar", ("x", "turned", "float"), {}),
    ("aten.add.Tensor", ("n", "n"), {"alpha": "float"}),  # refused: then nothing is known
]


@pytest.mark.parametrize(("op", "args", "kwargs"), FLOATS, ids=[f"{op}-{len(k)}" for op, _, k in FLOATS])
def test_floats_of_the_run_are_tried_once(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (3, 4)
    types = {
        "x": TensorType.of(F32, shape), "n": TensorType.of(I64, shape),
        "turned": TensorType.of(F32, shape, (1, 3)), "float": FLOAT,
    }  # fmt: skip
    values = {name: Value(name, type_, None) for name, type_ in types.items()}  # type: ignore[arg-type]
    call = op, tuple(values[a] for a in args), {k: values[v] for k, v in kwargs.items()}
    found = infer(*call)
    with monkeypatch.context() as patch:
        patch.setattr(typing, "is_static_call", lambda *given: is_static_call(*call[1:]))
        assert infer(*call) == found
    if "alpha" not in kwargs:
        asked: list[Any] = []
        monkeypatch.setattr(typing, "infer_unknown", lambda *given: asked.append(given))
        assert infer(*call) == found and not asked
