"""Random programs that are each aimed at one family of what may go wrong, where general ones seldom come.

`FAMILIES`: each a function `(seed, size) -> Generated`, as `generate`, `wide` and `broad` are.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.programs.aimed.answers import answers
from tests.programs.aimed.blocks import blocks
from tests.programs.aimed.gathers import gathers
from tests.programs.aimed.given import given
from tests.programs.aimed.held import held
from tests.programs.aimed.lengths import lengths
from tests.programs.aimed.nested import nested
from tests.programs.aimed.numbers import numbers
from tests.programs.aimed.outside import outside
from tests.programs.aimed.overlaps import overlaps
from tests.programs.aimed.raises import raises
from tests.programs.aimed.slots import slots
from tests.programs.aimed.unset import unset
from tests.programs.aimed.views import views
from tests.programs.generate import Generated

FAMILIES: dict[str, Callable[[int, int], Generated]] = {
    "unset": unset, "held": held, "lengths": lengths, "numbers": numbers, "overlaps": overlaps, "views": views,
    "raises": raises, "given": given, "slots": slots, "blocks": blocks, "outside": outside, "answers": answers,
    "nested": nested, "gathers": gathers,
}  # fmt: skip
