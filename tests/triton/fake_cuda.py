"""A GPU in a build of torch that knows none: tensors that say `cuda:0`, whose memory is the host's.

    with fake_cuda():
        x = torch.ones(3, device="cuda")        an ordinary torch.Tensor of the device cuda:0
        y = x + 1                               eager: the CPU's operator over the same memory

Eager's operators are those of the CPU (a fallback of the dispatch key CUDA), so what a compiled program gives can be
compared with eager's answer. The device is what the process believes in only inside the context.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from smelt._torch import gpu
from smelt.codegen.lower.gpu import GpuProgram, choices, lowering
from smelt.codegen.lower.gpu import program as program_of_gpu
from smelt.codegen.triton.compile import compile_cuda
from smelt.codegen.triton.kernel import TritonSource
from smelt.runtime.cuda import machine
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.cuda.plan import CudaPlan
from smelt.runtime.machine.cache import CodeCache
from tests.triton.fake_driver import FakeDriver, uncompiled

_CPU, _CUDA, _META = 1, 2, 14  # of DLPack, DLPack, and c10::DeviceType
_FILE = str(Path(torch.__file__).with_name("fake_cuda.py"))
_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
STREAM = 7


def _of_torch(function: Any) -> Any:
    """A function as one of torch's files, of which capture reads nothing: it stands for operators in C++."""

    def renamed(code: CodeType) -> CodeType:
        inner = tuple(renamed(c) if isinstance(c, CodeType) else c for c in code.co_consts)
        return code.replace(co_filename=_FILE, co_consts=inner)

    function.__code__ = renamed(function.__code__)
    return function


@_of_torch
def on_device(tensor: Tensor, kind: int, index: int = 0) -> Tensor:
    """A tensor over the same memory that says it is on another device."""
    capsule = torch._C._to_dlpack(tensor.detach())
    device = (ctypes.c_int32 * 2).from_address(_POINTER(capsule, b"dltensor") + 8)
    device[0], device[1] = kind, index
    return torch._C._from_dlpack(capsule)  # type: ignore[attr-defined, no-any-return]


@_of_torch
def host(value: Any) -> Any:
    """A tensor, or a device, as of the CPU."""
    if isinstance(value, Tensor) and value.device.type == "cuda":
        return on_device(value, _CPU)
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


@_of_torch
def cuda(value: Any, index: int = 0) -> Any:
    """A tensor as of a GPU."""
    return on_device(value, _CUDA, index) if isinstance(value, Tensor) and value.device.type == "cpu" else value


@_of_torch
def _device(index: int) -> int:
    """c10::Device: CUDA in the low byte, the number in the high one."""
    return 1 | index << 8


