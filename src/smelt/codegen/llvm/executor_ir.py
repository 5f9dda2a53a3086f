"""The LLVM text of the executor: one function that walks the table of `runtime.table`.

Invariant: the function refers to no symbol and has no constants outside its instructions, so its object code needs no
relocation at all and one copy serves every plan of every process on this kind of CPU.
"""

from __future__ import annotations

from smelt.runtime.table import (
    ANY_STRIDE,
    CALL_CLASSES,
    ENTRY_SYMBOL,
    MAX_DOUBLES,
    Cell,
    Launched,
    Op,
    Status,
)


class _Body:
    """Lines of one function, with fresh names for its values."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def let(self, text: str) -> str:
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def word(self, at: int, base: str = "%rec") -> str:
        """The record's int32 word number `at`, widened."""
        return self.let(f"sext i32 {self.let(f'load i32, ptr {self.word_address(at, base)}')} to i64")

    def word_address(self, at: int, base: str = "%rec") -> str:
        return self.let(f"getelementptr i32, ptr {base}, i64 {at}")

    def cell_address(self, index: str | int) -> str:
        return self.let(f"getelementptr i64, ptr %frame, i64 {int(index) if isinstance(index, int) else index}")

    def cell(self, index: str | int, kind: str = "i64") -> str:
        return self.let(f"load {kind}, ptr {self.cell_address(index)}")

    def store(self, value: str, index: str | int) -> None:
        self.do(f"store i64 {value}, ptr {self.cell_address(index)}")

    def function(self, index: str | int) -> str:
        return self.let(f"inttoptr i64 {self.cell(index)} to ptr")

    def unless_zero(self, rc: str, status: str, then: str) -> None:
        """Go to `then` when a return code is zero, else fail with `status`."""
        ok = self.let(f"icmp eq i32 {rc}, 0")
        self.do(f"br i1 {ok}, label %{then}, label %{status}")
        self.label(then)


def _call(body: _Body, nwords: int, ndoubles: int) -> None:
    function = body.function(body.word(2))
    args = [f"i64 {body.cell(body.word(3 + i))}" for i in range(nwords)]
    args += [f"double {body.cell(body.word(3 + nwords + i), 'double')}" for i in range(ndoubles)]
    rc = body.let(f"call i32 {function}({', '.join(args)})")
    ok = body.let(f"icmp eq i32 {rc}, 0")
    body.do(f"br i1 {ok}, label %next, label %library")


def _release_list(body: _Body, name: str, first: str, count: str, then: str) -> None:
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


def _query(body: _Body, function: Cell, handle: str, into: Cell, then: str) -> None:
    """Call a getter `rc f(handle, result*)`; its result lands in cell `into`."""
    address = body.let(f"ptrtoint ptr {body.cell_address(into)} to i64")
    rc = body.let(f"call i32 {body.function(function)}(i64 {handle}, i64 {address})")
    body.unless_zero(rc, "library", then)


def _check(body: _Body) -> None:
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


def _release(body: _Body) -> None:
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


def _dispatch(body: _Body) -> None:
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


def _escape(body: _Body) -> None:
    _query(body, Cell.GET_DATA, body.cell(body.word(2)), Cell.TMP0, "escape_got")
    data = body.cell(Cell.TMP0)
    inside = body.let(f"icmp uge i64 {data}, {body.cell(body.word(3))}")
    below = body.let(f"icmp ult i64 {data}, {body.cell(body.word(4))}")
    bad = body.let(f"and i1 {inside}, {below}")
    body.do(f"br i1 {bad}, label %escaped, label %next")


def _data(body: _Body) -> None:
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


def _descriptor(body: _Body, number: str, field: Launched, kind: str = "i64") -> str:
    """A cell of descriptor `number` of the record at hand, whose descriptors begin at `%desc`."""
    return body.let(f"load {kind}, ptr {_descriptor_address(body, number, field)}")


def _descriptor_address(body: _Body, number: str, field: Launched) -> str:
    row = body.let(f"getelementptr [{int(Launched.NCELLS)} x i64], ptr %desc, i64 {number}")
    return body.let(f"getelementptr i64, ptr {row}, i64 {int(field)}")


def _launch(body: _Body) -> None:
    """Run the record's kernels one after the other, then let Python have the data that one of them refused."""
    body.do(f"%desc = getelementptr i64, ptr %frame, i64 {body.word(2)}")
    body.do(f"%launches = add i64 {body.word(3)}, 0")
    scratch = body.cell(Cell.SCRATCH)
    body.do("br label %launch_one")
    body.label("launch_one")
    body.do("%li = phi i64 [0, %op_launch], [%ln, %launch_step]")
    function = _descriptor(body, "%li", Launched.FUNCTION, "ptr")
    args = [f"i64 {_descriptor(body, '%li', Launched.ARGS)}", "i64 0"]
    args += [f"i64 {_descriptor(body, '%li', Launched.ITEMS)}", f"i64 {scratch}"]
    fault = body.let(f"call i32 {function}({', '.join(args)})")
    fine = body.let(f"icmp eq i32 {fault}, 0")
    body.do(f"br i1 {fine}, label %launch_step, label %launch_fault")
    body.label("launch_fault")
    body.do(f"store i64 1, ptr {_descriptor_address(body, '%li', Launched.FAULT)}")
    body.store("1", Cell.REFUSED)
    body.do("br label %launch_step")
    body.label("launch_step")
    body.do("%ln = add i64 %li, 1")
    more = body.let("icmp slt i64 %ln, %launches")
    body.do(f"br i1 {more}, label %launch_one, label %launched")
    body.label("launched")
    refused = body.let(f"icmp ne i64 {body.cell(Cell.REFUSED)}, 0")
    body.do(f"br i1 {refused}, label %refused, label %next")
    _refused(body)


