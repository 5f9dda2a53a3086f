"""What Smelt's kernels for a GPU do on one, beside torch: `bench/h200.sh` says how to run it.

    1  loads      each kernel's machine code loads and gives eager's numbers; the rest is left out if the first does not
    2  bits       elements that differ from eager's in any bit, by operator and dtype, and errors against f64
    3  draws      random numbers that differ from torch's generator's there, at sizes around its number of threads
    4  speed      microseconds and the share of a copy's bandwidth, beside eager and torch.compile
    5  products   products by tile, beside eager and torch.compile: which tiles pay
    6  attention  forward and gradients beside torch's
    7  models     forward of whole models as one CUDA graph, first call and later ones, beside torch.compile's two modes
    8  calls      compiled programs as their callers see them, at sizes that change, beside eager and torch.compile
    9  choices    the device's ceilings, and what a compilation chooses within its seconds
    10 decisions  branches and loops on data as nodes of the graph: whether they are, what an iteration costs
    11 steps      whole training steps, some under autocast with scaled gradients, beside eager and torch.compile
    12 launches   microseconds of a call of 100 tiny kernels as one CUDA graph, and of each in eager
    13 compiling  seconds of 20 kernels by 1, 4 and all threads

A section that is over its seconds leaves its other cases out, and says so. Times are medians of 20, by events. A dry
run goes through all the same lines on small sizes, on a GPU that is not there; its times mean nothing.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt._torch import gpu
from smelt.bench.models import MODELS
from smelt.bench.on_gpu import kernels_and_waits
from smelt.codegen.lower.gpu import GpuProgram, Tf32, gpu_program
from smelt.codegen.triton.compile import stages
from smelt.codegen.triton.contraction import TILES, Tile
from smelt.codegen.triton.emit import emit_triton
from smelt.codegen.triton.random import Processors
from smelt.diag import SmeltError
from smelt.inspect.kernels import compiled_units
from smelt.inspect.roofline import measure_gpu_ceilings
from smelt.ops.convert import dtype_to_torch
from smelt.runtime.cuda.executable import CudaExecutable
from smelt.runtime.cuda.machine import machine as machine_of
from tests.triton.fake_cuda import fake_gpu

Row = tuple[str, ...]
Function = Callable[..., Any]
SECONDS = {
    "loads": 40, "bits": 70, "draws": 15, "speed": 80, "products": 80, "attention": 40, "models": 100, "calls": 30,
    "choices": 30, "decisions": 20, "steps": 50, "launches": 15, "compiling": 20,
}  # fmt: skip
UNARY = ("exp", "tanh", "erf", "log", "log1p", "expm1", "sin", "cos", "rsqrt", "sqrt", "sigmoid", "reciprocal", "floor")
BINARY = ("add", "mul", "div", "pow", "fmod", "remainder", "atan2", "maximum")


class Gpu:
    """The device, its memory through torch's allocator, its time by events.

    is_dry: there is none. scale: by what sizes are divided.
    """

    def __init__(self, is_dry: bool) -> None:
        self.is_dry, self.scale = is_dry, 4096 if is_dry else 1
        torch.cuda.init()
        found = machine_of(0)
        self.driver, self.arch, self.allocate = found.driver, found.arch, found.allocate
        self.processors = Processors(*found.processors)
        self.name = f"{torch.cuda.get_device_name()}, sm_{self.arch}, torch {torch.__version__}"

    def upload(self, tensor: Tensor) -> tuple[int, Tensor]:
        there = tensor.cuda()
        return there.data_ptr(), there

    def stream(self) -> int:
        return gpu.stream_of(0)

    def us(self, function: Callable[[], Any], repeats: int = 20) -> float:
        """The median time of a call; the L2 cache is not flushed, so sizes have to be larger than it."""
        for _ in range(1 if self.is_dry else 3):
            function()
        times = []
        for _ in range(1 if self.is_dry else repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
        return statistics.median(times)


class _Clock:
    """An event of a device that is not there."""

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Clock) -> float:
        return (end.at - self.at) * 1000


class _Generator:
    """The generator of a device that is not there."""

    def initial_seed(self) -> int:
        return 0

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        pass


@contextmanager
def dry_run() -> Iterator[None]:
    """Let there be a GPU whose launches are interpreted, and a `torch.compile` that compiles nothing."""
    with ExitStack() as stack:
        stack.enter_context(fake_gpu())
        for name, value in {
            "Event": _Clock, "default_generators": (_Generator(),), "get_device_name": lambda: "dry run",
            "synchronize": lambda: None,
        }.items():  # fmt: skip
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "compile", lambda function, mode: function))
        yield


class Ready:
    """A function's kernels, ready to be launched over arguments that are on the device."""

    def __init__(
        self,
        machine: Any,
        function: Function,
        args: Sequence[Tensor],
        tile: Tile | None = None,
        tf32: Tf32 | None = None,
    ) -> None:
        self.machine, self.generator = machine, (0, 0)
        traced = smelt.trace(function, tuple(args), check=False)
        graph = traced.graph_for(*args)
        self.program = gpu_program(graph, tf32=tf32 or Tf32(), processors=machine.processors)
        if tile is not None:
            self.program = tiled(self.program, tile)
        plan = self.program.compiled(machine.arch)
        constants, lookup = dict(graph.constants), traced.unit.lookup
        found = [(node.op, str(node.args[0])) for node in self.program.state]
        self._state = [
            machine.upload(constants[path] if op == "const" else lookup(op, path).detach()) for op, path in found
        ]
        self.executable = CudaExecutable(plan, machine.driver, machine.allocate)
        self.args = [machine.upload(t) for t in args]
        sizes = {m.number: m.nbytes for m in plan.memories if m.kind == "result"}
        self._made = [machine.allocate(sizes[number]) for number in sorted(sizes)]
        self._numbers = [plan.memories[place.memory].number for place, _ in self.program.results]
        self._addresses = [[address for address, _ in group] for group in (self.args, self._state, self._made)]
        for _, memory in self._made:
            memory.fill_(0x7F)

    def __call__(self) -> None:
        self.executable.run(*self._addresses, self.machine.stream(), self.generator)

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments on the device."""
        return [tensor for _, tensor in self.args]

    def results(self) -> list[Tensor]:
        """What the last call made."""
        found = []
        for number, (place, dtype) in zip(self._numbers, self.program.results, strict=True):
            elements = self._made[number][1].view(dtype_to_torch(dtype))
            at = place.geometry
            found.append(elements.as_strided(at.sizes, at.strides, elements.storage_offset() + at.offset))
        return found


def tiled(program: GpuProgram, tile: Tile) -> GpuProgram:
    """A program whose products have a tile."""
    kernels = [
        replace(one, kernel=emit_triton(one.nest, tile=tile)) if one.nest and one.kernel.form == "dot" else one
        for one in program.kernels
    ]
    return replace(program, kernels=tuple(kernels))


def inductor(machine: Any, function: Function, tensors: Sequence[Tensor], mode: str = "default") -> str:
    """Microseconds of `torch.compile`, compiled before they are taken; with CUDA graphs where the mode has them."""
    compiled = torch.compile(function, mode=mode)
    return f"{machine.us(lambda: compiled(*tensors)):.1f}"


def drawn(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of both signs and many magnitudes."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(sizes, generator=generator) * torch.exp2(torch.randn(sizes, generator=generator) * 3)
    return numbers.to(dtype)


def compared(ready: Ready, function: Function) -> str:
    """How the last results differ from eager's on the same device."""
    notes = []
    want = function(*ready.tensors)
    exact = function(*(t.double() if t.is_floating_point() else t for t in ready.tensors))
    rows = zip(ready.results(), *(x if isinstance(x, tuple) else (x,) for x in (want, exact)), strict=True)
    for ours, eagers, right in rows:
        if not ours.is_floating_point():
            notes.append(f"{int((ours != eagers).sum())} of {ours.numel()} differ")
            continue
        differ = (ours != eagers) & ~(ours.isnan() & eagers.isnan())
        size = right.abs().clamp(min=1e-30)
        errors = [((x.double() - right).abs() / size).nan_to_num(0.0, 0.0, 0.0).max().item() for x in (ours, eagers)]
        notes.append(f"{int(differ.sum())} of {ours.numel()} differ; error {errors[0]:.1e}, eager's {errors[1]:.1e}")
    return "; ".join(notes)