class Memory:
    """What was allocated so far, by its begin. stream: the one at hand. is_capturing: whether a graph is captured
    there. used: streams that used memory of another one. ran: torch's operators that ran on it. waits: those that read
    memory of the device for the host. current: the GPU at hand. pinned: memory of the host that a GPU reads by itself,
    by its begin; copies from there are done when something is launched behind them.
    """

    def __init__(self) -> None:
        self.live: dict[int, Tensor] = {}
        self.waits: list[str] = []
        self.current = 0
        self.pinned: dict[int, Tensor] = {}
        self._copies: list[tuple[Tensor, Tensor]] = []
        self.stream = STREAM
        self.is_capturing = False
        self.used: list[int] = []
        self.ran: list[str] = []
        self.storages: list[Any] = []

    @_of_torch
    def wait(self, operator: str) -> None:
        """Note that the host waits. Raises: RuntimeError while a graph is captured, as the driver's error is."""
        if self.is_capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.waits.append(operator)

    @_of_torch
    def exchange(self, index: int) -> int:
        """Let another GPU be at hand; the one before."""
        before = self.current
        if 0 <= index < 128:
            self.current = index
        return before

    @_of_torch
    def pin(self, tensor: Tensor, device: Any = None) -> Tensor:
        """A copy in pinned memory, which lasts until the copies from it are done."""
        made = tensor.clone()
        self.pinned[made.untyped_storage().data_ptr()] = made
        return made

    @_of_torch
    def is_pinned(self, tensor: Tensor, device: Any = None) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned

    @_of_torch
    def copy_later(self, target: Tensor, source: Tensor) -> None:
        """Copy when what is launched next runs: what the host writes to the source until then is copied."""
        self._copies.append((target, source))

    @_of_torch
    def arrive(self) -> None:
        """Do the copies so far."""
        while self._copies:
            target, source = self._copies.pop(0)
            host(target).copy_(source)

    @_of_torch
    def index_of(self, args: Any, kwargs: Any) -> int:
        """The GPU of an operator's results. Raises: RuntimeError where it has tensors of several, as torch does."""
        asked = kwargs.get("device")
        if asked is not None:
            index = torch.device(asked).index
            return self.current if index is None else index
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.device.type == "cuda"]
        found = sorted({x.device.index for x in tensors if x.dim()} or {x.device.index for x in tensors})
        if len(found) > 1:
            raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:{found[0]} and others")
        return found[0] if found else self.current

    @_of_torch
    def note(self, made: Any, given: Any) -> None:
        """Remember the memory of new tensors, where it is not that of what they were made of."""
        known = [x.untyped_storage() for x in tree_leaves(given) if isinstance(x, Tensor) and x.device.type == "cuda"]
        ranges = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in known]
        for tensor in (x for x in tree_leaves(made) if isinstance(x, Tensor)):
            storage = tensor.untyped_storage()
            begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
            if begin == end or any(low <= begin < high for low, high in ranges):
                continue
            for old in [k for k, m in self.live.items() if k < end and begin < k + m.numel()]:
                del self.live[old]  # it was freed since
            self.live[begin] = torch.frombuffer((ctypes.c_uint8 * (end - begin)).from_address(begin), dtype=torch.uint8)

    def allocate(self, nbytes: int) -> tuple[int, Tensor]:
        """Memory that is no tensor of the program's."""
        made = torch.full((nbytes,), 0x7F, dtype=torch.uint8)
        self.live[made.data_ptr()] = made
        return made.data_ptr(), made

    def find(self, address: int) -> tuple[Tensor, int]:
        """The memory that an address is in, as bytes, and its offset there."""
        for begin, memory in self.live.items():
            if begin <= address < begin + memory.numel():
                return memory, address - begin
        raise AssertionError(f"{address:#x} is in no memory of the device")


@_of_torch
def _elements(value: Any) -> int:
    return value.numel() if isinstance(value, Tensor) else 1


@_of_torch
def _fallback(memory: Memory) -> Any:
    def run(op: Any, *args: Any, **kwargs: Any) -> Any:
        memory.ran.append(op._schema.name.removeprefix("aten::"))
        memory.arrive()
        index = memory.index_of(args, kwargs)
        # What an operator writes to is the caller's tensor, and so is what it returns then.
        if op._schema.name in ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"):
            memory.wait(op._schema.name)
        written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if written and op._schema.returns:
            return _written(op, written, args, kwargs)
        found = op(*tree_map(host, args), **tree_map(host, kwargs))
        made = tree_map(partial(cuda, index=index), found)
        memory.note(made, (args, kwargs))
        return made

    def _written(op: Any, written: list[str], args: Any, kwargs: Any) -> Any:
        call = dict(zip([a.name for a in op._schema.arguments], args, strict=False)) | kwargs
        targets = [call[name] for name in written]
        # Memory that is retagged cannot grow, as that of a result that has no size yet does.
        there = {n: host(call[n]) if _elements(call[n]) else torch.empty(0, dtype=call[n].dtype) for n in written}
        names = [a.name for a in op._schema.arguments]
        op(
            *(there.get(n, tree_map(host, a)) for n, a in zip(names, args, strict=False)),
            **{n: there.get(n, tree_map(host, a)) for n, a in kwargs.items()},
        )
        for target, name in zip(targets, written, strict=True):
            if isinstance(target, Tensor) and there[name].shape != target.shape:
                target.data = cuda(there[name], target.device.index)
                memory.note(target, ())
        return targets[0] if len(op._schema.returns) == 1 else tuple(targets)

    return run


