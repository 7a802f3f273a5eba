"""How soon something answers: processor seconds of commands in fresh processes, and of a prediction in a warm one.

Processor time is taken, of the process and its children, because the machine may have other work. With `--before
FOLDER`, the same commands run on the package in that folder, in turn.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.squares import write_tables

TITLE = "Answering"
WANTED = {"import consilience": 0.2}
for words in ("--version", "--help", "methods", "datasets", "run --wrong-flag", "wrong-command"):
    WANTED[f"consilience {words}"] = 0.3
PREDICT = {"predict, one row, a run's folder": "run", "predict, one row, a study's model": "trial.model"}
FLOOR = "import torch"
WARM = """
import statistics, sys, time
from pathlib import Path
import torch
from consilience.study.protocol.columns import inspect
from consilience.cli.predictions import predict_with_model, predict_with_run, read_checked_model
from consilience.runs.run import load
table = Path("one.csv")
if sys.argv[1] == "run":
    result = load("run")
    x = result.read(table).x
    predict = lambda: result.predict(x)
else:
    model = read_checked_model(Path(sys.argv[1]), None, None)
    x = torch.cat([c.features(inspect(table, model.agreement.columns, None).cells[c.name])
                   for c in model.agreement.columns], 1).float()
    predict = lambda: (model(x), model.uncertainty(x))
predict()
times = []
for _ in range(20):
    begin = time.process_time()
    predict()
    times.append(time.process_time() - begin)
print(statistics.median(times), file=sys.stderr)
"""


def spent(words: list[str], package: str, folder: str) -> float:
    """Processor seconds of a process, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    done = subprocess.run([sys.executable, *words], capture_output=True, check=False, env=environment, cwd=folder)
    if done.returncode != 2 * any("wrong" in word for word in words):
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def command(text: str) -> list[str]:
    if text.startswith("consilience"):
        return ["-m", *text.split()]
    return ["-c", text]


def warm(model: str, package: str, folder: str) -> float:
    """Processor seconds of a prediction in a process that has made one."""
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", WARM, model]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, cwd=folder)
    return float(done.stderr.split()[-1])


def prepare(folder: Path, package: str) -> None:
    """A run's folder, a study's model of three sites, and a table of one row."""
    write_tables(folder, 3, 200, 5)
    head, row = [line.rpartition(",")[0] for line in (folder / "0.csv").read_text().splitlines()[:2]]
    (folder / "one.csv").write_text(f"{head}\n{row}\n")
    steps = [
        ["run", "exact", "--data", "[012].csv", "--target", "y", "--model", "linear", "--out", "run", "--no-bounds"],
        ["study", "new", "trial", "--like", "0.csv", "--target", "y", "--method", "exact"],
        *(["site", "join", "trial.toml", f"s{k}", f"{k}.csv"] for k in range(3)),
        ["study", "add", "trial.toml", *(f"s{k}.join" for k in range(3))],
        *(["site", "fit", "trial.toml", f"{k}.csv", "--key", f"s{k}.key"] for k in range(3)),
        ["study", "pool", "trial.toml", *(f"s{k}.reply" for k in range(3)), "--key", "trial.key"],
    ]
    script = f"""
import sys
import consilience.cli
for words in {steps!r}:
    sys.argv = ["consilience", *words]
    try:
        consilience.cli.main()
    except SystemExit as end:
        assert not end.code, words
"""
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environment, cwd=folder)


def measure(options: Namespace) -> dict[str, Any]:
    packages = {"now": str(Path.cwd())}
    if options.before is not None:
        packages["before"] = str(options.before.absolute())
    fresh: dict[str, list[str]] = {text: command(text) for text in (FLOOR, *WANTED)}
    for text, model in PREDICT.items():
        fresh[text] = ["-m", "consilience", "predict", model, "one.csv"]
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), packages["now"])
        for text, words in fresh.items():
            times: dict[str, list[float]] = {version: [] for version in packages}
            for turn in range(options.repeats + 1):
                for version, package in packages.items():
                    took = spent(words, package, name)
                    if turn:  # the first compiles and fills the disk's cache
                        times[version].append(took)
            results[text] = {version: statistics.median(values) for version, values in times.items()}
        for text, model in PREDICT.items():
            results[f"{text}, warm"] = {"now": warm(model, packages["now"], name)}
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    floor = results[FLOOR]["now"]
    rows = [["processor seconds", "wanted", "before", "now", "of `import torch`"]]
    for text, f in results.items():
        before, wanted = f.get("before"), WANTED.get(text)
        rows.append(
            [
                f"`{text}`" if text in WANTED or text == FLOOR else text,
                f"≤ {wanted:g}" if wanted else "",
                f"{before:.2f}" if before else "",
                f"{f['now']:.3f}",
                f"{f['now'] / floor:.2f}",
            ]
        )
    return rows
