"""Feature maps of tables beside boosted trees: python experiments/tables/table.py [--seeds 0-9] [--only bike,wine]

Sums of all rows, as `exact` pools them in one round, on the features that a row names; test rows never choose anything.
The map and its width were chosen on validation rows of seeds 100–102 (`--validate`), cut from the training rows.

    columns                 the columns alone
    waves                   columns and 300 random Fourier features: the default before
    waves, as many          the same with as many features as the next row
    hats                    columns, hats at quantiles, 300 waves: the default
    hats, normal waves      the same, its waves over columns made normal by their quantiles
    hats, 1000              1 000 features
    boosted trees           scikit-learn's histogram boosting with its own settings, on all rows in one place; the noise
                            of numbers is the mean squared error of five-fold cross-validation
    hats and pairs          Beijing alone: columns, hats, and products of three hats of every two columns

Beijing's test rows are its last year, for every seed; those of `beijing_air mixed` are drawn from all four years.
Seeds draw the other tables' test rows and the waves. Intervals of differences are those of Nadeau and Bengio, as seeds
split one table again and again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict
from torch import Tensor

import consilience as co
from consilience import tree
from consilience.data import Data, datasets
from consilience.data.quantiles import find_quantiles
from consilience.data.splits.text import parse
from consilience.distributions.predictive import Categorical, Distribution, Normal, log_prob
from consilience.glm.fitting import fit
from consilience.glm.heads import OneHot, Ridge
from consilience.glm.sums import summarise
from consilience.metrics.paired import difference
from consilience.models.hats import LEVELS, Hats
from consilience.models.maps import features, usual_features, width_of

HERE = Path(__file__).parent
TABLES = ("air_quality", "bike", "real_estate", "wine", "forest_fire", "heart_disease", "beijing_air")
BEFORE, NOW, TREES = "waves", "hats", "boosted trees"
BESIDE = (BEFORE, "waves, as many", TREES)  # what hats are held against
BEGIN, END = "<!-- written by table.py -->", "<!-- end -->"
MIXED = " mixed"  # behind the name of a table whose own test rows are mixed with the others
SHARE = 0.2  # of a table's rows, to test on

Map = Callable[[Tensor], Tensor]


def maps(sites: co.Sites, seed: int, pairs: bool) -> Iterator[tuple[str, Map]]:
    """Every row's map."""
    shape = sites.features
    assert isinstance(shape, int)
    knots = find_quantiles(sites, LEVELS)
    usual = usual_features(shape)
    hats = features(f"{usual}:{seed}", shape, knots)
    yield "columns", torch.nn.Identity()
    yield BEFORE, features(f"fourier:{300 + shape}:{seed}", shape)
    yield "waves, as many", features(f"fourier:{width_of(hats, shape)}:{seed}", shape)
    yield NOW, hats
    yield "hats, normal waves", lambda x: torch.cat([hats(x)[:, : -len(hats.bias)], _waves(hats, _normal(x, knots))], 1)
    yield "hats, 1000", features(f"hats:1000:{seed}", shape, knots)
    if pairs:
        yield "hats and pairs", lambda x: _pairs(x, knots)


def _waves(hats: torch.nn.Module, z: Tensor) -> Tensor:
    waves: Tensor = hats(z)[:, -len(hats.bias) :]
    return waves


def _normal(x: Tensor, knots: tuple[tuple[float, ...], ...]) -> Tensor:
    """Numbers by their quantiles as a normal column's, straight between them and beyond, at most 3 from the middle."""
    columns = []
    for values, own in zip(x.T.contiguous(), knots, strict=True):
        places = sorted(set(own))
        if len(places) < 3:
            columns.append(values)
            continue
        levels = [statistics.mean(a for a, b in zip(LEVELS, own, strict=True) if b == place) for place in places]
        at, to = torch.tensor(places).to(x), torch.tensor([NormalDist().inv_cdf(level) for level in levels]).to(x)
        left = torch.searchsorted(at, values).clamp(1, len(places) - 1) - 1
        slope = (to[left + 1] - to[left]) / (at[left + 1] - at[left])
        columns.append((to[left] + slope * (values - at[left])).clamp(-3, 3))
    return torch.stack(columns, 1)


