"""A gradient as its operand needs it: summed over what was broadcast, in the operand's dtype."""

from __future__ import annotations

from smelt.diag import SmeltError
from smelt.ir import UNKNOWN_DIM, Arg, DType, MemoryFormat, TensorType, Type, Value
from smelt.ops.record import Emitter, tensor_type


def fitted(b: Emitter, grad: Value, operand: TensorType) -> Value:
    """The gradient of a tensor of this type, from one of what it was broadcast to. Raises: SmeltError (S0303)."""
    found = grad.type
    if not isinstance(found, TensorType) or found.shape is None or operand.shape is None:
        raise SmeltError("a gradient's number of dimensions is not known", code="S0303")
    if _is_complex(found.dtype) and not _is_complex(operand.dtype):
        grad = b.call("aten.real.default", grad)
    grad = _summed(b, grad, operand)
    if operand.is_static and not tensor_type(grad).is_static:
        grad = b.call("aten.view.default", grad, operand.sizes)
    if not isinstance(grad.type, TensorType):
        raise SmeltError(f"whether a gradient {found} has the size of {operand} follows from data", code="S0303")
    return grad if grad.type.dtype is operand.dtype else b.call("aten._to_copy.default", grad, dtype=operand.dtype)


def laid_as(b: Emitter, arg: Arg, type_: Type) -> Arg:
    """The same numbers in the memory layout of a type, where both are known."""
    if not isinstance(arg, Value) or arg.type == type_:
        return arg
    found = arg.type
    if not isinstance(type_, TensorType) or not isinstance(found, TensorType):
        return arg
    if not type_.is_static or (found.shape, found.dtype) != (type_.shape, type_.dtype):
        return arg
    if type_.strides is None:
        # `contiguous` gives a tensor back whose dimensions of one element alone have other strides.
        return b.call("aten.clone.default", arg, memory_format=MemoryFormat("contiguous_format"))
    return b.call("aten.copy.default", b.call("aten.new_empty_strided.default", arg, type_.sizes, type_.steps), arg)


def _summed(b: Emitter, grad: Value, operand: TensorType) -> Value:
    assert isinstance(grad.type, TensorType)
    sizes, wanted = grad.type.shape, operand.shape
    assert sizes is not None and wanted is not None
    extra = len(sizes) - len(wanted)
    if extra < 0:
        raise SmeltError(f"a gradient {grad.type} is smaller than its operand {operand}", code="S0303")
    dims = list(range(extra))
    for i, size in enumerate(wanted):
        if sizes[extra + i] != size:
            if sizes[extra + i] == UNKNOWN_DIM and isinstance(size, int) and size != 1:
                continue  # as what was broadcast to it is not 1, it is the same
            if size != 1:
                raise SmeltError(f"a gradient {grad.type} does not fit its operand {operand}", code="S0303")
            dims.append(extra + i)
    if not dims:
        return grad
    if len(dims) == extra:
        return b.call("aten.sum.dim_IntList", grad, tuple(dims))
    summed = b.call("aten.sum.dim_IntList", grad, tuple(dims), True)
    return b.call("aten.squeeze.dims", summed, tuple(range(extra))) if extra else summed


def _is_complex(dtype: DType) -> bool:
    return dtype.kind == "complex"
