"""The thread's torch state as native code can check it: addresses of functions and the words that they must give.

Each check stands for readers of `state`; where a symbol is missing, or does not answer as the public function does when
the state is changed for a moment (of this thread only), the reader itself is called, a builtin without arguments if it
is one. Whatever cannot be checked in any of these ways is named in `Checks.missing`.

The thread's dispatch keys tell of dispatch modes, functorch and autocast at once: each of them sets or clears keys,
which a self-test confirms.

Source: System V ABI, thread-local storage (`__tls_get_addr`); CPython's C API for builtins.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt._torch import state
from smelt._torch.autocast import no_autocast
from smelt._torch.library import shim
from smelt.diag.records import record

KEYS = "_ZN3c104impl26raw_local_dispatch_key_setE"
AUTOGRAD = "_ZN3c1013AutogradState13get_tls_stateEv"
DEFAULT_DTYPE = "_ZN3c1017get_default_dtypeEv"
FUNCTION_MODES = "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"
CONTEXT = "_ZN2at13globalContextEv"
DETERMINISTIC = "_ZNK2at7Context23deterministicAlgorithmsEv"
PRECISION = "_ZNK2at7Context22float32MatmulPrecisionEv"
SET_PRECISION = "_ZN2at7Context25setFloat32MatmulPrecisionERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
TRACING = "_ZN5torch3jit6tracer15getTracingStateEv"  # gives a reference to a shared pointer
AUTOCAST_DTYPE = "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"
NAMES = (KEYS, AUTOCAST_DTYPE, AUTOGRAD, DEFAULT_DTYPE, FUNCTION_MODES, CONTEXT, DETERMINISTIC, PRECISION, TRACING)

_METH_NOARGS = 4
_CPU = 0  # c10::DeviceType
_PRECISIONS = ("highest", "high", "medium")  # at::Float32MatmulPrecision
_LOAD, _COMPARE = rb"\x8b\x83(....)", rb"\x83\xbb(....)\x02"  # mov eax, [rbx + n]; cmp dword [rbx + n], 2
_STATE_WORDS = 5  # of the thread's autograd state, at most
_FLAG = "_is_compiling_flag"


@record
class Value:
    """function(argument) & mask == value."""

    function: int
    argument: int
    mask: int
    value: int


@record
class Pointed:
    """The words at function(argument), each under its mask, are these: (mask, value) pairs."""

    function: int
    argument: int
    words: tuple[tuple[int, int], ...]


@record
class Memory:
    """The word at this address & mask == value."""

    address: int
    mask: int
    value: int


@record
class NoArgs:
    """A builtin without arguments returns this very object, or (is_text) an equal string."""

    builtin: Any
    value: Any
    is_text: bool = False


@record
class Asked:
    """A Python callable returns True."""

    callable: Callable[[], bool]


Check: TypeAlias = Value | Pointed | Memory | NoArgs | Asked


def checks() -> tuple[Check, ...] | None:
    """What must hold for the calling thread's state to be what it is now, contexts that others set up included.

    None where it cannot be told: in such contexts, or under autocast of other devices than the CPU.
    """
    casts = None if state.foreign_context() is not None else _autocast_checks()
    if casts is None:
        return None
    made: list[Check] = [*_mode_checks(), *casts, *_grad_checks()]
    made.append(_default_dtype())
    made.append(_deterministic())
    made.append(_precision())
    return tuple(made)


def address_of(builtin: Any) -> tuple[int, int]:
    """The C function of a builtin and the object that it is given first (0: none)."""
    function = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyCFunction_GetFunction", ctypes.pythonapi))
    this = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyCFunction_GetSelf", ctypes.pythonapi))
    return function(builtin), this(builtin) or 0


def compiling_flag() -> tuple[dict[str, Any], tuple[tuple[str, Any], ...]] | None:
    """The namespace, names and values that make `torch.compiler.is_compiling()` false; None where it asks others."""
    function = torch.compiler.is_compiling
    space: dict[str, Any] = vars(torch.compiler)
    code = getattr(function, "__code__", None)
    asked = getattr(code, "co_names", ())
    if space.get(_FLAG) is not False or space.get("is_compiling") is not function or _FLAG not in asked:
        return None
    if set(asked) - {"torch", "jit", "is_scripting", _FLAG} or getattr(function, "__globals__", None) is not space:
        return None
    return space, (("is_compiling", function), (_FLAG, False))


def _noargs(builtin: Any, value: Any, is_text: bool = False) -> Check:
    flags = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(("PyCFunction_GetFlags", ctypes.pythonapi))
    if type(builtin) is type(len) and flags(builtin) == _METH_NOARGS:
        return NoArgs(builtin, value, is_text)
    return Asked(lambda: bool(builtin() == value))


def _mode_checks() -> list[Check]:
    made: list[Check] = []
    keys = _thread_keys()
    if keys is not None:
        function, argument = keys
        made.append(Pointed(function, argument, tuple((-1, word) for word in _words(function, 2, argument))))
    else:
        for reader in (state.has_dispatch_mode, state.is_any_autocast):
            made.append(_noargs(reader, reader()))
        made.append(Asked(lambda: not state.in_functorch()))
    length = shim.address(FUNCTION_MODES)
    if length is not None and _function_modes_work(length):
        made.append(Value(length, 0, -1, 0))
    else:
        made.append(_noargs(state.has_function_mode, state.has_function_mode()))
    tracing = shim.address(TRACING)
    if tracing is not None and _caller(tracing)(0) and _words(tracing, 1) == (0,):
        made.append(Pointed(tracing, 0, ((-1, 0),)))
    else:
        made.append(Asked(lambda: not state.is_jit_tracing()))
    return made


def _autocast_checks() -> list[Check] | None:
    """What the thread's keys do not say of autocast: the CPU's dtype, where it is on."""
    on = state.autocast()
    if not on:
        return []
    function, code = shim.address(AUTOCAST_DTYPE), shim.dtype_code(on[0][1])
    if _thread_keys() is None or [device for device, _ in on] != ["cpu"] or function is None or code is None:
        return None
    if ctypes.PYFUNCTYPE(ctypes.c_uint8, ctypes.c_int64)(function)(_CPU) != code:
        return None
    return [Value(function, _CPU, 0xFF, code)]


def _grad_checks() -> list[Check]:
    where = shim.address(AUTOGRAD)
    masks = () if where is None else _grad_masks(where)
    if where is not None and masks:
        words = _words(where, len(masks))
        return [Pointed(where, 0, tuple((mask, word & mask) for mask, word in zip(masks, words, strict=True)))]
    return [_noargs(read, read()) for read in (state.is_grad_enabled, state.is_inference)]


def _default_dtype() -> Check:
    where, code = shim.address(DEFAULT_DTYPE), shim.dtype_code(torch.get_default_dtype())
    if where is not None and code is not None and ctypes.PYFUNCTYPE(ctypes.c_uint16)(where)() == code:
        return Value(where, 0, 0xFFFF, code)
    return _noargs(state.default_dtype, state.default_dtype())


def _deterministic() -> Check:
    context, where, now = shim.address(CONTEXT), shim.address(DETERMINISTIC), state.is_deterministic()
    if context is not None and where is not None:
        this = ctypes.PYFUNCTYPE(ctypes.c_void_p)(context)()
        if ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(where)(this) == now:
            return Value(where, this, 0xFF, int(now))
    return _noargs(state.is_deterministic, now)


def _precision() -> Check:
    now, where = state.matmul_precision(), None if shim.is_hidden(PRECISION) else _precision_address()
    if where is not None and ctypes.c_int32.from_address(where).value == _PRECISIONS.index(now):
        return Memory(where, 0xFFFFFFFF, _PRECISIONS.index(now))
    return _noargs(state.matmul_precision, now, is_text=True)


@lru_cache(maxsize=1)
def _precision_address() -> int | None:
    """Where the process's matmul precision lies, or None.

    Asked the public way it costs as much as all other guards of a small program. Its place in the library's settings is
    the one from which the getter returns it, and compares it, and to which the setter writes: read from their code.
    """
    context, getter, setter = shim.address(CONTEXT), shim.address(PRECISION), shim.address(SET_PRECISION)
    if platform.machine() != "x86_64" or context is None or getter is None or setter is None:
        return None
    code = ctypes.string_at(getter, 128)
    loaded = set(re.findall(_LOAD, code, re.DOTALL))
    compared = set(re.findall(_COMPARE, code, re.DOTALL))
    if len(loaded) != 1 or loaded != compared:
        return None
    place = loaded.pop()
    # mov dword [register + n], 0 to 2
    stored = re.findall(rb"\xc7[\x80-\xbf]" + re.escape(place) + rb"([\0-\2])\0\0\0", ctypes.string_at(setter, 2048))
    offset = int.from_bytes(place, "little")
    if len(set(stored)) != len(_PRECISIONS) or offset % 4 or not 0 < offset < 4096:
        return None
    return int(ctypes.PYFUNCTYPE(ctypes.c_void_p)(context)()) + offset


# --- proofs ----------------------------------------------------------------------------------------------------------


def _caller(function: int) -> Callable[[int], int]:
    return ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(function)


def _words(function: int, count: int, argument: int = 0) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * count).from_address(_caller(function)(argument)))


@lru_cache(maxsize=4)
def _grad_masks(function: int) -> tuple[int, ...]:
    """The bits of the first words that follow the grad mode and the inference mode; none if they do not."""
    with torch.inference_mode(False):
        with torch.no_grad():
            off = _words(function, _STATE_WORDS)
            with torch.inference_mode():
                inference = _words(function, _STATE_WORDS)
        with torch.enable_grad():
            on = _words(function, _STATE_WORDS)
    grad = [a ^ b for a, b in zip(off, on, strict=True)]
    inferring = [a ^ b for a, b in zip(off, inference, strict=True)]
    if not any(grad) or not any(b & ~a for a, b in zip(grad, inferring, strict=True)):
        return ()
    masks = [a | b for a, b in zip(grad, inferring, strict=True)]
    return tuple(masks[: max(i for i, mask in enumerate(masks) if mask) + 1])


@lru_cache(maxsize=4)
def _function_modes_work(function: int) -> bool:
    length = ctypes.PYFUNCTYPE(ctypes.c_int64)(function)
    if length() != 0:
        return False
    with torch.overrides.TorchFunctionMode():
        return bool(length() == 1)


class _TlsIndex(ctypes.Structure):
    """What `__tls_get_addr` takes: a module's number, and the offset in its block."""

    _fields_ = (("module", ctypes.c_size_t), ("offset", ctypes.c_size_t))


