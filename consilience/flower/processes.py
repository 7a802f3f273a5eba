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
    """A program that ends when we do, its output in a file.

    Attributes:
        process: The program.
        log: Where its output goes.
    """

    def __init__(self, program: str, words: Sequence[str], log: Path, home: Path) -> None:
        """Start a program of Flower's.

        Args:
            program: Its name.
            words: What it is started with.
            log: Where its output goes.
            home: Where it keeps its files.
        """
        self.log = log
        tie = None
        if sys.platform == "linux":
            tie = _end_with_parent
        with open(log, "ab", opener=_open_private) as file:
            self.process = subprocess.Popen(
                [find_program(program), *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment(home),
                umask=0o077,  # its database holds what sites sent
                preexec_fn=tie,  # noqa: PLW1509 — a system call, no more
            )

    def alive(self) -> bool:
        """Tell whether it is running."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it, first politely."""
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def last_words(self) -> str:
        """Read what it said at the end, for people who look for a reason."""
        lines = self.log.read_text(errors="replace").splitlines()
        return " ".join(line.strip() for line in lines[-12:] if line.strip())[-900:]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _end_with_parent() -> None:
    """Ask the kernel to end this child when its parent dies, however it dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def find_program(program: str) -> str:
    """Find a program of Flower's, beside this Python or on the path.

    Args:
        program: Its name.

    Raises:
        InputError: It is not installed.
    """
    beside = Path(sys.executable).parent / program
    if beside.exists():
        return str(beside)
    path = shutil.which(program)
    if path is None:
        raise InputError(f"There is no '{program}': `pip install 'consilience[flower]'`.")
    return path


def environment(home: Path) -> dict[str, str]:
    """Allow no telemetry, update checks, installation or colours, and keep Flower's own files in a folder of ours.

    Args:
        home: That folder.

    Returns:
        The environment for Flower's programs.
    """
    return {**os.environ, **SETTINGS, "FORCE_COLOR": "", "FLWR_HOME": str(home.absolute())}


def command(home: Path, *words: str) -> str:
    """Run `flwr`.

    Args:
        home: Where it keeps its files.
        words: What it is started with.

    Returns:
        What it printed.

    Raises:
        InputError: It failed.
    """
    process = subprocess.run(
        [find_program("flwr"), *words], env=environment(home), capture_output=True, text=True, check=False
    )
    if process.returncode:
        output = " ".join((process.stdout + process.stderr).split())[-600:]
        raise InputError(f"`flwr {' '.join(words[:2])}` failed: {output}")
    return process.stdout


def free_port() -> int:
    """Find a port on loopback that nobody uses."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def check_free(host: str, port: int, patience: float = PATIENCE) -> None:
    """Refuse a port in use; one that a server which was killed still holds is free within seconds.

    Args:
        host: The address to listen on.
        port: The port.
        patience: Seconds until it must be free.

    Raises:
        InputError: It is in use.
    """
    end = time.monotonic() + patience
    while True:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return s.bind((host, port))
            except OSError as error:
                why = error.strerror
        if time.monotonic() >= end:
            raise InputError(f"Port {port} on {host} cannot be used ({why}): choose another port.")
        time.sleep(0.5)


def split_address(address: str) -> tuple[str, int]:
    """Split an address into host and port.

    Args:
        address: `host:port`.

    Raises:
        InputError: It is not an address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"'{address}' is not an address: write it as host:port.")
    return host, int(port)


def reach(address: str, authority: Path | None, patience: float) -> None:
    """Wait for a server, and refuse one whose certificate does not hold, before anything is started.

    Args:
        address: `host:port`.
        authority: The server's root certificate; None where nothing is encrypted.
        patience: Seconds until the server must be there.

    Raises:
        InputError: There is no server, or it cannot be trusted.
    """
    host, port = split_address(address)
    context = _tls_context(authority)
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


def _tls_context(authority: Path | None) -> ssl.SSLContext | None:
    """Who is trusted: those an authority signed."""
    if authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{authority} cannot be used as a root certificate: {error}.") from error
