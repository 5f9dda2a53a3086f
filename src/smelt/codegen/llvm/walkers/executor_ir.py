"""The LLVM text of the executor: functions that walk the table of `runtime.encoding.table`.

Invariant: they refer to no symbol but each other and have no constants outside their instructions, so their object code
needs no relocation on x86-64 (on AArch64 one, to itself), and one copy serves every plan of every process on this kind
of CPU.

    smelt_run       switches gradients off, walks from the first record, deletes what is left
    smelt_walk      runs records until the last one, the end of a region, or a failure
    smelt_team      what a thread does in a region: the first one walks, the others help with chunks
    smelt_help      claims and runs chunks of a launch while there are any
    smelt_judge     after a region: whether threads are worth waiting for, or one should do all for a while
    smelt_poll      looks for signals now and then while a loop runs
    smelt_step      calls a Python step
    smelt_tick      (only with `profile`) adds the time since the last record to its row
"""

from __future__ import annotations

from smelt.codegen.llvm.walkers.executor_body import Body
from smelt.codegen.llvm.walkers.executor_control_ir import CONTROL_EMITTERS, control_text, emit_jumped
from smelt.codegen.llvm.walkers.executor_launch_ir import CLOCK, emit_launch, emit_region, team_text
from smelt.runtime.encoding.table import (
    ANY_STRIDE,
    CALL_CLASSES,
    ENTRY_SYMBOL,
    MAX_DOUBLES,
    PROFILE_CELLS,
    Cell,
    Op,
    Status,
)

_WALK = "smelt_walk"
_TICK = "smelt_tick"


def _call(body: Body, nwords: int, ndoubles: int) -> None:
    function = body.function(body.word(2))
    args = [f"i64 {body.cell(body.word(3 + i))}" for i in range(nwords)]
    args += [f"double {body.cell(body.word(3 + nwords + i), 'double')}" for i in range(ndoubles)]
    rc = body.let(f"call i32 {function}({', '.join(args)})")
    ok = body.let(f"icmp eq i32 {rc}, 0")
    body.do(f"br i1 {ok}, label %next, label %library")


def _release_list(body: Body, name: str, first: str, count: str, then: str) -> None:
    """Delete what the (cell, deleter) pairs hold: for each pair, if frame[cell] is not null, call and set null."""
    pred = f"{name}_begin"
    body.do(f"br label %{pred}")
    body.label(pred)
    body.do(f"br label %{name}")
    body.label(name)
    body.do(f"%{name}_i = phi i64 [0, %{pred}], [%{name}_n, %{name}_step]")
    done = body.let(f"icmp eq i64 %{name}_i, {count}")
    body.do(f"br i1 {done}, label %{then}, label %{name}_one")
    body.label(f"{name}_one")
    twice = body.let(f"shl i64 %{name}_i, 1")
    pair = body.let(f"getelementptr i32, ptr %code, i64 {body.let(f'add i64 {first}, {twice}')}")
    cell = body.word(0, pair)
    handle = body.cell(cell)
    empty = body.let(f"icmp eq i64 {handle}, 0")
    body.do(f"br i1 {empty}, label %{name}_step, label %{name}_del")
    body.label(f"{name}_del")
    deleter = body.function(body.word(1, pair))
    body.let(f"call i32 {deleter}(i64 {handle})")
    body.store("0", cell)
    body.do(f"br label %{name}_step")
    body.label(f"{name}_step")
    body.do(f"%{name}_n = add i64 %{name}_i, 1")
    body.do(f"br label %{name}")


def _query(body: Body, function: Cell, handle: str, into: Cell, then: str) -> None:
    """Call a getter `rc f(handle, result*)`; its result lands in cell `into`."""
    address = body.let(f"ptrtoint ptr {body.cell_address(into)} to i64")
    rc = body.let(f"call i32 {body.function(function)}(i64 {handle}, i64 {address})")
    body.unless_zero(rc, "library", then)


