"""The LLVM text of `smelt_call`: what runs when a compiled object is called, from its arguments to its result.

Invariant: it refers to Python's functions, `smelt_guards` beside it and the process's block, and to nothing else. The
table of rows and the objects that a run uses are held while they are in use, since guards may call Python and a run may
let the GIL go. Whatever is not understood goes to the block's SLOW with the same arguments.

    find the table of the object                                     (none, or someone records: SLOW)
    for each row whose guards hold, the first one, or that one of its plans which is for these sizes:
        without a plan, or without an idle frame: PYTHON
        lend the inputs' handles and numbers to the frame; smelt_run             (status: FAIL)
        wrap the outputs; make the result of them
    no row: SLOW
"""

from __future__ import annotations

from smelt.codegen.llvm.walkers.entry_guards_ir import guards_function
from smelt.codegen.llvm.walkers.entry_text import EntryText
from smelt.runtime.encoding.entry_table import (
    BASICSIZE_AT,
    BLOCK_SYMBOL,
    CALL_SYMBOL,
    FIRST_SLOT_AT,
    GUARDS_SYMBOL,
    LIST_ITEMS_AT,
    MAX_REGISTERS,
    TABLE_AT,
    TUPLE_ITEMS_AT,
    TYPE_AT,
    Block,
    Kind,
    Row,
)
from smelt.runtime.encoding.table import BYTES_OFFSET, NUMBER_CODES, Cell, Field


class _Call(EntryText):
    """`smelt_call` under construction."""

    def row(self, word: Row, kind: str = "i64") -> str:
        return self.element("%row", int(word), kind)

    def asked(self, word: Row, kind: str = "i64") -> str:
        return self.element("%asked", int(word), kind)

    def context(self, field: Field, kind: str = "i64") -> str:
        return self.element("%context", int(field), kind)

    def count(self, at: str) -> str:
        """Add one to a counter; its new value."""
        value = self.let(f"add i64 {self.load('i64', at)}, 1")
        self.store("i64", value, at)
        return value

    def kwargs_or_none(self) -> str:
        none = self.block_word(Block.NONE, "ptr")
        return self.let(f"select i1 {self.is_null('%kwargs')}, ptr {none}, ptr %kwargs")

    def vectorcall(self, function: str, *arguments: str) -> str:
        """Call a Python object with borrowed arguments."""
        for i, argument in enumerate(arguments):
            self.store("ptr", argument, self.gep("ptr", "%stack", i))
        return self.python("PyObject_Vectorcall", function, "%stack", str(len(arguments)), "null")


def _find(c: _Call) -> str:
    """`%table`, and its holder, held; else slow."""
    c.need(c.equal(c.block_word(Block.BUSY), 0), "slow")
    size = c.field(c.field("%self", TYPE_AT, "ptr"), BASICSIZE_AT)
    last = c.field("%self", c.let(f"sub i64 {size}, 8"), "ptr")
    _if_dispatcher(c, last, "found.last", "look.first")
    c.label("look.first")
    first = c.field("%self", FIRST_SLOT_AT, "ptr")
    _if_dispatcher(c, first, "found.first", "slow")
    c.label("found.last")
    c.go("found")
    c.label("found.first")
    c.go("found")
    c.label("found")
    dispatcher = c.let(f"phi ptr [{last}, %found.last], [{first}, %found.first]")
    holder = c.field(dispatcher, TABLE_AT, "ptr")
    c.need_not(c.is_null(holder), "slow")
    c.python("Py_IncRef", holder)
    c.do(f"%table = load ptr, ptr {c.at(holder, BYTES_OFFSET)}, align 1")
    return holder


def _if_dispatcher(c: _Call, value: str, then: str, otherwise: str) -> None:
    """Branch on whether a slot holds a dispatcher; it may be empty."""
    c.need_not(c.is_null(value), otherwise)
    c.branch(c.equal(c.field(value, TYPE_AT), c.block_word(Block.DISPATCHER)), then, otherwise)


