"""What Smelt's kernels for a GPU do on one, beside torch: `bench/h200.sh` says how to run it.

    1  loads      each kernel's machine code loads and gives eager's numbers; the rest is left out if the first does not
    2  bits       elements that differ from eager's in any bit, by operator and dtype, and errors against f64
    3  speed      microseconds and the share of a copy's bandwidth, beside eager and torch.compile
    4  launches   microseconds of a call of 100 tiny kernels as one CUDA graph, and of each in eager
    5  compiling  seconds of 20 kernels by 1, 4 and all threads

A section that is over its seconds leaves its other cases out, and says so. Times are medians of 20, by events.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt.codegen.lower.gpu import gpu_program
from smelt.codegen.triton.compile import stages
from smelt.ops.convert import dtype_to_torch
from smelt.runtime.cuda.driver import CudaDriver
from smelt.runtime.cuda.executable import CudaExecutable
from tests.triton.fake_driver import Device, FakeDriver

Row = tuple[str, ...]
Function = Callable[..., Any]
SECONDS = {"loads": 60, "bits": 150, "speed": 210, "launches": 60, "compiling": 60}
UNARY = ("exp", "tanh", "erf", "log", "log1p", "expm1", "sin", "cos", "rsqrt", "sqrt", "sigmoid", "reciprocal", "floor")
BINARY = ("add", "mul", "div", "pow", "fmod", "remainder", "atan2", "maximum")


class Gpu:
    """The device, its memory through torch's allocator, its time by events."""

    scale, is_dry = 1, False

    def __init__(self) -> None:
        self._driver = CudaDriver()
        torch.cuda.init()
        major, minor = torch.cuda.get_device_capability()
        self.arch = major * 10 + minor
        self.name = f"{torch.cuda.get_device_name()}, sm_{self.arch}, torch {torch.__version__}"

    def driver(self, plan: Any, program: Any) -> Any:
        return self._driver

    def allocate(self, nbytes: int) -> tuple[int, Tensor]:
        memory = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return memory.data_ptr(), memory

    def upload(self, tensor: Tensor) -> tuple[int, Tensor]:
        there = tensor.cuda()
        return there.data_ptr(), there

    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    def us(self, function: Callable[[], Any], repeats: int = 20) -> float:
        """The median time of a call; the L2 cache is not flushed, so sizes have to be larger than it."""
        for _ in range(3):
            function()
        times = []
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
        return statistics.median(times)


class DryRun:
    """No device: launches are interpreted, on small sizes; times mean nothing."""

    scale, is_dry, arch, name = 4096, True, 90, "dry run"

    def __init__(self) -> None:
        self._device = Device()

    def driver(self, plan: Any, program: Any) -> Any:
        return FakeDriver(self._device, plan.kernels, [one.kernel.source for one in program.kernels], self.arch)

    def allocate(self, nbytes: int) -> tuple[int, Tensor]:
        return self._device.allocate(nbytes)

    def upload(self, tensor: Tensor) -> tuple[int, Tensor]:
        return self._device.upload(tensor), tensor

    def stream(self) -> int:
        return 0

    def us(self, function: Callable[[], Any], repeats: int = 20) -> float:
        begin = time.perf_counter()
        function()
        return (time.perf_counter() - begin) * 1e6


class Ready:
    """A function's kernels, ready to be launched over arguments that are on the device."""

    def __init__(self, machine: Any, function: Function, args: Sequence[Tensor]) -> None:
        self.machine = machine
        traced = smelt.trace(function, tuple(args), check=False)
        self.program = gpu_program(traced.graph_for(*args))
        plan = self.program.compiled(machine.arch)
        self.executable = CudaExecutable(plan, machine.driver(plan, self.program), machine.allocate)
        self.args = [machine.upload(t) for t in args]
        sizes = {m.number: m.nbytes for m in plan.memories if m.kind == "result"}
        self._made = [machine.allocate(sizes[number]) for number in sorted(sizes)]
        self._numbers = [plan.memories[place.memory].number for place, _ in self.program.results]
        self._addresses = [address for address, _ in self.args], [address for address, _ in self._made]
        for _, memory in self._made:
            memory.fill_(0x7F)

    def __call__(self) -> None:
        arguments, results = self._addresses
        self.executable.run(arguments, (), results, self.machine.stream())

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
        inductor = "-"
        if not machine.is_dry:
            compiled = torch.compile(function)
            inductor = f"{machine.us(lambda c=compiled, r=ready: c(*r.tensors)):.1f}"
        nbytes = sum(t.nbytes for t in ready.tensors) + sum(t.nbytes for t in ready.results())
        share = nbytes / ours / (2 * 4 * n / copy)
        yield name, f"{ours:.1f} us", f"{share:.0%} of a copy", f"eager {eager:.1f}, torch.compile {inductor}"


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
    machine = DryRun() if "--dry-run" in sys.argv[1:] else Gpu()
    print(machine.name, flush=True)
    table: list[Row] = []
    status = 0
    with torch.no_grad():
        for section in (loads, bits, speed, launches, compiling):
            name = section.__name__
            end = time.perf_counter() + SECONDS[name]
            try:
                for row in section(machine):
                    table.append((name, *row))
                    print(*table[-1], sep=" | ", flush=True)
                    if machine.is_dry or time.perf_counter() > end:
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
