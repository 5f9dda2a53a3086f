"""The LLVM text of the builtin through which Python enters a plan, without a Python frame on the way.

Invariant: like the executor it refers to no symbol but `smelt_run` beside it; all else comes from the context
(`runtime.encoding.table.Field`). It touches idle frames only while it holds the GIL, and holds it except around
`smelt_run`.

    check the number and types of the arguments      (else SLOW)
    take an idle frame                               (none: SLOW)
    write the handles lent by the arguments, and numbers; release the GIL; smelt_run; take the GIL     (status: FAIL)
    wrap the outputs into a list; give the frame back
"""

from __future__ import annotations

from smelt.runtime.encoding.table import (
    BYTES_OFFSET,
    ENTER_SYMBOL,
    ENTRY_SYMBOL,
    GIVE_SYMBOL,
    NUMBER_CODES,
    TYPE_OFFSET,
    Cell,
    Field,
)


def _field(name: str, field: Field, kind: str = "i64") -> str:
    where = f"  %{name}.at = getelementptr i64, ptr %ctx, i64 {int(field)}"
    return f"{where}\n  %{name} = load {kind}, ptr %{name}.at, align 8"


def entry_text() -> str:
    """LLVM IR of `smelt_enter` and `smelt_give`, to stand in one module with `smelt_run`."""
    return _GIVE + _enter()


_GIVE = f"""
define dso_local void @{GIVE_SYMBOL}(ptr %ctx, ptr %frame) {{
{_field("idle", Field.IDLE)}
  %next.at = getelementptr i64, ptr %frame, i64 {int(Cell.NEXT)}
  store i64 %idle, ptr %next.at
  %address = ptrtoint ptr %frame to i64
  store i64 %address, ptr %idle.at
  ret void
}}
"""


def _cases(prefix: str) -> str:
    return " ".join(f"i64 {code}, label %{prefix}.{kind}" for kind, code in NUMBER_CODES.items())


