"""The LLVM text of jumps, numbers and expectations: what the executor does between kernels.

Invariant: a number is eight bytes of the frame (int, double, or 0 and 1), computed as Python does; what cannot be in
these bytes, or raises, is left to the record's Python step. No loop runs for long without a look at signals: each jump
back counts, every 64th at the latest reads the clock, and after 50 ms Python is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm.walkers.executor_body import Body
from smelt.codegen.llvm.walkers.executor_launch_ir import CLOCK, STEP
from smelt.runtime.encoding.table import Arith, Cell, Element, Op

_POLL = "smelt_poll"
_MOST_SKIPPED = 63
# Nanoseconds: between two looks at signals; a stretch of loops that is too short, and too long, to read the clock.
_PATIENCE = 50_000_000
_SHORT, _LONG = 1_000_000, 5_000_000
_EXACT = 2**53
_POW = "smelt_pow"
# Bits of doubles: the infinity, the largest float of 32 bits, and one that no computation gives.
_INFINITE = 0x7FF0000000000000
_LARGEST_F32 = 0x47EFFFFFE0000000
_NO_POWER = 0x7FFDEAD000000000


def _jump(body: Body) -> None:
    body.do(f"%jump_target = add i64 {body.word(2)}, 0")
    body.do("br label %jumped")


def _unless(body: Body) -> None:
    is_set = body.let(f"icmp ne i64 {body.cell(body.word(2))}, 0")
    body.do(f"%unless_target = add i64 {body.word(3)}, 0")
    body.do(f"br i1 {is_set}, label %next, label %jumped")


def _again(body: Body) -> None:
    body.do(f"%again_target = add i64 {body.word(2)}, 0")
    rc = body.let(f"call i32 @{_POLL}(ptr %frame)")
    fine = body.let(f"icmp eq i32 {rc}, 0")
    body.do(f"br i1 {fine}, label %jumped, label %interrupted")


def _arm(body: Body) -> None:
    body.store("0", Cell.POLLS)
    body.store("0", Cell.POLLS_SKIPPED)
    has_clock = body.let(f"icmp ne i64 {body.cell(Cell.CLOCK)}, 0")
    body.do(f"br i1 {has_clock}, label %arm_clock, label %next")
    body.label("arm_clock")
    body.store(body.let(f"call i64 @{CLOCK}(ptr %frame)"), Cell.POLLED_AT)
    body.do("br label %next")


def _load(body: Body) -> None:
    at = body.cell(body.word(3), "ptr")
    kinds = " ".join(f"i64 {int(e)}, label %load_{e.name.lower()}" for e in Element)
    body.do(f"switch i64 {body.word(4)}, label %malformed [{kinds}]")
    found: list[tuple[str, str]] = []
    for element in Element:
        label = f"load_{element.name.lower()}"
        body.label(label)
        found.append((_loaded(body, at, element), label))
        body.do("br label %load_done")
    body.label("load_done")
    body.do(f"%loaded = phi i64 {', '.join(f'[{value}, %{label}]' for value, label in found)}")
    body.store("%loaded", body.word(2))
    body.do("br label %next")


def _loaded(body: Body, at: str, element: Element) -> str:
    match element:
        case Element.F64 | Element.I64:
            return body.let(f"load i64, ptr {at}")
        case Element.F32:
            narrow = body.let(f"load float, ptr {at}")
        case Element.BF16:
            wide = body.let(f"zext i16 {body.let(f'load i16, ptr {at}')} to i32")
            narrow = body.let(f"bitcast i32 {body.let(f'shl i32 {wide}, 16')} to float")
        case Element.BOOL | Element.U8:
            return body.let(f"zext i8 {body.let(f'load i8, ptr {at}')} to i64")
        case _:
            bits = {Element.I32: 32, Element.I16: 16, Element.I8: 8}[element]
            return body.let(f"sext i{bits} {body.let(f'load i{bits}, ptr {at}')} to i64")
    return body.let(f"bitcast double {body.let(f'fpext float {narrow} to double')} to i64")


def _blit(body: Body) -> None:
    dst, src, nbytes = (body.cell(body.word(i)) for i in (2, 3, 4))
    offset = body.let(f"mul i64 {body.cell(body.word(5))}, {nbytes}")
    to = body.let(f"inttoptr i64 {body.let(f'add i64 {dst}, {offset}')} to ptr")
    source = body.let(f"inttoptr i64 {src} to ptr")
    body.let(f"call ptr {body.function(Cell.MEMCPY)}(ptr {to}, ptr {source}, i64 {nbytes})")
    body.do("br label %next")


def _expect(body: Body) -> None:
    at = body.cell(body.word(2), "ptr")
    cases = " ".join(f"i64 {size}, label %expect_{size}" for size in (1, 2, 4, 8))
    body.do(f"switch i64 {body.word(3)}, label %malformed [{cases}]")
    found = []
    for size in (1, 2, 4, 8):
        body.label(f"expect_{size}")
        bits = body.let(f"load i{8 * size}, ptr {at}")
        found.append((bits if size == 8 else body.let(f"zext i{8 * size} {bits} to i64"), size))
        body.do("br label %expect_got")
    body.label("expect_got")
    body.do(f"%expected = phi i64 {', '.join(f'[{value}, %expect_{size}]' for value, size in found)}")
    masked = body.let(f"and i64 %expected, {body.cell(body.word(4))}")
    above = body.let(f"icmp uge i64 {masked}, {body.cell(body.word(5))}")
    below = body.let(f"icmp ule i64 {masked}, {body.cell(body.word(6))}")
    body.do(f"br i1 {body.let(f'and i1 {above}, {below}')}, label %next, label %miss")


# --- numbers


class _Operands:
    """The operands of an ARITH record, as ints and as doubles."""

    def __init__(self, body: Body, a: str, b: str) -> None:
        self.body, self.a, self.b = body, a, b

    def doubles(self) -> tuple[str, str]:
        return self.double(self.a), self.double(self.b)

    def double(self, word: str) -> str:
        return self.body.let(f"bitcast i64 {word} to double")


# An emitter gives the result's bits, and the condition under which Python must do it.
_Emitter = Callable[[Body, _Operands], "tuple[str, str]"]


def _word(body: Body, double: str) -> str:
    return body.let(f"bitcast double {double} to i64")


def _bool(body: Body, bit: str) -> str:
    return body.let(f"zext i1 {bit} to i64")


def _with_overflow(name: str) -> _Emitter:
    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        pair = body.let(f"call {{ i64, i1 }} @llvm.{name}.with.overflow.i64(i64 {x.a}, i64 {x.b})")
        return body.let(f"extractvalue {{ i64, i1 }} {pair}, 0"), body.let(f"extractvalue {{ i64, i1 }} {pair}, 1")

    return emit


def _neg(body: Body, x: _Operands) -> tuple[str, str]:
    least = body.let(f"icmp eq i64 {x.a}, {-(2**63)}")
    return body.let(f"sub i64 0, {x.a}"), least


def _abs(body: Body, x: _Operands) -> tuple[str, str]:
    negated, least = _neg(body, x)
    below = body.let(f"icmp slt i64 {x.a}, 0")
    return body.let(f"select i1 {below}, i64 {negated}, i64 {x.a}"), least


def _divided(quotient: bool) -> _Emitter:
    """Rounded down, the remainder with the divisor's sign."""

    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        zero = body.let(f"icmp eq i64 {x.b}, 0")
        least = body.let(f"icmp eq i64 {x.a}, {-(2**63)}")
        minus = body.let(f"icmp eq i64 {x.b}, -1")
        bad = body.let(f"or i1 {zero}, {body.let(f'and i1 {least}, {minus}')}")
        # A division that must not be made is made by 1.
        by = body.let(f"select i1 {bad}, i64 1, i64 {x.b}")
        q = body.let(f"sdiv i64 {x.a}, {by}")
        r = body.let(f"sub i64 {x.a}, {body.let(f'mul i64 {q}, {by}')}")
        differs = body.let(f"icmp slt i64 {body.let(f'xor i64 {r}, {by}')}, 0")
        rest = body.let(f"icmp ne i64 {r}, 0")
        down = body.let(f"and i1 {differs}, {rest}")
        if quotient:
            return body.let(f"sub i64 {q}, {_bool(body, down)}"), bad
        return body.let(f"add i64 {r}, {body.let(f'select i1 {down}, i64 {by}, i64 0')}"), bad

    return emit


