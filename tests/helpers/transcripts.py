"""What commands printed, without what varies, and how near two such texts must be."""

from __future__ import annotations

import re

import pytest
from before import EXACT

WORDS = {
    "Lines to beat": "Baselines",
    "line to beat": "baseline",
    "set aside": "held out",
    "No level, mark or": "No level, indicator or",
}  # what the reports said then, and say now
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def masked(text: str) -> str:
    """Without what varies: where it ran, when, how long it took, hashes, sizes of pages, tables, replies, memories.

    Replies say more of their rows since, and sites keep which messages they answered.
    """
    text = re.sub(r"^Sites are small for their effects.*\n", "", text, flags=re.MULTILINE)  # said since
    text = re.sub(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?( ?UTC|Z|\+00:00)?", "TIME", text)
    text = re.sub(r"(?<![\w.])[\d.]+ ?(ms|s|seconds?|min|minutes?)\b", "SECONDS", text)
    text = re.sub(r"(ed25519:)?[A-Za-z0-9+/]{43}=|(ed25519:)?[A-Za-z0-9+/]{8,}…", "KEY", text)
    text = re.sub(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}\b", "HASH", text)
    text = re.sub(r"\.(csv|html|reply|memory|model) \([\d,]+ bytes\)", r".\1 (SIZE)", text)
    return re.sub(r"(/[\w.+-]+){2,}/", "PATH/", text)


def same_text(found: str, before: str, tolerance: float, where: str = "") -> None:
    """The same words in the same order, as they are now; numbers may differ by the tolerance or by their last digit."""
    for then, now in WORDS.items():
        before = before.replace(then, now)
    parts, parts_before = (NUMBER.split(" ".join(text.split())) for text in (found, before))
    assert parts[::2] == parts_before[::2], f"{where}:\n{found}\nbefore:\n{before}"
    for number, old in zip(parts[1::2], parts_before[1::2], strict=True):
        if EXACT or "." not in old:
            assert number == old, f"{where}: {old} in\n{found}"
        else:
            last = 10.0 ** -len(old.partition("e")[0].partition(".")[2])
            assert float(number) == pytest.approx(float(old), rel=tolerance, abs=1.01 * last), where
