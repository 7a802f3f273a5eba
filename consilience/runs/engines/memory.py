"""Memory that is needed again at every step stays with the process."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD = -1  # as in glibc's malloc.h
_MMAP_THRESHOLD = -3
_BLOCK = 64 * 2**20  # bytes
_FREE = 512 * 2**20  # bytes


@cache
def keep_memory() -> bool:
    """Let glibc hold on to freed blocks of up to 64 MB, and to 512 MB of them.

    By default it returns blocks of more than 128 kB to the system and faults every page in anew at the next step, which
    takes longer than the step when many clients run side by side, and up to a quarter of a convolutional network's.
    Other C libraries are left as they are.

    Returns:
        Whether it does.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _BLOCK) and mallopt(_TRIM_THRESHOLD, _FREE))
