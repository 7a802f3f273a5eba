"""A mixed model of heads: does partial pooling repair rotated digits, and does it help FEMNIST's writers?

python experiments/exact/partial.py --seeds 3     (goes on where it stopped; prints its table)

Heads are regressions on ones and zeros that mark the classes (`OneHot`), on random convolutions; scores are over each
site's own test rows. Three rows from the same sums: all sites' head (`exact`), each site's own head (its λ by its own
marginal likelihood), and heads θₖ ~ N(μ, T) with one variance of intercepts and one of slopes. λ and the noise of the
mixed model are those of `exact`; the prior of the slopes' τ is half-normal with the scale of the slopes themselves.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch
from table import split_features
from torch import Tensor

from consilience.distributions.posterior import Natural
from consilience.distributions.predictive import Categorical, Distribution
from consilience.glm.fitting import fit
from consilience.glm.heads import PROBIT, OneHot
from consilience.glm.hierarchy import deviations, newcomer, pool, site_posterior
from consilience.glm.sums import Sums, add, moments, square_matrix, summarise
from consilience.metrics.paired import difference
from consilience.metrics.scores import scores

COLUMNS = (  # data, feature map, split, sites
    ("digits", "conv:256", "iid", 5),
    ("digits", "conv:256", "iid+rotate:30", 5),
    ("digits", "conv:256", "dirichlet:0.3+rotate:30", 5),
    ("femnist", "conv:128", "natural", 30),
)
HERE = Path(__file__).parent
NODES = 5  # of the grid of T: a node costs as many inverses as there are sites


def standardised(sums: Sums, about: Sums) -> tuple[Tensor, Tensor]:
    """Σ zzᵀ and Σ zyᵀ of one site, z = (1, φ in units of all sites' deviations)."""
    total = moments(about)
    shift = torch.eye(sums.features, dtype=torch.float64)
    shift[1:, 0] = -total.mean
    turn = shift / torch.cat([torch.ones(1, dtype=torch.float64), total.scale]).unsqueeze(1)
    return turn @ square_matrix(sums.gram, sums.features) @ turn.mT, turn @ sums.cross.mT


def classify(mean: Tensor, var: Tensor, z: Tensor, noise: Tensor) -> Categorical:
    """Probabilities of the outputs, as `OneHot` has them."""
    latent = ((z @ var) * z).sum(1, keepdim=True)
    shrink = (1 + PROBIT * latent / noise).sqrt()
    return Categorical(torch.log_softmax(z @ mean / noise.sqrt() / shrink, -1))


def trial(data: str, map_name: str, split: str, count: int, seed: int) -> dict[str, dict[str, float]]:
    """Scores of every row over the sites' own test rows."""
    sites = split_features(data, map_name, split, count, seed, None)
    classes = sites.classes
    assert classes is not None
    each = [summarise(lambda x: x, rows, classes) for rows in sites.train]
    totals = add(each)
    head = OneHot()
    shared = fit(head, totals)
    noise = shared.noise.mean()
    weight = shared.share * shared.size  # λ
    about = moments(totals)
    pairs = [standardised(sums, totals) for sums in each]
    factors = [Natural(cross / noise, gram / noise) for gram, cross in pairs]
    width = totals.features
    precision = torch.diag(torch.cat([torch.full((1,), 1e-6, dtype=torch.float64), (weight / noise).expand(width - 1)]))
    prior = Natural(torch.zeros(width, classes, dtype=torch.float64), precision)
    groups = torch.cat([torch.zeros(1), torch.ones(width - 1)]).long()
    scale = torch.stack([torch.tensor(0.5, dtype=torch.float64), (noise / weight).sqrt()])
    hierarchy = pool(factors, prior, groups, scale, NODES)
    unknown = newcomer(hierarchy)
    rows: dict[str, list[Distribution]] = {"exact": [], "alone": [], "partial": [], "newcomer": []}
    for sums, factor, test in zip(each, factors, sites.test, strict=True):
        z = torch.cat([torch.ones(len(test.x), 1, dtype=torch.float64), about.standardise(test.x)], 1)
        own = site_posterior(hierarchy, factor)
        rows["exact"].append(head.predict(shared, test.x))
        rows["alone"].append(head.predict(fit(head, sums), test.x))
        rows["partial"].append(classify(own.mean, own.var, z, noise))
        rows["newcomer"].append(classify(unknown.mean, unknown.var, z, noise))
    found = {}
    for row, parts in rows.items():
        p = Categorical(torch.cat([part[0].double() for part in parts]))
        known = scores(p, sites.all_test.y)
        found[row] = {name: known[name] for name in ("accuracy", "nll", "brier")}
    quantiles = deviations(hierarchy) / scale[groups]
    found["tau"] = {"intercepts": float(0.5 * quantiles[1, 0]), "slopes, of their own scale": float(quantiles[1, 1])}
    return found


def table(folder: Path) -> str:
    """Means over seeds, and partial pooling less the others over seeds, corrected (Nadeau and Bengio)."""
    lines = ["| | seeds | row | accuracy | NLL | Brier | NLL of partial less this |", "|" + " --- |" * 7]
    for data, map_name, split, count in COLUMNS:
        files = sorted(folder.glob(f"partial-{data}-{split.replace(':', '')}-{count}-*.json"))
        trials = [json.loads(path.read_text()) for path in files]
        if not trials:
            continue
        spread = {name: fmean(t["tau"][name] for t in trials) for name in trials[0]["tau"]}
        title = f"{data}, {map_name}, {split}, {count} sites; τ " + ", ".join(f"{k} {v:.2g}" for k, v in spread.items())
        for row in ("exact", "alone", "partial", "newcomer"):
            means = [f"{fmean(t[row][s] for t in trials):.3f}" for s in ("accuracy", "nll", "brier")]
            gap = ""
            if row != "partial" and len(trials) > 1:
                overlap = 0.25 if data == "digits" else 0.0
                d = difference([t["partial"]["nll"] for t in trials], [t[row]["nll"] for t in trials], overlap)
                gap = f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})"
            lines.append(f"| {title} | {len(trials)} | {row} | {' | '.join(means)} | {gap} |")
            title = ""
    return "\n".join(lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--out", type=Path, default=HERE / "trials")
    options = words.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        for data, map_name, split, count in COLUMNS:
            path = options.out / f"partial-{data}-{split.replace(':', '')}-{count}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(trial(data, map_name, split, count, seed)))
                print(path, flush=True)
    text = table(options.out)
    print(text)
    (HERE / "results" / "partial.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
