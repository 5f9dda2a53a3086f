"""Graphs of convolutions lowered once for all batches and images: right on both sides of each threshold, few guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from smelt.codegen.lower.symbolic.lowering import SymbolicLowered, lower_symbolic
from smelt.ir import Graph, TensorType, Value
from smelt.ir.dims import Dim, Sym, dim_of, size_of
from smelt.ir.dtypes import DType
from smelt.ir.sizes import Range, tracing
from smelt.ops.typing import infer
from tests.codegen.harness import call, executables, lookup_in
from tests.codegen.test_lower_products import normal
from tests.symbolic.lowering_harness import Program, kernels, launches

BATCHES = (2, 3, 5, 9, 40)


@dataclass(frozen=True)
class Conv:
    """A convolution with relu and a residual behind it, over images [B, cin, h, w]; None: the size is a symbol."""

    cin: int
    cout: int
    h: int | None
    w: int | None
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1
    channels_last: bool = True

    @property
    def image(self) -> tuple[Dim, ...]:
        """The input's sizes as they stand in a type."""
        return Sym("B"), self.cin, Sym("H") if self.h is None else self.h, Sym("W") if self.w is None else self.w

    def out(self, *sizes: int) -> tuple[int, ...]:
        """The result's sizes."""
        n, _, h, w = sizes
        rows, columns = (
            (size + 2 * self.padding - self.dilation * (k - 1) - 1) // self.stride + 1
            for size, k in zip((h, w), self.kernel, strict=True)
        )
        return n, self.cout, rows, columns

    def program(self) -> Program:
        names = [d.name for d in self.image if isinstance(d, Sym)]
        with tracing({name: (29, Range()) for name in names}) as trace:
            made = self.out(*(size_of(d, trace.symbols) for d in self.image))
            out = ", ".join(str(dim_of(size)) for size in made)
            lies = self.strides(self.image, trace)
            result = self.strides(tuple(map(dim_of, made)), trace)
        sizes = ", ".join(map(str, self.image))
        rest = f"[{self.stride}, {self.stride}], [{self.padding}, {self.padding}], [{self.dilation}, {self.dilation}]"
        text = f"""\
graph f(%x: f32[{sizes}]{lies}, %r: f32[{out}]{result}) -> f32[{out}]{result} {{
  %w: f32[{self.cout}, {self.cin // self.groups}, {self.kernel[0]}, {self.kernel[1]}] = param("w")
  %b: f32[{self.cout}] = param("b")
  %0: f32[{out}]{result} = aten.conv2d.default(%x, %w, %b, {rest}, {self.groups})
  %1: f32[{out}]{result} = aten.relu.default(%0)
  %2: f32[{out}]{result} = aten.add.Tensor(%1, %r)
  return %2
}}"""

        def inputs(*point: int) -> Sequence[torch.Tensor]:
            given = dict(zip(names, point, strict=True))
            image = [given.get(d.name, 0) if isinstance(d, Sym) else d for d in self.image]
            tensors = [normal(*image), normal(*self.out(*image), seed=1)]  # type: ignore[arg-type]
            return [t.to(memory_format=torch.channels_last) if self.channels_last else t for t in tensors]

        state = {"w": normal(self.cout, self.cin // self.groups, *self.kernel, seed=2), "b": normal(self.cout, seed=3)}
        return Program(text, inputs, state)

    def strides(self, sizes: tuple[Dim, ...], trace: Any) -> str:
        """The text of channels-last strides."""
        if not self.channels_last:
            return ""
        _, c, h, w = (size_of(d, trace.symbols) for d in sizes)
        return "{" + ", ".join(str(dim_of(n)) for n in (h * w * c, 1, w * c, c)) + "}"


def lowered(program: Program, symbols: dict[str, tuple[int, int]]) -> SymbolicLowered:
    """The plan for these sizes at hand, and all from the second number on."""
    hints = {name: hint for name, (hint, _) in symbols.items()}
    ranges = {name: Range(low) for name, (_, low) in symbols.items()}
    return lower_symbolic(program.graph, lookup_in(program.state), program.options, hints, ranges)


def label(program: Program, hints: dict[str, int]) -> str:
    """What the convolution's kernel is called in the plan for these sizes alone."""
    (name,) = [name for name in kernels(program.alone(hints)) if name.startswith("convolution")]
    return name.split()[1]


BATCHED = {
    "3x3": Conv(16, 24, 7, 9),
    "3x3 saved": Conv(64, 64, 14, 14),
    "1x1": Conv(24, 40, 5, 6, (1, 1), padding=0),
    "1x1 of one pixel": Conv(48, 40, 1, 1, (1, 1), padding=0, channels_last=False),
    "strided": Conv(16, 16, 9, 8, (3, 3), 2),
    "1x1 strided": Conv(16, 16, 9, 8, (1, 1), 2, 0),
    "dilated": Conv(16, 16, 9, 8, (3, 3), 1, 2, 2),
    "grouped": Conv(32, 32, 6, 5, groups=2),
    "depthwise": Conv(24, 24, 7, 9, groups=24),
    "first": Conv(3, 16, 20, 18, (7, 7), 2, 3, channels_last=False),
    "first packed": Conv(3, 16, 12, 18, (3, 3), 1, 1),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("hint", [2, 33])
@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_any_size(name: str, hint: int) -> None:
    program = BATCHED[name].program()
    made = program.lowered({"B": hint})
    assert made.guards == ()
    for batch in BATCHES:
        program.check(made, batch, ratio=3.0)


@pytest.mark.parametrize("name", ["3x3", "1x1", "depthwise", "first"])
def test_a_batch_that_may_be_one(name: str) -> None:
    program = BATCHED[name].program()
    made = program.lowered({"B": 4}, low=1, high=64)
    for batch in (1, 2, 64):
        if made.plan.holds(batch):
            program.check(made, batch, ratio=3.0)
    assert made.plan.holds(2) and made.plan.holds(64)


def test_few_pixels_are_summed_as_many_are() -> None:
    """The blocks of a sum are those for the sizes at hand; on the other side of the threshold they are right, too."""
    program = Conv(256, 40, 1, 1, (1, 1), padding=0, channels_last=False).program()
    few, many = program.lowered({"B": 3}), program.lowered({"B": 30})
    assert few.plan.holds(30) and many.plan.holds(3)
    for made in (few, many):
        for batch in (2, 8, 9, 64):
            program.check(made, batch, ratio=4.0)


def test_fewer_products_or_not_by_the_sizes_at_hand() -> None:
    """Whether the 3x3 kernel saves enough depends on the image: of odd rows much of a tile is thrown away."""
    conv = Conv(64, 64, None, None)
    program = conv.program()
    small, large = {"B": 2, "H": 3, "W": 3}, {"B": 2, "H": 20, "W": 20}
    kinds = [label(program, hints) for hints in (small, large)]
    for hints, kind in zip((small, large), kinds, strict=True):
        made = program.lowered(hints, low=2)
        assert [name.split()[1] for name in kernels(made.lowered.plan) if name.startswith("convolution")] == [kind]
        for sizes in ((2, 3, 3), (3, 20, 20), (2, 9, 31)):
            if made.plan.holds(*sizes):
                program.check(made, *sizes, ratio=4.0)
        assert made.plan.holds(2, 9, 31)


IMAGES = {
    name: replace(conv, h=None, w=None)
    for name, conv in BATCHED.items()
    if name not in ("1x1 of one pixel", "3x3 saved")
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", IMAGES)
def test_an_image_of_any_size(name: str) -> None:
    conv = IMAGES[name]
    program = conv.program()
    made = lowered(program, {"B": (4, 2), "H": (24, 12), "W": (20, 12)})
    held = 0
    for sizes in ((2, 16, 16), (3, 17, 40), (5, 33, 23), (2, 64, 18)):
        if made.plan.holds(*sizes):
            held += 1
            program.check(made, *sizes, ratio=4.0)
    assert held >= 3, made.guards


def test_a_row_shorter_than_a_tile_is_not_taken() -> None:
    """A tile begins earlier where it would reach past the row; that must not be before the row's start."""
    for conv in (IMAGES["first"], IMAGES["depthwise"]):
        program = replace(conv, h=12).program()
        wide = program.lowered({"B": 2, "W": 40}, low=2)
        assert wide.guards and not wide.plan.holds(2, 4)
        for width in (5, 16, 17, 90):
            if wide.plan.holds(2, width):
                program.check(wide, 2, width, ratio=4.0)
        assert wide.plan.holds(2, 90)
        narrow = program.lowered({"B": 2, "W": 4}, low=2)
        for width in (2, 3, 4, 6):
            if narrow.plan.holds(2, width):
                program.check(narrow, 2, width, ratio=4.0)


def test_words_are_those_of_a_plan_for_the_sizes() -> None:
    """Items are cut for each batch as a plan for that batch alone cuts them."""
    program = BATCHED["3x3"].program()
    made = program.lowered({"B": 16})
    for batch in (12, 16, 40):
        here, alone = launches(made.at((batch,)).plan), launches(program.alone({"B": batch}))
        assert [launch.words for launch in here] == [launch.words for launch in alone]
        assert [launch.items for launch in here] == [launch.items for launch in alone]


def test_infinite_weights_take_no_border_of_zeros() -> None:
    """Zero times infinity is a number that eager does not have."""
    program = Conv(16, 16, None, None).program()
    weight = program.state["w"].clone()
    weight[3, 2, 1, 1] = float("inf")
    infinite = replace(program, state={**program.state, "w": weight})
    made = infinite.lowered({"B": 2, "H": 9, "W": 10})
    x, r = infinite.inputs(2, 9, 10)
    expected = torch.relu(torch.conv2d(x, weight, program.state["b"], padding=1)) + r
    for executable in executables(made.at((2, 9, 10)).plan):
        (found,) = call(made.at((2, 9, 10)), executable, [x, r], infinite.state)
        assert torch.equal(found.isnan(), expected.isnan())


def test_types_of_convolutions_over_symbols() -> None:
    graph = Graph("g")
    x = Value("x", TensorType(DType.F32, (Sym("B"), 3, Sym("H"), Sym("W"))), graph.body)
    w = Value("w", TensorType(DType.F32, (8, 3, 3, 3)), graph.body)
    (found,) = infer("aten.conv2d.default", (x, w, None, (2, 2), (1, 1)), {})
    assert isinstance(found, TensorType) and found.shape is not None
    for sizes in ({"B": 2, "H": 7, "W": 8}, {"B": 5, "H": 32, "W": 33}):
        made = torch.conv2d(torch.zeros(sizes["B"], 3, sizes["H"], sizes["W"]), torch.zeros(8, 3, 3, 3), None, 2, 1)
        assert tuple(size_of(d, sizes) for d in found.shape) == tuple(made.shape)
