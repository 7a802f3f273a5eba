"""Commands for sites that are connected: study certs, deploy and serve; site nodekey and serve."""

from __future__ import annotations

import ipaddress
from contextlib import AbstractContextManager
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.app import site_app, study_app
from consilience.cli.commands.study import write_pooled
from consilience.cli.handed import say, server_key, site_home, write_files
from consilience.cli.screen import progress
from consilience.cli.serving import (
    Config_,
    LogFormat_,
    LogLevel_,
    MetricsHost_,
    MetricsPort_,
    Terminated,
    both,
    ending_cleanly,
    serving_metrics,
    start_log,
)
from consilience.cli.study_options import AcceptDifference_, Inputs_, Key_, Ledger_, OneClass_, Replace_, Study_, Table_
from consilience.disk.locks import lock_folder
from consilience.disk.metrics import Metrics
from consilience.disk.pulse import Pulse
from consilience.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from flwr.serverapp import Grid
    from torch import Tensor

    from consilience.data.sites import Data
    from consilience.study.flower.certificates import Certificates
    from consilience.study.flower.server import Deployed
    from consilience.study.protocol.members import Study

Insecure_ = Annotated[
    bool, typer.Option("--insecure", help="No encryption and no keys: for trials on this machine only.")
]
START = 600.0  # seconds that a server may take to start, and to pool, without saying anything of itself
INTERRUPTED = 130  # exit codes of processes that did not come to their end, as shells have them
TERMINATED = 143
Certs_ = Annotated[Path, typer.Option("--certs", help="The folder with ca.crt, server.pem, server.key and node keys.")]


def needs_flower() -> None:
    """Check that Flower is installed."""
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise InputError("A deployed study needs Flower: run `pip install 'consilience[site]'`.") from error


@study_app.command()
def certs(
    study_file: Study_,
    host: Annotated[list[str] | None, typer.Option(help="Names and addresses of the server; may be repeated.")] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write.")] = Path("certs"),
    days: Annotated[int, typer.Option(help="How many days the server's certificate is valid.")] = 30,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the server's certificate; sites keep the ca.crt they have.")
    ] = False,
) -> None:
    """Make development certificates for the server and a node key for every site, to try out a deployment."""
    from consilience.study.flower.certificates import new_certificates, new_node_key
    from consilience.study.flower.certificates import renew as sign_again
    from consilience.study.protocol.members import read

    study = read(study_file)
    if renew:
        end = sign_again(folder, host or (), days)
        say(f"{folder / 'server.pem'} is valid until {end.date()}, under the same authority: sites need nothing new.")
        say("Next: start the server again, with --resume if its rounds had begun.")
        return
    new_certificates(folder, host or ["127.0.0.1", "localhost"], days)
    for site in study.active:
        new_node_key(folder, site.name)
    say(f"Written to {folder}: ca.crt for everyone, server.pem and server.key for the server alone,")
    say("and for every site NAME.node, which only the site should hold, and NAME.node.pub for the server.")
    say("ca.key signs the server's next certificate (--renew) and nothing else: keep it off the server until then.")
    say("For development only: a real site makes its own with `consilience site nodekey` and hands over the .pub file.")


@study_app.command()
def deploy(
    study_file: Study_, folder: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write.")] = None
) -> None:
    """Write the study's Flower app, and the commands that start the server and the sites."""
    needs_flower()
    from consilience.study.flower.app import pin, write_app
    from consilience.study.flower.guide import guide
    from consilience.study.protocol.members import read

    study = read(study_file)
    target = folder or study_file.with_suffix(".deploy")
    with lock_folder(target):
        write_app(study.agreement, target / "app")
        write_files(target / "README.md", guide(study, study_file.name), "How to start everything", shared=True)
    say(f"App: {target / 'app'}, with the hash {pin(study.agreement)}")
    say("It holds no code: server and sites run what they have installed, and a site refuses any other app.")


