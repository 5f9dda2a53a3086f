"""Random graphs of pointwise operators, reductions, views and joins over symbols B, S and T, for `nest_harness`.

A program is a function of a sheet and sizes that draws the same graph at every call: no choice looks at a number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from smelt.ir import DType, TensorType, Value
from smelt.ir.sizes import equals, is_one
from tests.symbolic.nest_harness import Make, Sheet, Sizes

Shape = tuple[int, ...]

_UNARY = ("relu", "sigmoid", "tanh", "neg", "abs", "silu", "gelu", "cos")
_BINARY = ("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default")
_REDUCE = ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "logsumexp.default")


def random_program(seed: int) -> Make:
    """The graph of a number."""
    return lambda sheet, sizes: _Draw(random.Random(f"nest {seed}"), sheet, sizes).outputs()


@dataclass
class _Draw:
    rng: random.Random
    sheet: Sheet
    sizes: Sizes
    made: list[Value] = field(default_factory=list)

    def outputs(self) -> Sequence[Value]:
        for _ in range(self.rng.randrange(1, 4)):
            self.made.append(self.sheet.input(*self._shape()))
        steps = [
            self._unary, self._unary, self._binary, self._binary, self._reduce, self._reduce, self._softmax, self._norm,
            self._view, self._view, self._view, self._join, self._scan, self._choose, self._numbers, self._whole,
        ]  # fmt: skip
        for _ in range(self.rng.randrange(2, 9)):
            x = self.rng.choice(self.made[-4:])
            found = self.rng.choice(steps)(x, _shape_of(x))
            if found is not None:
                self.made.append(found)
        last = self.made[-1]
        others = [v for v in self.made[:-1] if v.node is not None and self.rng.random() < 0.25]
        return [*others[:2], last]

    # --- what to draw from

    def _shape(self) -> Shape:
        names = list(self.sizes.values())
        rank = self.rng.choice((1, 2, 2, 3, 3))
        return tuple(self.rng.choice((*names, *names, 3, 8, 17)) for _ in range(rank))

    def _new(self, shape: Shape) -> Value:
        return self.sheet.input(*shape)

    def _dim(self, shape: Shape) -> int:
        return self.rng.randrange(len(shape))

    # --- steps

    def _unary(self, x: Value, shape: Shape) -> Value:
        return self.sheet.add(f"{self.rng.choice(_UNARY)}.default", x, to=shape)

    def _binary(self, x: Value, shape: Shape) -> Value:
        alike = [v for v in self.made if _is_same(_shape_of(v), shape)]
        op = self.rng.choice(_BINARY)
        kind = self.rng.randrange(4)
        if kind == 0 and shape:  # a row
            return self.sheet.add(op, x, self._new(shape[-1:]), to=shape)
        if kind == 1 and len(shape) > 1:  # a column
            return self.sheet.add(op, x, self._new((*shape[:-1], 1)), to=shape)
        return self.sheet.add(op, x, self.rng.choice(alike), to=shape)

    def _reduce(self, x: Value, shape: Shape) -> Value | None:
        if not shape:
            return None
        dims = sorted(self.rng.sample(range(len(shape)), self.rng.randrange(1, len(shape) + 1)))
        keep = self.rng.random() < 0.4
        kept = [1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims]
        return self.sheet.add(self.rng.choice(_REDUCE), x, tuple(dims), keep, to=kept)

    def _whole(self, x: Value, shape: Shape) -> Value | None:
        if not shape or self.rng.random() < 0.5:
            return None
        if self.rng.random() < 0.3:
            dim = self._dim(shape)
            to = (*shape[:dim], *shape[dim + 1 :])
            return self.sheet.add(
                "cos.default", self._float(self.sheet.add("argmax.default", x, dim, to=to, dtype=DType.I64), to), to=to
            )
        return self.sheet.add("mul.Tensor", x, self.sheet.add("mean.default", x, to=()), to=shape)

    def _float(self, x: Value, shape: Shape) -> Value:
        return self.sheet.add("mul.Scalar", x, 0.125, to=shape)

    def _softmax(self, x: Value, shape: Shape) -> Value | None:
        name = self.rng.choice(("softmax.int", "log_softmax.int"))
        return self.sheet.add(name, x, self._dim(shape), to=shape) if shape else None

    def _norm(self, x: Value, shape: Shape) -> Value | None:
        if not shape:
            return None
        weight = self._new(shape[-1:]) if self.rng.random() < 0.5 else None
        return self.sheet.add("layer_norm.default", x, shape[-1:], weight, None, 0.5, to=shape)

    def _scan(self, x: Value, shape: Shape) -> Value | None:
        return self.sheet.add("cumsum.default", x, self._dim(shape), to=shape) if shape else None

    def _choose(self, x: Value, shape: Shape) -> Value | None:
        if len(shape) >= 2 and self.rng.random() < 0.5:
            name = self.rng.choice(("tril.default", "triu.default"))
            return self.sheet.add(name, x, self.rng.randrange(-2, 3), to=shape)
        mask = self.sheet.add("gt.Scalar", x, 0.1, to=shape, dtype=DType.BOOL)
        return self.sheet.add("where.ScalarOther", mask, x, 0.25, to=shape)

    def _numbers(self, x: Value, shape: Shape) -> Value | None:
        """Sizes as numbers of the program: a range, a factor."""
        if not shape:
            return None
        if self.rng.random() < 0.5:
            return self.sheet.add("mul.Scalar", x, 1.0 / shape[-1], to=shape)
        count = self.sheet.add("arange.start", 1, shape[-1] + 1, to=shape[-1:], dtype=DType.I64)
        return self.sheet.add("mul.Tensor", x, self._float(count, shape[-1:]), to=shape)

    def _view(self, x: Value, shape: Shape) -> Value | None:
        kinds: list[Callable[[Value, Shape], Value | None]] = [
            self._turned, self._merged, self._cut, self._taken, self._flipped, self._wider, self._padded,
        ]  # fmt: skip
        return self.rng.choice(kinds)(x, shape) if shape else None

    def _turned(self, x: Value, shape: Shape) -> Value | None:
        order = self.rng.sample(range(len(shape)), len(shape))
        return self.sheet.add("permute.default", x, tuple(order), to=[shape[d] for d in order])

    def _merged(self, x: Value, shape: Shape) -> Value | None:
        """Two neighbours as one, and apart again behind an operator."""
        if len(shape) < 2:
            return None
        d = self.rng.randrange(len(shape) - 1)
        one = (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
        y = self.sheet.add("reshape.default", self.sheet.add("clone.default", x, to=shape), one, to=one)
        y = self.sheet.add("tanh.default", y, to=one)
        if self.rng.random() < 0.5:
            return y
        return self.sheet.add("reshape.default", y, shape, to=shape)

    def _cut(self, x: Value, shape: Shape) -> Value | None:
        d = self._dim(shape)
        if is_one(shape[d]):
            return None
        to = (*shape[:d], shape[d] - 1, *shape[d + 1 :])
        if self.rng.random() < 0.5:
            return self.sheet.add("slice.Tensor", x, d, 1, shape[d], 1, to=to)
        return self.sheet.add("slice.Tensor", x, d, 0, -1, 1, to=to)

    def _taken(self, x: Value, shape: Shape) -> Value | None:
        d = self._dim(shape)
        to = (*shape[:d], *shape[d + 1 :])
        if self.rng.random() < 0.6:
            return self.sheet.add("select.int", x, d, self.rng.choice((0, -1)), to=to)
        index = self.sheet.input(shape[d] + 2, dtype=DType.I64)
        to = (*shape[:d], shape[d] + 2, *shape[d + 1 :])
        return None if is_one(shape[d]) else self.sheet.add("index_select.default", x, d, index, to=to)

    def _flipped(self, x: Value, shape: Shape) -> Value | None:
        if self.rng.random() < 0.5:
            return self.sheet.add("flip.default", x, (self._dim(shape),), to=shape)
        return self.sheet.add("roll.default", x, (1,), (self._dim(shape),), to=shape)

    def _wider(self, x: Value, shape: Shape) -> Value | None:
        if len(shape) > 3:
            return None
        d = self.rng.randrange(len(shape) + 1)
        one = (*shape[:d], 1, *shape[d:])
        to = (*shape[:d], 2, *shape[d:])
        y = self.sheet.add("unsqueeze.default", x, d, to=one)
        return y if self.rng.random() < 0.5 else self.sheet.add("expand.default", y, to, to=to)

    def _padded(self, x: Value, shape: Shape) -> Value | None:
        to = (*shape[:-1], shape[-1] + 3)
        return self.sheet.add("constant_pad_nd.default", x, (1, 2), 0.5, to=to)

    def _join(self, x: Value, shape: Shape) -> Value | None:
        if not shape:
            return None
        d = self._dim(shape)
        extra = self.rng.choice((1, 5, shape[d]))
        more = self._new((*shape[:d], extra, *shape[d + 1 :]))
        to = (*shape[:d], shape[d] + extra, *shape[d + 1 :])
        pair = (x, more) if self.rng.random() < 0.5 else (more, x)
        return self.sheet.add("cat.default", pair, d, to=to)


def _shape_of(x: Value) -> Shape:
    assert isinstance(x.type, TensorType)
    return x.type.sizes


def _is_same(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(map(equals, a, b))