# --- sections


def loads(machine: Any) -> Iterator[Row]:
    for name, function, args in nests(1 if machine.is_dry else 64):
        ready = Ready(machine, function, args)
        ready()
        failed = ready.executable.failed(machine.stream())
        forms = ", ".join(f"{one.kernel.form} {one.kernel.source.warps}w" for one in ready.program.kernels)
        yield name, forms, "refused its data" if failed else compared(ready, function)


def nests(factor: int) -> Iterator[tuple[str, Function, tuple[Tensor, ...]]]:
    """One program for each form and kind of memory access."""
    rows, columns = 4 * factor, 96 * min(factor, 8)
    x, row = drawn(rows, columns), drawn(columns)
    index = torch.randint(0, rows, (3 * factor,), generator=torch.Generator().manual_seed(1))
    yield "softmax", lambda x: torch.softmax(x, -1), (x,)
    yield "pointwise", lambda x, w: F.gelu(x * w + x), (x, row)
    yield "layer norm", lambda x, w: F.layer_norm(x, x.shape[-1:], w), (x, row)
    yield "transpose", lambda x: (x.t() + 1.0).contiguous(), (x,)
    yield "gather", lambda t, i: F.embedding(i, t) * 2.0, (x, index)
    yield "column sums", lambda x: (x.sum(0), x.amax(0)), (x,)
    yield "argmax", lambda x: x.argmax(-1), (x,)
    yield "cumsum", lambda x: torch.cumsum(x, -1), (x,)
    yield "bf16", lambda x, w: torch.softmax(x * w + x, -1), (x.bfloat16(), row.bfloat16())


