"""`options={"release_originals": True}`: memory goes, and everything about the parameters stays."""

from __future__ import annotations

import copy
import errno
import io
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt._torch import storage
from smelt.compiler.object import originals

RELEASE = {"release_originals": True, "deterministic": True}
SIZE = 256  # 256 KiB a weight


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Addresses of what was handed back, also on a kernel that cannot take single pages."""
    given: list[int] = []
    release = originals.release

    def noting(tensors: Any) -> int:
        tensors = list(tensors)
        given.extend(t.data_ptr() for t in tensors if t.data_ptr() in originals._mappings)
        return release(tensors)

    monkeypatch.setattr("smelt.compiler.unit.release", noting)
    return given


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.small = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.small(self.down(torch.tanh(self.up(x))))


def net() -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randn(64, SIZE)


def is_mapped(tensor: Tensor) -> bool:
    return tensor.data_ptr() in originals._mappings


def memory(compiled: Any) -> dict[str, Any]:
    return {row["what"]: row for row in smelt.explain(compiled).memory}


@pytest.mark.parametrize("how", ["compile", "trace"])
def test_answers_identity_and_values_stay(how: str, released: list[int], tmp_path: Path) -> None:
    model, x = net()
    expected, before = model(x), {k: v.clone() for k, v in model.state_dict().items()}
    parameters, versions = list(model.parameters()), [p._version for p in model.parameters()]
    options = {**RELEASE, "cache_dir": str(tmp_path)}
    run = smelt.compile(model, options=options) if how == "compile" else smelt.trace(model, x, options=options)
    for _ in range(3):
        torch.testing.assert_close(run(x), expected)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert [p._version for p in model.parameters()] == versions
    assert is_mapped(model.up.weight) and is_mapped(model.down.weight) and not is_mapped(model.small.weight)
    assert {model.up.weight.data_ptr(), model.down.weight.data_ptr()} <= set(released)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert torch.equal(model(x), expected)
    assert not list(tmp_path.glob("smelt-originals-*"))  # nobody finds the file by name
    assert memory(run)["originals released"]["bytes"] in (0, 2 * SIZE * SIZE * 4)
    assert memory(run)["originals of packed and folded"]["bytes"] >= 2 * SIZE * SIZE * 4
    if how == "compile":
        assert (run.stats().builds, run.stats().fallbacks) == (1, {})


def test_a_program_for_all_sizes_releases_too(released: list[int]) -> None:
    model, x = net()
    compiled = smelt.compile(model, options=RELEASE, dynamic=True)
    for rows in (64, 96, 33):
        torch.testing.assert_close(compiled(x[:1].expand(rows, SIZE).contiguous()), model(x[:1].expand(rows, SIZE)))
    assert compiled.stats().builds == 1
    assert {model.up.weight.data_ptr(), model.down.weight.data_ptr()} <= set(released)


def test_a_write_to_an_original_is_kept_and_noticed() -> None:
    model, x = net()
    compiled = smelt.compile(model, options=RELEASE)
    compiled(x)
    compiled(x)
    model.up.weight.mul_(3)
    model.down.weight.data[0, 0] = 77.0
    expected = model(x)
    assert originals.release([model.up.weight, model.down.weight]) >= 0  # pages that were written do not go
    assert model.down.weight[0, 0] == 77.0
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)
    assert torch.equal(model(x), expected)


def test_copies_pickles_and_moves_have_memory_of_their_own() -> None:
    model, x = net()
    expected = model(x)
    smelt.compile(model, options=RELEASE)(x)
    twin = copy.deepcopy(model)
    assert not is_mapped(twin.up.weight)
    twin.up.weight.zero_()
    assert torch.equal(model(x), expected)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert file.tell() < 3 * SIZE * SIZE * 4
    file.seek(0)
    twin.load_state_dict(torch.load(file))
    assert torch.equal(twin(x), expected)
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})
    assert torch.equal(model.up.weight, twin.up.weight * 2)
    assert model.double().up.weight.dtype is torch.float64


def test_a_mapping_goes_with_its_last_tensor() -> None:
    model, _ = net()
    originals.move_parameters(model, "")
    address = model.up.weight.data_ptr()
    assert address in originals._mappings
    held = model.up.weight.detach()
    model.up.weight = nn.Parameter(torch.zeros(SIZE, SIZE))
    assert held.sum() != 0
    del held
    assert address not in originals._mappings


def test_memory_that_others_hold_is_not_moved() -> None:
    model, x = net()
    view, array = model.up.weight.data, model.down.weight.numpy()
    compiled = smelt.compile(model, options=RELEASE)
    compiled(x)
    assert not is_mapped(model.up.weight) and not is_mapped(model.down.weight)
    view.zero_()
    assert model.up.weight.sum() == 0
    array[:] = 1
    assert model.down.weight.sum() == SIZE * SIZE
    assert "referenced by the module alone" in memory(compiled)["originals released"]["note"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_parameters_of_a_mapped_checkpoint_stay_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is written; what the checkpoint's memory is shared with does not matter, and writes stay."""
    model, x = net()
    expected = model(x)
    torch.save(model.state_dict(), tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", mmap=True)
    if originals._is_in_memory(tmp_path):
        pytest.skip("temporary files are in memory here")
    model.load_state_dict(state, assign=True)
    addresses = [p.data_ptr() for p in model.parameters()]
    told: list[int] = []
    page_out = originals._page_out
    monkeypatch.setattr(originals, "_page_out", lambda t: (told.append(t.data_ptr()), page_out(t)))
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    compiled = smelt.compile(model, options=RELEASE)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert {model.up.weight.data_ptr(), model.down.weight.data_ptr()} <= set(told)
    assert compiled.stats().fallbacks == {} and "note" not in memory(compiled)["originals released"]
    assert torch.equal(model(x), expected)
    model.up.weight.mul_(2)
    expected = model(x)
    assert originals.release([model.up.weight, model.down.weight]) == 2 * SIZE * SIZE * 4
    assert torch.equal(model(x), expected)
    torch.testing.assert_close(compiled(x), expected)
    assert torch.equal(state["up.weight"], model.up.weight)


def test_tied_weights_stay_tied() -> None:
    model, x = net()
    model.down.weight = model.up.weight
    smelt.compile(model, options=RELEASE)(x)
    assert model.down.weight is model.up.weight and is_mapped(model.up.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_dtype_keeps_its_bits(dtype: torch.dtype) -> None:
    layer = nn.Linear(SIZE, SIZE).to(dtype)
    layer.weight[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40]).to(dtype)
    before = layer.weight.detach().clone().view(torch.uint8)
    assert originals.move_parameters(layer, "").count == 1
    assert torch.equal(layer.weight.detach().view(torch.uint8), before)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(8, 8),
        nn.Linear(SIZE, SIZE, device="meta"),
        nn.ParameterList([nn.Parameter(torch.randn(SIZE, SIZE).t())]),
        nn.ParameterList([nn.Parameter(torch.randn(2 * SIZE, SIZE)[:SIZE])]),
    ],
)
def test_what_is_not_moved(layer: nn.Module) -> None:
    pointers = [p.data_ptr() for p in layer.parameters()]
    assert originals.move_parameters(layer, "").why_not
    assert [p.data_ptr() for p in layer.parameters()] == pointers