@study_app.command("serve")
def serve_study(
    study_file: Study_,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    name: Annotated[str | None, typer.Option(help="This machine's name in its certificate, if not --host.")] = None,
    certs_: Certs_ = Path("certs"),
    insecure: Insecure_ = False,
    folder: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for results; NAME.run by default.")] = None,
    key: Key_ = None,
    calibration: Annotated[Path | None, typer.Option(help="The coordinator's own labelled rows.")] = None,
    inputs: Inputs_ = None,
    min_replies: Annotated[int | None, typer.Option(help="Continue with this many sites; all by default.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A site that masked sums go on without; may be repeated.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites to connect.")] = 600.0,
    deadline: Annotated[float, typer.Option(help="Seconds a round may take; a crash shows after 70.")] = 3600.0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last complete round.")] = False,
    accept_difference: AcceptDifference_ = False,
    metrics_port: MetricsPort_ = None,
    metrics_host: MetricsHost_ = "127.0.0.1",
    config: Config_ = None,
    log_level: LogLevel_ = "info",
    log_format: LogFormat_ = "text",
) -> None:
    """Run the study's rounds with connected sites, and write the model."""
    needs_flower()
    from consilience.disk.watch import Watch
    from consilience.study.flower.server import rounds

    log = start_log("coordinator", log_level, log_format)
    target = folder or study_file.with_suffix(".run")
    pulse = Pulse(target, "coordinator")
    metrics = Metrics()
    try:
        with ending_cleanly(log), serving_metrics(metrics, metrics_host, metrics_port, log):
            study, signing_key = _begin_study(study_file, key, accept_difference)
            certificates, node_keys = _server_credentials(study, host, certs_, insecure)
            rows = _own_rows(study, calibration, inputs)
            names = [site.name for site in study.active]
            beat = both(pulse.beat, metrics.beat)
            address = (study.agreement, target / "flower", host, port, certificates, node_keys)
            with (
                lock_folder(target, private=True),
                pulse.ending(),
                progress(True),
                _connect(pulse, *address, log.info, name) as grid,
            ):
                result = rounds(
                    study,
                    signing_key,
                    grid,
                    target,
                    calibration=rows[0],
                    inputs=rows[1],
                    min_replies=min_replies,
                    without=without or (),
                    wait=wait,
                    deadline=deadline,
                    resume=resume,
                    watch=Watch(names, study.agreement.rounds, log.info, log.warning, beat, metrics),
                )
                model = target / "study.model"
                _write_result(study_file, model, signing_key, result, rows[0] is not None, accept_difference, log)
                _calibrate(study_file, model, signing_key, grid, wait, deadline, log)
    except KeyboardInterrupt as stop:
        log.warning(f"Stopped. What was saved in {target} is whole: continue with --resume.")
        code = INTERRUPTED
        if isinstance(stop, Terminated):
            code = TERMINATED
        raise typer.Exit(code) from None


def _begin_study(study_file: Path, key: Path | None, accept_difference: bool) -> tuple[Study, Ed25519PrivateKey]:
    """Read a study whose rounds may begin, and the coordinator's key."""
    from consilience.study.coordinator import own_key
    from consilience.study.protocol.members import read
    from consilience.study.validation.rules import check_release

    study = read(study_file)
    signing_key = server_key(study_file, key)
    own_key(study.agreement, signing_key)
    if not study.active:
        raise InputError("No site has joined this study yet: `consilience site join`, then `consilience study add`.")
    names = [site.name for site in study.active]
    check_release(study, names, names, accept_difference)  # before anybody trains
    return study, signing_key


def _own_rows(study: Study, calibration: Path | None, inputs: Path | None) -> tuple[Data | None, Tensor | None]:
    """Read the coordinator's own rows, with labels and without."""
    from consilience.study.coordinator import inputs_from
    from consilience.study.rows import rows_of

    labelled = None
    if calibration:
        labelled, _ = rows_of(study.agreement, calibration, True)
    return labelled, inputs_from(study.agreement, inputs)


def _connect(pulse: Pulse, *address: Any) -> AbstractContextManager[Grid]:
    """Start Flower, having said that this may take a while."""
    from consilience.study.flower.server import connect

    pulse.beat("starting", START)
    return connect(*address)


def _calibrate(
    study_file: Path,
    model: Path,
    signing_key: Ed25519PrivateKey,
    grid: Grid,
    wait: float,
    deadline: float,
    log: Logger,
) -> None:
    """Ask the sites for counts and calibrate prediction sets, where they were agreed on and counts leave the sites."""
    from consilience.cli.commands.calibrate import write_calibrated
    from consilience.study.flower.carrying import ask_counts
    from consilience.study.protocol.guarantees import describe_counts
    from consilience.study.protocol.members import read

    study = read(study_file)
    if not describe_counts(study.agreement):
        return
    if study.agreement.kind == "survival":
        say(
            "Lower bounds of times need a baseline: `site statistics`, `study choose`, then `site calibrate`, by files."
        )
        return
    asked = ask_counts(study, grid, model.read_bytes(), model.parent, wait, deadline)
    for sentence in asked.lost:
        log.warning(sentence)
    write_calibrated(study_file, model, asked.paths, signing_key, model.with_name("study-calibrated.model"))


def _server_credentials(
    study: Study, host: str, folder: Path, insecure: bool
) -> tuple[Certificates | None, dict[str, Path]]:
    """Find the server's certificates and the sites' public node keys; none of them for a trial on this machine."""
    from consilience.study.flower.certificates import certificates_in

    if insecure:
        if not _is_loopback(host):
            raise InputError("--insecure is for trials on this machine: listen on 127.0.0.1, or give --certs.")
        return None, {}
    certificates = certificates_in(folder)
    for path in certificates:
        if not path.is_file():
            raise InputError(f"There is no {path}: make it with `consilience study certs`, or give --certs FOLDER.")
    return certificates, {site.name: folder / f"{site.name}.node.pub" for site in study.active}