@_of_torch
def _copy(memory: Memory) -> Any:
    def run(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if non_blocking and memory.is_pinned(source):
            memory.copy_later(target, source)
            return target
        memory.arrive()
        if target.device.type != source.device.type:
            memory.wait("aten::copy_")
        host(target).copy_(host(source))
        return target

    return run


@_of_torch
def _to_copy(memory: Memory) -> Any:
    def run(x: Tensor, *, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
        memory.arrive()
        made = torch.ops.aten._to_copy.default(host(x), **kwargs)
        goes = x.device if device is None else torch.device(device)
        index = memory.current if goes.index is None else goes.index
        if goes.type != x.device.type == "cuda":
            memory.wait("aten::_to_copy")
        found = cuda(made, index) if goes.type == "cuda" else made
        memory.note(found if goes.type == "cuda" else (), x)
        return found  # type: ignore[no-any-return]

    return run


@_of_torch
def _cloned(clone: Any) -> Any:
    def run(storage: Any) -> Any:
        if storage.device.type != "cuda":
            return clone(storage)
        memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
        return on_device(torch.frombuffer(bytearray(memory), dtype=torch.uint8), _CUDA).untyped_storage()

    return run


@_of_torch
def _set(memory: Memory) -> Any:
    def run(target: Tensor, storage: Any, offset: int, size: Any, stride: Any = ()) -> Tensor:
        bytes_ = torch.frombuffer(
            (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8
        )
        memory.storages.append(storage)
        target.data = cuda(bytes_.view(target.dtype).as_strided(size, stride, offset))
        memory.note(target, ())
        return target

    return run


class _Guard:
    """What torch asks which device is at hand: the device without data's, but that it says that it is CUDA's."""

    def __init__(self, like: int, memory: Memory) -> None:
        table = (ctypes.c_void_p * 32).from_address(ctypes.c_void_p.from_address(like).value or 0)
        self._table = (ctypes.c_void_p * 32)(*table)
        kind, device = (
            ctypes.CFUNCTYPE(ctypes.c_uint8, ctypes.c_void_p),
            ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p),
        )
        exchange = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p, ctypes.c_uint16)
        place = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint16)
        self._functions = (
            kind(_of_torch(lambda this: 1)),
            exchange(_of_torch(lambda this, to: _device(memory.exchange(to >> 8)))),
            device(_of_torch(lambda this: _device(memory.current))),
            place(_of_torch(lambda this, to: memory.exchange(to >> 8))),
            place(_of_torch(lambda this, to: memory.exchange(to >> 8))),
        )
        for slot, function in enumerate(self._functions):
            self._table[slot] = ctypes.cast(function, ctypes.c_void_p).value
        for slot in (5, 6, 9):  # getStream, getDefaultStream, exchangeStream
            self._table[slot] = _STREAM[1]
        self._object = ctypes.c_void_p(ctypes.addressof(self._table))
        self.address = ctypes.addressof(self._object)