def _check(body: Body) -> None:
    handle = body.cell(body.word(2))
    ndim = body.word(3)
    _query(body, Cell.GET_DIM, handle, Cell.TMP0, "check_dim")
    same = body.let(f"icmp eq i64 {body.cell(Cell.TMP0)}, {ndim}")
    body.do(f"br i1 {same}, label %check_dtype, label %layout")
    body.label("check_dtype")
    dtype = body.word(6)
    any_dtype = body.let(f"icmp eq i64 {dtype}, 0")
    body.do(f"br i1 {any_dtype}, label %check_shape, label %check_dtype_get")
    body.label("check_dtype_get")
    _query(body, Cell.GET_DTYPE, handle, Cell.TMP0, "check_dtype_got")
    got = body.cell(Cell.TMP0, "i32")
    want = body.let(f"trunc i64 {body.cell(dtype)} to i32")
    same = body.let(f"icmp eq i32 {got}, {want}")
    body.do(f"br i1 {same}, label %check_shape, label %layout")
    body.label("check_shape")
    _query(body, Cell.GET_SIZES, handle, Cell.TMP0, "check_sizes")
    _query(body, Cell.GET_STRIDES, handle, Cell.TMP1, "check_strides")
    got_sizes, got_strides = body.cell(Cell.TMP0, "ptr"), body.cell(Cell.TMP1, "ptr")
    sizes, strides = body.cell(body.word(4), "ptr"), body.cell(body.word(5), "ptr")
    body.do("br label %check_loop")
    body.label("check_loop")
    body.do("%ci = phi i64 [0, %check_strides], [%cn, %check_step]")
    done = body.let(f"icmp eq i64 %ci, {ndim}")
    body.do(f"br i1 {done}, label %next, label %check_one")
    body.label("check_one")
    pairs = []
    for base in (sizes, got_sizes, strides, got_strides):
        pairs.append(body.let(f"load i64, ptr {body.let(f'getelementptr i64, ptr {base}, i64 %ci')}"))
    same_size = body.let(f"icmp eq i64 {pairs[0]}, {pairs[1]}")
    same_stride = body.let(f"icmp eq i64 {pairs[2]}, {pairs[3]}")
    any_stride = body.let(f"icmp eq i64 {pairs[2]}, {ANY_STRIDE}")
    fine = body.let(f"and i1 {same_size}, {body.let(f'or i1 {same_stride}, {any_stride}')}")
    body.do(f"br i1 {fine}, label %check_step, label %layout")
    body.label("check_step")
    body.do("%cn = add i64 %ci, 1")
    body.do("br label %check_loop")


def _release(body: Body) -> None:
    count = body.word(2)
    first = body.word_address(3)
    body.do("br label %rel_loop")
    body.label("rel_loop")
    body.do("%ri = phi i64 [0, %op_release], [%rn, %rel_step]")
    done = body.let(f"icmp eq i64 %ri, {count}")
    body.do(f"br i1 {done}, label %next, label %rel_one")
    body.label("rel_one")
    at = body.let(f"getelementptr i32, ptr {first}, i64 %ri")
    cell = body.word(0, at)
    handle = body.cell(cell)
    empty = body.let(f"icmp eq i64 {handle}, 0")
    body.do(f"br i1 {empty}, label %rel_step, label %rel_del")
    body.label("rel_del")
    body.let(f"call i32 {body.function(Cell.DELETE)}(i64 {handle})")
    body.store("0", cell)
    body.do("br label %rel_step")
    body.label("rel_step")
    body.do("%rn = add i64 %ri, 1")
    body.do("br label %rel_loop")


def _bump(body: Body) -> None:
    implementation = body.let(f"load i64, ptr {body.cell(body.word(2), 'ptr')}")
    place = body.let(f"add i64 {implementation}, {body.cell(body.word(3))}")
    counter = body.let(f"load i64, ptr {body.let(f'inttoptr i64 {place} to ptr')}")
    has_none = body.let(f"icmp eq i64 {counter}, 0")
    body.do(f"br i1 {has_none}, label %next, label %bump_one")
    body.label("bump_one")
    count = body.let(f"add i64 {counter}, {body.cell(body.word(4))}")
    body.let(f"atomicrmw add ptr {body.let(f'inttoptr i64 {count} to ptr')}, i32 1 seq_cst, align 4")
    body.do("br label %next")


