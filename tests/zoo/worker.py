"""One process that measures rows: names come in, one a line, rows go out as JSON, one a line."""

from __future__ import annotations

import json
import os
import resource
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch

from tests.zoo.row import measure

BYTES = 10 << 30  # of address space


def main(columns: tuple[str, ...]) -> None:
    """Serve until the input ends. What the measured programs print goes to the error stream."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(measure(line.strip(), columns)), file=answers, flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1].split(",")))
