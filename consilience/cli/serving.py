"""What processes that serve share: options from a TOML file, a log with times, and SIGTERM."""

from __future__ import annotations

import datetime
import json
import logging
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import click
import typer

from consilience.cli.screen import plain
from consilience.disk.metrics import Metrics
from consilience.errors import InputError, unknown_name

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def _option_name(parameter: click.Parameter) -> str:
    """How a configuration calls a parameter: as its flag, or as the help calls an argument."""
    if isinstance(parameter, click.Argument):
        return (parameter.metavar or parameter.name or "").lower()
    return max(parameter.opts, key=len).lstrip("-").replace("-", "_")


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take options from a TOML file; what the command line says comes first. Called while options are read.

    Args:
        ctx: The command's context, whose defaults are set.
        path: The file; None: there is none. Paths in it are relative to its folder.

    Returns:
        The file.

    Raises:
        InputError: It cannot be read, or holds an option that the command does not have.
    """
    if path is None:
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}.") from error
    known = {_option_name(parameter): parameter for parameter in ctx.command.params}
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known or name in ("config", "help"):
            raise InputError(f"{path}: {unknown_name('option', key, known)}")
        parameter = known[name]
        values[str(parameter.name)] = _value(parameter, value, path)
    ctx.default_map = {**(ctx.default_map or {}), **values}
    return path


def _value(parameter: click.Parameter, value: Any, path: Path) -> Any:
    """A value as the option takes it, with paths relative to the file."""
    wanted = (str, int, float)
    if getattr(parameter, "is_flag", False):
        wanted = (bool,)  # type: ignore[assignment]
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        name = _option_name(parameter)
        raise InputError(f"{path}: {name} = {value!r} is of the wrong type: see --help for what it takes.")
    if isinstance(parameter.type, click.Path) or "Path" in type(parameter.type).__name__:
        return str(path.parent / str(value))
    return value


Config_ = Annotated[
    Path | None,
    typer.Option("--config", callback=read_config, is_eager=True, help="A TOML file with these options by name."),
]
LogLevel_ = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
LogFormat_ = Annotated[str, typer.Option("--log-format", help="text, or json: one object on a line.")]


MetricsPort_ = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Numbers for Prometheus on this port, at /metrics; none by default."),
]
MetricsHost_ = Annotated[str, typer.Option("--metrics-host", help="Address on which they are asked for.")]


@contextmanager
def serving_metrics(metrics: Metrics, host: str, port: int | None, log: logging.Logger) -> Iterator[None]:
    """Serve numbers to Prometheus within the block, if a port was given.

    Args:
        metrics: The numbers.
        host: The address to listen on.
        port: The port; None: nobody asks.
        log: Where it is said.

    Yields:
        Nothing.

    Raises:
        InputError: The port cannot be used, or prometheus-client is not installed.
    """
    if port is None:
        yield
        return
    server = metrics.serve(host, port)
    log.info(f"Numbers for Prometheus: http://{host}:{port}/metrics.")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def both(*listeners: Callable[..., None]) -> Callable[..., None]:
    """Tell several listeners the same.

    Args:
        listeners: All of them.

    Returns:
        One that tells them all.
    """

    def tell(*words: Any) -> None:
        for listener in listeners:
            listener(*words)

    return tell


class _Lines(logging.Formatter):
    """Lines with the time in UTC."""

    def __init__(self, party: str, as_json: bool) -> None:
        super().__init__()
        self.party = party
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        message = plain(record.getMessage())
        if self.as_json:
            line = {"time": when, "level": record.levelname.lower(), "party": self.party, "message": message}
            return json.dumps(line, ensure_ascii=False)
        return f"{when} {record.levelname} {self.party}: {message}"


def start_log(party: str, level: str, kind: str) -> logging.Logger:
    """Begin a log on standard error; results stay on standard output.

    Args:
        party: Who speaks.
        level: The least that is shown: debug, info, warning or error.
        kind: text or json.

    Returns:
        The log.

    Raises:
        InputError: Level or kind is unknown.
    """
    if level not in LEVELS:
        raise unknown_name("log level", level, LEVELS)
    if kind not in FORMATS:
        raise unknown_name("log format", kind, FORMATS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(party, kind == "json"))
    log = logging.getLogger("consilience.serve")
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(level.upper())
    return log


class Terminated(KeyboardInterrupt):
    """The operating system asked the process to end."""


@contextmanager
def ending_cleanly(log: logging.Logger) -> Iterator[None]:
    """Let SIGTERM end a process as Ctrl-C does, and log what ends it.

    Args:
        log: Where it is said.

    Yields:
        Nothing.

    Raises:
        Exit: A user's mistake ended it, which the log says.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows is the way out
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except InputError as error:
        log.error(str(error))
        raise typer.Exit(2) from error
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)
