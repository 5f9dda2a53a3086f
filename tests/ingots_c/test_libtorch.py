"""C libraries that are linked to libtorch for operators without own kernels: torch's bits, its errors, what says so."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import smelt
from smelt.cli.app import app
from smelt.package.c.export import Exported, export
from smelt.package.c.link import libtorch_folder
from smelt.runtime.ingot.natives import targets
from tests.ingots.programs import Convolved
from tests.ingots_c.client import Failed, Library, Model
from tests.ingots_c.programs import Block
from tests.ingots_c.test_calls import alike


def ordered(x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    """Sorts, a histogram, indices that torch adds at, a view of memory whose first owner is gone."""
    values, places = torch.sort(x * 2, -1)
    windows = (x + 1).as_strided((5, 2), (6, 1))
    kept = torch.zeros(6, 6).scatter_add(0, ids[:, None].expand(4, 6), x[:4])
    return values, places, torch.histc(x, 5, -2, 2), x.topk(3).values, windows * 3, kept


def solved(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.inv(x), x + 1


def alone(x: Tensor) -> Tensor:
    return torch.tanh(x) @ x


class Sorting(nn.Module):
    """State that a call writes to from what torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("best", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.best.copy_(torch.cat([self.best, x]).sort(descending=True).values[:3])
        return self.best * 1


def spelled(x: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    """Calls with lists of tensors, with optional ones, into tensors that are there."""
    return torch.cat([x @ y, y, y[ids]], 0), torch.baddbmm(x[None], x[None], y[None], beta=0.5), torch.addmm(y, x, y)


_IDS = torch.tensor([1, 0, 5, 1])
LIBRARY = {"own_kernels": False}
PROGRAMS: dict[str, tuple[Callable[[], Any], tuple[Tensor, ...], dict[str, Any]]] = {
    "ordered": (lambda: ordered, (torch.randn(6, 6), _IDS), {}),
    "solved": (lambda: solved, (torch.randn(4, 4) + 3 * torch.eye(4),), {}),
    "alone": (lambda: alone, (torch.randn(4, 4),), {}),
    "sorting": (lambda: Sorting().eval(), (torch.randn(4),), {}),
    "block": (lambda: Block().eval(), (torch.randn(2, 8, 32),), LIBRARY),
    "convolved": (lambda: Convolved().eval(), (torch.randn(1, 3, 8, 8),), LIBRARY),
    "spelled": (lambda: spelled, (torch.randn(4, 4), torch.randn(4, 4), torch.tensor([2, 0])), LIBRARY),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    folder = tmp_path_factory.mktemp("linked")
    torch.manual_seed(4)
    with torch.no_grad():
        traced = {
            name: smelt.trace(make(), args, options=options or None) for name, (make, args, options) in PROGRAMS.items()
        }
        smelt.save(traced, folder / "linked.ingot", targets=targets()[:1])
    return folder / "linked.ingot", export(folder / "linked.ingot", folder / "build", libtorch="torch")


@pytest.fixture
def model(made: tuple[Path, Exported]) -> Model:
    return Library(made[1]).open(made[1].weights)


def test_results_are_pythons(made: tuple[Path, Exported], model: Model) -> None:
    context, loaded = model.context(2), smelt.load(made[0])
    assert loaded.is_native
    with torch.no_grad():
        for name, (_, args, _) in PROGRAMS.items():
            for _ in range(3):
                assert alike(context.call(name, *args), loaded.entry(name)(*args)), name
        context.reset()
        assert alike(
            context.call("sorting", *PROGRAMS["sorting"][1]), loaded.reset().sorting(PROGRAMS["sorting"][1][0])
        )


def test_contexts_run_in_parallel(model: Model) -> None:
    wanted = {name: model.context().call(name, *PROGRAMS[name][1]) for name in ("ordered", "block", "solved")}
    wrong: list[str] = []

    def work(context: Any) -> None:
        for _ in range(30):
            wrong.extend(n for n, found in wanted.items() if not alike(context.call(n, *PROGRAMS[n][1]), found))

    workers = [threading.Thread(target=work, args=(model.context(),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_an_error_of_torch_is_a_status_and_its_text(model: Model) -> None:
    context, x = model.context(), PROGRAMS["solved"][1][0]
    first = context.call("solved", x)
    for _ in range(3):
        with pytest.raises(Failed, match=r"torch: aten::linalg_inv: .*singular"):
            context.call("solved", torch.zeros(4, 4))
        assert alike(context.call("solved", x), first)


def test_what_asks_for_libtorch_is_said(made: tuple[Path, Exported]) -> None:
    ingot, exported = made
    assert exported.needs["solved"] == ("aten.linalg_inv.default",)
    assert "alone" not in exported.needs and "aten.histc" in exported.needs["ordered"]
    header = (exported.library.parent / "linked.h").read_text()
    assert "It needs libtorch" in header and "solved: aten.linalg_inv.default" in header
    library = Library(exported)
    library.c.smelt_needs.restype = ctypes.c_char_p
    assert b"solved: aten.linalg_inv.default" in library.c.smelt_needs(library.program)
    cmake = (exported.library.parent / "linked-config.cmake").read_text()
    assert f'set(linked_LIBTORCH "{libtorch_folder("torch")}" CACHE PATH' in cmake and "libtorch_cpu.so" in cmake
    shown = CliRunner().invoke(app, ["show", str(ingot)]).output
    assert (
        "links to libtorch, for aten.linalg_inv.default" in shown and "links to libc, libm and pthreads only" in shown
    )


MAIN = """
#include <stdio.h>
#include "linked.h"
int main(int argc, char **argv)
{
    smelt_model *model;
    smelt_context *context;
    float x[16] = {2, 0, 0, 0, 0, 4, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1};
    linked_solved_result result;
    if (argc < 2 || smelt_open(&linked_program, argv[1], 0, &model) || smelt_context_new(model, &context) ||
        linked_solved(context, x, &result)) {
        fprintf(stderr, "%s\\n", smelt_error());
        return 1;
    }
    printf("%g %g %g %g\\n", result.out_0[0], result.out_0[5], result.out_0[10], result.out_0[15]);
    smelt_context_free(context);
    smelt_close(model);
    return 0;
}
"""


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_a_c_program_needs_no_python(made: tuple[Path, Exported], tmp_path: Path, kind: str) -> None:
    build, torch_at = made[1].library.parent, libtorch_folder("torch")
    (tmp_path / "main.c").write_text(MAIN)
    shared, static = str(build / "liblinked.so"), [str(build / "liblinked.a"), "-lpthread", "-lm"]
    library = [shared] if kind == "shared" else static
    link = [*library, f"-L{torch_at}", f"-Wl,-rpath,{build}:{torch_at}", "-ltorch_cpu", "-lc10"]
    program = tmp_path / "main"
    subprocess.run(["cc", f"-I{build}", str(tmp_path / "main.c"), *link, "-o", str(program)], check=True)
    done = subprocess.run([str(program), str(made[1].weights)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0.5 0.25 0.125 1\n"), done.stderr


def test_what_is_refused(tmp_path: Path) -> None:
    def printing(x: Tensor) -> Tensor:
        print("sum", x.sum().item())
        return x.sort().values

    x = torch.randn(3)
    with torch.no_grad():
        smelt.trace(lambda x: x.sort().values, (x,)).save(tmp_path / "sorted.ingot", targets=targets()[:1])
        with pytest.raises(smelt.PackageError, match=r"forward: aten\.sort\.default") as caught:
            export(tmp_path / "sorted.ingot", tmp_path / "build")
        assert "--libtorch" in caught.value.fix
        with pytest.raises(smelt.PackageError, match=r"no libtorch_cpu\.so in"):
            export(tmp_path / "sorted.ingot", tmp_path / "build", libtorch=str(tmp_path))
        smelt.trace(lambda x: x.exp(), (x,)).save(tmp_path / "own.ingot", targets=targets()[:1])
        exported = export(tmp_path / "own.ingot", tmp_path / "own", libtorch="torch")
    assert exported.needs == {} and "libtorch" not in (tmp_path / "own" / "own.h").read_text()
    script = f"import ctypes; ctypes.CDLL({str(exported.library)!r}); print(open('/proc/self/maps').read())"
    needed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "libtorch" not in needed
