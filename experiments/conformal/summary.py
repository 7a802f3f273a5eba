"""The tables of README.md from the trials of table.py: python experiments/conformal/summary.py [FOLDER]

FOLDER is where table.py wrote: its trials join those of results/table.json; without one the tables are written from
these alone. Means over seeds ± half a 95 % interval; where every seed splits the same table anew the interval is Nadeau
and Bengio's. Differences are paired over seeds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from consilience.benchmark.trials import Trials, collect_trials, markdown_table, replace_between
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
DIVERGED = 100  # an NLL that says no more than that something went wrong


def join_methods(trials: Trials) -> Trials:
    """Put the columns of single methods beside the six of their data set, seed by seed."""
    joined: Trials = {}
    for column, seeds in trials.items():
        name, what = column.split("/")
        if what not in ("left-out", "folds"):
            what = "methods"
        for seed, rows in seeds.items():
            joined.setdefault(f"{name}/{what}", {}).setdefault(seed, {}).update(rows)
    return joined


def by_seed(trials: Trials, column: str, row: str, score: str) -> dict[str, float]:
    """A score over the seeds that have it."""
    found = {seed: rows.get(row, {}).get(score) for seed, rows in trials.get(column, {}).items()}
    return {seed: value for seed, value in found.items() if value is not None}


def values(trials: Trials, column: str, row: str, score: str) -> list[float]:
    return list(by_seed(trials, column, row, score).values())


def mean(trials: Trials, column: str, row: str, score: str, form: str = ".2f") -> str:
    found = values(trials, column, row, score)
    if not found:
        return "refused"
    text = f"{fmean(found):{form}}"
    if len(found) < 3:
        return text
    d = difference(found, [0.0] * len(found), RESPLIT.get(column.partition("/")[0], 0.0))
    return f"{text} ± {(d.high - d.low) / 2:{form}}"


def gap(trials: Trials, column: str, row: str, reference: str, score: str) -> str:
    """A row's score less another's, paired over the seeds that both have; an interval from three on."""
    ours = by_seed(trials, column, row, score)
    theirs = by_seed(trials, column, reference, score)
    paired = [seed for seed in ours if seed in theirs]
    if not paired:
        return "–"
    overlap = RESPLIT.get(column.partition("/")[0], 0.0)
    d = difference([ours[seed] for seed in paired], [theirs[seed] for seed in paired], overlap)
    text = f"{d.mean:+.2f}"
    if len(paired) >= 3:
        text += f" ({d.low:+.2f} to {d.high:+.2f})"
    return text.replace("-", "−")


def seeds(trials: Trials, column: str) -> int:
    return len(trials.get(column, {}))


def counted(number: int) -> str:
    if number == 1:
        return "1 seed"
    return f"{number} seeds"


def methods(trials: Trials, column: str) -> list[str]:
    """The methods of a column, the smallest sets first."""
    rows = dict.fromkeys(row for seed in trials[column].values() for row in seed)
    names = [row for row in rows if "," not in row]
    size = {name: values(trials, column, name, "hinge_size_at_95") for name in names}
    return sorted(names, key=lambda name: fmean(size[name] or [99.0]))


def sizes(trials: Trials, name: str) -> str:
    """Sets that cover exactly so many test rows, and calibrated ones."""
    column = f"{name}/methods"
    every = seeds(trials, column)
    body = []
    for method in methods(trials, column):
        equal = [mean(trials, column, method, f"hinge_size_at_{level}") for level in (90, 95, 98)]
        less = ""
        if method != SHIFT_OF:
            less = gap(trials, column, method, SHIFT_OF, "hinge_size_at_95")
        adaptive = mean(trials, column, method, "aps_size_at_95")
        pooled = [mean(trials, column, f"{method}, pooled, hinge", score) for score in ("coverage", "size")]
        label = method
        run = len(values(trials, column, method, "nll"))
        if run < every:
            label = f"{method} ({counted(run)})"
        nll = mean(trials, column, method, "nll", ".3f")
        if fmean(values(trials, column, method, "nll")) > DIVERGED:
            nll = f"over {DIVERGED}"
        body.append([label, equal[0], equal[1], less, equal[2], adaptive, *pooled, nll])
    heading = [f"{TITLES[name]} ({counted(every)})", "size at 90 %", "95 %", f"less {SHIFT_OF}'s", "98 %"]
    return markdown_table([*heading, "95 %, aps", "covered, calibrated", "size, calibrated", "NLL"], body)


def kinds(trials: Trials) -> str:
    """What each kind does on average, at the worst site and class, and at new sites with other mixtures of classes."""
    body = []
    for name, title in TITLES.items():
        for kind in KINDS:
            column, row = f"{name}/methods", f"{SHIFT_OF}, {kind}, hinge"
            if column in trials:
                scores = ("coverage", "worst_site", "worst_class", "newcomer", "size")
                label = f"{title}, `{kind}`"
                known = len(values(trials, column, row, "size"))
                if 0 < known < seeds(trials, column):
                    label += f" ({counted(known)}, else refused)"
                body.append([label, *(mean(trials, column, row, score) for score in scores)])
    heading = ["data, kind", "covered", "worst site", "worst class", "newcomer, 5 % quantile", "size"]
    return markdown_table(heading, body)


def left_out(trials: Trials) -> str:
    """Coverage at a hospital that took no part."""
    body = []
    column = "heart_disease/left-out"
    for method in ("exact_tuned", "fedavg", "mixture"):
        for kind in KINDS[:3]:
            rows = [f"{method}, {kind}, without {hospital}" for hospital in HOSPITALS]
            body.append([f"{method}, `{kind}`", *(mean(trials, column, row, "coverage") for row in rows)])
    return markdown_table([f"covered ({counted(seeds(trials, column))})", *HOSPITALS], body)


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
            row = f"{SHIFT_OF}, {kind}, hinge, 30 edges"
            cells.append(gap(trials, column, f"{row}, ε = 1", row, "size"))
            body.append([f"{title}, `{kind}`", *cells])
    heading = ["data, kind", "covered", "size", "seeds"]
    return markdown_table([*heading, "covered, ε = 1", "size, ε = 1", "seeds not refused", "larger by"], body)


def folds(trials: Trials) -> str:
    """Rows set aside beside folds, by exact pooling."""
    body = []
    for row, promised in (("rows set aside", "0.90"), ("5 folds", mean(trials, FOLDED, "5 folds", "promised"))):
        cells = [mean(trials, FOLDED, row, score) for score in ("coverage", "size")]
        body.append([row, promised.partition(" ")[0], *cells])
    aside, folded = (values(trials, FOLDED, row, "size") for row in ("rows set aside", "5 folds"))
    d = difference(folded, aside, RESPLIT["heart_disease"])
    gap = f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})".replace("-", "−")
    table = markdown_table([f"Heart disease ({counted(seeds(trials, FOLDED))})", "promised", "covered", "size"], body)
    return f"{table}\n\nSize by folds less size by rows set aside: {gap}."


def shifts(trials: Trials) -> str:
    """What other kinds gain and cost beside the pooled one, paired over seeds."""
    body = []
    scores = ("worst_site", "worst_class", "newcomer", "size")
    for name, title in TITLES.items():
        column = f"{name}/methods"
        for kind in ("class", "quantile", "own"):
            row = f"{SHIFT_OF}, {kind}, hinge"
            if values(trials, column, row, "size"):
                cells = [gap(trials, column, row, f"{SHIFT_OF}, pooled, hinge", score) for score in scores]
                body.append([f"{title}: `{kind}` − `pooled`", *cells])
    return markdown_table(["difference", "worst site", "worst class", "newcomer, 5 % quantile", "size"], body)


def page(trials: Trials) -> str:
    """Everything between the marks of README.md."""
    trials = join_methods(trials)
    parts = []
    for name, title in TITLES.items():
        if f"{name}/methods" in trials:
            parts += [f"### Size of sets, {title}", sizes(trials, name)]
    parts += ["### Four kinds, 90 %", kinds(trials), "### What label shift does to them", shifts(trials)]
    parts += ["### A hospital that took no part, 90 %", left_out(trials)]
    parts += ["### ε = 1, 90 %", noise(trials)]
    return "\n\n".join([*parts, "### Folds in place of rows set aside, 90 %", folds(trials)])


def main(words: list[str]) -> None:
    if words:
        trials = collect_trials("conformal/table", Path(words[0]), RESULTS)
        RESULTS.write_text(json.dumps(trials, ensure_ascii=False, separators=(",", ":")) + "\n")
    stored: Any = json.loads(RESULTS.read_text())
    replace_between(PAGE, BEGIN, page(stored), END)


if __name__ == "__main__":
    main(sys.argv[1:])
