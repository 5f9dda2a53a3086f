"""How large a tile is, and how a convolution is cut into work items.

Invariant: tiles and items change the speed alone; every element is summed in the same order whatever they are. So for
sizes that are known at run time only the tile is the one for the sizes at hand, and items are cut anew for each.
"""

from __future__ import annotations

import torch

from smelt.codegen.conv.micro import Tile
from smelt.codegen.conv.shape import ConvShape, Over
from smelt.codegen.llvm.isa import Isa, has_wide_multipliers
from smelt.diag.records import record
from smelt.ir.sizes import chosen, late
from smelt.runtime.machine.cpu import data_cache_nbytes

MAX_PIXELS = 8
"""More pixels than this would need more pointers than there are integer registers."""

_FEW_PIXELS = 2
_NS_PER_MAC = 0.02
# What of a block may lie in the second-level cache beside the rest.
_CACHED_NBYTES = 256 << 10
_MIN_ITEMS, _ITEMS_PER_THREAD = 16, 4
_WINOGRAD_NBYTES, _MIN_WINOGRAD_ITEMS = 384 << 10, 4
# Products that the 3x3 kernel must save to pay for its transforms; what it has for the 36 of a tile.
_MIN_SAVING, _WINOGRAD_POINTS = 1.5, 16
# Along time, where what the border has is not multiplied otherwise.
_MIN_FRAME_SAVING = 1.2
# Along a row, and what inputs * outputs / (inputs + outputs) of channels must be at least.
_MIN_ROW_SAVING, _ROW_POINTS, _LEAST_ROW_CHANNELS = 1.35, 4, 30
# Tiles that pay for writing and reading a weight of 16 points where one of 9 taps is there.
_LIVE_TILES = 32
_ROWS_NBYTES = 48 << 10
_DEPTHWISE_ITEM = 4096
_MIN_ITEM_NS = 3000.0


@chosen
def dense_tile(isa: Isa, columns: int, pixels: int) -> Tile:
    """The tile for a product with `columns` channels (of a group) and so many pixels."""
    most = {16: 4 if has_wide_multipliers(isa) else 3, 8: 3 if isa.f32_lanes == 16 else 2}
    choices = [
        Tile(lanes, vectors, tile_pixels(pixels, _most_pixels(isa, vectors)))
        for lanes in (16, 8, 4)
        if lanes <= isa.f32_lanes
        # With a pixel or two, vectors are what keeps the multipliers busy.
        for vectors in range(4 if pixels <= _FEW_PIXELS else most.get(lanes, 4 if isa.name == "neon" else 2), 0, -1)
    ]
    return min(choices, key=lambda tile: _tile_cost(isa, tile, columns, pixels))


