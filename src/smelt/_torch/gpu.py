"""A GPU as torch has it: the stream at hand, memory of its allocator, its generator, and whether a graph is captured.

Each name is torch's own but for the stream's handle, which every build for GPUs has for generated code; where it is
missing, the public object of the stream is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from smelt._torch.settings import builtin


def stream_of(index: int) -> int:
    """The handle of the stream on which this thread's operators are launched."""
    raw: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(index)) if raw is not None else int(torch.cuda.current_stream(index).cuda_stream)


def is_capturing() -> bool:
    """Whether what is launched now becomes part of a graph of the caller's."""
    return bool(torch.cuda.is_current_stream_capturing())


def on(index: int) -> AbstractContextManager[Any]:
    """A region in which this device is the one at hand."""
    return nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index)


def memory(nbytes: int, index: int) -> torch.Tensor:
    """Uninitialised bytes of torch's allocator, on the stream at hand. Raises: torch.OutOfMemoryError."""
    return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", index))


def empty(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, index: int) -> torch.Tensor:
    """An uninitialised tensor of torch's allocator, on the stream at hand. Raises: torch.OutOfMemoryError."""
    return torch.empty_strided(sizes, strides, dtype=dtype, device=torch.device("cuda", index))


def send(to: torch.Tensor, data: bytes) -> None:
    """Copy bytes of the host to bytes of a GPU, on the stream at hand, behind what is launched there, without waiting.

    They go through pinned memory of torch's allocator, which keeps it until the copy is done.
    """
    to.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).pin_memory(), non_blocking=True)


def used_here(tensor: torch.Tensor, index: int) -> None:
    """Have the allocator know that the stream at hand uses a tensor's memory, which another one made."""
    tensor.record_stream(torch.cuda.current_stream(index))


def generator_state(index: int) -> tuple[int, int]:
    """Seed and offset of torch's generator of a device."""
    generator: Any = torch.cuda.default_generators[index]
    return int(generator.initial_seed()), int(generator.get_offset())


def move_generator(index: int, offset: int) -> None:
    """Let its next draw begin at an offset."""
    generator: Any = torch.cuda.default_generators[index]
    generator.set_offset(offset)


def tf32_flags() -> tuple[bool, bool]:
    """Whether products, and convolutions, of f32 may round their operands: torch's two flags, off where it has none."""
    read = [builtin(f"_get_{name}_allow_tf32") for name in ("cublas", "cudnn")]
    products, convolutions = (function is not None and bool(function()) for function in read)
    return products, convolutions


def finish() -> None:
    """Wait for all that this process's GPU still does, if it uses one: a call returns before that is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
