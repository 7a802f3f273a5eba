"""Write results/table.json, bytes.svg, and the tables of README.md and docs/one-shot.md: summary.py [FOLDER]

FOLDER is where table.py kept its trials, which join those of results/table.json; without one the tables are written
from results/table.json as it is. Rows of columns 'exact/tuned' and 'exact/onehot' take the place of those of 'exact'.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from consilience.benchmark.trials import (
    Cell,
    Trials,
    collect_trials,
    cut,
    markdown_table,
    mean_with_interval,
    paired_difference,
    replace_between,
)

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "table.json", HERE / "README.md"
BEGIN, END = "<!-- tables: summary.py -->", "<!-- end of the tables -->"
OVERVIEW = HERE.parents[1] / "docs" / "one-shot.md"
BEGIN_CLAIMS, END_CLAIMS = "<!-- claims: experiments/exact/summary.py -->", "<!-- end of the claims -->"
RESPLIT = {"digits": 0.25, "heart_disease": 0.25} | dict.fromkeys(
    ("air_quality", "bike", "wine", "real_estate", "forest_fire"), 0.25
)  # test rows / training rows, where seeds re-split one table
ROWS = {"mnist": 10_000, "fashion_mnist": 10_000, "cifar10": 10_000, "femnist": 746}  # of the official test parts
ROWS["femnist/300"] = 4_700

TITLES = {"digits": "digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
TITLES |= {"femnist": "FEMNIST, 50 writers", "heart_disease": "heart disease"}
EXACT = ("OneHot, 1 round", "Discriminant, 1 round", "Dirichlet, 1 round", "Tuned", "Tuned, Dirichlet")
REFERENCE = "Tuned"
OWN_RATE = "10 short rounds, its rate tuned"
GLM_ROUNDS = (3, 10, 40)
FEATURES = {"digits": "conv:512", "heart_disease": "identity"} | dict.fromkeys(
    ("mnist", "fashion_mnist", "cifar10", "femnist"), "conv:1024"
)
CLASSES = {"digits": 10, "mnist": 10, "fashion_mnist": 10, "cifar10": 10, "femnist": 62}
PUBLISHED = {  # accuracy in %, ten clients, β = 0.05, 0.1, 0.3; the same CNN, one round, nothing at the server
    "FedLPA": {"mnist": (70.1, 77.4, 85.8), "fashion_mnist": (54.3, 55.3, 68.2), "cifar10": (18.4, 20.0, 26.6)},
    "DENSE": {"mnist": (57.8, 70.3, 84.5), "fashion_mnist": (47.8, 52.9, 64.3), "cifar10": (17.9, 19.9, 25.6)},
    "FedAvg, 1 round": {
        "mnist": (38.6, 48.6, 66.2),
        "fashion_mnist": (18.7, 30.9, 45.2),
        "cifar10": (10.2, 12.8, 10.5),
    },
    "Co-Boosting": {
        "mnist": (93.9, 94.4, 97.3),
        "fashion_mnist": (49.0, 73.2, 83.4),
        "cifar10": (47.2, 57.1, 70.2),
    },
}
BETAS = (0.05, 0.1, 0.3)


def cell(trials: Trials, column: str, row: str) -> Cell:
    """A row's scores by seed; columns beyond ten rounds end in 'more', those of one in 'once'."""
    for place in (column, f"{column}/more", f"{column}/once", f"{column}/dirichlet"):
        found = {seed: rows[row] for seed, rows in trials.get(place, {}).items() if row in rows}
        if found:
            return found
    return {}


