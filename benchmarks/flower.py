"""Rounds of FedAvg with the engines here, with the engine on Flower's simulation, and in a plain Flower app.

Each is a command of its own in a process of its own, in a network of its own where that is allowed, because Ray listens
on all addresses. Ray's workers have the priority of the command here: by default theirs is so low that other
programs starve them. Reported: seconds a round after the first, and from the command to its result.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TITLE = "FedAvg on Flower's simulation"
CONTENDERS = {
    "vectorised": "vectorised",
    "parallel": "parallel",
    "flower": "ours on Flower",
    "plain": "a plain Flower app",
}
CLIENTS, ROUNDS, ROWS, BATCH, RATE = (10, 100), 5, 600, 32, 0.05
LONGEST = 600.0  # seconds a job may take


def partitions(folder: Path, clients: int, data_dir: str | None) -> str:
    """600 MNIST rows a client in a file each; drawn ones where MNIST is not there."""
    import numpy

    from benchmarks.problems import load_rows

    rows, source = load_rows("mnist", data_dir)
    if len(rows.x) < clients * ROWS:
        raise RuntimeError(f"{clients} clients need {clients * ROWS} rows.")
    for k in range(clients):
        part = slice(k * ROWS, (k + 1) * ROWS)
        x, y = rows.x[part].reshape(ROWS, -1).float().numpy(), rows.y[part].numpy()
        numpy.savez(folder / f"{k}.npz", x=x, y=y)
    return source


def ours(engine: str, folder: Path, clients: int, rounds: int) -> list[float]:
    """The moments at which each round's replies were there."""
    import numpy
    import torch

    import consilience as co
    from consilience.data.sites import Sites
    from consilience.runs.engines import engine as engine_of

    files = [numpy.load(folder / f"{k}.npz") for k in range(clients)]
    data = tuple(co.data.Data.of(torch.from_numpy(f["x"]), torch.from_numpy(f["y"])) for f in files)
    names = tuple(str(k) for k in range(clients))
    sites = Sites(data, data, None, None, None, 10, 784, "mnist", "iid", names)
    method, moments = co.methods.FedAvg(co.SGD(rate=RATE, momentum=0.9, epochs=1, batch=BATCH)), list[float]()

    def time_gather(rows: Any) -> Any:
        where = engine_of(engine, rows)
        gather = where.gather

        def timed_gather(*words: Any) -> Any:
            replies = gather(*words)
            moments.append(time.perf_counter())
            return replies

        where.gather = timed_gather  # type: ignore[method-assign]
        return where

    co.run(
        method,
        co.classification(co.models.mlp(784, 10), prior=co.distributions.prior.Flat()),
        sites,
        rounds=rounds,
        engine=time_gather,
        scored=False,
    )
    return moments


def one(contender: str, folder: Path, clients: int, rounds: int) -> None:
    """One job, in this process: its moments as JSON on the last line."""
    if contender == "plain":
        from benchmarks.flower_plain import run

        moments = run(folder, clients, rounds, BATCH, RATE, os.cpu_count() or 1)
    else:
        moments = ours(contender, folder, clients, rounds)
    print(json.dumps([b - a for a, b in itertools.pairwise(moments)]))


def job(contender: str, folder: Path, clients: int, rounds: int) -> dict[str, Any]:
    """One job from the command to its result."""
    words = [sys.executable, "-m", "benchmarks.flower", contender, str(folder), str(clients), str(rounds)]
    if contender in ("flower", "plain") and shutil.which("unshare") and os.geteuid() == 0:
        words = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    env["RAY_worker_niceness"] = "0"
    begin = time.perf_counter()
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=LONGEST)
    if done.returncode:
        raise RuntimeError(f"{contender}: {done.stderr[-2000:]}")
    return {"rounds": json.loads(done.stdout.strip().splitlines()[-1]), "job": time.perf_counter() - begin}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians of alternating jobs, for few clients and for many."""
    results = {}
    for whole in CLIENTS:
        clients = max(2, round(whole * min(options.scale * 10, 1)))  # the whole at the default scale
        jobs: dict[str, list[dict[str, Any]]] = {c: [] for c in CONTENDERS}
        with tempfile.TemporaryDirectory() as name:
            source = partitions(Path(name), clients, options.data_dir)
            for _ in range(options.repeats):
                for contender in CONTENDERS:
                    jobs[contender].append(job(contender, Path(name), clients, ROUNDS))
        results[str(whole)] = {
            **{"clients": clients, "rows": source, "every_job": jobs},
            "round": {c: statistics.median(s for j in done for s in j["rounds"]) for c, done in jobs.items()},
            "job": {c: statistics.median(j["job"] for j in done) for c, done in jobs.items()},
        }
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    """Seconds a round after the first and seconds a job; what a plain app takes, over ours."""
    headings = [CONTENDERS[c] for c in CONTENDERS]
    rows = [[f"{ROWS} rows a client, s", *headings, "plain / embedded", "plain / ours on Flower"]]
    for f in results.values():
        for unit, name in (("round", "a round"), ("job", f"a job of {ROUNDS} rounds")):
            times = f[unit]
            embedded = min(times["vectorised"], times["parallel"])
            ratios = [f"{times['plain'] / embedded:.1f} ×", f"{times['plain'] / times['flower']:.2f} ×"]
            rows.append([f"{f['clients']} clients, {name}", *(f"{times[c]:.3g}" for c in CONTENDERS), *ratios])
    return rows


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks.flower", description="One job in this process.")
    words.add_argument("contender", choices=CONTENDERS)
    words.add_argument("folder", type=Path, help="where the partitions lie")
    words.add_argument("clients", type=int)
    words.add_argument("rounds", type=int)
    options = words.parse_args()
    one(options.contender, options.folder, options.clients, options.rounds)


if __name__ == "__main__":
    main()
