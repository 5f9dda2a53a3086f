"""Kernels of depthwise convolutions over channels-last tensors: each channel by itself, channels in the vector lanes.

    for a row of the result, a vector of channels, a tile of P pixels in that row:
      for ky inside the input:  columns = the (P-1)*stride + (kw-1)*dilation + 1 input vectors that the tile sees
        for kx, p:  acc[p] = fma(column[p*stride + kx*dilation], w[ky][kx], acc[p])

Invariant: a column outside the input is read from a row of zeros, so that it takes no branch; a tile that would reach
past the row begins earlier and computes some pixels again, to the same bits.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.finish import Finite, Target, store_tile
from smelt.codegen.conv.micro import Micro, Tile
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record

WORDS = (
    "channels", "oh", "ow", "h", "w", "kh", "stride_h", "dilation_h", "top", "left", "x_n", "x_h", "x_w", "out_pixel",
    "blocks", "block",
)  # fmt: skip


@record
class DepthwiseVariant:
    """What the text depends on. The tile has one vector; masked: channels are no multiple of its lanes. live: as of
    `DenseVariant`.
    """

    tile: Tile
    kw: int
    stride_w: int
    dilation_w: int
    masked: bool
    epilogue: Epilogue
    live: bool = False

    @property
    def columns(self) -> tuple[int, ...]:
        """Input columns that a tile reads, relative to its first pixel's window."""
        seen = {p * self.stride_w + k * self.dilation_w for p in range(self.tile.pixels) for k in range(self.kw)}
        return tuple(sorted(seen))


@lru_cache(maxsize=128)
def depthwise_text(isa: Isa, variant: DepthwiseVariant) -> str:
    """The kernel's module. Buffers: x, out, packed weight, zeros, epilogue operands; words as listed.

    An item is a block of channels of one row of the result; items run through the channels first.
    """
    return _Depthwise(isa, variant).text()


