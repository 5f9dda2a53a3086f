"""Weights that kernels read in panels are in the file so, once, and everywhere else what they were."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.package.c.export import export
from smelt.package.onnx.export import export_onnx
from smelt.runtime.ingot import natives
from smelt.runtime.ingot.late_parameters import LateParameters
from smelt.runtime.ingot.load import load
from smelt.runtime.ingot.natives import NativeText, targets
from smelt.runtime.ingot.texts import held_json
from smelt.runtime.ingot.texts.held_json import Packed
from tests.codegen.harness import rms_ratio
from tests.ingots_c.client import Library


class Layer(nn.Module):
    """Weights of one merged product, of a product alone, of another orientation, under two names, and of two uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.q, self.k, self.v = (nn.Linear(48, 48) for _ in range(3))
        self.out, self.again = nn.Linear(48, 80), nn.Linear(48, 80)
        self.again.weight = self.out.weight
        self.turned = nn.Parameter(torch.randn(80, 48))
        self.both = nn.Linear(48, 48)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(self.q(x) @ self.k(x).t(), -1) @ self.v(x)
        z = self.out(y) + self.again(y + 1)
        return self.both(z @ self.turned) + self.both.weight[:40]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Layer, Tensor]:
    model, x = Layer().eval(), torch.randn(40, 48)
    with torch.no_grad():
        smelt.trace(model, (x,)).save(tmp_path / "m.ingot")
    return tmp_path / "m.ingot", model, x


def check(found: Tensor, model: Layer, x: Tensor) -> None:
    """As exact as eager: sums over all rows grow with the weights, and with them what rounding makes of them."""
    assert rms_ratio(found, model(x), copy.deepcopy(model).double()(x.double())) <= 1.5


def late(program: smelt.LoadedProgram) -> set[str]:
    """The parameters that nobody has asked for."""
    found = set()
    for path, module in program.named_modules():
        held = module._parameters
        found |= {
            f"{path}.{name}".lstrip(".") for name in held if isinstance(held, LateParameters) and held.is_late(name)
        }
    return found


PACKED = {"q.weight", "k.weight", "v.weight", "out.weight", "again.weight", "turned"}


