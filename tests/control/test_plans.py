"""Plans with branches, loops, numbers and expectations: the native executor and the interpreter of plans agree."""

from __future__ import annotations

import gc
import math
import operator
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.diag import InternalError, Miss, SmeltError
from smelt.runtime.encoding.table import Arith
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.plan import (
    ArenaTensor,
    Blit,
    Branch,
    Empty,
    End,
    Exit,
    Expect,
    Instruction,
    Kind,
    Load,
    Loop,
    Otherwise,
    Plan,
    PyCall,
    Release,
    Scalar,
    Use,
)

CODE = executor_object(CodeCache(""))
MODES = pytest.mark.parametrize("code", [None, CODE], ids=["python", "native"])


def plan(
    *instructions: Instruction, kinds: dict[int, Kind], nslots: int, outputs: tuple[int, ...], inputs: int = 1
) -> Plan:
    return Plan(nslots, tuple(range(inputs)), outputs, instructions, kinds=kinds)


def number_out(slot: int, dtype: torch.dtype, dst: int) -> tuple[Instruction, ...]:
    return Empty(dst, (), (), dtype), Blit(dst, slot, dtype.itemsize)


@MODES
def test_loop_counts(code: bytes | None) -> None:
    """Sum of 0..n-1 for an n that only the run knows."""
    made = plan(
        Load(1, 0, torch.int64),
        Scalar(Arith.COPY, 2, (0,), operator.pos),
        Scalar(Arith.COPY, 3, (0,), operator.pos),
        Loop(),
        Scalar(Arith.I_LT, 4, (Use(2), Use(1)), operator.lt),
        Exit(4),
        Scalar(Arith.I_ADD, 3, (Use(3), Use(2)), operator.add),
        Scalar(Arith.I_ADD, 2, (Use(2), 1), operator.add),
        End(),
        *number_out(3, torch.int64, 5),
        kinds={1: "int", 2: "int", 3: "int", 4: "bool"},
        nslots=6,
        outputs=(5,),
    )
    run = Executable(made, code)
    assert run.is_native == (code is not None)
    for n in (0, 1, 10, 1000):
        (found,) = run.call(torch.tensor(n))
        assert found.item() == n * (n - 1) // 2


@MODES
def test_branch(code: bytes | None) -> None:
    made = plan(
        Load(1, 0, torch.float32),
        Scalar(Arith.F_LT, 2, (Use(1), 0.0), operator.lt),
        Branch(2),
        Scalar(Arith.F_NEG, 3, (Use(1),), operator.neg),
        Otherwise(),
        Scalar(Arith.COPY, 3, (Use(1),), operator.pos),
        End(),
        *number_out(3, torch.float64, 4),
        kinds={1: "float", 2: "bool", 3: "float"},
        nslots=5,
        outputs=(4,),
    )
    run = Executable(made, code)
    for value in (-2.5, 3.0, math.nan, -math.inf):
        (found,) = run.call(torch.tensor(value))
        torch.testing.assert_close(found, torch.tensor(abs(value), dtype=torch.float64), equal_nan=True)


INTS = (0, 1, -1, 2, -3, 7, -7, 2**31, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.5, 3.75, 1e300, -1e300, 2.0**63, -(2.0**63), math.inf, -math.inf, math.nan, 5e-324)
I_BINARY: dict[Arith, Callable[..., Any]] = {
    Arith.I_ADD: operator.add, Arith.I_SUB: operator.sub, Arith.I_MUL: operator.mul, Arith.I_MOD: operator.mod,
    Arith.I_FLOORDIV: operator.floordiv, Arith.I_TRUEDIV: operator.truediv, Arith.I_AND: operator.and_,
    Arith.I_OR: operator.or_, Arith.I_XOR: operator.xor, Arith.I_EQ: operator.eq, Arith.I_NE: operator.ne,
    Arith.I_LT: operator.lt, Arith.I_LE: operator.le, Arith.I_GT: operator.gt, Arith.I_GE: operator.ge,
    Arith.I_MIN: min, Arith.I_MAX: max,
}  # fmt: skip
I_UNARY: dict[Arith, Callable[..., Any]] = {
    Arith.COPY: operator.pos, Arith.I_NEG: operator.neg, Arith.I_ABS: abs, Arith.I_INVERT: operator.invert,
    Arith.I_FLOAT: float, Arith.I_BOOL: bool,
}  # fmt: skip
F_BINARY: dict[Arith, Callable[..., Any]] = {
    Arith.F_ADD: operator.add, Arith.F_SUB: operator.sub, Arith.F_MUL: operator.mul, Arith.F_TRUEDIV: operator.truediv,
    Arith.F_EQ: operator.eq, Arith.F_NE: operator.ne, Arith.F_LT: operator.lt, Arith.F_LE: operator.le,
    Arith.F_GT: operator.gt, Arith.F_GE: operator.ge, Arith.F_MIN: min, Arith.F_MAX: max,
}  # fmt: skip
F_UNARY: dict[Arith, Callable[..., Any]] = {
    Arith.F_NEG: operator.neg, Arith.F_ABS: abs, Arith.F_INT: int, Arith.F_BOOL: bool, Arith.F_SQRT: math.sqrt,
}  # fmt: skip
CASES = [
    *((op, eager, torch.int64, 2) for op, eager in I_BINARY.items()),
    *((op, eager, torch.int64, 1) for op, eager in I_UNARY.items()),
    *((op, eager, torch.float64, 2) for op, eager in F_BINARY.items()),
    *((op, eager, torch.float64, 1) for op, eager in F_UNARY.items()),
]


