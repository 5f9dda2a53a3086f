"""Plans kept on disk: the answers of passes and lowering, for other weights too; foreign, broken and old ones are not
believed, and a folder that refuses costs nothing but time.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.static import serialized_plans as kept_module
from smelt.codegen.lower.static.static_program import StaticProgram
from smelt.compiler import Unit, kept_plans, source_digest
from smelt.diag import SmeltWarning
from smelt.runtime.machine.cache import CodeCache, list_cache
from smelt.runtime.plan import Bump

pytestmark = pytest.mark.skipif(host_isa() is None, reason="own kernels are not built here")


@pytest.fixture(autouse=True)
def all_are_worth_it(plans_made_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "WORTH_MS", 0.0)


class Embedded(nn.Module):
    """Positions are folded at build time, the table is read live."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(50, 32), nn.Embedding(20, 32), nn.LayerNorm(32)
        self.out = nn.Linear(32, 50, bias=False)
        self.out.weight = self.words.weight
        self.register_buffer("ids", torch.arange(20)[None])

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.words(x) + self.places(self.ids[:, : x.shape[1]])))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).view(2, 16, 4, 8).transpose(1, 2) for p in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 16, 32)


class Counting(nn.Module):
    """Writes to a buffer, gives a view of another, and folds a sum of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(24, 40)), nn.Parameter(torch.randn(24, 40))
        self.register_buffer("calls", torch.zeros(3))
        self.register_buffer("table", torch.randn(4, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.calls.add_(1)
        return F.linear(x, self.a * 2 + self.b.flip(0)), self.table[1:, 2], x.masked_fill(x > 0, float("nan")).sum(0)


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64))


def floats(*sizes: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*sizes)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "feed forward": (feed_forward, floats(40, 64)),
    "few rows": (feed_forward, floats(1, 64)),
    "embedded": (Embedded, lambda: torch.randint(0, 50, (2, 11))),
    "attention": (Attending, floats(2, 16, 32)),
    "writes": (Counting, floats(33, 40)),
}


def compiled(model: nn.Module, folder: Path, **options: Any) -> Any:
    return smelt.compile(model, options={"cache_dir": str(folder), **options})


def unit_of(program: Any) -> Unit:
    (row,) = program.stats().rows
    assert isinstance(row.entry, Unit), row.reason
    return row.entry


def made(kind: str, seed: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model, x = PROGRAMS[kind]
    return model().eval(), x()


def call(program: Any, x: Tensor) -> Any:
    """The answer. The line of a call is part of the graph, so all stand in this one."""
    return program(x)


def called(model: nn.Module, x: Tensor, folder: Path, **options: Any) -> tuple[list[Any], Unit]:
    """The answers of two calls, and what computed the second."""
    program = compiled(model, folder, **options)
    with torch.no_grad():
        return [call(program, x), call(program, x)], unit_of(program)


def plans(folder: Path) -> list[Path]:
    return [file.path for file in list_cache(folder) if file.kind == kept_plans.KIND]


@pytest.mark.spread(10)
@pytest.mark.parametrize("options", [{}, {"dtype": "bf16"}, {"release_originals": True}, {"numerics": "fast"}], ids=str)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_other_weights_are_served_as_by_a_plan_of_their_own(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    _, first = called(*made(kind, 0), tmp_path, **options)
    assert not first.is_from_disk and not first.why_not_kept and len(plans(tmp_path)) == 1
    found, second = called(*made(kind, 1), tmp_path, **options)
    assert second.is_from_disk
    expected, alone = called(*made(kind, 1), tmp_path, keep_plans=False, **options)
    assert not alone.is_from_disk
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert alone.lowered is not None and second.lowered is not None
    assert (second.lowered.constants, second.lowered.handles) == (alone.lowered.constants, alone.lowered.handles)


@pytest.mark.spread(6)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_weights_that_change_are_seen(kind: str, tmp_path: Path) -> None:
    called(*made(kind, 0), tmp_path)
    model, x = made(kind, 1)
    program = compiled(model, tmp_path)
    with torch.no_grad():
        call(program, x)
        assert unit_of(program).is_from_disk
        for change in (lambda p: p.mul_(2), lambda p: setattr(p, "data", p.data.flip(0).clone())):
            for parameter in model.parameters():
                change(parameter)
            torch.testing.assert_close(call(program, x), model(x), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_an_update_in_place_is_one_from_disk_too(tmp_path: Path) -> None:
    for seed in (0, 1):
        model, x = made("writes", seed)
        _, unit = called(model, x, tmp_path)
        assert unit.is_from_disk == bool(seed) and unit.lowered is not None
        assert sum(isinstance(i, Bump) for i in unit.lowered.plan.instructions) == 1
        assert model.calls.tolist() == [2.0] * 3 and model.calls._version == 2


def test_weights_that_change_before_they_are_packed(tmp_path: Path) -> None:
    """Between the first call, which records, and the second, which is the first to need them packed."""
    for seed in (0, 1):
        model, x = made("feed forward", seed)
        program = compiled(model, tmp_path)
        with torch.no_grad():
            call(program, x)
            assert unit_of(program).is_from_disk == (seed > 0)
            model[0].weight.neg_()
            torch.testing.assert_close(call(program, x), model(x), rtol=1e-4, atol=1e-4)
            model[3].load_state_dict({k: v * 3 for k, v in model[3].state_dict().items()})
            torch.testing.assert_close(call(program, x), model(x), rtol=1e-4, atol=1e-4)


def test_no_weight_is_written(tmp_path: Path) -> None:
    model, x = made("embedded", 0)
    called(model, x, tmp_path)
    (path,) = plans(tmp_path)
    content = path.read_bytes()
    for parameter in (model.words.weight, model.places.weight):
        assert parameter.detach().flatten()[:4].numpy().tobytes() not in content


def test_options_settings_and_source_have_plans_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("feed forward", 0)

    def is_new(**options: Any) -> bool:
        return not called(model, x, tmp_path, **options)[1].is_from_disk

    assert is_new() and not is_new()
    for options in ({"skip": ["cse"]}, {"own_kernels": False}, {"numerics": "fast"}, {"deterministic": True}):
        assert is_new(**options) and not is_new(**options)
    assert not is_new(cache_limit_mb=100) and not is_new(verify=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert is_new() and not is_new()
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setenv("SMELT_ISA", "baseline")
    assert is_new()
    monkeypatch.delenv("SMELT_ISA")
    assert not is_new()
    with monkeypatch.context() as another:
        another.setattr(torch, "__version__", "2.0.0")
        kept_plans._machine.cache_clear()
        assert is_new() and not is_new()
    kept_plans._machine.cache_clear()
    assert not is_new()
    monkeypatch.setattr(kept_plans, "source_digest", lambda: "0" * 64)
    assert is_new() and not is_new()
    monkeypatch.setattr(kept_plans, "source_digest", lambda: "")
    before = plans(tmp_path)
    assert is_new() and is_new() and plans(tmp_path) == before


def test_the_source_digest_is_that_of_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in source_digest._PACKAGES:
        (tmp_path / package).mkdir()
    file = tmp_path / "passes" / "cse.py"
    file.write_text("a = 1\n")
    monkeypatch.setattr(source_digest.anchor, "__file__", str(tmp_path / "diag" / "__init__.py"))

    def digest() -> str:
        return source_digest.source_digest.__wrapped__()

    times = file.stat()
    first = digest()
    file.write_text("a = 2\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = digest()
    file.write_text("a = 1\n")
    (tmp_path / "ir" / "more.py").write_text("")
    assert len({first, second, digest()}) == 3


class Foreign:
    """What a pickle could call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("called",)