def _rows(c: _Call) -> None:
    """Ask the rows in order; `%asked` is the first whose guards hold."""
    rows = c.load("i64", "%table")
    before = c.block
    c.go("ask")
    c.label("ask")
    c.do(f"%k = phi i64 [0, %{before}], [%k.next, %ask.next]")
    c.branch(c.let(f"icmp slt i64 %k, {rows}"), "ask.one", "none")
    c.label("ask.one")
    c.do("%k.next = add i64 %k, 1")
    c.do(f"%asked = load ptr, ptr {c.gep('ptr', '%table', '%k.next')}")
    guards = c.asked(Row.GUARDS, "ptr")
    c.do(f"%held = call i32 @{GUARDS_SYMBOL}(ptr {guards}, ptr %args, ptr %kwargs, ptr %regs)")
    c.branch(c.equal("%held", 0, "i32"), "ask.next", "hit")
    c.label("ask.next")
    c.go("ask")


def _choose(c: _Call) -> None:
    """`%row` is the one asked, or the one of its plans that is for these sizes; else python."""
    c.label("hit")
    plans = c.asked(Row.PLANS, "ptr")
    c.branch(c.is_null(plans), "whole", "choose")
    c.label("whole")
    c.go("run")
    c.label("choose")
    registers, count = c.asked(Row.SIZES, "ptr"), c.asked(Row.NSIZES)
    with c.loop(0, c.load("i64", plans)) as loop:
        plan = c.element(plans, c.add(loop.index, 1), "ptr")
        sizes, other = c.element(plan, int(Row.SIZES), "ptr"), c.fresh("other")
        with c.loop(0, count) as dim:
            found = c.element("%regs", c.element(registers, dim.index))
            c.need(c.equal(found, c.element(sizes, dim.index)), other)
        c.go("chosen")
        c.label(other)
    c.go("python")
    c.label("chosen")
    c.go("run")
    c.label("run")
    c.do(f"%row = phi ptr [%asked, %whole], [{plan}, %chosen]")


def _run(c: _Call) -> None:
    """Lend the inputs and run; `%status`."""
    c.store("i64", c.count(c.asked(Row.CLOCK, "ptr")), c.gep("i64", "%asked", int(Row.USED)))
    c.do(f"%kind = load i64, ptr {c.gep('i64', '%row', int(Row.KIND))}")
    c.need_not(c.equal("%kind", int(Kind.PYTHON)), "python")
    c.do(f"%context = load ptr, ptr {c.gep('i64', '%row', int(Row.CONTEXT))}")
    c.do(f"%idle.at = getelementptr i64, ptr %context, i64 {int(Field.IDLE)}")
    c.do("%frame = load ptr, ptr %idle.at")
    c.need_not(c.is_null("%frame"), "python")
    c.count(c.asked(Row.CALLS, "ptr"))
    c.count(c.gep("i64", "%asked", int(Row.HITS)))
    c.store("ptr", c.element("%frame", int(Cell.NEXT), "ptr"), "%idle.at")
    inputs = c.gep("i64", "%frame", c.context(Field.FIRST_INPUT))
    lend, registers = c.context(Field.LEND_OFFSET), c.row(Row.INPUTS, "ptr")
    c.do(f"%ninputs = load i64, ptr {c.gep('i64', '%row', int(Row.NINPUTS))}")
    with c.loop(0, "%ninputs") as loop:
        at = c.element(registers, loop.index)
        number, tensor, lent = c.fresh("number"), c.fresh("tensor"), c.fresh("lent")
        c.branch(c.let(f"icmp slt i64 {at}, 0"), number, tensor)
        c.label(number)
        bits = c.element("%regs", c.let(f"xor i64 {at}, -1"))
        c.store("i64", bits, c.gep("i64", inputs, loop.index))
        c.go(lent)
        c.label(tensor)
        found = c.element("%regs", at, "ptr")
        c.python("Py_IncRef", found)
        handle = c.let(f"add i64 {c.let(f'ptrtoint ptr {found} to i64')}, {lend}")
        c.store("i64", handle, c.gep("i64", inputs, loop.index))
        c.go(lent)
        c.label(lent)
    code, run = c.context(Field.CODE, "ptr"), c.row(Row.RUN, "ptr")
    c.branch(c.equal(c.row(Row.KEEPS_GIL), 0), "free", "kept")
    c.label("free")
    thread = c.python("PyEval_SaveThread")
    c.do(f"%status.free = call i32 {run}(ptr {code}, ptr %frame)")
    c.python("PyEval_RestoreThread", thread)
    c.go("ran")
    c.label("kept")
    c.do(f"%status.kept = call i32 {run}(ptr {code}, ptr %frame)")
    c.go("ran")
    c.label("ran")
    c.do("%status = phi i32 [%status.free, %free], [%status.kept, %kept]")
    with c.loop(0, "%ninputs") as loop:
        is_tensor = c.let(f"icmp sge i64 {c.element(registers, loop.index)}, 0")
        with c.when(is_tensor):
            handle = c.let(f"sub i64 {c.element(inputs, loop.index)}, {lend}")
            c.python("Py_DecRef", c.let(f"inttoptr i64 {handle} to ptr"))
    c.need(c.equal("%status", 0, "i32"), "fail")