class _Depthwise:
    def __init__(self, isa: Isa, variant: DepthwiseVariant) -> None:
        self.variant = variant
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.micro = Micro(fn, isa, variant.tile)
        self.ops = ExprEmitter(fn, isa, variant.tile.lanes)
        self.x, self.out, self.packed, self.zeros = (fn.address(i) for i in range(4))
        count = len(variant.epilogue.operands)
        self.operands = tuple(fn.address(4 + i) for i in range(count))
        self.words = {name: fn.word(4 + count + variant.live + i) for i, name in enumerate(WORDS)}
        self.finite = Finite(self.micro) if variant.live else None

    def text(self) -> str:
        fn, w, tile = self.fn, self.words, self.variant.tile
        with fn.loop("%begin", "%end") as item:
            row = fn.let(f"udiv i64 {item.index}, {w['blocks']}")
            channel = fn.mul(fn.let(f"urem i64 {item.index}, {w['blocks']}"), w["block"])
            end = self._least(fn.add(channel, w["block"]), w["channels"])
            image, oy = fn.let(f"udiv i64 {row}, {w['oh']}"), fn.let(f"urem i64 {row}, {w['oh']}")
            top = fn.let(f"sub i64 {fn.mul(oy, w['stride_h'])}, {w['top']}")
            first, after = self._inside(top)
            x_row = fn.add(fn.mul(image, w["x_n"]), fn.mul(fn.add(top, fn.mul(first, w["dilation_h"])), w["x_h"]))
            with fn.loop(channel, end, tile.lanes) as c:
                masks = None
                if self.variant.masked:
                    masks = self.micro.masks(fn.let(f"sub i64 {w['channels']}, {c.index}"))
                x = fn.gep("float", self.x, fn.add(x_row, c.index))
                weights = fn.gep("float", self.packed, fn.mul(fn.mul(c.index, w["kh"]), self.variant.kw))
                weights = fn.gep("float", weights, fn.mul(first, self.variant.kw * tile.lanes))
                last = fn.let(f"sub i64 {w['ow']}, {tile.pixels}")
                with fn.loop(0, w["ow"], tile.pixels) as t:
                    at = self._least(t.index, last)
                    acc = self._sums(x, weights, at, fn.let(f"sub i64 {after}, {first}"), masks)
                    if self.finite is not None:
                        self.finite.note(acc)
                    pixel = fn.add(fn.mul(row, w["ow"]), at)
                    offsets = [fn.add(fn.mul(fn.add(pixel, p), w["out_pixel"]), c.index) for p in range(tile.pixels)]
                    target = Target(self.out, self.operands, c.index, tuple(offsets))
                    store_tile(self.micro, self.ops, self.variant.epilogue, acc, target, masks)
        return fn.finish() if self.finite is None else fn.finish(self.finite.code())

    def _least(self, a: str, b: str) -> str:
        is_less = self.fn.let(f"icmp slt i64 {a}, {b}")
        return self.fn.let(f"select i1 {is_less}, i64 {a}, i64 {b}")

    def _inside(self, top: str) -> tuple[str, str]:
        """The first kernel row that lies inside the input, and the first after it that does not (or the same)."""
        fn, w = self.fn, self.words
        none = fn.let(f"icmp slt i64 {top}, 0")
        above = fn.let(f"select i1 {none}, i64 {fn.let(f'sub i64 0, {top}')}, i64 0")
        rounded = fn.add(above, fn.let(f"sub i64 {w['dilation_h']}, 1"))
        first = self._least(fn.let(f"udiv i64 {rounded}, {w['dilation_h']}"), w["kh"])
        left = fn.add(fn.let(f"sub i64 {w['h']}, {top}"), fn.let(f"sub i64 {w['dilation_h']}, 1"))
        is_some = fn.let(f"icmp sgt i64 {left}, 0")
        room = fn.let(f"select i1 {is_some}, i64 {left}, i64 0")
        after = self._least(fn.let(f"udiv i64 {room}, {w['dilation_h']}"), w["kh"])
        is_more = fn.let(f"icmp sgt i64 {after}, {first}")
        return first, fn.let(f"select i1 {is_more}, i64 {after}, i64 {first}")

    def _sums(self, x: str, weights: str, at: str, rows: str, masks: list[str] | None) -> list[str]:
        """The sums of the tile whose first pixel is `at`, over `rows` kernel rows from `weights` and `x` on."""
        fn, w, variant = self.fn, self.words, self.variant
        left = fn.let(f"sub i64 {fn.mul(at, variant.stride_w)}, {w['left']}")
        below = fn.mul(w["dilation_h"], w["x_h"])
        starts, steps = [], []
        for k in variant.columns:
            column = fn.add(left, k)
            is_inside = fn.let(f"icmp ult i64 {column}, {w['w']}")
            place = fn.gep("float", x, fn.mul(column, w["x_w"]))
            starts.append(fn.let(f"select i1 {is_inside}, ptr {place}, ptr {self.zeros}"))
            steps.append(fn.let(f"select i1 {is_inside}, i64 {below}, i64 0"))
        mask = None if masks is None else masks[0]
        lanes, pixels = variant.tile.lanes, variant.tile.pixels
        carried = [(self.micro.type, v) for v in self.micro.zeros()]
        with fn.loop(0, rows, 1, [*carried, *(("ptr", s) for s in starts)]) as ky:
            acc = [c.now for c in ky.carried[:pixels]]
            pointers = [c.now for c in ky.carried[pixels:]]
            values = {k: self.micro.load(p, mask) for k, p in zip(variant.columns, pointers, strict=True)}
            row = fn.gep("float", weights, fn.mul(ky.index, variant.kw * lanes))
            for kx in range(variant.kw):
                weight = self.micro.load(fn.gep("float", row, kx * lanes))
                for p in range(pixels):
                    value = values[p * variant.stride_w + kx * variant.dilation_w]
                    acc[p] = self.micro.fma(value, weight, acc[p])
            for c, value in zip(ky.carried[:pixels], acc, strict=True):
                c.next = value
            for c, step in zip(ky.carried[pixels:], steps, strict=True):
                c.next = fn.gep("float", c.now, step)
        return [c.last for c in ky.carried[:pixels]]
