"""More and more clients of 60 rows × 64 features: time per client and peak memory of a whole run of two rounds.

Each size runs in a process of its own, whose peak memory is then its own.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import consilience as co
from benchmarks.floor import draw_rows
from benchmarks.timing import in_a_new_process, peak, seconds
from consilience.data import Data

TITLE = "Growth"
CLIENTS, ROWS, FEATURES, ROUNDS = (10, 100, 1_000, 10_000), 60, 64, 2
MEMORY, RISE = 4.0, 1.1  # GB at 10 000 clients; time per client against 10 clients


def sites(clients: int) -> co.Sites:
    train = tuple(draw_rows(clients, ROWS, (FEATURES,)))
    test = tuple(Data(*(leaf[:1] for leaf in part)) for part in train)
    names = tuple(str(k) for k in range(clients))
    return co.Sites(train, test, None, None, None, 10, FEATURES, "drawn", "iid", names)


def alone(clients: int) -> dict[str, float]:
    """In this process: the second of two runs."""
    rows, method = sites(clients), co.FedAvg(co.SGD(epochs=1, batch=20))
    task = co.classification(co.models.mlp(FEATURES, 10))
    work = lambda: co.run(method, task, rows, rounds=ROUNDS, scored=False, keep_replies="none")
    for _ in range(2 if clients <= 1_000 else 1):
        took = seconds(work)
    return {"milliseconds_per_client": 1e3 * took / clients / ROUNDS, "peak_gigabytes": peak() / 1024}


def measure(options: Namespace) -> dict[str, Any]:
    results = {}
    for clients in CLIENTS:
        count = max(2, round(clients * min(options.scale * 10, 1)))
        results[str(count)] = in_a_new_process(alone, count)
    first = next(iter(results.values()))["milliseconds_per_client"]
    return {k: {**f, "rise": f["milliseconds_per_client"] / first} for k, f in results.items()}


def table(results: dict[str, Any]) -> list[list[str]]:
    rows = [["clients", "ms a client and round", f"against the first (wanted: ≤ {RISE})", f"peak, GB (≤ {MEMORY})"]]
    for clients, f in results.items():
        rows.append([clients, f"{f['milliseconds_per_client']:.2f}", f"{f['rise']:.2f}", f"{f['peak_gigabytes']:.2f}"])
    return rows