def test_nothing_is_packed_at_loading(saved: tuple[Path, Layer, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, x = saved
    packed: list[Any] = []
    monkeypatch.setattr(held_json.Packing, "run", lambda self: packed.append(self))
    loaded = load(path)
    with torch.no_grad():
        loaded(x)
    assert late(loaded) == PACKED and len(packed) == 1  # `both` is there row by row


def test_every_target_reads_the_same_panels(saved: tuple[Path, Layer, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that do not run here."""
    path, model, x = saved
    contents = load(path)._contents
    manifest = contents.manifest
    method = manifest.methods["forward"]
    panels = {}
    for target, name in method.native.items():
        code = contents.entry(manifest.kernels[target])
        text = NativeText.read(contents.json(name), code, method, len(manifest.state))
        stored = [recipe.stored for _, recipe in text.held if isinstance(recipe, Packed) and recipe.stored is not None]
        panels[target] = sorted(each.stored for each in stored)
    assert panels.keys() == {"avx512", "avx2", "neon"} and len(panels["avx2"]) == 5  # out and again are one
    assert panels["avx512"] == panels["avx2"] == panels["neon"]
    plain = sum(parameter.nbytes for parameter in model.parameters())
    assert contents._archive.entries["weights.safetensors"].nbytes < plain + 4096  # a header, and between tensors
    for target in targets():
        monkeypatch.setenv("SMELT_ISA", target)
        loaded = load(path)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(x))
        assert loaded.is_native and late(loaded) == PACKED


def test_parameters_are_what_they_were(saved: tuple[Path, Layer, Tensor]) -> None:
    path, model, x = saved
    with torch.no_grad():
        wanted = load(path)(x)
    for read in (
        lambda p: p.state_dict(),
        lambda p: dict(p.named_parameters(remove_duplicate=False)),
        lambda p: {name: p.get_parameter(name) for name, _ in model.named_parameters(remove_duplicate=False)},
        lambda p: dict(p.named_state()),
    ):
        loaded = load(path)
        found = read(loaded)
        assert found.keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            assert torch.equal(found[name], tensor) and found[name].stride() == tensor.stride()
        assert late(loaded) == set() and loaded.again.weight is loaded.out.weight
        assert loaded.q.weight is loaded.q.weight and isinstance(loaded.q.weight, nn.Parameter)
        with torch.no_grad():
            assert torch.equal(loaded(x), wanted)  # natively, as nothing has changed
        assert loaded.is_native


def test_weights_that_change(saved: tuple[Path, Layer, Tensor], tmp_path: Path) -> None:
    path, model, x = saved
    loaded, other = load(path), copy.deepcopy(model)
    with torch.no_grad():
        loaded(x)
        for parameter in other.parameters():
            parameter.mul_(1.5)
        loaded.load_state_dict(other.state_dict())
        check(loaded(x), other, x)
        loaded.save(tmp_path / "other.ingot")
        again = load(tmp_path / "other.ingot")
        check(again(x), other, x)
        assert late(again) == PACKED
        # One that nobody has read is replaced.
        fresh = load(path)
        fresh.q.weight = nn.Parameter(torch.zeros(48, 48))
        model.q.weight = fresh.q.weight
        check(fresh(x), model, x)
        # In a copy, too, and there alone.
        one = load(path)
        one.out.weight.mul_(2)
        two = copy.deepcopy(one)
        two.k.weight.zero_()
        assert two.again.weight is two.out.weight and two.out.weight is not one.out.weight
        assert torch.equal(one.k.weight, model.k.weight) and torch.equal(two.out.weight, one.out.weight)
        assert not torch.equal(one(x), two(x))


def test_a_weight_that_changes_while_native_code_is_loaded(
    saved: tuple[Path, Layer, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the first call sees it is open; later ones do."""
    path, model, x = saved
    for name in ("q.weight", "both.weight"):  # from panels; packed at loading
        loaded, other = load(path), copy.deepcopy(model)

        def run_and_change(packings: Any, threads: int, loaded: Any = loaded, name: str = name) -> None:
            for packing in packings:
                packing.run()
            with torch.no_grad():
                loaded.get_parameter(name).mul_(2)

        with monkeypatch.context() as patched, torch.no_grad():
            patched.setattr(natives, "_run_all", run_and_change)
            loaded(x)
        with torch.no_grad():
            other.get_parameter(name).mul_(2)
            check(loaded(x), other, x)
        assert loaded.is_native


def test_saving_again(saved: tuple[Path, Layer, Tensor], tmp_path: Path) -> None:
    path, _, x = saved
    for touch in (lambda p: None, lambda p: p(x), lambda p: p.state_dict()):
        loaded = load(path)
        with torch.no_grad():
            touch(loaded)
        loaded.save(tmp_path / "again.ingot")
        assert (tmp_path / "again.ingot").read_bytes() == path.read_bytes()


def test_gradients_and_text(saved: tuple[Path, Layer, Tensor]) -> None:
    path, model, x = saved
    loaded = load(path)
    loaded(x).sum().backward()
    model(x).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(loaded.get_parameter(name).grad, parameter.grad)
    with torch.no_grad():
        torch.testing.assert_close(load(path, allow_native=False)(x), model(x))
    assert load(path).to(torch.float64).q.weight.dtype is torch.float64


class Returning(nn.Module):
    """A weight that products read is a result, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.outer(self.inner(x)), self.inner.weight, self.outer.weight.t()


def test_other_forms_of_the_program_have_plain_weights(saved: tuple[Path, Layer, Tensor], tmp_path: Path) -> None:
    path, model, x = saved
    runtime = pytest.importorskip("onnxruntime")
    made = export_onnx(path, tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {made.inputs[0]: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(x))
        context = Library(made_c := export(path, tmp_path / "c")).open(made_c.weights).context()
        assert torch.equal(context.call("forward", x)[0], load(path)(x))
        returning, x = Returning().eval(), torch.randn(40, 32)
        smelt.trace(returning, (x,)).save(tmp_path / "r.ingot")
        loaded = load(tmp_path / "r.ingot")
        torch.testing.assert_close(loaded(x), returning(x))
        assert loaded(x)[1] is loaded.inner.weight and loaded.is_native
        context = Library(made_c := export(tmp_path / "r.ingot", tmp_path / "r")).open(made_c.weights).context()
        for one, other in zip(context.call("forward", x), loaded(x), strict=True):
            assert torch.equal(one, other)


def test_the_dictionary_of_late_parameters() -> None:
    made: list[str] = []

    def late_one(name: str) -> Any:
        return lambda: made.append(name) or nn.Parameter(torch.zeros(1))

    def fresh() -> LateParameters:
        found = LateParameters()
        found["bias"] = None
        found.put_late("weight", late_one("weight"))
        made.clear()
        return found

    for read in (
        lambda d: d["weight"], lambda d: d.get("weight"), lambda d: dict(d)["weight"], lambda d: {**d}["weight"],
        lambda d: list(d.values())[1], lambda d: dict(d.items())["weight"], lambda d: d.copy()["weight"],
        lambda d: d.pop("weight"), lambda d: copy.copy(d)["weight"], lambda d: pickle.loads(pickle.dumps(d))["weight"],
        lambda d: (d | {})["weight"],
    ):  # fmt: skip
        found = fresh()
        assert isinstance(read(found), nn.Parameter) and made == ["weight"], read
        assert not found.is_late("weight")
    found = fresh()
    assert list(found) == ["bias", "weight"] and "weight" in found and len(found) == 2 and made == []
    assert found.get("nothing", 3) == 3 and found.pop("nothing", 4) == 4
    found["weight"] = None
    assert found["weight"] is None and made == []
    found = fresh()
    del found["weight"]
    assert "weight" not in found and made == [] and not found.is_late("weight")
    with pytest.raises(KeyError):
        found.pop("weight")
