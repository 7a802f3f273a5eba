"""What a deployment checks before anything is started: papers, places, and the app's hash. No Flower process runs."""

from __future__ import annotations

import datetime
import io
import json
import socket
import ssl
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import studies
import torch
from flwr.app import Message
from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.proto.task_pb2 import Task
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from tiny import Invoke

from consilience.disk.pulse import Pulse
from consilience.errors import InputError
from consilience.runs.result import Result
from consilience.runs.store import Store
from consilience.study.flower.app import app_files, content_hash, pin, write_app
from consilience.study.flower.certificates import Certificates, check_current, new_certificates, new_node_key
from consilience.study.flower.executor import Runtime, tasks
from consilience.study.flower.processes import check_free, reach
from consilience.study.flower.server import rounds, run_of
from consilience.study.flower.site import responder, site_of
from consilience.study.protocol.members import read
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import study_text


@pytest.fixture
def written(invoke: Invoke, tmp_path: Path) -> Invoke:
    """The command line in a folder with a signed study, `study.toml`, and everybody's keys and rows."""
    made = studies.study(tmp_path)
    (tmp_path / "study.toml").write_text(study_text(made))
    for k, name in enumerate(studies.NAMES):
        studies.table(tmp_path / f"{name}.csv", studies.rows(k))
    return invoke


def test_certificates_are_renewed_under_the_same_authority(written: Invoke, tmp_path: Path) -> None:
    """Sites keep their ca.crt; the key of the server and its names stay."""
    folder = tmp_path / "certs"
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=40)
    made = new_certificates(folder, ["127.0.0.1", "localhost"], since=long_ago)
    root, key = made.authority.read_bytes(), made.key.read_bytes()
    assert made.authority_key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="--renew"):
        check_current(made)

    code, shown, err = written("study", "certs", "study.toml", "--renew", "--out", str(folder))

    assert code == 0 and "sites need nothing new" in " ".join(shown.split()), err
    check_current(made)
    assert (made.authority.read_bytes(), made.key.read_bytes()) == (root, key)
    with tls(made) as address:
        reach(address, made.authority, 5.0)
    made.authority_key.rename(tmp_path / "elsewhere.key")
    code, _, err = written("study", "certs", "study.toml", "--renew", "--out", str(folder))
    assert code == 2 and "nobody else can sign for this authority" in " ".join(err.split())
    new_certificates(tmp_path / "other", ["127.0.0.1"]).authority_key.rename(made.authority_key)
    code, _, err = written("study", "certs", "study.toml", "--renew", "--out", str(folder))
    assert code == 2 and "is not the key of" in " ".join(err.split())


def test_no_site_is_added_while_rounds_are_played(written: Invoke, tmp_path: Path) -> None:
    """It was taken, and the run could not be resumed."""
    assert written("site", "join", "study.toml", "east", "--rows", "60")[0] == 0
    before = (tmp_path / "study.toml").read_text()
    pulse = Pulse(tmp_path / "study.run", "coordinator")
    (tmp_path / "study.run").mkdir()
    pulse.beat("in round 1 of 3", 600.0, "no site is connected")

    code, _, err = written("study", "add", "study.toml", "east.join")

    assert code == 2 and "go on with the sites they began with alone" in " ".join(err.split())
    assert (tmp_path / "study.toml").read_text() == before
    pulse.beat("stopped", 0.0)
    Store(tmp_path / "study.run").write_checked("run.json", {"format": 1, "finished": False})
    (tmp_path / "study.run" / "state.safetensors").touch()
    assert written("study", "add", "study.toml", "east.join")[0] == 2
    Store(tmp_path / "study.run").write_checked("run.json", {"format": 1, "finished": True})
    code, _, err = written("study", "add", "study.toml", "east.join")
    assert code == 0, err


