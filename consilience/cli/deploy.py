"""Commands for sites that are connected: study certs, deploy and serve; site nodekey and serve."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.handed import Inputs_, Key_, Study_, Table_, say, server_key, site_identity, write_files
from consilience.cli.screen import progress
from consilience.cli.site import OneClass_, site_app
from consilience.cli.study import describe, record, study_app, write_report
from consilience.errors import InputError

Insecure_ = Annotated[bool, typer.Option("--insecure", help="No encryption, no keys: a trial on this machine only.")]
Certs_ = Annotated[Path, typer.Option("--certs", help="The folder with ca.crt, server.pem, server.key and node keys.")]


def needs_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise InputError("A deployed study needs Flower: pip install 'consilience[flower]'.") from error


@study_app.command()
def certs(
    study: Study_,
    host: Annotated[list[str] | None, typer.Option(help="Names and addresses of the server; may be repeated.")] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write.")] = Path("certs"),
    days: Annotated[int, typer.Option(help="How long the certificates hold.")] = 30,
) -> None:
    """Make development certificates for the server and a node key for every site, to try a deployment out."""
    from consilience.flower.certificates import new_certificates, new_node_key
    from consilience.study.agreement import read

    found = read(study)
    new_certificates(folder, host or ["127.0.0.1", "localhost"], days)
    for site in found.active:
        new_node_key(folder, site.name)
    say(f"Written to {folder}: ca.crt for everybody, server.pem and server.key for the server alone,")
    say("and for every site NAME.node, which only the site should hold, and NAME.node.pub for the server.")
    say("For development: a real site makes its own with `consilience site nodekey` and hands over the .pub file.")


@study_app.command()
def deploy(
    study: Study_, folder: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write.")] = None
) -> None:
    """Write the study's Flower app, and the commands that start server and sites."""
    needs_flower()
    from consilience.flower.app import pin, write_app
    from consilience.flower.guide import guide
    from consilience.study.agreement import read

    found = read(study)
    target = folder or study.with_suffix(".deploy")
    write_app(found.agreement, target / "app")
    write_files(target / "README.md", guide(found, study.name), "How to start everything")
    say(f"App: {target / 'app'}, with the hash {pin(found.agreement)}")
    say("It holds no code: server and sites run what they have installed, and a site refuses any other app.")


@study_app.command("serve")
def serve_study(
    study: Study_,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Which port.")] = 8000,
    name: Annotated[str | None, typer.Option(help="This machine's name in its certificate, if not --host.")] = None,
    certs_: Certs_ = Path("certs"),
    insecure: Insecure_ = False,
    folder: Annotated[Path | None, typer.Option("--out", "-o", help="For everything; NAME.run by default.")] = None,
    key: Key_ = None,
    calibration: Annotated[Path | None, typer.Option(help="The coordinator's own rows with labels, for β.")] = None,
    inputs: Inputs_ = None,
    min_replies: Annotated[int | None, typer.Option(help="Go on with so many sites; all by default.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites to connect.")] = 600.0,
    deadline: Annotated[float, typer.Option(help="Seconds a round may take; a crash shows after 70.")] = 3600.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last whole round.")] = False,
) -> None:
    """Run the study's rounds with sites that are connected, and write the model."""
    needs_flower()
    from consilience.flower.certificates import certificates_in
    from consilience.flower.server import connect, rounds
    from consilience.study.account import account
    from consilience.study.agreement import read
    from consilience.study.coordinator import inputs_from, own_key, rows_heard, senders, write_model
    from consilience.study.site import rows_of

    found = read(study)
    own, target = server_key(study, key), folder or study.with_suffix(".run")
    own_key(found.agreement, own)
    if not found.active:
        raise InputError("No site has joined this study yet: `consilience site join`, then `consilience study add`.")
    if insecure and not _loopback(host):
        raise InputError("--insecure is for trials on this machine: listen on 127.0.0.1, or give --certs.")
    safe = None if insecure else certificates_in(certs_)
    missing = [path for path in safe or () if not path.is_file()]
    if missing:
        raise InputError(f"There is no {missing[0]}: make it with `consilience study certs`, or give --certs FOLDER.")
    keys = {} if insecure else {site.name: certs_ / f"{site.name}.node.pub" for site in found.active}
    labelled = rows_of(found.agreement, calibration, True)[0] if calibration else None
    place = (found.agreement, target / "flower", host, port, safe, keys)
    with progress(True) as _, connect(*place, say, name) as grid:
        result = rounds(
            *(found, own, grid, target),
            calibration=labelled,
            inputs=inputs_from(found.agreement, inputs),
            min_replies=min_replies,
            wait=wait,
            deadline=deadline,
            resume=resume,
        )
    replies, ledger = {found.active[r.client].name: r for r in result.replies}, result.report["ledger"]
    trained, state = rows_heard(found, senders(ledger), replies), (result.method, result.state)
    made, facts = write_model(found, *state, trained, [*replies], found.agreement.rounds, own, labelled is not None)
    write_files(target / "study.model", made, "Model")
    record(study, target / "study.model", facts.sites)
    describe(facts)
    lost = _failures(result.report)
    write_report(target / "study.model", account(found, facts, trained, replies, ledger, lost))
    for sentence in lost:
        say(sentence, "yellow")


@site_app.command("nodekey")
def nodekey(name: Annotated[str, typer.Argument(help="This site's name in the study.")]) -> None:
    """Make this site's key for the connection: NAME.node stays here, NAME.node.pub goes to the server."""
    from consilience.flower.certificates import new_node_key

    secret, known = new_node_key(Path(), name)
    say(f"Stays here: {secret}. For the coordinator: {known}")


@site_app.command("serve")
def serve_site(
    study: Study_,
    table: Table_,
    server: Annotated[str, typer.Option(help="The server's host:port.")] = "127.0.0.1:8000",
    authority: Annotated[Path, typer.Option("--root", help="The server's root certificate.")] = Path("ca.crt"),
    node_key: Annotated[Path | None, typer.Option("--node-key", help="NAME.node in this folder by default.")] = None,
    insecure: Insecure_ = False,
    folder: Annotated[Path | None, typer.Option("--out", "-o", help="For logs and memory; NAME.site.")] = None,
    key: Key_ = None,
    one_class: OneClass_ = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server.")] = 600.0,
) -> None:
    """Answer the server's messages with this site's own code until Ctrl-C; every message is logged."""
    needs_flower()
    from consilience.flower.site import serve, site_of
    from consilience.study.agreement import read

    found = read(study)
    member, own = site_identity(found, key)
    if insecure and not _loopback(server.rpartition(":")[0]):
        raise InputError("--insecure is for trials on this machine: the server must be at 127.0.0.1.")
    secret = node_key or Path(f"{member.name}.node")
    if not insecure and not authority.is_file():
        raise InputError(f"There is no root certificate {authority}: ask the coordinator, and give it with --root.")
    if not insecure and not secret.is_file():
        raise InputError(f"There is no node key {secret}: make it with `consilience site nodekey {member.name}`.")
    target = folder or Path(f"{member.name}.site")
    site = site_of(found, member, own, table, target, one_class)
    try:
        serve(
            *(site, found.agreement, server, target),
            authority=None if insecure else authority,
            node_key=None if insecure else secret,
            patience=wait,
            say=say,
        )
    except KeyboardInterrupt:
        say(f"Ended. What crossed is in {target / 'messages.jsonl'}.")


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _failures(report: dict[str, Any]) -> list[str]:
    return [f"Round {f['round']} went on without {f['site']}: {f['why']}" for f in report.get("failures", [])]
