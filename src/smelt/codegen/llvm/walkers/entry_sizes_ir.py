"""The operations of `smelt_guards` on free sizes and numbers: what reads them into registers, computes, compares.

Invariant: what 64 bits do not hold is a miss, and Python decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from smelt.codegen.llvm.walkers.entry_guards_text import GuardsText, plain_tensor
from smelt.runtime.encoding.entry_table import TYPE_AT, Block, Compute, Guard
from smelt.runtime.encoding.table import NUMBER_CODES


def _form(g: GuardsText) -> None:
    ndim, sizes, strides = plain_tensor(g)
    first, keeps, want = g.operand(7), g.operand(8), g.operands_from(9)
    with g.loop(0, ndim) as loop:
        size, wanted = g.element(sizes, loop.index), g.element(want, loop.index)
        fits = g.let(f"or i1 {g.equal(wanted, -1)}, {g.equal(size, wanted)}")
        g.need(fits)
        g.store("i64", size, g.gep("i64", "%regs", g.add(first, loop.index)))
    rows, given, done = g.fresh("rows"), g.fresh("given"), g.fresh("formed")
    g.branch(g.equal(keeps, -1), rows, given)
    g.label(given)
    with g.loop(0, ndim) as loop:
        stride = g.element(strides, loop.index)
        g.store("i64", stride, g.gep("i64", "%regs", g.add(keeps, loop.index)))
    g.go(done)
    g.label(rows)
    with g.loop(0, ndim, carried=(("i64", "1"),)) as loop:
        at = g.let(f"sub i64 {g.let(f'sub i64 {ndim}, 1')}, {loop.index}")
        g.need(g.equal(g.element(strides, at), loop.carried[0].now))
        size = g.element(sizes, at)
        counted = g.let(f"select i1 {g.equal(size, 0)}, i64 1, i64 {size}")
        loop.carried[0].next = g.let(f"mul i64 {loop.carried[0].now}, {counted}")
    g.go(done)
    g.label(done)


def _number(g: GuardsText) -> None:
    found, code = g.register(g.operand(0)), g.operand(1)
    kind = g.field(found, TYPE_AT)
    to, stored = g.gep("i64", "%regs", g.operand(2)), g.fresh("stored")
    names = {name: g.fresh(name) for name in NUMBER_CODES}
    cases = " ".join(f"i64 {number}, label %{names[name]}" for name, number in NUMBER_CODES.items())
    g.do(f"switch i64 {code}, label %miss [{cases}]")
    g.label(names["int"])
    g.need(g.equal(kind, g.block_word(Block.INT_TYPE)))
    whole = g.python("PyLong_AsLongLongAndOverflow", found, "%overflow")
    g.need(g.equal(g.load("i32", "%overflow"), 0, "i32"))
    g.store("i64", whole, to)
    g.go(stored)
    g.label(names["float"])
    g.need(g.equal(kind, g.block_word(Block.FLOAT_TYPE)))
    g.store("double", g.python("PyFloat_AsDouble", found), to)
    g.go(stored)
    g.label(names["bool"])
    g.need(g.equal(kind, g.block_word(Block.BOOL_TYPE)))
    g.store("i64", g.let(f"zext i1 {g.equal(found, g.block_word(Block.TRUE, 'ptr'), 'ptr')} to i64"), to)
    g.go(stored)
    g.label(stored)


def _set(g: GuardsText) -> None:
    g.store("i64", g.operand(1), g.gep("i64", "%regs", g.operand(0)))


def _word(g: GuardsText, is_constant: str, word: str) -> str:
    """An operand: a constant, or what stands in a register."""
    there = g.let(f"icmp ne i64 {is_constant}, 0")
    at = g.let(f"select i1 {there}, i64 0, i64 {word}")
    return g.let(f"select i1 {there}, i64 {word}, i64 {g.element('%regs', at)}")


def _compute(g: GuardsText) -> None:
    a, b = g.element("%regs", g.operand(2)), _word(g, g.operand(3), g.operand(4))
    names = {operation: g.fresh(operation.name.lower()) for operation in Compute}
    done = g.fresh("computed")
    cases = " ".join(f"i64 {int(operation)}, label %{name}" for operation, name in names.items())
    g.do(f"switch i64 {g.operand(0)}, label %miss [{cases}]")
    found: list[tuple[str, str]] = []
    for operation, name in names.items():
        g.label(name)
        value = _computed(g, operation, a, b)
        found.append((value, g.block))
        g.go(done)
    g.label(done)
    value = g.let(f"phi i64 {', '.join(f'[{value}, %{block}]' for value, block in found)}")
    g.store("i64", value, g.gep("i64", "%regs", g.operand(1)))


def _computed(g: GuardsText, operation: Compute, a: str, b: str) -> str:
    match operation:
        case Compute.ADD | Compute.SUB | Compute.MUL:
            function = f"llvm.s{operation.name.lower()}.with.overflow.i64"
            g.declare(f"declare {{ i64, i1 }} @{function}(i64, i64)")
            both = g.let(f"call {{ i64, i1 }} @{function}(i64 {a}, i64 {b})")
            g.need_not(g.let(f"extractvalue {{ i64, i1 }} {both}, 1"))
            return g.let(f"extractvalue {{ i64, i1 }} {both}, 0")
        case Compute.FLOORDIV | Compute.MOD:
            g.need(g.let(f"icmp sgt i64 {b}, 0"))
            rest = g.let(f"srem i64 {a}, {b}")
            below = g.let(f"icmp slt i64 {rest}, 0")
            if operation is Compute.MOD:
                return g.let(f"select i1 {below}, i64 {g.let(f'add i64 {rest}, {b}')}, i64 {rest}")
            quotient = g.let(f"sdiv i64 {a}, {b}")
            return g.let(f"select i1 {below}, i64 {g.let(f'sub i64 {quotient}, 1')}, i64 {quotient}")
        case Compute.MAX | Compute.MIN:
            better = g.let(f"icmp {'sgt' if operation is Compute.MAX else 'slt'} i64 {a}, {b}")
            return g.let(f"select i1 {better}, i64 {a}, i64 {b}")


def _compare(g: GuardsText) -> None:
    a, b = g.element("%regs", g.operand(1)), _word(g, g.operand(2), g.operand(3))
    _allowed(g, [g.let(f"icmp {how} i64 {a}, {b}") for how in ("slt", "eq", "sgt")])


def _compare_float(g: GuardsText) -> None:
    a, b = g.element("%regs", g.operand(1), "double"), _word(g, g.operand(2), g.operand(3))
    other = g.let(f"bitcast i64 {b} to double")
    _allowed(g, [g.let(f"fcmp {how} double {a}, {other}") for how in ("olt", "oeq", "ogt", "uno")])


def _allowed(g: GuardsText, outcomes: Sequence[str]) -> None:
    """Go on if the one outcome that holds is among those of operand 0."""
    found = "0"
    for bit, holds in enumerate(outcomes):
        found = g.let(f"select i1 {holds}, i64 {1 << bit}, i64 {found}")
    g.need_not(g.equal(g.let(f"and i64 {g.operand(0)}, {found}"), 0))


SIZE_OPERATIONS: Mapping[Guard, Callable[[GuardsText], None]] = {
    Guard.FORM: _form,
    Guard.NUMBER: _number,
    Guard.SET: _set,
    Guard.COMPUTE: _compute,
    Guard.COMPARE: _compare,
    Guard.COMPARE_FLOAT: _compare_float,
}
