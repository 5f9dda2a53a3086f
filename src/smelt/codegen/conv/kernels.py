"""Which kernel a convolution gets, with its packed weight, tables and words.

depthwise   one input channel a group, as many outputs      depthwise.py
first       few input channels, a window: rows copied       bordered.py
winograd    three taps along one or two axes                winograd.py
flat        1x1 over pixels at one stride                   dense.py
window      everything else                                 dense.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch

from smelt.codegen.conv import bordered, dense, depthwise, pack, winograd
from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.micro import Tile
from smelt.codegen.conv.pack import Tap
from smelt.codegen.conv.repack import Packed
from smelt.codegen.conv.shape import ConvShape, Over
from smelt.codegen.conv.tiles import (
    MAX_PIXELS,
    copied_rows,
    dense_blocks,
    dense_tile,
    depthwise_channels,
    first_panels,
    nanoseconds,
    seen_rows,
    tile_pixels,
    winograd_blocks,
    winograd_frames_pays,
    winograd_pays,
    winograd_row_pays,
    within_row,
)  # fmt: skip
from smelt.codegen.llvm.isa import Isa, has_wide_multipliers
from smelt.diag.records import record
from smelt.ir.sizes import equals, is_one, is_symbolic, is_whole, size_min
from smelt.passes.layers.frames import COPIED_CHANNELS
from smelt.runtime.filters import Filters, Form

Strides = tuple[int, int, int, int]
"""Of n, c, h, w in elements."""

# Input columns that a depthwise tile may hold in registers and pointers.
_MAX_COLUMNS = 10
_MAX_WINDOW_COLUMNS = 24
# Channels that share one transform of the input.
_WINOGRAD_COLUMNS = 128


@record
class ConvPlan:
    """A choice of kernel that has not looked at the weight yet. `finite`: its weight must have no inf or nan.

    A border is read as zeros, and zero times infinity is a number that eager does not have. packed: how the weight is
    read; `tables` are what the kernel reads beside it.
    """

    kind: str
    emit: Callable[[], str]
    words: tuple[int, ...]
    items: int
    item_ns: float
    scratch_nbytes: int
    finite: bool
    packed: Packed
    tables: Callable[[], tuple[torch.Tensor, ...]]
    groups: int = 1

    @property
    def filters(self) -> Filters:
        """How a weight is packed before the run."""
        form: Form = "turned" if self.packed.turned else self.packed.form
        return Filters(form, self.groups, self.packed.columns, self.finite)

    @property
    def text(self) -> str:
        """The kernel's module."""
        return self.emit()


@record
class Phase:
    """A part of a result whose pixels lie apart, and the taps that reach it.

    out: strides of images, rows and columns, and where the first one lies, in elements. depth: products for which a
    weight was packed, of which those of `taps` are taken.
    """

    taps: tuple[Tap, ...]
    out: tuple[int, int, int, int]
    depth: int


def is_planes(shape: ConvShape, strides: Strides) -> bool:
    """Whether x lies as [n, c, h, w] with adjacent columns."""
    return strides[3] == 1 or shape.w == 1


def is_channels_last(shape: ConvShape, strides: Strides) -> bool:
    """Whether the channels of a pixel are adjacent."""
    return strides[1] == 1 or shape.cin == 1


def _is_depthwise(shape: ConvShape) -> bool:
    return shape.groups == shape.cin == shape.cout and shape.groups > 1


def is_few(shape: ConvShape) -> bool:
    """Whether so few channels are read through a window that rows are better copied: the lanes' broadcasts would be few
    between two changes of place.
    """
    return shape.groups == 1 and shape.cin <= COPIED_CHANNELS and (shape.kh > 1 or shape.kw > 1)


def plan_kernel(
    isa: Isa, shape: ConvShape, strides: Strides, epilogue: Epilogue, *, live: bool = False
) -> ConvPlan | None:
    """The kernel for a convolution whose input has these strides; None where it has none.

    The result, and "element" operands of the epilogue, are dense channels-last. live: the weight is packed in
    each call.
    """
    if 0 in (shape.pixels, shape.cout, shape.depth) or shape.oh < 0 or shape.ow < 0:
        return None
    if _is_depthwise(shape):
        return _depthwise(isa, shape, strides, epilogue, live) if is_channels_last(shape, strides) else None
    if is_few(shape) and (is_planes(shape, strides) or _is_packed_row(shape, strides)):
        return _first(isa, shape, strides, epilogue, live)
    if not is_channels_last(shape, strides):
        return None
    return _winograd(isa, shape, strides, epilogue, live) or _dense(isa, shape, strides, epilogue, live)


