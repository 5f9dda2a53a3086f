"""Epilogues in vectors: what is done to a tile of sums before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.micro import Micro
from smelt.codegen.kernels.nest import ACC, FAILED, Const, Expr, Load, Op, Ref
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.diag import InternalError
from smelt.diag.records import record


@record
class Target:
    """Where a tile goes: the result's address, the epilogue's operands', the first channel, and each pixel's offset.

    Offsets are in elements from the start of the result (and of "element" operands) to the tile's first channel.
    """

    out: str
    operands: tuple[str, ...]
    column: str
    offsets: tuple[str, ...]


class Finite:
    """Whether all sums that a call of a kernel made are finite: the sum of 0 * sum is NaN otherwise."""

    def __init__(self, micro: Micro) -> None:
        self._micro = micro
        self._total = micro.fn.alloca(micro.type)
        micro.fn.store(micro.type, "zeroinitializer", self._total, 64)

    def note(self, values: Sequence[str]) -> None:
        """Look at sums."""
        fn, type_ = self._micro.fn, self._micro.type
        total = fn.load(type_, self._total, 64)
        for value in values:
            total = fn.let(f"fadd {type_} {total}, {fn.let(f'fmul {type_} {value}, zeroinitializer')}")
        fn.store(type_, total, self._total, 64)

    def code(self) -> str:
        """What the kernel returns: 0, or `FAILED` where eager is to compute instead."""
        fn, type_, lanes = self._micro.fn, self._micro.type, self._micro.tile.lanes
        is_nan = fn.let(f"fcmp uno {type_} {fn.load(type_, self._total, 64)}, zeroinitializer")
        bits = fn.let(f"bitcast <{lanes} x i1> {is_nan} to i{lanes}")
        is_some = fn.let(f"icmp ne i{lanes} {bits}, 0")
        return f"i32 {fn.let(f'select i1 {is_some}, i32 {FAILED}, i32 0')}"


def store_tile(
    micro: Micro, ops: ExprEmitter, epilogue: Epilogue, acc: Sequence[str], target: Target, masks: Sequence[str] | None
) -> None:
    """Apply the epilogue to the sums of a tile and store them."""
    tile = micro.tile
    shared: dict[tuple[Expr, int], str] = {}
    for p, offset in enumerate(target.offsets):
        for j in range(tile.vectors):
            mask = None if masks is None else masks[j]
            finish = _Finish(micro, ops, epilogue, target, (p, j), mask, shared)
            value = finish.value(epilogue.expr, acc[p * tile.vectors + j])
            at = micro.fn.gep("float", micro.fn.gep("float", target.out, offset), j * tile.lanes)
            micro.store(value, at, mask)


@dataclass(slots=True)
class _Finish:
    """The epilogue of one register; `shared` keeps what does not depend on the pixel."""

    micro: Micro
    ops: ExprEmitter
    epilogue: Epilogue
    target: Target
    at: tuple[int, int]
    mask: str | None
    shared: dict[tuple[Expr, int], str]

    def value(self, expr: Expr, acc: str) -> str:
        fn, lanes = self.micro.fn, self.micro.tile.lanes
        p, j = self.at
        match expr:
            case Ref(name=name) if name == ACC:
                return acc
            case Const(value=value, dtype=dtype):
                return self.ops.const(value, dtype)
            case Load(buffer=number) if self.epilogue.operands[number] == "element":
                at = fn.gep("float", self.target.operands[number], self.target.offsets[p])
                return self.micro.load(fn.gep("float", at, j * lanes), self.mask)
            case Load(buffer=number):
                is_scalar = self.epilogue.operands[number] == "scalar"
                key = (expr, 0 if is_scalar else j)
                if key not in self.shared:
                    base = self.target.operands[number]
                    at = base if is_scalar else fn.gep("float", fn.gep("float", base, self.target.column), j * lanes)
                    made = self.micro.splat(fn.load("float", at, 4)) if is_scalar else self.micro.load(at, self.mask)
                    self.shared[key] = made
                return self.shared[key]
            case Op(op=op, args=args, dtype=dtype):
                operand = dtype if op == "select" else args[0].dtype
                return self.ops.emit(op, dtype, [self.value(a, acc) for a in args], operand)
            case _:
                raise InternalError(f"an epilogue cannot contain {expr}")