def _write_result(
    study_file: Path,
    path: Path,
    signing_key: Ed25519PrivateKey,
    result: Deployed,
    has_labels: bool,
    accept_difference: bool,
    log: Logger,
) -> None:
    """Write the model of all rounds and its report, record it in the study, and say which replies were lost."""
    from consilience.study.coordinator import Ended, finish, rows_heard, senders
    from consilience.study.protocol.members import read

    study = read(study_file)
    replies = {study.active[reply.client].name: reply for reply in result.replies}
    ledger = result.report["ledger"]
    losses = [
        f"Round {failure['round']} went on without {failure['site']}: {failure['why']}"
        for failure in result.report.get("failures", [])
    ]
    ended = Ended(
        result.method,
        result.state,
        study.agreement.rounds,
        rows_heard(study, senders(ledger), replies),
        replies,
        {study.active[place].name: said for place, said in result.said.items()},
        ledger,
        **(result.report.get("influence") or {"shares": {}}),
        total=result.rows,
        losses=losses,
        labelled=has_labels,
    )
    pooled = finish(study, signing_key, ended, accept_difference)
    write_pooled(study_file, path, pooled)
    for warning in (*losses, *pooled.remarks):
        log.warning(warning)


@site_app.command("nodekey")
def nodekey(name: Annotated[str, typer.Argument(help="This site's name in the study.")]) -> None:
    """Make this site's key for the connection: NAME.node stays here, NAME.node.pub goes to the server."""
    from consilience.study.flower.certificates import new_node_key

    private, public = new_node_key(Path(), name)
    say(f"Stays here: {private}. For the coordinator: {public}")


@site_app.command("serve")
def serve_site(
    study_file: Study_,
    table: Table_,
    server: Annotated[str, typer.Option(help="The server's host:port.")] = "127.0.0.1:8000",
    authority: Annotated[Path, typer.Option("--root", help="The server's root certificate.")] = Path("ca.crt"),
    node_key: Annotated[Path | None, typer.Option("--node-key", help="NAME.node in this folder by default.")] = None,
    insecure: Insecure_ = False,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for logs and memory; NAME.site by default.")
    ] = None,
    key: Key_ = None,
    one_class: OneClass_ = False,
    replace: Replace_ = False,
    without: Annotated[
        list[str] | None,
        typer.Option(help="A site that sent nothing, by its own word: its masks may be told; may be repeated."),
    ] = None,
    ledger: Ledger_ = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server.")] = 600.0,
    metrics_port: MetricsPort_ = None,
    metrics_host: MetricsHost_ = "127.0.0.1",
    config: Config_ = None,
    log_level: LogLevel_ = "info",
    log_format: LogFormat_ = "text",
) -> None:
    """Answer the server's messages with this site's own code until Ctrl-C; every message is logged."""
    needs_flower()
    from consilience.study.flower.site import ANSWERING, serve, site_of
    from consilience.study.home import ledger_of
    from consilience.study.protocol.members import read

    study = read(study_file)
    home = site_home(study, key)
    member, signing_key = home.member, home.key
    log = start_log(member.name, log_level, log_format)
    target = folder or home.served
    pulse = Pulse(target, member.name)
    metrics = Metrics()

    def beat(state: str, promise: float) -> None:
        pulse.beat(state, promise)
        metrics.beat(state, promise)
        if state == ANSWERING:
            metrics.add("requests_total")

    try:
        with ending_cleanly(log), serving_metrics(metrics, metrics_host, metrics_port, log):
            own_key_file = node_key or Path(f"{member.name}.node")
            credentials = _site_credentials(member.name, server, authority, own_key_file, insecure)
            with lock_folder(target, private=True), pulse.ending():
                given = (one_class, log.info, replace, home.book, ledger_of(home.key_file, ledger), without or ())
                site = site_of(study, member, signing_key, table, target, *given)
                serve(
                    site,
                    study.agreement,
                    server,
                    target,
                    authority=credentials[0],
                    node_key=credentials[1],
                    patience=wait,
                    say=log.info,
                    warn=log.warning,
                    beat=beat,
                )
    except KeyboardInterrupt:
        log.info(f"Stopped. All messages are logged in {target / 'messages.jsonl'}.")


def _site_credentials(
    name: str, server: str, authority: Path, node_key: Path, insecure: bool
) -> tuple[Path, Path] | tuple[None, None]:
    """Find the server's root certificate and the site's node key; neither for a trial on this machine."""
    if insecure:
        if not _is_loopback(server.rpartition(":")[0]):
            raise InputError("--insecure is for trials on this machine: the server must be at 127.0.0.1.")
        return None, None
    if not authority.is_file():
        raise InputError(f"There is no root certificate {authority}: ask the coordinator, and give it with --root.")
    if not node_key.is_file():
        raise InputError(f"There is no node key {node_key}: make it with `consilience site nodekey {name}`.")
    return authority, node_key


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