def _tile_cost(isa: Isa, tile: Tile, columns: int, pixels: int) -> float:
    """What all tiles cost, in products: those of the padding too, and what loads and broadcasts add."""
    padded = -(-columns // tile.columns) * tile.columns
    is_wide = has_wide_multipliers(isa)
    # Narrow registers do as much a cycle where two run at once, but take twice the instructions.
    half = 1.9 if is_wide else 1.06
    cost = padded * (1.0 if tile.lanes == isa.f32_lanes else half if 2 * tile.lanes == isa.f32_lanes else 1.8 * half)
    if not is_wide or pixels <= _FEW_PIXELS:
        return cost * (1.0 if tile.vectors > 1 else 1.05)
    cost *= -(-pixels // tile.pixels) * tile.pixels * {1: 1.2, 2: 1.09}.get(tile.vectors, 1.0)
    return cost * (1.0 + 0.01 * max(0, 24 - tile.pixels * tile.vectors))


def _most_pixels(isa: Isa, vectors: int) -> int:
    """Pixels whose sums fit the registers beside the weights and one broadcast (two where products are apart)."""
    spare = 3 if isa.name == "baseline" else 2
    return max(1, min(MAX_PIXELS, (isa.vector_registers - vectors - spare) // vectors))


@chosen
def tile_pixels(pixels: int, most: int) -> int:
    """Pixels a tile, at most `most`, so that `pixels` are covered with little repeated."""
    if pixels <= most:
        return pixels
    wasted = {p: -(-pixels // p) * p for p in (most, most - 1) if p > 0}
    # A smaller tile must save what its lower ratio of products to loads costs.
    return min(wasted, key=lambda p: (wasted[p] * (1.0 if p == most else 1.02), -p))


@record
class Blocks:
    """Work items of panels x pixels: how many of each an item has, how many items there are.

    words: the kernel's words, in its order.
    """

    panel_step: int
    pixel_step: int
    items: int
    words: tuple[int, ...]


def dense_blocks(tile: Tile, panels: int, pixels: int, panel_nbytes: int, pixel_nbytes: int, panel_ns: float) -> Blocks:
    """How a dense product is cut up.

    panel_nbytes, pixel_nbytes: memory read for one panel, and for one pixel. panel_ns: time of one tile in one panel.
    """
    cut = _dense_cut(tile.pixels, panels, pixels, panel_nbytes, pixel_nbytes, panel_ns)
    panel_step, pixel_step, _, _, *every, items = cut
    return Blocks(panel_step, pixel_step, items, (panels, pixels, *cut[:4], *every))


@late(low=1)
def _dense_cut(
    tile_pixels: int, panels: int, pixels: int, panel_nbytes: int, pixel_nbytes: int, panel_ns: float
) -> tuple[int, ...]:
    """Panels and pixels of an item; blocks of each; after how many items each goes on; items."""
    tiles = -(-pixels // tile_pixels)
    tile_step = _fitting(tiles, _CACHED_NBYTES // max(pixel_nbytes * tile_pixels, 1))
    panel_step = _fitting(panels, _CACHED_NBYTES // max(panel_nbytes, 1))
    # Either the panels of an item stay in the cache while the pixels pass, or the other way round.
    pixels_pass = pixels * pixel_nbytes * -(-panels // panel_step)
    panels_pass = panels * panel_nbytes * -(-tiles // tile_step)
    pixels_first = pixels_pass <= panels_pass
    while -(-tiles // tile_step) * -(-panels // panel_step) < wanted_items(_MIN_ITEMS):
        if tile_step * panel_step * panel_ns < 2 * _MIN_ITEM_NS or tile_step * panel_step == 1:
            break
        if tile_step > 1 and (not pixels_first or panel_step == 1 or panels == panel_step):
            tile_step = -(-tile_step // 2)
        else:
            panel_step = -(-panel_step // 2)
    pixel_step = tile_step * tile_pixels
    panel_blocks, pixel_blocks = -(-panels // panel_step), -(-pixels // pixel_step)
    every = (pixel_blocks, 1) if pixels_first else (1, panel_blocks)
    return panel_step, pixel_step, panel_blocks, pixel_blocks, *every, panel_blocks * pixel_blocks


def least_winograd_tiles(isa: Isa, weight_nbytes: int) -> int:
    """Below so many tiles a transformed weight that no cache keeps costs more to read than the saved products.

    Slower multipliers take longer than reading it in any case.
    """
    return 32 if has_wide_multipliers(isa) and weight_nbytes > data_cache_nbytes()[1] else 0


@late(low=1)
def winograd_blocks(tiles: int, pixels: int, panels: int, tile_nbytes: int, least: int) -> tuple[int, int]:
    """Tiles and panels of an item; `pixels` tiles make one tile of sums, `tile_nbytes` are one tile's inputs.

    Blocks of panels transform the same inputs again, so they are the last thing to split, and not below `least`.
    """
    groups = -(-tiles // pixels)
    cached = max(_WINOGRAD_NBYTES, data_cache_nbytes()[1] // 4)
    group_step = _fitting(groups, cached // (tile_nbytes * pixels))
    blocks, threads = -(-groups // group_step), torch.get_num_threads()
    if 1 < blocks < threads * _ITEMS_PER_THREAD:
        # As many for each thread.
        group_step = -(-groups // (-(-blocks // threads) * threads))
    panel_step = panels
    while -(-groups // group_step) * -(-panels // panel_step) < wanted_items(_MIN_WINOGRAD_ITEMS):
        if panel_step > least:
            panel_step = -(-panel_step // 2)
        elif group_step > 1 and wanted_items(0) > _MIN_WINOGRAD_ITEMS:
            group_step = -(-group_step // 2)
        else:
            break
    return group_step * pixels, panel_step


@chosen
def winograd_pays(isa: Isa, pixels: int, tiles: int, weights: int, live: bool = False) -> bool:
    """Whether it saves enough, and its weight is worth reading; where it is packed in each call, writing, too."""
    saves = 9 * pixels >= _MIN_SAVING * _WINOGRAD_POINTS * tiles
    if live and tiles < _LIVE_TILES:
        return False
    return saves and tiles >= least_winograd_tiles(isa, _WINOGRAD_POINTS * weights * 4)


@chosen
def winograd_row_pays(isa: Isa, pixels: int, tiles: int, inputs: int, outputs: int) -> bool:
    """The same along a row, where a tile's 4 products take the place of 6: what transforms cost goes with the channels,
    and needs many of them.
    """
    if has_wide_multipliers(isa) or 3 * pixels < _MIN_ROW_SAVING * _ROW_POINTS * tiles:
        return False
    return inputs * outputs >= _LEAST_ROW_CHANNELS * (inputs + outputs)


def winograd_frames_pays(over: Over, pairs: int) -> bool:
    """The same along time, where a pair of frames takes 4 products, and the others those taps that lie inside."""
    depth, outputs = over.shape.depth, over.shape.cout
    saves = over.reached >= _MIN_FRAME_SAVING * _ROW_POINTS * pairs
    return saves and depth * outputs >= _LEAST_ROW_CHANNELS * (depth + outputs)


def within_row(tile: Tile, pixels: int) -> Tile:
    """A tile that a row has room for: the last one begins earlier, but not before the row does."""
    return tile if pixels >= tile.pixels else Tile(tile.lanes, tile.vectors, 1)


def seen_rows(shape: ConvShape, rows: int) -> int:
    """Input rows that so many rows of the result see."""
    at = shape.window
    return (rows - 1) * at.stride[0] + (shape.kh - 1) * at.dilation[0] + 1


@chosen
def copied_rows(shape: ConvShape, copies: int, row: int) -> int:
    """Rows of the result whose input is copied at once."""
    rows = 1
    while rows < min(4, shape.oh) and copies * seen_rows(shape, rows + 1) * row * 4 <= _ROWS_NBYTES:
        rows += 1
    return rows


@late(low=1)
def first_panels(panels: int, panel_ns: float) -> int:
    return min(panels, max(1, int(200_000 / panel_ns)))


@late(low=1)
def depthwise_channels(channels: int, lanes: int, pixels: int) -> int:
    """Channels of an item."""
    return min(channels, max(lanes, _DEPTHWISE_ITEM // pixels // lanes * lanes))


def wanted_items(least: int) -> int:
    """How many items keep all threads busy to the end, at least `least`. Results do not depend on it."""
    threads = torch.get_num_threads()
    return max(least, _ITEMS_PER_THREAD * threads if threads > 2 else 0)


def _fitting(count: int, limit: int) -> int:
    """An even share of `count` that is at most `limit`, at least 1."""
    limit = max(1, min(count, limit))
    return -(-count // -(-count // limit))


def nanoseconds(isa: Isa, macs: float) -> float:
    """Estimated time of so many multiply-adds on one core."""
    return macs * _NS_PER_MAC * (16 / isa.f32_lanes if isa.name != "avx2" else 1.0)
