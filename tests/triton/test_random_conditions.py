"""Random graphs with branches and loops: rewritten for a GPU they compute what they did, and so do their launches."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch
from torch import Tensor

from smelt.analysis import used_values
from smelt.autodiff.halves import extract
from smelt.codegen.fusion.rules.promote import NUMBER_TYPES
from smelt.codegen.lower.gpu import GpuProgram, gpu_program
from smelt.codegen.lower.gpu import program as program_of_gpu
from smelt.codegen.lower.gpu.deciding import Decided, with_decided
from smelt.ir import Graph, Node, parse, verify
from smelt.ops.check import check
from smelt.ops.evaluate import evaluate, no_state
from smelt.runtime.cuda.executable import NUMBER_NBYTES, CudaExecutable
from tests.control.generate import TENSORS, Generator, inputs
from tests.kernels.machine import TORCH_DTYPE
from tests.triton.fake_driver import Device, FakeDriver, uncompiled

COUNT = int(os.environ.get("SMELT_RANDOM_REGIONS", "60"))


class Tensors(Generator):
    """Graphs of operators that have kernels, and of numbers that a GPU computes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, lists=False)

    def simple(self) -> None:
        r = self.random
        t = r.choice(TENSORS[:4])
        match r.randrange(14):
            case 0 | 1:
                op = r.choice(("add.Tensor", "sub.Tensor", "mul.Tensor"))
                self.small(t, f"aten.{op}({self.pick(t)}, {self.pick(t)})")
            case 2:
                self.small("f32[4, 3]", f"aten.add.Tensor({self.pick('f32[4, 3]')}, {self.pick('f32[3]')})")
            case 3:
                self.small("f32[]", f"aten.sum.default({self.pick(r.choice(TENSORS[:3]))})")
            case 4:
                turned = self.emit("f32[3, 4]{1, 3}", f"aten.transpose.int({self.pick('f32[4, 3]')}, 0, 1)")
                format_ = "memory_format=memory_format(contiguous_format)"
                self.emit("f32[3, 4]", f"aten.clone.default({turned}, {format_})")
            case 5:
                low = self.emit("int", f"py.max({self.pick('int')}, -4)")
                at = self.emit("int", f"py.min({low}, 3)")
                row = self.emit("f32[3]", f"aten.select.int({self.pick('f32[4, 3]')}, 0, {at})")
                self.emit("f32[3]", f"aten.neg.default({row})")
            case 6:
                self.emit("f32[3]", f"aten.select.int({self.pick('f32[4, 3]')}, 0, {r.randint(-4, 3)})")
            case 7:
                op = r.choice(("lt", "ge", "eq"))
                self.emit("bool[]", f"aten.{op}.Tensor({self.pick('f32[]')}, {self.pick('f32[]')})")
            case 8:
                self.small(t, f"aten.{r.choice(('add', 'sub', 'mul'))}.Tensor({self.pick(t)}, {self.pick('int')})")
            case 9:
                self.emit("int", f"py.{r.choice(('add', 'sub', 'min', 'max'))}({self.pick('int')}, {r.randint(-4, 5)})")
            case 10:
                kind = r.choice(("int", "float"))
                self.emit("bool", f"py.{r.choice(('lt', 'le', 'eq', 'ne'))}({self.pick(kind)}, {self.number(kind)})")
            case 12:
                self.emit("int", f"py.{r.choice(('floordiv', 'mod'))}({self.pick('int')}, {r.choice((2, 3, 5))})")
            case 11:
                self.emit("bool", f"py.not_({self.pick(r.choice(('int', 'float', 'bool')))})")
            case _:
                self.emit("i64[]", f"aten.add.Tensor({self.pick('i64[]')}, {r.randint(-2, 2)})")


def _plan(whole: Graph, node: Node) -> tuple[Graph, GpuProgram]:
    """A branch or a loop as a graph of its own, with its kernels."""
    taken = sorted(dict.fromkeys(used_values(node)), key=lambda v: v.type in NUMBER_TYPES)
    alone = extract(whole, whole.name, taken, node.results, ())
    return alone, gpu_program(alone)


