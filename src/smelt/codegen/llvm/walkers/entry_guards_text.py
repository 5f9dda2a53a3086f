"""What the operations of `smelt_guards` have in common: operands of the record at hand, registers, tensors.

Invariant: nothing here writes anything but registers.
"""

from __future__ import annotations

from smelt.codegen.llvm.walkers.entry_text import EntryText
from smelt.runtime.encoding.entry_table import TYPE_AT, Block


class GuardsText(EntryText):
    """The walker under construction: `%rec` is the record at hand, `%regs` the registers."""

    def operand(self, number: int, kind: str = "i64") -> str:
        """Operand number `number` of the record, from 0."""
        return self.element("%rec", number + 2, kind)

    def operands_from(self, number: int) -> str:
        return self.gep("i64", "%rec", number + 2)

    def register(self, index: str) -> str:
        return self.element("%regs", index, "ptr")

    def pair(self, base: str, index: str, kinds: tuple[str, str] = ("i64", "i64")) -> tuple[str, str]:
        """The words number 2 * index and the next of an array."""
        at = self.gep("i64", base, self.let(f"shl i64 {index}, 1"))
        return self.element(at, 0, kinds[0]), self.element(at, 1, kinds[1])

    def same_text(self, found: str, wanted: str) -> None:
        """Go on if an object is this string or an equal one, else miss."""
        equal, unequal = self.fresh("equal"), self.fresh("unequal")
        self.branch(self.equal(found, wanted, "ptr"), equal, unequal)
        self.label(unequal)
        self.need(self.equal(self.field(found, TYPE_AT), self.block_word(Block.TEXT_TYPE)))
        compared = self.python("PyUnicode_Compare", found, wanted)
        self.branch(self.equal(compared, 0, "i32"), equal, "clear")
        self.label(equal)

    def members(self, mapping: str, count: str, keys: str, first: str) -> None:
        """The values of a dict of `count` entries with these keys in this order go to the registers from `first`."""
        self.store("i64", "0", "%position")
        with self.loop(0, count) as loop:
            found = self.python("PyDict_Next", mapping, "%position", "%key", "%value")
            self.need_not(self.equal(found, 0, "i32"))
            self.same_text(self.load("ptr", "%key"), self.element(keys, loop.index, "ptr"))
            to = self.gep("i64", "%regs", self.add(first, loop.index))
            self.store("ptr", self.load("ptr", "%value"), to)

    def data_address(self, tensor: str, itemsize: str) -> str:
        """The address of a tensor's first element, as i64; misses where there is no storage."""
        impl = self.field(tensor, self.block_word(Block.IMPL), "ptr")
        storage = self.field(impl, self.block_word(Block.STORAGE), "ptr")
        self.need_not(self.is_null(storage))
        start = self.field(storage, self.block_word(Block.DATA))
        offset = self.field(impl, self.block_word(Block.OFFSET))
        return self.add(start, self.mul(offset, itemsize))

    def nbytes(self, word: str) -> str:
        """A number of bytes: itself, or below 0 the register that it is in."""
        elsewhere = self.let(f"icmp slt i64 {word}, 0")
        at = self.let(f"select i1 {elsewhere}, i64 {self.let(f'xor i64 {word}, -1')}, i64 0")
        return self.let(f"select i1 {elsewhere}, i64 {self.element('%regs', at)}, i64 {word}")


def plain_tensor(g: GuardsText) -> tuple[str, str, str]:
    """What an exact tensor's guard and a form's begin with; its rank, and where its sizes and strides are."""
    tensor = g.register(g.operand(0))
    g.need(g.equal(g.field(tensor, TYPE_AT), g.operand(1)))
    impl = g.field(tensor, g.block_word(Block.IMPL), "ptr")
    keys = g.let(f"and i64 {g.field(impl, g.block_word(Block.KEYS))}, {g.operand(2)}")
    g.need(g.equal(keys, g.operand(3)))
    dtype = g.let(f"zext i16 {g.field(impl, g.block_word(Block.DTYPE), 'i16')} to i64")
    g.need(g.equal(dtype, g.operand(4)))
    ndim = g.operand(5)
    g.need(g.equal(g.field(impl, g.block_word(Block.NDIM)), ndim))
    shape = g.fresh("shape")
    g.need_not(g.equal(g.operand(6), -1), shape)
    needs_grad(g, impl, g.operand(6), shape)
    g.label(shape)
    capacity = g.block_word(Block.CAPACITY)
    inside = g.at(impl, g.block_word(Block.SIZES))
    is_outside = g.let(f"icmp sgt i64 {ndim}, {capacity}")
    # Behind the pointer strides follow the sizes at once; reading the word is harmless where it is a size.
    outside = g.load("ptr", inside)
    sizes = g.let(f"select i1 {is_outside}, ptr {outside}, ptr {inside}")
    strides = g.gep("i64", sizes, g.let(f"select i1 {is_outside}, i64 {ndim}, i64 {capacity}"))
    return ndim, sizes, strides


def needs_grad(g: GuardsText, impl: str, wanted: str, then: str) -> None:
    """Go to `then` if a tensor requires grad as wanted (0 or 1), else miss."""
    none, some = g.fresh("plain"), g.fresh("graded")
    g.branch(g.is_null(g.field(impl, g.block_word(Block.META), "ptr")), none, some)
    g.label(none)
    g.branch(g.equal(wanted, 0), then, "miss")
    g.label(some)
    asked = g.let(f"call i8 {g.block_word(Block.REQUIRES_GRAD, 'ptr')}(ptr {impl})")
    found = g.let(f"zext i1 {g.let(f'trunc i8 {asked} to i1')} to i64")
    g.branch(g.equal(found, wanted), then, "miss")
