"""What serving processes share: configuration, logs, health and SIGTERM. No Flower process runs here."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer
from tiny import Invoke

from consilience.cli.serving import Config_, Terminated, ending_cleanly, serving_metrics, start_log
from consilience.disk.metrics import Metrics
from consilience.disk.pulse import STOPPED, Beat, Pulse, last_beat
from consilience.errors import InputError


@pytest.fixture(scope="module")
def small() -> typer.Typer:
    """A command with the options of its kind."""
    made = typer.Typer()

    @made.command()
    def serve(
        study_file: Path = typer.Argument(metavar="STUDY"),
        port: int = 8000,
        node_key: Path | None = None,
        resume: bool = typer.Option(False, "--resume"),
        config: Config_ = None,
    ) -> None:
        print(json.dumps([str(study_file), port, str(node_key), resume]))

    return made


def run(command: typer.Typer, capsys: pytest.CaptureFixture[str], *words: str) -> list[object]:
    command(words, standalone_mode=False)
    found: list[object] = json.loads(capsys.readouterr().out)
    return found


def test_a_configuration_gives_what_the_command_line_does_not(
    small: typer.Typer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('study = "a.toml"\nport = 9000\nnode-key = "keys/n.node"\nresume = true\n')
    assert run(small, capsys, "--config", str(file)) == [
        str(tmp_path / "a.toml"), 9000, str(tmp_path / "keys/n.node"), True,
    ]  # fmt: skip
    assert run(small, capsys, "b.toml", "--port", "1", "--config", str(file))[:2] == ["b.toml", 1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 9000", "Did you mean 'port'"),
        ("port = [1]", "wrong type"),
        ("resume = 1", "wrong type"),
        ("port = true", "wrong type"),
        ("port = ", "cannot be read as TOML"),
        ('config = "x"', "no option called 'config'"),
    ],
)
def test_a_configuration_that_says_nothing_known_is_refused(
    text: str, sentence: str, small: typer.Typer, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text + "\n")
    with pytest.raises(InputError, match=sentence):
        small(["a.toml", "--config", str(file)], standalone_mode=False)


def test_logs_have_times_and_levels(capsys: pytest.CaptureFixture[str]) -> None:
    log = start_log("north", "info", "json")
    log.debug("hidden")
    log.warning("Round 1\x1b[31m refused: «why»")
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["level"], found["party"], found["message"]) == ("warning", "north", "Round 1[31m refused: «why»")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found["time"])
    start_log("north", "error", "text").warning("hidden")
    start_log("north", "error", "text").error("shown")
    assert re.fullmatch(r"\S+ ERROR north: shown\n", capsys.readouterr().err)
    for words in (("loud", "text"), ("info", "xml")):
        with pytest.raises(InputError, match="There is no log"):
            start_log("north", *words)


def test_sigterm_ends_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    log = logging.getLogger("test")
    with pytest.raises(Terminated), ending_cleanly(log):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(typer.Exit), ending_cleanly(log):
        raise InputError("a mistake")


def test_health_tells_who_lives_who_hangs_and_who_died(tmp_path: Path, invoke: Invoke) -> None:
    code, shown, _ = invoke("health", str(tmp_path))
    assert code == 1 and "Nothing was ever started" in shown
    pulse = Pulse(tmp_path, "north")
    pulse.beat("waiting for messages", 60.0)
    code, shown, _ = invoke("health", str(tmp_path))
    assert code == 0 and "north is well: waiting for messages" in shown
    first = last_beat(tmp_path)
    assert first is not None
    assert first.trouble(first.time + 59) == ""
    assert "silent for 61 seconds while waiting" in first.trouble(first.time + 61)  # it hangs
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert f"process {ended.pid} has died" in first._replace(process=ended.pid).trouble(first.time)
    assert first._replace(process=ended.pid, host="elsewhere").trouble(first.time) == ""
    with pytest.raises(RuntimeError), pulse.ending():
        raise RuntimeError
    code, shown, _ = invoke("health", str(tmp_path), "--json")
    assert code == 1 and json.loads(shown)["state"] == STOPPED and "has stopped" in json.loads(shown)["trouble"]


def test_health_hears_what_a_living_process_says_is_wrong(tmp_path: Path, invoke: Invoke) -> None:
    pulse = Pulse(tmp_path, "coordinator")
    pulse.beat("waiting for sites (0 of 3 sites are connected)", 60.0, "no site is connected")
    code, shown, _ = invoke("health", str(tmp_path))
    assert code == 1 and "coordinator: no site is connected, while waiting for sites" in " ".join(shown.split())
    pulse.beat("waiting for sites (1 of 3 sites are connected)", 60.0)
    assert invoke("health", str(tmp_path))[0] == 0


def test_numbers_are_served_to_prometheus_on_loopback() -> None:
    pytest.importorskip("prometheus_client", reason="needs pip install 'consilience[site]'")
    metrics = Metrics()
    metrics.set("sites", 3)
    metrics.add("replies_total", site="north")
    metrics.beat("waiting", 60.0, "no site is connected")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving_metrics(metrics, "127.0.0.1", port, logging.getLogger("test")):
        address = f"http://127.0.0.1:{port}/metrics"
        text = urllib.request.urlopen(address).read().decode()
        with pytest.raises(InputError, match=f"--metrics-port {port}: 127.0.0.1:{port} cannot be used"):
            metrics.serve("127.0.0.1", port)
    assert "consilience_sites 3.0" in text and 'consilience_replies_total{site="north"} 1.0' in text
    assert "consilience_well 0.0" in text and "consilience_beat_seconds" in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address)


def test_a_state_that_lasts_is_not_written_again_and_again(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path, "north")
    pulse.beat("waiting", 60.0)
    stamp = (tmp_path / "health.json").stat().st_mtime_ns
    pulse.beat("waiting", 60.0)
    assert (tmp_path / "health.json").stat().st_mtime_ns == stamp
    pulse.beat("answering", 60.0)
    found = last_beat(tmp_path)
    assert isinstance(found, Beat) and found.state == "answering"


def test_whoever_never_began_has_not_stopped(tmp_path: Path) -> None:
    """A second process that is refused says nothing about the first."""
    with pytest.raises(RuntimeError), Pulse(tmp_path, "second").ending():
        raise RuntimeError
    assert not any(tmp_path.iterdir())
