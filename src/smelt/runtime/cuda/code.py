"""A kernel for a GPU as bytes: its cubin with all that a launch needs, so that it is loaded without a compiler."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict

from smelt.diag.records import record

_LENGTH = struct.Struct("<I")
_MAGIC = b"\x7fELF"


@record
class CudaCode:
    """Machine code of one kernel for one architecture.

    arch: 80, 90, 100: what the cubin was made for. parameters: names and types of what a launch passes, in order
    ("*fp32" an address, "i32" and "i64" numbers); behind them stand two null addresses. multiples: for each parameter
    what its number, or its address in bytes, was promised to be a multiple of; 1: nothing. warps: of 32 threads, in one
    block. shared_nbytes: shared memory of a block, which the function must be allowed beyond 48 KiB.
    """

    name: str
    arch: int
    parameters: tuple[tuple[str, str], ...]
    multiples: tuple[int, ...]
    warps: int
    shared_nbytes: int
    cubin: bytes

    def to_bytes(self) -> bytes:
        """What a cache keeps."""
        facts = {name: value for name, value in asdict(self).items() if name != "cubin"}
        head = json.dumps(facts, sort_keys=True).encode()
        return _LENGTH.pack(len(head)) + head + self.cubin

    @staticmethod
    def from_bytes(data: bytes) -> CudaCode:
        """The code that `to_bytes` wrote. Raises: ValueError if it is none."""
        if len(data) < _LENGTH.size:
            raise ValueError("the bytes are no kernel: there are too few")
        (length,) = _LENGTH.unpack_from(data)
        begin = _LENGTH.size + length
        cubin = data[begin:]
        if not cubin.startswith(_MAGIC):
            raise ValueError("the bytes are no kernel: no ELF file follows the facts")
        facts = json.loads(data[_LENGTH.size : begin])
        facts["parameters"] = tuple((name, kind) for name, kind in facts["parameters"])
        facts["multiples"] = tuple(facts["multiples"])
        return CudaCode(**facts, cubin=cubin)
