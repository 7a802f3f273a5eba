"""A study between real processes on loopback: digits over some sites, a server, and faults on demand."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import studies
import torch
from sklearn.datasets import load_digits

from consilience.messages import Server
from consilience.runs.engines import Sequential, Turn, computing
from consilience.study.flower.certificates import new_certificates, new_node_key
from consilience.study.flower.processes import free_port
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import Study
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import study_text
from consilience.study.rows import parts, rows_of, training_rows

PIXELS = [f"p{i}" for i in range(64)]
TARGET = Target("digit", tuple(map(str, range(10))))
COLUMNS = tuple(Column(name, "number", "", (0.0, 16.0), 8.0, 4.0) for name in PIXELS)
BETA: dict[str, Any] = {
    "method": "beta",
    "settings": ("inference.epochs=8", "inference.cycles=2", "inference.samples=4", "inference.keep=4"),
}
SCAFFOLD: dict[str, Any] = {  # linear: of a hidden unit that one row alone switches on, a control is that row
    "method": "scaffold",
    "model": "linear",
    "settings": ("inference.epochs=1",),
    "rounds": 3,
}
ROOT = Path(__file__).parent


class Deployment:
    """Everything of one study in one folder; a process for the server and for each site, ended by their numbers."""

    def __init__(
        self, folder: Path, names: Sequence[str], secure: bool = True, masked: bool = False, **agreed: Any
    ) -> None:
        self.folder, self.names, self.secure = folder, tuple(names), secure
        words = {"model": "mlp", "most_bytes": 20_000_000, "choose": 0.0, "test": 0.0, "secure": masked, **agreed}
        self.study: Study = studies.study(folder, self.names, 2000, target=TARGET, columns=COLUMNS, **words)
        self.file = folder / "study.toml"
        self.file.write_text(study_text(self.study))
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        x, y = load_digits(return_X_y=True)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).tolist()
        for k, name in enumerate(("calibration", *self.names)):
            own = order[:30] if k == 0 else order[k * 200 : (k + 1) * 200]
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*PIXELS, "digit"])
                writer.writerows([*map(int, x[i]), y[i]] for i in own)
        if secure:
            new_certificates(folder / "certs", ["127.0.0.1"])
            for name in self.names:
                new_node_key(folder / "certs", name)

    @property
    def out(self) -> Path:
        return self.folder / "study.run"

    def server(self, *words: str, name: str = "server") -> subprocess.Popen[bytes]:
        how = ["--certs", "certs"] if self.secure else ["--insecure"]
        command = ["-m", "consilience.cli", "study", "serve", "study.toml", "--key", "server.key", "--wait", "600"]
        return self.start(name, [*command, "--port", str(self.port), *how, *words])

    def site(self, name: str, *words: str, fault: str = "", root: str = "certs/ca.crt", node: str = "") -> None:
        how = ["--root", root, "--node-key", node or f"certs/{name}.node"] if self.secure else ["--insecure"]
        command = ["site", "serve", "study.toml", f"{name}.csv", "--key", f"{name}.key"]
        begin = [str(ROOT / "faulty_site.py"), fault] if fault else ["-m", "consilience.cli"]
        self.start(name, [*begin, *command, "--server", f"127.0.0.1:{self.port}", *how, *words])

    def start(self, name: str, words: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT.parents[1]), str(ROOT)])
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}
        env |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        env |= {"MARKER": str(self.folder / f"{name}.marker"), **more}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=env
            )
        return self.processes[name]

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def finish(self, name: str, seconds: float = 900.0) -> int:
        """Wait for a process to end by itself → its exit code."""
        return self.processes[name].wait(seconds)

    def until(self, name: str, words: str, seconds: float = 600.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.said(name):
            assert time.monotonic() < end, f"{name} never said '{words}' but: {self.said(name)[-2000:]}"
            time.sleep(0.2)

    def end(self) -> None:
        """Every process that was started here, by its number."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def sequential(self, names: Sequence[str], calibration: bool) -> Any:
        """The state that the same rounds give in one process."""
        a = self.study.agreement
        method, task = a.build_method(), a.build_task()
        members = [self.study.member(name) for name in names]
        tables = {m.number: rows_of(a, self.folder / f"{m.name}.csv")[0] for m in members}
        rows = {k: training_rows(a, parts(a, k, table).train).data for k, table in tables.items()}
        labelled = rows_of(a, self.folder / "calibration.csv", True)[0] if calibration else None
        server = Server(None, labelled, a.key.fold(0), len(self.names))
        engine = Sequential([rows.get(k, next(iter(rows.values()))) for k in range(len(self.names))])
        with computing(task):  # and multiplying as sites and the server do
            state = method.init(task, server)
            for t in range(a.rounds):
                message = method.broadcast(state)
                replies = engine.gather(method, task, message, sorted(rows), Turn(t, a.key.fold(1), t / a.rounds))
                state = method.aggregate(task, state, replies, server._replace(key=a.key.fold(2).fold(t)))
        return state
