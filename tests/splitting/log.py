"""What a program leaves outside and no graph can hold: code that adds to it is cut there."""

from __future__ import annotations

from collections import deque
from typing import Any


class Log(deque[Any]):
    """A list of what ran. A plain deque would be state of the program; one of the user's own class is Python's."""