def _dispatch(body: Body) -> None:
    args = ", ".join(f"i64 {body.cell(body.word(3 + i))}" for i in range(4))
    rc = body.let(f"call i32 {body.function(body.word(2))}({args})")
    first, count, nouts = body.word(7), body.word(8), body.word(9)
    ok = body.let(f"icmp eq i32 {rc}, 0")
    start = body.let(f"select i1 {ok}, i64 {nouts}, i64 0")
    body.do("br label %dis_loop")
    body.label("dis_loop")
    body.do(f"%di = phi i64 [{start}, %op_dispatch], [%dn, %dis_one]")
    done = body.let(f"icmp sge i64 %di, {count}")
    body.do(f"br i1 {done}, label %dis_end, label %dis_one")
    body.label("dis_one")
    body.store("0", body.let(f"add i64 {first}, %di"))
    body.do("%dn = add i64 %di, 1")
    body.do("br label %dis_loop")
    body.label("dis_end")
    body.do(f"br i1 {ok}, label %next, label %library")


def _escape(body: Body) -> None:
    _query(body, Cell.GET_DATA, body.cell(body.word(2)), Cell.TMP0, "escape_got")
    data = body.cell(Cell.TMP0)
    inside = body.let(f"icmp uge i64 {data}, {body.cell(body.word(3))}")
    below = body.let(f"icmp ult i64 {data}, {body.cell(body.word(4))}")
    bad = body.let(f"and i1 {inside}, {below}")
    body.do(f"br i1 {bad}, label %escaped, label %next")


def _advise(body: Body) -> None:
    _query(body, Cell.GET_DATA, body.cell(body.word(2)), Cell.TMP0, "advise_got")
    data = body.cell(Cell.TMP0)
    page = body.cell(body.word(6))
    mask = body.let(f"sub i64 0, {page}")
    above = body.let(f"add i64 {data}, {body.let(f'sub i64 {page}, 1')}")
    first = body.let(f"and i64 {above}, {mask}")
    behind = body.let(f"add i64 {data}, {body.cell(body.word(3))}")
    end = body.let(f"and i64 {behind}, {mask}")
    nbytes = body.let(f"sub i64 {end}, {first}")
    body.let(f"call i32 {body.function(body.word(4))}(i64 {first}, i64 {nbytes}, i64 {body.cell(body.word(5))})")
    body.do("br label %next")


def _data(body: Body) -> None:
    _query(body, Cell.GET_DATA, body.cell(body.word(2)), Cell.TMP0, "data_got")
    data = body.cell(Cell.TMP0)
    count = body.word(3)
    first = body.word_address(4)
    body.do("br label %data_loop")
    body.label("data_loop")
    body.do("%dti = phi i64 [0, %data_got], [%dtn, %data_one]")
    done = body.let(f"icmp eq i64 %dti, {count}")
    body.do(f"br i1 {done}, label %next, label %data_one")
    body.label("data_one")
    pair = body.let(f"getelementptr [2 x i32], ptr {first}, i64 %dti")
    body.store(body.let(f"add i64 {data}, {body.cell(body.word(1, pair))}"), body.word(0, pair))
    body.do("%dtn = add i64 %dti, 1")
    body.do("br label %data_loop")


def _switch_off(body: Body, mode: str, get: Cell, set_: Cell, which: str, then: str) -> None:
    """Before the run: switch a mode of the thread off if it is on; `%{mode}.was` says so in `then`."""
    has = body.let(f"icmp ne i64 {body.cell(set_)}, 0")
    body.do(f"br i1 {has}, label %{mode}_ask, label %{mode}_none")
    body.label(f"{mode}_none")
    body.do(f"br label %{then}")
    body.label(f"{mode}_ask")
    answer = body.let(f"call i8 {body.function(get)}({which})")
    body.do(f"%{mode}.on = trunc i8 {answer} to i1")
    body.do(f"br i1 %{mode}.on, label %{mode}_off, label %{then}")
    body.label(f"{mode}_off")
    body.do(f"call void {body.function(set_)}({', '.join(filter(None, (which, 'i64 0')))})")
    body.do(f"br label %{then}")
    body.label(then)
    body.do(f"%{mode}.was = phi i1 [false, %{mode}_none], [false, %{mode}_ask], [true, %{mode}_off]")


