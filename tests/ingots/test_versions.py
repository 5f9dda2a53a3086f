"""Files of each format that there was are read, and what a file cannot be used with is said."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import smelt
from smelt.ops import upgrades
from smelt.ops.registry import overload
from smelt.package.c.export import export
from smelt.runtime.ingot.abi import abi
from smelt.runtime.ingot.load import load
from smelt.runtime.ingot.manifest import FORMAT, NAME
from smelt.runtime.ingot.natives import targets
from tests.ingots.corpus import CALLS, FOLDER, from_data, to_data
from tests.ingots.fuzz import entries_of, with_digests
from tests.ingots.programs import Convolved
from tests.ingots.test_saved import agree

FILES = sorted(FOLDER.glob("*/*.ingot"))


def test_there_are_files_of_each_format_and_they_stay_as_they_are() -> None:
    assert {int(path.parent.name) for path in FILES} == set(range(1, FORMAT + 1))
    listed = json.loads((FOLDER / "digests.json").read_text())
    assert {f"{p.parent.name}/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in FILES} == listed


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.filterwarnings("ignore:.*native code is not used")
def test_each_gives_what_it_gave(path: Path) -> None:
    loaded = load(path)
    for args, kwargs, result in json.loads(loaded.extra_files[CALLS]):
        with torch.set_grad_enabled(loaded.manifest.methods["forward"].trains):
            found = loaded(*from_data(args), **from_data(kwargs))
        agree(from_data(to_data(found)), from_data(result))
    # What was loaded is saved in the present format.
    loaded.reset().save(again := path.with_suffix(".again"))
    try:
        assert json.loads(entries_of(again.read_bytes())[NAME])["format"] == FORMAT
    finally:
        again.unlink()


def test_another_version_of_smelt_is_said_once() -> None:
    entries = entries_of((FOLDER / str(FORMAT) / "small.ingot").read_bytes())
    manifest = json.loads(entries[NAME]) | {"abi": "0" * 32, "smelt": "0.0.9"}
    loaded = load(with_digests(entries | {NAME: json.dumps(manifest).encode()}))
    args, _, result = json.loads(loaded.extra_files[CALLS])[0]
    with torch.no_grad():
        with pytest.warns(smelt.SmeltWarning, match="another version of Smelt, 0.0.9"):
            found = loaded(*from_data(args))
        agree(found, from_data(result))
        agree(loaded(*from_data(args)), from_data(result))


def test_another_machine_is_said() -> None:
    data = entries_of((FOLDER / str(FORMAT) / "small.ingot").read_bytes())
    manifest = json.loads(data[NAME])
    method = manifest["program"]["methods"]["forward"]
    method["native"] = {"sparc": method["native"]["avx2"]}
    manifest["abi"] = abi()  # the file's is that of the state of Smelt that wrote it
    loaded = load(with_digests(data | {NAME: json.dumps(manifest).encode()}))
    with pytest.warns(smelt.SmeltWarning, match="native code for sparc only"):
        assert not loaded.is_native


def test_an_operator_that_torch_has_changed_is_named() -> None:
    entries = entries_of((FOLDER / str(FORMAT) / "small.ingot").read_bytes())
    manifest = json.loads(entries[NAME])
    schemas = manifest["program"]["operators"]
    for old, is_right in (
        ("aten::relu(Tensor self) -> Tensor", True),
        ("aten::relu(Tensor self, Tensor threshold) -> Tensor", False),
        ("aten::relu(", False),
    ):
        changed = manifest | {"program": manifest["program"] | {"operators": schemas | {"aten.relu.default": old}}}
        loaded = load(with_digests(entries | {NAME: json.dumps(changed).encode()}), allow_native=False)
        if is_right:
            assert loaded.graph is not None
            continue
        with pytest.raises(smelt.PackageError, match=r"aten\.relu\.default is another operator"):
            _ = loaded.graph


CHOLESKY = "aten::cholesky(Tensor self, bool upper=False) -> Tensor"


def test_calls_of_an_operator_that_torch_has_no_more_are_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.14 has no `cholesky`: a file of before calls `linalg_cholesky` there, compiled and for gradients."""
    monkeypatch.setattr(upgrades, "overload", lambda op: None if op == "aten.cholesky.default" else overload(op))
    x = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    buffer = io.BytesIO()
    smelt.trace(lambda x: torch.linalg.cholesky(x, upper=True) * 2, (x,)).save(buffer, targets=[])
    entries = entries_of(buffer.getvalue())
    text = entries["graphs/forward.txt"].replace(
        b"aten.linalg_cholesky.default(%x, upper=True)", b"aten.cholesky.default(%x, True)"
    )
    manifest = json.loads(entries[NAME]) | {"torch": "2.13.0"}
    manifest["program"]["operators"]["aten.cholesky.default"] = CHOLESKY
    loaded = load(with_digests(entries | {NAME: json.dumps(manifest).encode(), "graphs/forward.txt": text}))
    assert b"aten.cholesky" in text and "linalg_cholesky" in str(loaded.graph)
    with torch.no_grad(), pytest.warns(smelt.SmeltWarning, match="native code is not used"):
        assert torch.equal(loaded(x), torch.linalg.cholesky(x, upper=True) * 2)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    loaded(ours).sum().backward()
    (torch.linalg.cholesky(theirs, upper=True) * 2).sum().backward()
    assert ours.grad is not None and theirs.grad is not None and torch.equal(ours.grad, theirs.grad)


def test_weights_that_follow_by_an_operator_that_is_another_one_are_computed_by_the_graph(tmp_path: Path) -> None:
    """Of a folded norm: such operators run without the graph, where the file's torch has them as this one does."""
    torch.manual_seed(2)
    model, x = Convolved().eval(), torch.randn(1, 3, 6, 6)
    buffer = io.BytesIO()
    with torch.no_grad():
        smelt.trace(model, (x,)).save(buffer, targets=targets())
        entries = entries_of(buffer.getvalue())
        manifest = json.loads(entries[NAME])
        operators = manifest["program"]["operators"]
        assert "aten.rsqrt.default" in operators
        changed = operators | {"aten.rsqrt.default": "aten::rsqrt(Tensor self, bool fast) -> Tensor"}
        for version, schemas, is_native in (
            (manifest["torch"], changed, True), ("2.12.0", changed, False), ("2.12.0", operators, True),
        ):  # fmt: skip
            again = manifest | {"torch": version, "program": manifest["program"] | {"operators": schemas}}
            path = tmp_path / f"{version}-{is_native}.ingot"
            path.write_bytes(with_digests(entries | {NAME: json.dumps(again).encode()}))
            loaded = load(path)
            with nullcontext() if is_native else pytest.warns(smelt.SmeltWarning, match=r"by aten\.rsqrt\.default"):
                agree(loaded(x), model(x))
            assert loaded.is_native is is_native
            if not is_native:
                with pytest.raises(smelt.PackageError, match=r"by aten\.rsqrt\.default"):
                    export(path, tmp_path / "build", target=targets()[0])