def _wrap_one(c: _Call, number: str) -> str:
    """A Python tensor of an output's handle, which is deleted, or its number; null if Python has no memory."""
    at = c.gep("i64", "%frame", c.element(c.context(Field.OUTPUT_CELLS, "ptr"), number))
    word = c.load("i64", at)
    c.store("i64", "0", at)
    kind = c.element(c.context(Field.OUTPUT_KINDS, "ptr"), number)
    tensor, wrapped = c.fresh("tensor"), c.fresh("wrapped")
    ways = {name: c.fresh(name) for name in NUMBER_CODES}
    cases = " ".join(f"i64 {NUMBER_CODES[name]}, label %{label}" for name, label in ways.items())
    c.do(f"switch i64 {kind}, label %{tensor} [{cases}]")
    made: dict[str, str] = {}
    for name, label in ways.items():
        c.label(label)
        if name == "float":
            made[label] = c.python("PyFloat_FromDouble", c.let(f"bitcast i64 {word} to double"))
        else:
            made[label] = c.python("PyLong_FromLongLong" if name == "int" else "PyBool_FromLong", word)
        c.go(wrapped)
    c.label(tensor)
    made[tensor] = c.let(f"call ptr {c.context(Field.WRAP, 'ptr')}(i64 {word})")
    c.let(f"call i32 {c.element('%frame', int(Cell.DELETE), 'ptr')}(i64 {word})")
    c.go(wrapped)
    c.label(wrapped)
    return c.let(f"phi ptr {', '.join(f'[{value}, %{label}]' for label, value in made.items())}")


def _give(c: _Call) -> None:
    """Count the run and put the frame back."""
    c.count(c.gep("i64", "%frame", int(Cell.RUNS)))
    c.store("i64", c.load("i64", "%idle.at"), c.gep("i64", "%frame", int(Cell.NEXT)))
    c.store("ptr", "%frame", "%idle.at")


def _single(c: _Call) -> str:
    """The only output, which is the result."""
    made = _wrap_one(c, "0")
    _give(c)
    c.go("end.single")
    c.label("end.single")
    c.go("end")
    return made