def table(trials: Trials, data: str, rows: Mapping[str, tuple[str, str]]) -> str:
    """A line for every row: (title → column, row), and its difference from the reference in NLL."""
    overlap = RESPLIT.get(data, 0.0)
    first = next(iter(rows.values()))
    reference = cell(trials, first[0], REFERENCE)
    scores = {"NLL": "nll", "Brier": "brier", "accuracy": "accuracy", "ECE": "ece"}
    forms = {"accuracy": ".1%"}
    if not any("brier" in s for s in reference.values()):
        scores = {"NLL": "nll", "CRPS": "crps", "RMSE": "rmse"}
    body = []
    for title, (column, row) in rows.items():
        values = cell(trials, column, row)
        if values:
            numbers = [
                mean_with_interval(values, score, overlap, forms.get(score, ".3f"), ROWS.get(data, 0))
                for score in scores.values()
            ]
            size = sent(with_rounds(trials, column, row, values))
            body.append([title, str(len(values)), *numbers, paired_difference(values, reference, overlap), size])
    return markdown_table(["row", "seeds", *scores, "NLL less tuned's", "sent by a site"], body)


def with_rounds(trials: Trials, column: str, row: str, values: Cell) -> Cell:
    """Add what FedAvg sent before an exact head was put on its network; on pooled rows nobody sends anything."""
    if row.startswith("Pooled"):
        return {}
    network, _, rest = row.partition(" of ")
    rounds = cell(trials, column, f"FedAvg, {network}, {rest.partition(', then')[0]}")
    if ", then" not in row or not rounds:
        return values
    return {seed: {"up_bytes": (values[seed]["up_bytes"] or 0) + (rounds[seed]["up_bytes"] or 0)} for seed in values}


def sent(values: Cell) -> str:
    known = [v for scores in values.values() if (v := scores.get("up_bytes")) is not None]
    if not known:
        return "–"
    if fmean(known) < 1e5:
        return f"{fmean(known) / 1e3:.1f} kB"
    return f"{fmean(known) / 1e6:.2f} MB"


def logistic_row(rounds: int) -> str:
    return f"glm: the logistic model, {rounds} rounds"


def add_logistic(trials: Trials, results: Mapping[str, Any]) -> None:
    """Put glm's rows beside those of exact pooling: the same seeds, features, training and test rows."""
    for data, values in results.items():
        column = f"{data}/{FEATURES[data]}/exact"
        for rounds, runs in values["rounds"].items():
            for seed, scores in enumerate(runs):
                rows = trials.get(column, {}).get(str(seed))
                if rows is not None:
                    rows[logistic_row(int(rounds))] = scores | later_bytes(data, rows, int(rounds))


def add_rates(trials: Trials, results: Mapping[str, Any]) -> None:
    """Put FedAvg of a head with a rate chosen for each data set beside that with one rate for all."""
    for data, values in results.items():
        column = trials.get(f"{data}/{MAIN[data][0]}/{MAIN[data][1]}", {})
        for seed, run in enumerate(values["runs"]):
            if str(seed) in column:
                column[str(seed)][f"FedAvg, head, {OWN_RATE}"] = run["10 short rounds"]


def later_bytes(data: str, rows: Cell, rounds: int) -> dict[str, float | None]:
    """What a site sends: exact pooling's sums, then a loss, a gradient and Σ diag(p) − ppᵀ in double precision."""
    if data not in CLASSES:
        return {}  # of few weights Hessians are sent
    classes = CLASSES[data]
    width = int(FEATURES[data].split(":")[1]) + 1
    first = rows["OneHot, 1 round"]["up_bytes"] or 0.0
    return {"up_bytes": first + (rounds - 1) * 8 * (1 + classes * width + classes**2)}


def rows_of(data: str, map_name: str, split: str, network: str = "cnn") -> dict[str, tuple[str, str]]:
    """The rows of one data set's table, with where each was scored."""
    heads, linear, net = f"{data}/{map_name}/exact", f"{data}/{map_name}/{split}", f"{data}/{network}/{split}"
    if split == "natural/300":
        heads += "/300"
    if "+" in split:
        heads = linear
    label = network.upper()
    rows = {f"exact: {row}": (heads, row) for row in (*EXACT, "Ridge, 1 round")}
    rows |= {row: (heads, row) for row in map(logistic_row, GLM_ROUNDS)}
    rows |= {f"FedAvg of a head, {n}": (linear, f"FedAvg, head, {n}") for n in ("1 round", "10 short rounds", OWN_RATE)}
    rows["evidence pooling of heads, 1 round"] = (linear, "Evidence, head")
    rounds = ("1 round", "10 short rounds", "50 short rounds")
    rows |= {f"FedAvg of a {label}, {n}": (net, f"FedAvg, {label}, {n}") for n in rounds}
    for n in ("3 short rounds", "10 short rounds"):
        rows[f"{label} after {n}, then exact: tuned"] = (net, f"{label} of {n}, then Tuned")
    if "+" not in split:  # pooled rows are as they came
        rows[f"bound: {label} on pooled rows"] = (f"{data}/{network}/pooled", f"Pooled {label}")
    return rows | {"line: base rate": (heads, "Base rate")}