def bits(machine: Any) -> Iterator[Row]:
    n = 2 ** (8 if machine.is_dry else 20)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name in (*UNARY, *BINARY):
            args = (drawn(n, dtype=dtype),) if name in UNARY else (drawn(n, dtype=dtype), drawn(n, dtype=dtype).flip(0))
            function = getattr(torch, name)
            ready = Ready(machine, function, args)
            ready()
            yield name, str(dtype).removeprefix("torch."), compared(ready, function)


def speed(machine: Any) -> Iterator[Row]:
    n = (1 << 26) // machine.scale
    source = machine.upload(drawn(n))[1]
    target = torch.empty_like(source)
    copy = machine.us(lambda: target.copy_(source))
    yield "copy", f"{copy:.1f} us", f"{2 * 4 * n / copy / 1e6:.0f} GB/s", ""
    for name, function, args in _fast(n):
        ready = Ready(machine, function, args)
        ours = machine.us(ready)
        eager = machine.us(lambda f=function, r=ready: f(*r.tensors))
        theirs = inductor(machine, function, ready.tensors)
        nbytes = sum(t.nbytes for t in ready.tensors) + sum(t.nbytes for t in ready.results())
        share = nbytes / ours / (2 * 4 * n / copy)
        yield name, f"{ours:.1f} us", f"{share:.0%} of a copy", f"eager {eager:.1f}, torch.compile {theirs}"


