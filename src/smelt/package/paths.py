"""Source paths as a file shows them to others: without the folders of the machine that saved it.

"/home/me/project/model.py"  ==>  "model.py"       where the project's folder is on Python's path
"/usr/lib/python3/site-packages/torch/nn/functional.py"  ==>  "torch/nn/functional.py"
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import lru_cache
from pathlib import Path

_SPAN = re.compile(r'@ ("(?:[^"\\\n]|\\.)*"):')


def with_short_paths(text: str) -> str:
    """A graph's text whose source lines name files so."""
    return _SPAN.sub(lambda found: f"@ {json.dumps(short_path(json.loads(found[1])))}:", text)


@lru_cache(maxsize=1024)
def short_path(path: str) -> str:
    """A path from the folder that it is imported from; of a file elsewhere its name."""
    if not os.path.isabs(path):
        return path
    folders = [os.path.abspath(folder) for folder in (*sys.path, os.curdir)]
    above = [folder for folder in folders if path.startswith(folder.rstrip(os.sep) + os.sep)]
    return Path(path).relative_to(max(above, key=len)).as_posix() if above else os.path.basename(path)
