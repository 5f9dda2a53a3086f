"""Property tests draw the same examples in each run of the suite; SMELT_RANDOM=1 lets them draw others."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("suite", derandomize=True)
if not os.environ.get("SMELT_RANDOM"):
    settings.load_profile("suite")