def _beyond_exact(body: Body, word: str) -> str:
    moved = body.let(f"add i64 {word}, {_EXACT}")
    return body.let(f"icmp ugt i64 {moved}, {2 * _EXACT}")


def _true_divided(body: Body, x: _Operands) -> tuple[str, str]:
    zero = body.let(f"icmp eq i64 {x.b}, 0")
    large = body.let(f"or i1 {_beyond_exact(body, x.a)}, {_beyond_exact(body, x.b)}")
    a, b = (body.let(f"sitofp i64 {word} to double") for word in (x.a, x.b))
    return _word(body, body.let(f"fdiv double {a}, {b}")), body.let(f"or i1 {zero}, {large}")


def _integer(text: str) -> _Emitter:
    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        return body.let(text.format(a=x.a, b=x.b)), "false"

    return emit


def _integer_test(condition: str) -> _Emitter:
    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        return _bool(body, body.let(f"icmp {condition} i64 {x.a}, {x.b}")), "false"

    return emit


def _float(text: str) -> _Emitter:
    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        a, b = x.doubles()
        return _word(body, body.let(text.format(a=a, b=b))), "false"

    return emit


def _float_test(condition: str) -> _Emitter:
    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        a, b = x.doubles()
        return _bool(body, body.let(f"fcmp {condition} double {a}, {b}")), "false"

    return emit


