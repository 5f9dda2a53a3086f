"""A compiled training step goes on where it was saved: in another process, natively, and by its text."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.runtime.ingot.load import load
from tests.forked import light_forks

ELSEWHERE = """
import io, pickle, sys, warnings
import torch
import smelt
warnings.simplefilter("error")
given = pickle.load(open(sys.argv[1], "rb"))
got = {}
for name, (path, batches) in given.items():
    step = smelt.load(path)
    losses = [step(*batch) for batch in batches[:1]]
    buffer = io.BytesIO()
    step.save(buffer)  # with what it has learned, for yet another process
    again = smelt.load(buffer.getvalue())
    losses += [again(*batch) for batch in batches[1:]]
    state = {n: t.detach() for n, t in again.named_state()}
    grads = {n: None if p.grad is None else p.grad for n, p in again.named_parameters()}
    got[name] = [l.detach() for l in losses], state, grads, again.is_native
there = ("llvmlite", "tests", "smelt.compiler", "smelt.capture", "smelt.codegen")
bad = [m for m in sys.modules if m.startswith(there)]
pickle.dump((got, bad), open(sys.argv[2], "wb"))
"""

Step = Callable[[Tensor, Tensor], Tensor]


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(4, 8, generator=generator), torch.randint(3, (4,), generator=generator)) for _ in range(count)]


def made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 3))
    if kind == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

    return model, optimizer, smelt.compile(step)


def test_a_step_goes_on_elsewhere(tmp_path: Path) -> None:
    data = batches(5)
    given: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    for kind in ("adamw", "sgd"):
        model, optimizer, step = made(kind)
        for batch in data[:2]:
            step(*batch)
        smelt.save({"forward": step}, tmp_path / kind)
        given[kind] = str(tmp_path / kind), data[2:]
        losses = [step(*batch).detach() for batch in data[2:]]
        moments = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        grads = {f"model.{name}": p.grad for name, p in model.named_parameters()}
        wanted[kind] = losses, dict(model.state_dict(prefix="model.")), moments, grads
    calls, results = tmp_path / "given.pickle", tmp_path / "got.pickle"
    calls.write_bytes(pickle.dumps(given))
    light_forks().run(f"import sys; sys.argv = {['', str(calls), str(results)]!r}\n{ELSEWHERE}", tmp_path)
    got, bad = pickle.loads(results.read_bytes())
    assert bad == []
    for kind, (losses, weights, moments, grads) in wanted.items():
        found_losses, state, found_grads, is_native = got[kind]
        assert is_native and all(map(torch.equal, found_losses, losses))
        assert all(torch.equal(state.pop(name), weight) for name, weight in weights.items())
        assert len(state) == len(moments)
        assert all(any(torch.equal(tensor, moment) for moment in moments) for tensor in state.values())
        for name, grad in grads.items():
            assert (found_grads[name] is None) == (grad is None) == (kind == "sgd")
            assert grad is None or torch.equal(found_grads[name], grad)


def test_its_state_is_read_written_and_reset(tmp_path: Path) -> None:
    data = batches(4)
    _, _, step = made("adamw")
    for batch in data[:2]:
        step(*batch)
    smelt.save({"forward": step}, tmp_path / "m.ingot")
    loaded = load(tmp_path / "m.ingot")
    first = [loaded(*batch).detach().clone() for batch in data[2:]]
    state = dict(loaded.named_state())
    counts = [tensor for name, tensor in state.items() if name.endswith("['step']")]
    assert len(counts) == 6 and all(int(count) == 4 for count in counts)
    loaded.reset()
    assert all(map(torch.equal, (loaded(*batch) for batch in data[2:]), first))
    # A checkpoint of it: what is put back is what it goes on from.
    loaded.reset()
    kept = {name: tensor.detach().clone() for name, tensor in loaded.named_state()}
    loaded(*data[2])
    with torch.no_grad():
        for name, tensor in loaded.named_state():
            tensor.copy_(kept[name])
    assert all(map(torch.equal, (loaded(*batch) for batch in data[2:]), first))
    by_text = load(tmp_path / "m.ingot", allow_native=False)
    for batch, loss in zip(data[2:], first, strict=True):
        torch.testing.assert_close(by_text(*batch).detach(), loss)


def test_a_model_that_is_trained_and_called_is_one_file(tmp_path: Path) -> None:
    data = batches(3)
    model, _, step = made("sgd")
    for batch in data[:2]:
        step(*batch)
    with torch.no_grad():
        predict = smelt.trace(model.eval(), (data[0][0],))
        buffer = io.BytesIO()
        smelt.save({"step": step, "predict": predict}, buffer)
    loaded = load(buffer.getvalue())
    loaded.step(*data[2])
    model.train()
    step(*data[2])
    with torch.no_grad():
        torch.testing.assert_close(loaded.predict(data[0][0]), model.eval()(data[0][0]))


def test_what_was_not_compiled_is_said(tmp_path: Path) -> None:
    _, _, step = made("adamw")
    with pytest.raises(smelt.PackageError, match="nothing compiled of it"):
        smelt.save({"forward": step}, tmp_path / "m.ingot")
    assert not list(tmp_path.iterdir())
