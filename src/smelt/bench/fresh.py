"""A question to a fresh Python process: one request in, one marked line of JSON out, ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smelt.bench.measure import describe_error

_MARK = "smelt-answer:"


class NoAnswerError(Exception):
    """The fresh process gave no answer; the text says why."""


def ask(module: str, request: Any, cache_dir: Path, budget_s: float) -> dict[str, Any]:
    """What `python -m module REQUEST` answers, its caches in `cache_dir`.

    Raises: NoAnswerError where it fails, or takes longer than `budget_s`; it is then ended together with its children.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(request)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=_environment(cache_dir), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=budget_s)
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"no result after {budget_s:.0f} s") from None
        finally:
            _end_group(process)
    for line in reversed(out.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line[len(_MARK) :])
            if "failed" in answer:
                raise NoAnswerError(answer["failed"])
            return answer
    last = (err.strip().splitlines() or ["no output"])[-1]
    code = process.returncode
    ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    raise NoAnswerError(f"process ended {ended}: {last[:200]}")


def answer(work: Callable[[Any], dict[str, Any]]) -> None:
    """The fresh process: do the work that the command line asks for, and print what it gives, or why it fails."""
    try:
        found = work(json.loads(sys.argv[1]))
    except Exception as error:
        found = {"failed": describe_error(error)}
    print(f"\n{_MARK}{json.dumps(found)}", flush=True)


def _environment(cache_dir: Path) -> dict[str, str]:
    """The parent's environment with every cache that a system finds by itself pointed at `cache_dir`."""
    caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "SMELT_CACHE_DIR")
    return {**os.environ, **dict.fromkeys(caches, str(cache_dir)), "HF_HUB_OFFLINE": "1"}


def _end_group(process: subprocess.Popen[str]) -> None:
    """End the process and whatever it started and left behind (compile workers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
