"""The tables of docs/evidence.md from the trials of table.py: python experiments/evidence/summary.py FOLDER

FOLDER is the `--out` of `consilience reproduce evidence/table`. Means over seeds; differences are paired over seeds,
with Nadeau and Bengio's interval where every seed splits the same table anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from consilience.benchmark.reproduce import load
from consilience.metrics.paired import Difference, difference

PAGE, BEGIN, END = Path("docs/evidence.md"), "<!-- tables: summary.py -->", "<!-- end of the tables -->"
COLUMNS = load("evidence/table").columns
MAIN = [c for c in COLUMNS if c.count("/") == 2]
SHIFTED = [c for c in COLUMNS if "rotate" in c or "noise" in c]
LABELLED = [c for c in COLUMNS if "labels" in c]

Rows = dict[str, str]  # as shown → the row of the experiment
OURS = {"as it comes": "Evidence, as it comes", "λ = 1, α = ½, 6 samples": "Evidence"}
OURS |= {"from sites": "Evidence, from sites", "distilled": "Evidence, distilled"}
RIVALS = {"mixture": "Mixture", "BCM": "BCM", "β": "β", "one-shot FL": "One-shot FL", "FedKT": "FedKT"}
RIVALS |= {"FedAvg, 1": "FedAvg, 1 round", "FedAvg, 10": "FedAvg, 10 rounds"}
BOUNDS = {"local": "Local only", "server": "Server only", "pooled data": "Centralised"}
ABLATED = {"λ = 1, α = ½, 6 samples": "Evidence"} | {
    name.removeprefix("Evidence, "): name
    for name in (
        *("Evidence, likelihood not adjusted", "Evidence, adjusted, pooled by a mixture"),
        *("Evidence, λ = ∞ (no offsets)", "Evidence, λ = 0.1", "Evidence, λ = 10", "Evidence, exponent 0"),
        *("Evidence, exponent 1", "Evidence, one point", "Evidence, as it comes"),
        *("Evidence, counts rounded to 10", "Evidence, counts ± Laplace(5)"),
    )
}
CLOSEST = {k: RIVALS[k] for k in ("FedAvg, 10", "mixture", "β", "one-shot FL")}
RESPLIT = {
    "digits": 359 / 1208
}  # test rows / training rows; the other sets come with test rows, the same for all seeds


def overlap(column: str) -> float:
    """What seeds share beyond their test rows, for `difference`."""
    return RESPLIT.get(column.partition("/")[0], 0.0)


def trials(folder: Path, column: str) -> list[dict[str, Any]]:
    """All rows of a column, a seed each."""
    files = (folder / "trials" / "full" / column.replace(":", "-").replace("/", "-")).glob("seed-*.json")
    return [json.loads(file.read_text())["values"] for file in sorted(files)]


def lines(heading: Sequence[str], body: Sequence[Sequence[str]], rule: str = "---:") -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] + [rule] * (len(heading) - 1), *body))


def means(folder: Path, columns: Sequence[str], rows: Rows, score: str = "nll", form: str = ".3f") -> str:
    """A mean over seeds a cell; bold is the lowest NLL that is not a bound."""
    body = []
    for column in columns:
        seeds = trials(folder, column)
        cells = {name: [s[row][score] for s in seeds if row in s] for name, row in rows.items()}
        averages = {name: fmean(values) for name, values in cells.items() if values}
        best = min((v for name, v in averages.items() if name not in BOUNDS), default=None)
        text = {name: f"{v:{form}}" for name, v in averages.items()}
        text |= {name: f"**{text[name]}**" for name, v in averages.items() if v == best and score.startswith("nll")}
        if seeds:
            body.append([f"{column} ({len(seeds)})", *(text.get(name, "–") for name in rows)])
    return lines(["data/split/sites (seeds)", *rows], body)


def interval(d: Difference) -> str:
    return f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})".replace("-", "−")


def between(text: str, begin: str, inside: str, end: str = END) -> str:
    """The text with what stands between two marks replaced."""
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{inside}\n\n{end}{rest.partition(end)[2]}"


def pairs(folder: Path, columns: Sequence[str], ours: str, rivals: Rows, score: str = "nll") -> str:
    """Ours minus theirs with its 95 % interval, for columns of three seeds or more."""
    body = []
    for column in columns:
        seeds = [s for s in trials(folder, column) if ours in s]
        if len(seeds) < 3:
            continue
        differences = [
            difference([s[ours]["nll"] for s in seeds], [s[r][score] for s in seeds], overlap(column))
            for r in rivals.values()
        ]
        body.append([f"{column} ({len(seeds)})", *(interval(d) for d in differences)])
    return lines(["data/split/sites (seeds)", *rivals], body, "---")


def page(folder: Path) -> str:
    fair = OURS | RIVALS | {"pooled data": "Centralised"}
    return f"""**As they come** (β alone uses the server's 30 labels; one-shot FL, FedKT and 'distilled' use unlabelled
rows there).

{means(folder, MAIN, OURS | RIVALS | BOUNDS)}

**Each with a temperature fitted on the server's 30 labelled rows.**

{means(folder, MAIN, fair, "nll_tempered")}

**Accuracy.**

{means(folder, MAIN, OURS | RIVALS | BOUNDS, "accuracy", ".1%")}

**Differences, paired over seeds, with 95 % intervals** (negative: evidence pooling is better). Digits is split
anew by every seed, and its intervals are Nadeau and Bengio's (2003), s²(1/seeds + test rows/training rows); the other
sets come with test rows of their own. As it comes, against rivals as they come:

{pairs(folder, MAIN, "Evidence, as it comes", CLOSEST)}

As it comes, which sees no label at the server, against rivals tempered on 30:

{pairs(folder, MAIN, "Evidence, as it comes", CLOSEST, "nll_tempered")}

λ = 1, α = ½ and six samples, fixed before anything was run, against rivals as they come:

{pairs(folder, MAIN, "Evidence", CLOSEST)}

Tuned by the sites, which sees no label at the server either, against rivals tempered on 30:

{pairs(folder, MAIN, "Evidence, from sites", CLOSEST, "nll_tempered")}

**Where the assumption breaks**: features shifted from site to site.

{means(folder, SHIFTED, OURS | RIVALS | BOUNDS)}

As it comes, minus rivals as they come:

{pairs(folder, SHIFTED, "Evidence, as it comes", CLOSEST)}

**More and fewer labels at the server**, each row tempered on that many:

{means(folder, LABELLED, fair, "nll_tempered")}

**Ablations**, as they come:

{means(folder, MAIN, ABLATED)}"""


if __name__ == "__main__":
    PAGE.write_text(between(PAGE.read_text(), BEGIN, page(Path(sys.argv[1]))))