def plan_phase(
    isa: Isa, shape: ConvShape, strides: Strides, epilogue: Epilogue, phase: Phase, *, live: bool, turned: bool = False
) -> ConvPlan:
    """The kernel for a part of a result that some taps reach: of the gradient of an image, or some frames. turned: a
    weight that is packed before the run is of the convolution which had the image.
    """
    plan = _dense(isa, shape, strides, epilogue, live, phase)
    return replace(plan, packed=replace(plan.packed, turned=turned))


def plan_frames(isa: Isa, over: Over, strides: tuple[int, ...], epilogue: Epilogue) -> ConvPlan | None:
    """The kernel that gives all frames of a result at once; None where parts of them have kernels of their own.

    strides: of n, c, frames, h, w in elements.

    The result, and "element" operands of the epilogue, are dense with channels side by side.
    """
    sample, channel, frame, row, column = strides
    inside = sample, channel, row, column
    if is_few(over.shape):
        if is_planes(over.shape, inside) or _is_packed_row(over.shape, inside):
            return _first(isa, over.shape, inside, epilogue, live=False, along=Along(over, frame))
        return None
    if channel != 1:
        return None
    along = Along(over, frame)
    return _winograd_deep(isa, along, inside, epilogue) or _winograd_frames(isa, along, inside, epilogue)


def _is_packed_row(shape: ConvShape, strides: Strides) -> bool:
    return is_channels_last(shape, strides) and (shape.w == 1 or strides[3] == shape.cin)


# --- dense


def _pixel_stride(shape: ConvShape, strides: Strides) -> int | None:
    """The distance in x of two pixels of a 1x1 window; None where there is more than one."""
    at = shape.window
    if (shape.kh, shape.kw) != (1, 1) or shape.has_border:
        return None
    # A size that may be 1 is one of several: pixels at one stride are that also where there is one.
    steps = [
        (size, step)
        for size, step in (
            (shape.n, strides[0]), (shape.oh, strides[2] * at.stride[0]), (shape.ow, strides[3] * at.stride[1]),
        )
        if not is_one(size)
    ]  # fmt: skip
    for (_, outer), (size, inner) in pairwise(steps):
        if not equals(outer, size * inner):
            return None
    return steps[-1][1] if steps else 0


