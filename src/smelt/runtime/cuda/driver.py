"""The driver of NVIDIA's GPUs, `libcuda`, as far as launches need it: modules, functions, graphs of launches.

Loaded by name when it is first wanted; nothing is linked and nothing of it is part of torch. Invariants: a call that
fails is an error with the driver's own words; what one call made is destroyed by its owner, on paths of errors, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, Protocol

from smelt.diag import SmeltError
from smelt.diag.records import record

OUT_OF_MEMORY: Final = 2
OLDEST: Final = 12000
"""The oldest driver's version (12.0) that loads cubins of the compiler that Triton brings."""
CONDITIONS: Final = 12040
"""The oldest driver's version (12.4) that has conditional nodes."""
_NO_TIMES = 2  # CU_EVENT_DISABLE_TIMING
_SHARED_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_WITH_TIMES = 0  # CU_EVENT_DEFAULT
_CACHE_NBYTES = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_PROCESSORS = (16, 39)  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and _MAX_THREADS_PER_MULTIPROCESSOR
_FOR_ALL_DEVICES = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE and _DEVICEMAP
_CONDITIONAL, _IF, _WHILE = 13, 0, 1  # CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_COND_TYPE_IF and _WHILE
_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


@record
class NodeParameters:
    """A kernel node: function, blocks, threads of each, bytes of shared memory, and the address of the array of the
    arguments' addresses, which the driver copies.
    """

    function: int
    programs: int
    threads: int
    shared_nbytes: int
    arguments: int


class Driver(Protocol):
    """What an executable asks of a GPU; `handles` are numbers. Each raises SmeltError (S0405).

    version: 12040 for CUDA 12.4.
    """

    @property
    def version(self) -> int: ...

    def start(self, device: int) -> int:
        """Make a device's context that of this thread; its compute capability, 90 for 9.0."""

    def processors(self, device: int) -> tuple[int, int]:
        """A device's multiprocessors, and how many threads each runs at once."""

    def write_words(self, address: int, words: Sequence[int], stream: int) -> None:
        """Write words of 32 bits to the device's memory, behind what was launched on the stream before."""

    def load_module(self, image: bytes) -> int:
        """Load a cubin."""

    def unload_module(self, module: int) -> None:
        """Unload it."""

    def function(self, module: int, name: str) -> int:
        """A kernel of a module."""

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Let a kernel have more than 48 KiB of shared memory."""

    def graph(self) -> int:
        """A graph without nodes."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy it."""

    def add_kernel(self, graph: int, after: Sequence[int], parameters: NodeParameters) -> int:
        """A node that launches a kernel."""

    def condition(self, graph: int) -> int:
        """The value of a conditional node that is to stand in a graph, which a kernel sets before that node."""

    def add_conditional(self, graph: int, after: Sequence[int], condition: int, is_loop: bool) -> tuple[int, int]:
        """A node that runs a graph of its own where a value is not 0, a loop as long as it is not; the node, and that
        graph, empty, which goes with it.
        """

    def set_node(self, node: int, parameters: NodeParameters) -> None:
        """Change the arguments of a kernel node of a graph, for `update`."""

    def update(self, executable: int, graph: int) -> bool:
        """Take over the arguments of all nodes of the graph that it was made of; False where the driver refuses."""

    def instantiate(self, graph: int) -> int:
        """What launches all nodes of a graph at once."""

    def destroy_executable(self, executable: int) -> None:
        """Destroy it."""

    def set_kernel(self, executable: int, node: int, parameters: NodeParameters) -> None:
        """Change the arguments of a node, from the next launch on."""

    def launch(self, executable: int, stream: int) -> None:
        """Launch all on a stream, behind what was launched there before."""

    def order(self, before: int, after: int) -> None:
        """What is launched on a stream from now on comes after all that another one has now."""

    def host_word(self) -> int:
        """A word of 32 bits in the host's memory that kernels may write to; its address, which is the same for both."""

    def free_host_word(self, address: int) -> None:
        """Free it."""

    def wait(self, stream: int) -> None:
        """Return when all that is on a stream is done."""

    def cache_nbytes(self, device: int) -> int:
        """Bytes of the cache that all multiprocessors of a device share."""

    def event(self) -> int:
        """An event that has a time."""

    def destroy_event(self, event: int) -> None:
        """Destroy it."""

    def record(self, event: int, stream: int) -> None:
        """Let an event take the time at which all that is on a stream now is done."""

    def elapsed_us(self, begin: int, end: int) -> float:
        """Microseconds from one event to another; waits for the second."""