def headline(trials: Trials) -> str:
    """NLL and accuracy of the rows that matter, all data sets side by side."""
    columns = {data: rows_of(data, *where) for data, where in MAIN.items()}
    titles = list(dict.fromkeys(title for rows in columns.values() for title in rows if "Ridge" not in title))
    body = []
    for title in titles:
        cells = []
        for data, rows in columns.items():
            values = cell(trials, *rows.get(title, ("", "")))
            text = mean_with_interval(values, "nll", RESPLIT.get(data, 0.0), ".3f")
            if values:
                text += f"; {fmean(s['accuracy'] or 0 for s in values.values()):.1%}"
            cells.append(text)
        body.append([title, *cells])
    for title, row in ELSEWHERE.items():
        body.append([title, *(mean_elsewhere(data, row) for data in columns)])
    return markdown_table(["NLL ± 95 %; accuracy", *(TITLES[data] for data in columns)], body)


def claims(trials: Trials) -> str:
    """What docs/one-shot.md says of a few rounds: NLL, accuracy, and what a site sends, beside each other."""
    shown = {
        "exact pooling, tuned": "exact: Tuned",
        "ten rounds of `glm`": logistic_row(10),
        "ten rounds of FedAvg, one rate for all": "FedAvg of a head, 10 short rounds",
        "ten rounds of FedAvg, its rate tuned": f"FedAvg of a head, {OWN_RATE}",
    }
    body = []
    for name, title in shown.items():
        cells = []
        for data, where in MAIN.items():
            values = cell(trials, *rows_of(data, *where)[title])
            text = "–"
            if values:
                nll, accuracy = (fmean(s[score] or 0 for s in values.values()) for score in ("nll", "accuracy"))
                text = f"{nll:.3f}, {100 * accuracy:.1f} %, {sent(values)}"
            if 0 < len(values) < 10:
                text += f" ({len(values)} seeds)"
            cells.append(text)
        body.append([name, *cells])
    return markdown_table(["NLL, accuracy; a site sends", *(TITLES[data] for data in MAIN)], body)


ELSEWHERE = {
    "evidence pooling of MLPs, 1 round *": "Evidence, as it comes",
    "FedAvg of an MLP, 10 rounds *": "FedAvg, 10 rounds",
    "bound: MLP on pooled rows *": "Centralised",
}


def mean_elsewhere(data: str, row: str) -> str:
    """A row of experiments/evidence, at Dirichlet(0.1) over five sites or the natural ones."""
    column = f"{data}/dirichlet:0.1/5"
    if data == "femnist":
        column = "femnist/natural/50"
    cells = json.loads((HERE.parent / "evidence" / "results" / "table.json").read_text())["cells"]
    for found in cells:
        if found["row"] == row and found["column"] == column and found["ours"] is not None:
            return f"{found['ours']:.3f}; {found['scores']['accuracy']:.1%}"
    return "–"


