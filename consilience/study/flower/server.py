"""The server of a deployed study: a SuperLink that carries messages, and this process, which runs the one loop."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from torch import Tensor

from consilience.data.sites import Data
from consilience.disk.watch import Watch
from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError
from consilience.messages import Received, Server
from consilience.method import Method, Multiplied, Needs, group, needs
from consilience.privacy.disclosure.rules import FEWEST_SITES, by_rule
from consilience.runs.engines import threads_for
from consilience.runs.engines.participation import Participation
from consilience.runs.engines.participation import check as check_participation
from consilience.runs.engines.round import server_view
from consilience.runs.identity import citation, versions
from consilience.runs.loop import Loop, new_checkpoint
from consilience.runs.store import FORMAT, Checkpoint, Store
from consilience.serialisation.settings import describe
from consilience.study.flower.app import write_app
from consilience.study.flower.carrying import Missing
from consilience.study.flower.certificates import Certificates, check_current
from consilience.study.flower.engine import Flower
from consilience.study.flower.executor import Runtime, new_secret, serving, tasks
from consilience.study.flower.processes import Child, Unreachable, check_free, command, reach
from consilience.study.masked_round import Masking
from consilience.study.masking import MESSAGE
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import invent_rows, probe_rows
from consilience.study.protocol.signature import sign, verifies
from consilience.study.validation.rules import rules_of
from consilience.task import Task
from consilience.tree import Tree
from consilience.version import __version__

START = 180.0  # seconds a SuperLink may take to start
CONNECTION = """\
[superlink]
default = "study"
[superlink.study]
address = "{address}"
{security}
"""


@contextmanager
def connect(
    agreement: Agreement,
    folder: Path,
    host: str,
    port: int,
    certificates: Certificates | None,
    node_keys: Mapping[str, Path],
    say: Callable[[str], None] = print,
    name: str | None = None,
) -> Iterator[Grid]:
    """Start a SuperLink and reach the study's sites through it.

    Args:
        folder: Where Flower keeps its files.
        host: The address to listen on.
        port: The port to listen on.
        certificates: The server's; without them nothing is encrypted or checked: for trials only.
        node_keys: The public halves of the sites' node keys, by name.
        say: Is given a sentence for people.
        name: How this machine is called in its certificate, where it listens on all addresses or another one.

    Yields:
        A grid that reaches the sites.

    Raises:
        InputError: The port, a certificate or a key cannot be used, or Flower did not start.
    """
    check_free(host, port)
    if certificates:
        check_current(certificates)
    home = folder.absolute()
    secret = new_secret(home / "runtime.secret")
    _forget(home)
    address = f"{name or _own_address(host)}:{port}"
    words = [
        *("--host", host, "--port", str(port), "--isolation", "process"),
        *_security(certificates),
        *("--superexec-auth-secret-file", str(home / "runtime.secret"), "--disable-runtime-dependency-installation"),
        *("--database", str(home / "superlink.db")),
    ]
    child = Child("flower-superlink", words, home / "superlink.log", home)
    try:
        _wait_for(child, address, certificates)
        connection = CONNECTION.format(address=address, security=_trust(certificates))
        write_whole(home / "config.toml", connection.encode(), "Choose another folder with --out.", PRIVATE)
        if certificates:
            register(home, node_keys)
        output = command(home, "run", str(write_app(agreement, home / "app")), "study", "--format", "json")
        runtime = Runtime(address, secret, certificates and certificates.authority.read_bytes())
        say(f"The server listens on {host}:{port}.")
        end = time.monotonic() + START
        offers = tasks(runtime, TaskType.SERVER_APP, lambda: child.alive() and time.monotonic() < end, run_of(output))
        token = next(offers, None)
        if token is None:
            raise InputError(f"Flower's SuperLink did not start the run: {child.last_words()}")
        with serving(runtime, token) as grid:
            yield grid
    except httpx.HTTPError as error:
        raise InputError(
            f"Flower's SuperLink stopped answering ({type(error).__name__}; see {child.log}). What was saved before is "
            "whole: continue with --resume."
        ) from error
    finally:
        child.stop()


def _forget(home: Path) -> None:
    """Begin without the messages of a server that died.

    A site would wait for their remaining parts; as it is, a SuperNode that knew that server ends and is started anew.
    """
    for path in home.glob("superlink.db*"):
        path.unlink()


def _own_address(host: str) -> str:
    """Where this machine reaches itself."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return host


def _security(certificates: Certificates | None) -> tuple[str, ...]:
    """How a SuperLink proves who it is, and whom it lets in."""
    if certificates is None:
        return ("--insecure",)
    return (
        *("--ssl-ca-certfile", str(certificates.authority)),
        *("--ssl-certfile", str(certificates.certificate)),
        *("--ssl-keyfile", str(certificates.key)),
        "--enable-supernode-auth",
    )


def _trust(certificates: Certificates | None) -> str:
    """How `flwr` knows the SuperLink, in its own configuration."""
    if certificates is None:
        return "insecure = true"
    return f'root-certificates = "{certificates.authority.absolute()}"'