def _dense(
    isa: Isa, shape: ConvShape, strides: Strides, epilogue: Epilogue, live: bool, phase: Phase | None = None
) -> ConvPlan:
    stride = _pixel_stride(shape, strides) if phase is None else None
    flat = stride is not None
    tile = dense_tile(isa, shape.group_out, shape.pixels)
    row_pixels = tile_pixels(shape.ow, tile.pixels)
    if not flat and shape.has_border and is_whole(shape.ow, row_pixels):
        # Tiles that end with the row skip the taps above the first row and below the last.
        tile = Tile(tile.lanes, tile.vectors, row_pixels)
    group_panels = -(-shape.group_out // tile.columns)
    at = shape.window
    seen = 1 if flat else min(at.stride[0], shape.kh) * min(at.stride[1], shape.kw)
    spread = not flat and is_symbolic(strides[2:])
    steps = (0, 0) if spread else (strides[2], strides[3])
    table, nblocks, nsegments, longest = pack.segment_table(shape, steps, None if phase is None else phase.taps)
    depth = shape.depth if phase is None else phase.depth
    reached = shape.depth if phase is None else max(len(phase.taps), 1) * shape.group_in
    limit = pack.block_limit(shape)
    variant = dense.DenseVariant(
        tile, flat, shape.depth > limit if flat else nblocks > 1, shape.group_out % tile.columns != 0, epilogue, spread,
        live, phase is not None,
    )  # fmt: skip
    pixel_nbytes = shape.group_in * 4 * seen + dense.scratch_nbytes(variant, 1)[0]
    blocks = dense_blocks(
        tile, group_panels * shape.groups, shape.pixels, reached * tile.columns * 4, pixel_nbytes,
        nanoseconds(isa, reached * tile.columns * tile.pixels),
    )  # fmt: skip
    item_ns = nanoseconds(isa, reached * tile.columns * blocks.panel_step * blocks.pixel_step)
    scratch_nbytes, places = dense.scratch_nbytes(variant, blocks.pixel_step)
    words = (
        *blocks.words, reached, pack.even_block(reached, limit), stride or 0, shape.cout,
        shape.group_out, group_panels, shape.group_in, depth * tile.columns,
    )  # fmt: skip
    if not flat:
        words = (
            *words, shape.oh, shape.ow, shape.h, shape.w, *at.stride, *at.before, strides[0], strides[2], strides[3],
            nblocks, nsegments, places, *(() if phase is None else phase.out),
        )  # fmt: skip

    def tables() -> tuple[torch.Tensor, ...]:
        return () if flat else (table, torch.zeros(longest))

    return ConvPlan(
        "flat" if flat else "window", partial(dense.dense_text, isa, variant), words, blocks.items, item_ns,
        scratch_nbytes, shape.has_border, Packed("dense", tile.lanes, tile.vectors), tables, shape.groups,
    )  # fmt: skip


# --- 3x3, and 3 in a row


@record
class Along:
    """The axis of time: what the convolution is along it, and the distance of two frames in x."""

    over: Over
    to_frame: int


def _winograd(isa: Isa, shape: ConvShape, strides: Strides, epilogue: Epilogue, live: bool) -> ConvPlan | None:
    """The kernel with fewer products, where it saves enough of them; None elsewhere."""
    at = shape.window
    is_row = (shape.kh, shape.kw, *at.stride, shape.groups) == (1, 3, 1, 1, 1) and not live
    if not is_row and (shape.kh, shape.kw, *at.stride, *at.dilation, shape.groups) != (3, 3, 1, 1, 1, 1, 1):
        return None
    vectors = 4 if has_wide_multipliers(isa) and shape.cout % 64 == 0 else 2
    columns = vectors * isa.f32_lanes
    if isa.name == "baseline" or shape.cin % winograd.BLOCK or shape.cout % columns:
        return None
    gap = at.dilation[1]
    th, tw = (shape.oh, -(-shape.ow // (2 * gap)) * gap) if is_row else (-(-shape.oh // 2), -(-shape.ow // 2))
    tiles = shape.n * th * tw
    if is_row and not winograd_row_pays(isa, shape.pixels, tiles, shape.cin, shape.cout):
        return None
    if not is_row and not winograd_pays(isa, shape.pixels, tiles, shape.cin * shape.cout, live):
        return None
    pixels = tile_pixels(tiles, MAX_PIXELS if isa.f32_lanes == 16 and vectors == 2 else 6)
    variant = winograd.WinogradVariant(Tile(isa.f32_lanes, vectors, pixels), epilogue, live, is_row)
    panels, points = shape.cout // columns, variant.points
    tile_step, panel_step = winograd_blocks(tiles, pixels, panels, points * shape.cin * 4, _WINOGRAD_COLUMNS // columns)
    words = (
        panels, -(-panels // panel_step), panel_step, tiles, tile_step, th, tw, shape.oh, shape.ow, shape.h, shape.w,
        *at.before, strides[0], strides[2], strides[3], shape.cin, shape.cin, shape.cout, points * shape.cin * columns,
        *((gap,) if is_row else ()),
    )  # fmt: skip

    def tables() -> tuple[torch.Tensor, ...]:
        return (torch.zeros(shape.cin),)

    return ConvPlan(
        "winograd", partial(winograd.winograd_text, isa, variant), words,
        -(-tiles // tile_step) * -(-panels // panel_step),
        nanoseconds(isa, points * tile_step * shape.cin * panel_step * columns * 1.15),
        winograd.scratch_nbytes(variant, tile_step, shape.cin), True,
        Packed("winograd_row" if is_row else "winograd", isa.f32_lanes, vectors), tables,
    )  # fmt: skip


def _winograd_deep(isa: Isa, along: Along, strides: Strides, epilogue: Epilogue) -> ConvPlan | None:
    """The kernel that makes squares of 2x2 of a frame from several frames; None where it saves too few products."""
    over, shape = along.over, along.over.shape
    at, taps = shape.window, over.taps
    vectors = 4 if has_wide_multipliers(isa) and shape.cout % 64 == 0 else 2
    columns = vectors * isa.f32_lanes
    if (shape.kh, shape.kw, *at.stride, *at.dilation, shape.groups) != (3, 3, 1, 1, 1, 1, 1):
        return None
    if isa.name == "baseline" or shape.cin % winograd.BLOCK or shape.cout % columns:
        return None
    th, tw = -(-shape.oh // 2), -(-shape.ow // 2)
    images, depth = shape.n * over.results, taps * shape.cin
    tiles = images * th * tw
    # What is computed of taps beyond both ends counts as if it were more tiles.
    pixels = shape.n * shape.oh * shape.ow * over.reached // taps
    if not winograd_pays(isa, pixels, tiles, depth * shape.cout):
        return None
    pixels = tile_pixels(tiles, MAX_PIXELS if isa.f32_lanes == 16 and vectors == 2 else 6)
    variant = winograd.WinogradVariant(Tile(isa.f32_lanes, vectors, pixels), epilogue, is_deep=True)
    cut = over.frames, over.results, over.step, over.before, over.gap, taps, along.to_frame
    return _winograd_of_frames(isa, variant, over, strides, (tiles, th, tw, depth), cut)


def _winograd_frames(isa: Isa, along: Along, strides: Strides, epilogue: Epilogue) -> ConvPlan | None:
    """The kernel that makes two frames of a result from four with 4 products for 6; None where it saves too few."""
    over, shape = along.over, along.over.shape
    at = shape.window
    vectors = 4 if has_wide_multipliers(isa) and shape.cout % 64 == 0 else 2
    columns = vectors * isa.f32_lanes
    if isa.name == "baseline" or shape.cin % winograd.BLOCK or shape.cout % columns:
        return None
    if (over.taps, over.step, shape.groups) != (3, 1, 1):
        return None
    pairs = -(-over.results // (2 * over.gap)) * over.gap
    if not winograd_frames_pays(over, pairs):
        return None
    area = shape.oh * shape.ow
    tiles = shape.n * pairs * area
    pixels = tile_pixels(tiles, MAX_PIXELS if isa.f32_lanes == 16 and vectors == 2 else 6)
    variant = winograd.WinogradVariant(Tile(isa.f32_lanes, vectors, pixels), epilogue, is_over=True)
    cut = (
        over.gap, over.frames, over.results, over.before, along.to_frame, shape.kh, shape.kw, *at.stride, *at.dilation
    )  # fmt: skip
    return _winograd_of_frames(isa, variant, over, strides, (tiles, pairs, area, shape.depth), cut)


def _winograd_of_frames(
    isa: Isa,
    variant: winograd.WinogradVariant,
    over: Over,
    strides: Strides,
    sizes: tuple[int, int, int, int],
    cut: tuple[int, ...],
) -> ConvPlan:
    """The plan of either. sizes: tiles, those along both axes, inputs of a point; cut: the variant's own words."""
    shape, columns, points = over.shape, variant.tile.columns, variant.points
    tiles, th, tw, depth = sizes
    panels = shape.cout // columns
    tile_step, panel_step = winograd_blocks(
        tiles, variant.tile.pixels, panels, points * depth * 4, _WINOGRAD_COLUMNS // columns
    )  # fmt: skip
    words = (
        panels, -(-panels // panel_step), panel_step, tiles, tile_step, th, tw, shape.oh, shape.ow, shape.h, shape.w,
        *shape.window.before, strides[0], strides[2], strides[3], shape.cin, depth, shape.cout,
        points * depth * columns, *cut,
    )  # fmt: skip

    def tables() -> tuple[torch.Tensor, ...]:
        return (torch.zeros(shape.cin),)

    form: Form = "winograd_deep" if variant.is_deep else "winograd_frames"
    return ConvPlan(
        "winograd", partial(winograd.winograd_text, isa, variant), words,
        -(-tiles // tile_step) * -(-panels // panel_step),
        nanoseconds(isa, points * tile_step * depth * panel_step * columns * 1.1),
        winograd.scratch_nbytes(variant, tile_step, depth), True, Packed(form, isa.f32_lanes, variant.tile.vectors),
        tables,
    )  # fmt: skip


# --- few input channels


def _first(
    isa: Isa, shape: ConvShape, strides: Strides, epilogue: Epilogue, live: bool, along: Along | None = None
) -> ConvPlan:
    planes = is_planes(shape, strides) and (shape.cin == 1 or not _is_packed_row(shape, strides))
    at = shape.window
    unit = 1 if planes else shape.cin
    row = ((shape.ow - 1) * at.stride[1] + (shape.kw - 1) * at.dilation[1] + 1) * unit
    tile = within_row(dense_tile(isa, shape.cout, shape.ow), shape.ow)
    limit = pack.block_limit(shape)
    taps = 1 if along is None else along.over.taps
    depth = taps * shape.depth
    copies = shape.cin if planes else 1
    rows = copied_rows(shape, taps * copies, row)
    height = seen_rows(shape, rows)
    panels = -(-shape.cout // tile.columns)
    panel_ns = nanoseconds(isa, depth * tile.columns * rows * shape.ow)
    panel_step = first_panels(panels, panel_ns)
    row_blocks, panel_blocks = -(-shape.oh // rows), -(-panels // panel_step)
    lead = size_min(at.before[1] * unit, row)
    words: tuple[int, ...] = (
        panels, panel_blocks, panel_step, row_blocks, rows, shape.oh, shape.ow, shape.h, at.before[0], at.stride[0],
        strides[0], strides[1], strides[2], copies, height, row, lead, size_min(shape.w * unit, row - lead),
        depth, pack.even_block(depth, limit), shape.cout, shape.cout, depth * tile.columns,
    )  # fmt: skip
    images = shape.n
    if along is not None:
        over = along.over
        images *= over.results
        words = (*words, over.results, over.frames, over.step, over.before, over.gap, over.taps, along.to_frame)
    spread = is_symbolic(row)
    variant = bordered.BorderedVariant(
        tile, at.stride[1] * unit, depth > limit, shape.cout % tile.columns != 0, epilogue, spread, live,
        along is not None,
    )  # fmt: skip

    def tables() -> tuple[torch.Tensor, ...]:
        return (pack.offset_table(shape, planes, height, None if spread else row, taps),)

    return ConvPlan(
        "first", partial(bordered.bordered_text, isa, variant), words, images * row_blocks * panel_blocks,
        panel_ns * panel_step, taps * copies * height * row * 4, shape.has_border,
        Packed("dense", tile.lanes, tile.vectors), tables,
    )  # fmt: skip


# --- depthwise


def _depthwise(isa: Isa, shape: ConvShape, strides: Strides, epilogue: Epilogue, live: bool) -> ConvPlan | None:
    at = shape.window
    lanes = isa.f32_lanes
    while lanes > 4 and shape.cin <= lanes // 2:
        lanes //= 2

    def variant_of(pixels: int) -> depthwise.DepthwiseVariant:
        return depthwise.DepthwiseVariant(
            Tile(lanes, 1, pixels), shape.kw, at.stride[1], at.dilation[1], shape.cin % lanes != 0, epilogue, live
        )

    most = MAX_PIXELS
    while most > 1 and len(variant_of(most).columns) > _MAX_COLUMNS:
        most -= 1
    if len(variant_of(most).columns) > _MAX_WINDOW_COLUMNS:
        return None
    variant = variant_of(within_row(Tile(lanes, 1, tile_pixels(shape.ow, most)), shape.ow).pixels)
    block = depthwise_channels(-(-shape.cin // lanes) * lanes, lanes, shape.ow)
    blocks = -(-shape.cin // block)
    words = (
        shape.cin, shape.oh, shape.ow, shape.h, shape.w, shape.kh, at.stride[0], at.dilation[0], *at.before, strides[0],
        strides[2], strides[3], shape.cout, blocks, block,
    )  # fmt: skip

    def tables() -> tuple[torch.Tensor, ...]:
        return (torch.zeros(lanes),)

    item_ns = 2.0 * nanoseconds(isa, block * shape.ow * shape.kh * shape.kw)
    return ConvPlan(
        "depthwise", partial(depthwise.depthwise_text, isa, variant), words, shape.n * shape.oh * blocks, item_ns, 0,
        shape.has_border, Packed("depthwise", lanes, 1), tables,
    )  # fmt: skip