def shares(trials: Trials) -> str:
    """Of the lead over FedAvg with a CNN: what the features give, and what exactness adds."""
    body = []
    for data, where in MAIN.items():
        rows = rows_of(data, *where)
        steps = ("FedAvg of a CNN, 10 short rounds", "FedAvg of a head, 10 short rounds", "exact: Tuned")
        found = [cell(trials, *rows[step]) for step in steps]
        seeds = [seed for seed in found[0] if all(seed in values for values in found)]
        if seeds:
            network, head, exact = (fmean(values[s]["nll"] or 0 for s in seeds) for values in found)
            once = cell(trials, *rows["FedAvg of a head, 1 round"])
            one = fmean(once[s]["nll"] or 0 for s in seeds)
            numbers = [
                f"{network:.3f}",
                f"{head:.3f}",
                f"{exact:.3f}",
                f"{network - head:+.3f}",
                f"{head - exact:+.3f}",
            ]
            body.append(
                [TITLES[data], str(len(seeds)), *(n.replace("-", "−") for n in [*numbers, f"{one - exact:+.3f}"])]
            )
    heads = ["NLL", "seeds", "FedAvg CNN, 10 rounds", "FedAvg head, 10 rounds", "exact, tuned"]
    return markdown_table([*heads, "features' part", "exactness' part", "exactness' part at one round of FedAvg"], body)


def published(trials: Trials) -> str:
    """FedLPA's setting: ours in every cell with accuracy, NLL and ECE; theirs accuracy alone."""
    body = []
    ours = {row: f"exact: {row}" for row in ("OneHot, 1 round", "Dirichlet, 1 round", "Tuned")}
    ours[logistic_row(10)] = logistic_row(10)
    for row, title in ours.items():
        for data in ("mnist", "fashion_mnist", "cifar10"):
            values = cell(trials, f"{data}/conv:1024/exact", row)
            if values:
                body.append([f"{title}, {TITLES[data]}", *[triple(values)] * len(BETAS)])
    wide = cell(trials, "cifar10/conv:2048/exact", "Tuned")
    if wide:
        body.append(["exact: Tuned, CIFAR-10, D = 2 048", *[triple(wide)] * len(BETAS)])
    others = (("conv:1024", "FedAvg, head, 1 round"), ("conv:1024", "Evidence, head"), ("cnn", "FedAvg, CNN, 1 round"))
    for kind, row in others:
        for data in ("mnist", "fashion_mnist", "cifar10"):
            columns = [f"{data}/{kind}/dirichlet:{beta}/10" for beta in BETAS]
            found = [cell(trials, c, row) for c in columns]
            if any(found):
                body.append([f"{row}, {TITLES[data]}", *(triple(values) for values in found)])
    for name, data_sets in PUBLISHED.items():
        for data, numbers in data_sets.items():
            body.append([f"{name} (published), {TITLES[data]}", *(f"{n:.1f} %" for n in numbers)])
    return markdown_table(["accuracy; NLL; ECE", *(f"β = {beta}" for beta in BETAS)], body)


def triple(values: Cell) -> str:
    if not values:
        return "–"
    accuracy, nll, ece = (fmean(s[name] or 0 for s in values.values()) for name in ("accuracy", "nll", "ece"))
    return f"{accuracy:.1%}; {nll:.3f}; {ece:.3f}"


def _small(gap: float) -> str:
    if gap < 1e-8:  # what seven digits leave
        return "< 1e-8"
    return f"{gap:.0e}"


def checks(trials: Trials) -> str:
    """How far apart equal things came out, in NLL."""
    body = []
    for data in TITLES:
        for column, seeds in trials.items():
            if column.startswith(f"{data}/") and column.endswith("/check"):
                for seed, rows in seeds.items():
                    n = {row: s["nll"] or 0 for row, s in rows.items()}
                    pairs = {f"{h}: Dirichlet(0.05) − iid": n[f"{h}, dirichlet:0.05"] - n[f"{h}, iid"] for h in HEADS}
                    pairs["OneHot: map inside the network − before it"] = n["OneHot, map inside"] - n["OneHot, iid"]
                    pairs["Tuned: whole run at 5 sites − from pooled sums"] = n["Tuned, two rounds"] - n["Tuned"]
                    body += [[f"{TITLES[data]}, seed {seed}, {pair}", _small(abs(gap))] for pair, gap in pairs.items()]
    return markdown_table(["what", "difference in NLL"], body)


