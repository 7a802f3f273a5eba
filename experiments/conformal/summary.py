"""The tables of README.md from the trials of table.py: python experiments/conformal/summary.py FOLDER

FOLDER is where table.py wrote. Means over seeds ± half a 95 % interval; where every seed splits the same table anew the
interval is Nadeau and Bengio's. Differences are paired over seeds. Without FOLDER, from results/table.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from consilience.metrics.paired import difference

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "table.json"
PAGE, BEGIN, END = HERE / "README.md", "<!-- tables: summary.py -->", "<!-- end of the tables -->"
TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "femnist": "FEMNIST",
    "heart_disease": "Heart disease",
}
RESPLIT = {"digits": 359 / 1000, "heart_disease": 185 / 500}  # test rows / training rows, drawn anew by every seed
KINDS = ("class", "pooled", "quantile", "own")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SHIFT_OF = "exact_tuned"
FOLDED = "heart_disease/folds"

Trials = dict[str, dict[str, dict[str, dict[str, float | None]]]]  # column → seed → row → score


def collect(folder: Path) -> Trials:
    trials: Trials = {}
    for column in (*(f"{name}/methods" for name in TITLES), "heart_disease/left-out", FOLDED):
        files = sorted((folder / "trials" / "full" / column.replace("/", "-")).glob("seed-*.json"))
        seeds = {file.stem.removeprefix("seed-"): json.loads(file.read_text())["values"] for file in files}
        if seeds:
            trials[column] = {seed: rounded(seeds[seed]) for seed in sorted(seeds, key=int)}
    return trials


def rounded(rows: dict[str, dict[str, float | None]]) -> dict[str, dict[str, float | None]]:
    return {row: {k: None if v is None else round(v, 5) for k, v in found.items()} for row, found in rows.items()}


def values(trials: Trials, column: str, row: str, score: str) -> list[float]:
    """Over the seeds that have it."""
    found = [rows.get(row, {}).get(score) for rows in trials.get(column, {}).values()]
    return [v for v in found if v is not None]


def mean(trials: Trials, column: str, row: str, score: str, form: str = ".2f", spread: bool = True) -> str:
    found = values(trials, column, row, score)
    if not found:
        return "refused"
    text = f"{fmean(found):{form}}"
    if not spread or len(found) < 3:
        return text
    d = difference(found, [0.0] * len(found), RESPLIT.get(column.partition("/")[0], 0.0))
    return f"{text} ± {(d.high - d.low) / 2:{form}}"


def lines(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *body))


def seeds(trials: Trials, column: str) -> int:
    return len(trials.get(column, {}))


def methods(trials: Trials, column: str) -> list[str]:
    """The methods of a column, the smallest sets first."""
    rows = next(iter(trials[column].values()))
    names = [row for row in rows if "," not in row]
    size = {name: values(trials, column, name, "hinge_size_at_95") for name in names}
    return sorted(names, key=lambda name: fmean(size[name] or [99.0]))


def sizes(trials: Trials, name: str) -> str:
    """Sets that cover exactly so many test rows, and calibrated ones."""
    column = f"{name}/methods"
    body = []
    for method in methods(trials, column):
        equal = [mean(trials, column, method, f"hinge_size_at_{level}") for level in (90, 95, 98)]
        adaptive = mean(trials, column, method, "aps_size_at_95")
        pooled = [mean(trials, column, f"{method}, pooled, hinge", score) for score in ("coverage", "size")]
        body.append([method, *equal, adaptive, *pooled, mean(trials, column, method, "nll", ".3f")])
    heading = [f"{TITLES[name]} ({seeds(trials, column)} seeds)", "size at 90 %", "95 %", "98 %", "95 %, aps"]
    return lines([*heading, "covered, calibrated", "size, calibrated", "NLL"], body)


def kinds(trials: Trials) -> str:
    """What each kind does on average, at the worst site and class, and at new sites with other mixtures of classes."""
    body = []
    for name, title in TITLES.items():
        for kind in KINDS:
            column, row = f"{name}/methods", f"{SHIFT_OF}, {kind}, hinge"
            if column in trials:
                scores = ("coverage", "worst_site", "worst_class", "newcomer", "size")
                body.append([f"{title}, `{kind}`", *(mean(trials, column, row, score) for score in scores)])
    heading = ["data, kind", "covered", "worst site", "worst class", "newcomer, 5 % quantile", "size"]
    return lines(heading, body)


def left_out(trials: Trials) -> str:
    """Coverage at a hospital that took no part."""
    body = []
    column = "heart_disease/left-out"
    for method in ("exact_tuned", "fedavg", "mixture"):
        for kind in KINDS[:3]:
            rows = [f"{method}, {kind}, without {hospital}" for hospital in HOSPITALS]
            body.append([f"{method}, `{kind}`", *(mean(trials, column, row, "coverage") for row in rows)])
    return lines([f"covered ({seeds(trials, column)} seeds)", *HOSPITALS], body)


def noise(trials: Trials) -> str:
    """What ε = 1 costs on a grid of 30 edges."""
    body = []
    for name, title in TITLES.items():
        column = f"{name}/methods"
        for kind in ("class", "pooled"):
            if column not in trials:
                continue
            cells = []
            for end in ("", ", ε = 1"):
                row = f"{SHIFT_OF}, {kind}, hinge, 30 edges{end}"
                cells += [mean(trials, column, row, score) for score in ("coverage", "size")]
                cells.append(str(len(values(trials, column, row, "size"))))
            body.append([f"{title}, `{kind}`", *cells])
    heading = ["data, kind", "covered", "size", "seeds", "covered, ε = 1", "size, ε = 1", "seeds not refused"]
    return lines(heading, body)


def folds(trials: Trials) -> str:
    """Rows set aside beside folds, by exact pooling."""
    body = []
    for row, promised in (("rows set aside", "0.90"), ("5 folds", mean(trials, FOLDED, "5 folds", "promised"))):
        cells = [mean(trials, FOLDED, row, score) for score in ("coverage", "size")]
        body.append([row, promised.partition(" ")[0], *cells])
    aside, folded = (values(trials, FOLDED, row, "size") for row in ("rows set aside", "5 folds"))
    d = difference(folded, aside, RESPLIT["heart_disease"])
    gap = f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})".replace("-", "−")
    table = lines([f"Heart disease ({seeds(trials, FOLDED)} seeds)", "promised", "covered", "size"], body)
    return f"{table}\n\nSize by folds less size by rows set aside: {gap}."


def gaps(trials: Trials) -> str:
    """Differences in size at 95 % of test rows, paired over seeds."""
    body = []
    for name, title in TITLES.items():
        column = f"{name}/methods"
        if column not in trials:
            continue
        for other in ("exact", "evidence", "fedavg", "gaussian_product", "mixture"):
            ours = values(trials, column, SHIFT_OF, "hinge_size_at_95")
            theirs = values(trials, column, other, "hinge_size_at_95")
            if len(ours) == len(theirs) >= 3:
                d = difference(theirs, ours, RESPLIT.get(name, 0.0))
                body.append([f"{title}: {other} − {SHIFT_OF}", f"{d.mean:+.2f} ({d.low:+.2f} to {d.high:+.2f})"])
    return lines(["size at 95 % of test rows", "difference"], body).replace("-0", "−0").replace("-1", "−1")


def page(trials: Trials) -> str:
    """Everything between the marks of README.md."""
    parts = []
    for name, title in TITLES.items():
        if f"{name}/methods" in trials:
            parts += [f"### Size of sets, {title}", sizes(trials, name)]
    parts += ["### Paired differences in size", gaps(trials)]
    parts += ["### Four kinds, 90 %", kinds(trials), "### A hospital that took no part, 90 %", left_out(trials)]
    parts += ["### ε = 1, 90 %", noise(trials)]
    return "\n\n".join([*parts, "### Folds in place of rows set aside, 90 %", folds(trials)])


def main(words: list[str]) -> None:
    if words:
        RESULTS.write_text(json.dumps(collect(Path(words[0])), ensure_ascii=False, separators=(",", ":")) + "\n")
    trials: Any = json.loads(RESULTS.read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(trials)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