def _switch_on(body: Body, mode: str, set_: Cell, which: str, then: str) -> None:
    """After the run: switch a mode on if it was."""
    body.do(f"br i1 %{mode}.was, label %{mode}_again, label %{then}")
    body.label(f"{mode}_again")
    body.do(f"call void {body.function(set_)}({', '.join(filter(None, (which, 'i64 1')))})")
    body.do(f"br label %{then}")
    body.label(then)


_EMITTERS = (
    (Op.CHECK, _check),
    (Op.BUMP, _bump),
    (Op.RELEASE, _release),
    (Op.DISPATCH, _dispatch),
    (Op.ESCAPE, _escape),
    (Op.DATA, _data),
    (Op.ADVISE, _advise),
    (Op.LAUNCH, emit_launch),
    (Op.REGION, emit_region),
    *CONTROL_EMITTERS,
)
_CPU = "i64 0"  # c10::DeviceType
# A jump table would be data next to the code, reached through a relocation.
_ATTRIBUTES = 'attributes #0 = { "no-jump-tables"="true" }\n'


def executor_text(machine: str, *, profile: bool = False) -> str:
    """LLVM IR of `i32 smelt_run(ptr code, ptr frame)` for a machine as `platform.machine()` names it.

    profile: measure each record's time (`Cell.PROFILE`).
    """
    tick = _tick_text() if profile else ""
    functions = _run_text() + _walk_text(profile) + tick + control_text() + team_text(machine, _WALK)
    return "declare i64 @llvm.smin.i64(i64, i64)\ndeclare i64 @llvm.smax.i64(i64, i64)\n" + functions + _ATTRIBUTES


def _run_text() -> str:
    body = Body()
    body.label("entry")
    _switch_off(body, "grad", Cell.GRAD_GET, Cell.GRAD_SET, "", "graded")
    _switch_off(body, "cast", Cell.AUTOCAST_GET, Cell.AUTOCAST_SET, _CPU, "start")
    body.do(f"%first = sext i32 {body.let('load i32, ptr %code')} to i64")
    body.do(f"%status = call i32 @{_WALK}(ptr %code, ptr %frame, i64 %first)")
    fine = body.let("icmp eq i32 %status, 0")
    body.do(f"br i1 {fine}, label %succeeded, label %failed")
    body.label("failed")
    count = body.word(2, "%code")
    _release_list(body, "clean", body.word(1, "%code"), count, "finish")
    body.label("succeeded")
    count = body.word(4, "%code")
    _release_list(body, "tidy", body.word(3, "%code"), count, "finish")
    body.label("finish")
    _switch_on(body, "cast", Cell.AUTOCAST_SET, _CPU, "uncast")
    _switch_on(body, "grad", Cell.GRAD_SET, "", "done")
    body.do("ret i32 %status")
    return body.function_text(f"define dso_local i32 @{ENTRY_SYMBOL}(ptr %code, ptr %frame) #0")