HEADS = ("OneHot", "Discriminant", "Dirichlet")
MAIN = {
    "digits": ("conv:512", "dirichlet:0.1/5"),
    "mnist": ("conv:1024", "dirichlet:0.1/10"),
    "fashion_mnist": ("conv:1024", "dirichlet:0.1/10"),
    "cifar10": ("conv:1024", "dirichlet:0.1/10"),
    "femnist": ("conv:1024", "natural/50"),
}
NUMBERS = ("beijing_air", "air_quality", "bike", "wine", "real_estate", "forest_fire")


def regressions(trials: Trials) -> str:
    """Ridge on columns as they are and on random Fourier features; NLL in units of the target's deviation."""
    body = []
    for data in NUMBERS:
        for title, (column, row) in regression_rows(data).items():
            values = cell(trials, column, row)
            if values:
                numbers = [
                    mean_with_interval(values, score, RESPLIT.get(data, 0.0), ".3f")
                    for score in ("nll", "crps", "rmse")
                ]
                body.append([f"{data}: {title}", str(len(values)), *numbers])
    return markdown_table(["row", "seeds", "NLL", "CRPS", "RMSE"], body)


def regression_rows(data: str) -> dict[str, tuple[str, str]]:
    rows = {"base rate": (f"{data}/identity/exact", "Base rate")}
    for kind, title in (("identity", "columns"), ("fourier:315", "Fourier")):
        rows[f"exact Ridge, 1 round, {title}"] = (f"{data}/{kind}/exact", "Ridge, 1 round")
        rows[f"exact, tuned, {title}"] = (f"{data}/{kind}/exact", "Tuned")
        rows[f"FedAvg linear, 10 rounds, {title}"] = (f"{data}/{kind}/natural/12", "FedAvg, head, 10 short rounds")
    rows["FedAvg MLP, 10 rounds"] = (f"{data}/mlp/natural/12", "FedAvg, MLP, 10 short rounds")
    return rows | {"bound: MLP on pooled rows": (f"{data}/mlp/pooled", "Pooled MLP")}