def _pairs(x: Tensor, knots: tuple[tuple[float, ...], ...]) -> Tensor:
    single = Hats(x.shape[1], 12 * x.shape[1], knots)
    alone = []
    for j, own in enumerate(knots):
        each = Hats(1, 9, (own,))  # x itself, and three hats at most
        few = 1 + each.own.numel()
        alone.append(each(x[:, j : j + 1])[:, few > 1 : few])
    products = [(alone[i].unsqueeze(2) * alone[j].unsqueeze(1)).flatten(1) for i in range(len(alone)) for j in range(i)]
    return torch.cat([single(x)[:, : x.shape[1] + single.own.numel()], *products], 1)


def score(p: Distribution, y: Tensor) -> float:
    return float(-log_prob(p, y).double().mean())


def pooled(map_: Map, train: Data, test: Data, classes: int | None) -> float:
    """One round of exact pooling on these features."""
    head = OneHot() if classes else Ridge()
    with torch.no_grad():
        fitted = fit(head, summarise(map_, train, classes))
        p = tree.concatenate(head.predict(fitted, map_(part)) for part in test.x.split(1000))
    return score(p, test.y)


def boosted(train: Data, test: Data, classes: int | None) -> float:
    x, y = train.x.numpy(), train.y.numpy()
    if classes:
        probs = HistGradientBoostingClassifier(random_state=0).fit(x, y).predict_proba(test.x.numpy())
        return score(Categorical(torch.from_numpy(probs).clamp(min=1e-12).log()), test.y)
    model = HistGradientBoostingRegressor(random_state=0)
    noise = float(((y - cross_val_predict(model, x, y, cv=5)) ** 2).mean())
    mean = torch.from_numpy(model.fit(x, y).predict(test.x.numpy())).double()
    return score(Normal(mean, torch.zeros_like(mean), torch.full_like(mean, noise)), test.y.double())


def trial(name: str, seed: int, validate: bool) -> dict[str, float]:
    rows = datasets.load(name.removesuffix(MIXED))
    if name.endswith(MIXED) and rows.x_test is not None and rows.y_test is not None:
        both = {"x": torch.cat([rows.x, rows.x_test]), "y": torch.cat([rows.y, rows.y_test])}
        rows = replace(rows, **both, site=None, x_test=None, y_test=None, site_test=None)
    natural = rows.site is not None
    split, count = ("natural", len(rows.site_names or ())) if natural else ("iid", 10)
    sites = rows.split(parse(split), count, calibration=0, seed=seed, validation=SHARE * validate)
    whole = sites.pooled()
    test = whole.validation[0] if validate and whole.validation else whole.all_test
    values = {
        row: pooled(map_, whole.train[0], test, sites.classes)
        for row, map_ in maps(sites, seed, name.startswith("beijing_air"))
    }
    return values | {TREES: boosted(whole.train[0], test, sites.classes)}


def summary(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """A line a table: NLL of every row, and the differences of hats from others with their intervals."""
    names = list(dict.fromkeys(row for seeds in results.values() for values in seeds.values() for row in values))
    lines = ["| " + " | ".join(["table", "seeds", *names, *(f"{NOW} less {row}" for row in BESIDE)]) + " |"]
    lines.append("| --- |" + " ---: |" * (len(names) + 1 + len(BESIDE)))
    for name, seeds in results.items():
        means = [[values[row] for values in seeds.values() if row in values] for row in names]
        cells = [f"{statistics.mean(own):.3f}" if own else "–" for own in means]
        for row in BESIDE:
            own = difference(*([values[each] for values in seeds.values()] for each in (NOW, row)), SHARE / (1 - SHARE))
            cells.append(f"{own.mean:.3f} [{own.low:.3f}, {own.high:.3f}]" if len(seeds) > 1 else f"{own.mean:.3f}")
        lines.append(f"| {name} | {len(seeds)} | " + " | ".join(cells).replace("-", "−") + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--validate", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, asked.seeds.split("-"))
    path = HERE / "results" / ("validation.json" if asked.validate else "table.json")
    results = json.loads(path.read_text()) if path.exists() else {}
    for seed in range(first, last + 1):
        for name in asked.only.split(","):
            if str(seed) not in results.setdefault(name, {}):
                results[name][str(seed)] = {k: float(f"{v:.6g}") for k, v in trial(name, seed, asked.validate).items()}
                path.write_text(json.dumps(results, indent=1) + "\n")
                print(name, seed, results[name][str(seed)], flush=True)
    shown = summary(results)
    print(shown)
    if not asked.validate:
        page = HERE / "README.md"
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{shown}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