def _walk_text(profile: bool) -> str:
    body = Body()
    body.label("entry")
    if profile:
        body.do("%tick = alloca [2 x i64], align 8")
        body.do("store i64 -1, ptr %tick")
    body.do("br label %loop")
    body.label("loop")
    body.do("%pc = phi i64 [%begin, %entry], [%after, %next], [%region_after, %region_done], [%jumped_to, %jumped]")
    body.do("%rec = getelementptr i32, ptr %code, i64 %pc")
    if profile:
        body.do(f"call void @{_TICK}(ptr %frame, ptr %tick, i64 %pc)")
    opcode = body.let("load i32, ptr %rec")
    cases = " ".join(f"i32 {int(op)}, label %op_{op.name.lower()}" for op in Op)
    body.do(f"switch i32 {opcode}, label %malformed [{cases}]")
    body.label("next")
    body.do(f"%after = add i64 %pc, {body.word(1)}")
    body.do("br label %loop")
    for nwords, plain, doubles in CALL_CLASSES:
        for op, ndoubles in ((plain, 0), (doubles, MAX_DOUBLES)):
            body.label(f"op_{op.name.lower()}")
            _call(body, nwords, ndoubles)
    for op in (Op.SET, Op.MOVE):
        body.label(f"op_{op.name.lower()}")
        src = body.word(3)
        body.store(body.cell(src), body.word(2))
        if op is Op.MOVE:
            body.store("0", src)
        body.do("br label %next")
    body.label("op_poke")
    body.do(f"store i64 {body.cell(body.word(3))}, ptr {body.cell(body.word(2), 'ptr')}")
    body.do("br label %next")
    for op, emit in _EMITTERS:
        body.label(f"op_{op.name.lower()}")
        emit(body)
    emit_jumped(body)
    _endings(body)
    return body.function_text(f"define internal i32 @{_WALK}(ptr %code, ptr %frame, i64 %begin) #0")


def _endings(body: Body) -> None:
    failures = (Status.LIBRARY, Status.LAYOUT, Status.ESCAPED, Status.MALFORMED, Status.MISS, Status.INTERRUPTED)
    for status in failures:
        body.label(status.name.lower())
        body.do("br label %failed")
    body.label("failed")
    incoming = ", ".join(f"[{int(s)}, %{s.name.lower()}]" for s in failures)
    body.do(f"%status = phi i32 {incoming}")
    body.store("%pc", Cell.FAILED_AT)
    body.do("ret i32 %status")
    body.label("region_failed")
    # The record inside has said where.
    body.do("ret i32 %region_status")
    body.label("op_leave")
    body.store(body.let(f"add i64 %pc, {body.word(1)}"), Cell.AT)
    body.do("ret i32 0")
    body.label("op_end")
    body.do("ret i32 0")


def _tick_text() -> str:
    """`void smelt_tick(ptr frame, ptr tick, i64 pc)`: tick holds the record before (-1: none) and when it began."""
    body = Body()
    body.label("entry")
    # A frame without a table is one whose plan does not ask for times.
    has_table = body.let(f"icmp ne i64 {body.cell(Cell.PROFILE)}, 0")
    body.do(f"br i1 {has_table}, label %read, label %done")
    body.label("read")
    now = body.let(f"call i64 @{CLOCK}(ptr %frame)")
    body.do("%last = load i64, ptr %tick")
    since_at = body.let("getelementptr i64, ptr %tick, i64 1")
    spent = body.let(f"sub i64 {now}, {body.let(f'load i64, ptr {since_at}')}")
    body.do("store i64 %pc, ptr %tick")
    body.do(f"store i64 {now}, ptr {since_at}")
    has_last = body.let("icmp sge i64 %last, 0")
    body.do(f"br i1 {has_last}, label %add, label %done")
    body.label("add")
    row = body.let(f"getelementptr [{PROFILE_CELLS} x i64], ptr {body.cell(Cell.PROFILE, 'ptr')}, i64 %last")
    least = body.let(f"load i64, ptr {row}")
    body.do(f"store i64 {body.let(f'call i64 @llvm.smin.i64(i64 {least}, i64 {spent})')}, ptr {row}")
    for place, more in ((1, spent), (2, "1")):
        at = body.let(f"getelementptr i64, ptr {row}, i64 {place}")
        before = body.let(f"load i64, ptr {at}")
        body.do(f"store i64 {body.let(f'add i64 {before}, {more}')}, ptr {at}")
    body.do("br label %done")
    body.label("done")
    body.do("ret void")
    return body.function_text(f"define internal void @{_TICK}(ptr %frame, ptr %tick, i64 %pc) #0")