def bytes_points(trials: Trials) -> dict[str, list[tuple[float, float]]]:
    """Curve → (bytes a site sends, NLL) on Fashion-MNIST."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for width in (64, 128, 256, 512, 1024, 2048):
        for head in HEADS:
            for wire in ("float64", "float32", "float16"):
                point(curves, f"{head}, {wire}", cell(trials, f"fashion_mnist/conv:{width}/bytes", f"{head}, {wire}"))
    for rounds in ("1 short round", "3 short rounds", "10 short rounds", "50 short rounds"):
        split = "dirichlet:0.1/10"
        head = cell(trials, f"fashion_mnist/conv:1024/{split}", f"FedAvg, head, {rounds}")
        point(curves, "FedAvg of a head, by rounds", head)
        network = cell(trials, f"fashion_mnist/cnn/{split}", f"FedAvg, CNN, {rounds}")
        point(curves, "FedAvg of a CNN, by rounds", network)
    return {name: sorted(set(points)) for name, points in curves.items()}


def point(curves: dict[str, list[tuple[float, float]]], name: str, values: Cell) -> None:
    if values:
        sizes, scores = ([s[k] or 0 for s in values.values()] for k in ("up_bytes", "nll"))
        curves.setdefault(name, []).append((fmean(sizes), fmean(scores)))


def bytes_table(trials: Trials) -> str:
    body = []
    for width in (64, 128, 256, 512, 1024, 2048):
        for head in HEADS:
            column = f"fashion_mnist/conv:{width}/bytes"
            found = [cell(trials, column, f"{head}, {wire}") for wire in ("float64", "float32", "float16")]
            if any(found):
                body.append([f"D = {width}, {head}", *(f"{triple(values)}; {sent(values)}" for values in found)])
    return markdown_table(["accuracy; NLL; ECE; a site sends", "float64", "float32", "float16"], body)


def draw(trials: Trials, file: Path) -> None:
    """NLL against what a site sends, logarithmic."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    looks = {"OneHot": "#1f5a96", "Discriminant": "#3b7d3b", "Dirichlet": "#b3261e", "FedAvg of a head": "#7a7a7a"}
    looks |= {"FedAvg of a CNN": "#c05a00"}
    styles = {"float64": "o-", "float32": "s--", "float16": "^:", "by rounds": "D-"}
    for name, points in bytes_points(trials).items():
        colour = next(c for start, c in looks.items() if name.startswith(start))
        style = next(s for end, s in styles.items() if name.endswith(end))
        axes.plot(*zip(*points, strict=True), style, color=colour, markersize=4, linewidth=1.3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bytes a site sends", ylabel="NLL, Fashion-MNIST")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="both", alpha=0.2)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    with matplotlib.rc_context({"svg.hashsalt": "exact"}):  # the same file from the same numbers
        figure.savefig(file, metadata={"Date": None})


def page(trials: Trials) -> str:
    """Everything between the marks of README.md."""
    parts = ["### All data sets", headline(trials), "### Which part is the features', which the exactness'"]
    parts += [shares(trials), "### FedLPA's setting", published(trials)]
    for data, where in MAIN.items():
        if f"{data}/{where[0]}/exact" in trials:
            parts += [f"### {TITLES[data]}, {where[0]}, {where[1]}", table(trials, data, rows_of(data, *where))]
    if "femnist/conv:1024/exact/300" in trials:
        rows = rows_of("femnist", "conv:1024", "natural/300")
        parts += ["### FEMNIST, 300 writers, conv:1024, natural/300", table(trials, "femnist/300", rows)]
    if "cifar10/conv:2048/exact" in trials:
        wide = {f"exact: {row}": ("cifar10/conv:2048/exact", row) for row in EXACT}
        parts += ["### CIFAR-10, conv:2048", table(trials, "cifar10", wide)]
    for kind in ("identity", "fourier:329"):
        rows = rows_of("heart_disease", kind, "natural/4", "mlp")
        parts += [f"### Heart disease, {kind}, four hospitals", table(trials, "heart_disease", rows)]
    for split in ("rotate:30", "rotate:60"):
        rows = rows_of("digits", "conv:512", f"dirichlet:0.3+{split}/5")
        if cell(trials, *rows["exact: Tuned"]):
            parts += [f"### Digits turned by site, {split}, Dirichlet(0.3)", table(trials, "digits", rows)]
    parts += ["### Numbers", regressions(trials), "### Quality against bytes, Fashion-MNIST, ten sites"]
    parts += ["![NLL against bytes](results/bytes.svg)", bytes_table(trials), "### Equal to rounding", checks(trials)]
    return "\n\n".join(parts)


def renew_rows(trials: Trials, folder: Path, part: str) -> None:
    """Put the rows of columns 'exact/PART' in the place of those of 'exact'."""
    for column, seeds in trials.items():
        place = folder / "trials" / "full" / f"{column}/{part}".replace(":", "-").replace("/", "-")
        for seed, rows in seeds.items():
            file = place / f"seed-{seed}.json"
            if "/exact" in column and file.exists():
                values = json.loads(file.read_text())["values"]
                rows |= {row: {score: cut(v) for score, v in cells.items()} for row, cells in values.items()}


def stored_trials() -> Trials:
    """The stored trials, with glm's rows and FedAvg's with tuned rates among them."""
    trials: Trials = json.loads(RESULTS.read_text())
    add_logistic(trials, json.loads((HERE / "results" / "glm.json").read_text()))
    add_rates(trials, json.loads((HERE / "results" / "rates.json").read_text()))
    return trials


def main(words: list[str]) -> None:
    if words:
        trials = collect_trials("exact/table", Path(words[0]), RESULTS)
        for part in ("tuned", "onehot"):
            renew_rows(trials, Path(words[0]), part)
        RESULTS.write_text(json.dumps(trials, ensure_ascii=False, separators=(",", ":")) + "\n")
    trials = stored_trials()
    replace_between(PAGE, BEGIN, page(trials), END)
    replace_between(OVERVIEW, BEGIN_CLAIMS, claims(trials), END_CLAIMS)
    draw(trials, HERE / "results" / "bytes.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