class _ModuleInfo(ctypes.Structure):
    """The C library's `dl_phdr_info`."""

    _fields_ = (
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
        ("subs", ctypes.c_ulonglong),
        ("tls_module", ctypes.c_size_t),
        ("tls_data", ctypes.c_size_t),
    )


def _thread_keys() -> tuple[int, int] | None:
    """The function and argument that give the address of the calling thread's dispatch keys, or None."""
    return None if shim.is_hidden(KEYS) else _find_thread_keys()


_index = _TlsIndex()


@lru_cache(maxsize=1)
def _find_thread_keys() -> tuple[int, int] | None:
    try:
        libc = ctypes.CDLL(None)
        library = next((Path(torch.__file__).parent / "lib").glob("libc10.so"))
        here = ctypes.addressof(ctypes.c_int64.in_dll(ctypes.CDLL(str(library)), KEYS))
        function = ctypes.cast(libc.__tls_get_addr, ctypes.c_void_p).value
    except (AttributeError, OSError, StopIteration, ValueError):
        return None
    visit_type = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(_ModuleInfo), ctypes.c_size_t, ctypes.c_void_p)

    def visit(info: Any, nbytes: int, data: Any) -> int:
        found = info.contents
        if nbytes < ctypes.sizeof(_ModuleInfo) or not (found.name or b"").endswith(b"/libc10.so"):
            return 0
        _index.module, _index.offset = found.tls_module, here - (found.tls_data or 0)
        return 1

    if libc.dl_iterate_phdr(visit_type(visit), None) != 1 or function is None:
        return None
    argument = ctypes.addressof(_index)
    if _caller(function)(argument) != here:
        return None
    with no_autocast():  # it is one of what must change the keys
        return (function, argument) if _keys_follow(function, argument) else None


def _keys_follow(function: int, argument: int) -> bool:
    """Whether each kind of context changes the thread's keys, and leaving it brings them back."""

    def now() -> tuple[int, ...]:
        return _words(function, 2, argument)

    usual = now()
    for context in _contexts():
        inside: list[tuple[int, ...]] = []

        def ask(inside: list[tuple[int, ...]] = inside) -> None:
            inside.append(now())

        context(ask)
        if not inside or inside[0] == usual or now() != usual:
            return False
    return True


def _contexts() -> Iterator[Callable[[Callable[[], None]], Any]]:
    """Ways to call a function inside each kind of context."""

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def within(make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[[Callable[[], None]], Any]:
        def run(ask: Callable[[], None]) -> None:
            with make():
                ask()

        return run

    def mapped(ask: Callable[[], None], transform: Callable[..., Any]) -> None:
        def asking(t: torch.Tensor) -> torch.Tensor:
            ask()
            return t

        transform(asking)(torch.zeros(1))

    yield within(Mode)
    yield within(lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    yield lambda ask: mapped(ask, torch.vmap)
    yield lambda ask: mapped(ask, torch.func.functionalize)
