"""The LLVM text of `smelt_guards`: one function that walks a table of guards (`runtime.encoding.entry_table` has the
encoding).

Invariant: it answers 1 only if every guard holds, changes nothing but registers and the stamps of dicts that it has
verified, and leaves no Python exception behind. It runs with the GIL held and calls Python only where a guard says so.

    for each record: go to the block of its operation; from there to %next or to %miss
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm.walkers.entry_guards_text import GuardsText, needs_grad, plain_tensor
from smelt.codegen.llvm.walkers.entry_sizes_ir import SIZE_OPERATIONS
from smelt.runtime.encoding.entry_table import (
    GUARDS_SYMBOL,
    LENGTH_AT,
    LIST_ITEMS_AT,
    MAX_APART,
    MAX_REGISTERS,
    REFERENCES_AT,
    STAMP_AT,
    TUPLE_ITEMS_AT,
    TYPE_AT,
    Block,
    Guard,
    Space,
)


def _args(g: GuardsText) -> None:
    count, named = g.operand(0), g.operand(1)
    g.need(g.equal(g.field("%args", LENGTH_AT), count))
    with g.loop(0, count) as loop:
        item = g.element(g.at("%args", TUPLE_ITEMS_AT), loop.index, "ptr")
        g.store("ptr", item, g.gep("i64", "%regs", loop.index))
    none, some = g.fresh("none"), g.fresh("some")
    g.branch(g.is_null("%kwargs"), none, some)
    g.label(none)
    g.branch(g.equal(named, 0), "next", "miss")
    g.label(some)
    g.need(g.equal(g.field("%kwargs", LENGTH_AT), named))
    g.members("%kwargs", named, g.operands_from(2), count)


def _sequence(g: GuardsText) -> None:
    source = g.register(g.operand(0))
    g.need(g.equal(g.field(source, TYPE_AT), g.operand(1)))
    length = g.operand(2)
    g.need(g.equal(g.field(source, LENGTH_AT), length))
    inline = g.at(source, TUPLE_ITEMS_AT)
    is_list, items, done = g.fresh("list"), g.fresh("items"), g.block
    g.branch(g.equal(g.operand(3), 0), items, is_list)
    g.label(is_list)
    outside = g.field(source, LIST_ITEMS_AT, "ptr")
    g.go(items)
    g.label(items)
    base = g.let(f"phi ptr [{inline}, %{done}], [{outside}, %{is_list}]")
    first = g.operand(4)
    with g.loop(0, length) as loop:
        to = g.gep("i64", "%regs", g.add(first, loop.index))
        g.store("ptr", g.element(base, loop.index, "ptr"), to)


def _mapping(g: GuardsText) -> None:
    source, length = g.register(g.operand(0)), g.operand(2)
    g.need(g.equal(g.field(source, TYPE_AT), g.operand(1)))
    g.need(g.equal(g.field(source, LENGTH_AT), length))
    g.members(source, length, g.operands_from(4), g.operand(3))


def _entries(g: GuardsText) -> None:
    source, length, first = g.register(g.operand(0)), g.operand(2), g.operand(3)
    g.need(g.equal(g.field(source, TYPE_AT), g.operand(1)))
    g.need(g.equal(g.field(source, LENGTH_AT), length))
    g.store("i64", "0", "%position")
    with g.loop(0, length) as loop:
        g.need_not(g.equal(g.python("PyDict_Next", source, "%position", "%key", "%value"), 0, "i32"))
        to = g.gep("i64", "%regs", g.add(first, loop.index))
        g.store("ptr", g.load("ptr", "%key"), to)
        g.store("ptr", g.load("ptr", "%value"), g.gep("i64", to, length))


def _fields(g: GuardsText) -> None:
    source, first, names = g.register(g.operand(0)), g.operand(3), g.operands_from(4)
    g.need(g.equal(g.field(source, TYPE_AT), g.operand(1)))
    with g.loop(0, g.operand(2)) as loop:
        found = g.python("PyObject_GetAttr", source, g.element(names, loop.index, "ptr"))
        g.need_not(g.is_null(found), "clear")
        # Registers borrow: what was made for whoever asks, as a property does, would be gone.
        is_held = g.let(f"icmp ugt i32 {g.field(found, REFERENCES_AT, 'i32')}, 1")
        g.python("Py_DecRef", found)
        g.need(is_held)
        g.store("ptr", found, g.gep("i64", "%regs", g.add(first, loop.index)))


def _tensor(g: GuardsText) -> None:
    ndim, sizes, strides = plain_tensor(g)
    with g.loop(0, ndim) as loop:
        want = g.operands_from(7)
        g.need(g.equal(g.element(sizes, loop.index), g.element(want, loop.index)))
        g.need(g.equal(g.element(strides, loop.index), g.element(want, g.add(ndim, loop.index))))


def _is(g: GuardsText) -> None:
    g.need(g.equal(g.register(g.operand(0)), g.operand(1, "ptr"), "ptr"))


def _same(g: GuardsText) -> None:
    g.need(g.equal(g.register(g.operand(0)), g.register(g.operand(1)), "ptr"))


def _other(g: GuardsText) -> None:
    registers = g.operands_from(1)
    with g.loop(0, g.operand(0)) as loop:
        found = g.register(g.element(registers, loop.index))
        with g.loop(0, loop.index) as before:
            g.need_not(g.equal(found, g.element("%ranges", before.index, "ptr"), "ptr"))
        g.store("ptr", found, g.gep("i64", "%ranges", loop.index))


def _none_of(g: GuardsText) -> None:
    registers = g.operands_from(3)
    with g.loop(0, g.operand(2)) as loop:
        found = g.register(g.element(registers, loop.index))
        with g.loop(0, g.operand(0)) as other:
            g.need_not(g.equal(found, g.element(g.operand(1, "ptr"), other.index, "ptr"), "ptr"))


def _int(g: GuardsText) -> None:
    found = g.register(g.operand(0))
    g.need(g.equal(g.field(found, TYPE_AT), g.block_word(Block.INT_TYPE)))
    value = g.python("PyLong_AsLongLongAndOverflow", found, "%overflow")
    g.need(g.equal(g.load("i32", "%overflow"), 0, "i32"))
    g.need(g.equal(value, g.operand(1)))


def _float(g: GuardsText) -> None:
    found = g.register(g.operand(0))
    g.need(g.equal(g.field(found, TYPE_AT), g.block_word(Block.FLOAT_TYPE)))
    value = g.python("PyFloat_AsDouble", found)
    is_nan = g.let(f"fcmp uno double {value}, {value}")
    any_nan = g.equal(g.operand(1), 0)
    bits = g.let(f"bitcast double {value} to i64")
    same = g.equal(bits, g.operand(2))
    g.need(g.let(f"select i1 {any_nan}, i1 {is_nan}, i1 {same}"))


def _text(g: GuardsText) -> None:
    g.same_text(g.register(g.operand(0)), g.operand(1, "ptr"))


def _apart(g: GuardsText) -> None:
    count = g.operand(0)
    triples = g.operands_from(1)
    with g.loop(0, count) as loop:
        triple = g.gep("i64", triples, g.mul(loop.index, 3))
        nbytes = g.nbytes(g.element(triple, 1))
        start = g.data_address(g.register(g.element(triple, 0)), g.element(triple, 2))
        end = g.add(start, nbytes)
        with g.loop(0, loop.index) as before:
            other_start, other_end = g.pair("%ranges", before.index)
            overlap = g.let(f"icmp ult i64 {start}, {other_end}")
            g.need_not(g.let(f"and i1 {overlap}, {g.let(f'icmp ult i64 {other_start}, {end}')}"))
        # An empty tensor shares nothing: a range that no other meets.
        empty = g.equal(nbytes, 0)
        at = g.gep("i64", "%ranges", g.let(f"shl i64 {loop.index}, 1"))
        g.store("i64", g.let(f"select i1 {empty}, i64 -1, i64 {start}"), at)
        g.store("i64", g.let(f"select i1 {empty}, i64 0, i64 {end}"), g.gep("i64", at, 1))


def _clear(g: GuardsText) -> None:
    start = g.data_address(g.register(g.operand(0)), g.operand(2))
    end = g.add(start, g.nbytes(g.operand(1)))
    with g.loop(0, g.operand(3)) as loop:
        low, high = g.pair(g.operand(4, "ptr"), loop.index)
        meets = g.let(f"and i1 {g.let(f'icmp ult i64 {start}, {high}')}, {g.let(f'icmp ult i64 {low}, {end}')}")
        g.need_not(meets)


def _words(g: GuardsText) -> None:
    pairs = g.operands_from(1)
    with g.loop(0, g.operand(0)) as loop:
        address, value = g.pair(pairs, loop.index, ("ptr", "i64"))
        g.need(g.equal(g.load("i64", address), value))


def _masked(g: GuardsText) -> None:
    found = g.let(f"and i64 {g.load('i64', g.operand(0, 'ptr'), 1)}, {g.operand(1)}")
    g.need(g.equal(found, g.operand(2)))


def _value(g: GuardsText) -> None:
    found = g.let(f"call i64 {g.operand(0, 'ptr')}(i64 {g.operand(1)})")
    g.need(g.equal(g.let(f"and i64 {found}, {g.operand(2)}"), g.operand(3)))


def _pointed(g: GuardsText) -> None:
    base = g.let(f"call ptr {g.operand(0, 'ptr')}(i64 {g.operand(1)})")
    pairs = g.operands_from(3)
    with g.loop(0, g.operand(2)) as loop:
        mask, value = g.pair(pairs, loop.index)
        found = g.let(f"and i64 {g.element(base, loop.index)}, {mask}")
        g.need(g.equal(found, value))


def _noargs(g: GuardsText) -> None:
    found = g.let(f"call ptr {g.operand(0, 'ptr')}(ptr {g.operand(1, 'ptr')}, ptr null)")
    g.need_not(g.is_null(found), "clear")
    wanted = g.operand(2, "ptr")
    hit, ask, compare = g.fresh("hit"), g.fresh("ask"), g.fresh("compare")
    same, unlike = g.equal(found, wanted, "ptr"), g.fresh("unlike")
    g.branch(same, hit, ask)
    g.label(ask)
    is_text = g.let(f"icmp ne i64 {g.operand(3)}, 0")
    right_type = g.equal(g.field(found, TYPE_AT), g.block_word(Block.TEXT_TYPE))
    g.branch(g.let(f"and i1 {is_text}, {right_type}"), compare, unlike)
    g.label(compare)
    g.branch(g.equal(g.python("PyUnicode_Compare", found, wanted), 0, "i32"), hit, unlike)
    g.label(unlike)
    g.python("Py_DecRef", found)
    g.go("clear")
    g.label(hit)
    g.python("Py_DecRef", found)


def _spaces(g: GuardsText) -> None:
    records = g.operands_from(1)
    with g.loop(0, g.operand(0)) as loop:
        space = g.element(records, loop.index, "ptr")
        entries = g.element(space, int(Space.DICT), "ptr")
        stamp = g.field(entries, STAMP_AT)
        stamp_at = g.gep("i64", space, int(Space.STAMP))
        moved = g.let(f"icmp ne i64 {stamp}, {g.load('i64', stamp_at)}")
        with g.when(moved):
            verified = _verify_space(g, space, entries)
            g.label(verified)
            g.store("i64", stamp, stamp_at)


def _unstamped(g: GuardsText) -> None:
    records = g.operands_from(1)
    with g.loop(0, g.operand(0)) as loop:
        space = g.element(records, loop.index, "ptr")
        g.label(_verify_space(g, space, g.element(space, int(Space.DICT), "ptr")))


def _verify_space(g: GuardsText, space: str, entries: str) -> str:
    """Look into a dict; the label to go on at if all its names hold what was seen, else miss."""
    verified, doubtful = g.fresh("verified"), g.fresh("doubtful")
    order_length, order = g.element(space, int(Space.ORDER_LENGTH)), g.element(space, int(Space.ORDER), "ptr")
    pairs = g.element(space, int(Space.ENTRIES), "ptr")
    with g.when(g.let(f"icmp sge i64 {order_length}, 0")):
        g.need(g.equal(g.field(entries, LENGTH_AT), order_length), doubtful)
        g.store("i64", "0", "%position")
        with g.loop(0, order_length) as loop:
            found = g.python("PyDict_Next", entries, "%position", "%key", "%value")
            g.need_not(g.equal(found, 0, "i32"), doubtful)
            key, value = g.pair(order, loop.index, ("ptr", "ptr"))
            g.need(g.equal(g.load("ptr", "%key"), key, "ptr"), doubtful)
            is_seen = g.equal(g.load("ptr", "%value"), value, "ptr")
            g.need(g.let(f"or i1 {is_seen}, {g.is_null(value)}"), doubtful)
    with g.loop(0, g.element(space, int(Space.LENGTH))) as loop:
        key, value = g.pair(pairs, loop.index, ("ptr", "ptr"))
        found = g.python("PyDict_GetItemWithError", entries, key)
        g.need(g.equal(found, value, "ptr"), doubtful)
        with g.when(g.is_null(found)):
            g.need(g.is_null(g.python("PyErr_Occurred")), doubtful)
    g.go(verified)
    # Another object may still be the same value: Python's own comparison decides.
    g.label(doubtful)
    g.python("PyErr_Clear")
    _ask(g, g.element(space, int(Space.HOLDS), "ptr"))
    g.go(verified)
    return verified


def _ask(g: GuardsText, function: str) -> None:
    """Go on if a Python callable returns True, else miss."""
    answer = g.python("PyObject_Vectorcall", function, "null", "0", "null")
    g.need_not(g.is_null(answer), "clear")
    g.python("Py_DecRef", answer)
    g.need(g.equal(answer, g.block_word(Block.TRUE, "ptr"), "ptr"))


def _either(g: GuardsText) -> None:
    holds, pairs, differs = g.operand(0, "ptr"), g.operands_from(2), g.fresh("differs")
    with g.loop(0, g.operand(1)) as loop:
        address, value = g.pair(pairs, loop.index, ("ptr", "i64"))
        g.need(g.equal(g.load("i64", address), value), differs)
    g.go("next")
    g.label(differs)
    _ask(g, holds)


def _or_ask(g: GuardsText, holds: str, function: str) -> None:
    """Go on if it holds, or else if a Python callable says so."""
    ask = g.fresh("ask")
    g.branch(holds, "next", ask)
    g.label(ask)
    _ask(g, function)


def _attribute(g: GuardsText) -> None:
    found = g.python("PyObject_GetAttr", g.operand(0, "ptr"), g.operand(1, "ptr"))
    g.need_not(g.is_null(found), "clear")
    g.python("Py_DecRef", found)
    _or_ask(g, g.equal(found, g.operand(2, "ptr"), "ptr"), g.operand(3, "ptr"))


def _context(g: GuardsText) -> None:
    status = g.python("PyContextVar_Get", g.operand(0, "ptr"), g.operand(1, "ptr"), "%value")
    g.need(g.equal(status, 0, "i32"), "clear")
    found = g.load("ptr", "%value")
    g.python("Py_DecRef", found)
    g.need(g.equal(found, g.operand(2, "ptr"), "ptr"))


def _items(g: GuardsText) -> None:
    source, holds, count = g.operand(0, "ptr"), g.operand(1, "ptr"), g.operand(2)
    items, wanted, changed = g.field(source, LIST_ITEMS_AT, "ptr"), g.operands_from(3), g.fresh("changed")
    g.need(g.equal(g.field(source, LENGTH_AT), count), changed)
    with g.loop(0, count) as loop:
        g.need(g.equal(g.element(items, loop.index), g.element(wanted, loop.index)), changed)
    g.go("next")
    g.label(changed)
    _ask(g, holds)


def _grads(g: GuardsText) -> None:
    pairs = g.operands_from(1)
    with g.loop(0, g.operand(0)) as loop:
        tensor, wanted = g.pair(pairs, loop.index, ("ptr", "i64"))
        then = g.fresh("held")
        needs_grad(g, g.field(tensor, g.block_word(Block.IMPL), "ptr"), wanted, then)
        g.label(then)


def _constants(g: GuardsText) -> None:
    records = g.operand(1, "ptr")
    with g.loop(0, g.operand(0)) as loop:
        record = g.gep("i64", records, g.let(f"shl i64 {loop.index}, 2"))
        tensor, version = g.element(record, 0, "ptr"), g.element(record, 2)
        start = g.data_address(tensor, g.element(record, 3))
        g.need(g.equal(start, g.element(record, 1)))
        with g.when(g.let(f"icmp sge i64 {version}, 0")):
            impl = g.field(tensor, g.block_word(Block.IMPL), "ptr")
            counter = g.field(impl, g.block_word(Block.VERSION), "ptr")
            g.need_not(g.is_null(counter))
            count = g.let(f"zext i32 {g.field(counter, g.block_word(Block.COUNT), 'i32')} to i64")
            g.need(g.equal(count, version))


def _samples(g: GuardsText) -> None:
    records = g.operand(1, "ptr")
    with g.loop(0, g.operand(0)) as loop:
        record = g.gep("i64", records, g.mul(loop.index, 5))
        start, stride, count = g.element(record, 0, "ptr"), g.element(record, 1), g.element(record, 2)
        bits, itemsize, done = g.element(record, 4, "ptr"), g.element(record, 3), g.fresh("compared")
        for nbytes in (4, 2, 8, 1):
            here, otherwise = g.fresh("size"), g.fresh("other")
            g.branch(g.equal(itemsize, nbytes), here, otherwise)
            g.label(here)
            kind = f"i{8 * nbytes}"
            with g.loop(0, count) as sample:
                found = g.field(start, g.mul(sample.index, stride), kind)
                wanted = g.load(kind, g.gep(kind, bits, sample.index), 1)
                g.need(g.equal(found, wanted, kind))
            g.go(done)
            g.label(otherwise)
        g.go("miss")
        g.label(done)


def _python(g: GuardsText) -> None:
    _ask(g, g.operand(0, "ptr"))


_OPERATIONS: dict[Guard, Callable[[GuardsText], None]] = {
    Guard.ARGS: _args,
    Guard.SEQUENCE: _sequence,
    Guard.MAPPING: _mapping,
    Guard.ENTRIES: _entries,
    Guard.FIELDS: _fields,
    Guard.TENSOR: _tensor,
    Guard.IS: _is,
    Guard.SAME: _same,
    Guard.OTHER: _other,
    Guard.NONE_OF: _none_of,
    Guard.INT: _int,
    Guard.FLOAT: _float,
    Guard.TEXT: _text,
    Guard.APART: _apart,
    Guard.CLEAR: _clear,
    Guard.WORDS: _words,
    Guard.VALUE: _value,
    Guard.POINTED: _pointed,
    Guard.NOARGS: _noargs,
    Guard.SPACES: _spaces,
    Guard.UNSTAMPED: _unstamped,
    Guard.ATTRIBUTE: _attribute,
    Guard.CONTEXT: _context,
    Guard.ITEMS: _items,
    Guard.GRADS: _grads,
    Guard.CONSTANTS: _constants,
    Guard.SAMPLES: _samples,
    Guard.PYTHON: _python,
    Guard.EITHER: _either,
    Guard.MASKED: _masked,
    **SIZE_OPERATIONS,
}


def guards_function() -> tuple[str, dict[str, None]]:
    """The definition of `smelt_guards`, and the declarations that it needs."""
    g = GuardsText(GUARDS_SYMBOL, "ptr %guards, ptr %args, ptr %kwargs, ptr %regs", attributes="nounwind")
    for name, kind in (("position", "i64"), ("key", "ptr"), ("value", "ptr"), ("overflow", "i32")):
        g.allocas.append(f"  %{name} = alloca {kind}, align 8")
    g.allocas.append(f"  %ranges = alloca i64, i64 {max(2 * MAX_APART, MAX_REGISTERS)}, align 8")
    g.go("walk")
    g.label("walk")
    g.do("%rec = phi ptr [%guards, %entry], [%following, %next]")
    operation = g.load("i64", "%rec")
    cases = " ".join(f"i64 {int(op)}, label %op_{op.name.lower()}" for op in Guard)
    g.do(f"switch i64 {operation}, label %miss [{cases}]")
    g.label("next")
    g.do(f"%following = getelementptr i64, ptr %rec, i64 {g.element('%rec', 1)}")
    g.go("walk")
    for op, emit in _OPERATIONS.items():
        g.label(f"op_{op.name.lower()}")
        emit(g)
        g.go("next")
    g.label("clear")
    g.python("PyErr_Clear")
    g.go("miss")
    g.label("miss")
    g.do("ret i32 0")
    g.label(f"op_{Guard.END.name.lower()}")
    text = g.finish("i32 1")
    head = text.index("define ")
    return text[head:].replace("define i32", "define dso_local i32", 1), g.declarations