def _enter() -> str:
    fields = "\n".join(
        (
            _field("want", Field.NARGS),
            _field("tensor", Field.TENSOR_TYPE),
            _field("subtype", Field.IS_SUBTYPE, "ptr"),
            _field("lend", Field.LEND_OFFSET),
            _field("first", Field.FIRST_INPUT),
            _field("code", Field.CODE, "ptr"),
            _field("save", Field.SAVE_THREAD, "ptr"),
            _field("restore", Field.RESTORE_THREAD, "ptr"),
            _field("vectorcall", Field.VECTORCALL, "ptr"),
            _field("idle", Field.IDLE),
            _field("kinds", Field.KINDS, "ptr"),
            _field("int", Field.INT_TYPE),
            _field("float", Field.FLOAT_TYPE),
            _field("bool", Field.BOOL_TYPE),
            _field("true", Field.TRUE),
            _field("as.int", Field.AS_INT, "ptr"),
            _field("as.float", Field.AS_FLOAT, "ptr"),
        )
    )
    return f"""
define dso_local ptr @{ENTER_SYMBOL}(ptr %self, ptr %args, i64 %nargs) {{
entry:
  %pair = alloca [2 x i64], align 8
  %overflow = alloca i32, align 4
  %ctx.at = getelementptr i8, ptr %self, i64 {BYTES_OFFSET}
  %ctx = load ptr, ptr %ctx.at, align 1
{fields}
  %count.ok = icmp eq i64 %nargs, %want
  br i1 %count.ok, label %types, label %slow

types:
  %t = phi i64 [0, %entry], [%t.next, %type.ok]
  %t.done = icmp eq i64 %t, %nargs
  br i1 %t.done, label %frame.take, label %type
type:
  %arg.at = getelementptr ptr, ptr %args, i64 %t
  %arg = load ptr, ptr %arg.at
  %type.at = getelementptr i8, ptr %arg, i64 {TYPE_OFFSET}
  %type.is = load i64, ptr %type.at
  %kind.at = getelementptr i64, ptr %kinds, i64 %t
  %kind = load i64, ptr %kind.at
  switch i64 %kind, label %type.tensor [{_cases("type")}]
type.int:
  %is.int = icmp eq i64 %type.is, %int
  br i1 %is.int, label %type.int.fits, label %slow
type.int.fits:
  %number = call i64 %as.int(ptr %arg, ptr %overflow)
  %over = load i32, ptr %overflow
  %fits = icmp eq i32 %over, 0
  br i1 %fits, label %type.ok, label %slow
type.float:
  %is.float = icmp eq i64 %type.is, %float
  br i1 %is.float, label %type.ok, label %slow
type.bool:
  %is.bool = icmp eq i64 %type.is, %bool
  br i1 %is.bool, label %type.ok, label %slow
type.tensor:
  %type.same = icmp eq i64 %type.is, %tensor
  br i1 %type.same, label %type.ok, label %type.ask
type.ask:
  %sub = call i32 %subtype(i64 %type.is, i64 %tensor)
  %is.sub = icmp ne i32 %sub, 0
  br i1 %is.sub, label %type.ok, label %slow
type.ok:
  %t.next = add i64 %t, 1
  br label %types

frame.take:
  %none = icmp eq i64 %idle, 0
  br i1 %none, label %slow, label %lend.begin
lend.begin:
  %frame = inttoptr i64 %idle to ptr
  %next.at = getelementptr i64, ptr %frame, i64 {int(Cell.NEXT)}
  %next = load i64, ptr %next.at
  store i64 %next, ptr %idle.at
  %inputs = getelementptr i64, ptr %frame, i64 %first
  br label %lends
lends:
  %i = phi i64 [0, %lend.begin], [%i.next, %lend.put]
  %i.done = icmp eq i64 %i, %nargs
  br i1 %i.done, label %run, label %lend.one
lend.one:
  %object.at = getelementptr i64, ptr %args, i64 %i
  %object = load i64, ptr %object.at
  %lend.kind.at = getelementptr i64, ptr %kinds, i64 %i
  %lend.kind = load i64, ptr %lend.kind.at
  %lend.object = inttoptr i64 %object to ptr
  switch i64 %lend.kind, label %lend.tensor [{_cases("lend")}]
lend.int:
  %lend.whole = call i64 %as.int(ptr %lend.object, ptr %overflow)
  br label %lend.store
lend.float:
  %lend.double = call double %as.float(ptr %lend.object)
  %lend.bits = bitcast double %lend.double to i64
  br label %lend.store
lend.bool:
  %lend.is = icmp eq i64 %object, %true
  %lend.truth = zext i1 %lend.is to i64
  br label %lend.store
lend.tensor:
  %handle.in = add i64 %object, %lend
  br label %lend.put
lend.store:
  %lent.number = phi i64 [%lend.whole, %lend.int], [%lend.bits, %lend.float], [%lend.truth, %lend.bool]
  br label %lend.put
lend.put:
  %lent = phi i64 [%lent.number, %lend.store], [%handle.in, %lend.tensor]
  %input.at = getelementptr i64, ptr %inputs, i64 %i
  store i64 %lent, ptr %input.at
  %i.next = add i64 %i, 1
  br label %lends

run:
  %thread = call ptr %save()
  %status = call i32 @{ENTRY_SYMBOL}(ptr %code, ptr %frame)
  call void %restore(ptr %thread)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %outputs, label %fail
{_outputs()}
slow:
{_field("slow.fn", Field.SLOW, "ptr")}
  %slow.result = call ptr %vectorcall(ptr %slow.fn, ptr %args, i64 %nargs, ptr null)
  ret ptr %slow.result

fail:
{_field("fail.fn", Field.FAIL, "ptr")}
{_field("long", Field.LONG, "ptr")}
{_field("fail.decref", Field.DECREF, "ptr")}
  %status.wide = sext i32 %status to i64
  %frame.object = call i64 %long(i64 %idle)
  %status.object = call i64 %long(i64 %status.wide)
  store i64 %frame.object, ptr %pair
  %pair.second = getelementptr i64, ptr %pair, i64 1
  store i64 %status.object, ptr %pair.second
  %fail.result = call ptr %vectorcall(ptr %fail.fn, ptr %pair, i64 2, ptr null)
  call void %fail.decref(i64 %frame.object)
  call void %fail.decref(i64 %status.object)
  ret ptr %fail.result
}}
"""


