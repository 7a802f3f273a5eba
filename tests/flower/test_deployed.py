"""Studies between real processes on loopback, and what may go wrong with them. Run with make test-flower."""

from __future__ import annotations

import datetime
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import torch
from deployed import BETA, ROOT, SCAFFOLD, Deployment

from consilience import tree
from consilience.runs.store import Store
from consilience.study.budget import read_budget
from consilience.study.flower.certificates import new_certificates, new_node_key
from consilience.study.flower.processes import free_port
from consilience.study.protocol.envelope import open_envelope

pytestmark = pytest.mark.flower

Start = Callable[..., Deployment]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Start]:
    made: list[Deployment] = []

    def start(*names: str, **words: Any) -> Deployment:
        made.append(Deployment(tmp_path, names, **words))
        return made[-1]

    yield start
    for one in made:
        one.end()


def saved(d: Deployment) -> Any:
    found = Store(d.out).load(d.study.agreement.build_method())
    assert found is not None
    return found.state


def same(a: Any, b: Any) -> bool:
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in pairs)


def report(d: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((d.out / "run.json").read_text())
    return found


def logged(d: Deployment, name: str) -> list[dict[str, Any]]:
    """What a site wrote down of the rounds, after it was asked who it is."""
    lines = [json.loads(line) for line in (d.folder / f"{name}.site/messages.jsonl").open()]
    assert [line["way"] for line in lines if line["round"] == "0"][:2] == ["in", "out"]
    return [line for line in lines if line["round"] != "0"]


def test_three_sites_with_tls_give_the_numbers_of_one_process(deployment: Start) -> None:
    d = deployment("north", "south", "west", **BETA)
    d.server("--calibration", "calibration.csv")
    for name in d.names:
        d.site(name)

    assert d.finish("server") == 0, d.said("server")

    assert same(saved(d), d.sequential(d.names, calibration=True))
    assert report(d)["failures"] == [] and (d.out / "study.model").exists()
    assert "3 sites" in (d.out / "study.html").read_text()
    lines = [line for name in d.names for line in logged(d, name)]
    assert [line["way"] for line in lines] == ["in", "out"] * 3 and all(len(line["sha256"]) == 64 for line in lines)
    payload = report(d)["ledger"]["up_bytes"]
    sent = sum(line["bytes"] for line in lines if line["way"] == "out")
    assert payload < sent < 1.02 * payload  # names, shapes and the signature are small beside the numbers


def test_masks_and_noise_pass_between_processes_and_are_paid_for(deployment: Start) -> None:
    """Over TLS: each site's ledger has the one release, and the model states the promise."""
    promise = {"epsilon": 8.0, "delta": 1e-4, "noise_added": "once", "honest_sites": 3}
    agreed = {"method": "exact", "settings": (), "model": "linear", "fewest_sites": 3, "smallest": 1}
    d = deployment("north", "south", "west", masked=True, **agreed, **promise)
    d.server()
    for name in d.names:
        d.site(name)

    assert d.finish("server") == 0, d.said("server")

    replies = list((d.out / "replies").rglob("*.safetensors"))
    assert len(replies) == 3
    for name in d.names:
        (ledger,) = d.folder.rglob(f"{name}.ledger")
        budget = read_budget(ledger)
        assert len(budget.releases) == 1 and budget.spent().epsilon(1e-4) == pytest.approx(8.0, rel=1e-6)
    stated = open_envelope(d.out / "study.model").header.about["privacy"]
    assert (stated["epsilon"], stated["noise"], stated["simulated"]) == (8.0, "once", False)


def test_a_run_goes_on_without_sites_that_fail_and_says_who_and_why(deployment: Start) -> None:
    """Five sites, of which one raises, one says nothing, one dies while it trains and one is too slow."""
    names = ("fine", "raises", "silent", "crash", "slow")
    d = deployment(*names, **BETA)
    d.server("--calibration", "calibration.csv", "--min-replies", "1", "--deadline", "45")
    for name in names:
        d.site(name, fault="" if name == "fine" else name)

    assert d.finish("server") == 0, d.said("server")

    why = {f["site"]: f["why"] for f in report(d)["failures"]}
    assert set(why) == {"raises", "silent", "crash", "slow"}
    assert "RuntimeError" in why["raises"] and "it gave no answer" in why["silent"]
    assert "no reply within 45 seconds" in why["slow"]
    assert "no reply within" in why["crash"] or "it stopped answering" in why["crash"]  # whichever comes first
    assert same(saved(d), d.sequential(["fine"], calibration=True))
    page = (d.out / "study.html").read_text()
    assert "1 of 5 sites" in page and all(f"went on without {name}: " in page for name in why)


def test_without_min_replies_a_failure_ends_the_run_in_one_sentence_and_nothing_is_lost(deployment: Start) -> None:
    d = deployment("fine", "raises", **SCAFFOLD)
    d.server()
    d.site("fine")
    d.site("raises", fault="raises")

    assert d.finish("server") == 2

    assert "Site raises, round 1: it reports: RuntimeError" in " ".join(d.said("server").split())
    assert "Traceback" not in d.said("server")
    assert [f["site"] for f in report(d)["failures"]] == ["raises"]


def test_a_server_that_is_killed_goes_on_where_it_was_and_the_numbers_are_the_same(deployment: Start) -> None:
    """SCAFFOLD remembers at the sites; they keep running while the server is killed after its first round."""
    d = deployment("north", "south", **SCAFFOLD)
    server = d.server()
    for name in d.names:
        d.site(name)
    d.until("north", "Round 2 answered")
    server.kill()
    server.wait()
    done = Store(d.out).load(d.study.agreement.build_method())
    assert done is not None and 1 <= done.rounds < 3

    d.server("--resume", name="again")

    assert d.finish("again") == 0, d.said("again")
    assert same(saved(d), d.sequential(d.names, calibration=False))


@pytest.mark.parametrize("wrong", ["authority", "expired", "node key", "study key"])
def test_wrong_papers_are_refused_in_one_sentence(deployment: Start, tmp_path: Path, wrong: str) -> None:
    d = deployment("north", **BETA)
    other = tmp_path / "other"
    words: dict[str, Any] = {}
    if wrong == "authority":
        words, expected = {"root": str(new_certificates(other, ["127.0.0.1"]).authority)}, "not trusted here"
    elif wrong == "expired":
        for path in (d.folder / "certs").glob("*"):
            if path.suffix not in (".node", ".pub"):
                path.unlink()
        long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=60)
        new_certificates(d.folder / "certs", ["127.0.0.1"], since=long_ago)
        expected = "certificate has expired"
    elif wrong == "node key":
        words, expected = {"node": str(new_node_key(other, "north")[0])}, "does not know this site's key"
    else:
        from consilience.study.protocol.signature import new_key

        (d.folder / "north.key").unlink()
        new_key(d.folder / "north.key")
        expected = "is not the key of a site in the study"
    d.server()
    if wrong == "node key":
        d.until("server", "The server listens")
    d.site("north", "--wait", "20" if wrong == "node key" else "600", **words)

    where = "server" if wrong == "expired" else "north"
    assert d.finish(where) == 2
    assert expected in " ".join(d.said(where).split()) and "Traceback" not in d.said(where)