@pytest.mark.spread(2)
@pytest.mark.parametrize("fault", ["bit", "cut", "no pickle", "another object", "a call"])
def test_what_is_no_plan_is_made_again(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    model, x = made("feed forward", 0)
    called(model, x, folder)
    (path,) = plans(folder)
    key = path.name.split(".")[0]
    assert CodeCache(str(folder)).take(key, kept_plans.KIND) is not None
    if fault in ("bit", "cut"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data if fault == "bit" else data[:-40])
    else:
        bad = {
            "no pickle": b"\x80garbage",
            "another object": pickle.dumps({"a": 1}),
            "a call": pickle.dumps(Foreign()),
        }[fault]
        CodeCache(str(folder)).keep(key, bad, kept_plans.KIND)
    monkeypatch.chdir(tmp_path)
    found, unit = called(model, x, folder)
    assert not unit.is_from_disk and not (tmp_path / "called").exists()
    with torch.no_grad():
        torch.testing.assert_close(found[1], model(x), rtol=1e-4, atol=1e-4)
    assert called(model, x, folder)[1].is_from_disk


def test_a_state_of_another_type_is_not_read_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a key were too short, the types of what is held would still be looked at."""
    monkeypatch.setattr(kept_plans.KeptPlans, "key", lambda *_: "ab" * 32)
    called(*made("feed forward", 0), tmp_path)
    for other in ("few rows", "attention"):
        model, x = made(other, 0)
        if other == "few rows":
            model = model.double()
            x = x.double()
        found, unit = called(model, x, tmp_path)
        assert not unit.is_from_disk
        with torch.no_grad():
            torch.testing.assert_close(found[1], model(x), rtol=1e-4, atol=1e-4)


class Shifted(nn.Module):
    """Its graph's text does not tell whether the buffer is conjugated, or its memory holds the negated elements."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        part = self.table.imag if self.table.is_complex() else self.table
        return part + x, x @ part


@pytest.mark.spread(4)
@pytest.mark.filterwarnings("ignore:.*holds the negated elements:smelt.diag.SmeltWarning")
@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)], ids=str)
@pytest.mark.parametrize("kind", ["conjugated", "negated"])
def test_bits_of_the_state_are_no_part_of_a_plan(kind: str, order: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, table = torch.randn(4, 4), torch.randn(4, 4, dtype=torch.complex64)
    both = [table, table.conj()] if kind == "conjugated" else [table.imag, table.conj().imag]
    for which in order:
        model = Shifted(both[which])
        program = compiled(model, tmp_path)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(call(program, x), model(x))


def test_what_lies_otherwise_is_not_held_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that folds weights may lay its result otherwise than in the process that made the plan."""
    called(*made("embedded", 0), tmp_path)
    run = StaticProgram.run
    monkeypatch.setattr(StaticProgram, "run", lambda self, state: run(self, state).t().contiguous().t())
    model, x = made("embedded", 1)
    found, unit = called(model, x, tmp_path)
    assert not unit.is_from_disk
    monkeypatch.undo()
    with torch.no_grad():
        torch.testing.assert_close(found[1], model(x), rtol=1e-4, atol=1e-4)


def test_an_error_that_a_kernel_leaves_to_eager(tmp_path: Path) -> None:
    model, x = made("embedded", 0)
    called(model, x, tmp_path)
    program = compiled(model, tmp_path)
    with torch.no_grad():
        call(program, x)
        assert unit_of(program).is_from_disk
        with pytest.raises(IndexError) as eager:
            model(torch.full_like(x, 50))
        for _ in range(2):
            with pytest.raises(IndexError) as found:
                call(program, torch.full_like(x, 50))
            assert str(found.value) == str(eager.value)
        torch.testing.assert_close(call(program, x), model(x))
    assert not program.stats().fallbacks


def test_eager_computations_of_another_lowering_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("embedded", 0)
    called(model, x, tmp_path, strict=True)
    program = compiled(model, tmp_path, strict=True)
    monkeypatch.setattr(kept_module, "digest_of", lambda plan: "another")
    with torch.no_grad():
        call(program, x)
        assert unit_of(program).is_from_disk
        with pytest.raises(smelt.SmeltError, match="cached on disk"):
            call(program, torch.full_like(x, 50))


def test_python_and_foreign_operators_are_not_kept(tmp_path: Path) -> None:
    with torch.library._scoped_library("smelt_kept", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        program = smelt.compile(lambda x: torch.ops.smelt_kept.twice(x) + 1, options={"cache_dir": str(tmp_path)})
        with torch.no_grad():
            assert call(program, torch.ones(3)).tolist() == [3.0] * 3
            assert call(program, torch.ones(3)).tolist() == [3.0] * 3
    assert not plans(tmp_path)


def test_what_follows_from_contents_is_not_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(16, 16, 3, padding=1).eval()
    x = torch.randn(1, 16, 14, 14)
    _, unit = called(model, x, tmp_path)
    assert unit.why_not_kept and not plans(tmp_path)


@pytest.mark.spread(2)
@pytest.mark.parametrize("fault", ["full", "in the way"])
def test_a_folder_that_refuses_costs_time_only(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    model, x = made("feed forward", 0)
    if fault == "in the way":
        folder.write_text("no folder")
    else:

        def refuse(*_: object, **__: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tempfile.mkstemp", refuse)
    program = compiled(model, folder)
    with torch.no_grad(), pytest.warns(SmeltWarning, match="not cached on disk") as told:
        first, second = call(program, x), call(program, x)
    assert len(told) == 1 and not unit_of(program).is_from_disk
    with torch.no_grad():
        torch.testing.assert_close([first, second], [model(x)] * 2, rtol=1e-4, atol=1e-4)


def test_programs_at_once(tmp_path: Path) -> None:
    """Each reads what is there or makes it; nobody reads half of it."""
    found: list[bool] = []

    model, x = made("feed forward", 0)
    with torch.no_grad():
        expected = model(x)

    def work() -> None:
        with torch.no_grad():
            for _ in range(3):
                program = compiled(model, tmp_path)
                found.append(all(torch.allclose(call(program, x), expected, atol=1e-4) for _ in range(3)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 9 and len(plans(tmp_path)) <= 1


def test_explain_shows_what_another_process_did(tmp_path: Path) -> None:
    model, x = made("feed forward", 0)
    called(model, x, tmp_path)
    program = compiled(model, tmp_path)
    with torch.no_grad():
        call(program, x)
    report = smelt.explain(program)
    (graph,) = report.graphs
    assert "from the disk cache" in graph["plan"] and graph["nodes optimized"] and report.kernels and report.passes
    assert graph["optimized"] and "layer_norm" in str(report)


def test_without_a_folder_nothing_is_kept() -> None:
    model, x = made("feed forward", 0)
    for _ in range(2):
        program = smelt.compile(model, options={"cache_dir": ""})
        with torch.no_grad():
            call(program, x)
        unit = unit_of(program)
        assert not unit.is_from_disk