def _chosen(test: str, kind: str) -> _Emitter:
    """Python's min and max: the first unless the second is less, or greater."""

    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        a, b = (x.a, x.b) if kind == "i64" else x.doubles()
        second = body.let(f"{test} {kind} {b}, {a}")
        return body.let(f"select i1 {second}, i64 {x.b}, i64 {x.a}"), "false"

    return emit


def _float_divided(body: Body, x: _Operands) -> tuple[str, str]:
    a, b = x.doubles()
    zero = body.let(f"fcmp oeq double {b}, 0.0")
    return _word(body, body.let(f"fdiv double {a}, {b}")), zero


def _to_float(exact: bool) -> _Emitter:
    def emit(body: Body, x: _Operands) -> tuple[str, str]:
        found = _word(body, body.let(f"sitofp i64 {x.a} to double"))
        return found, _beyond_exact(body, x.a) if exact else "false"

    return emit


def _to_int(body: Body, x: _Operands) -> tuple[str, str]:
    # Its magnitude's bits are less than those of 2 ** 63 (a constant of type double would lie outside the code).
    fits = body.let(f"icmp ult i64 {body.let(f'and i64 {x.a}, {2**63 - 1}')}, {0x43E0000000000000}")
    safe = x.double(body.let(f"select i1 {fits}, i64 {x.a}, i64 0"))
    return body.let(f"fptosi double {safe} to i64"), body.let(f"xor i1 {fits}, true")


def _root(body: Body, x: _Operands) -> tuple[str, str]:
    a = x.double(x.a)
    below = body.let(f"fcmp olt double {a}, 0.0")
    return _word(body, body.let(f"call double @llvm.sqrt.f64(double {a})")), below


def _power(body: Body, x: _Operands) -> tuple[str, str]:
    a, b = x.doubles()
    found = body.let(f"call i64 @{_POW}(ptr %frame, double {a}, double {b})")
    return found, body.let(f"icmp eq i64 {found}, {_NO_POWER}")


