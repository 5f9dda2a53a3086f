"""Attention as one operator, given what is found around it: `scaled_dot_product_attention` on operands as they lie.

    scores = einsum("bqhd,bkhd->bhqk", q, k)       q, k, v are turned to [.., rows, features]
    scores.view(b, h, n, m) + mask                 q, k are seen by batch and head, as the scores are
    baddbmm(start, q, k)                           what is added is the operator's mask

Invariant: rows, columns and batches of the scores are in the program's order, so dropout draws what it drew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from smelt.diag.records import record

FILLS = ("masked_fill", "masked_fill_by", "where", "where_by", "where_not", "where_not_by")
_HIDES = ("masked_fill", "masked_fill_by", "where_not", "where_not_by")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@record
class Layout:
    """How operands of products by `einsum` lie: their labels, batches first, then rows, columns (keys), features."""

    q: str
    k: str
    scores: str
    v: str
    result: str
    inner: str
    features: str


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask2: torch.Tensor | None = None,
    start: torch.Tensor | None = None,
    factor: torch.Tensor | None = None,
    filler: torch.Tensor | None = None,
    by: float = 1.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    fill: float | None = None,
    p: float = 0.0,
    train: bool = False,
    s0: int | None = None,
    s1: int | None = None,
    s2: int | None = None,
    s3: int | None = None,
    s4: int | None = None,
    divide: bool = False,
    masks: str = "",
    transposed: bool = False,
    scores: str = "",
    mix: str = "",
    folded: bool = False,
) -> torch.Tensor:
    """Attention as one operator: f[.., L, E], f[.., S, E], f[.., S, D] -> f[.., L, D].

    by, factor: of the scores, or their divisors (divide). masks: what is done with the masks in order: `add`, `sub`, or
    one that puts fill or filler there. start, alpha, beta: as of `baddbmm`. transposed: k is f[.., E, S]. scores, mix:
    the equations, where a product is an `einsum`. s0, ...: the sizes that the scores are seen in before a mask; folded:
    v and the result have the sizes from before. Dropout, in training, is drawn as before.
    Raises: ValueError where scores are seen in sizes of which the last two are not rows and columns.
    """
    k = k.transpose(-2, -1) if transposed else k
    layout = None
    if scores or mix:
        layout = layout_of(scores, mix, (q.dim(), k.dim(), v.dim()))
        if layout is None:
            raise ValueError(f"{scores or mix} is no product of attention")
        batch = layout.scores[:-2]
        if scores:
            q = _turned(q, layout.q, batch + layout.scores[-2] + layout.inner)
            k = _turned(k, layout.k, batch + layout.scores[-1] + layout.inner)
        if mix:
            v = _turned(v, layout.v, batch + layout.scores[-1] + layout.features)
    if factor is not None:
        factor = factor.reshape(()) if factor.numel() == 1 else factor
        q = (q / factor if divide else q * factor).to(q.dtype)
    rows, columns, outer = q.shape[-2], k.shape[-2], v.shape[:-2]
    seen = [size for size in (s0, s1, s2, s3, s4) if size is not None]
    bias = None
    if start is not None and beta != 0:
        bias = start if beta == 1 else start * beta
    if seen:
        if seen[-2] not in (rows, -1) or seen[-1] not in (columns, -1):
            raise ValueError(f"scores of {rows} by {columns} are seen as {seen}")
        if bias is not None:
            bias = bias.expand(*q.shape[:-2], rows, columns).reshape(*seen)
        q, k = (t.reshape(*seen[:-2], *t.shape[-2:]) for t in (q, k))
    if folded:
        v = v.reshape(*q.shape[:-2], *v.shape[-2:])
    shape = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, v = (t if t.shape[:-2] == shape else t.expand(*shape, *t.shape[-2:]) for t in (q, k, v))
    for how, given in zip(masks.split(), (mask, mask2), strict=False):
        assert given is not None
        if how in FILLS:
            put = filler.reshape(()).to(q.dtype) if filler is not None else fill
            assert put is not None
            before = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias
            bias = torch.where(given if how in _HIDES else ~given, put, before)
        else:
            signed = (given if how == "add" else -given).to(q.dtype)
            bias = signed if bias is None else bias + signed
    if bias is not None:
        bias = torch.atleast_2d(bias)  # the operator wants rows and columns
    scale = alpha if factor is not None else alpha / by if divide else alpha * by
    y = F.scaled_dot_product_attention(q, k, v, bias, dropout_p=p if train else 0.0, scale=scale)
    if folded:
        y = y.reshape(*outer, *y.shape[-2:])
    if layout is not None and mix:
        own = layout.scores[:-1] + layout.features
        y = y.permute([own.index(label) for label in layout.result])
    return y


def layout_of(scores: str, mix: str, ranks: Sequence[int]) -> Layout | None:
    """How q, k and v of these ranks lie in two products, of which at least one is by an equation; None for others.

    scores, mix: empty for a plain product.
    """
    if scores:
        found = _labels(scores, ranks[:2])
        if found is None:
            return None
        q, k, out = found
        inner = set(q) & set(k) - set(out)
        if len(out) < 2 or len(inner) != 1:
            return None
        row, key = out[-2], out[-1]
        if not _is_made(q, (*out[:-1], *inner), row) or not _is_made(k, (*out[:-2], key, *inner), key):
            return None
    else:
        out = _LETTERS[: ranks[0]]
        q, k, inner = "", "", {"?"}
    if not mix:
        return Layout(q, k, out, "", out, "".join(inner), "")
    found = _labels(mix, (len(out), ranks[2]))
    if found is None:
        return None
    p, v, result = found
    spare = iter(letter for letter in _LETTERS if letter not in out and letter not in mix)
    names = {label: next(spare) for label in {*v, *result}} | dict(zip(p, out, strict=True))
    v, result = ("".join(names[label] for label in labels) for labels in (v, result))
    features = set(v) - set(out)
    if len(features) != 1 or not _is_made(v, (*out[:-2], out[-1], *features), out[-1]):
        return None
    if sorted(result) != sorted((*out[:-1], *features)):
        return None
    return Layout(q, k, out, v, result, "".join(inner), "".join(features))


def _labels(equation: str, ranks: Sequence[int]) -> tuple[str, str, str] | None:
    """The labels of two operands and the result, `...` written out; None where one comes twice, or without an arrow."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if not arrow or len(parts) != 2:
        return None
    open_ = [rank - len(part) + 3 if "..." in part else 0 for part, rank in zip(parts, ranks, strict=True)]
    names = "".join(letter for letter in _LETTERS if letter not in equation)[: max(open_)]
    texts = [part.replace("...", names[len(names) - n :]) for part, n in zip(parts, open_, strict=True)]
    texts.append(out.replace("...", names))
    if any(len(text) != rank for text, rank in zip(texts, ranks, strict=False)):
        return None
    return None if any(len(set(text)) != len(text) for text in texts) else (texts[0], texts[1], texts[2])


def _is_made(labels: str, of: Sequence[str], with_: str) -> bool:
    return with_ in labels and set(labels) <= set(of)


def _turned(tensor: torch.Tensor, labels: str, wanted: str) -> torch.Tensor:
    """A tensor with its axes in another order, and axes of size 1 for labels that it has not."""
    tensor = tensor.permute([labels.index(label) for label in wanted if label in labels])
    for axis, label in enumerate(wanted):
        if label not in labels:
            tensor = tensor.unsqueeze(axis)
    return tensor