class _KernelNode(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        *((f"{kind}_{axis}", ctypes.c_uint) for kind in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _ConditionalNode(ctypes.Structure):
    """`CUgraphNodeParams` of a conditional node: 256 bytes."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("reserved_0", ctypes.c_int * 3),
        ("condition", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("size", ctypes.c_uint),
        ("bodies", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
        ("reserved_1", ctypes.c_longlong * 25),
        ("reserved_2", ctypes.c_longlong),
    )


class _UpdateResult(ctypes.Structure):
    _fields_ = (("result", ctypes.c_int), ("node", ctypes.c_void_p), ("from_node", ctypes.c_void_p))


def unusable(what: str, why: str, fix: str) -> SmeltError:
    """The error of a GPU that cannot be used."""
    return SmeltError(what, why=why, fix=fix, code="S0405")


class CudaDriver:
    """`Driver` by the library itself. Raises: SmeltError (S0405) if there is none, or it is too old."""

    def __init__(self, library: Any = None) -> None:
        self._library = _load() if library is None else library
        self._context = ctypes.c_void_p()
        self._event = 0
        self._call("cuInit", ctypes.c_uint(0))
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        if version.value < OLDEST:
            raise unusable(
                "the driver of the GPU is too old",
                f"it is for CUDA {dotted(version.value)}, and kernels need {dotted(OLDEST)}",
                "update the driver",
            )

    def _call(self, name: str, *args: Any) -> None:
        code = int(getattr(self._library, name)(*args))
        if code:
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> SmeltError:
        text = ctypes.c_char_p()
        known = int(self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))) == 0
        why = text.value.decode() if known and text.value else f"error {code}"
        fix = "free memory of the GPU" if code == OUT_OF_MEMORY else "run the program on the CPU"
        return unusable(f"{name} of the GPU's driver failed", why, fix)

    def _made(self, name: str, *args: Any) -> int:
        """What a function writes to its first argument."""
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *args)
        return made.value or 0

    def start(self, device: int) -> int:
        number = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)
        self._call("cuCtxSetCurrent", self._context)
        major, minor = self._attributes(number, _CAPABILITY)
        return major * 10 + minor

    def _attributes(self, number: ctypes.c_int, attributes: tuple[int, int]) -> tuple[int, int]:
        parts = [ctypes.c_int(), ctypes.c_int()]
        for part, attribute in zip(parts, attributes, strict=True):
            self._call("cuDeviceGetAttribute", ctypes.byref(part), ctypes.c_int(attribute), number)
        return parts[0].value, parts[1].value

    def processors(self, device: int) -> tuple[int, int]:
        number = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
        return self._attributes(number, _PROCESSORS)

    def write_words(self, address: int, words: Sequence[int], stream: int) -> None:
        # Values travel in the calls, so no memory of the host has to outlive them.
        for k, word in enumerate(words):
            where, value, count = ctypes.c_uint64(address + 4 * k), ctypes.c_uint(word), ctypes.c_size_t(1)
            self._call("cuMemsetD32Async", where, value, count, ctypes.c_void_p(stream))

    def load_module(self, image: bytes) -> int:
        return self._made("cuModuleLoadData", image)

    def unload_module(self, module: int) -> None:
        self._call("cuModuleUnload", ctypes.c_void_p(module))

    def function(self, module: int, name: str) -> int:
        return self._made("cuModuleGetFunction", ctypes.c_void_p(module), name.encode())

    def allow_shared(self, function: int, nbytes: int) -> None:
        limit, size = ctypes.c_int(_SHARED_LIMIT), ctypes.c_int(nbytes)
        self._call("cuFuncSetAttribute", ctypes.c_void_p(function), limit, size)

    def graph(self) -> int:
        return self._made("cuGraphCreate", ctypes.c_uint(0))

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))

    def add_kernel(self, graph: int, after: Sequence[int], parameters: NodeParameters) -> int:
        before, count = _nodes(after)
        node = ctypes.byref(_kernel_node(parameters))
        return self._made("cuGraphAddKernelNode_v2", ctypes.c_void_p(graph), before, count, node)

    def condition(self, graph: int) -> int:
        made = ctypes.c_uint64()
        context, unset = self._current(), ctypes.c_uint(0)
        self._call("cuGraphConditionalHandleCreate", ctypes.byref(made), ctypes.c_void_p(graph), context, unset, unset)
        return made.value

    def add_conditional(self, graph: int, after: Sequence[int], condition: int, is_loop: bool) -> tuple[int, int]:
        # The driver puts its own array in the place of this one.
        bodies = (ctypes.c_void_p * 1)()
        kind, context = _WHILE if is_loop else _IF, self._current()
        made = _ConditionalNode(_CONDITIONAL, condition=condition, kind=kind, size=1, bodies=bodies, context=context)
        before, count = _nodes(after)
        node = self._made("cuGraphAddNode_v2", ctypes.c_void_p(graph), before, None, count, ctypes.byref(made))
        body = made.bodies[0]
        if not body:
            raise unusable(
                "the driver made no graph for a conditional node",
                f"it is for CUDA {dotted(self.version)}",
                "update the driver",
            )
        return node, body

    def _current(self) -> ctypes.c_void_p:
        """The context of this thread, which `start` made its own."""
        return ctypes.c_void_p(self._made("cuCtxGetCurrent"))

    def set_node(self, node: int, parameters: NodeParameters) -> None:
        made = ctypes.byref(_kernel_node(parameters))
        self._call("cuGraphKernelNodeSetParams_v2", ctypes.c_void_p(node), made)

    def update(self, executable: int, graph: int) -> bool:
        told = _UpdateResult()
        function = self._library.cuGraphExecUpdate_v2
        return not function(ctypes.c_void_p(executable), ctypes.c_void_p(graph), ctypes.byref(told))

    def instantiate(self, graph: int) -> int:
        return self._made("cuGraphInstantiateWithFlags", ctypes.c_void_p(graph), ctypes.c_ulonglong(0))

    def destroy_executable(self, executable: int) -> None:
        self._call("cuGraphExecDestroy", ctypes.c_void_p(executable))

    def set_kernel(self, executable: int, node: int, parameters: NodeParameters) -> None:
        made = ctypes.byref(_kernel_node(parameters))
        self._call("cuGraphExecKernelNodeSetParams_v2", ctypes.c_void_p(executable), ctypes.c_void_p(node), made)

    def launch(self, executable: int, stream: int) -> None:
        self._call("cuGraphLaunch", ctypes.c_void_p(executable), ctypes.c_void_p(stream))

    def order(self, before: int, after: int) -> None:
        if not self._event:
            self._event = self._made("cuEventCreate", ctypes.c_uint(_NO_TIMES))
        event = ctypes.c_void_p(self._event)
        self._call("cuEventRecord", event, ctypes.c_void_p(before))
        self._call("cuStreamWaitEvent", ctypes.c_void_p(after), event, ctypes.c_uint(0))

    def host_word(self) -> int:
        return self._made("cuMemHostAlloc", ctypes.c_size_t(4), ctypes.c_uint(_FOR_ALL_DEVICES))

    def free_host_word(self, address: int) -> None:
        self._call("cuMemFreeHost", ctypes.c_void_p(address))

    def wait(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def cache_nbytes(self, device: int) -> int:
        number, nbytes = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
        self._call("cuDeviceGetAttribute", ctypes.byref(nbytes), ctypes.c_int(_CACHE_NBYTES), number)
        return nbytes.value

    def event(self) -> int:
        return self._made("cuEventCreate", ctypes.c_uint(_WITH_TIMES))

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", ctypes.c_void_p(event))

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def elapsed_us(self, begin: int, end: int) -> float:
        ms = ctypes.c_float()
        self._call("cuEventSynchronize", ctypes.c_void_p(end))
        self._call("cuEventElapsedTime", ctypes.byref(ms), ctypes.c_void_p(begin), ctypes.c_void_p(end))
        return ms.value * 1000


def _load() -> Any:
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise unusable(
        "there is no driver of a GPU here", "libcuda is not found", "install NVIDIA's driver, or run on the CPU"
    )


def dotted(version: int) -> str:
    """A version as people write it, 12.4 for 12040."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _nodes(after: Sequence[int]) -> tuple[Any, ctypes.c_size_t]:
    return (ctypes.c_void_p * len(after))(*after), ctypes.c_size_t(len(after))


def _kernel_node(parameters: NodeParameters) -> _KernelNode:
    grid, block = (parameters.programs, 1, 1), (parameters.threads, 1, 1)
    return _KernelNode(
        parameters.function, *grid, *block, parameters.shared_nbytes, parameters.arguments, None, None, None
    )