@contextmanager
def tls(certificates: Certificates) -> Iterator[str]:
    """A server on loopback that shows its certificate and says nothing → its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return
            try:
                context.wrap_socket(plain, server_side=True).close()
            except (ssl.SSLError, OSError):
                plain.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def test_a_site_trusts_its_servers_certificate_and_no_other(tmp_path: Path) -> None:
    own, other = (new_certificates(tmp_path / name, ["127.0.0.1"]) for name in ("own", "other"))
    elsewhere = new_certificates(tmp_path / "elsewhere", ["server.example.org"])

    with tls(own) as address:
        reach(address, own.authority, 0.0)
        with pytest.raises(InputError, match="not trusted here"):
            reach(address, other.authority, 0.0)
    with tls(elsewhere) as address, pytest.raises(InputError, match=r"not trusted here: IP address mismatch"):
        reach(address, elsewhere.authority, 0.0)
    with pytest.raises(InputError, match="No server at"):
        reach(address, own.authority, 0.0)


def test_an_expired_certificate_is_refused_at_both_ends(tmp_path: Path) -> None:
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=60)
    old = new_certificates(tmp_path, ["127.0.0.1"], since=long_ago)

    with pytest.raises(InputError, match="has expired"):
        check_current(old)
    with tls(old) as address, pytest.raises(InputError, match="certificate has expired"):
        reach(address, old.authority, 0.0)


def test_secrets_can_be_read_by_their_owner_only_and_are_never_written_over(tmp_path: Path) -> None:
    made, (secret, _) = new_certificates(tmp_path, ["127.0.0.1"]), new_node_key(tmp_path, "north")

    assert {path.stat().st_mode & 0o777 for path in (made.key, secret)} == {0o600}
    with pytest.raises(InputError, match="already exists"):
        new_node_key(tmp_path, "north")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"Port {port} on 127.0.0.1 cannot be used"):
            check_free("127.0.0.1", port, patience=0.0)


def test_everybody_finds_the_same_hash_and_any_change_shows(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    agreement = studies.agreement(tmp_path)
    own = pin(agreement)
    as_flower_packs_it = build_fab_from_disk(write_app(agreement, tmp_path / "app"))
    assert content_hash(as_flower_packs_it) == own == pin(agreement)

    (tmp_path / "app" / "more.py").write_text("x = 1")
    assert content_hash(build_fab_from_disk(tmp_path / "app")) != own
    assert pin(studies.agreement(tmp_path, seed=7)) != own
    assert all(not name.endswith(".py") for name in app_files(agreement)), "the app holds no code"


def test_an_archive_that_would_burst_is_not_unpacked() -> None:
    """200 MB of zeros in a few hundred kB; and something that is no archive at all."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(200_000_000))
    for content in (packed.getvalue(), b"no archive"):
        assert len(content_hash(content)) == 64


