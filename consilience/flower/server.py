"""The server of a deployed study: a SuperLink that carries messages, and this process, which runs the one loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from torch import Tensor

from consilience.data.sites import Data, Sites
from consilience.engines.participation import Participation
from consilience.errors import InputError
from consilience.flower.app import write_app
from consilience.flower.certificates import Certificates, check_current
from consilience.flower.engine import Flower
from consilience.flower.executor import Runtime, new_secret, serving, tasks
from consilience.flower.processes import Child, check_free, command, reach
from consilience.formats.signature import sign, verifies
from consilience.runs.result import Result
from consilience.runs.run import run
from consilience.study.admission import rules_of
from consilience.study.agreement import Agreement, Study
from consilience.study.rehearsal import invent_rows

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
        agreement: The study's agreement.
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
    home.mkdir(parents=True, exist_ok=True)
    secret = new_secret(home / "runtime.secret")
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
        (home / "config.toml").write_text(CONNECTION.format(address=address, security=_trust(certificates)))
        if certificates:
            register(home, node_keys)
        output = command(home, "run", str(write_app(agreement, home / "app")), "study", "--format", "json")
        runtime = Runtime(address, secret, certificates and certificates.authority.read_bytes())
        say(f"The server listens on {host}:{port}.")
        token = next(tasks(runtime, TaskType.SERVER_APP, child.alive, run_of(output)), None)
        if token is None:
            raise InputError(f"Flower's SuperLink stopped: {child.last_words()}")
        with serving(runtime, token) as grid:
            yield grid
    finally:
        child.stop()


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


def rounds(
    study: Study,
    key: Ed25519PrivateKey,
    grid: Grid,
    out: Path,
    *,
    calibration: Data | None = None,
    inputs: Tensor | None = None,
    min_replies: int | None = None,
    wait: float = 600.0,
    deadline: float = 3600.0,
    resume: bool = False,
) -> Result:
    """Run the study's rounds over a grid, by the same loop as everything else.

    What is asked is signed with the coordinator's key; sites answer nobody else.

    Args:
        study: The study.
        key: The coordinator's private key.
        grid: Flower's way to the sites.
        out: The folder for whatever the server knows.
        calibration: The coordinator's own rows with labels.
        inputs: The coordinator's own rows without labels, [N, D].
        min_replies: How many replies a round needs; None for all.
        wait: Seconds until the sites asked must be there.
        deadline: Seconds a round may take.
        resume: Whether to go on from the last whole round in `out`.

    Returns:
        The result.

    Raises:
        InputError: A site failed and is needed.
    """
    agreement = study.agreement
    rows = invent_rows(agreement)

    def verify(k: int, purpose: str, message: bytes, signature: str) -> bool:
        return verifies(study.active[k].key, purpose, message, signature)

    def flower(data: Sequence[Data]) -> Flower:
        return Flower(
            grid,
            [site.name for site in study.active],
            rows,
            study=agreement.hash,
            numbers=[site.number for site in study.active],
            verify=verify,
            sign=partial(sign, key),
            wait=wait,
            deadline=deadline,
            rules=rules_of(agreement),
        )

    return run(
        agreement.build_method(),
        agreement.build_task(),
        _sites(study, rows, calibration, inputs),
        rounds=agreement.rounds,
        seed=agreement.seed,
        engine=flower,
        out=out,
        resume=resume and (out / "run.json").exists(),
        participation=Participation(min_replies=min_replies),
        scored=False,
        about={"study": agreement.hash, "rows": None, "model": agreement.model},
    )


def _sites(study: Study, rows: Data, calibration: Data | None, inputs: Tensor | None) -> Sites:
    """What the loop asks for: rows are invented, as the server sees nobody's."""
    agreement = study.agreement
    count = len(study.active)
    nothing = Data(*(leaf[:0] for leaf in rows))
    return Sites(
        train=(rows,) * count,
        test=(nothing,) * count,
        validation=None,
        inputs=inputs,
        calibration=calibration,
        classes=len(agreement.target.classes) or None,
        features=len(agreement.feature_names),
        name=agreement.name,
        split="study",
        names=tuple(site.name for site in study.active),
        elsewhere=True,
    )


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
        except InputError as error:
            if "No server" not in str(error):
                raise
            time.sleep(0.3)
    raise InputError(f"Flower's SuperLink did not start: {child.last_words()}")