def _refused(body: _Body) -> None:
    """Call the Python step of each launch with a fault; all faults are cleared, also when a step fails."""
    body.label("refused")
    body.store("0", Cell.REFUSED)
    address = body.let("ptrtoint ptr %frame to i64")
    body.do("br label %refused_one")
    body.label("refused_one")
    body.do("%fi = phi i64 [0, %refused], [%fn, %refused_step]")
    body.do("%failing = phi i32 [0, %refused], [%failed_now, %refused_step]")
    at = _descriptor_address(body, "%fi", Launched.FAULT)
    has_fault = body.let(f"icmp ne i64 {body.let(f'load i64, ptr {at}')}, 0")
    fine_yet = body.let("icmp eq i32 %failing, 0")
    body.do(f"store i64 0, ptr {at}")
    must = body.let(f"and i1 {has_fault}, {fine_yet}")
    body.do(f"br i1 {must}, label %refused_call, label %refused_step")
    body.label("refused_call")
    step = _descriptor(body, "%fi", Launched.STEP)
    rc = body.let(f"call i32 {body.function(Cell.CALLBACK)}(i64 {address}, i64 {step})")
    body.do("br label %refused_step")
    body.label("refused_step")
    body.do(f"%failed_now = phi i32 [%failing, %refused_one], [{rc}, %refused_call]")
    body.do("%fn = add i64 %fi, 1")
    more = body.let("icmp slt i64 %fn, %launches")
    body.do(f"br i1 {more}, label %refused_one, label %refused_end")
    body.label("refused_end")
    body.do("%eager_did = icmp eq i32 %failed_now, 0")
    body.do("br i1 %eager_did, label %next, label %library")


def _grad_mode(body: _Body, on: bool) -> None:
    """Before the run: switch gradients off if they are on. After it: switch them on if they were."""
    if not on:
        has = body.let(f"icmp ne i64 {body.cell(Cell.GRAD_SET)}, 0")
        body.do(f"br i1 {has}, label %grad_ask, label %start")
        body.label("grad_ask")
        answer = body.let(f"call i8 {body.function(Cell.GRAD_GET)}()")
        body.do(f"%was_on = trunc i8 {answer} to i1")
        body.do("br i1 %was_on, label %grad_off, label %start")
        body.label("grad_off")
        body.do(f"call void {body.function(Cell.GRAD_SET)}(i64 0)")
        body.do("br label %start")
        return
    body.do("br i1 %restore, label %grad_on, label %done")
    body.label("grad_on")
    body.do(f"call void {body.function(Cell.GRAD_SET)}(i64 1)")
    body.do("br label %done")


_EMITTERS = (
    (Op.CHECK, _check),
    (Op.RELEASE, _release),
    (Op.DISPATCH, _dispatch),
    (Op.ESCAPE, _escape),
    (Op.DATA, _data),
    (Op.LAUNCH, _launch),
)


def executor_text() -> str:
    """LLVM IR of `i32 smelt_run(ptr code, ptr frame)`."""
    body = _Body()
    body.label("entry")
    _grad_mode(body, on=False)
    body.label("start")
    body.do("%restore = phi i1 [false, %entry], [false, %grad_ask], [true, %grad_off]")
    body.do(f"%first = sext i32 {body.let('load i32, ptr %code')} to i64")
    body.do("br label %loop")
    body.label("loop")
    body.do("%pc = phi i64 [%first, %start], [%after, %next]")
    body.do("%rec = getelementptr i32, ptr %code, i64 %pc")
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
    _endings(body)
    text = "\n".join(body.lines)
    head = f"define dso_local i32 @{ENTRY_SYMBOL}(ptr %code, ptr %frame) #0 {{"
    # A jump table would be data next to the code, reached through a relocation.
    return f'{head}\n{text}\n}}\nattributes #0 = {{ "no-jump-tables"="true" }}\n'


def _endings(body: _Body) -> None:
    failures = (Status.LIBRARY, Status.LAYOUT, Status.ESCAPED, Status.MALFORMED)
    for status in failures:
        body.label(status.name.lower())
        body.do("br label %failed")
    body.label("failed")
    incoming = ", ".join(f"[{int(s)}, %{s.name.lower()}]" for s in failures)
    body.do(f"%status = phi i32 {incoming}")
    body.store("%pc", Cell.FAILED_AT)
    count = body.word(2, "%code")
    _release_list(body, "clean", body.word(1, "%code"), count, "finish_failed")
    body.label("finish_failed")
    body.do("br label %finish")
    body.label("op_end")
    count = body.word(4, "%code")
    _release_list(body, "tidy", body.word(3, "%code"), count, "finish_ok")
    body.label("finish_ok")
    body.do("br label %finish")
    body.label("finish")
    body.do("%answer = phi i32 [%status, %finish_failed], [0, %finish_ok]")
    _grad_mode(body, on=True)
    body.label("done")
    body.do("ret i32 %answer")