EVIL = """
import os, pathlib
pathlib.Path(os.environ["MARKER"]).write_text("imported")
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client = ClientApp()
server = ServerApp()
"""


def test_a_changed_app_is_refused_before_anything_of_it_is_imported(deployment: Start) -> None:
    """The server's operator adds code to the app. A stock SuperNode, beside it as a control, runs that code."""
    d = deployment("north", secure=False, **BETA)
    (d.folder / "evil.py").write_text(EVIL)
    serve = ["study", "serve", "study.toml", "--key", "server.key", "--insecure", "--wait", "200"]
    d.start("server", [str(ROOT / "evil_server.py"), *serve, "--port", str(d.port)])
    d.until("server", "The server listens")
    d.site("north")
    d.until("north", "nothing of it was run")
    stock, seen = d.folder / "stock", d.folder / "stock.marker"
    words = ["--insecure", "--superlink", f"127.0.0.1:{d.port}", "--host", "127.0.0.1", "--port", str(free_port())]
    control = ["import sys; from flwr.supernode.cli.flower_supernode import flower_supernode; flower_supernode()"]
    d.start("stock", ["-c", *control, *words], FLWR_HOME=str(stock), MARKER=str(seen))

    assert d.finish("server") == 2
    assert "Refused: the server's app" in d.said("north")
    assert "is not the study's" in " ".join(d.said("server").split())
    assert seen.read_text() == "imported", "the control shows that the app would have been run"
    assert not (d.folder / "north.marker").exists()
    assert not [path for path in (d.folder / "north.site").rglob("*") if "evil" in path.name]


