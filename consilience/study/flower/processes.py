"""Flower's programs as children of ours: started quietly, watched, and ended with us."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from consilience.errors import InputError
from consilience.study.flower import SETTINGS

PATIENCE = 15.0  # seconds a child gets to end by itself; it ends itself within ten
COMMAND = 180.0  # seconds a command of Flower's may take: it imports for seconds before it does anything


class Unreachable(InputError):
    """No server answers at an address; it may yet come."""


class Child:
    """A program that ends when we do, its output in a file.

    Its input is a pipe from us: it closes when we die, however we die, and then the program ends itself.

    Attributes:
        process: The program.
        log: Where its output goes.
    """

    def __init__(self, program: str, words: Sequence[str], log: Path, home: Path) -> None:
        """Start a program of Flower's.

        Args:
            words: What it is started with.
            log: Where its output goes.
            home: Where it keeps its files.
        """
        self.log = log
        launcher = str(Path(__file__).with_name("launch.py"))
        with open(log, "ab", opener=_open_private) as file:
            self._start = file.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-P", launcher, program, *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,
                env=environment(home),
                umask=0o077,  # its database holds what sites sent
            )

    def alive(self) -> bool:
        """Say whether it is running."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it, first politely."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        """Read what it said at the end, for people who look for a reason."""
        with self.log.open("rb") as file:
            file.seek(self._start)
            lines = file.read().decode(errors="replace").splitlines()
        return " ".join(line.strip() for line in lines[-12:] if line.strip())[-900:]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def find_program(program: str) -> str:
    """Find a program of Flower's, beside this Python or on the path.

    Raises:
        InputError: It is not installed.
    """
    beside = Path(sys.executable).parent / program
    if beside.exists():
        return str(beside)
    path = shutil.which(program)
    if path is None:
        raise InputError(f"There is no '{program}': `pip install 'consilience[site]'`.")
    return path


def environment(home: Path) -> dict[str, str]:
    """Allow no telemetry, update checks, installation or colours, and keep Flower's own files in a folder of ours.

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
    run = partial(subprocess.run, env=environment(home), capture_output=True, text=True, check=False)
    try:
        process = run([find_program("flwr"), *words], timeout=COMMAND)
    except subprocess.TimeoutExpired:
        raise InputError(f"`flwr {' '.join(words[:2])}` did not end within {COMMAND:g} seconds.") from None
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


def check_free(host: str, port: int, patience: float = 2 * PATIENCE) -> None:
    """Refuse a port in use; one that a server which was killed still holds is free within seconds.

    Args:
        host: The address to listen on.
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
        Unreachable: There is no server.
        InputError: It cannot be trusted.
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
        except OSError as error:  # also a server that dies while it says hello
            if time.monotonic() >= end:
                raise _unreachable(address, patience, error) from None
            time.sleep(0.5)


def _unreachable(address: str, patience: float, error: OSError) -> InputError:
    """Why a server cannot be reached."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return InputError(f"The server at {address} does not speak TLS as expected: {error.reason}.")
    return Unreachable(f"No server at {address} within {patience:g} seconds: {error}.")


def _tls_context(authority: Path | None) -> ssl.SSLContext | None:
    """Who is trusted: those an authority signed."""
    if authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{authority} cannot be used as a root certificate: {error}.") from error
