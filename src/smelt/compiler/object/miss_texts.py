"""Guards that failed, as a person reads them: of one that did for many values, how many these were.

value of args[1] was 3, now 4  }
value of args[1] was 4, now 5  }    ==>    value of args[1] took 3 values, 3 first and 5 last
value of args[1] was 3, now 5  }
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_CHANGE = re.compile(r"(?P<what>.*?) was (?P<before>.*), now (?P<now>.*?)(?P<where> \(read at .*\))?", re.DOTALL)
_NUMBER = re.compile(r"(?<=[=<>] )-?[\d.][\w.+-]*")


def joined_misses(misses: Mapping[str, int]) -> dict[str, int]:
    """The guards, and how often each failed. Each entry that was asked had another value: pairs of them are more than
    anybody reads.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for text in misses:
        found = _CHANGE.fullmatch(text)
        key = (found["what"], found["where"] or "") if found else (_NUMBER.sub("#", text), "")
        groups.setdefault(key, []).append(text)
    return {_joined(*key, texts): sum(misses[text] for text in texts) for key, texts in groups.items()}


def _joined(what: str, where: str, texts: Sequence[str]) -> str:
    changes = [found for text in texts if (found := _CHANGE.fullmatch(text))]
    if len(texts) == 1:
        return texts[0]
    if not changes:
        return f"{texts[0]}, and {len(texts) - 1} alike of other numbers"
    values = list(dict.fromkeys(value for found in changes for value in (found["before"], found["now"])))
    return f"{what} took {len(values)} values, {values[0]} first and {changes[-1]['now']} last{where}"