def test_a_function_has_no_parameters_to_move() -> None:
    layer, x = nn.Linear(SIZE, SIZE), torch.randn(64, SIZE)
    compiled = smelt.compile(lambda a: layer(a), options=RELEASE)
    compiled(x)
    assert "module" in memory(compiled)["originals released"]["note"]
    assert not is_mapped(layer.weight)


def test_a_full_disk_and_a_folder_in_memory_leave_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    model, x = net()
    expected = model(x)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    compiled = smelt.compile(model, options=RELEASE)
    torch.testing.assert_close(compiled(x), expected)
    assert "No space left" in memory(compiled)["originals released"]["note"]
    monkeypatch.undo()
    model, _ = net()
    monkeypatch.setattr(originals, "_is_in_memory", lambda folder: True)
    assert "is itself in memory" in originals.move_parameters(model, "").why_not
    assert not is_mapped(model.up.weight)


def test_file_systems_in_memory_are_known() -> None:
    in_memory = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if " tmpfs " in line]
    for folder in in_memory[:3]:
        assert originals._is_in_memory(Path(folder))
    assert not originals._is_in_memory(Path("/proc"))


def test_without_what_it_needs_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = net()
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    assert not storage.is_sole_owner(model.up.weight)
    assert originals.move_parameters(model, "").why_not
    monkeypatch.undo()
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    assert "this system" in originals.move_parameters(model, "").why_not


def test_a_kernel_that_cannot_hand_pages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = net()
    assert originals.move_parameters(model, "").count == 2
    monkeypatch.setattr(originals, "_PAGE_OUT", 9999)
    assert originals.release(model.parameters()) == 0
    assert originals.release([torch.zeros(3)]) == 0


def test_off_by_default() -> None:
    model, x = net()
    compiled = smelt.compile(model, options={"deterministic": True})
    compiled(x)
    assert not is_mapped(model.up.weight)
    assert "originals released" not in memory(compiled)


def test_a_folded_weight_that_was_packed_is_not_held_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.compiler.pipeline.narrowing_pays", lambda node, options: True)
    model, x = net()
    program = smelt.trace(model, x, options={"dtype": "bf16", "deterministic": True})
    program(x)
    assert program.unit.lowered is not None
    held = [t for _, t in program.unit.lowered.plan.held if t.layout is torch.strided]
    plain = [t for t in held if t.dtype is torch.bfloat16 and t.shape == (SIZE, SIZE)]
    # Without AVX-512 nothing is packed: the products read these two.
    assert len(plain) == (0 if torch.backends.cpu.get_cpu_capability() in ("AVX512", "AMX") else 2)
