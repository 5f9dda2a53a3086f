"""Programs on a GPU that is not there: plans as recorded calls of a driver, whose launches are interpreted."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor, nn

import smelt
from smelt.codegen.lower.gpu import GpuProgram, gpu_program
from smelt.codegen.triton.compile import ARCHITECTURES
from smelt.diag import SmeltError
from smelt.ir import Node
from smelt.runtime.cuda.conditions import NAME, PTX, why_none
from smelt.runtime.cuda.driver import CudaDriver, NodeParameters
from smelt.runtime.cuda.executable import CudaExecutable
from smelt.runtime.cuda.plan import CudaCondition, CudaLaunch, CudaMemory, CudaPlan, ordered, predecessors
from tests.kernels.machine import TORCH_DTYPE
from tests.triton.fake_driver import Device, FakeDriver


class Norms(nn.Module):
    """Norm, softmax and sums of a tensor and of another's transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(48)
        self.weight = nn.Parameter(torch.randn(48))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = self.norm(x) * self.weight + y.transpose(0, 1)
        rows = torch.softmax(h, -1)
        return rows, h.sum(0), x.sum(), rows.transpose(0, 1)


class Gpu:
    """A program on a fake GPU."""

    def __init__(self, function: Callable[..., Any], *args: Tensor, capability: int = 90) -> None:
        traced = smelt.trace(function, args)
        self.traced = traced
        self.program: GpuProgram = gpu_program(traced.graph_for(*args))
        self.plan: CudaPlan = self.program.compiled(90)
        self.device = Device()
        sources = [one.kernel.source for one in self.program.kernels]
        self.driver = FakeDriver(self.device, self.plan.kernels, sources, capability)
        self.state = [self.device.upload(self._tensor(node)) for node in self.program.state]
        self.executable = CudaExecutable(self.plan, self.driver, self.device.allocate)

    def _tensor(self, node: Node) -> Tensor:
        assert node.op == "param"
        return dict(self.traced.named_parameters())[str(node.args[0])].detach()

    def results(self) -> list[tuple[int, Tensor]]:
        """New memory for each result."""
        sizes = {m.number: m.nbytes for m in self.plan.memories if m.kind == "result"}
        return [self.device.allocate(sizes[number]) for number in sorted(sizes)]

    def __call__(self, *args: Tensor) -> list[Tensor]:
        arguments = [self.device.upload(t) for t in args]
        made = self.results()
        self.executable.run(arguments, self.state, [address for address, _ in made], 7)
        self.device.check_fences()
        found = []
        for place, dtype in self.program.results:
            memory = self.plan.memories[place.memory]
            assert memory.kind == "result"
            elements = made[memory.number][1].view(TORCH_DTYPE[dtype])
            at = place.geometry
            found.append(elements.as_strided(at.sizes, at.strides, elements.storage_offset() + at.offset))
        return found


