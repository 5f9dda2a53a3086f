"""Failures, leaks, threads, missing symbols: the answer or the error stays the same and nothing is lost."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt._torch.library import mkldnn, shim, stable
from smelt._torch.seen import handles
from smelt.diag import InternalError, SmeltError
from smelt.runtime import calls
from smelt.runtime.encoding.table import AUTOCAST_CELLS, FUNCTION_CELLS, GRAD_CELLS, PARALLEL
from smelt.runtime.executable import Executable
from smelt.runtime.machine.threads import THREADS
from smelt.runtime.plan import (
    ArenaTensor,
    CheckLayout,
    Copy,
    Dispatch,
    Empty,
    Plan,
    PyCall,
    Release,
    Use,
    View,
)

_MESSAGE = "torch_exception_get_what_without_backtrace"
HAS_MESSAGES = shim.has(_MESSAGE)
# From torch 2.12, 2.13 and 2.14 on.
NEWER = (stable.NEW_CELL, "torch_delete_stable_ivalue", _MESSAGE, handles.FROM, handles.TO)

aten = torch.ops.aten


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2: ten counts, of which the fifth is mapped and the eighth in use."""

    _fields_ = (
        ("before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("after", ctypes.c_size_t * 2),
    )


def allocated_nbytes() -> int:
    """Bytes that malloc has handed out and not got back, in this process (glibc)."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def boom(*_: torch.Tensor) -> Any:
    raise KeyError("boom")


def whole_plan(weight: torch.Tensor, extra: tuple[Any, ...] = (), *, python: bool = True) -> Plan:
    """f32[64, 512] -> f32[64, 512]: every kind of instruction, with results of 128 KB alive at the end.

    Without Python steps the plan is entered through the builtin.
    """
    step = PyCall(lambda a, b: (a + b, a - b), (8, 4), (9, 10))
    middle = (step,) if python else (calls.add(9, 8, 4), calls.mul(10, 8, 4))
    packed = mkldnn.pack_linear(weight)
    assert packed is not None
    steps = (
        calls.packed_linear(3, 0, 1, 2),
        CheckLayout(3, (64, 512), (512, 1), torch.float32),
        Dispatch(aten.layer_norm.default, (Use(3), (512,), Use(2), None, 1e-5), (4,)),
        calls.mm_out(5, 4, 6),
        View(7, 3, (512, 64), (1, 512)),
        Dispatch(aten.silu.default, (Use(5),), (8,)),
        *middle,
        Empty(11, (64, 512), (512, 1), torch.float32),
        Copy(11, 9),
        calls.cat(12, (9, 10, 11), 0),
        calls.index(13, 12, (14, None)),
        Release((4, 8, 10)),
        *extra,
    )
    held = ((1, packed), (2, torch.randn(512)), (6, weight), (14, torch.arange(64)))
    arena = (ArenaTensor(5, 64, (64, 512), (512, 1), torch.float32),)
    return Plan(40, (0,), (13,), steps, held, arena, arena_nbytes=64 + 64 * 512 * 4)


FAILURES: dict[str, tuple[Any, ...]] = {
    "library": (calls.mm_out(11, 0, 13),),
    "layout": (CheckLayout(13, (1,), (1,)),),
    "python": (PyCall(boom, (0, 13, 5)),),
    "python result": (PyCall(lambda t: [t, t], (13,), (20,)),),
    "dispatcher": (Dispatch(aten.mm.default, (Use(13), Use(0)), (20,)),),
    "dispatcher list": (Dispatch(aten.cat.default, ((Use(13), Use(2)), 7), (20,)),),
    "dispatcher optional": (Dispatch(aten.clamp.Tensor, (Use(13), Use(14), None), (20,)),),
    "string in Python": (Dispatch(aten.gelu.default, (Use(13), "x"), (20,)),),
    "dispatcher in Python": (Dispatch(aten.add.Tensor, (Use(13), Use(2), 1), (20,)), calls.mm_out(11, 0, 13)),
}


def is_builtin(executable: Executable) -> bool:
    return isinstance(executable.call, type(len))


@pytest.mark.spread(10)
@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("name", FAILURES)
def test_failures_leak_nothing(machine_code: bytes, name: str, python: bool) -> None:
    executable = Executable(whole_plan(torch.randn(512, 512), FAILURES[name], python=python), machine_code)
    assert is_builtin(executable) == (shim.has(stable.NEW_CELL) and not python and "ython" not in name)
    x = torch.randn(64, 512)

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises((SmeltError, KeyError)):
                executable.run([x])

    fail(8)
    gc.collect()
    before = allocated_nbytes()
    fail(40)
    gc.collect()
    # A leaked result is 128 KB a run, a leaked handle 48 bytes; what else grows is torch's text of the last errors.
    assert allocated_nbytes() - before < 64 << 10


@pytest.mark.usefixtures("young_heap")
def test_small_leaks_in_success_and_failure(machine_code: bytes) -> None:
    steps = (
        Dispatch(aten.relu.default, (Use(0),), (1,)),
        Dispatch(aten.sum.dim_IntList, (Use(1), (0,)), (2,)),
        Dispatch(aten.index.Tensor, (Use(0), (Use(4),)), (3,)),
        Dispatch(aten.native_layer_norm.default, (Use(0), (8,), None, None, 1e-5), (5, None, None)),
        PyCall(lambda t: t + 1, (5,), (6,)),
    )
    executable = Executable(Plan(7, (0, 4), (6,), steps), machine_code)
    x, index = torch.randn(8, 8), torch.tensor([1])
    for _ in range(300):
        executable.run([x, index])
    gc.collect()
    before = allocated_nbytes()
    for _ in range(4000):
        executable.run([x, index])
    gc.collect()
    assert allocated_nbytes() - before < 32 << 10  # 8 bytes a run: not even one handle


@pytest.mark.parametrize("python", [False, True])
def test_results_and_packed_weights_live_as_long_as_they_should(machine_code: bytes, python: bool) -> None:
    plan = whole_plan(torch.randn(512, 512), python=python)
    executable = Executable(plan, machine_code)
    held = weakref.ref(plan.held[0][1])
    x = torch.randn(64, 512)
    result = executable.run([x])[0]
    want = result.clone()
    del plan
    call = executable.call
    del executable
    assert torch.equal(call(x)[0], want)  # the way in keeps what it needs
    refs = [weakref.ref(x), weakref.ref(result)]
    del x, result
    assert [r() for r in refs] == [None, None]
    assert held() is not None
    del call
    assert held() is None  # at once, without the collector


def test_the_builtin(machine_code: bytes) -> None:
    steps = (calls.mul(2, 0, 1), calls.add(3, 2, 0))
    executable = Executable(Plan(4, (0, 1), (3, 2), steps), machine_code)
    assert is_builtin(executable)
    x, y = torch.randn(3), torch.nn.Parameter(torch.randn(3))
    for _ in range(3):
        first, second = executable.call(x, y)
        assert torch.equal(second, x * y) and torch.equal(first, x * y + x) and not first.requires_grad
    assert executable.stats.runs == 3
    for wrong in ((x,), (x, y, y), (x, 1), (None, y), (x, [y])):
        with pytest.raises(InternalError):
            executable.call(*wrong)
    with pytest.raises(TypeError):
        executable.call(x, other=y)
    with pytest.raises(SmeltError, match="must match the size" if HAS_MESSAGES else "without a message"):
        executable.call(x, torch.randn(4))
    assert torch.equal(executable.call(x, y)[1], x * y)
    assert executable.stats.runs == 4


def test_the_builtin_in_many_threads(machine_code: bytes) -> None:
    a = torch.randn(64, 64)
    arena = (ArenaTensor(1, 0, (64, 64), (64, 1), torch.float32),)
    steps = (calls.mm_out(1, 0, 0), calls.mm_out(1, 0, 0), calls.add(2, 1, 1))
    executable = Executable(Plan(3, (0,), (2,), steps, arena=arena, arena_nbytes=64 * 64 * 4), machine_code)
    assert is_builtin(executable)
    inputs = [a * k for k in range(1, 5)]
    wants = [x @ x * 2 for x in inputs]
    wrong: list[int] = []

    def work(k: int) -> None:
        for i in range(300):
            if i % 50 == k:
                with pytest.raises(SmeltError):
                    executable.call(torch.randn(3, 5))
            if not torch.equal(executable.call(inputs[k])[0], wants[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert executable.stats.runs == 1200


def test_a_failed_run_leaves_the_next_one_right(machine_code: bytes) -> None:
    trap = [False]

    def maybe(t: torch.Tensor) -> torch.Tensor:
        if trap[0]:
            raise KeyboardInterrupt
        return t * 2

    steps = (calls.add(1, 0, 0), PyCall(maybe, (1,), (2,)))
    executable = Executable(Plan(3, (0,), (2,), steps), machine_code)
    x = torch.randn(3)
    want = executable.run([x])[0]
    trap[0] = True
    with pytest.raises(KeyboardInterrupt):
        executable.run([x])
    trap[0] = False
    assert torch.equal(executable.run([x])[0], want)
    assert executable.stats.runs == 2


def test_exceptions_of_python_steps_are_the_users_own(machine_code: bytes) -> None:
    executable = Executable(Plan(1, (0,), (), (PyCall(boom, (0,)),)), machine_code)
    with pytest.raises(KeyError, match="boom"):
        executable.run([torch.randn(1)])


def test_failures_name_the_instruction_and_its_origin(machine_code: bytes) -> None:
    plan = Plan(2, (0, 1), (), (calls.mm_out(0, 0, 1),), origins=("model.py:7 in f",))
    for code in (machine_code, None):
        with pytest.raises(SmeltError) as raised:
            Executable(plan, code).run([torch.randn(2, 3), torch.randn(5, 7)])
        text = str(raised.value)
        assert "aoti_torch_cpu_mm_out" in text and "model.py:7" in text and "S0401" in text
        assert "2x3" in text or "mat1" in text or not HAS_MESSAGES


def test_reentrant(machine_code: bytes) -> None:
    inner: list[Executable] = []
    depth = [0]

    def again(t: torch.Tensor) -> torch.Tensor:
        depth[0] += 1
        if depth[0] == 3:
            return t
        return inner[0].run([t])[0]

    steps = (calls.add(2, 0, 0), Copy(1, 2), PyCall(again, (2,), (3,)), calls.add(4, 3, 1))
    arena = (ArenaTensor(1, 0, (3,), (1,), torch.float32),)
    executable = Executable(Plan(5, (0,), (4,), steps, arena=arena, arena_nbytes=64), machine_code)
    inner.append(executable)
    x = torch.ones(3)
    # 8 innermost, then + 8, + 4, + 2 from the arenas of the three runs.
    assert executable.run([x])[0].tolist() == [8.0 + 8 + 4 + 2] * 3
    inner.clear()


def test_two_threads_at_once(machine_code: bytes) -> None:
    weight = torch.randn(512, 512) / 23
    executable = Executable(whole_plan(weight), machine_code)
    inputs = [torch.randn(64, 512) for _ in range(4)]
    wants = [executable.run([x])[0] for x in inputs]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(40):
            k = (i * seed) % 4
            if not torch.equal(executable.run([inputs[k]])[0], wants[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert executable.stats.runs == 84


def test_the_gil_is_released(machine_code: bytes) -> None:
    """Another thread acts between two Python steps although the interpreter never makes anybody hand the GIL over."""
    begun, acted = threading.Event(), threading.Event()
    seen: list[bool] = []

    def wait_then_act() -> None:
        begun.wait()
        acted.set()

    a = torch.randn(400, 400)
    empty = Empty(1, (400, 400), (400, 1), torch.float32)
    steps = (
        empty,
        PyCall(begun.set, ()),
        *[calls.mm_out(1, 0, 0)] * 60,
        PyCall(lambda: seen.append(acted.is_set()), ()),
    )
    executable = Executable(Plan(2, (0,), (1,), steps), machine_code)
    interval = sys.getswitchinterval()
    for _ in range(20):  # a busy machine may not schedule the other thread in time
        begun.clear()
        acted.clear()
        thread = threading.Thread(target=wait_then_act)
        thread.start()
        sys.setswitchinterval(1000)
        try:
            executable.run([a])
        finally:
            sys.setswitchinterval(interval)
        thread.join()
        if seen[-1]:
            break
    assert seen[-1]


SYMBOLS = sorted(
    {
        *handles.NAMES,
        *(name for _, name in (*FUNCTION_CELLS, *GRAD_CELLS, *AUTOCAST_CELLS) if name != PARALLEL), THREADS,
        stable.CALL, stable.NEW_HANDLE, stable.NEW_CELL, stable.NEW_LIST, stable.PUSH,
        *stable.DELETERS.values(),
        mkldnn.LINEAR, "aoti_torch_cpu_mm_out", "aoti_torch_cpu_cat", "aoti_torch_cpu_index_Tensor", "aoti_torch_copy_",
        "aoti_torch__reinterpret_tensor", "aoti_torch_empty_strided", "aoti_torch_dtype_float32",
        "aoti_torch_device_type_cpu", "aoti_torch_layout_strided", "aoti_torch_abi_version",
        "torch_exception_get_what_without_backtrace",
    }
)  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", SYMBOLS)
def test_each_symbol_hidden_in_turn(machine_code: bytes, name: str) -> None:
    assert shim.has(name) or "." in name or " " in name or name in NEWER
    x, w = torch.randn(64, 512), torch.randn(512, 512) / 23
    plan = whole_plan(w)
    want = Executable(plan, None).run([x])[0]
    with shim.hidden(name):
        executable = Executable(plan, machine_code)
        with torch.enable_grad():
            for _ in range(2):
                got = executable.run([x])[0]
                assert torch.is_grad_enabled()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        failing = Executable(Plan(2, (0, 1), (), (calls.mm_out(0, 0, 1),)), machine_code)
        with pytest.raises(SmeltError):
            failing.run([torch.randn(2, 3), torch.randn(5, 7)])


def test_everything_private_hidden(machine_code: bytes) -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    arena = (ArenaTensor(2, 0, (8, 8), (8, 1), torch.float32),)
    plan = Plan(4, (0,), (3,), (calls.mm_out(2, 0, 1), calls.add(3, 2, 0)), ((1, w),), arena, 256)
    with shim.hidden(handles.FROM, handles.TO, handles.OWN, handles.STEAL, handles.WRAP, handles.LEND):
        executable = Executable(plan, machine_code)
        assert executable.is_native
        got = executable.run([x])[0]
        odd = executable.run([x.to_mkldnn().to_dense()])[0]
    torch.testing.assert_close(got, x @ w + x)
    torch.testing.assert_close(odd, got)


def test_code_that_is_not_code() -> None:
    plan = Plan(2, (0,), (1,), (calls.add(1, 0, 0),))
    x = torch.randn(3)
    with pytest.warns(UserWarning, match="plans run in Python"):
        executable = Executable(plan, b"\x7fELF garbage")
    assert not executable.is_native
    assert torch.equal(executable.run([x])[0], x + x)


def _in_child(executable: Executable, x: torch.Tensor, want: torch.Tensor, answer: Any) -> None:
    answer.value = int(torch.equal(executable.run([x])[0], want))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_fork(machine_code: bytes) -> None:
    x = torch.randn(3)
    executable = Executable(Plan(2, (0,), (1,), (calls.add(1, 0, 0),)), machine_code)
    want = executable.run([x])[0]
    context = multiprocessing.get_context("fork")
    answer = context.Value(ctypes.c_int, -1)
    child = context.Process(target=_in_child, args=(executable, x, want, answer))
    child.start()
    child.join(30)
    assert child.exitcode == 0 and answer.value == 1


def test_huge_strided_views_use_64_bit_arithmetic(machine_code: bytes) -> None:
    x = torch.zeros(1, dtype=torch.int8)
    sizes, strides = (2**20, 2**13), (0, 0)
    steps: tuple[Any, ...] = (
        View(1, 0, sizes, strides),
        CheckLayout(1, sizes, strides, torch.int8),
        View(2, 1, (3,), (0,)),
        Dispatch(aten.clone.default, (Use(2),), (3,)),
    )
    for code in (machine_code, None):
        assert Executable(Plan(4, (0,), (3,), steps), code).run([x])[0].tolist() == [0, 0, 0]


def test_symbols_and_codes() -> None:
    assert shim.address("no_such_symbol_at_all") is None and not shim.has("no_such_symbol_at_all")
    assert shim.dtype_code(torch.float32) != shim.dtype_code(torch.float64)
    assert shim.abi_version() is not None
    with shim.hidden("aoti_torch_dtype_float32"):
        assert shim.dtype_code(torch.float32) is None
    assert shim.dtype_code(torch.float32) is not None


def test_which_schemas_the_dispatcher_takes() -> None:
    takes = [aten.relu.default, aten.layer_norm.default, aten.cat.default, aten.view.default, aten.clamp.default]
    refuses = [
        aten.add.Tensor,
        aten.gelu.default,
        aten.split.Tensor,
        aten.item.default,
        aten.size.int,
        aten.pow.Tensor_Scalar,
    ]
    assert all(stable.dispatchable(op) for op in takes)
    assert not any(stable.dispatchable(op) for op in refuses)
    assert not stable.dispatchable(aten.clamp.default, (Use(0), 1), lambda v: 0 if isinstance(v, Use) else None)


Make = Callable[[], torch.Tensor]


@pytest.mark.usefixtures("young_heap")
@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4), lambda: torch.tensor(1.5), lambda: torch.empty(0, 3), lambda: torch.randn(4, 4).t(),
        lambda: torch.nn.Parameter(torch.randn(2)), lambda: torch.randn(3).to_mkldnn(), lambda: torch.tensor([True]),
    ],
)  # fmt: skip
def test_handles_there_and_back(make: Make) -> None:
    tensor = make()
    bridge = handles.bridge()
    assert bridge is not None and not bridge.copies
    handle = bridge.own(tensor)
    assert bridge.peek(handle) is tensor
    assert bridge.take(handle) is tensor
    ref = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert ref() is None
