"""That a process lives and what it does: a small file in its folder, which others may ask.

Every beat says until when the next one comes. The loop that does the work beats, not a thread beside it, so that a
process that hangs falls silent.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from consilience.disk.writing import PRIVATE, write_whole

FILE = "health.json"
EVERY = 5.0  # seconds between two writings of the same state
STOPPED = "stopped"


class Beat(NamedTuple):
    """What a process last said of itself.

    Attributes:
        party: Who it is.
        state: What it does.
        time: When it said so, in seconds since 1970.
        promise: Within how many seconds it speaks again.
        process: Its number.
        host: Its machine.
        doubt: What is wrong by its own word; empty if nothing is.
    """

    party: str
    state: str
    time: float
    promise: float
    process: int
    host: str
    doubt: str = ""

    def trouble(self, now: float) -> str:
        """Say what is wrong; nothing if it is well.

        Args:
            now: Seconds since 1970.
        """
        if self.state == STOPPED:
            return f"{self.party} has stopped"
        silent = now - self.time
        if self.host == socket.gethostname() and not _exists(self.process):
            return f"{self.party}: process {self.process} has died while {self.state}"
        if silent > self.promise:
            return f"{self.party} has been silent for {silent:.0f} seconds while {self.state}"
        if self.doubt:
            return f"{self.party}: {self.doubt}, while {self.state}"
        return ""


class Pulse:
    """Writes beats; a state that lasts is written every few seconds only."""

    def __init__(self, folder: Path, party: str) -> None:
        """Begin.

        Args:
            folder: The folder of the process.
        """
        self.path = folder / FILE
        self.party = party
        self._last = ("", "", 0.0)

    def beat(self, state: str, promise: float, doubt: str = "") -> None:
        """Say that the process lives.

        Args:
            state: What it does, as `waiting`.
            promise: Within how many seconds it beats again.
            doubt: What is wrong, if it lives and something is.
        """
        now = time.time()
        if self._last[:2] == (state, doubt) and now - self._last[2] < EVERY:
            return
        self._last = (state, doubt, now)
        beat = Beat(self.party, state, now, promise, os.getpid(), socket.gethostname(), doubt)
        with suppress(OSError, ValueError):  # a full disk is no reason to stop working
            write_whole(self.path, json.dumps(beat._asdict()).encode(), "", PRIVATE)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Say at the end that the process has stopped, if it ever said that it began."""
        try:
            yield
        finally:
            if self.path.exists():
                self.beat(STOPPED, 0.0)


def last_beat(folder: Path) -> Beat | None:
    """Read what a process last said.

    Returns:
        The beat; None where there is none that can be read.
    """
    try:
        beat = Beat(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        return beat._replace(time=float(beat.time), promise=float(beat.promise), process=int(beat.process))
    except (OSError, ValueError, TypeError):
        return None


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is somebody else's
    return True
