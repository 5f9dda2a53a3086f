"""A new user's first hour: the wheel in a fresh environment, outside the repository, each command of README's start.

Nothing is downloaded: what Smelt depends on comes from the environment that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MODEL = """
import torch
from torch import nn

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))

def factory():
    return Mlp().eval(), (torch.randn(4, 16),)
"""

SCRIPT = """
import torch
import smelt
from model import Mlp, factory

model, (x,) = factory()
compiled = smelt.compile(model, mode="max-autotune")
assert isinstance(compiled, Mlp)
with torch.no_grad():
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
report = smelt.explain(model, x)
assert "native code" in str(report) and report._repr_html_() and report.to_html().startswith("<!doctype")
program = smelt.trace(model, (x,))
assert smelt.parse(str(program.graph)) == program.graph
torch.testing.assert_close(program.code.run(x)[0], model(x))
assert "src" not in smelt.__file__ and "site-packages" in smelt.__file__
print("all well", dir(smelt))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what a release has."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        wanted = name.startswith(("src/", "docs/", "examples/")) or "/" not in name
        if wanted and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).symlink_to(ROOT / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A fresh environment with the wheel, by the names of its interpreter, command and a folder to work in."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "venv" / "lib" / version / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "venv" / "bin" / "python"
    target = ["install", "--no-deps", "--no-index", "--force-reinstall", "--quiet", str(wheel)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *target], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "model.py").write_text(MODEL)
    (folder / "script.py").write_text(SCRIPT)
    return {"python": str(python), "smelt": str(python.with_name("smelt")), "folder": str(folder)}


def as_user(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SMELT_LOGS")}
    folder = environment["folder"]
    return subprocess.run(
        [environment[command[0]], *command[1:]], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**kept, "SMELT_CACHE_DIR": f"{folder}/cache"},
    )  # fmt: skip


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        told = Parser().parsestr(archive.read(metadata).decode())
    assert told["Name"] == "smelt-compiler" and told["Author"] == "The Smelt developers"
    assert told["License-Expression"] == "Apache-2.0" and len(told.get_all("Classifier")) >= 8
    assert {"demo", "bench", "dev"} <= set(told.get_all("Provides-Extra"))
    assert "smelt docs" in (ROOT / "pyproject.toml").read_text() and not told.get_all("Project-URL")
    shipped = {name.partition("/data/share/smelt/")[2] for name in names}
    assert {"docs/sizes.md", "docs/README.md", "docs/decisions/0004-numerics.md", "sentences.txt"} <= shipped
    assert "smelt/py.typed" in names and "smelt/__main__.py" in names
    assert not [name for name in names if name.startswith(("tests", "bench"))]


@pytest.mark.nightly
def test_the_new_users_script(environment: dict[str, str]) -> None:
    done = as_user(environment, "python", "script.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all well" in done.stdout


@pytest.mark.nightly
def test_the_documents_come_along(environment: dict[str, str]) -> None:
    listed = as_user(environment, "python", "-m", "smelt", "docs")
    assert listed.returncode == 0 and "decisions/0004-numerics" in listed.stdout, listed.stderr[-2000:]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("run", "model.py:factory", "--repeats", "3"), "compiled: 1 graph, native code"),
        (("explain", "model.py:factory"), "own kernels do 100% of the operations"),
        (("show", "model.py:factory"), "model.py in Mlp.forward"),
        (("show", "model.py:factory", "--kernels"), "; kernel "),
        (("cache",), "entries"),
        (("docs", "sizes"), "Sizes and numbers that change"),
        (("bench", "--quick", "--models", "lerp200", "--peers", "smelt"), "lerp200"),
        (("demo", "--quick"), "speed-up"),
        (("-h",), "demo"),
    ],
)
def test_every_command_outside_the_repository(
    environment: dict[str, str], command: tuple[str, ...], shown: str
) -> None:
    done = as_user(environment, "smelt", *command)
    assert done.returncode == 0 and shown in done.stdout, done.stderr[-2000:]
