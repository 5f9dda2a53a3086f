"""Epilogues in vectors: what is done to a tile of sums before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.micro import Micro
from smelt.codegen.kernels.nest import ACC, Const, Expr, Load, Op, Ref
from smelt.codegen.llvm.lanes import ExprEmitter
from smelt.diag import InternalError


@dataclass(frozen=True, slots=True)
class Target:
    """Where a tile goes: the result's address, the epilogue's operands', the first channel, and each pixel's offset.

    Offsets are in elements from the start of the result (and of "element" operands) to the tile's first channel.
    """

    out: str
    operands: tuple[str, ...]
    column: str
    offsets: tuple[str, ...]


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
