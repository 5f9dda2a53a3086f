"""Memory that holds the negated elements, as `z.conj().imag` does: kernels read memory directly, so they get a copy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ops.convert import strided_copy


def negative(x: Tensor) -> Tensor:
    return torch.complex(x, x + 1).conj().imag


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(x, x + 1).mH
    return z, z.imag[1:] + 1


def chosen(x: Tensor) -> Tensor:
    y = negative(x) if x.sum() > 0 else x
    return y * 2


PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "pointwise": lambda x: negative(x) + 1,
    "a view of it": lambda x: negative(x)[1:].t() * 2,
    "reduction": lambda x: (torch.fft.rfft(x).conj().imag * 2).sum(),
    "product": lambda x: negative(x) @ x,
    "joined": lambda x: torch.cat([negative(x), x]),
    "adjoint": lambda x: torch.complex(x, x + 1).adjoint().imag.softmax(-1),
    "negative view": lambda x: torch._neg_view(x).exp(),
    "plain": lambda x: torch.complex(x, x + 1).imag * 3,
    "given back": lambda x: (negative(x), x + 1),
    "its memory given back": both,
    "of a branch": chosen,
}


@pytest.mark.filterwarnings("ignore:.*cannot be lowered:smelt.diag.SmeltWarning")
@pytest.mark.parametrize("kind", PROGRAMS)
def test_made_by_the_program(kind: str) -> None:
    torch.manual_seed(0)
    program, x = PROGRAMS[kind], torch.randn(4, 4).abs()
    compiled = smelt.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), program(x), check_stride=True)


def test_an_argument() -> None:
    z = torch.randn(4, 4, dtype=torch.complex64)
    compiled = smelt.compile(lambda x: x + 1)
    torch.testing.assert_close(compiled(z.imag), z.imag + 1)
    with pytest.warns(smelt.SmeltWarning, match="negated"):
        torch.testing.assert_close(compiled(z.conj().imag), z.conj().imag + 1)
    for x in (z.imag, z.conj().imag, z.imag):
        torch.testing.assert_close(compiled(x), x + 1)


def test_a_copy_with_the_same_strides() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64).conj()
    for lazy in (z.imag, z.imag.t(), z.t(), z.imag[:1].expand(3, 4)):
        copy = strided_copy(lazy)
        assert copy.stride() == lazy.stride() and not copy.is_neg() and not copy.is_conj()
        torch.testing.assert_close(copy, lazy.resolve_conj().resolve_neg(), check_stride=False)


def resolved(x: Tensor) -> tuple[Tensor, ...]:
    z = torch.fft.rfft(x).conj()
    return z, z.resolve_conj(), z.conj().resolve_conj(), torch.complex(x, x).mH.resolve_conj()


def copied(x: Tensor) -> tuple[Tensor, ...]:
    return torch.fft.rfft(x).conj().clone(), torch.fft.rfft(x + 1).mH * 1


def resolved_then_written(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.fft.rfft(x)
    z = y.conj().resolve_conj()
    z += 2
    return y, z


def resolved_part(x: Tensor) -> tuple[Tensor, ...]:
    y = negative(x).resolve_neg()
    y += 2
    return y, y * 2


@pytest.mark.parametrize("program", [resolved, copied, resolved_then_written, resolved_part])
@pytest.mark.parametrize("way", [lambda f, x: smelt.compile(f), lambda f, x: smelt.trace(f, (x,))])
def test_what_is_resolved_has_memory_of_its_own(
    program: Callable[[Tensor], tuple[Tensor, ...]], way: Callable[..., Callable[[Tensor], tuple[Tensor, ...]]]
) -> None:
    x = torch.randn(4, 4)
    run = way(program, x)
    for _ in range(3):
        got, wanted = run(x), program(x)
        torch.testing.assert_close(got, wanted, check_stride=True)
        assert [t.is_conj() for t in got] == [t.is_conj() for t in wanted]
        own, eagers = ([t.untyped_storage()._cdata for t in of] for of in (got, wanted))
        assert list(map(own.index, own)) == list(map(eagers.index, eagers))


def through_a_conjugate(x: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, x + 1)
    w = z.conj()
    w.mul_(2j)
    return z, w, w.resolve_conj()


def into_a_part(x: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, x + 1)
    w = z.mH
    w[0] = 5j
    return z, w * 1


def through_a_negative(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 1
    torch._neg_view(y).add_(1)
    return y, y + 1


def in_a_branch(x: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, x + 1)
    w = z.conj()
    if x.sum() > 0:
        w.mul_(2j)
    return z, w, w * 1


@pytest.mark.parametrize("program", [through_a_conjugate, into_a_part, through_a_negative, in_a_branch])
def test_a_write_is_seen_in_the_memory_below(program: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    compiled, x = smelt.compile(program), torch.arange(1.0, 5.0).reshape(2, 2)
    for given in (x, x, -x, x):
        for ours, theirs in zip(compiled(given), program(given), strict=True):
            torch.testing.assert_close(ours, theirs, check_stride=True)
            assert (ours.is_conj(), ours.is_neg()) == (theirs.is_conj(), theirs.is_neg())


def test_a_write_to_an_argument() -> None:
    def program(z: Tensor) -> Tensor:
        w = z.adjoint()
        w.add_(1j)
        return w * 2

    def given() -> Tensor:
        return torch.arange(4.0).reshape(2, 2) * (1 + 2j)

    traced = smelt.trace(program, (given(),))
    for _ in range(3):
        ours, theirs = given(), given()
        torch.testing.assert_close(traced(ours), program(theirs))
        torch.testing.assert_close(ours, theirs)