def _power_text() -> str:
    """`i64 smelt_pow(ptr frame, double a, double b)`: the bits of what the C library gives, as Python; or no float."""
    body = Body()
    body.label("entry")
    a, b = (body.let(f"bitcast double %{name} to i64") for name in "ab")
    is_above = body.let(f"icmp ult i64 {body.let(f'sub i64 {a}, 1')}, {_INFINITE - 1}")
    is_finite = body.let(f"icmp ult i64 {body.let(f'and i64 {b}, {2**63 - 1}')}, {_INFINITE}")
    is_there = body.let(f"icmp ne i64 {body.cell(Cell.POW)}, 0")
    fits = body.let(f"and i1 {body.let(f'and i1 {is_above}, {is_finite}')}, {is_there}")
    body.do(f"br i1 {fits}, label %call, label %python")
    body.label("call")
    found = body.let(f"call double {body.function(Cell.POW)}(double %a, double %b)")
    bits = _word(body, found)
    fine = body.let(f"icmp ult i64 {bits}, {_INFINITE}")
    body.do(f"br i1 {fine}, label %done, label %python")
    body.label("done")
    body.do(f"ret i64 {bits}")
    body.label("python")
    body.do(f"ret i64 {_NO_POWER}")
    return body.function_text(f"define internal i64 @{_POW}(ptr %frame, double %a, double %b) #0")


def _in_f32(body: Body, x: _Operands) -> tuple[str, str]:
    magnitude = body.let(f"and i64 {x.a}, {2**63 - 1}")
    beyond = body.let(f"icmp ugt i64 {magnitude}, {_LARGEST_F32}")
    finite = body.let(f"icmp ult i64 {magnitude}, {_INFINITE}")
    return x.a, body.let(f"and i1 {beyond}, {finite}")


def _float_truth(body: Body, x: _Operands) -> tuple[str, str]:
    return _bool(body, body.let(f"fcmp une double {x.double(x.a)}, 0.0")), "false"


_ARITH: dict[Arith, _Emitter] = {
    Arith.COPY: lambda body, x: (x.a, "false"),
    Arith.I_ADD: _with_overflow("sadd"),
    Arith.I_SUB: _with_overflow("ssub"),
    Arith.I_MUL: _with_overflow("smul"),
    Arith.I_NEG: _neg,
    Arith.I_ABS: _abs,
    Arith.I_FLOORDIV: _divided(quotient=True),
    Arith.I_MOD: _divided(quotient=False),
    Arith.I_TRUEDIV: _true_divided,
    Arith.I_AND: _integer("and i64 {a}, {b}"),
    Arith.I_OR: _integer("or i64 {a}, {b}"),
    Arith.I_XOR: _integer("xor i64 {a}, {b}"),
    Arith.I_INVERT: _integer("xor i64 {a}, -1"),
    Arith.I_EQ: _integer_test("eq"),
    Arith.I_NE: _integer_test("ne"),
    Arith.I_LT: _integer_test("slt"),
    Arith.I_LE: _integer_test("sle"),
    Arith.I_GT: _integer_test("sgt"),
    Arith.I_GE: _integer_test("sge"),
    Arith.I_MIN: _chosen("icmp slt", "i64"),
    Arith.I_MAX: _chosen("icmp sgt", "i64"),
    Arith.I_FLOAT: _to_float(exact=False),
    Arith.I_EXACT: _to_float(exact=True),
    Arith.I_BOOL: lambda body, x: (_bool(body, body.let(f"icmp ne i64 {x.a}, 0")), "false"),
    Arith.F_ADD: _float("fadd double {a}, {b}"),
    Arith.F_SUB: _float("fsub double {a}, {b}"),
    Arith.F_MUL: _float("fmul double {a}, {b}"),
    Arith.F_TRUEDIV: _float_divided,
    Arith.F_NEG: _integer(f"xor i64 {{a}}, {-(2**63)}"),
    Arith.F_ABS: lambda body, x: (body.let(f"and i64 {x.a}, {2**63 - 1}"), "false"),
    Arith.F_EQ: _float_test("oeq"),
    Arith.F_NE: _float_test("une"),
    Arith.F_LT: _float_test("olt"),
    Arith.F_LE: _float_test("ole"),
    Arith.F_GT: _float_test("ogt"),
    Arith.F_GE: _float_test("oge"),
    Arith.F_MIN: _chosen("fcmp olt", "double"),
    Arith.F_MAX: _chosen("fcmp ogt", "double"),
    Arith.F_INT: _to_int,
    Arith.F_BOOL: _float_truth,
    Arith.F_SQRT: _root,
    Arith.F_POW: _power,
    Arith.F_IN_F32: _in_f32,
    Arith.B_NOT: _integer("xor i64 {a}, 1"),
}


