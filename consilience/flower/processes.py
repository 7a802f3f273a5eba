"""Flower's programs as children of ours: started quietly, watched, and ended with us."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from consilience.errors import InputError
from consilience.flower import SETTINGS

PATIENCE = 10.0  # seconds a child gets to end by itself


class Child:
    """A program that ends when we do, its output in a file."""

    def __init__(self, program: str, words: Sequence[str], log: Path, home: Path) -> None:
        self.name, self.log = program, log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [find_program(program), *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment(home),
                preexec_fn=_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 — a system call, no more
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def last_words(self) -> str:
        """What it said at the end, for people who look for a reason."""
        lines = self.log.read_text(errors="replace").splitlines()
        return " ".join(line.strip() for line in lines[-12:] if line.strip())[-900:]


def _with_parent() -> None:
    """Ask the kernel to end this child when its parent dies, however it dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def find_program(program: str) -> str:
    """A program of Flower's, beside this Python or on the path."""
    beside = Path(sys.executable).parent / program
    path = str(beside) if beside.exists() else shutil.which(program)
    if path is None:
        raise InputError(f"There is no '{program}': pip install 'consilience[flower]'.")
    return path


def environment(home: Path) -> dict[str, str]:
    """No telemetry, no update checks, no installation, no colours; Flower's own files in a folder of ours."""
    return {**os.environ, **SETTINGS, "FORCE_COLOR": "", "FLWR_HOME": str(home.absolute())}


def command(home: Path, *words: str) -> str:
    """Run `flwr` and return what it printed."""
    done = subprocess.run(
        [find_program("flwr"), *words], env=environment(home), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())[-600:]
        raise InputError(f"`flwr {' '.join(words[:2])}` failed: {said}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def check_free(host: str, port: int, patience: float = PATIENCE) -> None:
    """Refuse a port in use; one that a server which was killed still holds is free within seconds."""
    end = time.monotonic() + patience
    while True:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return s.bind((host, port))
            except OSError as error:
                why = error.strerror
        if time.monotonic() >= end:
            raise InputError(f"Port {port} on {host} cannot be used ({why}): choose one with --port.")
        time.sleep(0.5)


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"'{address}' is not an address: write it as host:port.")
    return host, int(port)


def reach(address: str, authority: Path | None, patience: float) -> None:
    """Wait for a server, and refuse one whose certificate does not hold, saying why; before anything is started."""
    host, port = split_address(address)
    context = None
    if authority is not None:
        try:
            context = ssl.create_default_context(cafile=str(authority))
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"{authority} cannot be used as a root certificate: {error}.") from error
    end = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as plain:
                if context is not None:
                    context.wrap_socket(plain, server_hostname=host).close()
                return
        except ssl.SSLCertVerificationError as error:
            raise InputError(
                f"The server at {address} shows a certificate that is not trusted here: {error.verify_message}. Ask "
                "its operator for the right root certificate, or for a new one."
            ) from None
        except ssl.SSLError as error:
            raise InputError(f"The server at {address} does not speak TLS as expected: {error.reason}.") from None
        except OSError as error:
            if time.monotonic() >= end:
                raise InputError(f"No server at {address} within {patience:g} seconds: {error}.") from None
            time.sleep(0.5)
