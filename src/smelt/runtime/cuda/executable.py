"""A plan on a GPU: all launches of a call as one graph of the driver, whose arguments are changed in place.

    construction: load modules, add nodes, instantiate
    a call:       set the arguments of nodes whose addresses changed, then ONE launch
    other sizes:  the same nodes take the words and blocks of another plan of the same kernels, in the same order
    a condition:  a kernel that reads its byte and sets its values, then a conditional node for each arm

Nodes of the executable are set one by one, but for plans with conditions: what stands in an arm can only be changed in
the graph, which the executable then takes over as a whole.

Between two kernels of a call nothing of Python runs. Invariant: whatever fails, all that was made is destroyed, and the
next attempt starts anew.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from smelt.diag import SmeltError
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.cuda.conditions import SETTER, WHERE_FALSE, WHERE_TRUE
from smelt.runtime.cuda.driver import Driver, NodeParameters, unusable
from smelt.runtime.cuda.plan import CudaCondition, CudaLaunch, CudaMemory, CudaPlan

FREE_SHARED: Final = 48 * 1024
"""Bytes of shared memory that a block has unasked."""
_GENERATOR_NBYTES = 16
NUMBER_NBYTES: Final = 16
"""From one number of a call to the next in memory, so that each is at an address that kernels are promised."""

Allocate = Callable[[int], tuple[int, Any]]
"""Bytes of the device's memory -> their address, and what owns them (torch's allocator makes both)."""


Send = Callable[[Any, bytes], None]
"""Copy bytes of the host to memory of the device, by its owner, on the stream at hand; waits for nothing."""


class Arguments:
    """The arguments of one launch as the driver reads them: addresses and words, then Triton's two null addresses."""

    def __init__(self, code: CudaCode, words: Sequence[int]) -> None:
        kinds = [_CTYPES.get(kind, ctypes.c_uint64) for _, kind in code.parameters]
        self._values: list[Any] = [kind() for kind in (*kinds, ctypes.c_uint64, ctypes.c_uint64)]
        self._array = (ctypes.c_void_p * len(self._values))(*(ctypes.addressof(v) for v in self._values))
        self._code = code
        for value, word in zip(self._values[len(kinds) - len(words) : len(kinds)], words, strict=True):
            value.value = word

    @property
    def address(self) -> int:
        """Of the array of the arguments' addresses."""
        return ctypes.addressof(self._array)

    def set(self, addresses: Sequence[int]) -> None:
        """Set the addresses, which come first. Raises: SmeltError (S0405) for one that breaks a promise."""
        for (name, _), multiple, address in zip(self._code.parameters, self._code.multiples, addresses, strict=False):
            if address % multiple:
                raise unusable(
                    f"an address is no multiple of {multiple}",
                    f"{name} of {self._code.name} is at {address:#x}",
                    "pass a tensor that begins where its memory does, or compile without that promise",
                )
        for value, address in zip(self._values, addresses, strict=False):
            value.value = address


_CTYPES: Final[dict[str, Any]] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


@dataclass(slots=True)
class _Node:
    """A kernel's node: which step of the plan it runs, for a condition with the values that it sets, and arguments."""

    handle: int
    step: int
    values: tuple[int, ...]
    arguments: Arguments


