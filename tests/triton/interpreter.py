"""A process that runs the text of Triton kernels on the CPU: Triton's interpreter, with what it gets wrong corrected.

It is an oracle of indices, masks and structure. Run as `python -m tests.triton.interpreter`: it reads requests from a
socket, and answers what became of the memories (`harness.Interpreter` talks to it); it ends with its own input.

Corrected: casts between f32 and bf16 (it truncates, and loses denormals), products of bf16, functions of libdevice (it
has none), numbers of one element as Python's (NumPy 2.4 refuses), blocks of one bool, `max` and `min` that drop NaN.
Reductions by functions of our own are NumPy's, over all elements at once, for it would call such a function for each.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import pickle
import socket
import sys
import types
import warnings
from functools import cache
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter


def _handle(data: np.ndarray, like: Any) -> Any:
    return interpreter.TensorHandle(data, like.dtype.scalar)


def _function(name: str) -> Any:
    torchs = getattr(torch, name)

    def run(*args: Any) -> Any:
        arrays = np.broadcast_arrays(*(a.handle.data for a in args))
        result = torchs(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)).numpy()
        widest = max(args, key=lambda a: a.handle.data.size)
        return tl.core.tensor(_handle(result.reshape(widest.handle.data.shape), args[0].handle), widest.type)

    return run


def _dot(builder: Any, a: Any, b: Any, start: Any, precision: Any, most: Any) -> Any:
    """A product of blocks: NumPy has no bf16, and would multiply the patterns of its bits."""
    product = np.matmul(*(_wide(x) for x in (a, b)))
    return interpreter.TensorHandle((product + start.data).astype(start.data.dtype), start.dtype.scalar)


def _wide(x: Any) -> np.ndarray:
    if x.dtype.scalar == tl.bfloat16:
        return (x.data.astype(np.uint32) << 16).view(np.float32)
    return x.data if x.dtype.scalar == tl.float64 else x.data.astype(np.float32)


def _correct() -> None:
    for name in dir(libdevice):
        if callable(getattr(torch, name, None)):
            setattr(libdevice, name, _function(name))
    libdevice.rint = _function("round")
    convert = interpreter._convert_float

    def converted(data: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if (source, target) == (tl.float32, tl.bfloat16):
            narrow = torch.from_numpy(np.ascontiguousarray(data)).to(torch.bfloat16)
            return narrow.view(torch.uint16).numpy().reshape(data.shape)
        if (source, target) == (tl.bfloat16, tl.float32):
            return (data.astype(np.uint32) << 16).reshape(data.shape)
        return convert(data, source, target, rounding)

    interpreter._convert_float = converted
    builder = interpreter.InterpreterBuilder
    builder.create_dot = _dot
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    # Of a comparison of two numbers it would make numbers of the operands' dtype.
    builder.create_splat = lambda self, kind, x: _handle(np.full(kind.shape, x.data.flat[0], x.data.dtype), x)
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    dtype_of = cache(interpreter._get_np_dtype)

    def numpys(kind: Any) -> np.dtype:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return np.dtype(np.uint64) if isinstance(element, tl.pointer_type) else dtype_of(element)

    interpreter._get_np_dtype = numpys  # which makes its table of all dtypes at each load and cast
    # Once: it would do so anew for each launch, and for each call of a function of Triton's own.
    interpreter._patch_lang(types.FunctionType(_correct.__code__, {"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    apply_reduce, apply_scan = interpreter.ReduceOps.apply_impl, interpreter.ScanOps.apply_impl
    interpreter.ReduceOps.apply_impl = lambda self, x: _reduced(self, x) or apply_reduce(self, x)
    interpreter.ScanOps.apply_impl = lambda self, x: _scanned(self, x) or apply_scan(self, x)


_UFUNCS = {
    "max_": np.maximum,
    "min_": np.minimum,
    "mul_": np.multiply,
    "add_": np.add,
    "or_": np.bitwise_or,
    "and_": np.bitwise_and,
}


def _reduced(ops: Any, inputs: Any) -> Any:
    name = getattr(ops.combine_fn, "__name__", "")
    data = [x.handle.data for x in inputs]
    if name in _UFUNCS:
        results = [_UFUNCS[name].reduce(data[0], axis=ops.axis, keepdims=ops.keep_dims, dtype=data[0].dtype)]
    elif name in ("first_largest", "first_least"):
        results = _first(name == "first_largest", *data, ops.axis, ops.keep_dims)
    else:
        return None
    return [ops.to_tensor(r, x.dtype) for r, x in zip(results, inputs, strict=True)]


def _first(is_up: bool, values: np.ndarray, positions: np.ndarray, axis: int, keep: bool) -> list[np.ndarray]:
    best = (np.max if is_up else np.min)(values, axis=axis, keepdims=True)
    chosen = np.isnan(values) if np.isnan(best).any() else np.zeros(values.shape, bool)
    chosen = np.where(np.isnan(best), chosen, values == best)
    far = np.iinfo(positions.dtype).max
    at = np.min(np.where(chosen, positions, far), axis=axis, keepdims=True)
    found = np.argmax(chosen & (positions == at), axis=axis, keepdims=True)
    value = np.take_along_axis(values, found, axis)
    return [value, at] if keep else [value.squeeze(axis), at.squeeze(axis)]


def _scanned(ops: Any, inputs: Any) -> Any:
    name = getattr(ops.combine_fn, "__name__", "")
    if name not in _UFUNCS:
        return None
    data = inputs[0].handle.data
    return [ops.to_tensor(_UFUNCS[name].accumulate(data, axis=ops.axis, dtype=data.dtype), inputs[0].dtype)]


_functions: dict[str, Any] = {}


def _kernel(name: str, text: str) -> Any:
    if name not in _functions:
        file = f"<{name}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace: dict[str, Any] = {"__name__": name}
        exec(compile(text, file, "exec"), namespace)
        _functions[name] = namespace[name]
    return _functions[name]


def _pointed_at(memory: torch.Tensor, offset: int, dtype: torch.dtype) -> torch.Tensor:
    """All elements of a dtype from a byte of a memory on."""
    whole = (memory.numel() - offset) // dtype.itemsize * dtype.itemsize
    return memory[offset : offset + whole].view(dtype)


_MOST_NBYTES = 64 << 20


def _answer(request: bytes) -> bytes:
    """What became of the memories of a launch, or the error."""
    name, text, memories, pointers, words, constants, programs = pickle.loads(request)
    try:
        tensors = [_pointed_at(torch.from_numpy(memories[k]), offset, dtype) for k, offset, dtype in pointers]
        _kernel(name, text)[(programs,)](*tensors, *words, **constants)
        return pickle.dumps(memories)
    except Exception as error:
        return pickle.dumps(f"{type(error).__name__}: {error}\n{text}")


def main() -> None:
    """Write an address, then answer who connects there, until the input ends."""
    _correct()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        door.bind(os.path.join(folder, "door"))
        door.listen()
        print(door.getsockname(), flush=True)
        os.dup2(2, 1)
        _serve(door)


def _serve(door: socket.socket) -> None:
    # A program is called more than once, and timed by many launches.
    answers: dict[bytes, bytes] = {}
    kept, connections = 0, []
    while True:
        for ready in wait([sys.stdin, door, *connections]):
            if ready is sys.stdin:
                return
            if ready is door:
                connections.append(Connection(door.accept()[0].detach()))
                continue
            assert isinstance(ready, Connection)
            try:
                request = ready.recv_bytes()
            except EOFError:
                connections.remove(ready)
                continue
            key = hashlib.sha256(request).digest()
            if key not in answers:
                if kept > _MOST_NBYTES:
                    answers.clear()
                    kept = 0
                answers[key] = _answer(request)
                kept += len(answers[key])
            ready.send_bytes(answers[key])


if __name__ == "__main__":
    assert triton.__version__
    main()