def _arith(body: Body) -> None:
    x = _Operands(body, body.cell(body.word(4)), body.cell(body.word(5)))
    cases = " ".join(f"i64 {int(a)}, label %arith_{a.name.lower()}" for a in Arith)
    body.do(f"switch i64 {body.word(2)}, label %malformed [{cases}]")
    found = []
    for operation in Arith:
        label = f"arith_{operation.name.lower()}"
        body.label(label)
        found.append((*_ARITH[operation](body, x), label))
        body.do("br label %arith_done")
    body.label("arith_done")
    body.do(f"%computed = phi i64 {', '.join(f'[{value}, %{label}]' for value, _, label in found)}")
    body.do(f"%not_here = phi i1 {', '.join(f'[{bad}, %{label}]' for _, bad, label in found)}")
    body.do("br i1 %not_here, label %arith_python, label %arith_store")
    body.label("arith_store")
    body.store("%computed", body.word(3))
    body.do("br label %next")
    body.label("arith_python")
    _call_step(body, body.cell(body.word(6)))


def _step(body: Body) -> None:
    _call_step(body, body.cell(body.word(2)))


def _call_step(body: Body, step: str) -> None:
    rc = body.let(f"call i32 @{STEP}(ptr %frame, i64 {step})")
    fine = body.let(f"icmp eq i32 {rc}, 0")
    body.do(f"br i1 {fine}, label %next, label %library")


CONTROL_EMITTERS = (
    (Op.JUMP, _jump),
    (Op.UNLESS, _unless),
    (Op.AGAIN, _again),
    (Op.ARM, _arm),
    (Op.ARITH, _arith),
    (Op.LOAD, _load),
    (Op.BLIT, _blit),
    (Op.EXPECT, _expect),
    (Op.STEP, _step),
)


def emit_jumped(body: Body) -> None:
    """Where jumps meet, on their way to the walk's loop."""
    body.label("jumped")
    incoming = ", ".join(f"[%{name}_target, %op_{name}]" for name in ("jump", "unless", "again"))
    body.do(f"%jumped_to = phi i64 {incoming}")
    body.do("br label %loop")


def control_text() -> str:
    """LLVM IR of `i32 smelt_poll(ptr frame)`, not 0 where a signal's handler raised, of `i32 smelt_step(ptr frame, i64
    step)`, not 0 where a Python step failed, and of what numbers need.
    """
    declarations = [
        f"declare {{ i64, i1 }} @llvm.{name}.with.overflow.i64(i64, i64)\n" for name in ("sadd", "ssub", "smul")
    ]
    return (
        "".join(declarations) + "declare double @llvm.sqrt.f64(double)\n" + _poll_text() + _step_text() + _power_text()
    )


def _look_for_signals(body: Body, then: str) -> tuple[str, str]:
    """Take the GIL and let handlers run; what one raises is put into the frame, and `then` is next. Gives the state to
    give the GIL back with, and what the look returned.
    """
    state = body.let(f"call i32 {body.function(Cell.GIL_TAKE)}()")
    rc = body.let(f"call i32 {body.function(Cell.CHECK_SIGNALS)}()")
    calm = body.let(f"icmp eq i32 {rc}, 0")
    body.do(f"br i1 {calm}, label %calm, label %raised")
    body.label("raised")
    places = [f"ptr {body.cell_address(int(Cell.ERROR) + i)}" for i in range(3)]
    body.do(f"call void {body.function(Cell.FETCH_ERROR)}({', '.join(places)})")
    body.do(f"br label %{then}")
    body.label("calm")
    return state, rc


