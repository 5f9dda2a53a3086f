"""Saved programs are the programs: in a process that has neither their source nor the compiler."""

from __future__ import annotations

import copy
import gzip
import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import smelt
from smelt.compiler.programs import saving
from smelt.runtime.ingot.load import load
from smelt.runtime.ingot.manifest import FORMAT
from smelt.runtime.ingot.natives import targets
from smelt.runtime.ingot.tensors import raw
from tests.forked import light_forks
from tests.golden import stages
from tests.golden.text import read
from tests.ingots.fuzz import entries_of
from tests.ingots.programs import Convolved, Counter, Mlp, Pair, Tied, accumulate, branches, cases, collatz, looked_up

ELSEWHERE = """
import pickle, sys
import torch
import smelt
loaded = {}
def plain(v):  # classes that exist in this process only
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    return {k: plain(x) for k, x in v.items()} if isinstance(v, dict) else v
with torch.no_grad(), open(sys.argv[1], "rb") as file:
    cases = pickle.load(file)
    for name, (path, calls) in cases.items():
        program = smelt.load(path)
        torch.manual_seed(3)
        loaded[name] = [program.is_native, program.why_not_native(), [plain(program(*a, **k)) for a, k in calls]]
bad = [m for m in sys.modules if m.split(".")[0] in ("llvmlite", "sympy", "tests", "transformers")
       or m.startswith(("smelt.compiler", "smelt.codegen", "smelt.capture", "smelt.ir", "smelt.ops", "smelt.passes"))]
with open(sys.argv[2], "wb") as file:
    pickle.dump((loaded, bad), file)
"""


def elsewhere(tmp_path: Path, saved: dict[str, tuple[Path, list[Any]]]) -> dict[str, Any]:
    """What a process without the source gives for the calls; it must not reach for the compiler."""
    given, got = tmp_path / "calls.pickle", tmp_path / "got.pickle"
    given.write_bytes(pickle.dumps({name: (str(path), calls) for name, (path, calls) in saved.items()}))
    light_forks().run(f"import sys; sys.argv = {['', str(given), str(got)]!r}\n{ELSEWHERE}", tmp_path)
    loaded, bad = pickle.loads(got.read_bytes())
    assert bad == []
    return dict(loaded)


def flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in (key, *flat(item))]
    return [value]


def agree(one: Any, other: Any) -> None:
    """Equal up to the rounding of another order of operations."""
    a, b = flat(one), flat(other)
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, right, rtol=2e-5 if left.dtype != torch.bfloat16 else 2e-2, atol=1e-6)
        else:
            assert left == right and type(left) is type(right)


def _other_numbers(value: Any) -> Any:
    return torch.randn_like(value) if isinstance(value, Tensor) and value.is_floating_point() else value


