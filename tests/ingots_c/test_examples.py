"""The examples in C and other languages: they compile, and give what Python gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import smelt
from smelt.package.c.export import export
from smelt.package.c.header import header_text
from smelt.package.c.link import RUNTIME
from smelt.package.c.signature import FreeSize, Kind, Signature

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "c"
_STRICT = ["-O1", "-Wall", "-Wextra", "-Werror"]
_HEADER = "/usr/include/microhttpd.h"


def test_they_fit_the_headers(tmp_path: Path) -> None:
    """Against headers with the programs' signatures, without the programs."""
    ids, one = (1, "tokens"), torch.int64
    page, length = Kind("x0", one, (64,), None), Kind("x1", one, (), None)
    mini = Signature("forward", (Kind("ids", one, ids, None), Kind("mask", one, ids, None)),
                     {0: Kind("out", torch.float32, (1, 384), None)},
                     (FreeSize("tokens", "tokens", 0, 1, 1, 64),))  # fmt: skip
    gpt = Signature("forward", (page, length), {0: Kind("out_0", one, (64,), None), 1: Kind("out_1", one, (), None)})
    for name, signature in (("minilm", mini), ("gpt", gpt)):
        (tmp_path / f"{name}.h").write_text(header_text(name, f"{name}.safetensors", [signature]))
    check = [*_STRICT, "-I", str(tmp_path), "-I", str(RUNTIME), "-fsyntax-only"]
    sources = [EXAMPLES / "embed.c", EXAMPLES / "generate.c"]
    sources += [EXAMPLES / "serve.c"] if Path(_HEADER).exists() else []
    subprocess.run(["cc", *check, *map(str, sources)], check=True)


@contextmanager
def serving(program: Path, weights: Path) -> Iterator[str]:
    """A running server's address."""
    command = [program, weights, "0", "4"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split()[-1]}"
        finally:
            server.stdin.close()
            assert server.wait(30) == 0


@pytest.mark.nightly
def test_they_give_what_python_gives(tmp_path: Path) -> None:
    build = tmp_path / "build"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, EXAMPLES / "models.py", build, "--steps", "20"], check=True, env=environment)
    for name in ("minilm", "gpt"):
        export(build / f"{name}.ingot", build)
    programs = build / "programs"
    subprocess.run(["cmake", "-S", EXAMPLES, "-B", programs, f"-DCMAKE_PREFIX_PATH={build}"], check=True)
    subprocess.run(["cmake", "--build", programs], check=True)
    _embeds(build, programs)
    _generates(build, programs)
    _serves(build, programs)
    _speaks(build, programs)


def _embeddings(build: Path) -> tuple[list[list[int]], torch.Tensor]:
    loaded = smelt.load(build / "minilm.ingot")
    lines = [[int(n) for n in line.split()] for line in (build / "sentences.ids").read_text().splitlines()]
    found = []
    with torch.no_grad():
        for line in lines:
            ids = torch.tensor([line])
            found.append(loaded(ids=ids, mask=torch.ones_like(ids)))
    return lines, torch.cat(found)


def _embeds(build: Path, programs: Path) -> None:
    command = [programs / "embed", build / "minilm.safetensors", build / "sentences.ids"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    _, embeddings = _embeddings(build)
    alike = embeddings @ embeddings.T
    alike.fill_diagonal_(-1)
    best = alike.max(1)
    for line, wanted, which in zip(out.splitlines(), best.values.tolist(), best.indices.tolist(), strict=True):
        _, found, value = line.split()
        assert int(found) == which and abs(float(value) - wanted) < 1e-5


def _generates(build: Path, programs: Path) -> None:
    alphabet = (build / "alphabet.txt").read_text()
    command = [programs / "generate", build / "gpt.safetensors", build / "alphabet.txt", "The cat"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    page = torch.tensor([alphabet.index(c) for c in "The cat"] + [0] * 57)
    with torch.no_grad():
        text, length = smelt.load(build / "gpt.ingot")(page, torch.tensor(7))
    assert out == "".join(alphabet[i] for i in text[: int(length)].tolist()) + "\n"


def _serves(build: Path, programs: Path) -> None:
    if not (programs / "serve").exists():
        pytest.fail("needs GNU libmicrohttpd (Debian: libmicrohttpd-dev)")
    lines, embeddings = _embeddings(build)
    with serving(programs / "serve", build / "minilm.safetensors") as address:

        def ask(number: int) -> tuple[int, list[float]]:
            which = number % len(lines)
            url = f"{address}/embed?ids={','.join(map(str, lines[which]))}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                return which, json.load(answer)

        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(ask, range(40)))
        for which, values in answers:
            assert torch.equal(torch.tensor(values), embeddings[which])
        for wrong in ("", "?ids=1,x", "?ids=" + "1," * 65 + "1", "?ids=999999"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{address}/embed{wrong}", timeout=60)
            assert refused.value.code == 400 and json.load(refused.value)["error"]


def _speaks(build: Path, programs: Path) -> None:
    """C++ always; Rust and Go where their compilers are."""
    lines, embeddings = _embeddings(build)
    commands = [programs / "embed_cpp"]
    if shutil.which("rustc"):
        commands.append(programs / "embed_rs")
        linking = ["-L", str(build), "-l", "minilm", "-C", f"link-arg=-Wl,-rpath,{build}"]
        subprocess.run(["rustc", "-O", EXAMPLES / "embed.rs", *linking, "-o", commands[-1]], check=True)
    if shutil.which("go"):
        commands.append(programs / "embed_go")
        flags = {"CGO_CFLAGS": f"-I{build}", "CGO_LDFLAGS": f"-L{build} -lminilm -Wl,-rpath,{build}"}
        subprocess.run(
            ["go", "build", "-o", commands[-1], EXAMPLES / "embed.go"], check=True, env={**os.environ, **flags}
        )  # fmt: skip
    tokens = [str(n) for n in lines[0]]
    for command in commands:
        command_line = [command, build / "minilm.safetensors", *tokens]
        out = subprocess.run(command_line, check=True, capture_output=True, text=True).stdout
        assert out.split() == [f"{value:.6f}" for value in embeddings[0, :4].tolist()]
        failed = subprocess.run([*command_line[:2], "999999"], capture_output=True, text=True, check=False)
        assert failed.returncode == 1 and "an index out of range" in failed.stderr