def test_the_server_takes_the_run_it_started_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the port can start a run, and theirs may come first."""
    offered = [AcquireTaskResponse(task=Task(run_id=n), token=f"of run {n}") for n in (5, 2**63 + 7)]

    class Client:
        def AcquireTask(self, request: Any) -> AcquireTaskResponse:  # noqa: N802 — Flower's name
            return offered.pop(0)

        def close(self) -> None:
            pass

    monkeypatch.setattr(Runtime, "client", lambda *words, **named: Client())
    said = f'{{"success": true, "run-id": "{2**63 + 7}"}}\n'

    found = next(tasks(Runtime("", b"secret"), TaskType.SERVER_APP, lambda: bool(offered), run_of(said)))

    assert found == f"of run {2**63 + 7}"
    with pytest.raises(InputError, match="did not say which run"):
        run_of("Successfully started something")


def test_certificates_and_app_are_written_with_the_commands_to_start(written: Invoke, tmp_path: Path) -> None:
    code, _, _ = written("study", "certs", "study.toml")
    assert code == 0
    assert {p.name for p in (tmp_path / "certs").iterdir()} == {"ca.crt", "ca.key", "server.pem", "server.key"} | {
        f"{name}.node{end}" for name in studies.NAMES for end in ("", ".pub")
    }
    code, output, _ = written("study", "deploy", "study.toml")
    text = (tmp_path / "study.deploy" / "README.md").read_text()
    assert code == 0 and pin(studies.agreement(tmp_path)) in output.replace("\n", "")
    assert all(f"--node-key {name}.node" in text for name in studies.NAMES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("study serve study.toml --key server.key", "There is no certs/ca.crt"),
        ("study serve study.toml --key server.key --insecure --host 0.0.0.0", "--insecure is for trials"),
        ("study serve study.toml --key north.key --insecure", "not the key of the study's coordinator"),
        ("site serve study.toml north.csv --key north.key", "There is no root certificate ca.crt"),
        ("site serve study.toml north.csv --key server.key", "not the key of a site"),
        ("site serve study.toml north.csv --key north.key --insecure --server example.org:8000", "--insecure is for"),
        ("site serve study.toml north.csv --key north.key --insecure --server here", "must be at 127.0.0.1"),
        ("site serve study.toml missing.csv --key north.key --insecure", "missing.csv"),
        ("site serve study.toml north.csv --key north.key --insecure --server 127.0.0.1:9 --wait 0", "No server at"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(written: Invoke, words: str, expected: str) -> None:
    code, _, errors = written(*words.split())
    assert code == 2 and expected in " ".join(errors.split())


def test_a_connected_site_starts_again_with_the_same_rows_only(tmp_path: Path) -> None:
    study = studies.study(tmp_path, ("north",))
    key, folder = read_key(tmp_path / "north.key"), tmp_path / "north.site"
    records = studies.rows(0)
    table = studies.table(tmp_path / "north.csv", records)
    before = site_of(study, study.member("north"), key, table, folder)
    studies.table(table, records[::-1])
    turned = site_of(study, study.member("north"), key, table, folder)
    studies.table(table, records[1:])

    with pytest.raises(InputError, match="1 of the rows of then are missing"):
        site_of(study, study.member("north"), key, table, folder)
    site_of(study, study.member("north"), key, table, folder, replace=True)

    assert torch.equal(before.data.x, turned.data.x)


def test_a_site_answers_one_run_of_a_study_and_goes_on_with_a_resumed_one(tmp_path: Path) -> None:
    """Its folder remembers across restarts of either side; another folder is a second run, another study its own."""
    words: dict[str, Any] = {"method": "scaffold", "settings": ("inference.epochs=1",), "rounds": 2}
    table, keep = studies.table(tmp_path / "north.csv", studies.rows(0)), tmp_path / "north.site"

    def run(out: str, folder: Path = keep, lost: str = "", resume: bool = False, seed: int = 0) -> Result:
        study = studies.study(tmp_path, ("north",), seed=seed, **words)
        site = site_of(study, study.member("north"), read_key(tmp_path / "north.key"), table, folder)
        grid = loopback.Loopback([site], lambda k, reply: [] if reply.metadata.group_id == lost else [reply])
        grid.app = responder(site, folder, lambda line: None)  # type: ignore[assignment]
        key = read_key(tmp_path / "server.key")
        return rounds(study, key, grid, tmp_path / out, wait=0.2, deadline=2.0, resume=resume)

    with pytest.raises(InputError, match="round 2: no reply within"):
        run("one", lost="2")
    resumed = run("one", resume=True)
    with pytest.raises(InputError, match="another folder for a second run"):
        run("two")
    whole = run("three", tmp_path / "second")

    for name, value in whole.state.control.items():
        assert torch.equal(resumed.state.control[name], value)
    run("four", seed=1)


def test_a_site_answers_the_coordinator_of_its_study_and_nobody_else(tmp_path: Path) -> None:
    study = studies.study(tmp_path, ("north",))
    table, own = studies.table(tmp_path / "north.csv", studies.rows(0)), read_key(tmp_path / "north.key")
    site = site_of(study, study.member("north"), own, table, tmp_path / "north.site")

    with pytest.raises(InputError, match="not signed by the study's coordinator"):
        rounds(study, own, loopback.Loopback([site]), tmp_path / "other", wait=0.2)
    found = rounds(study, read_key(tmp_path / "server.key"), loopback.Loopback([site]), tmp_path / "run", wait=0.2)

    assert [r.client for r in found.replies] == [0]


def test_a_served_model_names_everyone_who_sent_something(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North's reply is lost in round 2; round 1 holds it."""
    study = studies.study(tmp_path, method="fedavg", settings=("inference.epochs=1",), rounds=2)
    (tmp_path / "study.toml").write_text(study_text(study))
    sites = []
    for k, name in enumerate(studies.NAMES):
        table, key = studies.table(tmp_path / f"{name}.csv", studies.rows(k)), read_key(tmp_path / f"{name}.key")
        sites.append(site_of(study, study.member(name), key, table, tmp_path / f"{name}.site"))

    def lost(k: int, reply: Message) -> list[Message]:
        return [] if k == 0 and reply.metadata.group_id == "2" else [reply]

    @contextmanager
    def connected(*place: Any) -> Iterator[Grid]:
        yield loopback.Loopback(sites, lost)

    monkeypatch.setattr("consilience.study.flower.server.connect", connected)
    monkeypatch.chdir(tmp_path)
    words = ("--key", "server.key", "--insecure", "--min-replies", "1", "--deadline", "2")

    code, said, logged = invoke("study", "serve", "study.toml", *words)

    told = json.loads((tmp_path / "study.run" / "study.json").read_text())
    assert code == 0 and "Pooled from north, south, west." in said
    assert "Without a reply of north in round 2." in said and "went on without north" in logged
    assert [(s["site"], s["train"]) for s in told["per_site"]] == [("north", None), ("south", 42), ("west", 42)]
    assert [model.sites for model in read(tmp_path / "study.toml").models] == [studies.NAMES]