def _fast(n: int) -> Iterator[tuple[str, Function, tuple[Tensor, ...]]]:
    yield "pointwise f32", lambda x, y: F.gelu(x * y + x), (drawn(n // 2), drawn(n // 2))
    half = drawn(n // 2, dtype=torch.bfloat16)
    yield "pointwise bf16", lambda x, y: F.gelu(x * y + x), (half, half.flip(0))
    for columns in (128, 1024, 8192, 32768):
        if columns <= n:
            x = drawn(n // columns, columns)
            yield f"softmax {columns}", lambda x: torch.softmax(x, -1), (x,)
            yield f"layer norm {columns}", lambda x, w: F.layer_norm(x, x.shape[-1:], w), (x, drawn(columns))
    side = 1 << ((n.bit_length() - 1) // 2)
    x = drawn(side, side)
    yield "transpose", lambda x: (x.t() + 1.0).contiguous(), (x,)
    yield "column sums", lambda x: x.sum(0), (x,)
    index = torch.randint(0, side, (side // 2,), generator=torch.Generator().manual_seed(1))
    yield "gather", lambda t, i: F.embedding(i, t) * 2.0, (x, index)


def draws(machine: Any) -> Iterator[Row]:
    threads = machine.processors.started(1 << 30)
    kinds: list[tuple[str, Function]] = [
        ("rand", torch.rand_like), ("randn", torch.randn_like), ("dropout", lambda x: F.dropout(x, 0.3, True)),
    ]  # fmt: skip
    for count in (100, threads, 4 * threads + 1) if not machine.is_dry else (100, 101):
        for name, function in kinds:
            x = torch.ones(count)
            ready = Ready(machine, function, (x,))
            ready.generator = (1234, 0)
            ready()
            torch.cuda.manual_seed(1234)
            want = function(ready.tensors[0])
            moved = torch.cuda.default_generators[0].get_offset()
            ours = ready.results()[0]
            differ = f"{int((ours != want).sum())} differ, by {float((ours - want).abs().max()):.1e} at most"
            yield name, str(count), differ, f"offset {ready.program.draws.moved}, torch's {moved}"


def products(machine: Any) -> Iterator[Row]:
    shrunk = 32 if machine.is_dry else 1
    for m, n, k in ((8192, 4096, 1024), (512, 3072, 768), (4096, 4096, 4096)):
        for dtype in (torch.bfloat16, torch.float32):
            sizes = [(m // shrunk, k // shrunk), (n // shrunk, k // shrunk), (n // shrunk,)]
            args = tuple(drawn(*s, dtype=dtype) for s in sizes)
            yield from _tiles(machine, lambda x, w, b: F.gelu(F.linear(x, w, b)), args, f"{m}x{n}x{k} {dtype}"[:-2])


def _tiles(machine: Any, function: Function, args: tuple[Tensor, ...], name: str) -> Iterator[Row]:
    times: dict[str, float] = {}
    tiles = TILES[:1] if machine.is_dry else TILES[:6]
    for tile in (None, *tiles) if args[0].dtype == torch.bfloat16 else (None,):
        try:
            ready = Ready(machine, function, args, tile)
            times[str(tile)] = machine.us(ready)
        except SmeltError as error:
            yield name, f"{tile}: {error}"
    rows, depth = args[0].shape
    best = min(times, key=times.__getitem__)
    eager = machine.us(lambda: function(*ready.tensors))
    rate = 2 * rows * depth * len(args[1]) / times[best] / 1e6
    theirs = inductor(machine, function, ready.tensors, "max-autotune-no-cudagraphs")
    chosen = f"chosen {times['None']:.1f} us, best {times[best]:.1f} us ({rate:.0f} TFLOP/s, {best})"
    yield name, chosen, f"eager {eager:.1f}, max-autotune {theirs}"


def attention(machine: Any) -> Iterator[Row]:
    b, s = (1, 32) if machine.is_dry else (8, 1024)
    for width, dtype in ((64, torch.bfloat16), (128, torch.bfloat16), (64, torch.float32)):
        args = tuple(drawn(b, 16 if s > 32 else 1, s, width, dtype=dtype) * 0.1 for _ in range(3))

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        ready = Ready(machine, forward, args)
        ours, eager = machine.us(ready), machine.us(lambda f=forward, r=ready: f(*r.tensors))
        far = float((ready.results()[0] - forward(*ready.tensors)).abs().max())
        yield f"{width} wide {dtype}", f"{ours:.1f} us", f"eager {eager:.1f}", f"{far:.1e} apart"


def models(machine: Any) -> Iterator[Row]:
    wished = ("mlp_4x128", "resnet50", "bert", "vit", "gpt2", "llama")
    builds = {m.name: m.build for name in wished for m in MODELS if m.name == name}
    if machine.is_dry:  # of the others none is interpreted in less than minutes
        builds = {"small": lambda: (nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), (drawn(2, 8),))}
    for dtype in (torch.bfloat16, torch.float32):
        for name, build in builds.items():
            try:
                yield _model(machine, name, build, dtype)
            except Exception as error:
                yield name, str(dtype), f"failed: {type(error).__name__}: {str(error)[:200]}"


def _model(machine: Any, name: str, build: Callable[[], Any], dtype: torch.dtype) -> Row:
    target, args = build()
    target = target.to(dtype)
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    begin = time.perf_counter()
    ready = Ready(machine, target, args)
    ready()
    first = time.perf_counter() - begin
    ours = machine.us(ready)
    target = target.cuda()
    want = target(*ready.tensors)
    want = next((x for x in (want if isinstance(want, tuple) else (want,)) if isinstance(x, Tensor)), None)
    far = "-" if want is None else f"{float((ready.results()[0] - want).abs().max()):.1e} apart"
    eager = machine.us(lambda: target(*ready.tensors))
    begin = time.perf_counter()
    theirs = inductor(machine, target, ready.tensors, "reduce-overhead")
    second = time.perf_counter() - begin
    times = f"{ours:.0f} us, eager {eager:.0f}, torch.compile with CUDA graphs {theirs}"
    return name, str(dtype), times, f"first call {first:.1f} s, theirs {second:.1f} s", far


def calls(machine: Any) -> Iterator[Row]:
    width = 8 if machine.is_dry else 1024
    weight = machine.upload(drawn(width, width) * 0.05)[1]

    def function(x: Tensor) -> Tensor:
        return torch.softmax(F.gelu(F.linear(x, weight)) + x, -1)

    program = smelt.compile(function, dynamic=True)
    for length in (4, 5, 6, 7) if machine.is_dry else (128, 130, 131, 256, 300, 301):
        x = machine.upload(drawn(length, width))[1]
        begin = time.perf_counter()
        far = float((program(x) - function(x)).abs().max())
        first = time.perf_counter() - begin
        ours, eager = machine.us(lambda x=x: program(x)), machine.us(lambda x=x: function(x))
        theirs = inductor(machine, function, (x,))
        times = f"{ours:.1f} us, eager {eager:.1f}, torch.compile {theirs}"
        yield f"{length} rows", times, f"first call {first * 1e3:.0f} ms", f"{far:.1e} apart"
    stats = program.stats()
    yield "all", f"{stats.builds} builds", f"fallbacks: {stats.fallbacks or 'none'}"


def choices(machine: Any) -> Iterator[Row]:
    """The device's ceilings, and what a compilation chooses within its seconds: tiles, or torch's operators."""
    found = measure_gpu_ceilings()
    yield "ceilings", f"{found.gbps:.0f} GB/s of copying", f"{found.gflops / 1000:.1f} TFLOP/s of bf16 products"
    width, rows = (16, 8) if machine.is_dry else (4096, 512)
    up, down = (machine.upload(drawn(width, width, dtype=torch.bfloat16) * 0.02)[1] for _ in range(2))

    def function(x: Tensor) -> Tensor:
        q = F.linear(F.gelu(F.linear(x, up)), down).view(1, -1, width // 8, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    x = machine.upload(drawn(rows, width, dtype=torch.bfloat16))[1]
    begin = time.perf_counter()
    program = smelt.compile(function)
    for _ in range(2):
        program(x)
    seconds = time.perf_counter() - begin
    made = [c for unit in compiled_units(program) if unit.lowered is not None for c in unit.lowered.report.choices]
    for choice in made:
        times = ", ".join(f"{c.name} {c.latency_us:.1f}" for c in choice.candidates if c.latency_us is not None)
        yield choice.shape, f"{choice.chosen}: {choice.reason}", times
    yield "all", f"{len(made)} choices", f"{seconds:.1f} s until the second call"


def decisions(machine: Any) -> Iterator[Row]:
    width = 8 if machine.is_dry else 256
    weight, x = (machine.upload(drawn(width, width) * 0.05)[1] for _ in range(2))

    def function(x: Tensor, most: Tensor) -> Tensor:
        count = torch.zeros_like(most)
        while count < most:
            x, count = torch.tanh(x @ weight) + x, count + 1
        return x if x.sum() > 0 else -x

    program = smelt.compile(function)
    for count in (1, 3) if machine.is_dry else (1, 10, 100):
        most = machine.upload(torch.tensor(float(count)))[1]
        for _ in range(2):
            far = float((program(x, most) - function(x, most)).abs().max())
        ours, eager = (machine.us(partial(call, x, most)) for call in (program, function))
        yield f"{count} iterations", f"{ours:.1f} us, eager {eager:.1f}", f"{far:.1e} apart"
    kernels, waits = kernels_and_waits(program)
    yield "all", f"{kernels} kernels", f"{len(waits)} lines read by the host", *waits[:3]


class Step:
    """A training step; under autocast with scaled gradients where there is a lower type."""

    def __init__(self, model: nn.Module, low: torch.dtype | None, options: dict[str, Any]) -> None:
        self.model, self.low = model, low
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=64.0, enabled=low is torch.float16)

    def __call__(self, x: Tensor) -> Tensor:
        region: AbstractContextManager[Any] = nullcontext() if self.low is None else torch.autocast("cuda", self.low)
        with region:
            loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()


def steps(machine: Any) -> Iterator[Row]:
    width, layers = (4, 1) if machine.is_dry else (1024, 8)
    for low, options in ((None, {}), (None, {"fused": True}), (torch.float16, {"fused": True}), (torch.float16, {})):
        with torch.enable_grad():
            blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
            ours, eager, theirs = (Step(copy.deepcopy(nn.Sequential(*blocks)).cuda(), low, options) for _ in range(3))
            x = machine.upload(drawn(8 if machine.is_dry else 4096, width))[1]
            program = smelt.compile(ours)
            begin = time.perf_counter()
            for _ in range(6):
                program(x)
            torch.cuda.synchronize()
            first = time.perf_counter() - begin
            for _ in range(6):
                eager(x)
            pairs = zip(ours.model.parameters(), eager.model.parameters(), strict=True)
            far = max(float((a - b).abs().max()) for a, b in pairs)
            times = f"{machine.us(partial(program, x)):.0f} us, eager {machine.us(partial(eager, x)):.0f}"
            found = f"{times}, torch.compile {inductor(machine, theirs, (x,))}"
            stats = program.stats()
            made = f"6 calls {first:.1f} s, {stats.builds} builds, fallbacks: {len(stats.fallbacks)}"
            yield f"AdamW {options} {low}", found, made, f"{far:.1e} apart"


def launches(machine: Any) -> Iterator[Row]:
    count = 4 if machine.is_dry else 100
    args = tuple(drawn(k + 5) for k in range(count))

    def function(*xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.relu(x) for x in xs)

    ready = Ready(machine, function, args)
    graph, eager = machine.us(ready), machine.us(lambda: function(*ready.tensors))
    begin = time.perf_counter()
    for _ in range(20):
        ready()
    entered = (time.perf_counter() - begin) / 20 * 1e6
    yield (
        f"{len(ready.program.kernels)} kernels",
        f"{graph:.1f} us",
        f"eager {eager:.1f} us",
        f"{entered:.1f} us by the CPU",
    )


def compiling(machine: Any) -> Iterator[Row]:
    sources = []
    for factor in (1, 8):
        for _, function, args in nests(factor):
            program = gpu_program(smelt.trace(function, args, check=False).graph_for(*args))
            sources += [one.kernel.source for one in program.kernels]
    sources = sources[: 2 if machine.is_dry else 20]
    made = stages()
    made.compile_one(sources[0], machine.arch)
    for threads in dict.fromkeys((1, 4, os.cpu_count() or 1)):
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda source: made.compile_one(source, machine.arch), sources))
        yield f"{len(sources)} kernels", f"{threads} threads", f"{time.perf_counter() - begin:.2f} s"


def main() -> int:
    """Run all sections; 1 if the first one failed."""
    is_dry = "--dry-run" in sys.argv[1:]
    with dry_run() if is_dry else nullcontext():
        return _run(Gpu(is_dry))


def _run(machine: Gpu) -> int:
    print(machine.name, flush=True)
    table: list[Row] = []
    status = 0
    with torch.no_grad():
        for section in (
            loads,
            bits,
            draws,
            speed,
            products,
            attention,
            models,
            choices,
            decisions,
            calls,
            steps,
            launches,
            compiling,
        ):
            name = section.__name__
            end = time.perf_counter() + SECONDS[name]
            try:
                for row in section(machine):
                    table.append((name, *row))
                    print(*table[-1], sep=" | ", flush=True)
                    if time.perf_counter() > end and not machine.is_dry:
                        table.append((name, "the other cases are left out"))
                        break
            except Exception as error:
                table.append((name, f"failed: {type(error).__name__}: {str(error)[:300]}"))
                print(*table[-1], sep=" | ", flush=True)
                if section is loads:
                    status = 1
                    break
    print("\n" + "\n".join(f"| {' | '.join(row)} |" for row in table))
    return status


if __name__ == "__main__":
    sys.exit(main())
