"""An attention to compute: sizes, strides, semantics; which kernel does it, and the words of its launch.

Numbers of rows, keys, heads and batches may be known at run time only (`ir.sizes`). Then the kernel is one that is
right for all of them: tiles for rows; the path for few where a known few are the rows, with any number of keys.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from smelt.codegen.attention import backward, few, tile
from smelt.codegen.attention.backward import KEYS
from smelt.codegen.attention.few import MAX_KEYS, MAX_ROWS
from smelt.codegen.attention.variant import BLOCK, LOGARITHM_WORDS, WORDS, Tile, Variant
from smelt.codegen.attention.vectors import lanes_of
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import equals, is_one, is_symbolic, is_whole, late, late_float, size_max, size_min

_DTYPES = (DType.F32, DType.F64, DType.BF16, DType.F16)
# Rows of an item where one head is divided among several: packing keys again for each must stay cheap beside them.
_CHUNK = 128
# Narrower vectors than these are slower than tiles of padded rows.
_LEAST_LANES = 4
# Items that let threads share the work evenly.
_ITEMS = 16
_LARGEST = {DType.F32: 3.4028234663852886e38, DType.F64: 1.7976931348623157e308}
# f32 multiply-adds a nanosecond of one core, for the grain of threads only.
_RATE = 40.0
# Bytes a nanosecond, likewise.
_BANDWIDTH = 30.0


@record
class Operand:
    """A tensor of four dimensions (batch, heads, rows, columns); strides in elements, 0 where it is broadcast."""

    dtype: DType
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]


@record
class Attention:
    """softmax(scale * q @ k^T + mask) @ v over the last two dimensions.

    q [b, h, s, d], k [b, h', t, d], v [b, h', t, e], mask [b, h, s, t], out [b, h, s, e]; h a multiple of h'.
    The scores are (q * scale_before) @ k^T * scale_after. causal: query s sees keys 0 to s; values that are not finite
    are then refused, since eager multiplies some that it hides by 0, and its kernels differ in which.
    is_spelled: a query whose scores are all -inf gives NaN, as softmax does, and not 0; and the powers are divided
    before they are multiplied with values, so that no product may be larger than a value.
    logarithms [b, h, s, 1]: where the logarithms of the sums of powers go, as torch's flash kernel keeps them.
    """

    q: Operand
    k: Operand
    v: Operand
    out: Operand
    mask: Operand | None = None
    scale_before: float = 1.0
    scale_after: float = 1.0
    is_causal: bool = False
    is_spelled: bool = False
    logarithms: Operand | None = None


@record
class Backward:
    """The gradients of softmax(scale * q @ k^T + mask) @ v for those of its result, `grad`.

    Shapes as in `Attention`; out and logarithms are what it gave.
    """

    grad: Operand
    q: Operand
    k: Operand
    v: Operand
    out: Operand
    logarithms: Operand
    of_q: Operand
    of_k: Operand
    of_v: Operand
    mask: Operand | None = None
    scale: float = 1.0
    is_causal: bool = False


@record
class Work:
    """A launch: the kernel, its words, and how it divides. Buffers are `variant.operands`, in order."""

    source: KernelSource
    words: tuple[int, ...]
    items: int
    item_ns: float
    scratch_nbytes: int
    is_few: bool
    listing: str


def kernel_of(attention: Attention, isa: Isa) -> Work | None:
    """The kernel of an attention and its launch; None where there is none for these dtypes or sizes."""
    if not _is_fit(attention, isa):
        return None
    if attention.logarithms is not None:
        return _tiles(attention, isa)
    return _few(attention, isa) if _is_few(attention, isa) else _tiles(attention, isa)


def backward_of(b: Backward, isa: Isa) -> Work | None:
    """The kernel of the gradients and its launch; None where there is none for these dtypes or sizes."""
    if not _is_fit(b, isa) or any(t.dtype is not b.q.dtype for t in (b.grad, b.of_q, b.of_k, b.of_v)):
        return None
    (batches, _, queries, size), (_, heads, keys, _), value_size = b.q.sizes, b.k.sizes, b.v.sizes[3]
    variant = Variant(b.q.dtype, None if b.mask is None else b.mask.dtype, is_backward=True)
    if b.logarithms.dtype is not variant.compute:
        return None
    lanes = lanes_of(isa, variant.compute)
    width, value_width, groups = _rounded(size, lanes), _rounded(value_size, lanes), _group(b)
    block = _block(keys, KEYS)
    numbers = backward.scratch_numbers(
        isa, width=width, value_width=value_width, rows=queries, groups=groups, block=block
    )
    limit = _semantics(b.q.dtype, keys, b.is_causal)
    values = {**_backward_strides(b, groups), **limit, "scale": _bits(b.scale), "heads": heads, "groups": groups}
    values |= {"queries": queries, "keys": keys, "size": size, "width": width, "block": block}
    values |= {"value_size": value_size, "value_width": value_width}
    words = tuple(values[name] for name in variant.words)
    item_ns = _tiles_ns(groups * queries, groups * queries, keys, 3 * size + 2 * value_size, b.is_causal)
    nbytes = numbers * variant.compute.itemsize
    source = backward.backward_kernel(variant, isa)
    return Work(source, words, batches * heads, item_ns, nbytes, False, backward.__doc__ or "")


def _is_fit(a: Attention | Backward, isa: Isa) -> bool:
    kinds = {t.dtype for t in (a.q, a.k, a.v, a.out)}
    if len(kinds) != 1 or a.q.dtype not in _DTYPES or (a.q.dtype is DType.F16 and isa.name == "baseline"):
        return False
    if a.mask is not None and a.mask.dtype not in (a.q.dtype, DType.BOOL, DType.F32):
        return False
    (b, h, s, d), (_, heads, t, _) = a.q.sizes, a.k.sizes
    value_size = a.v.sizes[3]
    if is_symbolic((d, value_size)):
        # The room for a row stands in the text.
        return False
    return all(count > 0 for count in (b, h, s, t, d, heads, value_size)) and is_whole(h, heads)


def _row_size(size: int) -> int:
    """Room for a query: few different ones, so that few kernels exist."""
    return BLOCK if size <= BLOCK else -(-size // 1024) * 1024


def _rounded(count: int, to: int) -> int:
    return -(-count // to) * to


def _group(a: Attention | Backward) -> int:
    """Query heads that share a head of keys and values."""
    return a.q.sizes[1] // a.k.sizes[1]


def _is_few(a: Attention, isa: Isa) -> bool:
    rows, keys = _group(a) * a.q.sizes[2], a.k.sizes[2]
    if is_symbolic(rows):
        return False
    lanes = _few_lanes(a, isa)
    # For more keys or fewer there is a text, if not as short.
    fits = is_symbolic(keys) or lanes <= keys <= MAX_KEYS
    is_dense = is_one(a.k.strides[3]) and is_one(a.v.strides[3])
    return rows <= MAX_ROWS and fits and lanes >= _LEAST_LANES and is_dense and not a.is_causal


def _few_lanes(a: Attention, isa: Isa) -> int:
    """The longest vectors that rows of keys and values consist of."""
    lanes = lanes_of(isa, Variant(a.q.dtype, None).compute)
    while any(size % lanes for size in (a.k.sizes[3], a.v.sizes[3])):
        lanes //= 2
    return lanes


def _few(a: Attention, isa: Isa) -> Work:
    (batches, _, queries, size), (_, heads, keys, _), value_size = a.q.sizes, a.k.sizes, a.v.sizes[3]
    rows = _group(a) * queries
    lanes = _few_lanes(a, isa)
    fits = equals(size_min(keys, lanes), lanes) and equals(size_max(keys, MAX_KEYS), MAX_KEYS)
    variant = Variant(a.q.dtype, None if a.mask is None else a.mask.dtype, rows, lanes=lanes, any_keys=not fits)
    numbers = few.scratch_numbers(variant, size=size, value_width=value_size, keys=keys)
    sizes = {"value_width": value_size, "chunks": 1, "chunk": rows, "block": keys}
    item_ns = _few_ns(keys, size + value_size, a.q.dtype.itemsize, rows)
    nbytes = numbers * variant.compute.itemsize
    return Work(
        few.few_kernel(variant, isa), _words(a, sizes), batches * heads, item_ns, nbytes, True, few.__doc__ or ""
    )


@late_float
def _few_ns(keys: int, width: int, itemsize: int, rows: int) -> float:
    """The cost of an item."""
    return keys * width * (itemsize / _BANDWIDTH + rows / _RATE)


def _tiles(a: Attention, isa: Isa) -> Work:
    (batches, _, queries, size), (_, heads, keys, _), value_size = a.q.sizes, a.k.sizes, a.v.sizes[3]
    keeps_sums = a.logarithms is not None
    variant = Variant(a.q.dtype, None if a.mask is None else a.mask.dtype, 0, _row_size(size), keeps_sums=keeps_sums)
    lanes = lanes_of(isa, variant.compute)
    rows, value_width = _group(a) * queries, _rounded(value_size, lanes)
    chunks, chunk, block = _cut(batches * heads, rows, keys, Tile.of(isa).rows)
    numbers = tile.scratch_numbers(
        variant, isa, size=size, value_width=value_width, block=block, chunk=chunk, lanes=lanes
    )
    sizes = {"value_width": value_width, "chunks": chunks, "chunk": chunk, "block": block}
    item_ns = _tiles_ns(chunk, rows, keys, size + value_size, a.is_causal)
    nbytes = numbers * variant.compute.itemsize
    return Work(
        tile.tile_kernel(variant, isa),
        _words(a, sizes),
        batches * heads * chunks,
        item_ns,
        nbytes,
        False,
        tile.__doc__ or "",
    )


@late(low=1)
def _cut(heads: int, rows: int, keys: int, tile: int) -> tuple[int, int, int]:
    """(chunks of a head's rows, rows of a chunk, keys of a block)."""
    chunks = max(1, min(-(-_ITEMS // heads), rows // _CHUNK))
    chunk = _rounded(-(-rows // chunks), tile)
    return -(-rows // chunk), chunk, _even(keys, BLOCK)


@late(low=1)
def _block(keys: int, most: int) -> int:
    """Keys of a block."""
    return _even(keys, most)


def _even(count: int, most: int) -> int:
    """The size of parts that are as even as can be, each at most so large."""
    return _rounded(-(-count // -(-count // most)), 16)


@late_float
def _tiles_ns(chunk: int, rows: int, keys: int, width: int, is_causal: bool) -> float:
    """The cost of an item."""
    return min(chunk, rows) * keys * width * (0.5 if is_causal else 1.0) / _RATE


def _words(a: Attention, sizes: dict[str, int]) -> tuple[int, ...]:
    """All words of a launch; `sizes` are those that the path chooses."""
    (_, _, queries, size), (_, heads, keys, _) = a.q.sizes, a.k.sizes
    values = {**_strides(a, _group(a)), **sizes, "heads": heads, "rows": _group(a) * queries}
    values |= _semantics(a.q.dtype, keys, a.is_causal, a.is_spelled)
    values |= {"queries": queries, "keys": keys, "size": size, "value_size": a.v.sizes[3]}
    values |= {"scale_before": _bits(a.scale_before), "scale_after": _bits(a.scale_after)}
    values["reach"] = _bits(_reach(a))
    values["empty"] = _bits(float("nan") if a.is_spelled else 0.0)
    names = (*WORDS, *(LOGARITHM_WORDS if a.logarithms is not None else ()))
    return tuple(values[name] for name in names)


def _reach(a: Attention) -> float:
    """Queries and keys of magnitudes up to this have finite scores, which a mask may hide."""
    largest = _LARGEST[DType.F64 if a.q.dtype is DType.F64 else DType.F32]
    return (largest / (4.0 * a.q.sizes[3] * max(1.0, abs(a.scale_after)))) ** 0.5


def _strides(a: Attention, group: int) -> dict[str, int]:
    of_heads = {"q": a.q, "o": a.out, "m": a.mask, "l": a.logarithms}
    return _strides_of(of_heads, {"k": a.k, "v": a.v}, group)


def _backward_strides(b: Backward, group: int) -> dict[str, int]:
    of_heads = {"g": b.grad, "q": b.q, "o": b.out, "dq": b.of_q, "m": b.mask, "l": b.logarithms}
    return _strides_of(of_heads, {"k": b.k, "v": b.v, "dk": b.of_k, "dv": b.of_v}, group)


def _strides_of(of_heads: Mapping[str, Operand | None], of_groups: Mapping[str, Operand], group: int) -> dict[str, int]:
    """The words that are strides, of operands with a part for each query head, and for each key/value head."""
    found: dict[str, int] = {}
    for name, operand in of_heads.items():
        batch, head, row, column = (0, 0, 0, 0) if operand is None else operand.strides
        found |= {f"{name}_batch": batch, f"{name}_head": head * group, f"{name}_group": head}
        found |= {f"{name}_row": row, f"{name}_column": column}
    for name, operand in of_groups.items():
        batch, head, row, column = operand.strides
        found |= {f"{name}_batch": batch, f"{name}_head": head, f"{name}_row": row, f"{name}_column": column}
    return found


def _semantics(dtype: DType, keys: int, is_causal: bool, is_spelled: bool = False) -> dict[str, int]:
    largest = _LARGEST[DType.F64 if dtype is DType.F64 else DType.F32]
    return {
        "limit": 1 if is_causal else keys,
        "limit_step": int(is_causal),
        "checked": int(is_causal or is_spelled),
        "bound": _bound_of_means(largest, keys) if is_spelled else _bits(largest),
    }


@late
def _bound_of_means(largest: float, keys: int) -> int:
    """Spelled out, a mean of values is never larger than they are; here their sum must not overflow first."""
    return _bits(largest / (2 * keys))


@late(low=None)
def _bits(number: float) -> int:
    found: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return found
