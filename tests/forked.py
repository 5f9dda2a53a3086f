"""Code in processes of its own that share one start: a server has imported what is heavy, and each run is a fork of it.

The server runs no operation itself, so it has no threads that a fork would lose.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_SERVER = """
import atexit, json, os, runpy, signal, sys, threading, traceback
exec(sys.argv[1])
for line in sys.stdin:
    code, output, folder, timeout, environment = json.loads(line)
    child = os.fork()
    if not child:
        status = 1
        try:
            written = os.open(output, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(written, stream)
            signal.alarm(timeout)
            os.chdir(folder)
            os.environ.update(environment)
            exec(code, {"__name__": "__main__"})
            threading._shutdown()  # what any process does at its end
            atexit._run_exitfuncs()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Forks:
    """Processes that have run `head`, which imports; `options` are those of Python, `environment` is set before."""

    def __init__(self, head: str, options: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> None:
        self._server = subprocess.Popen(
            [sys.executable, *options, "-c", _SERVER, head],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def run(
        self,
        code: str,
        folder: Path | None = None,
        timeout_s: int = 120,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """What the code wrote; `environment` is what it finds besides.

        Raises: AssertionError with its last words where it did not come to its end.
        """
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None and stdout is not None
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
            request = (code, output.name, str(folder or Path.cwd()), timeout_s, dict(environment or {}))
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            status, written = stdout.readline().strip(), output.read()
        assert status == "0", f"{status or 'the server is gone'}: {written[-4000:]}"
        return written

    def close(self) -> None:
        """End the server. Every run has ended by then."""
        self._server.communicate()


_TESTS = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r}); "


@functools.cache
def _shared(head: str) -> Forks:
    """One server serves all tests of this process."""
    made = Forks(head)
    atexit.register(made.close)
    return made


def torch_forks() -> Forks:
    """Processes that have imported torch alone."""
    return _shared("import torch")


def light_forks() -> Forks:
    """Processes that have imported torch and `import smelt` alone: those who load a program import no more of it."""
    return _shared("import torch, smelt")


def smelt_forks() -> Forks:
    """Processes that have imported torch and all of smelt, and run nothing."""
    # smelt looks up its names when they are first used: each process would import the compiler for itself.
    return _shared(_TESTS + "import torch, smelt; smelt.compile, smelt.script, smelt.load")


def training_forks() -> Forks:
    """Processes that have imported all that steps, schedules and ranks need, and run nothing."""
    return _shared(
        _TESTS + "import llvmlite.binding, torch, torch._dynamo, torch.distributed.checkpoint.state_dict, smelt; "
        "import torch.profiler, smelt.codegen.llvm.emit; smelt.compile, smelt.explain, smelt.save_checkpoint; "
        "smelt.schedule, smelt.schedules, smelt.forward_backward"
    )
