"""`python -m benchmarks.flower`: ten rounds of FedAvg here, here on Flower's simulation, and in a plain Flower app.

Each is a command of its own in a process of its own, in a network of its own where that is allowed, because Ray listens
on all addresses. Reported: seconds a round after the first, and seconds from the command to its result.
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

CONTENDERS = ("vectorised", "parallel", "flower", "plain")
ROWS, BATCH, RATE = 600, 32, 0.05


def partitions(folder: Path, clients: int, data_dir: str | None) -> str:
    """600 MNIST rows a client in a file each; drawn ones where MNIST is not there."""
    import numpy

    from benchmarks.problems import load_rows

    rows, source = load_rows("mnist", data_dir)
    if len(rows.x) < clients * ROWS:
        raise SystemExit(f"{clients} clients need {clients * ROWS} rows.")
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
    from consilience.engines import engine as engine_of

    files = [numpy.load(folder / f"{k}.npz") for k in range(clients)]
    data = tuple(co.data.Data.of(torch.from_numpy(f["x"]), torch.from_numpy(f["y"])) for f in files)
    names = tuple(str(k) for k in range(clients))
    sites = Sites(data, data, None, None, None, 10, 784, "mnist", "iid", names)
    method, moments = co.FedAvg(co.SGD(rate=RATE, momentum=0.9, epochs=1, batch=BATCH)), list[float]()

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
        co.classification(co.models.mlp(784, 10), prior=co.prior.Flat()),
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
    words = [sys.executable, "-m", "benchmarks.flower", "--one", contender, "--folder", str(folder)]
    words += ["--clients", str(clients), "--rounds", str(rounds)]
    if contender in ("flower", "plain") and shutil.which("unshare") and os.geteuid() == 0:
        words = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    begin = time.perf_counter()
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{contender}: {done.stderr[-2000:]}")
    return {"rounds": json.loads(done.stdout.strip().splitlines()[-1]), "job": time.perf_counter() - begin}


def measure(clients: int, rounds: int, repeats: int, data_dir: str | None) -> dict[str, Any]:
    """Medians of alternating jobs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = partitions(folder, clients, data_dir)
        jobs: dict[str, list[dict[str, Any]]] = {c: [] for c in CONTENDERS}
        for _ in range(repeats):
            for contender in CONTENDERS:
                jobs[contender].append(job(contender, folder, clients, rounds))
    per_round = {c: statistics.median(s for j in results for s in j["rounds"]) for c, results in jobs.items()}
    whole = {c: statistics.median(j["job"] for j in results) for c, results in jobs.items()}
    best = min(per_round["vectorised"], per_round["parallel"])
    return {
        **{"clients": clients, "rows": source, "seconds_a_round": per_round, "seconds_a_job": whole, "every_job": jobs},
        "plain_over_embedded": per_round["plain"] / best,
        "plain_over_embedded_job": whole["plain"] / min(whole["vectorised"], whole["parallel"]),
        "ours_on_flower_over_plain": per_round["flower"] / per_round["plain"],
        "ours_on_flower_over_plain_job": whole["flower"] / whole["plain"],
    }


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks.flower", description=__doc__)
    words.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    words.add_argument("--rounds", type=int, default=10)
    words.add_argument("--repeats", type=int, default=3)
    words.add_argument("--data-dir", default=os.environ.get("CONSILIENCE_DATA"), help="drawn rows without it")
    words.add_argument("--out", type=Path, default=Path("build/bench-flower.json"))
    words.add_argument("--one", choices=CONTENDERS, help="one job in this process")
    words.add_argument("--folder", type=Path, help="where the partitions lie, with --one")
    options = words.parse_args()
    if options.one:
        return one(options.one, options.folder, options.clients[0], options.rounds)
    results = [measure(n, options.rounds, options.repeats, options.data_dir) for n in options.clients]
    facts = {
        "rounds": options.rounds,
        "repeats": options.repeats,
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**facts, "found": results}, indent=2) + "\n")
    for f in results:
        print(f"{f['clients']} clients × {ROWS} rows ({f['rows']}), medians of {options.repeats}")
        for c in CONTENDERS:
            print(f"  {c:<11} {f['seconds_a_round'][c]:8.3f} s a round  {f['seconds_a_job'][c]:8.1f} s a job")
        print(f"  plain / embedded {f['plain_over_embedded']:.1f} ×; ours on Flower / plain ", end="")
        print(f"{f['ours_on_flower_over_plain']:.2f} a round, {f['ours_on_flower_over_plain_job']:.2f} a job")


if __name__ == "__main__":
    main()
