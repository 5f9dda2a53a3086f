"""A part of a tensor as torch.distributed knows it: a DTensor, also where DTensor's placements cannot say how it lies.

Adapter for DTensor's constructor, `_local_tensor` and `_spec`, and for the protocol by which
`torch.distributed.checkpoint` asks a tensor for its chunks (`__create_write_items__`, `__create_chunk_list__`,
`__get_tensor_shard__`). Importing it takes as long as the import of torch.distributed.tensor: about half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from smelt.diag import SmeltError
from smelt.diag.records import record


@record
class Block:
    """A box of a tensor: where it starts in the whole and in the rank's part, and its sizes."""

    start: tuple[int, ...]
    local: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, part: torch.Tensor) -> torch.Tensor:
        """What a rank's part has of it: a view."""
        for dim, (start, size) in enumerate(zip(self.local, self.sizes, strict=True)):
            part = part.narrow(dim, start, size)
        return part

    def out_of(self, whole: torch.Tensor) -> torch.Tensor:
        """What the whole has of it: a view."""
        return Block(self.local, self.start, self.sizes).of(whole)


class LocalBlocks(torch.Tensor):
    """A local part that takes a whole tensor for a copy of what lies here, which torch.distributed writes into it."""

    blocks: tuple[Block, ...]
    shape_of_all: tuple[int, ...]
    __torch_function__ = torch._C._disabled_torch_function_impl

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """As of Tensor."""
        if tuple(source.shape) != self.shape_of_all:
            return super().copy_(source, non_blocking)
        for block in self.blocks:
            block.of(self).copy_(block.out_of(source), non_blocking)
        return self


class BlockTensor(DTensor):
    """A DTensor whose local part is several blocks of the whole, or blocks of other sizes than `torch.chunk` makes.

    As placements go it is replicated, since none says how it lies: so what asks for it whole gets it whole. Arithmetic
    on it is refused. blocks: what the local tensor has of the whole. gather: from a local tensor to the whole, on all
    ranks.
    """

    blocks: tuple[Block, ...]
    gather: Callable[[torch.Tensor], torch.Tensor]

    @staticmethod
    def of(local: torch.Tensor, like: BlockTensor) -> BlockTensor:
        """Another local tensor that lies in the same way."""
        return blocks_of(local, like.device_mesh, like.shape, like.blocks, like.gather)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name == "__get__" or name in _QUESTIONS:
                return func(*args, **(kwargs or {}))
            first = args[0] if args else None
            if name == "new_empty" and isinstance(first, BlockTensor) and tuple(args[1]) == tuple(first.shape):
                local = first._local_tensor
                return BlockTensor.of(local.new_empty(local.shape, **(kwargs or {})), first)
            if name in _BY_ELEMENTS and isinstance(first, BlockTensor):
                locals_ = [x._local_tensor if isinstance(x, BlockTensor) else x for x in args]
                made = func(*locals_, **(kwargs or {}))
                return first if made is first._local_tensor else BlockTensor.of(made, first)
        raise SmeltError(
            f"{name} is not known of a tensor that is divided in blocks", why="no placement of DTensor describes it",
            fix="call to_local() for what this rank has, or full_tensor() on all ranks", code="S0645",
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"BlockTensor(local_tensor={self._local_tensor}, device_mesh={self.device_mesh}, blocks={self.blocks})"

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockTensor:
        return BlockTensor.of(self._local_tensor.clone(), self)

    def to_local(self, *, grad_placements: Any = None) -> torch.Tensor:
        """As of DTensor."""
        found = torch.Tensor._make_subclass(LocalBlocks, self._local_tensor)
        found.blocks, found.shape_of_all = self.blocks, tuple(self.shape)
        return found

    def full_tensor(self, *, grad_placements: Any = None) -> torch.Tensor:
        """As of DTensor: all ranks of the mesh have to come."""
        return self.gather(self._local_tensor)

    def redistribute(self, device_mesh: Any = None, placements: Any = None, **more: Any) -> DTensor:
        """As of DTensor."""
        mesh = device_mesh or self.device_mesh
        whole = DTensor.from_local(self.full_tensor(), mesh, [Replicate()] * mesh.ndim, run_check=False)
        return whole.redistribute(mesh, placements, **more)

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self._local_tensor)
        chunks = self.__create_chunk_list__()
        return [
            WriteItem(
                MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.size()),
            )
            for chunk in chunks
        ]  # fmt: skip

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(b.start), torch.Size(b.sizes)) for b in self.blocks]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return next(b.of(self._local_tensor) for b in self.blocks if torch.Size(b.start) == index.offset)


_QUESTIONS = frozenset((
    "dim", "ndimension", "numel", "nelement", "size", "stride", "element_size", "is_floating_point", "is_complex",
    "is_contiguous", "__repr__", "__hash__", "__reduce_ex__", "_typed_storage", "untyped_storage", "__len__",
    "requires_grad_", "get_device", "data_ptr", "storage_offset",
))  # fmt: skip
"""Methods that ask about a tensor."""
_BY_ELEMENTS = frozenset((
    "detach", "clone", "cpu", "to", "copy_", "contiguous", "zero_", "share_memory_", "pin_memory", "double", "float",
    "half",
))  # fmt: skip
"""Methods that leave its elements where they are."""


def blocks_of(
    local: torch.Tensor, mesh: DeviceMesh, shape: Sequence[int], blocks: Sequence[Block],
    gather: Callable[[torch.Tensor], torch.Tensor],
) -> BlockTensor:  # fmt: skip
    """A local part as a BlockTensor; it shares the memory."""
    plain = dtensor_of(local, mesh, shape, {})
    made: BlockTensor = DTensor.__new__(BlockTensor, plain._local_tensor, plain._spec, requires_grad=False)
    made.blocks, made.gather = tuple(blocks), gather
    return made


def dtensor_of(local: torch.Tensor, mesh: DeviceMesh, shape: Sequence[int], dims: dict[str, int]) -> Any:
    """A local part as a DTensor; it shares the memory. dims: by axis of the mesh, the dimension it is divided along."""
    stride = torch.empty(tuple(shape), device="meta").stride()
    return DTensor.from_local(
        local.detach(), mesh, _placements(mesh, dims), run_check=False, shape=torch.Size(shape), stride=stride
    )


def has_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.distributed's, of which the whole can be asked."""
    return isinstance(tensor, DTensor)


def local_of(tensor: Any) -> torch.Tensor:
    """The rank's part, as it is."""
    found: torch.Tensor = tensor._local_tensor
    return found


def lies_so(tensor: Any, mesh: DeviceMesh, dims: dict[str, int] | None, gather: Any) -> bool:
    """Whether a DTensor lies along the dimensions, or in the blocks that `gather` gathers; the same on all ranks."""
    if tensor.device_mesh != mesh:
        return False
    if dims is None:
        return isinstance(tensor, BlockTensor) and bool(tensor.gather == gather)
    return type(tensor) is DTensor and list(tensor.placements) == _placements(mesh, dims)


def _placements(mesh: DeviceMesh, dims: dict[str, int]) -> list[Any]:
    return [Shard(dims[name]) if name in dims else Replicate() for name in mesh.mesh_dim_names]