class TestFreshProcess:
    def test_gives_what_the_program_gave(self, tmp_path: Path) -> None:
        saved, wanted = {}, {}
        with torch.no_grad():
            for name, (make, args, kwargs) in cases().items():
                program = make()
                path = tmp_path / f"{name}.ingot"
                program.save(path)
                torch.manual_seed(3)
                wanted[name] = program(*args, **kwargs)
                saved[name] = path, [(args, kwargs)]
        found = elsewhere(tmp_path, saved)
        for name, (is_native, why_not, results) in found.items():
            assert is_native, f"{name}: {why_not}"
            agree(results[0], wanted[name])

    def test_the_seeds_programs_give_what_they_gave(self, tmp_path: Path) -> None:
        saved, wanted = {}, {}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", smelt.SmeltWarning)
            for case in read(Path(stages.__file__).parent / "cases" / "seeds.txt"):
                if case.how != "stage: graph":
                    continue
                with stages.program(case.before) as (target, args, kwargs):
                    given = tree_map(_other_numbers, (args, kwargs))
                    smelt.trace(target, args, kwargs).save(tmp_path / case.name)
                    wanted[case.name] = target(*given[0], **given[1])
                    saved[case.name] = tmp_path / case.name, [given]
        assert len(saved) == 6
        for name, (is_native, why_not, results) in elsewhere(tmp_path, saved).items():
            assert is_native, f"{name}: {why_not}"
            torch.testing.assert_close(results[0], wanted[name])

    def test_control_flow_takes_each_of_its_paths(self, tmp_path: Path) -> None:
        x = torch.randn(3, 3)
        calls = {"while": [torch.tensor(n) for n in (1, 6, 97)], "if": [x.abs(), -x.abs() - 5, -x.abs() / 9]}
        programs = {"while": smelt.trace(collatz, (torch.tensor(3),)), "if": smelt.trace(branches, (x,))}
        saved = {}
        for name, program in programs.items():
            program.save(tmp_path / name)
            saved[name] = tmp_path / name, [((given,), {}) for given in calls[name]]
        found = elsewhere(tmp_path, saved)
        for name, given in calls.items():
            function = collatz if name == "while" else branches
            agree(found[name][2], [function(each) for each in given])

    def test_state_goes_on_and_is_reset(self, tmp_path: Path) -> None:
        model = Counter().eval()
        xs = [torch.randn(1, 4) for _ in range(3)]
        with torch.no_grad():
            program = smelt.trace(copy.deepcopy(model), (xs[0],))  # one row is written
            program.save(tmp_path / "counter")
            first, second = program(xs[1]), program(xs[2])
            found = elsewhere(tmp_path, {"counter": (tmp_path / "counter", [((x,), {}) for x in xs[1:]])})
            agree(found["counter"][2], [first, second])
            loaded = load(tmp_path / "counter")
            agree([loaded(xs[1]), loaded(xs[2])], [first, second])
            assert int(loaded.at) == 3
            agree(loaded.reset()(xs[1]), first)
            assert int(loaded.at) == 2
            other = copy.deepcopy(loaded)
            other(xs[0])
            assert (int(other.at), int(loaded.at)) == (3, 2)

    def test_a_fresh_import_is_light(self) -> None:
        code = "import torch, sys; import smelt; print([m for m in sys.modules if m.startswith('smelt')])"
        assert len(eval(light_forks().run(code))) < 20


