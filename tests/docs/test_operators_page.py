"""The page on adding an operator works as it stands: its steps are taken on a copy of the sources."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smelt.ops.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
STEP = re.compile(r"In `([^`]+)`, before `([^`]+)`:\n\n```py\n(.*?)```", re.S)


def _run(copy: Path, *command: str) -> str:
    environment = {
        **os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", "SMELT_CACHE_DIR": str(copy / "cache"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources and the tests that the page names, with the page's four insertions."""
    made = tmp_path_factory.mktemp("sources")
    # Bytecode comes along, which is of these very files; what another process is just writing does not.
    ignored = shutil.ignore_patterns("*.pyc.*")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, made / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", made)
    steps = STEP.findall(PAGE)
    assert len(steps) == 4
    for file, place, text in steps:
        lines = (made / file).read_text(encoding="utf-8").split("\n")
        (at,) = (i for i, line in enumerate(lines) if line.strip().startswith(place))
        lines[at:at] = text.removesuffix("\n").split("\n")
        (made / file).write_text("\n".join(lines), encoding="utf-8")
    return made


def test_its_operator_is_one_that_the_catalogue_lacks() -> None:
    assert "aten.hardshrink.default" not in {record.name for record in CATALOGUE}, "the page needs another operator"


def test_the_tests_that_it_names_try_the_new_operator_and_pass(copy: Path) -> None:
    (command,) = re.findall(r"```sh\n(pytest .*?)\n```", PAGE, re.S)
    out = _run(copy, "-m", *shlex.split(command), "-p", "no:xdist", "-p", "no:cacheprovider", "-vv")
    passed = re.findall(r"(\S+)::(\S+) PASSED", out)
    tried = {file for file, name in passed if "hardshrink" in name}
    assert {
        "tests/ops/test_catalogue.py",
        "tests/fusion/test_rules.py",
        "tests/codegen/test_lower_catalogue.py",
    } <= tried
    assert any("slot" in file for file, _ in passed)


def test_its_program_is_one_kernel(copy: Path) -> None:
    program = PAGE.rsplit("```py\n", 1)[1].split("```")[0]
    assert "mul hardshrink exp" in program
    assert "hardshrink" in _run(copy, "-c", program)