def _several(c: _Call) -> str:
    """All outputs as a tuple or list (`%made`), which is the result or what it is made of: the latter is the answer."""
    count = c.context(Field.NOUTS)
    c.branch(c.equal("%kind", int(Kind.TUPLE)), "tuple", "list")
    c.label("tuple")
    as_tuple = c.python("PyTuple_New", count)
    c.go("fill")
    c.label("list")
    as_list = c.python("PyList_New", count)
    c.go("fill")
    c.label("fill")
    c.do(f"%made = phi ptr [{as_tuple}, %tuple], [{as_list}, %list]")
    with c.loop(0, count, carried=(("i1", "true"),)) as loop:
        item = _wrap_one(c, loop.index)
        fine = c.let(f"icmp ne ptr {item}, null")
        loop.carried[0].next = c.let(f"and i1 {loop.carried[0].now}, {fine}")
        put, drop, after = c.fresh("put"), c.fresh("drop"), c.fresh("after")
        c.branch(c.is_null("%made"), drop, put)
        c.label(put)
        is_tuple = c.equal("%kind", int(Kind.TUPLE))
        inside = c.at("%made", TUPLE_ITEMS_AT)
        to, outside = c.fresh("to"), c.fresh("outside")
        here = c.block
        c.branch(is_tuple, to, outside)
        c.label(outside)
        items = c.load("ptr", c.at("%made", LIST_ITEMS_AT))
        c.go(to)
        c.label(to)
        base = c.let(f"phi ptr [{inside}, %{here}], [{items}, %{outside}]")
        c.store("ptr", item, c.gep("ptr", base, loop.index))
        c.go(after)
        c.label(drop)
        c.branch(fine, f"{drop}.one", after)
        c.label(f"{drop}.one")
        c.python("Py_DecRef", item)
        c.go(after)
        c.label(after)
    _give(c)
    whole = c.let(f"and i1 {loop.carried[0].last}, {c.let('icmp ne ptr %made, null')}")
    c.need(whole, "lost")
    c.branch(c.equal("%kind", int(Kind.DELIVER)), "deliver", "end.several")
    c.label("end.several")
    c.go("end")
    c.label("deliver")
    delivered = c.vectorcall(c.row(Row.DELIVER, "ptr"), "%made", "%args", c.kwargs_or_none())
    c.python("Py_DecRef", "%made")
    c.go("end")
    c.label("lost")
    c.branch(c.is_null("%made"), "end.lost", "lost.one")
    c.label("lost.one")
    c.python("Py_DecRef", "%made")
    c.go("end.lost")
    c.label("end.lost")
    c.go("end")
    return delivered


def _others(c: _Call, holder: str, single: str, delivered: str) -> str:
    """The ways through Python, and the end, given what the other ways answer; the answer of the slow way."""
    c.label("python")
    asked = c.vectorcall(c.asked(Row.PYTHON, "ptr"), "%args", c.kwargs_or_none())
    c.go("end")
    c.label("fail")
    where = c.python("PyLong_FromLongLong", c.let("ptrtoint ptr %frame to i64"))
    status = c.python("PyLong_FromLongLong", c.let("sext i32 %status to i64"))
    failed = c.vectorcall(c.row(Row.FAIL, "ptr"), where, status, "%args", c.kwargs_or_none())
    c.python("Py_DecRef", where)
    c.python("Py_DecRef", status)
    c.go("end")
    c.label("end")
    ways = {
        "end.single": single,
        "end.several": "%made",
        "deliver": delivered,
        "end.lost": "null",
        "python": asked,
        "fail": failed,
    }
    answer = c.let(f"phi ptr {', '.join(f'[{value}, %{label}]' for label, value in ways.items())}")
    c.python("Py_DecRef", holder)
    c.do(f"ret ptr {answer}")
    c.label("none")
    c.python("Py_DecRef", holder)
    c.go("slow")
    c.label("slow")
    return c.vectorcall(c.block_word(Block.SLOW, "ptr"), "%self", "%args", c.kwargs_or_none())


def entry_module_text() -> str:
    """LLVM IR of the module of `smelt_call` and `smelt_guards`."""
    c = _Call(CALL_SYMBOL, "ptr %self, ptr %args, ptr %kwargs", result="dso_local ptr")
    c.allocas.append(f"  %regs = alloca i64, i64 {MAX_REGISTERS}, align 8")
    c.allocas.append("  %stack = alloca ptr, i64 4, align 8")
    holder = _find(c)
    _rows(c)
    _choose(c)
    _run(c)
    c.branch(c.equal("%kind", int(Kind.SINGLE)), "single", "several")
    c.label("single")
    single = _single(c)
    c.label("several")
    slow = _others(c, holder, single, _several(c))
    guards, declarations = guards_function()
    declared = sorted({*declarations, *c.declarations})
    text = c.finish(f"ptr {slow}")
    return "\n".join(
        (
            f"@{BLOCK_SYMBOL} = external global [{len(Block)} x i64]",
            *declared,
            guards.rsplit("\nattributes", 1)[0],
            text[text.index("define ") :],
        )
    )