class Deployed(NamedTuple):
    """What came of a deployed study's rounds.

    Attributes:
        method: The study's method.
        state: The server's state after the last round.
        replies: The replies of the last round.
        report: What run.json holds.
        rows: How many rows stand behind a masked sum; 0 where each site says its own.
        said: What each site's last reply says of itself, by its place among the sites.
    """

    method: Method
    state: Tree
    replies: Sequence[Received]
    report: dict[str, Any]
    rows: int = 0
    said: Mapping[int, Mapping[str, Any]] = {}


def rounds(
    study: Study,
    key: Ed25519PrivateKey,
    grid: Grid,
    out: Path,
    *,
    calibration: Data | None = None,
    inputs: Tensor | None = None,
    min_replies: int | None = None,
    without: Sequence[str] = (),
    wait: float = 600.0,
    deadline: float = 3600.0,
    resume: bool = False,
    watch: Watch | None = None,
) -> Deployed:
    """Run the study's rounds over a grid, by the same loop as everything else.

    What is asked is signed with the coordinator's key; sites answer nobody else.

    Args:
        key: The coordinator's private key.
        grid: Flower's way to the sites.
        out: The folder for whatever the server knows.
        calibration: The coordinator's own rows with labels.
        inputs: The coordinator's own rows without labels, [N, D].
        min_replies: How many replies a round needs; None for all.
        without: In a study that masks, sites that its sums go on without from now on: the others tell the masks that
            they share with them, if their people agreed.
        wait: Seconds until the sites asked must be there.
        deadline: Seconds a round may take.
        resume: Whether to go on from the last whole round in `out`.
        watch: Is told what happens to the sites.

    Returns:
        What came of them.

    Raises:
        InputError: A site failed and is needed, or the folder holds something else.
    """
    agreement = study.agreement
    method = agreement.build_method()
    task = agreement.build_task()
    names = tuple(site.name for site in study.active)
    participation = Participation(min_replies=min_replies)
    check_participation(participation, method, len(names))
    _check_fewest(agreement, len(names), min_replies)
    if agreement.secure and min_replies is not None:
        raise InputError(
            "This study masks, and masks vanish only from the sum of all sites: leave min_replies out (--min-replies); "
            "where a site is lost, name it by without (--without), here and at the other sites, and resume."
        )
    _check_without(study, method, without)
    if Needs.INPUTS in needs(method) and inputs is None:
        raise InputError(f"{agreement.method} needs unlabelled rows at the coordinator: give them with --inputs.")
    store = Store(out, private=True)
    begun = (out / "run.json").exists()
    if store.exists and not (resume and begun):
        raise InputError(f"{out} already holds a run; continue it with --resume, or choose another folder.")
    server = server_view(agreement.key, len(names), inputs, calibration)
    fingerprint = _fingerprint(study, server)
    checkpoint = _saved(store, method, fingerprint) or new_checkpoint(method.init(task, server), fingerprint)
    engine = _engine(study, key, grid, wait, deadline)
    engine.roster.watch = watch or Watch(names, agreement.rounds)
    masking = Masking(study, method, task, inputs, MESSAGE)
    reveal = None
    if agreement.secure:
        missing = Missing(study, key, grid, out, tuple(without), wait, deadline)
        engine.adapt = masking.prepare
        engine.without = missing.places
        reveal = partial(_sum_masked, masking, missing)
    engine.forgiving = min_replies is not None
    engine.fewest = min_replies or 0
    threads = threads_for(task)
    loop = Loop(
        method,
        task,
        engine,
        server,
        agreement.key,
        agreement.rounds,
        names=names,
        sizes=[1] * len(names),  # nobody has said; only a simulated deadline asks
        fingerprint=fingerprint,
        header=_header(study, method, task, participation, threads),
        participation=participation,
        threads=threads,
        store=store,
        probes=probe_rows(agreement),
        measures=not agreement.secure,
        reveal=reveal,
    )
    checkpoint, replies = loop(checkpoint)
    if not replies:
        replies = store.replies(checkpoint.rounds, method)
    return Deployed(method, checkpoint.state, replies, loop.finish(checkpoint, None), masking.rows, engine.said)


def _sum_masked(masking: Masking, missing: Missing, received: Sequence[Received]) -> list[Received]:
    """What the method pools, of all sites' masked replies together."""
    members = masking.study.active
    told = missing.ask(masking.round)
    masking.study = missing.study
    masking.add({members[reply.client].number: reply.payload for reply in received}, told)
    return masking.replies


def _check_without(study: Study, method: Method, without: Sequence[str]) -> None:
    """Refuse to leave sites out where that is not how it is done, or shows what a site sent."""
    if not without:
        return
    if not study.agreement.secure:
        raise InputError("This study does not mask: go on without sites by min_replies (--min-replies).")
    if method.about.everyone:
        raise InputError(f"{study.agreement.method} needs every site in every round: wait for {', '.join(without)}.")
    left = len(study.active) - len({study.member(name).number for name in without})
    if left < study.agreement.fewest_sites:
        fewest = study.agreement.fewest_sites
        raise InputError(f"{left} sites would be left, and the study sums over no fewer than {fewest}.")


