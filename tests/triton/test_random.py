"""Random numbers as torch's generator of a GPU draws them: kernels against Philox written a second time, in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt.codegen.lower.gpu import GpuProgram, gpu_program
from smelt.codegen.triton.compile import ARCHITECTURES, compile_cuda
from smelt.codegen.triton.random import H200, Processors
from smelt.diag import SmeltError
from smelt.runtime.cuda.executable import CudaExecutable
from tests.triton.fake_driver import Device, FakeDriver
from tests.triton.test_catalogue import interpreted

_SMALL = Processors(1, 256)
"""A device on which each thread draws many numbers."""
_SEED, _OFFSET = 0x1234_5678_9ABC_DEF0, 8


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Ten rounds. Source: Salmon et al. (2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return tuple(c)


def words(seed: int, offset: int, thread: int, turn: int) -> tuple[int, ...]:
    """The four words that a thread draws in a turn."""
    counter = offset // 4 + turn
    return philox((counter & 0xFFFFFFFF, counter >> 32, thread, 0), (seed & 0xFFFFFFFF, seed >> 32))


def uniform(word: int) -> float:
    """In (0, 1], rounded to f32 as curand does."""
    return float(torch.tensor(word, dtype=torch.float64).float() * torch.tensor(2.3283064e-10)) + 1.1641532e-10


def at(e: int, threads: int, group: int = 1) -> tuple[int, int, int]:
    """Thread, turn and word of an element, by walking as torch's threads do."""
    number, rest = divmod(e, group)
    step, thread = divmod(number, threads)
    return thread, step * group // 4, step * group % 4 + rest


def made(function: Callable[..., Any], *args: Tensor, processors: Processors = _SMALL) -> GpuProgram:
    program = gpu_program(smelt.trace(function, args, check=False).graph_for(*args), processors=processors)
    assert not program.refused, program.refused
    return program


def drawn(function: Callable[..., Any], *args: Tensor) -> list[Tensor]:
    return interpreted(made(function, *args), args, (_SEED, _OFFSET))


def test_the_published_vectors() -> None:
    ones = 0xFFFFFFFF
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_the_numbers_that_a_gpu_is_known_to_draw() -> None:
    """`torch.manual_seed(0); torch.rand(4, device="cuda")`, and `randn` likewise."""
    (u,) = interpreted(made(lambda: torch.rand(4)), [], (0, 0))
    torch.testing.assert_close(u, torch.tensor([0.3990, 0.5167, 0.0249, 0.9401]), rtol=0.0, atol=6e-5)
    (n,) = interpreted(made(lambda: torch.randn(4)), [], (0, 0))
    torch.testing.assert_close(n, torch.tensor([-0.9247, -0.4253, -2.6438, 0.1452]), rtol=0.0, atol=6e-5)


@pytest.mark.parametrize("count", [100, 256, 4 * 256 + 1, 2600])
def test_uniform(count: int) -> None:
    threads = _SMALL.started(count)
    (ours,) = drawn(lambda: torch.rand(count))
    for e in {0, 1, 99, count // 2, count - 1}:
        thread, turn, word = at(e, threads)
        assert abs(float(ours[e]) - uniform(words(_SEED, _OFFSET, thread, turn)[word])) < 1e-7, e
    assert float(ours.min()) >= 0.0 and float(ours.max()) < 1.0


def test_normal() -> None:
    count = 1100
    (ours,) = drawn(lambda: torch.randn(count))
    for e in (0, 1, 255, 256, 600, 1099):
        thread, turn, word = at(e, 256)
        found = words(_SEED, _OFFSET, thread, turn)
        u, v = (uniform(found[word // 2 * 2 + k]) for k in (0, 1))
        turned = math.sin(2 * math.pi * v) if word % 2 == 0 else math.cos(2 * math.pi * v)
        assert abs(float(ours[e]) - math.sqrt(-2 * math.log(u)) * turned) < 1e-4, e


@pytest.mark.parametrize(("count", "group"), [(2048, 4), (2050, 2), (1025, 1)])
def test_dropout_draws_in_groups(count: int, group: int) -> None:
    x = torch.arange(1.0, count + 1.0)
    (ours,) = drawn(lambda x: F.dropout(x, 0.25, training=True), x)
    for e in {0, 1, 2, 3, 5, 700, 1024, count - 1}:
        thread, turn, word = at(e, 256, group)
        stays = uniform(words(_SEED, _OFFSET, thread, turn)[word]) < 0.75
        assert abs(float(ours[e]) - (float(x[e]) / 0.75 if stays else 0.0)) <= 1e-6 * count, e
    assert 0.7 < float((ours != 0).float().mean()) < 0.8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_floats_are_rounded_and_never_one(dtype: torch.dtype) -> None:
    (ours, single) = (drawn(lambda t=t: torch.rand(1024, dtype=t))[0] for t in (dtype, torch.float32))
    rounded = single.to(dtype)
    assert torch.equal(ours, torch.where(rounded == 1.0, 0.0, rounded))


def test_a_second_draw_goes_on_where_the_first_ended() -> None:
    program = made(lambda: (torch.rand(1500), torch.rand(8)))
    assert program.draws is not None and program.draws.moved == 8 + 4
    _, ours = interpreted(program, [], (_SEED, _OFFSET))
    assert abs(float(ours[3]) - uniform(words(_SEED, _OFFSET + 8, 3, 0)[0])) < 1e-7


def test_draws_compile() -> None:
    x = torch.ones(4096)
    program = made(lambda x: (torch.rand(4096), torch.randn(4096), F.dropout(x, 0.1, training=True)), x)
    for arch in ARCHITECTURES:
        assert len(compile_cuda([one.kernel.source for one in program.kernels], arch)) == 3


def test_a_call_gives_the_generator_to_its_kernels() -> None:
    program = made(lambda: torch.rand(600), processors=H200)
    plan = program.compiled(90)
    device = Device()
    driver = FakeDriver(device, plan.kernels, [one.kernel.source for one in program.kernels])
    executable = CudaExecutable(plan, driver, device.allocate)
    results = []
    for offset in (0, 4):
        address, memory = device.allocate(2400)
        executable.run((), (), (address,), 7, (_SEED, offset))
        assert driver.calls[-2:] == ["write_words", "launch"]
        results.append(memory.view(torch.float32))
    assert not torch.equal(*results)
    assert torch.equal(results[1], interpreted(program, [], (_SEED, 4))[0])


def test_another_device_would_draw_other_numbers() -> None:
    program = made(lambda: torch.rand(600))
    plan = program.compiled(90)
    device = Device()
    driver = FakeDriver(device, plan.kernels, [one.kernel.source for one in program.kernels])
    with pytest.raises(SmeltError, match="multiprocessors") as caught:
        CudaExecutable(plan, driver, device.allocate)
    assert caught.value.code == "S0405" and driver.nothing_left