@pytest.mark.parametrize(("op", "eager", "dtype", "count"), CASES, ids=[case[0].name for case in CASES])
def test_numbers_are_pythons(op: Arith, eager: Callable[..., Any], dtype: torch.dtype, count: int) -> None:
    kind: Kind = "int" if dtype is torch.int64 else "float"
    sample = eager(*(1,) * count) if kind == "int" else eager(*(1.0,) * count)
    out: Kind = {int: "int", float: "float", bool: "bool"}[type(sample)]
    out_dtype = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}[out]
    made = plan(
        *(Load(2 + i, i, dtype) for i in range(count)),
        Scalar(op, 4, tuple(Use(2 + i) for i in range(count)), eager),
        *number_out(4, out_dtype, 5),
        kinds={2: kind, 3: kind, 4: out},
        nslots=6,
        outputs=(5,),
        inputs=count,
    )
    run = Executable(made, CODE)
    values = INTS if kind == "int" else FLOATS
    for a in values:
        for b in values if count == 2 else (0,):
            args = (a, b)[:count]
            inputs = [torch.tensor(v, dtype=dtype) for v in args]
            try:
                wanted = eager(*args)
            except (ArithmeticError, ValueError) as error:
                with pytest.raises(type(error), match=str(error)):
                    run.call(*inputs)
                continue
            if out == "int" and not -(2**63) <= wanted < 2**63:
                with pytest.raises(SmeltError, match="beyond 64 bits"):
                    run.call(*inputs)
                continue
            (found,) = run.call(*inputs)
            assert repr(found.item()) == repr(wanted), (args, wanted)


LITERALS: list[tuple[torch.dtype, list[Any]]] = [
    (torch.float32, [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]),
    (torch.float64, [0.1, -0.0, 0.0, math.nan, -math.inf]),
    (torch.bfloat16, [0.0, -0.0, 2.5, math.nan]),
    (torch.float16, [0.0, -0.0, 2.5, math.nan]),
    (torch.int64, [0, 1, -1, 2**63 - 1, -(2**63)]),
    (torch.int16, [0, -5, 5]),
    (torch.uint8, [0, 255]),
    (torch.bool, [True, False]),
]


@MODES
@pytest.mark.parametrize(("dtype", "values"), LITERALS, ids=[str(d) for d, _ in LITERALS])
def test_expect_is_exact(code: bytes | None, dtype: torch.dtype, values: list[Any]) -> None:
    for literal in values:
        made = Plan(2, (0,), (1,), (Expect(0, literal, dtype), Empty(1, (), (), torch.float32)))
        run = Executable(made, code)
        for value in values:
            given = torch.tensor(value, dtype=dtype)
            if repr(value) == repr(literal):
                run.call(given)
            else:
                with pytest.raises(Miss):
                    run.call(given)


@MODES
def test_expect_of_another_type_misses(code: bytes | None) -> None:
    for dtype, value, literal in ((torch.float32, 1.0, 1), (torch.int64, 1, True), (torch.float32, 0.1, 0.1)):
        made = Plan(2, (0,), (1,), (Expect(0, literal, dtype), Empty(1, (), (), torch.float32)))
        with pytest.raises(Miss):
            Executable(made, code).call(torch.tensor(value, dtype=dtype))


@MODES
def test_objects_and_python_inside_loops(code: bytes | None) -> None:
    """A list that grows in a loop, and a tensor that is made and released in each turn."""
    made = plan(
        Load(1, 0, torch.int64),
        PyCall(lambda: ([],), (), (2,)),
        Scalar(Arith.COPY, 3, (0,), operator.pos),
        Loop(),
        Scalar(Arith.I_LT, 4, (Use(3), Use(1)), operator.lt),
        Exit(4),
        PyCall(lambda i: torch.tensor(i), (3,), (5,)),
        PyCall(lambda items, t: ([*items, t.item()],), (2, 5), (2,)),
        Release((5,)),
        Scalar(Arith.I_ADD, 3, (Use(3), 1), operator.add),
        End(),
        kinds={1: "int", 2: "object", 3: "int", 4: "bool"},
        nslots=6,
        outputs=(2,),
    )
    run = Executable(made, code)
    for n in (3, 0, 2):
        assert run.call(torch.tensor(n)) == [list(range(n))]