def _check_fewest(agreement: Agreement, sites: int, min_replies: int | None) -> None:
    """Refuse rounds of fewer sites than agreed, in which what a site sent could be found by subtraction."""
    fewest = agreement.fewest_sites
    if sites < fewest or (min_replies is not None and min_replies < fewest):
        sentence = (
            f"The study pools no fewer than {fewest} replies and has {sites} sites: min_replies must be {fewest} or "
            "more."
        )
        raise InputError(by_rule(FEWEST_SITES, sentence))


def _engine(study: Study, key: Ed25519PrivateKey, grid: Grid, wait: float, deadline: float) -> Flower:
    """The study's sites behind the grid; what is asked is signed by the coordinator, what is answered by the site."""
    agreement = study.agreement

    def verify(k: int, purpose: str, message: bytes, signature: str) -> bool:
        return verifies(study.active[k].key, purpose, message, signature)

    return Flower(
        grid,
        [site.name for site in study.active],
        invent_rows(agreement),
        study=agreement.hash,
        numbers=[site.number for site in study.active],
        verify=verify,
        sign=partial(sign, key),
        wait=wait,
        deadline=deadline,
        rules=rules_of(agreement),
        rows=[site.rows for site in study.active],
    )


def _header(study: Study, method: Method, task: Task, participation: Participation, threads: int) -> dict[str, Any]:
    """What run.json says of a deployed study; rows and scores are the sites' own."""
    agreement = study.agreement
    title, source = citation(type(method))
    return {
        "consilience": __version__,
        "format": FORMAT,
        "study": agreement.hash,
        "method": agreement.method,
        "title": title,
        "summary": source,
        "needs": group(method),
        "multiplies": isinstance(method, Multiplied),
        "data": agreement.name,
        "split": "study",
        "sites": len(study.active),
        "rounds": agreement.rounds,
        "seed": agreement.seed,
        "engine": "flower",
        "threads": threads,
        "compiled": False,
        "device": "cpu",
        "model": agreement.network,
        "parameters": sum(p.numel() for p in task.weights(task.like).values()),
        "task": agreement.kind,
        "classes": len(agreement.target.classes) or None,
        "class_names": list(agreement.target.classes) or None,
        "settings": describe(method),
        "prior": describe(task.prior),
        "likelihood": describe(task.likelihood),
        "rows": None,
        "participation": dataclasses.asdict(participation),
        "versions": versions(),
    }


def _fingerprint(study: Study, server: Server) -> str:
    """What decides the numbers, as far as the server can know: the agreement, who takes part, and its own rows."""
    digest = hashlib.sha256(study.agreement.hash.encode())
    for site in study.active:
        digest.update(f"{site.number} {site.key}".encode())
    calibration = server.calibration or ()
    for rows in (server.inputs, *calibration):
        if rows is not None:
            digest.update(f"{rows.dtype} {tuple(rows.shape)}".encode())
            digest.update(rows.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _saved(store: Store, method: Method, fingerprint: str) -> Checkpoint | None:
    """The last whole round, if it is of the same study."""
    saved = store.load(method)
    if saved is not None and saved.fingerprint != fingerprint:
        raise InputError(
            f"{store.folder} was made with another agreement, other sites or other rows at the coordinator; use what "
            "it was made with, or choose another folder."
        )
    return saved


def register(home: Path, node_keys: Mapping[str, Path]) -> None:
    """Let the SuperLink know the sites' keys; one it knows from before stays as it is.

    Args:
        home: Where Flower keeps its files.
        node_keys: The public halves of the sites' node keys, by name.

    Raises:
        InputError: A key is missing, or Flower does not take it.
    """
    for name, path in node_keys.items():
        if not path.is_file():
            raise InputError(f"There is no node key of '{name}' at {path}: ask the site for its public half.")
        try:
            command(home, "supernode", "register", str(path), "study", "--name", name)
        except InputError as error:
            if "already" not in str(error):
                raise


def run_of(output: str) -> int:
    """Find the number of the run that `flwr run` started, so that nobody else's is taken for it.

    Args:
        output: What `flwr run` printed.

    Raises:
        InputError: It did not say.
    """
    try:
        return int(json.loads(output[output.index("{") :])["run-id"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"`flwr run` did not say which run it started: {output.strip()[-300:]}") from error


def _wait_for(child: Child, address: str, certificates: Certificates | None) -> None:
    """Wait until a SuperLink listens."""
    end = time.monotonic() + START
    while child.alive() and time.monotonic() < end:
        try:
            return reach(address, certificates and certificates.authority, 0.0)
        except Unreachable:
            time.sleep(0.3)
    raise InputError(f"Flower's SuperLink did not start: {child.last_words()}")
