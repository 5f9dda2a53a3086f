"""Transforms of torch.func, and the zeros without memory (`torch._efficientzerotensor`) that they meet."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import smelt
from smelt.diag import CaptureError

X = torch.tensor([1.0, -2.0, 3.0])
ODD = torch.tensor([1.0, -0.0, 0.0, math.inf, -math.inf, math.nan])
LINEAR = torch.nn.Linear(3, 2)
ZERO = torch._efficientzerotensor((3,))


def _cubes(x):
    return x**3


def _zeros(*sizes, **kind):
    return torch._efficientzerotensor(sizes, **kind)


def _dual(x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x) ** 2).tangent


# Whole graphs, and those that are refused with a reason.
GRAPHS = {
    "hessian": lambda x: hessian(lambda t: _cubes(t).sum())(x),
    "hessian of a model": lambda x: hessian(lambda t: LINEAR(t).pow(2).sum())(x),
    "jacfwd": lambda x: jacfwd(_cubes)(x),
    "jacfwd of jacfwd": lambda x: jacfwd(jacfwd(_cubes))(x),
    "jacfwd of jacrev": lambda x: jacfwd(jacrev(_cubes))(x),
    "jacrev of jacrev": lambda x: jacrev(jacrev(_cubes))(x),
    "grad of grad": lambda x: vmap(grad(grad(_cubes)))(x),
    "vmap of vmap": lambda x: vmap(vmap(_cubes))(x[None]),
    "jvp": lambda x: jvp(_cubes, (x,), (x,)),
    "jvp of a constant": lambda x: jvp(lambda t: t * 0 + torch.ones(3), (x,), (x,)),
    "functional_call": lambda x: functional_call(LINEAR, {"weight": LINEAR.weight * 2}, (x,)),
    "autograd.functional": lambda x: torch.autograd.functional.hessian(lambda t: _cubes(t).sum(), x),
    "branch": lambda x: hessian(lambda t: _cubes(t).sum())(x) if x.sum() > 0 else x,
}
REFUSED = {
    "vjp": lambda x: vjp(_cubes, x)[1](x)[0],
    "linearize": lambda x: linearize(_cubes, x)[1](x),
    "vectorized": lambda x: torch.autograd.functional.jacobian(_cubes, x, vectorize=True),
    "forward mode": lambda x: torch.autograd.functional.jacobian(_cubes, x, vectorize=True, strategy="forward-mode"),
    "forward_ad": _dual,
    "returned": lambda x: _zeros(3) * x,
    "from outside": lambda x: ZERO + x,
}
SUMS = {
    "x + z": lambda x: x + _zeros(6),
    "z + x": lambda x: _zeros(6) + x,
    "x - z": lambda x: x - _zeros(6),
    "z - x": lambda x: _zeros(6) - x,
    "rsub": lambda x: torch.rsub(x, _zeros(6)),
    "alpha": lambda x: torch.sub(_zeros(6), x, alpha=3),
    "wider": lambda x: x[:, None] + _zeros(1, 2),
    "promoted": lambda x: x.nan_to_num(0.0, 1.0, 2.0).int() + _zeros(6),
    "x * z": lambda x: (x * _zeros(6)).clone(),
    "z / x": lambda x: (_zeros(6) / x).clone(),
    "transposed": lambda x: _zeros(2, 3).t() + x.view(3, 2),
    "expanded": lambda x: _zeros(1, 6).expand(2, 6) + x,
    "parts": lambda x: _zeros(6).split(3)[1] + x[:3],
    "product": lambda x: (_zeros(2, 6) @ x).clone(),
    "item": lambda x: x + _zeros().item(),
    "asked": lambda x: x + (x * _zeros(6))._is_zerotensor(),
}


def _same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    alike = torch.allclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
    return alike and a.dtype == b.dtype and torch.equal(a.signbit() & (a == 0), b.signbit() & (b == 0))


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
@pytest.mark.parametrize("name", GRAPHS)
def test_a_transform_is_one_graph(name):
    f = GRAPHS[name]
    with torch.no_grad():
        compiled = smelt.compile(f)
        for _ in range(3):
            assert _same(compiled(X), f(X))
        assert not compiled.stats().fallbacks
        assert _same(smelt.trace(f, (X,))(X), f(X))


@pytest.mark.spread(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_another_is_left_to_eager_with_a_reason(name):
    f = REFUSED[name]
    with torch.no_grad():
        compiled = smelt.compile(f)
        for _ in range(3):
            assert f(X).tolist() == compiled(X).tolist() if name != "returned" else compiled(X)._is_zerotensor()
        assert not any("failed" in reason for reason in compiled.stats().fallbacks)
        with pytest.raises(CaptureError, match="S010"):
            smelt.trace(f, (X,))


@pytest.mark.parametrize("name", SUMS)
def test_zeros_without_memory_compute_as_in_eager(name):
    f = SUMS[name]
    with torch.no_grad():
        compiled = smelt.compile(f)
        for _ in range(3):
            assert _same(compiled(ODD), f(ODD))
        assert not compiled.stats().fallbacks


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_an_argument_without_memory_is_left_to_eager():
    compiled = smelt.compile(lambda x: x + 1)
    with torch.no_grad():
        for x in (X, X, X, ZERO, X, ZERO):
            assert compiled(x).tolist() == (x + 1).tolist()
    assert compiled.stats().fallbacks == {"an argument is a tensor of zeros without memory": 2}