def _step_text() -> str:
    """Whatever is raised where the step's own function begins is lost on its way through the callback. So signals are
    looked for before, and what did not come to its end has failed.
    """
    body = Body()
    body.label("entry")
    body.store("0", Cell.STEPPED)
    state, _ = _look_for_signals(body, "failed")
    address = body.let("ptrtoint ptr %frame to i64")
    rc = body.let(f"call i32 {body.function(Cell.CALLBACK)}(i64 {address}, i64 %step)")
    ended = body.let(f"icmp ne i64 {body.cell(Cell.STEPPED)}, 0")
    fine = body.let(f"and i1 {ended}, {body.let(f'icmp eq i32 {rc}, 0')}")
    body.do(f"br i1 {fine}, label %done, label %failed")
    body.label("failed")
    body.do(f"call void {body.function(Cell.GIL_GIVE)}(i32 {state})")
    body.do("ret i32 1")
    body.label("done")
    body.do(f"call void {body.function(Cell.GIL_GIVE)}(i32 {state})")
    body.do("ret i32 0")
    return body.function_text(f"define internal i32 @{STEP}(ptr %frame, i64 %step) #0")


def _poll_text() -> str:
    body = Body()
    body.label("entry")
    count = body.cell(Cell.POLLS)
    skips = body.let(f"icmp sgt i64 {count}, 0")
    body.do(f"br i1 {skips}, label %skip, label %look")
    body.label("skip")
    body.store(body.let(f"sub i64 {count}, 1"), Cell.POLLS)
    body.do("ret i32 0")
    body.label("look")
    ready = body.let(f"icmp ne i64 {body.cell(Cell.CLOCK)}, 0")
    body.do(f"br i1 {ready}, label %clock, label %fine")
    body.label("clock")
    now = body.let(f"call i64 @{CLOCK}(ptr %frame)")
    spent = body.let(f"sub i64 {now}, {body.cell(Cell.POLLED_AT)}")
    # As many jumps are skipped as take about a millisecond: twice as many as before, or none.
    skipped = body.cell(Cell.POLLS_SKIPPED)
    elapsed_at = body.cell_address(Cell.POLL_CLOCK)
    since = body.let(f"sub i64 {now}, {body.let(f'load i64, ptr {elapsed_at}')}")
    body.do(f"store i64 {now}, ptr {elapsed_at}")
    twice = body.let(f"add i64 {body.let(f'shl i64 {skipped}, 1')}, 1")
    more = body.let(f"call i64 @llvm.smin.i64(i64 {twice}, i64 {_MOST_SKIPPED})")
    short = body.let(f"icmp slt i64 {since}, {_SHORT}")
    long = body.let(f"icmp sgt i64 {since}, {_LONG}")
    kept = body.let(f"select i1 {long}, i64 0, i64 {skipped}")
    chosen = body.let(f"select i1 {short}, i64 {more}, i64 {kept}")
    body.store(chosen, Cell.POLLS_SKIPPED)
    body.store(chosen, Cell.POLLS)
    due = body.let(f"icmp sgt i64 {spent}, {_PATIENCE}")
    has = body.let(f"icmp ne i64 {body.cell(Cell.FETCH_ERROR)}, 0")
    body.do(f"br i1 {body.let(f'and i1 {due}, {has}')}, label %ask, label %fine")
    body.label("ask")
    state, rc = _look_for_signals(body, "asked")
    body.do("br label %asked")
    body.label("asked")
    body.do(f"call void {body.function(Cell.GIL_GIVE)}(i32 {state})")
    body.store(body.let(f"call i64 @{CLOCK}(ptr %frame)"), Cell.POLLED_AT)
    body.do(f"ret i32 {rc}")
    body.label("fine")
    body.do("ret i32 0")
    return body.function_text(f"define internal i32 @{_POLL}(ptr %frame) #0")