class CudaExecutable:
    """A plan that is ready to be launched. Raises: SmeltError (S0405) where the GPU cannot have it.

    refused: called where it goes, and kernels of its calls had refused their data, of which nobody was told.
    """

    def __init__(
        self,
        plan: CudaPlan,
        driver: Driver,
        allocate: Allocate,
        device: int = 0,
        modules: Modules | None = None,
        send: Send | None = None,
        refused: Callable[[], None] | None = None,
    ) -> None:
        self._plan, self._driver, self._allocate, self._send = plan, driver, allocate, send
        self._refused = refused
        self._modules = Modules(driver) if modules is None else modules
        self._taken: list[CudaCode] = []
        self.lock = threading.Lock()
        self._arena = self._arena_nbytes = 0
        self._arena_owner: Any = None
        self._graph = self._exec = 0
        self._nodes: list[_Node] = []
        self._bases: tuple[int, ...] = ()
        self._stream: int | None = None
        self.home: int | None = None  # the stream of the first call, on which memory is taken
        self._generator = self._error = self._numbers = 0
        codes = [*plan.kernels, SETTER] if plan.conditions else plan.kernels
        self._codes = {code.name: code for code in codes}
        self._can_fail = any(_can_fail(code) for code in plan.kernels)
        try:
            self._check_architecture(driver.start(device))
            self._check_processors(device)
            self._functions = {code.name: self._loaded(code) for code in codes}
            self._grow(plan.arena_nbytes)
            if self._can_fail:
                self._error = driver.host_word()
                self._word.value = 0
            if plan.draws is not None:
                self._generator, self._generator_owner = allocate(_GENERATOR_NBYTES)
            if count := plan.count("number"):
                self._numbers, self._numbers_owner = allocate(NUMBER_NBYTES * count)
        except BaseException:
            self.close()
            raise

    def _check_architecture(self, capability: int) -> None:
        for code in self._plan.kernels:
            # A cubin runs on later devices of its own generation; those of 9.0 and 10.0 on no others.
            same = code.arch == capability if code.arch >= 90 else code.arch // 10 == capability // 10
            if not same or code.arch > capability:
                raise unusable(
                    f"a kernel is compiled for sm_{code.arch}", f"this GPU is sm_{capability}",
                    f"compile the program for {capability}",
                )  # fmt: skip

    def _check_processors(self, device: int) -> None:
        draws = self._plan.draws
        if draws is not None and self._driver.processors(device) != (draws.processors, draws.threads):
            found = "{} multiprocessors of {} threads".format(*self._driver.processors(device))
            raise unusable(
                f"random numbers are drawn as on {draws.processors} multiprocessors of {draws.threads} threads",
                f"this GPU has {found}, and torch's numbers depend on that",
                "make the program's kernels for this device",
            )

    def _loaded(self, code: CudaCode) -> int:
        function = self._modules.take(code)
        self._taken.append(code)
        return function

    def _grow(self, nbytes: int) -> None:
        if self._arena_owner is None or nbytes > self._arena_nbytes:
            self._arena, self._arena_owner = self._allocate(max(nbytes, 1))
            self._arena_nbytes = nbytes

    @property
    def owners(self) -> tuple[Any, ...]:
        """What owns the device's memory that calls share: the arena, the generator's words, numbers."""
        found = [self._arena_owner]
        if self._generator:
            found.append(self._generator_owner)
        if self._numbers:
            found.append(self._numbers_owner)
        return tuple(found)

    def adopt(self, plan: CudaPlan) -> None:
        """Run another plan of the same structure (`CudaPlan.structure`) from now on. The caller has the lock."""
        if plan is self._plan:
            return
        self._grow(plan.arena_nbytes)
        self._plan = plan
        # Words and blocks of all nodes are others; what is set in part is set anew in the next call.
        self._bases = ()

    # --- calls

    def run(
        self,
        arguments: Sequence[int],
        state: Sequence[int],
        results: Sequence[int],
        stream: int,
        generator: tuple[int, int] = (0, 0),
        numbers: bytes = b"",
    ) -> None:
        """Launch the program on a stream, over memory at these addresses; returns at once.

        generator: seed and offset of torch's, which the caller then moves on by `CudaPlan.draws.moved`. numbers: those
        of the call, `NUMBER_NBYTES` each. The caller keeps the memory until the stream is past the launch.
        Raises: SmeltError (S0405).
        """
        groups = {"argument": arguments, "state": state, "result": results}
        bases = tuple(self._base(memory, groups) for memory in self._plan.memories)
        if not self._exec:
            self._build(bases)
        elif bases != self._bases:
            self._change(bases)
        if self._stream is not None and self._stream != stream:
            # Both calls have the one arena.
            self._driver.order(self._stream, stream)
        self._stream = stream
        self.home = stream if self.home is None else self.home
        if self._plan.draws is not None:
            words = [number >> shift & 0xFFFFFFFF for number in generator for shift in (0, 32)]
            self._driver.write_words(self._generator, words, stream)
        if numbers and self._send is not None:
            self._send(self._numbers_owner, numbers)
        self._driver.launch(self._exec, stream)

    @property
    def _word(self) -> ctypes.c_int32:
        """The word that kernels write to when they refuse data, in the host's memory."""
        return ctypes.c_int32.from_address(self._error)

    @property
    def can_refuse(self) -> bool:
        """Whether a kernel of it may refuse data."""
        return self._can_fail

    def wait(self) -> None:
        """Return when its last call is done. Raises: SmeltError (S0405) where the device is lost."""
        if self._stream is not None:
            self._driver.wait(self._stream)

    def has_refused(self) -> bool:
        """Whether a kernel of a call so far refused its data: an index out of range, an integer division by zero. Waits
        for nothing, and tells once.
        """
        if not self._error or not self._word.value:
            return False
        self._word.value = 0
        return True

    def failed(self, stream: int) -> bool:
        """The same, when all calls on a stream are done."""
        if self._error:
            self._driver.wait(stream)
        return self.has_refused()

    def _base(self, memory: CudaMemory, groups: dict[str, Sequence[int]]) -> int:
        if memory.kind == "arena":
            return self._arena + memory.number
        if memory.kind == "generator":
            return self._generator
        if memory.kind == "number":
            return self._numbers + NUMBER_NBYTES * memory.number
        return groups[memory.kind][memory.number]

    def _addresses(self, launch: CudaLaunch, bases: Sequence[int]) -> list[int]:
        found = [bases[number] for number in launch.buffers]
        return [*found, self._error] if _can_fail(self._codes[launch.kernel]) else found

    def _parameters(self, launch: CudaLaunch, arguments: Arguments) -> NodeParameters:
        code = self._codes[launch.kernel]
        function = self._functions[launch.kernel]
        return NodeParameters(function, launch.programs, 32 * code.warps, code.shared_nbytes, arguments.address)

    def _build(self, bases: tuple[int, ...]) -> None:
        driver = self._driver
        try:
            self._graph = driver.graph()
            self._fill(self._graph, self._plan.order, bases)
            self._exec = driver.instantiate(self._graph)
        except BaseException:
            # What failed first is what is told.
            with suppress(SmeltError):
                self._drop_graph()
            raise
        self._bases = bases

    def _fill(self, graph: int, steps: Sequence[int], bases: Sequence[int]) -> dict[int, list[int]]:
        """Add a level's steps to a graph; the nodes of each."""
        made: dict[int, list[int]] = {}
        for step in steps:
            if step >= 0:
                after = [node for one in self._plan.launches[step].after for node in made[one]]
                made[step] = [self._add(graph, after, step, (), bases)]
            else:
                condition = self._plan.conditions[~step]
                after = [node for one in condition.after for node in made[one]]
                made[step] = self._decide(graph, after, step, condition, bases)
        return made

    def _decide(
        self, graph: int, after: Sequence[int], step: int, condition: CudaCondition, bases: Sequence[int]
    ) -> list[int]:
        """Add a condition: what sets its values, and a conditional node for each arm that has steps."""
        driver = self._driver
        arms = [(which, arm) for which, arm in zip((WHERE_TRUE, WHERE_FALSE), condition.arms, strict=False) if arm]
        found = {which: driver.condition(graph) for which, _ in arms}
        values = (found.get(WHERE_TRUE, 0), found.get(WHERE_FALSE, 0), sum(found))
        made = [self._add(graph, after, step, values, bases)]
        for which, arm in arms:
            is_loop = condition.kind == "while"
            node, body = driver.add_conditional(graph, made[:1], found[which], is_loop)
            made.append(node)
            inner = self._fill(body, arm, bases)
            if is_loop:
                last = [one for number in condition.last for one in inner[number]]
                self._add(body, last, step, values, bases)
        return made

    def _add(self, graph: int, after: Sequence[int], step: int, values: tuple[int, ...], bases: Sequence[int]) -> int:
        launch = self._launch(step, values)
        arguments = Arguments(self._codes[launch.kernel], launch.words)
        arguments.set(self._addresses(launch, bases))
        node = self._driver.add_kernel(graph, after, self._parameters(launch, arguments))
        self._nodes.append(_Node(node, step, values, arguments))
        return node

    def _launch(self, step: int, values: tuple[int, ...]) -> CudaLaunch:
        """What a node launches: a step, or what sets a condition's values."""
        if step >= 0:
            return self._plan.launches[step]
        return CudaLaunch(SETTER.name, (self._plan.conditions[~step].test,), values, 1, ())

    def _change(self, bases: tuple[int, ...]) -> None:
        """Set the arguments of the nodes that touch other addresses than in the last call; of another plan, all."""
        is_new = not self._bases
        changed = {n for n, (old, new) in enumerate(zip(self._bases, bases, strict=not is_new)) if old != new}
        # What is set in part is set anew in the next call.
        self._bases = ()
        has_changed = False
        try:
            for node in self._nodes:
                launch = self._launch(node.step, node.values)
                if is_new:
                    node.arguments = Arguments(self._codes[launch.kernel], launch.words)
                if is_new or not changed.isdisjoint(launch.buffers):
                    node.arguments.set(self._addresses(launch, bases))
                    self._set(node.handle, self._parameters(launch, node.arguments))
                    has_changed = True
            if has_changed and self._plan.conditions:
                self._take_over()
        except BaseException:
            # What failed first is what is told.
            with suppress(SmeltError):
                self._drop_graph()
            raise
        self._bases = bases

    def _set(self, node: int, parameters: NodeParameters) -> None:
        if self._plan.conditions:
            self._driver.set_node(node, parameters)
        else:
            self._driver.set_kernel(self._exec, node, parameters)

    def _take_over(self) -> None:
        """Let the executable have the graph's arguments; a new one where the driver does not change the old one."""
        if not self._driver.update(self._exec, self._graph):
            # Of a graph with conditional nodes there may be one executable.
            gone, self._exec = self._exec, 0
            self._driver.destroy_executable(gone)
            self._exec = self._driver.instantiate(self._graph)

    # --- the end

    def _drop_graph(self) -> None:
        executable, graph = self._exec, self._graph
        self._exec = self._graph = 0
        self._nodes, self._bases = [], ()
        if executable:
            self._driver.destroy_executable(executable)
        if graph:
            self._driver.destroy_graph(graph)

    def close(self) -> None:
        """Destroy all that the driver made; the memory is its owner's."""
        self._drop_graph()
        while self._taken:
            self._modules.give_back(self._taken.pop())
        if self._error:
            self._driver.free_host_word(self._error)
            self._error = 0

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "lock"):
            return
        try:
            if self._stream is not None:
                self._driver.wait(self._stream)
            if self.has_refused() and self._refused is not None:
                self._refused()
            self.close()
        except SmeltError:
            # A device that is lost, or a stream that is captured at the moment: nothing can be freed.
            return


class Modules:
    """Kernels that are loaded, each once however many programs have it, until none has it any more."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.RLock()
        self._loaded: dict[str, tuple[int, int, int]] = {}

    def take(self, code: CudaCode) -> int:
        """The function of a kernel. Raises: SmeltError (S0405); nothing is loaded then."""
        with self._lock:
            module, function, users = self._loaded.get(code.name, (0, 0, 0))
            if not users:
                module, function = self._load(code)
            self._loaded[code.name] = module, function, users + 1
            return function

    def _load(self, code: CudaCode) -> tuple[int, int]:
        module = self._driver.load_module(code.cubin)
        try:
            function = self._driver.function(module, code.name)
            if code.shared_nbytes > FREE_SHARED:
                self._driver.allow_shared(function, code.shared_nbytes)
        except BaseException:
            self._driver.unload_module(module)
            raise
        return module, function

    def give_back(self, code: CudaCode) -> None:
        """What `take` gave is needed by one program less."""
        with self._lock:
            module, function, users = self._loaded.pop(code.name)
            if users > 1:
                self._loaded[code.name] = module, function, users - 1
            else:
                self._driver.unload_module(module)


def _can_fail(code: CudaCode) -> bool:
    return any(name == "error" for name, _ in code.parameters)
