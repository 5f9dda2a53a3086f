"""Saved programs as ONNX models: names, weights, state, free sizes, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

import smelt
from smelt.cli.app import app
from smelt.package.onnx.export import export_onnx
from tests.ingots.programs import Counter, Tied, cases
from tests.ingots_c.programs import programs
from tests.onnx.harness import Session, assert_alike, exported, onnx


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _flat(item)]
    return [value] if isinstance(value, (Tensor, float)) or type(value) is int else []


# What onnxruntime has no kernel for (f64), what draws, what is complex, and a power of Python's floats.
_NOT = ("double", "noisy", "complex")
_REFUSED = ("numbers",)
_TOLERANCES = {"wide": 1e-3, "many threads": 1e-3}  # of sums of 300 products of numbers up to 100


def test_programs_give_what_eager_gives(tmp_path: Path) -> None:
    with torch.no_grad():
        for name, (make, args, kwargs) in cases().items():
            if name in _NOT:
                continue
            program = make()
            model = exported(program, tmp_path)
            given = [t for t in (*_flat(args), *_flat(kwargs)) if isinstance(t, Tensor)]
            found = Session(model.path).run(dict(zip(model.inputs, given, strict=True)))
            wanted = [w for w in _flat(program(*args, **kwargs)) if isinstance(w, Tensor)]
            assert_alike(found, wanted, tolerance=_TOLERANCES.get(name, 1e-5))
        for name, (make, calls) in programs().items():
            if name in _REFUSED or name == "counter":
                continue
            program = make()
            model = exported(program, tmp_path)
            session = Session(model.path)
            for args in calls:
                found = session.run(dict(zip(model.inputs, args, strict=True)))
                assert_alike(found, _flat(program(*args)), tolerance=_TOLERANCES.get(name, 1e-5))


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, pair: list[Tensor], *, mask: Tensor) -> dict[str, Any]:
        return {"hidden": self.proj(pair[0]) * mask, "all": [pair[1] + 1, 2.5]}


def test_names_lines_and_structures(tmp_path: Path) -> None:
    model = Structured().eval()
    x, y, mask = torch.randn(3, 4), torch.randn(2), torch.rand(3, 4)
    with torch.no_grad():
        made = exported(smelt.trace(model, ([x, y],), {"mask": mask}), tmp_path)
        assert made.inputs == ("x_0_0", "x_0_1", "mask") and made.outputs == ("hidden", "all_0")
        found = Session(made.path).run({"x_0_0": x, "x_0_1": y, "mask": mask})
        assert_alike(found, [model([x, y], mask=mask)["hidden"], y + 1])
    file = onnx.load(made.path)
    assert [each.version for each in file.opset_import] == [made.opset] and file.producer_name == "smelt"
    assert {each.name for each in file.graph.initializer} >= {"proj.weight", "proj.bias"}
    product = next(node for node in file.graph.node if node.op_type == "Gemm")
    assert product.name == "proj/Gemm" and "test_programs.py" in product.doc_string and product.output[0] == "v0"
    properties = {each.key: each.value for each in file.metadata_props}
    assert json.loads(properties["smelt.result"])[2] == ["hidden", "all"]
    assert [node.name for node in file.graph.node].count("proj/Gemm") == 1


def test_tied_weights_are_stored_once_and_apart_where_asked(tmp_path: Path) -> None:
    ids = torch.randint(40, (2, 5))
    with torch.no_grad():
        model = Tied().eval()
        model.embedding.weight = model.out.weight = nn.Parameter(torch.randn(40, 8))
        made = exported(smelt.trace(model, (ids,)), tmp_path, external_data=True)
        assert made.data is not None and made.data.name == "m.onnx.data"
        again = export_onnx(tmp_path / "m.ingot", tmp_path / "m.onnx", external_data=True)
        assert again.data is not None and again.data.stat().st_size < 4096  # written anew, not added to
        assert_alike(Session(made.path).run({"x0": ids}), [model(ids)])
        within = export_onnx(tmp_path / "m.ingot", tmp_path / "n.onnx")
    sizes = [len(each.raw_data) for each in onnx.load(within.path).graph.initializer]
    assert within.data is None and sizes.count(40 * 8 * 4) == 1


def test_state_goes_in_and_out(tmp_path: Path) -> None:
    rows = [torch.randn(1, 4) for _ in range(3)]
    with torch.no_grad():
        made = exported(smelt.trace(Counter().eval(), (rows[0],)), tmp_path)
        assert dict(made.state) == {"rows": "rows.next", "at": "at.next"}
        session, program = Session(made.path), smelt.load(tmp_path / "m.ingot", allow_native=False)
        state: dict[str, Tensor] = {}  # the first call begins with what was saved
        for row in rows:
            found = dict(zip(made.outputs, session.run({"x0": row, **state}), strict=True))
            state = {before: found[after] for before, after in made.state}
            assert_alike([found["out"]], [program(row)])
        assert_alike([state["rows"], state["at"]], [program.rows, program.at])


def test_what_is_left_in_arguments_is_an_output(tmp_path: Path) -> None:
    def program(x: Tensor, cache: Tensor) -> Tensor:
        cache[1].copy_(x[0])
        cache.mul_(2)
        return x + cache.sum()

    x, cache = torch.randn(2, 3), torch.randn(4, 3)
    with torch.no_grad():
        made = exported(smelt.trace(program, (x, cache.clone())), tmp_path)
        found = Session(made.path).run({"x0": x, "x1": cache})
        wanted = program(x, cache)
    assert made.outputs == ("out", "x1.next")
    assert_alike(found, [wanted, cache])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(30, 16), nn.Linear(16, 48)
        self.lstm = nn.GRU(16, 8, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, int]:
        x = self.embedding(ids)
        q, k, v = (t.view(*ids.shape, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        out, _ = self.lstm(mixed)
        return out, torch.cat([mixed, x], 1)[:, 1::2], ids.shape[0] * ids.shape[1]


def test_free_sizes(tmp_path: Path) -> None:
    batch, length = smelt.Dim("B", min=2, max=9), smelt.Dim("S", min=2, max=64)
    with torch.no_grad():
        model = Attending().eval()
        ids = torch.randint(30, (3, 5))
        made = exported(smelt.trace(model, (ids,), dynamic_shapes=({0: batch, 1: length},)), tmp_path)
        session = Session(made.path)
        shape = onnx.load(made.path).graph.input[0].type.tensor_type.shape
        assert [dim.dim_param for dim in shape.dim] == ["B", "S"]
        for sizes in ((3, 5), (2, 2), (9, 40)):
            ids = torch.randint(30, sizes)
            assert_alike(session.run({"x0": ids}), list(model(ids)))
        with pytest.raises(Exception, match="must hold: B <= 9"):
            session.run({"x0": torch.randint(30, (10, 5))})


def noisy(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def printing(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("above")
        x = x + 1
    return x


def spectrum(x: Tensor) -> Tensor:
    return torch.fft.rfft(x).abs()[:, 0] + torch.linalg.eigvalsh(x)


def nothing(x: Tensor) -> None:
    x + 1


REFUSED: dict[Callable[..., Any], tuple[str, ...]] = {
    noisy: ("draws random numbers", "pass the random numbers in"),
    printing: ("py.print", "neither prints nor warns", "test_programs.py:", 'print("above")'),
    spectrum: ("aten.fft_rfft.default", "test_programs.py:", "note: aten.linalg_eigvalsh.default"),
    nothing: ("returns no tensor", "return what it computes"),
}


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_onnx_cannot_say_is_refused_by_name(program: Callable[..., Any], tmp_path: Path) -> None:
    with torch.no_grad(), pytest.raises(smelt.PackageError) as caught:
        exported(smelt.trace(program, (torch.eye(4),)), tmp_path)
    assert caught.value.code == "S0705" and "fix: " in str(caught.value)
    for text in REFUSED[program]:
        assert text in str(caught.value)
    assert not (tmp_path / "m.onnx").exists()


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        smelt.trace(torch.sin, (torch.ones(3),)).save(tmp_path / "m.ingot", targets=[])
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(smelt.PackageError, match="needs the package onnx") as caught:
        export_onnx(tmp_path / "m.ingot", tmp_path / "m.onnx")
    assert caught.value.fix == "pip install onnx"


def test_command(tmp_path: Path) -> None:
    both = {"twice": lambda x: x * 2, "halved": lambda x: x / 2}
    x = torch.ones(3)
    with torch.no_grad():
        smelt.save({name: smelt.trace(f, (x,)) for name, f in both.items()}, tmp_path / "m.ingot", targets=[])
    ingot, path = str(tmp_path / "m.ingot"), tmp_path / "model.onnx"
    shown = CliRunner().invoke(app, ["export", ingot, "--onnx", str(path), "--entry", "halved"])
    assert shown.exit_code == 0 and "(x0) -> (out)" in shown.output and "opset 20" in shown.output
    assert_alike(Session(path).run({"x0": x}), [x / 2])
    with pytest.raises(smelt.PackageError, match="no entry point") as caught:
        export_onnx(tmp_path / "m.ingot", path)
    assert caught.value.why == "it has halved, twice"
    for wrong in (["--onnx", str(path), "--target", "neon"], ["--entry", "halved"]):
        assert CliRunner().invoke(app, ["export", ingot, *wrong]).exit_code == 2