def _why_not(whole: Graph, node: Node) -> str:
    refused = _plan(whole, node)[1].refused
    return refused[0][1] if refused else ""


def _decided(text: str) -> Decided:
    graph = parse(text)
    verify(graph)
    found = with_decided(graph, "cpu", _why_not)
    verify(found.graph, check)
    return found


def launched(graph: Graph, program: GpuProgram, args: list[Tensor | int | float | bool]) -> list[Tensor]:
    """The results of a launch on a driver that is not there."""
    plan = program.compiled(90)
    device = Device()
    driver = FakeDriver(device, plan.kernels, [one.kernel.source for one in program.kernels])
    tensors = [device.upload(arg) if isinstance(arg, Tensor) else 0 for arg in args]
    numbers = [torch.tensor(arg, dtype=torch.float64 if type(arg) is float else None) for arg in args
               if not isinstance(arg, Tensor)]  # fmt: skip

    def send(memory: Tensor, data: bytes) -> None:
        memory[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    executable = CudaExecutable(plan, driver, device.allocate, send=send)
    packed = b"".join(bytes(n.reshape(1).view(torch.uint8).tolist()).ljust(NUMBER_NBYTES, b"\0") for n in numbers)
    sizes = {m.number: m.nbytes for m in plan.memories if m.kind == "result"}
    made = [device.allocate(sizes.get(number, 1)) for number in range(max(sizes, default=-1) + 1)]
    executable.run(tensors, (), [address for address, _ in made], 7, numbers=packed)
    device.check_fences()
    assert not executable.has_refused() and driver.calls.count("launch") == 1
    found = []
    for place, dtype in program.results:
        memory = plan.memories[place.memory]
        assert memory.kind == "result"
        elements = made[memory.number][1].view(TORCH_DTYPE[dtype])
        at = place.geometry
        found.append(elements.as_strided(at.sizes, at.strides, elements.storage_offset() + at.offset))
    return found


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", range(0, COUNT, 5))
def test_random_graphs(seed: int) -> None:
    for number in range(seed, min(seed + 5, COUNT)):
        text = Tensors(number).text()
        try:
            _compare(text, number)
        except Exception as error:
            raise AssertionError(f"seed {number}:\n{text}") from error


def _compare(text: str, seed: int) -> None:
    whole, found = parse(text), _decided(text)
    for given in (inputs(seed), inputs(seed + 1)):
        want, got = (evaluate(graph, [t.clone() for t in given], no_state) for graph in (whole, found.graph))
        for a, b in zip(want, got, strict=True):
            assert type(a) is type(b) and (torch.equal(a, b) if isinstance(a, Tensor) else a == b), (a, b)
    for node in found.nodes:
        alone, program = _plan(found.graph, node)
        # What it takes, as the whole graph computes it.
        taken = extract(found.graph, "taken", found.graph.inputs, _used(found.graph, alone), ())
        for given in (inputs(seed), inputs(seed + 1)):
            args = evaluate(taken, [t.clone() for t in given], no_state)
            want = evaluate(alone, list(args), no_state)
            with mock.patch.object(program_of_gpu, "compile_cuda", uncompiled):
                got = launched(alone, program, [a.clone() if isinstance(a, Tensor) else a for a in args])
            for a, b in zip(want, got, strict=True):
                assert torch.equal(a, b.reshape(a.shape)), (node, a, b)


def _used(whole: Graph, alone: Graph) -> list[object]:
    names = {value.name: value for value in whole.values()}
    return [names[value.name] for value in alone.inputs]


def test_many_of_the_random_graphs_are_decided() -> None:
    """That the test above is about something."""
    found = [_decided(Tensors(seed).text()) for seed in range(20)]
    assert sum(len(one.nodes) for one in found) > 20