class TestFile:
    def test_saving_what_was_loaded_gives_the_same_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        with torch.no_grad():
            smelt.trace(Tied().eval(), (torch.tensor([[1, 2]]),)).save(path, extra_files={"vocabulary.txt": b"a b c"})
        loaded, buffer = load(path), io.BytesIO()
        loaded.save(buffer)
        assert buffer.getvalue() == path.read_bytes()
        assert loaded.extra_files == {"vocabulary.txt": b"a b c"}
        again = load(buffer.getvalue())
        assert torch.equal(again(torch.tensor([[3, 4]])), loaded(torch.tensor([[3, 4]])))

    def test_other_tools_read_it(self, tmp_path: Path) -> None:
        safetensors = pytest.importorskip("safetensors.torch")
        model = Mlp().eval()
        smelt.trace(model, (torch.randn(3, 16),)).save(tmp_path / "m.ingot")
        with zipfile.ZipFile(tmp_path / "m.ingot") as archive:
            assert archive.testzip() is None
            weights = safetensors.load(archive.read("weights.safetensors"))
            assert json.loads(archive.read("manifest.json"))["format"] == FORMAT
            text = gzip.decompress(archive.read("graphs/forward.txt.gz")).decode()
        for name, parameter in model.named_parameters():
            assert torch.equal(weights[name], parameter)
        assert str(smelt.parse(text)) == text

    def test_passes_run_once_for_all_targets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And each target has a graph of its own: lowering for one leaves nothing in that of the next."""
        program, run = smelt.trace(Convolved().eval(), (torch.randn(1, 3, 6, 6),)), saving.optimized_graph
        alone, together, graphs = [], io.BytesIO(), []
        for target in ("avx512", "avx2", "neon"):
            program.save(one := io.BytesIO(), targets=[target])
            alone.append(entries_of(one.getvalue())[f"code/{target}/forward.json"])
        monkeypatch.setattr(saving, "optimized_graph", lambda *args: graphs.append(args[0]) or run(*args))
        program.save(together)
        entries = entries_of(together.getvalue())
        assert len(graphs) == 1
        assert alone == [entries[f"code/{target}/forward.json"] for target in ("avx512", "avx2", "neon")]

    def test_weights_are_there_once_and_stay_tied(self, tmp_path: Path) -> None:
        model = Tied().eval()
        smelt.trace(model, (torch.tensor([[1, 2]]),)).save(tmp_path / "m.ingot", targets=[])
        loaded = load(tmp_path / "m.ingot")
        assert loaded.out.weight is loaded.embedding.weight
        assert list(loaded.state_dict()) == list(model.state_dict())
        assert sum(1 for _ in loaded.parameters()) == sum(1 for _ in model.parameters())

    def test_a_failed_save_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = smelt.trace(Mlp().eval(), (torch.randn(3, 16),))
        path = tmp_path / "m.ingot"
        program.save(path, targets=[])
        before = path.read_bytes()

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            program.save(path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["m.ingot"]

    def test_a_killed_save_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "m.ingot"
        smelt.trace(Mlp().eval(), (torch.randn(3, 16),)).save(path, targets=[])
        before = path.read_bytes()
        code = """if True:
            import os
            import smelt
            def killed(*args):
                os.kill(os.getpid(), 9)
            loaded = smelt.load(sys.argv[1])
            loaded.up.weight.data.zero_()
            os.replace = killed  # all is written by then, and nothing has its name
            loaded.save(sys.argv[1])
        """
        with pytest.raises(AssertionError, match=r"^9: "):
            light_forks().run(code.replace("sys.argv[1]", repr(str(path))))
        assert path.read_bytes() == before
        assert smelt.load(path).save(path) is None and path.read_bytes() == before

    @pytest.mark.parametrize("options", [{"copy": True}, {"verify": True}, {"map_location": "cpu"}], ids=str)
    def test_ways_of_reading(self, tmp_path: Path, options: dict[str, Any]) -> None:
        x, model = torch.randn(3, 16), Mlp().eval()
        with torch.no_grad():
            smelt.trace(model, (x,)).save(tmp_path / "m.ingot")
            loaded = load(tmp_path / "m.ingot", **options)
            if options.get("copy"):  # the file is not used any more
                (tmp_path / "m.ingot").write_bytes(b"")
            agree(loaded(x), model(x))
            assert loaded.is_native

    def test_tensors_go_to_another_device(self, tmp_path: Path) -> None:
        with torch.no_grad():
            smelt.trace(Counter().eval(), (torch.randn(1, 4),)).save(tmp_path / "m.ingot", targets=[])
        loaded = load(tmp_path / "m.ingot", map_location="meta")
        assert {tensor.device.type for tensor in (*loaded.parameters(), *loaded.buffers())} == {"meta"}

    def test_weights_that_were_changed_in_the_file_are_found_when_asked_for(self, tmp_path: Path) -> None:
        model = torch.nn.Linear(3000, 3000).eval()  # more than is compared with each load
        smelt.trace(model, (torch.randn(1, 3000),)).save(tmp_path / "m.ingot", targets=[])
        data = bytearray((tmp_path / "m.ingot").read_bytes())
        data[data.index(raw(model.weight)[:64].tobytes()) + 7] ^= 1
        assert load(bytes(data)).methods == ("forward",)
        with pytest.raises(smelt.PackageError, match="weights"):
            load(bytes(data), verify=True)

    def test_writes_to_loaded_weights_do_not_reach_the_file(self, tmp_path: Path) -> None:
        smelt.trace(Mlp().eval(), (torch.randn(3, 16),)).save(tmp_path / "m.ingot")
        before = (tmp_path / "m.ingot").read_bytes()
        loaded = load(tmp_path / "m.ingot")
        with torch.no_grad():
            loaded.up.weight.zero_()
        assert (tmp_path / "m.ingot").read_bytes() == before


class TestLoaded:
    def test_weights_that_change_are_seen(self, tmp_path: Path) -> None:
        torch.manual_seed(1)
        x, model, other = torch.randn(3, 16), Mlp().eval(), Mlp().eval()
        smelt.trace(model, (x,)).save(tmp_path / "m.ingot")
        with torch.no_grad():
            loaded = load(tmp_path / "m.ingot")
            agree(loaded(x), model(x))
            loaded.load_state_dict(other.state_dict())
            agree(loaded(x), other(x))
            assert loaded.is_native
            loaded.up.weight = torch.nn.Parameter(model.up.weight.clone())
            other.up.weight = model.up.weight
            agree(loaded(x), other(x))
            buffer = io.BytesIO()
            loaded.save(buffer)
            agree(load(buffer.getvalue())(x), other(x))

    @pytest.mark.parametrize("target", ["avx512", "avx2"])
    def test_weights_of_convolutions_are_in_the_file_once(self, tmp_path: Path, target: str) -> None:
        make, (x,), _ = cases()["filters"]
        program = make()
        plain = sum(tensor.nbytes for tensor in program.state_dict().values())
        program.save(tmp_path / "m.ingot", targets=[target])
        loaded = load(tmp_path / "m.ingot")
        weights = loaded.manifest.entries["weights.safetensors"].nbytes
        assert weights < plain + 8192  # tables, and what stands between tensors
        if target not in targets():
            with torch.no_grad(), pytest.warns(smelt.SmeltWarning, match=f"native code for {target} only"):
                agree(loaded(x), program(x))
            return
        with torch.no_grad():
            agree(loaded(x), program(x))
            # Packed, and folded, anew.
            for each in (program, loaded):
                each.square.weight.mul_(3)
                each.norm1.running_var.add_(1)
            agree(loaded(x), program(x))
            assert loaded.is_native
            # A border of zeros times NaN is what eager does not have.
            for each in (program, loaded):
                each.square.weight[3, 4, 1, 1] = float("nan")
            with pytest.warns(smelt.SmeltWarning, match="kind of numbers"):
                found = loaded(x)
            torch.testing.assert_close(found, program(x), equal_nan=True, rtol=2e-5, atol=1e-5)

    def test_text_is_there_once_where_nothing_is_written(self, tmp_path: Path) -> None:
        for name, count in (("mlp", 1), ("closed over", 1)):
            make, _, _ = cases()[name]
            make().save(tmp_path / "m.ingot", targets=[])
            assert sum(entry.startswith("graphs/") for entry in load(tmp_path / "m.ingot").manifest.entries) == count
        smelt.trace(accumulate, (torch.zeros(3), torch.ones(3))).save(tmp_path / "m.ingot", targets=[])
        assert sum(entry.startswith("graphs/") for entry in load(tmp_path / "m.ingot").manifest.entries) == 2

    @pytest.mark.parametrize("enabled", [True, False])
    def test_gradients_are_those_of_the_program(self, tmp_path: Path, enabled: bool) -> None:
        x, model = torch.randn(3, 16, requires_grad=True), Mlp().eval()
        with torch.set_grad_enabled(enabled):
            program = smelt.trace(model, (x.detach(),))
        program.save(tmp_path / "m.ingot")
        loaded = load(tmp_path / "m.ingot")
        loaded(x)[:, 0].sum().backward()
        found = [x.grad, *(p.grad for p in loaded.parameters())]
        x.grad = None
        model(x)[:, 0].sum().backward()
        agree(found, [x.grad, *(p.grad for p in model.parameters())])

    def test_several_entry_points_share_their_state(self, tmp_path: Path) -> None:
        model = Counter().eval()
        x = torch.randn(1, 4)
        with torch.no_grad():
            step = smelt.trace(model, (x,))
            project = smelt.trace(model.proj, (x,))
            smelt.save({"step": step, "project": project}, tmp_path / "m.ingot")
            loaded = load(tmp_path / "m.ingot")
            assert loaded.methods == ("project", "step")
            agree(loaded.project(x), model.proj(x))
            agree(loaded.step(x), step(x))
            with pytest.raises(smelt.CaptureError, match="no entry point called forward"):
                loaded(x)

    def test_without_native_code_the_text_is_compiled(self, tmp_path: Path) -> None:
        x = torch.randn(3, 3)
        program = smelt.trace(branches, (x,))
        program.save(tmp_path / "m.ingot")
        loaded = load(tmp_path / "m.ingot", allow_native=False)
        for given in (x.abs(), -x.abs() - 5):
            agree(loaded(given), branches(given))
        assert not loaded.is_native
        assert [node.op for node in loaded.graph.walk()] == [node.op for node in program.graph.walk()]

    def test_the_file_does_not_name_the_builders_folders(self, tmp_path: Path) -> None:
        smelt.trace(branches, (torch.randn(3, 3),)).save(tmp_path / "m.ingot")
        data = b"".join(entries_of((tmp_path / "m.ingot").read_bytes()).values())
        assert b"programs.py" in data and str(Path(__file__).parent).encode() not in data

    def test_it_is_part_of_a_program_that_calls_it(self, tmp_path: Path) -> None:
        x, model = torch.randn(3, 16), Mlp().eval()
        with torch.no_grad():
            smelt.trace(model, (x,)).save(tmp_path / "m.ingot")
            loaded = load(tmp_path / "m.ingot")
            outer = smelt.trace(lambda x: loaded(x) * 2, (x,))
            agree(outer(x + 1), model(x + 1) * 2)
            assert any(node.op.startswith("aten.gelu") for node in outer.graph.walk())

    def test_an_index_out_of_range_is_eagers_error(self, tmp_path: Path) -> None:
        table, ids = torch.randn(4, 3), torch.tensor([1, 2])
        smelt.trace(looked_up, (table, ids)).save(tmp_path / "m.ingot")
        loaded = load(tmp_path / "m.ingot")
        with pytest.raises(IndexError, match="out of"):
            loaded(table, torch.tensor([1, 9]))
        agree(loaded(table, ids), looked_up(table, ids))

    def test_exported_programs_are_saved(self, tmp_path: Path) -> None:
        class Choosing(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.proj = torch.nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
                return {"y": self.proj(y)}

        model, x = Choosing().eval(), torch.randn(2, 4)
        with torch.no_grad():
            smelt.from_exported(torch.export.export(model, (x,))).save(tmp_path / "m.ingot")
            loaded = load(tmp_path / "m.ingot")
            for given in (x.abs(), -x.abs()):
                agree(loaded(given), model(given))
        assert loaded.is_native and list(loaded.state_dict()) == list(model.state_dict())

    def test_inputs_are_written_in_place(self, tmp_path: Path) -> None:
        total, x = torch.zeros(3), torch.ones(3)
        smelt.trace(accumulate, (total.clone(), x)).save(tmp_path / "m.ingot")
        loaded = load(tmp_path / "m.ingot")
        assert float(loaded(total, x)) == 6 and total.tolist() == [2, 2, 2]
        assert float(loaded(total, total)) == 18 and total.tolist() == [6, 6, 6]  # memory that is shared: as in eager

    def test_layouts_that_were_not_saved_for_are_right(self, tmp_path: Path) -> None:
        x, model = torch.randn(16, 3).t(), Mlp().eval()
        with torch.no_grad():
            smelt.trace(model, (x.contiguous(),)).save(tmp_path / "m.ingot")
            agree(load(tmp_path / "m.ingot")(x), model(x))

    def test_results_are_of_classes_that_were_given(self, tmp_path: Path) -> None:
        make, args, kwargs = cases()["structured"]
        make().save(tmp_path / "m.ingot")
        plain = load(tmp_path / "m.ingot")(*args, **kwargs)[0]
        assert type(plain).__name__ == "Pair" and type(plain) is not Pair
        assert type(load(tmp_path / "m.ingot", classes=[Pair])(*args, **kwargs)[0]) is Pair

    @pytest.mark.parametrize(
        ("call", "names"),
        [
            (lambda p, x: p(x[:2]), r"args\[0\] has sizes \[2, 16\]"),
            (lambda p, x: p(x.double()), r"args\[0\] has dtype torch.float64"),
            (lambda p, x: p(3), r"args\[0\] is 3, where"),
            (lambda p, x: p(x=x), "args is a tuple of 0"),
        ],
    )
    def test_arguments_that_do_not_fit_are_named(self, tmp_path: Path, call: Any, names: str) -> None:
        x = torch.randn(3, 16)
        smelt.trace(Mlp().eval(), (x,)).save(tmp_path / "m.ingot", targets=[])
        with pytest.raises(smelt.CaptureError, match=names):
            call(load(tmp_path / "m.ingot"), x)


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "names"),
        [
            (lambda: smelt.trace(lambda x: (x, {1, 2}), (torch.ones(2),)), "set"),
        ],
    )
    def test_what_has_no_form_is_named(self, tmp_path: Path, make: Any, names: str) -> None:
        with pytest.raises(smelt.PackageError, match=names):
            make().save(tmp_path / "m.ingot")
        assert not list(tmp_path.iterdir())