def peak(process: subprocess.Popen[bytes]) -> int:
    """The most bytes a process has held so far; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_two_hundred_megabytes_a_site_pass_and_the_servers_memory_is_bounded(deployment: Start) -> None:
    """2 840 samples of 17 610 weights are 200 MB. The server holds two sites' replies and a few copies of one."""
    count = 2840
    many = tuple(f"inference.{what}={n}" for what, n in (("epochs", count), ("cycles", 1), ("samples", count)))
    settings = (*many, f"inference.keep={count}", "inference.batch=200", "inference.rate=0.0001")
    d = deployment("north", "south", method="mixture", settings=settings, most_bytes=210_000_000)
    server, most = d.server(), 0
    for name in d.names:
        d.site(name)
    while server.poll() is None:
        most = max(most, peak(server))
        time.sleep(0.2)

    assert server.returncode == 0, d.said("server")
    payload = report(d)["ledger"]["up_bytes"]
    times = [line["time"] for line in logged(d, "north")]
    print(f"payload {payload:,} bytes, server's peak {most:,} bytes, question to answer {times[1] - times[0]:.1f} s")
    assert payload == 2 * count * 17_610 * 4
    assert most < 600e6 + 6 * payload  # torch and the rest hold 450 MB before anything arrives


def test_sigterm_ends_both_sides_cleanly_and_health_says_so(deployment: Start) -> None:
    d = deployment("north", "south", "west", **SCAFFOLD)

    def health(folder: str) -> int:
        command = [sys.executable, "-m", "consilience.cli", "health", str(d.folder / folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode

    server = d.server("--log-format", "json")
    for name in d.names:
        d.site(name, "--log-format", "json")
    d.until("north", "Round 1 answered")
    assert [health("study.run"), health("north.site")] == [0, 0]

    server.send_signal(signal.SIGTERM)

    assert d.finish("server", 120) == 143
    assert [health("study.run"), health("north.site")] == [1, 0]
    d.server("--resume", name="again")
    assert d.finish("again") == 0, d.said("again")
    assert same(saved(d), d.sequential(d.names, calibration=False))
    for name in d.names:
        d.processes[name].send_signal(signal.SIGTERM)
        assert d.finish(name, 120) == 0
        assert health(f"{name}.site") == 1
    lines = [json.loads(line) for line in d.said("north").splitlines() if line.startswith("{")]
    assert lines[-1]["message"].startswith("Stopped.") and {line["party"] for line in lines} == {"north"}


def test_a_coordinator_whose_sites_are_gone_is_not_well_and_its_log_says_why(deployment: Start) -> None:
    """It was "well" for ten minutes, and its log was silent for rounds."""
    d = deployment("north", "south", **{**SCAFFOLD, "rounds": 4})

    def health() -> dict[str, Any]:
        command = [sys.executable, "-m", "consilience.cli", "health", "study.run", "--json"]
        shown: dict[str, Any] = json.loads(
            subprocess.run(command, check=False, capture_output=True, cwd=d.folder).stdout
        )
        return shown

    port = free_port()
    d.server("--metrics-port", str(port))
    for name in d.names:
        d.site(name)
    d.until("server", "Round 1 of 4: 2 replies")
    numbers = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert "consilience_sites 2.0" in numbers and 'consilience_replies_total{site="north"}' in numbers
    assert health()["healthy"]
    for name in d.names:
        d.processes[name].send_signal(signal.SIGTERM)
        assert d.finish(name, 120) == 0

    d.until("server", "(0 of 2 sites are connected)", 120)
    end = time.monotonic() + 150
    while health()["healthy"] and time.monotonic() < end:
        time.sleep(2)

    found = health()
    assert not found["healthy"] and "no site is connected" in found["trouble"]
    assert "(0 of 2 sites are connected)" in found["state"]
    for name in d.names:
        d.site(name)
    assert d.finish("server") == 0, d.said("server")
    said = d.said("server")
    assert all(f"Round {t} of 4 begins" in said and f"Round {t} of 4: 2 replies" in said for t in (2, 3, 4))
    assert "north is connected" in said and "north went away" in said