@pytest.mark.usefixtures("young_heap")
@pytest.mark.spread(2)
@MODES
def test_errors_inside_loops_leave_nothing(code: bytes | None) -> None:
    alive: list[int] = []

    class Tracked(torch.Tensor):
        def __del__(self) -> None:
            alive.pop()

    def make(i: int) -> torch.Tensor:
        alive.append(i)
        return torch.zeros(2).as_subclass(Tracked)

    def fail(i: int) -> tuple[int, ...]:
        if i == 3:
            raise LookupError("three")
        return (i + 1,)

    made = plan(
        Scalar(Arith.COPY, 1, (0,), operator.pos),
        Loop(),
        Scalar(Arith.I_LT, 2, (Use(1), 10), operator.lt),
        Exit(2),
        PyCall(make, (1,), (3,)),
        PyCall(fail, (1,), (1,)),
        Release((3,)),
        End(),
        Empty(4, (), (), torch.float32),
        kinds={1: "int", 2: "bool"},
        nslots=5,
        outputs=(4,),
    )
    run = Executable(made, code)
    for _ in range(2):
        with pytest.raises(LookupError, match="three"):
            run.call(torch.zeros(1))
        gc.collect()
        assert not alive


def _forever() -> Plan:
    return plan(
        Scalar(Arith.COPY, 1, (True,), bool),
        Loop(),
        Exit(1),
        Scalar(Arith.COPY, 1, (True,), bool),
        End(),
        Empty(2, (), (), torch.float32),
        kinds={1: "bool"},
        nslots=3,
        outputs=(2,),
    )


@MODES
def test_interrupts_end_a_loop(code: bytes | None) -> None:
    run = Executable(_forever(), code)
    was = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("rang")))
    try:
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            begin = time.perf_counter()
            with pytest.raises(TimeoutError, match="rang"):
                run.call(torch.zeros(1))
            assert 0.05 < time.perf_counter() - begin < 5
    finally:
        signal.signal(signal.SIGALRM, was)


# Where a handler raises between two lines that could catch it, Python says so, and the run is interrupted all the same.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@MODES
def test_interrupts_end_a_loop_of_python_steps(code: bytes | None) -> None:
    """Most of the time goes by in Python and in its callbacks, where an exception of a handler could get lost."""
    made = plan(
        Scalar(Arith.COPY, 1, (0,), int),
        Loop(),
        Scalar(Arith.I_LT, 3, (Use(1), 2**40), operator.lt),
        Exit(3),
        PyCall(lambda i: (i + 1,), (1,), (1,)),
        End(),
        Empty(2, (), (), torch.float32),
        kinds={1: "int", 3: "bool"},
        nslots=4,
        outputs=(2,),
    )
    run = Executable(made, code)

    def ring(*_: object) -> None:
        raise TimeoutError("rang")

    was = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(20):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises((TimeoutError, KeyboardInterrupt)):
                run.call(torch.zeros(1))
    finally:
        signal.signal(signal.SIGALRM, was)


def test_loops_leave_the_interpreter_to_others() -> None:
    """A native loop holds no lock: another thread stops it by writing into its input."""
    made = plan(
        Loop(), Load(1, 0, torch.bool), Exit(1), End(), Empty(2, (), (), torch.float32),
        kinds={1: "bool"}, nslots=3, outputs=(2,),
    )  # fmt: skip
    go_on = torch.tensor(True)
    threading.Timer(0.1, lambda: go_on.fill_(False)).start()
    Executable(made, CODE).call(go_on)


@pytest.mark.parametrize(
    "instructions",
    [
        (Loop(),), (End(),), (Otherwise(),), (Exit(1),), (Loop(), Otherwise(), End()),
        (Branch(1), Exit(1), End()), (Branch(1), Otherwise(), Otherwise(), End()),
        (Branch(1), Empty(2, (), (), torch.float32), End()),
        (Branch(1), Scalar(Arith.COPY, 3, (1,), operator.pos), End(), Load(4, 3, torch.int64)),
    ],
)  # fmt: skip
def test_plans_that_do_not_nest(instructions: tuple[Instruction, ...]) -> None:
    start = Scalar(Arith.COPY, 1, (True,), bool)
    made = plan(start, *instructions, kinds={1: "bool", 3: "int", 4: "int"}, nslots=6, outputs=())
    with pytest.raises(InternalError, match=r"rules|nest"):
        Executable(made, None)


def test_arena_numbers() -> None:
    """Rows written one by one, by a number's row; and a number read back from memory that a run plans."""
    made = Plan(
        5,
        (0,),
        (2,),
        (
            Empty(2, (4, 3), (3, 1), torch.float32),
            Scalar(Arith.COPY, 3, (0,), operator.pos),
            Loop(),
            Scalar(Arith.I_LT, 4, (Use(3), 4), operator.lt),
            Exit(4),
            Blit(1, 0, 12),
            Blit(2, 1, 12, row=3),
            Scalar(Arith.I_ADD, 3, (Use(3), 1), operator.add),
            End(),
        ),
        arena=(ArenaTensor(1, 0, (3,), (1,), torch.float32),),
        arena_nbytes=64,
        kinds={3: "int", 4: "bool"},
    )
    for code in (None, CODE):
        x = torch.randn(3)
        (found,) = Executable(made, code).call(x)
        assert torch.equal(found, x.expand(4, 3))
