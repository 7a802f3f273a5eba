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
from consilience.study.admission import invent_rows
from consilience.study.agreement import Agreement, Study

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
    """A grid that reaches the study's sites. Without certificates nothing is encrypted or checked: for trials only.

    `name` is how this machine is called in its certificate, where it listens on all addresses or another one.
    """
    check_free(host, port)
    if certificates:
        check_current(certificates)
    home = folder.absolute()
    home.mkdir(parents=True, exist_ok=True)
    secret = new_secret(home / "runtime.secret")
    secure = (
        *("--ssl-ca-certfile", str(certificates.authority), "--ssl-certfile", str(certificates.certificate)),
        *("--ssl-keyfile", str(certificates.key), "--enable-supernode-auth"),
    ) if certificates else ("--insecure",)  # fmt: skip
    words = [
        *("--host", host, "--port", str(port), "--isolation", "process", *secure),
        *("--superexec-auth-secret-file", str(home / "runtime.secret"), "--disable-runtime-dependency-installation"),
        *("--database", str(home / "superlink.db")),
    ]
    address = f"{name or ('127.0.0.1' if host in ('0.0.0.0', '::') else host)}:{port}"
    child = Child("flower-superlink", words, home / "superlink.log", home)
    try:
        _started(child, address, certificates)
        trust = f'root-certificates = "{certificates.authority.absolute()}"' if certificates else "insecure = true"
        (home / "config.toml").write_text(CONNECTION.format(address=address, security=trust))
        if certificates:
            register(home, node_keys)
        started = command(home, "run", str(write_app(agreement, home / "app")), "study", "--format", "json")
        authority = certificates.authority.read_bytes() if certificates else None
        runtime = Runtime(address, secret, authority)
        say(f"The server listens on {host}:{port}.")
        token = next(tasks(runtime, TaskType.SERVER_APP, child.alive, run_of(started)), None)
        if token is None:
            raise InputError(f"Flower's SuperLink stopped: {child.last_words()}")
        with serving(runtime, token) as grid:
            yield grid
    finally:
        child.stop()


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
    """The study's rounds over a grid, by the same loop as everything else; whatever it knows is in the folder `out`.

    What is asked is signed with the coordinator's key; sites answer nobody else.
    """
    agreement, sites = study.agreement, study.active
    method, task, rows = agreement.build_method(), agreement.build_task(), invent_rows(agreement)
    nothing = Data(*(leaf[:0] for leaf in rows))

    def verify(k: int, purpose: str, message: bytes, signature: str) -> bool:
        return verifies(sites[k].key, purpose, message, signature)

    def flower(data: Sequence[Data]) -> Flower:
        names, numbers = [site.name for site in sites], [site.number for site in sites]
        known = {"study": agreement.hash, "numbers": numbers, "verify": verify, "sign": partial(sign, key)}
        return Flower(grid, names, rows, wait=wait, deadline=deadline, largest=agreement.most_bytes, **known)  # type: ignore[arg-type]

    known = Sites(
        train=(rows,) * len(sites),  # invented: the server sees nobody's
        test=(nothing,) * len(sites),
        validation=None,
        inputs=inputs,
        calibration=calibration,
        classes=len(agreement.target.classes) or None,
        features=len(agreement.feature_names),
        name=agreement.name,
        split="study",
        names=tuple(site.name for site in sites),
        elsewhere=True,
    )
    about = {"study": agreement.hash, "rows": None, "model": agreement.model}
    return run(
        *(method, task, known),
        rounds=agreement.rounds,
        seed=agreement.seed,
        engine=flower,
        out=out,
        resume=resume and (out / "run.json").exists(),
        participation=Participation(min_replies=min_replies),
        scored=False,
        about=about,
    )


def register(home: Path, node_keys: Mapping[str, Path]) -> None:
    """Let the SuperLink know the sites' keys; one it knows from before stays as it is."""
    for name, path in node_keys.items():
        if not path.is_file():
            raise InputError(f"There is no node key of '{name}' at {path}: ask the site for its public half.")
        try:
            command(home, "supernode", "register", str(path), "study", "--name", name)
        except InputError as error:
            if "already" not in str(error):
                raise


def run_of(said: str) -> int:
    """The number of the run that `flwr run` started, so that nobody else's is taken for it."""
    try:
        return int(json.loads(said[said.index("{") :])["run-id"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"`flwr run` did not say which run it started: {said.strip()[-300:]}") from error


def _started(child: Child, address: str, certificates: Certificates | None) -> None:
    end = time.monotonic() + START
    while child.alive() and time.monotonic() < end:
        try:
            return reach(address, certificates.authority if certificates else None, 0.0)
        except InputError as error:
            if "No server" not in str(error):
                raise
            time.sleep(0.3)
    raise InputError(f"Flower's SuperLink did not start: {child.last_words()}")
