"""Damage as files suffer it on their way."""

from __future__ import annotations

import random


def damaged(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    """One of the accidents that can happen to a file: flipped bits, a cut, bytes of another file, noise."""
    accident = draw.choice(("flip", "flip", "flips", "cut", "swap", "noise", "grow"))
    at = draw.randrange(len(raw))
    match accident:
        case "flip":
            return raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :]
        case "flips":
            return bytes(b ^ (draw.random() < 0.01) * draw.randrange(256) for b in raw)
        case "cut":
            return raw[:at]
        case "swap":  # the header of one file before the tensors of another
            cut, own = (8 + int.from_bytes(part[:8], "little") for part in (raw, other))
            return raw[:cut] + other[own:] if draw.random() < 0.5 else raw[:at] + other[at:]
        case "noise":
            return raw[:at] + draw.randbytes(draw.randrange(1, 64)) + raw[at + 64 :]
        case _:
            return raw + draw.randbytes(draw.randrange(1, 64))