def inputs(seed: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(24, 48, generator=drawn), torch.randn(48, 24, generator=drawn)


@pytest.fixture(scope="module")
def norms() -> Gpu:
    return Gpu(Norms().eval().requires_grad_(False), *inputs(0))


def same(gpu: Gpu, *args: Tensor) -> None:
    want = gpu.traced(*args)
    for ours, eager in zip(gpu(*args), want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


def test_a_call_is_one_launch(norms: Gpu) -> None:
    same(norms, *inputs(0))
    assert norms.driver.calls[-1] == "launch" and norms.driver.calls.count("launch") == 1
    assert norms.driver.calls.count("add_kernel") == len(norms.plan.launches) > 1
    before = len(norms.driver.calls)
    same(norms, *inputs(1))
    # Nothing between two kernels: the arguments of nodes, which point elsewhere now, then one launch.
    assert set(norms.driver.calls[before:-1]) == {"set_kernel"} and norms.driver.calls[-1] == "launch"
    assert norms.driver.calls[before:].count("launch") == 1


def test_the_same_addresses_are_launched_again_at_once(norms: Gpu) -> None:
    arguments = [norms.device.upload(t) for t in inputs(2)]
    made = [address for address, _ in norms.results()]
    norms.executable.run(arguments, norms.state, made, 7)
    before = len(norms.driver.calls)
    norms.executable.run(arguments, norms.state, made, 7)
    assert norms.driver.calls[before:] == ["launch"]


def test_a_call_on_another_stream_waits_for_the_last(norms: Gpu) -> None:
    arguments = [norms.device.upload(t) for t in inputs(2)]
    made = [address for address, _ in norms.results()]
    norms.executable.run(arguments, norms.state, made, 7)
    before = len(norms.driver.calls)
    norms.executable.run(arguments, norms.state, made, 8)
    assert norms.driver.calls[before:] == ["order", "launch"]
    norms.executable.run(arguments, norms.state, made, 7)


def test_an_address_that_breaks_a_promise_is_an_error(norms: Gpu) -> None:
    x, y = inputs(3)
    made = [address for address, _ in norms.results()]
    shifted = [norms.device.upload(x, shift=4), norms.device.upload(y)]
    with pytest.raises(SmeltError, match="no multiple of 16") as caught:
        norms.executable.run(shifted, norms.state, made, 7)
    assert caught.value.code == "S0405"
    same(norms, x, y)


@pytest.mark.parametrize("call", ["start", "load_module", "function", "graph", "add_kernel", "instantiate", "launch"])
def test_whatever_fails_leaves_nothing_and_the_next_call_works(call: str) -> None:
    gpu = Gpu(lambda x, y: (torch.softmax(x, -1) + y.t()).relu(), *inputs(0))
    gpu.executable.close()
    assert gpu.driver.nothing_left
    gpu.driver.fail = call

    def attempt() -> list[Tensor]:
        gpu.executable = CudaExecutable(gpu.plan, gpu.driver, gpu.device.allocate)
        return gpu(*inputs(0))

    with pytest.raises(SmeltError, match=f"{call} failed"):
        attempt()
    gpu.executable.close()
    assert gpu.driver.nothing_left
    attempt()
    same(gpu, *inputs(1))


def test_a_change_that_fails_halfway_is_made_anew() -> None:
    gpu = Gpu(lambda x, y: (torch.softmax(x, -1) + y.t(), x.sum(0)), *inputs(0))
    same(gpu, *inputs(0))
    gpu.driver.fail, gpu.driver.fail_at = "set_kernel", 1
    with pytest.raises(SmeltError, match="set_kernel"):
        gpu(*inputs(1))
    same(gpu, *inputs(2))


def test_an_index_out_of_range_is_told_and_forgotten() -> None:
    table, good = torch.randn(50, 48), torch.randint(0, 50, (24,))
    gpu = Gpu(lambda t, i: torch.nn.functional.embedding(i, t) * 2.0, table, good)
    assert gpu.driver.capability == 90
    for place, is_bad in ((good, False), (good + 30, True), (good, False)):
        (out,) = gpu(table, place)
        assert gpu.executable.failed(7) is is_bad
        if not is_bad:
            assert torch.equal(out, table[place] * 2.0)
    assert gpu.driver.calls.count("wait") == 3 and gpu.driver.words


def test_another_gpu_is_refused() -> None:
    gpu = Gpu(lambda x, y: x + y.t(), *inputs(0))
    gpu.driver.capability = 80
    with pytest.raises(SmeltError, match="compiled for sm_90") as caught:
        CudaExecutable(gpu.plan, gpu.driver, gpu.device.allocate)
    assert "sm_80" in str(caught.value)


def test_memory_that_cannot_be_had_leaves_nothing() -> None:
    gpu = Gpu(lambda x, y: x + y.t(), *inputs(0))
    gpu.executable.close()

    def refuse(nbytes: int) -> tuple[int, Any]:
        raise MemoryError

    with pytest.raises(MemoryError):
        CudaExecutable(gpu.plan, gpu.driver, refuse)
    assert gpu.driver.nothing_left


def test_a_node_without_a_kernel_is_refused_and_named() -> None:
    graph = smelt.trace(lambda x, y: torch.relu(torch.sort(x)[0]) + y.t(), inputs(0)).graph_for(*inputs(0))
    program = gpu_program(graph)
    assert [node.op for node, _ in program.refused] and program.kernels
    with pytest.raises(SmeltError, match="cannot run on a GPU") as caught:
        program.compiled(90)
    assert caught.value.code == "S0303" and "test_driver.py" in str(caught.value)


class Block(nn.Module):
    """Attention and a gated product with what surrounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.gate = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        h = x + self.out(h)
        return nn.functional.silu(self.gate(h)) * self.up(h)


def test_products_and_attention_are_one_launch() -> None:
    x = torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(0))
    gpu = Gpu(Block().eval().requires_grad_(False), x)
    assert [one.kernel.form for one in gpu.program.kernels].count("dot") == 3
    same(gpu, x)
    before = len(gpu.driver.calls)
    same(gpu, x + 1.0)
    assert set(gpu.driver.calls[before:-1]) == {"set_kernel"} and gpu.driver.calls[-1] == "launch"


# --- order


def test_a_condition_waits_for_what_its_arms_touch() -> None:
    memories = (CudaMemory("argument", 0, 64), *(CudaMemory("arena", 64 * k, 64) for k in range(4)))

    def launch(*buffers: int) -> CudaLaunch:
        return CudaLaunch("k", buffers, (), 1, (len(buffers) - 1,))

    # 0 makes what the body reads, 1 the byte, 2 what nobody needs there; 3 and 4 are the body, 4 the byte anew; 5 reads
    # what the body made, and 6 the argument alone.
    launches = (launch(0, 1), launch(0, 2), launch(0, 4), launch(1, 3), launch(3, 2), launch(3, 4), launch(0, 4))
    loop = CudaCondition("while", 2, ((3, 4),))
    made = ordered(CudaPlan((), memories, launches, 256, conditions=(loop,), steps=(0, 1, 2, ~0, 5)))
    assert made.conditions[0].after == (0, 1) and made.conditions[0].last == (4,)
    assert [launch.after for launch in made.launches] == [(), (), (), (), (3,), (2, ~0), ()]
    assert made.structure != ordered(CudaPlan((), memories, launches, 256)).structure


def test_launches_wait_for_what_they_touch() -> None:
    memories = [
        CudaMemory("argument", 0, 64),
        CudaMemory("arena", 0, 128),
        CudaMemory("arena", 64, 64),
        CudaMemory("arena", 128, 64),
        CudaMemory("result", 0, 64),
    ]

    def launch(*buffers: int) -> CudaLaunch:
        return CudaLaunch("k", buffers, (), 1, (len(buffers) - 1,))

    # 0 writes 1; 1 reads it; 2 writes what overlaps it; 3 shares only an argument; 4 reads what 2 wrote.
    launches = [launch(0, 1), launch(1, 3), launch(0, 2), launch(0, 4), launch(2, 4)]
    assert predecessors(memories, launches) == ((), (0,), (1,), (), (2, 3))


# --- the driver's library


class Library:
    """`libcuda` as functions that note how they are called, and fail as they are told."""

    def __init__(self, version: int = 13000, fails: str = "") -> None:
        self.version, self.fails = version, fails
        self.called: list[str] = []
        self.node: Any = None
        self.bodies = (ctypes.c_void_p * 1)(77)
        self.refuses_update = False

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.called.append(name)
            if name == "cuGetErrorString":
                args[1]._obj.value = b"out of memory"
                return 0
            if name == self.fails:
                return 2
            if name == "cuDriverGetVersion":
                args[0]._obj.value = self.version
            elif name == "cuDeviceGetAttribute":
                args[0]._obj.value = 9 if args[1].value == 75 else 0
            elif name.startswith(
                ("cuModuleLoad", "cuModuleGet", "cuGraphCreate", "cuGraphAdd", "cuGraphInst", "cuEventC", "cuMemHostA")
            ):
                args[0]._obj.value = 4096 + len(self.called)
            if name == "cuGraphAddKernelNode_v2":
                self.node = args[4]._obj
            if name == "cuGraphAddNode_v2":
                self.node = args[5]._obj
                self.node.bodies = self.bodies
            if name == "cuGraphConditionalHandleCreate":
                args[0]._obj.value = 2**63 + 5
            return 910 if name == "cuGraphExecUpdate_v2" and self.refuses_update else 0

        return call


def test_the_library_is_called_as_its_header_says() -> None:
    library = Library()
    driver = CudaDriver(library)
    assert driver.start(0) == 90
    module = driver.load_module(b"\x7fELF")
    function = driver.function(module, "name")
    driver.allow_shared(function, 100_000)
    graph = driver.graph()
    node = driver.add_kernel(graph, (), NodeParameters(function, 5, 128, 100_000, 4242))
    made = library.node
    assert (made.function, made.arguments, made.shared) == (function, 4242, 100_000)
    assert (made.grid_x, made.grid_y, made.grid_z, made.block_x, made.block_y, made.block_z) == (5, 1, 1, 128, 1, 1)
    # Pointer, seven numbers of 32 bits, a gap, four pointers.
    assert ctypes.sizeof(made) == 8 + 7 * 4 + 4 + 4 * 8
    executable = driver.instantiate(graph)
    driver.set_kernel(executable, node, NodeParameters(function, 5, 128, 0, 4242))
    driver.launch(executable, 0)
    driver.order(0, 16)
    assert library.called[-3:] == ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"]
    driver.order(16, 0)
    assert library.called[-2:] == ["cuEventRecord", "cuStreamWaitEvent"]
    word = driver.host_word()
    driver.wait(0)
    driver.free_host_word(word)
    assert library.called[-3:] == ["cuMemHostAlloc", "cuStreamSynchronize", "cuMemFreeHost"]
    driver.destroy_executable(executable)
    driver.destroy_graph(graph)
    driver.unload_module(module)
    assert library.called[:3] == ["cuInit", "cuDriverGetVersion", "cuDeviceGet"]


def test_conditional_nodes_are_made_as_the_header_says() -> None:
    library = Library()
    driver = CudaDriver(library)
    driver.start(0)
    graph = driver.graph()
    value = driver.condition(graph)
    assert value == 2**63 + 5 and library.called[-2:] == ["cuCtxGetCurrent", "cuGraphConditionalHandleCreate"]
    for is_loop in (False, True):
        node, body = driver.add_conditional(graph, [4], value, is_loop)
        made = library.node
        assert (node, body) == (4096 + len(library.called), 77)
        assert (made.type, made.kind, made.size, made.condition) == (13, int(is_loop), 1, value)
        # The type and three numbers, then a union of 232 bytes, and 8 more.
        assert ctypes.sizeof(made) == 256 and type(made).condition.offset == 16 and type(made).bodies.offset == 32
    driver.set_node(node, NodeParameters(7, 5, 128, 0, 4242))
    assert library.called[-1] == "cuGraphKernelNodeSetParams_v2"
    assert driver.update(1, graph) is True
    library.refuses_update = True
    assert driver.update(1, graph) is False and library.called[-1] == "cuGraphExecUpdate_v2"
    library.bodies = (ctypes.c_void_p * 1)()
    with pytest.raises(SmeltError, match="made no graph for a conditional node"):
        driver.add_conditional(graph, [], value, False)


@pytest.mark.parametrize(("version", "fails", "why"), [
    (12030, "", "the driver is for CUDA 12.3, and conditional nodes need 12.4"),
    (12040, "cuModuleLoadData", "the driver refuses them: cuModuleLoadData"),
    (12080, "cuGraphConditionalHandleCreate", "the driver refuses them: cuGraphConditionalHandleCreate"),
    (13000, "cuGraphInstantiateWithFlags", "the driver refuses them: cuGraphInstantiateWithFlags"),
    (12040, "", ""),
])  # fmt: skip
def test_whether_there_are_conditional_nodes_is_asked_of_the_driver(version: int, fails: str, why: str) -> None:
    library = Library(version, fails)
    driver = CudaDriver(library)
    found = why_none(driver)
    assert found.startswith(why) and bool(found) == bool(why)
    made = ("cuModuleLoadData", "cuGraphCreate", "cuGraphInstantiate")
    gone = ("cuModuleUnload", "cuGraphDestroy", "cuGraphExecDestroy")
    called = [name for name in library.called if name != fails]
    assert sum(name.startswith(made) for name in called) == sum(name in gone for name in called)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_kernel_that_sets_conditions_assembles(arch: int, tmp_path: Path) -> None:
    """For each architecture, with one name that is left to the driver."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    assembler = tools / ("ptxas-blackwell" if arch >= 100 else "ptxas")
    text, code = tmp_path / "set.ptx", tmp_path / "set.cubin"
    text.write_text(PTX)
    subprocess.run([assembler, "-c", f"-arch=sm_{arch}", text, "-o", code], check=True)
    assert PTX.count(".extern") == 1
    shown = subprocess.run([tools / "nvdisasm", "-c", code], check=True, capture_output=True, text=True).stdout
    assert "cudaGraphSetConditional" in shown and f".text.{NAME}" in shown


def test_no_driver_an_old_one_and_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", none)
    with pytest.raises(SmeltError, match="no driver of a GPU") as caught:
        CudaDriver()
    assert caught.value.code == "S0405"
    with pytest.raises(SmeltError, match="too old") as caught:
        CudaDriver(Library(version=11040))
    assert "CUDA 11.4" in str(caught.value)
    driver = CudaDriver(Library(fails="cuGraphInstantiateWithFlags"))
    with pytest.raises(SmeltError, match="cuGraphInstantiateWithFlags") as caught:
        driver.instantiate(1)
    assert "out of memory" in str(caught.value) and "free memory" in str(caught.value)


@pytest.mark.nightly
def test_the_prepared_script_runs_dry() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        ["bash", "bench/h200.sh", "--dry-run"],
        cwd=root, env=os.environ | {"PYTHON": sys.executable, "TIMEOUT_S": "1800"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout + done.stderr
    for section in (
        "loads", "bits", "draws", "speed", "products", "attention", "models", "choices", "calls", "steps", "launches",
        "compiling",
    ):  # fmt: skip
        assert f"\n| {section} | " in done.stdout
    assert "fallbacks: none" in done.stdout  # programs are compiled
