"""A driver without a GPU: it records each call, checks what it is asked, and its launches are interpreted.

The device's memory is the host's, in allocations with a fence behind each. A launch decodes the array of arguments as
the device would, and refuses what a device would crash on, or silently do wrong. An executable is a copy of its graph:
what is set in the one is not in the other. Of conditional nodes it holds to what is documented: their values are
unknown when a graph is launched, a graph that has some has one executable, and its nodes inside of arms are changed
through it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from smelt.codegen.triton.kernel import TritonSource
from smelt.codegen.triton.stages import _pointer_multiples
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.cuda.conditions import SETTER, WHERE_FALSE, WHERE_TRUE
from smelt.runtime.cuda.driver import NodeParameters, unusable
from smelt.runtime.cuda.executable import FREE_SHARED
from tests.triton.harness import interpreter

_MOST_SHARED = 227 * 1024
_FENCE, _POISON = 0xA5, 0x7F
_ELEMENTS = {
    "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
}  # fmt: skip


def uncompiled(sources: Iterable[TritonSource], arch: int, cache: Any = None) -> dict[str, CudaCode]:
    """`compile_cuda` without a compiler: for launches that are interpreted, all but the machine code."""
    return {
        source.name: CudaCode(
            source.name, arch, source.parameters, (*_pointer_multiples(source), *source.multiples), source.warps, 0,
            b"\x7fELF" + source.name.encode(),
        )
        for source in sources
    }  # fmt: skip


class Device:
    """Memory by address."""

    def __init__(self) -> None:
        self.live: dict[int, torch.Tensor] = {}
        self._whole: list[torch.Tensor] = []

    def allocate(self, nbytes: int, shift: int = 0) -> tuple[int, torch.Tensor]:
        """New memory, poisoned, which begins `shift` bytes behind a multiple of 16; its address and its bytes."""
        whole = torch.full((nbytes + 96,), _FENCE, dtype=torch.uint8)
        begin = -whole.data_ptr() % 16 + shift
        memory = whole[begin : begin + nbytes]
        memory.fill_(_POISON)
        self._whole.append(whole)
        self.live[memory.data_ptr()] = memory
        return memory.data_ptr(), memory

    def upload(self, tensor: torch.Tensor, shift: int = 0) -> int:
        """Memory with a tensor's elements as they are stored; its address."""
        nbytes = tensor.untyped_storage().nbytes()
        address, memory = self.allocate(nbytes, shift)
        memory.copy_(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))  # type: ignore[call-overload]
        return address

    def find(self, address: int) -> tuple[torch.Tensor, int]:
        """The memory that an address is in, and its offset there."""
        for begin, memory in self.live.items():
            if begin <= address < begin + memory.numel():
                return memory, address - begin
        raise AssertionError(f"{address:#x} is in no live memory")

    def check_fences(self) -> None:
        """Nobody wrote outside of the memory."""
        for whole in self._whole:
            inside = next(m for m in self.live.values() if m.untyped_storage().data_ptr() == whole.data_ptr())
            before, behind = inside.storage_offset(), inside.storage_offset() + inside.numel()
            assert bool((whole[:before] == _FENCE).all()) and bool((whole[behind:] == _FENCE).all())


@dataclass
class Node:
    """A node of a graph: what it runs with its arguments as they were decoded, and the nodes before it; or the value
    that it looks at, with the graph that it runs.
    """

    after: tuple[int, ...]
    code: CudaCode | None = None
    programs: int = 0
    pointers: list[tuple[str, int]] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    condition: int = 0
    body: int = 0
    is_loop: bool = False


@dataclass
class Executable:
    """What a graph was when it was instantiated: nodes by number, and which of them stand in each graph."""

    root: int
    graphs: dict[int, list[int]]
    nodes: dict[int, Node]


