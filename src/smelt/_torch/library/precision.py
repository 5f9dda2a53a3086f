"""Whether this CPU multiplies bf16 in hardware, as torch sees it.

Adapter for `torch.cpu.get_capabilities` and, where that is missing, `torch.cpu._is_avx512_bf16_supported`; where both
are, the answer is no.
"""

from __future__ import annotations

from functools import lru_cache

import torch

_FEATURES = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


@lru_cache(maxsize=1)
def multiplies_bf16() -> bool:
    """Whether products of bf16 have instructions of their own here."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is not None:
        found = capabilities()
        return any(bool(found.get(name)) for name in _FEATURES)
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(supported is not None and supported())
