"""More and more clients of 60 rows × 64 features: time per client and peak memory of a whole run of two rounds.

Then a hundred thousand of 20 rows × 20 features, whose replies are folded into sums or averages as they come.

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
MANY, FEW_ROWS, FEW_FEATURES = (10_000, 100_000), 20, 20
MEMORY, RISE = 4.0, 1.1  # GB at 10 000 clients; time per client against 10 clients


def sites(clients: int, rows: int = ROWS, features: int = FEATURES) -> co.Sites:
    train = tuple(draw_rows(clients, rows, (features,)))
    test = tuple(Data(*(leaf[:1] for leaf in part)) for part in train)
    names = tuple(str(k) for k in range(clients))
    return co.Sites(train, test, None, None, None, 10, features, "drawn", "iid", names)


def alone(clients: int) -> dict[str, float]:
    """In this process: the second of two runs."""
    rows, method = sites(clients), co.methods.FedAvg(co.SGD(epochs=1, batch=20))
    task = co.classification(co.models.mlp(FEATURES, 10))
    work = lambda: co.run(method, task, rows, rounds=ROUNDS, scored=False, keep_replies="none")
    for _ in range(2 if clients <= 1_000 else 1):
        took = seconds(work)
    return {"milliseconds_per_client": 1e3 * took / clients / ROUNDS, "peak_gigabytes": peak() / 1024}


def many(clients: int, method: co.Method, rounds: int) -> dict[str, float]:
    """In this process: one run of many small sites with a linear model."""
    rows = sites(clients, FEW_ROWS, FEW_FEATURES)
    task = co.classification(co.models.linear(FEW_FEATURES, 10))
    took = seconds(lambda: co.run(method, task, rows, rounds=rounds, scored=False, keep_replies="none"))
    return {"milliseconds_per_client": 1e3 * took / clients / rounds, "peak_gigabytes": peak() / 1024}


def measure(options: Namespace) -> dict[str, Any]:
    share = min(options.scale * 10, 1)
    results = {}
    for clients in CLIENTS:
        count = max(2, round(clients * share))
        results[str(count)] = in_a_new_process(alone, count)
    measured = _with_rise(results)
    for name, method, rounds in (
        ("exact", co.methods.ExactPooling(), 1),
        ("FedAvg", co.methods.FedAvg(co.SGD(epochs=1, batch=20)), 2),
    ):
        results = {}
        for clients in MANY:
            count = max(2, round(clients * share))
            results[f"{count} of {FEW_ROWS} rows, {name}"] = in_a_new_process(many, count, method, rounds)
        measured |= _with_rise(results)
    return measured


def _with_rise(results: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Figures with the time per client against that of the first size."""
    first = next(iter(results.values()))["milliseconds_per_client"]
    return {k: {**f, "rise": f["milliseconds_per_client"] / first} for k, f in results.items()}


def table(results: dict[str, Any]) -> list[list[str]]:
    rows = [["clients", "ms a client and round", f"against the first (wanted: ≤ {RISE})", f"peak, GB (≤ {MEMORY})"]]
    for clients, f in results.items():
        rows.append([clients, f"{f['milliseconds_per_client']:.2f}", f"{f['rise']:.2f}", f"{f['peak_gigabytes']:.2f}"])
    return rows