def _outputs() -> str:
    return f"""
outputs:
{_field("nouts", Field.NOUTS)}
{_field("cells", Field.OUTPUT_CELLS, "ptr")}
{_field("out.kinds", Field.OUTPUT_KINDS, "ptr")}
{_field("from.int", Field.LONG, "ptr")}
{_field("from.float", Field.FROM_FLOAT, "ptr")}
{_field("from.bool", Field.FROM_BOOL, "ptr")}
{_field("wrap", Field.WRAP, "ptr")}
{_field("list.new", Field.LIST_NEW, "ptr")}
{_field("list.set", Field.LIST_SET, "ptr")}
{_field("decref", Field.DECREF, "ptr")}
  %delete.at = getelementptr i64, ptr %frame, i64 {int(Cell.DELETE)}
  %delete = load ptr, ptr %delete.at
  %list = call ptr %list.new(i64 %nouts)
  br label %takes
takes:
  %k = phi i64 [0, %outputs], [%k.next, %take.next]
  %ok = phi i1 [true, %outputs], [%ok.next, %take.next]
  %k.done = icmp eq i64 %k, %nouts
  br i1 %k.done, label %give, label %take
take:
  %cell.at = getelementptr i64, ptr %cells, i64 %k
  %cell = load i64, ptr %cell.at
  %handle.at = getelementptr i64, ptr %frame, i64 %cell
  %handle = load i64, ptr %handle.at
  store i64 0, ptr %handle.at
  %out.kind.at = getelementptr i64, ptr %out.kinds, i64 %k
  %out.kind = load i64, ptr %out.kind.at
  %no.list = icmp eq ptr %list, null
  br i1 %no.list, label %take.drop, label %take.wrap
take.wrap:
  switch i64 %out.kind, label %wrap.tensor [{_cases("wrap")}]
wrap.int:
  %m.int = call ptr %from.int(i64 %handle)
  br label %wrapped.one
wrap.float:
  %m.double = bitcast i64 %handle to double
  %m.float = call ptr %from.float(double %m.double)
  br label %wrapped.one
wrap.bool:
  %m.bool = call ptr %from.bool(i64 %handle)
  br label %wrapped.one
wrap.tensor:
  %m.tensor = call ptr %wrap(i64 %handle)
  br label %wrapped.one
wrapped.one:
  %result = phi ptr [%m.int, %wrap.int], [%m.float, %wrap.float], [%m.bool, %wrap.bool], [%m.tensor, %wrap.tensor]
  %wrapped = icmp ne ptr %result, null
  br i1 %wrapped, label %take.set, label %take.drop
take.set:
  %set = call i32 %list.set(ptr %list, i64 %k, ptr %result)
  br label %take.drop
take.drop:
  %one = phi i1 [false, %take], [false, %wrapped.one], [true, %take.set]
  %is.handle = icmp eq i64 %out.kind, 0
  br i1 %is.handle, label %take.delete, label %take.next
take.delete:
  %dropped = call i32 %delete(i64 %handle)
  br label %take.next
take.next:
  %ok.next = and i1 %ok, %one
  %k.next = add i64 %k, 1
  br label %takes
give:
  %runs.at = getelementptr i64, ptr %frame, i64 {int(Cell.RUNS)}
  %runs = load i64, ptr %runs.at
  %runs.next = add i64 %runs, 1
  store i64 %runs.next, ptr %runs.at
  call void @{GIVE_SYMBOL}(ptr %ctx, ptr %frame)
  br i1 %ok, label %done, label %lost
done:
  ret ptr %list
lost:
  %some = icmp ne ptr %list, null
  br i1 %some, label %lost.list, label %lost.end
lost.list:
  call void %decref(ptr %list)
  br label %lost.end
lost.end:
  ret ptr null
"""
