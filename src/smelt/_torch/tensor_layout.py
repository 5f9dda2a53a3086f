"""Where a CPU tensor keeps what guards ask for: found by looking at known tensors, believed only after a self-test.

A tensor object holds a pointer to its implementation; that holds sizes and strides (inside while there are few of
them, else behind a pointer), the dispatch keys (device, layout, conjugate, negative and autograd bits), the dtype's
number, the offset in elements, and pointers to the storage, the autograd metadata (null: no gradient) and the version
counter (null: an inference tensor).

Invariant: `tensor_layout()` is None unless every field was found at exactly one place and, read from there, equals what
torch's public functions say for tensors of all kinds in `samples()`. Nothing is looked at before it is known to lie
inside the object: implementations are at least as long as the first of `_LENGTHS`, and longer where that is not enough.

Source: none but the tensors themselves; c10/core/TensorImpl.h tells what there is to find.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from smelt._torch.library import shim
from smelt._torch.seen import handles
from smelt._torch.storage import nbytes_spanned
from smelt.diag.interpreter import is_free_threaded
from smelt.diag.records import record

LAYOUT = "tensor layout"
REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
_LENGTHS = (22, 23)  # words of an implementation, from torch 2.13 on and before
# Of a storage, and of a version counter, only the first few words are looked at.
_STORAGE_WORDS = 6
_COUNTER_WORDS = 3


@record
class TensorLayout:
    """Byte offsets: `impl` in the object; `data` in the storage; `count` in the version counter; others in the
    implementation. capacity: how many dimensions lie inside it, sizes first, then as many strides.

    keys_mask: the dispatch keys that tell tensors apart for a compiled program (all but those on which inference
    tensors differ from others). requires_grad: address of `bool f(implementation)`.
    """

    impl: int
    keys: int
    dtype: int
    ndim: int
    sizes: int
    capacity: int
    storage: int
    data: int
    offset: int
    meta: int
    version: int
    count: int
    keys_mask: int
    requires_grad: int

    def implementation(self, tensor: torch.Tensor) -> int:
        """Address of a tensor's implementation."""
        return _word(id(tensor) + self.impl)

    def key_bits(self, tensor: torch.Tensor) -> int:
        """The dispatch keys under `keys_mask`."""
        return _word(self.implementation(tensor) + self.keys) & self.keys_mask

    def masked_keys(self, tensor: torch.Tensor, tells_inference: bool) -> tuple[int, int]:
        """Which dispatch keys to look at, and what they are; tells_inference: those of inference tensors, too."""
        mask = self.keys_mask | (_inference_keys(self) if tells_inference else 0)
        return mask, _word(self.implementation(tensor) + self.keys) & mask

    def dtype_number(self, tensor: torch.Tensor) -> int:
        """The number of the dtype."""
        return int(ctypes.c_uint16.from_address(self.implementation(tensor) + self.dtype).value)

    def shape(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides."""
        impl = self.implementation(tensor)
        n, sizes = _word(impl + self.ndim), impl + self.sizes
        strides = sizes + 8 * self.capacity
        if n > self.capacity:
            sizes = _word(sizes)
            strides = sizes + 8 * n
        return tuple(_words(sizes, n)), tuple(_words(strides, n))

    def shape_words(self, tensor: torch.Tensor) -> list[tuple[int, int]]:
        """Addresses, each with its word, that hold while sizes and strides do, each read while those before do."""
        impl = self.implementation(tensor)
        n, start = _word(impl + self.ndim), impl + self.sizes
        found = [impl + self.ndim]
        spans = [(start, n), (start + 8 * self.capacity, n)]
        if n > self.capacity:
            found.append(start)
            spans = [(_word(start), 2 * n)]
        found += [first + 8 * i for first, count in spans for i in range(count)]
        return [(at, _word(at)) for at in found]

    def address_words(self, tensor: torch.Tensor) -> list[tuple[int, int]]:
        """The same for its place in memory."""
        impl = self.implementation(tensor)
        storage = _word(impl + self.storage)
        return [(at, _word(at)) for at in (impl + self.storage, impl + self.offset, storage + self.data)]

    def address(self, tensor: torch.Tensor) -> int:
        """Address of the first element (for an empty tensor: where it would lie)."""
        impl = self.implementation(tensor)
        start = _word(_word(impl + self.storage) + self.data)
        return start + _word(impl + self.offset) * tensor.element_size()

    def version_of(self, tensor: torch.Tensor) -> int | None:
        """The version counter's value; None for inference tensors."""
        counter = _word(self.implementation(tensor) + self.version)
        return int(ctypes.c_uint32.from_address(counter + self.count).value) if counter else None


@lru_cache(maxsize=1)
def _inference_keys(layout: TensorLayout) -> int:
    """The dispatch keys that inference tensors lack."""
    with torch.inference_mode(False):
        plain = torch.zeros(1)
        with torch.inference_mode():
            other = torch.zeros(1)
    both = (_word(layout.implementation(tensor) + layout.keys) for tensor in (plain, other))
    return next(both) ^ next(both)


def _word(address: int) -> int:
    return int(ctypes.c_int64.from_address(address).value)


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []


@lru_cache(maxsize=1)
def _found() -> TensorLayout | None:
    for length in _LENGTHS:
        try:
            layout = _probe(length)
            if layout is not None and agrees(layout):
                return layout
        except (AttributeError, RuntimeError, TypeError, ValueError):
            continue
    return None


def tensor_layout() -> TensorLayout | None:
    """The layout in this process, or None where it is not what it is thought to be."""
    if shim.is_hidden(LAYOUT) or is_free_threaded():
        return None
    return _found()


class _Search:
    """Which words of the implementations of `tensors` hold given values."""

    def __init__(self, tensors: Sequence[torch.Tensor], impl: int, length: int) -> None:
        self.tensors, self.places = tensors, range(length)
        self.words = [_words(_word(id(t) + impl), length) for t in tensors]

    def one(self, expected: Callable[[Any], int], mask: int = -1) -> int:
        """Byte offset of the only word that is as expected in all tensors. Raises: ValueError if there is not one."""
        return self.only(lambda i, t, w: w & mask == expected(t) & mask)

    def only(self, holds: Callable[[int, Any, int], bool]) -> int:
        """Byte offset of the only word for which `holds(position, tensor, word)` in all tensors. Raises: ValueError."""
        found = [at for at in self.places if all(holds(i, t, self.words[i][at]) for i, t in enumerate(self.tensors))]
        if len(found) != 1:
            raise ValueError(f"{len(found)} candidates instead of one")
        return 8 * found[0]


def _probe(length: int) -> TensorLayout | None:
    """What is found in so many words. Raises: ValueError where a field is not found at exactly one place."""
    bridge = handles.bridge()
    requires_grad = shim.address(REQUIRES_GRAD)
    if bridge is None or bridge.lend_offset is None or requires_grad is None:
        return None
    impl = bridge.lend_offset
    with torch.inference_mode(False), torch.no_grad():
        base = torch.arange(4000, dtype=torch.float32)
        double = torch.arange(900, dtype=torch.float64)
        # Every number that is looked for is of its own in at least one of these.
        tensors = [
            base[5:].as_strided((3, 7, 11), (97, 13, 1)),
            base[21:].as_strided((2, 5), (31, 3)),
            double[9:].as_strided((6, 4, 3, 2), (77, 19, 5, 2)),
            torch.zeros(17, dtype=torch.int64),
            torch.zeros(23, dtype=torch.bfloat16),
        ]
        search = _Search(tensors, impl, length)
        ndim = search.one(lambda t: t.dim())
        sizes = search.one(lambda t: t.shape[0])
        first_stride = _Search(tensors[:3], impl, length).one(lambda t: t.stride(0))
        offset = _Search(tensors[:3], impl, length).one(lambda t: t.storage_offset())
        keys = search.one(lambda t: _keys(t))
        storage = search.one(lambda t: t.untyped_storage()._cdata)
        with torch.inference_mode():
            inference = torch.zeros(2)
        version = _version_place(base, impl, storage, length)
        return TensorLayout(
            impl=impl,
            keys=keys,
            dtype=_dtype_place(impl, length),
            ndim=ndim,
            sizes=sizes,
            capacity=(first_stride - sizes) // 8,
            storage=storage,
            data=_data_place(tensors),
            offset=offset,
            meta=_meta_place(impl, length),
            version=version,
            count=_count_place(impl, version),
            keys_mask=~(_keys(inference) ^ _keys(torch.zeros(2))) & (2**64 - 1),
            requires_grad=requires_grad,
        )


def _keys(tensor: torch.Tensor) -> int:
    raw = int(torch._C._dispatch_keys(tensor).raw_repr())
    return raw - (raw >> 63 << 64)


def _dtype_place(impl: int, length: int) -> int:
    """Byte offset of the 16 bits that are equal for equal dtypes and differ for others."""
    known = [torch.empty(3, dtype=d) for d in _plain_dtypes()]
    again = [torch.empty(2, 2, dtype=t.dtype) for t in known]
    codes = [shim.dtype_code(t.dtype) for t in known]

    def number(tensor: torch.Tensor, at: int) -> int:
        return int(ctypes.c_uint16.from_address(_word(id(tensor) + impl) + at).value)

    found = [
        at
        for at in range(0, 8 * length, 2)
        if [number(t, at) for t in known] == codes and [number(t, at) for t in again] == codes
    ]
    if len(found) != 1:
        raise ValueError("the dtype's offset is not known")
    return found[0]


def _plain_dtypes() -> list[torch.dtype]:
    return [dtype for dtype in shim.dtypes() if not dtype.is_complex and shim.dtype_code(dtype) is not None]


def _data_place(tensors: Sequence[torch.Tensor]) -> int:
    found = set(range(_STORAGE_WORDS))
    for tensor in tensors:
        storage = tensor.untyped_storage()
        words = _words(int(storage._cdata), _STORAGE_WORDS)
        found &= {at for at in found if words[at] == storage.data_ptr()}
    # A deleter's context may repeat the pointer: the data comes first.
    if not found:
        raise ValueError("the data's offset is not known")
    return 8 * min(found)


def _meta_place(impl: int, length: int) -> int:
    plain = [torch.zeros(2), torch.ones(3, 3)]
    wanted = [torch.nn.Parameter(torch.zeros(2)), torch.zeros(3, requires_grad=True)]
    search = _Search([*plain, *wanted], impl, length)
    return search.only(lambda i, t, w: (w != 0) == (i >= len(plain)))


def _version_place(base: torch.Tensor, impl: int, storage: int, length: int) -> int:
    """The pointer that views and detached tensors share with their base besides the storage, and others do not."""
    tensors = [base, base[3:], base.detach()]
    other = torch.zeros(2)
    with torch.inference_mode():
        inference = torch.zeros(2)
    search = _Search([*tensors, other, inference], impl, length)
    shared = search.words[0]

    def is_place(at: int) -> bool:
        word = shared[at]
        same = all(words[at] == word for words in search.words[:3])
        return same and word not in (0, search.words[3][at]) and search.words[3][at] != 0 == search.words[4][at]

    found = [8 * at for at in search.places if 8 * at != storage and is_place(at)]
    if len(found) != 1:
        raise ValueError("the version counter's offset is not known")
    return found[0]


def _count_place(impl: int, version: int) -> int:
    found = set(range(0, 8 * _COUNTER_WORDS, 4))
    for writes in (0, 1, 5, 18):
        tensor = torch.zeros(2)
        for _ in range(writes):
            tensor.add_(1)
        counter = _word(_word(id(tensor) + impl) + version)
        found &= {at for at in found if ctypes.c_uint32.from_address(counter + at).value == tensor._version}
    if len(found) != 1:
        raise ValueError("the version's offset is not known")
    return found.pop()


def samples() -> list[torch.Tensor]:
    """CPU tensors of all kinds that a program may be given."""
    made: list[torch.Tensor] = []
    with torch.inference_mode(False), torch.enable_grad():
        for dtype in _plain_dtypes():
            made += [torch.empty(n, dtype=dtype) for n in ((), (3,), (0, 4))]
        for n in range(10):
            whole = torch.arange(2 ** (n + 1)).reshape((2,) * (n + 1))
            made += [whole[0], whole.mT[1] if n > 1 else whole, whole[:1], whole.float().transpose(0, -1)]
        plain = torch.arange(24.0).reshape(2, 3, 4)
        leaf = plain.clone().requires_grad_()
        made += [torch.nn.Parameter(plain.clone()), torch.nn.Parameter(plain.clone(), False), torch.nn.Buffer(plain)]
        made += [leaf, leaf * 2, leaf[0], leaf.detach(), leaf.detach()[:, 1:], plain.expand(5, 2, 3, 4)]
        made += [plain[::2, 1:, ::3], plain.new_empty(0), plain.as_strided((3, 3), (1, 1), 7), plain.add_(1)]
        spectrum = torch.zeros(3, dtype=torch.complex64)
        made += [spectrum, spectrum.conj(), spectrum.imag, spectrum.conj().imag]
        swapped = torch.zeros(2)
        swapped.data = torch.ones(3, 3)
        made.append(swapped)
    with torch.inference_mode():
        made += [torch.ones(2, 3), torch.ones(2, 3)[1:], torch.ones(2, 2, 2, 2, 2, 2, 2)]
    return made


def agrees(layout: TensorLayout, tensors: Sequence[torch.Tensor] | None = None) -> bool:
    """Whether what is read at these places is what torch says."""
    ask = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(layout.requires_grad)
    for tensor in samples() if tensors is None else tensors:
        version = None if tensor.is_inference() else tensor._version
        has_grad = bool(_word(layout.implementation(tensor) + layout.meta)) and ask(layout.implementation(tensor))
        code = shim.dtype_code(tensor.dtype)
        fine = (
            layout.shape(tensor) == (tuple(tensor.shape), tensor.stride())
            and (code is None or layout.dtype_number(tensor) == code)
            and _word(layout.implementation(tensor) + layout.keys) == _keys(tensor)
            and _word(layout.implementation(tensor) + layout.storage) == tensor.untyped_storage()._cdata
            and (nbytes_spanned(tensor) == 0 or layout.address(tensor) == tensor.data_ptr())
            and layout.version_of(tensor) == version
            and bool(has_grad) == tensor.requires_grad
        )
        if not fine:
            return False
    return _keys_tell(layout)


def _keys_tell(layout: TensorLayout) -> bool:
    """Whether the masked keys tell kinds of tensors apart, and inference tensors and parameters not from others."""
    with torch.inference_mode(False):
        plain = torch.zeros(2, 2, dtype=torch.complex64)
        alike = [torch.nn.Parameter(plain.clone()), plain.clone().requires_grad_(), plain[0]]
        others = [plain.conj(), plain.conj().imag, torch.zeros(2, device="meta"), torch.zeros(2, 2).to_sparse()]
        with torch.inference_mode():
            alike.append(torch.zeros(2))
        batched: list[int] = []

        def look(tensor: torch.Tensor) -> torch.Tensor:
            batched.append(layout.key_bits(tensor))
            return tensor

        torch.vmap(look)(torch.zeros(2, 2))
    bits = layout.key_bits(plain)
    return (
        all(layout.key_bits(t) == bits for t in alike)
        and all(layout.key_bits(t) != bits for t in others)
        and batched != [bits]
    )
