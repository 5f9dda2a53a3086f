"""Tensors without an element for each index (sparse, of oneDNN, nested, quantized): eager's answer, and why."""

from __future__ import annotations

import warnings

import pytest
import torch

import smelt

D = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 3.0, 4.0], [5.0, 6.0, 0.0, 0.0], [0.0, 7.0, 8.0, 0.0]])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they are prototypes
    NESTED = torch.nested.nested_tensor([D[0], D[1, :2]])
    CSR, COO = D.to_sparse_csr(), D.to_sparse()


def _quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


SPARSE = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}
USES = {
    "s @ d": lambda s, d: s @ d,
    "d @ s": lambda s, d: d @ s,
    "s @ s": lambda s, d: (s @ s).to_dense(),
    "t": lambda s, d: s.t() @ d,
    "mv": lambda s, d: s @ d[0],
    "linear": lambda s, d: torch.nn.functional.linear(d, s),
    "dense": lambda s, d: s.to_dense(),
    "returned": lambda s, d: s,
    "unused": lambda s, d: d + 1,
    "scaled": lambda s, d: (s * 2).to_dense(),
    "in place": lambda s, d: s.mul_(2).to_dense(),
    "nnz": lambda s, d: d * s._nnz(),
}
OTHERS = {
    "from outside": lambda d: CSR @ d + COO @ d,
    "csr of values": lambda d: torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), d[0, :2]) @ d[:2],
    "oneDNN": lambda d: d.to_mkldnn().relu().to_dense(),
    "oneDNN returned": lambda d: d.to_mkldnn(),
    "nested": lambda d: torch.nested.nested_tensor([d[0], d[1, :2]]),
    "nested, used": lambda d: torch.nested.as_nested_tensor([d, d[:2]]).unbind()[1] + 1,
    "nested from outside": lambda d: (NESTED * 2).unbind()[0] + d[0],
    "jagged": lambda d: (torch.nested.nested_tensor_from_jagged(d, torch.tensor([0, 1, 4])) * 2).values(),
    "quantized": lambda d: _quantized(d),
    "quantized, viewed": lambda d: _quantized(d).view(-1)[:3].dequantize(),
    "quantized, a row": lambda d: _quantized(d)[1],
    "quantized, transposed": lambda d: _quantized(d).t().contiguous().dequantize(),
    "quantized, in parts": lambda d: _quantized(d).chunk(2)[1].dequantize(),
    "quantized, written": lambda d: _quantized(d).copy_(d * 2).dequantize(),
}


def _seen(value):
    if value.is_nested:
        return [row.tolist() for row in value.unbind()]
    if value.is_quantized:
        return value.q_scale(), value.dequantize().tolist()
    return value.layout, value.to_dense().tolist()


def _outcome(f, *args):
    try:
        return _seen(f(*args))
    except (RuntimeError, NotImplementedError) as error:  # not every layout is for every operator
        return type(error)


def _check(f):
    with torch.no_grad():
        expected, compiled = _outcome(f, D), smelt.compile(f)
        for _ in range(3):
            assert _outcome(compiled, D) == expected
    reasons = compiled.stats().fallbacks
    assert isinstance(expected, type) or (reasons and not any("failed" in reason for reason in reasons)), reasons


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", SPARSE)
def test_sparse_tensors_are_left_to_eager_with_a_reason(layout):
    for use in USES.values():
        _check(lambda d, use=use: use(SPARSE[layout](d), d))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_eager_with_a_reason(name):
    _check(OTHERS[name])