def _code(machine_code: bytes) -> tuple[mmap.mmap, int]:
    """Machine code that may be run, and its address: for what Python cannot return, and threads without Python."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(machine_code)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


_TRUE = _code(b"\xb8\x01\x00\x00\x00\xc3")  # mov eax, 1; ret
_STREAM = _code(b"\xb8\x01\x00\x00\x00\x31\xd2\xc3")  # the default stream of CUDA's device 0; xor edx, edx


@contextmanager
def _accelerator(library: ctypes.CDLL) -> Iterator[None]:
    """Let autograd find an accelerator that is built, is available and has a context."""
    hooks = library._ZN2at6detail12getCUDAHooksEv
    hooks.restype = ctypes.c_void_p
    table = ctypes.c_void_p.from_address(hooks())
    before = table.value
    known = (ctypes.c_void_p * 128)(*(ctypes.c_void_p * 128).from_address(before or 0))
    known[2] = known[3] = known[4] = _TRUE[1]
    table.value = ctypes.addressof(known)
    try:
        yield
    finally:
        table.value = before


@contextmanager
def fake_cuda(devices: int = 1) -> Iterator[Memory]:
    """Let there be so many GPUs."""
    memory = Memory()
    folder = Path(torch.__file__).parent / "lib"
    registry = (ctypes.c_void_p * 21).in_dll(
        ctypes.CDLL(str(folder / "libc10.so")), "_ZN3c104impl26device_guard_impl_registryE"
    )
    before = registry[1]
    guard = _Guard(registry[_META], memory)
    registry[1] = guard.address
    with ExitStack() as stack:
        stack.enter_context(_accelerator(ctypes.CDLL(str(folder / "libtorch_cpu.so"))))
        every, aten = torch.library.Library("_", "IMPL", "CUDA"), torch.library.Library("aten", "IMPL", "CUDA")
        stack.callback(every._destroy)
        stack.callback(aten._destroy)
        every.fallback(_fallback(memory), "CUDA")
        aten.impl("copy_", _copy(memory), "CUDA")
        on_host = torch.library.Library("aten", "IMPL", "CPU")
        stack.callback(on_host._destroy)
        on_host.impl("_pin_memory", memory.pin, "CPU")
        on_host.impl("is_pinned", memory.is_pinned, "CPU")
        aten.impl("set_.source_Storage_storage_offset", _set(memory), "CUDA")
        aten.impl("_to_copy", _to_copy(memory), "CUDA")
        stack.enter_context(mock.patch.object(torch.cuda, "_lazy_init", _of_torch(lambda: None)))
        asked = {"_cuda_getCurrentRawStream": lambda index: memory.stream, "_cuda_getDevice": lambda: memory.current}
        for name, function in asked.items():
            stack.enter_context(mock.patch.object(torch._C, name, _of_torch(function), create=True))
        said = {"is_available": lambda: True, "device_count": lambda: devices, "is_bf16_supported": lambda *args: True}
        for name, function in said.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, _of_torch(function)))
        clone = _of_torch(_cloned(torch.UntypedStorage.clone))
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "clone", clone))
        for name in ("_exchange_device", "_maybe_exchange_device"):
            stack.enter_context(mock.patch.object(torch.cuda, name, _of_torch(lambda index: memory.exchange(index))))
        used = _of_torch(lambda tensor, index: memory.used.append(memory.stream))
        stack.enter_context(mock.patch.object(gpu, "used_here", used))
        capturing = _of_torch(lambda: memory.is_capturing)
        stack.enter_context(mock.patch.object(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", capturing))
        try:
            yield memory
        finally:
            registry[1] = before


_codes: dict[tuple[str, int], CudaCode] = {}


def _remembered(sources: Iterable[TritonSource], arch: int, cache: CodeCache | None = None) -> dict[str, CudaCode]:
    """`compile_cuda` of what no test of this process has compiled before."""
    sources = list(sources)
    made = compile_cuda([source for source in sources if (source.digest, arch) not in _codes], arch, cache)
    _codes.update({(source.digest, arch): made[source.name] for source in sources if source.name in made})
    return {source.name: _codes[source.digest, arch] for source in sources}


def _known(driver: FakeDriver, sources: Iterable[TritonSource], arch: int) -> dict[str, CudaCode]:
    sources = list(sources)
    made = _remembered(sources, arch)
    driver.codes |= made
    driver.sources |= {source.name: source for source in sources}
    return made


@contextmanager
def fake_gpu(
    capability: int = 90, measures: bool = False, *, compiles: bool = True, devices: int = 1
) -> Iterator[FakeDriver]:
    """The same with a driver, which records its calls and interprets the launches.

    measures: let products be chosen by times, which are those of the driver's `cost` and `of_torch`. compiles: whether
    kernels have machine code, which no launch here needs. devices: how many GPUs there are.
    """
    with fake_cuda(devices) as memory, ExitStack() as stack:
        driver = FakeDriver(memory, (), (), capability)  # type: ignore[arg-type]
        compiled = GpuProgram.compiled
        if not measures:
            stack.enter_context(mock.patch.object(lowering, "chooser_of", lambda options, found: None))
        stack.enter_context(mock.patch.object(choices, "compile_cuda", partial(_known, driver)))

        def known(program: GpuProgram, arch: int, cache: CodeCache | None = None) -> CudaPlan:
            plan = compiled(program, arch, cache)
            driver.codes |= {code.name: code for code in plan.kernels}
            driver.sources |= {one.kernel.source.name: one.kernel.source for one in program.kernels}
            return plan

        stack.enter_context(mock.patch.object(GpuProgram, "compiled", known))
        compile_ = _remembered if compiles else uncompiled
        stack.enter_context(mock.patch.object(program_of_gpu, "compile_cuda", compile_))
        stack.enter_context(mock.patch.object(machine, "CudaDriver", lambda: driver))
        machine.forget()
        stack.callback(machine.forget)
        yield driver
