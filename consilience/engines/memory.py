"""Memory that is needed again at every step stays with the process."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the names of glibc's malloc.h
_BLOCK, _FREE = 64 * 2**20, 512 * 2**20  # bytes


@cache
def keep_memory() -> bool:
    """Let glibc hold on to freed blocks of up to 64 MB, and to 512 MB of them; says whether it does.

    By default it returns blocks of more than 128 kB to the system and faults every page in anew at the next step, which
    takes longer than the step when many clients run side by side. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _BLOCK) and mallopt(_TRIM_THRESHOLD, _FREE))