class FakeDriver:
    """`Driver` on a `Device`. fail: name of a call that fails, counting down from `fail_at`. lost: all calls fail.
    refuses_updates: whether executables cannot take over a graph's arguments. ran: what was launched, by names of
    kernels, one for each time that it ran.
    """

    def __init__(
        self, device: Device, codes: Iterable[CudaCode], sources: Iterable[TritonSource], capability: int = 90
    ) -> None:
        self.device, self.capability = device, capability
        self.codes = {code.name: code for code in codes}
        self.sources = {source.name: source for source in sources}
        self.calls: list[str] = []
        self.streams: list[int] = []
        self.launched_on: list[int] = []  # which GPU was at hand
        self.words: set[int] = set()
        self.fail, self.fail_at, self.lost = "", 0, False
        self.modules: dict[int, bytes] = {}
        self.functions: dict[int, str] = {}
        self.allowed: dict[int, int] = {}
        self.graphs: dict[int, list[int]] = {}
        self.nodes: dict[int, Node] = {}
        self.bodies: dict[int, int] = {}  # and the graph that each stands in
        self.conditions: dict[int, int] = {}  # and the graph of each
        self.executables: dict[int, Executable] = {}
        self.version, self.refuses_updates = 13000, False
        self.ran: list[str] = []
        self._handles = 1000
        # What a launch of a kernel takes, in microseconds, by its name. What operators of torch
        # took by now, and what all took when an event was recorded. runs: whether launches are interpreted.
        self.cost: Callable[[str], float] = lambda name: 1.0
        self.of_torch: Callable[[], float] = lambda: 0.0
        self.launched_us = 0.0
        self.events: dict[int, float] = {}
        self.runs = True

    def _record(self, name: str) -> int:
        self.calls.append(name)
        if self.lost:
            raise unusable(f"{name} failed", "the device is lost", "run the program on the CPU")
        if name == self.fail:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail = ""
                raise unusable(f"{name} failed", "out of memory", "free memory of the GPU")
        self._handles += 1
        return self._handles

    def start(self, device: int) -> int:
        self._record("start")
        return self.capability

    def processors(self, device: int) -> tuple[int, int]:
        self._record("processors")
        return 132, 2048

    def write_words(self, address: int, words: Sequence[int], stream: int) -> None:
        self._record("write_words")
        memory, offset = self.device.find(address)
        memory[offset : offset + 4 * len(words)] = torch.tensor(list(words), dtype=torch.uint32).view(torch.uint8)

    def load_module(self, image: bytes) -> int:
        handle = self._record("load_module")
        assert image.startswith(b"\x7fELF") or image == SETTER.cubin
        self.modules[handle] = image
        return handle

    def unload_module(self, module: int) -> None:
        self._record("unload_module")
        del self.modules[module]

    def function(self, module: int, name: str) -> int:
        handle = self._record("function")
        assert name.encode() in self.modules[module]
        self.functions[handle] = name
        return handle

    def allow_shared(self, function: int, nbytes: int) -> None:
        self._record("allow_shared")
        assert nbytes <= _MOST_SHARED
        self.allowed[function] = nbytes

    def graph(self) -> int:
        handle = self._record("graph")
        self.graphs[handle] = []
        return handle

    def destroy_graph(self, graph: int) -> None:
        self._record("destroy_graph")
        assert graph not in self.bodies, "a body goes with the graph that it stands in"
        for inner in self._within(graph):
            del self.graphs[inner]
            self.bodies.pop(inner, None)

    def _within(self, graph: int) -> list[int]:
        """A graph with those inside of it."""
        return [graph, *(one for body, outer in self.bodies.items() if outer == graph for one in self._within(body))]

    def add_kernel(self, graph: int, after: Sequence[int], parameters: NodeParameters) -> int:
        handle = self._record("add_kernel")
        self.nodes[handle] = self._decoded(parameters, self._before(graph, after))
        self.graphs[graph].append(handle)
        return handle

    def _before(self, graph: int, after: Sequence[int]) -> tuple[int, ...]:
        assert all(node in self.graphs[graph] for node in after)
        return tuple(after)

    def condition(self, graph: int) -> int:
        handle = self._record("condition")
        assert self.version >= 12040 and graph in self.graphs
        self.conditions[handle] = graph
        return handle

    def add_conditional(self, graph: int, after: Sequence[int], condition: int, is_loop: bool) -> tuple[int, int]:
        node, body = self._record("add_conditional"), self._record("body")
        assert self.conditions[condition] == graph
        assert all(other.condition != condition for other in self.nodes.values()), "a condition is of one node"
        self.graphs[body], self.bodies[body] = [], graph
        self.nodes[node] = Node(self._before(graph, after), condition=condition, body=body, is_loop=is_loop)
        self.graphs[graph].append(node)
        return node, body

    def set_node(self, node: int, parameters: NodeParameters) -> None:
        self._record("set_node")
        self.nodes[node] = self._decoded(parameters, self.nodes[node].after)

    def update(self, executable: int, graph: int) -> bool:
        self._record("update")
        old, new = self.executables[executable], self._instance(graph)
        assert (old.root, old.graphs) == (new.root, new.graphs), "another graph"
        if not self.refuses_updates:
            self.executables[executable] = new
        return not self.refuses_updates

    def _instance(self, graph: int) -> Executable:
        graphs = {one: list(self.graphs[one]) for one in self._within(graph)}
        nodes = {node: replace(self.nodes[node]) for inside in graphs.values() for node in inside}
        used = {node.condition for node in nodes.values()}
        assert all(condition in used for condition, of in self.conditions.items() if of in graphs)
        return Executable(graph, graphs, nodes)

    def instantiate(self, graph: int) -> int:
        handle = self._record("instantiate")
        made = self._instance(graph)
        others = [one for one in self.executables.values() if one.root == graph]
        assert not (others and len(made.graphs) > 1), "a graph with conditions has one executable"
        self.executables[handle] = made
        return handle

    def destroy_executable(self, executable: int) -> None:
        self._record("destroy_executable")
        del self.executables[executable]

    def set_kernel(self, executable: int, node: int, parameters: NodeParameters) -> None:
        self._record("set_kernel")
        found = self.executables[executable]
        assert node in found.graphs[found.root], "nodes inside of a body are changed through the graph"
        found.nodes[node] = self._decoded(parameters, found.nodes[node].after)

    def order(self, before: int, after: int) -> None:
        self._record("order")
        assert before != after

    def host_word(self) -> int:
        self._record("host_word")
        address, _ = self.device.allocate(4)
        self.words.add(address)
        return address

    def free_host_word(self, address: int) -> None:
        self._record("free_host_word")
        self.words.remove(address)

    def wait(self, stream: int) -> None:
        self._record("wait")

    def cache_nbytes(self, device: int) -> int:
        self._record("cache_nbytes")
        return 64

    def event(self) -> int:
        handle = self._record("event")
        self.events[handle] = -1.0
        return handle

    def destroy_event(self, event: int) -> None:
        self._record("destroy_event")
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        self._record("record")
        assert event in self.events
        self.events[event] = self.launched_us + self.of_torch()

    def elapsed_us(self, begin: int, end: int) -> float:
        self._record("elapsed_us")
        assert 0 <= self.events[begin] <= self.events[end]
        return self.events[end] - self.events[begin]

    # --- launches

    def _decoded(self, parameters: NodeParameters, after: tuple[int, ...]) -> Node:
        name = self.functions[parameters.function]
        code = SETTER if name == SETTER.name else self.codes[name]
        assert 0 < parameters.programs < 2**31 and parameters.threads == 32 * code.warps <= 1024
        assert parameters.shared_nbytes == code.shared_nbytes
        assert code.shared_nbytes <= max(FREE_SHARED, self.allowed.get(parameters.function, 0))
        count = len(code.parameters)
        array = (ctypes.c_void_p * (count + 2)).from_address(parameters.arguments)
        node = Node(after, code, parameters.programs)
        for (name, kind), multiple, where in zip(code.parameters, code.multiples, array[:count], strict=True):
            assert where is not None
            value = (ctypes.c_int32 if kind == "i32" else ctypes.c_int64).from_address(where).value
            assert value % multiple == 0, f"{name} of {code.name} is no multiple of {multiple}"
            if kind.startswith("*"):
                self.device.find(value)
                node.pointers.append((kind, value))
            else:
                node.words.append(value)
        for where in array[count:]:
            assert where is not None and ctypes.c_int64.from_address(where).value == 0
        return node

    def launch(self, executable: int, stream: int) -> None:
        self._record("launch")
        self.streams.append(stream)
        getattr(self.device, "arrive", lambda: None)()
        self.launched_on.append(getattr(self.device, "current", 0))
        found = self.executables[executable]
        self._run_all(found, found.root, {})

    def _run_all(self, executable: Executable, graph: int, values: dict[int, int]) -> None:
        done: list[int] = []
        waiting = list(executable.graphs[graph])
        # The last that may run is the first, so that an order which the edges do not say is not there by chance.
        while waiting:
            ready = [n for n in waiting if all(before in done for before in executable.nodes[n].after)]
            assert ready, "the nodes of a graph wait for one another"
            waiting.remove(ready[-1])
            self._run(executable, executable.nodes[ready[-1]], values)
            done.append(ready[-1])

    def _run(self, executable: Executable, node: Node, values: dict[int, int]) -> None:
        if node.condition:
            turns = 0
            while values[node.condition]:
                self._run_all(executable, node.body, values)
                turns += 1
                if not node.is_loop:
                    break
                assert turns < 1000, "a loop without an end"
            return
        assert node.code is not None
        self.launched_us += self.cost(node.code.name)
        self.ran.append(node.code.name)
        if node.code is SETTER:
            memory, offset = self.device.find(node.pointers[0][1])
            test, (first, second, which) = int(memory[offset]) != 0, node.words
            assert which in (WHERE_TRUE, WHERE_FALSE, WHERE_TRUE | WHERE_FALSE)
            values.update({first: int(test)} if which & WHERE_TRUE else {})
            values.update({second: int(not test)} if which & WHERE_FALSE else {})
            return
        if not self.runs:
            return
        memories: list[torch.Tensor] = []
        pointers: list[tuple[int, int, Any]] = []
        for kind, address in node.pointers:
            memory, offset = self.device.find(address)
            at = next((k for k, m in enumerate(memories) if m is memory), None)
            if at is None:
                memories.append(memory)
                at = len(memories) - 1
            pointers.append((at, offset, _ELEMENTS[kind.removeprefix("*")]))
        interpreter().launch(self.sources[node.code.name], memories, pointers, node.words, node.programs)

    @property
    def nothing_left(self) -> bool:
        """Whether all that was made is destroyed."""
        return not (self.modules or self.graphs or self.executables or self.words or self.events)
