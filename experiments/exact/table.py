"""Exact pooling under our protocol: every head, the same features for FedAvg and evidence pooling, and a CNN.

A column is data/model/what, where the model is a feature map ('conv:512') or 'cnn', and 'what' is one of

    exact           heads on sums, which no split changes: once for all splits; 'exact/300' of 300 natural sites,
                    'exact/tuned' the tuned heads alone, 'exact/dirichlet' the tuned Dirichlet head alone,
                    'exact/onehot' the usual head for classes alone, in one round
    SPLIT/SITES     rows that a split changes; '+rotate:30' turns each site's images by an angle of its own
    pooled          the CNN on all rows in one place
    bytes           heads on fewer features and in lower precision
    check           how far the exact heads of several splits, and of a map inside the network, lie apart
    rates           validation rows: which scale of the features, and which rate of the CNN, FedAvg should have

Seeds draw the filters, the split, the start and, where there is no official test part, the test rows. No server rows:
every row of the table sees all training rows. Settings are the package's defaults; what FedAvg needs beside them was
chosen in the 'rates' columns, on training rows of Fashion-MNIST. Nothing is chosen on test rows.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import consilience as co
from consilience import tree
from consilience.benchmark.reproduce import Experiment, Values, run_plan
from consilience.data import Data, Dataset, datasets
from consilience.data.splits.text import parse
from consilience.distributions.payload import nbytes
from consilience.distributions.predictive import Categorical, Distribution, Normal, log_prob
from consilience.glm.fitting import Head, fit
from consilience.glm.heads import Dirichlet, Discriminant, OneHot, Ridge
from consilience.glm.sums import Sums, add, compress, summarise, whole_gram
from consilience.key import Key
from consilience.messages import Client, Received, Server
from consilience.methods.exact import WIRES, ExactPooling, ExactState, least_share
from consilience.methods.exact_tuned import ExactTuned
from consilience.metrics.scores import scores
from consilience.models import cnn, mlp, model
from consilience.models.maps import features, on_features
from consilience.runs.result import Result

SHOWN = ("accuracy", "nll", "brier", "ece", "ece_debiased", "crps", "rmse", "coverage95")
ENGINE = co.Compute(threads=1)


class Size(NamedTuple):
    epochs: int  # of one round; ten rounds have a tenth each
    batch: int


SIZES = {"digits": Size(50, 50), "femnist": Size(40, 50), "heart_disease": Size(50, 20)}
USUAL = Size(10, 50)
SMOKE = Size(2, 50)
SCALE = 0.3  # of standardised features, for FedAvg and evidence pooling; see 'rates'
RATE = 0.03  # of the CNN's descent; see 'rates'
ROUNDS = (1, 3, 10)  # of the runs with a tenth of the passes each, as the model stands then
MORE = {"digits": 50, "mnist": 50, "fashion_mnist": 50}  # rounds of FedAvg with a CNN, beyond ten
MANY = 200_000  # rows × classes, beyond which the tuned Dirichlet head has a column of its own, 'exact/dirichlet'
WIDEST = 1024  # features of a head with a Gram matrix a class
HEADS: dict[str, Head] = {"OneHot": OneHot(), "Discriminant": Discriminant(), "Dirichlet": Dirichlet()}


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, kind, what, *rest = column.split("/")
    size = SMOKE if scale == "smoke" else SIZES.get(name, USUAL)
    if what == "exact":
        return score_exact(name, kind, rest, seed, data_dir)
    if what == "bytes":
        return score_bytes(name, kind, seed, data_dir)
    if what == "check":
        return score_check(name, kind, seed, data_dir)
    if what == "rates":
        return score_rates(name, kind, seed, data_dir, size)
    if kind in ("cnn", "mlp"):
        more = MORE.get(name, 0) if scale == "full" and "more" in rest else 0
        return score_network(name, kind, what, rest, seed, data_dir, size, more)
    sites = split_features(name, kind, what, int(rest[0]), seed, data_dir)
    values = score_linear(sites, size, seed)
    if "+" in what:  # sites that see the world differently: here the exact heads depend on the split too
        values |= score_heads(sites)
    return values


# Rows and their features


@lru_cache(maxsize=1)
def map_images(name: str, map_name: str, seed: int, data_dir: str | None) -> Dataset:
    """Images as their features, so that no row of the table computes them twice."""
    rows = load_rows(name, data_dir)
    network = features(f"{map_name}:{seed}", rows.features)
    with torch.no_grad():
        x = network(rows.x)
        x_test = None if rows.x_test is None else network(rows.x_test)
    return dataclasses.replace(rows, x=x, x_test=x_test, feature_names=None)


def load_rows(name: str, data_dir: str | None) -> Dataset:
    rows = datasets.load(name, data_dir)
    if name != "femnist":
        return rows
    assert rows.x_test is not None
    return dataclasses.replace(rows, x=1 - rows.x, x_test=1 - rows.x_test)  # ink on paper → light on dark


def split_rows(rows: Dataset, split: str, count: int | None, seed: int, validation: float = 0.0) -> co.Sites:
    """Sites without server rows; the natural ones where the rows have them, however the column's rows are split."""
    if split == "iid" and rows.site is not None:
        split, count = "natural", count or NATURAL.get(rows.name)
    return rows.split(parse(split), count or 10, calibration=0, validation=validation, seed=seed)


NATURAL = {"femnist": 50, "heart_disease": 4, "beijing_air": 12}


def split_features(
    name: str, map_name: str, split: str, count: int | None, seed: int, data_dir: str | None, validation: float = 0.0
) -> co.Sites:
    """Sites whose rows are features: mapped before the split where they can be, and after it where sites change x."""
    if map_name.startswith("conv") and "+" not in split and name != "femnist":  # of which few writers take part
        return split_rows(map_images(name, map_name, seed, data_dir), split, count, seed, validation)
    sites = split_rows(load_rows(name, data_dir), split, count, seed, validation)
    network = features(map_name, sites.features)
    if not map_name.startswith("identity"):
        network = features(f"{map_name}:{seed}", sites.features)
    with torch.no_grad():
        sites = sites.map_x(network)
    return dataclasses.replace(sites, features=int(sites.train[0].x.shape[1]), feature_names=None)


# Scores


def measure(p: Distribution, y: Tensor) -> dict[str, float | None]:
    """Scores, and the standard errors over test rows of two of them."""
    known = scores(p, y)
    losses = -log_prob(p, y).double()
    values: dict[str, float | None] = {name: known[name] for name in SHOWN if name in known}
    values["nll_error"] = float(losses.std() / math.sqrt(len(losses)))
    if isinstance(p, Categorical):
        truth = nn.functional.one_hot(y.long(), p.log_probs.shape[1])
        values["brier_error"] = float(((p.log_probs.exp() - truth) ** 2).sum(1).std() / math.sqrt(len(y)))
    return values


def score_result(result: Result, task: co.Task, sites: co.Sites) -> dict[str, float | None]:
    """Scores of a run, and the bytes that a site sent."""
    values = measure(result.method.predictive(task, result.state)(sites.all_test.x), sites.all_test.y)
    return values | {"up_bytes": result.report["ledger"]["up_bytes"] / len(sites)}


def linear_task(sites: co.Sites) -> co.Task:
    network = mlp(sites.features, sites.classes, hidden=())
    if sites.classes is None:
        return co.regression(network)
    return co.classification(network)


def base_rate(sites: co.Sites) -> Distribution:
    """The training rows' class frequencies, or their mean and variance, for every test row."""
    y = sites.pooled().train[0].y
    n = len(sites.all_test.y)
    if sites.classes is None:
        mean = y.double().mean().expand(n)
        return Normal(mean, torch.zeros(n, dtype=torch.float64), y.double().var().expand(n))
    counts = torch.bincount(y, minlength=sites.classes).double() + 0.5
    return Categorical((counts / counts.sum()).log().expand(n, -1))


# Rows of the table


def score_exact(name: str, map_name: str, words: list[str], seed: int, data_dir: str | None) -> Values:
    """Heads on sums: all of them, or those that the column's last words name."""
    count = next((int(word) for word in words if word.isdecimal()), None)
    sites = split_features(name, map_name, "iid", count, seed, data_dir)
    if "onehot" in words:
        totals = summarise(_itself, sites.pooled().train[0], sites.classes, False)
        return {"OneHot, 1 round": score_head(OneHot(), totals, sites.all_test)}
    if "tuned" in words:
        rows = len(sites.pooled().train[0].y) * (sites.classes or 1)
        return score_heads(sites, by_class=rows <= MANY, one_round=False)
    return score_heads(sites, only="dirichlet" in words)


def score_heads(sites: co.Sites, by_class: bool = True, only: bool = False, one_round: bool = True) -> Values:
    """Every head on the sums of all rows, in one round, unless that is left out, and tuned by rows left out.

    The Dirichlet head is left out above `WIDEST` features; with many rows it is tuned if it is asked for, alone.
    """
    by_class = by_class and sites.classes is not None and int(sites.train[0].x.shape[1]) <= WIDEST
    task, pooled = linear_task(sites), sites.pooled()
    train, test = pooled.train[0], pooled.all_test
    heads: dict[str, Head] = {"Ridge": Ridge()}
    if sites.classes:
        heads = {name: head for name, head in HEADS.items() if by_class or not head.by_class}
    totals = summarise(_itself, train, sites.classes, by_class)
    whole = totals._replace(gram=whole_gram(totals))
    values: Values = {"Base rate": measure(base_rate(sites), test.y)}
    methods = {"Tuned": (ExactTuned(), whole)}
    if by_class and (only or len(train.y) * (sites.classes or 1) <= MANY):
        methods["Tuned, Dirichlet"] = (ExactTuned((Dirichlet(),)), totals)
    if only:
        del methods["Tuned"]
    if only or not one_round:
        heads = {}
    for name, head in heads.items():
        sums = totals if head.by_class else whole
        values[f"{name}, 1 round"] = score_head(head, sums, test)
    for name, (method, sums) in methods.items():
        state = tune(method, task, sums, train)
        p = predict_in_parts(method.predictive(task, state), test.x)
        index, share, temperature = torch.as_tensor(state.chosen).tolist()
        chosen = {"up_bytes": nbytes(sums), "head": index, "share": share, "temperature": temperature}
        values[name] = measure(p, test.y) | chosen
    return values


def score_head(head: Head, sums: Sums, test: Data) -> dict[str, float | None]:
    """A head in one round, λ by the marginal likelihood."""
    fitted = fit(head, sums)
    p = predict_in_parts(partial(head.predict, fitted), test.x)
    return measure(p, test.y) | {"up_bytes": nbytes(sums), "share": float(fitted.share)}


def _itself(x: Tensor) -> Tensor:
    return x


def predict_in_parts(model: Callable[[Tensor], Distribution], x: Tensor) -> Distribution:
    return tree.concatenate(model(part) for part in x.split(1000))


def tune(method: ExactTuned, task: co.Task, totals: Sums, train: Data) -> ExactState:
    """The second round of `exact_tuned`, from totals: rows left out do not mind which site they are at."""
    state = ExactState(task.init(Key(0)), (), totals)
    reply = method.local(task, totals, Client(train, (), Key(0)))
    received = Received(0, reply.size, reply.send)
    return method.aggregate(task, state, [received], Server(None, None, Key(0), 1))


def score_linear(sites: co.Sites, size: Size, seed: int, scale: float = SCALE) -> Values:
    """FedAvg and evidence pooling of a linear head on the same features, in units of their deviation."""
    sites = sites.standardised().map_x(lambda x: scale * x)
    task = linear_task(sites)
    values = score_rounds(task, sites, size, seed, "FedAvg, head", 0.05)
    if sites.classes:
        inference = co.SGD(epochs=size.epochs, batch=size.batch)
        result = co.run(co.methods.EvidencePooling(inference), task, sites, seed=seed, scored=False, engine=ENGINE)
        values["Evidence, head"] = score_result(result, task, sites)
    return values


def score_rounds(task: co.Task, sites: co.Sites, size: Size, seed: int, label: str, rate: float) -> Values:
    """FedAvg: one round with all passes, and ten with a tenth of them each."""
    values = Values()
    for result, rounds in run_rounds(task, sites, size, seed, rate, 0):
        values[f"{label}, {rounds}"] = score_result(result, task, sites)
    whole = co.methods.FedAvg(co.SGD(rate, epochs=size.epochs, batch=size.batch))
    result = co.run(whole, task, sites, rounds=1, seed=seed, scored=False, engine=ENGINE)
    values[f"{label}, 1 round"] = score_result(result, task, sites)
    return values


def run_rounds(
    task: co.Task, sites: co.Sites, size: Size, seed: int, rate: float, more: int
) -> Iterator[tuple[Result, str]]:
    """FedAvg with short rounds, as it stands after some of them."""
    method = co.methods.FedAvg(co.SGD(rate, epochs=max(1, round(size.epochs / 10)), batch=size.batch))
    with tempfile.TemporaryDirectory() as folder:
        for rounds in (*ROUNDS, *[more] * bool(more)):
            again = rounds > ROUNDS[0]
            result = co.run(
                method, task, sites, rounds=rounds, seed=seed, scored=False, engine=ENGINE, out=folder, resume=again
            )
            yield result, f"{rounds} short round" + "s" * (rounds > 1)


def build_network(kind: str, sites: co.Sites) -> nn.Sequential:
    """NIID-Bench's five-layer CNN, as FedLPA has it; a small one for images it does not fit; or an MLP."""
    if kind == "mlp":
        network = mlp(sites.features, sites.classes)
    elif min(sites.features[1:]) >= 20:  # type: ignore[index]
        network = model("cnn_ozer", sites.features, sites.classes)
    else:
        layers = [nn.Conv2d(sites.features[0], 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]  # type: ignore[index]
        layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        network = cnn(sites.features, sites.classes, layers, hidden=(64,))
    assert isinstance(network, nn.Sequential)
    return network


def as_images(sites: co.Sites) -> co.Sites:
    """Images of mean 0 and deviation 1 over all training rows; digits come as 64 numbers, a CNN wants 1 × 8 × 8."""
    if isinstance(sites.features, int):
        side = math.isqrt(sites.features)
        sites = dataclasses.replace(sites.map_x(lambda x: x.reshape(-1, 1, side, side)), features=(1, side, side))
    return sites.standardised()


def score_network(
    name: str, kind: str, what: str, rest: list[str], seed: int, data_dir: str | None, size: Size, more: int
) -> Values:
    """A network trained by FedAvg, with an exact head on what it learned; or on all rows in one place."""
    split, count = ("iid", None) if what == "pooled" else (what, int(rest[0]))
    sites = split_rows(load_rows(name, data_dir), split, count, seed)
    if kind == "cnn":
        sites = as_images(sites)
    network = build_network(kind, sites)
    task = co.classification(network) if sites.classes else co.regression(network)
    label = kind.upper()
    whole = co.SGD(RATE, epochs=size.epochs, batch=size.batch)
    if what == "pooled":
        result = co.run(co.methods.Centralised(whole), task, sites, seed=seed, scored=False, engine=ENGINE)
        return {f"Pooled {label}": score_result(result, task, sites)}
    if "once" in rest:
        result = co.run(co.methods.FedAvg(whole), task, sites, rounds=1, seed=seed, scored=False, engine=ENGINE)
        return {f"FedAvg, {label}, 1 round": score_result(result, task, sites)}
    values = Values()
    for result, rounds in run_rounds(task, sites, size, seed, RATE, more):
        values[f"FedAvg, {label}, {rounds}"] = score_result(result, task, sites)
        if sites.classes and rounds.startswith(("3 ", "10 ")):
            learned = score_heads(body_features(network, result, sites), by_class=False)
            values |= {f"{label} of {rounds}, then {row}": learned[row] for row in ("OneHot, 1 round", "Tuned")}
    return values


def body_features(network: nn.Sequential, result: Result, sites: co.Sites) -> co.Sites:
    """The sites' rows as the network without its last layer sees them."""
    network.load_state_dict(result.state.posterior.params)
    *convolutions, dense = network
    body = nn.Sequential(*convolutions, *dense[:-1])  # type: ignore[index]
    with torch.no_grad():
        seen = sites.map_x(lambda x: torch.cat([body(part) for part in x.split(1000)]))
    return dataclasses.replace(seen, features=int(seen.train[0].x.shape[1]))


# Bytes, checks and settings


def score_bytes(name: str, map_name: str, seed: int, data_dir: str | None) -> Values:
    """Heads in one round, their sums sent in three precisions by ten sites."""
    sites = split_features(name, map_name, "dirichlet:0.1", 10, seed, data_dir)
    test = sites.all_test
    narrow = int(sites.train[0].x.shape[1]) <= WIDEST
    by_class = [summarise(_itself, part, sites.classes, narrow) for part in sites.train]
    together = [part._replace(gram=whole_gram(part)) for part in by_class]
    values = Values()
    for label, head in HEADS.items():
        if head.by_class and not narrow:
            continue
        parts = by_class if head.by_class else together
        for wire, dtype in WIRES.items():
            sent = [compress(part, dtype) for part in parts]
            totals = add(sent)
            fitted = fit(head, totals, None, least_share(wire, totals))
            p = predict_in_parts(partial(head.predict, fitted), test.x)
            values[f"{label}, {wire}"] = measure(p, test.y) | {"up_bytes": nbytes(sent[0])}
    return values


def score_check(name: str, map_name: str, seed: int, data_dir: str | None) -> Values:
    """Whole runs: two splits of the features, and the map inside the network instead of before it."""
    values = Values()
    for label, head in HEADS.items():
        for split in ("iid", "dirichlet:0.05"):
            sites = split_features(name, map_name, split, 5, seed, data_dir)
            values[f"{label}, {split}"] = run_exact(ExactPooling(head), linear_task(sites), sites, seed)
    sites = split_rows(load_rows(name, data_dir), "dirichlet:0.1", 5, seed)
    inner = on_features(features(f"{map_name}:{seed}", sites.features), mlp(_width(map_name), sites.classes, hidden=()))
    values["OneHot, map inside"] = run_exact(ExactPooling(OneHot()), co.classification(inner), sites, seed)
    sites = split_features(name, map_name, "dirichlet:0.1", 5, seed, data_dir)
    values["Tuned, two rounds"] = run_exact(ExactTuned(), linear_task(sites), sites, seed)
    values |= {row: cells for row, cells in score_heads(sites).items() if row in ("OneHot, 1 round", "Tuned")}
    return values


def _width(map_name: str) -> int:
    return int(map_name.split(":")[1])


def run_exact(method: co.Method, task: co.Task, sites: co.Sites, seed: int) -> dict[str, float | None]:
    return score_result(co.run(method, task, sites, seed=seed, scored=False, engine=ENGINE), task, sites)


PART = (10, 4)  # of the training rows, one in so many: for the features' scale, for the CNN's rate


def score_rates(name: str, kind: str, seed: int, data_dir: str | None, size: Size) -> Values:
    """Validation rows cut from a part of the training rows; test rows are not looked at. Seeds start at 100."""
    values, seed = Values(), 100 + seed
    rows = load_rows(name, data_dir)
    some = Key(seed).permutation(len(rows.x))[: max(200, len(rows.x) // PART[kind == "cnn"])]
    rows = dataclasses.replace(rows, x=rows.x[some], y=rows.y[some], x_test=None, y_test=None)
    if kind == "cnn":
        sites = as_images(split_rows(rows, "dirichlet:0.1", 10, seed))
        task = co.classification(build_network(kind, sites))
        for rate in (0.01, 0.03, 0.1):
            for result, rounds in run_rounds(task, sites, size, seed, rate, 0):
                values[f"rate {rate}, {rounds}"] = score_result(result, task, sites)
        return values
    with torch.no_grad():
        x = features(f"{kind}:{seed}", rows.features)(rows.x)
    sites = split_rows(dataclasses.replace(rows, x=x), "dirichlet:0.1", 10, seed)
    for scale in (0.03, 0.1, 0.3, 1.0):
        runs = score_linear(sites, size, seed, scale)
        values |= {f"scale {scale}, {row}": cells for row, cells in runs.items()}
    return values


DIGITS = tuple(f"digits/conv:512/{s}" for s in ("dirichlet:0.05/5", "dirichlet:0.1/5", "dirichlet:0.3/5", "iid/5"))
SHIFTED = tuple(f"digits/{m}/dirichlet:0.3+{s}/5" for m in ("conv:512", "cnn") for s in ("rotate:30", "rotate:60"))
LARGE = ("mnist", "fashion_mnist", "cifar10")
SPLITS = ("dirichlet:0.1/10", "dirichlet:0.05/10", "dirichlet:0.3/10")  # FedLPA's
TABLES = ("beijing_air", "air_quality", "bike", "wine", "real_estate", "forest_fire")
WIDTHS = (64, 128, 256, 512, 1024, 2048)
ONE, THREE, FIVE, TEN = range(1), range(3), range(5), range(10)


PLAN: tuple[tuple[str, range], ...] = (  # columns and their seeds, what decides most first
    ("fashion_mnist/conv:1024/rates", ONE),
    ("fashion_mnist/cnn/rates", ONE),
    ("digits/conv:512/check", ONE),
    ("digits/conv:512/exact", TEN),
    ("digits/conv:512/dirichlet:0.1/5", TEN),
    ("fashion_mnist/conv:1024/exact", FIVE),
    ("fashion_mnist/conv:1024/dirichlet:0.1/10", FIVE),
    *(
        (column, TEN)
        for kind in ("identity", "fourier:329")
        for column in (f"heart_disease/{kind}/exact", f"heart_disease/{kind}/natural/4")
    ),
    ("digits/cnn/dirichlet:0.1/5/more", THREE),
    ("digits/cnn/dirichlet:0.1/5/once", THREE),
    ("digits/cnn/pooled", THREE),
    ("mnist/conv:1024/exact", FIVE),
    ("mnist/conv:1024/dirichlet:0.1/10", FIVE),
    ("cifar10/conv:1024/exact", FIVE),
    ("digits/conv:512/dirichlet:0.3+rotate:30/5", THREE),
    *((f"{name}/{kind}/exact", TEN) for kind in ("identity", "fourier:315") for name in TABLES),
    ("fashion_mnist/cnn/dirichlet:0.1/10", ONE),
    ("femnist/conv:1024/exact", FIVE),
    ("femnist/conv:1024/natural/50", FIVE),
    ("digits/cnn/dirichlet:0.3+rotate:30/5", THREE),
    *((f"fashion_mnist/conv:{width}/bytes", ONE) for width in WIDTHS[:-2]),
    ("cifar10/conv:1024/dirichlet:0.1/10", FIVE),
    ("cifar10/conv:2048/exact", ONE),
    *((f"{name}/conv:1024/exact", TEN) for name in (*LARGE, "femnist")),
    *((f"{name}/conv:1024/dirichlet:0.1/10", TEN) for name in LARGE),
    ("femnist/conv:1024/natural/50", TEN),
    *((f"{name}/conv:1024/{split}", ONE) for name in LARGE for split in SPLITS[1:]),
    ("mnist/cnn/dirichlet:0.1/10", ONE),
    ("digits/conv:512/dirichlet:0.3+rotate:30/5", TEN),
    ("femnist/conv:1024/exact/300", ONE),
    ("femnist/conv:1024/natural/300", ONE),
    ("cifar10/cnn/dirichlet:0.1/10", ONE),
    *((f"{name}/cnn/pooled", ONE) for name in ("fashion_mnist", "mnist", "cifar10")),
    ("heart_disease/mlp/natural/4", TEN),
    ("heart_disease/mlp/pooled", TEN),
    *((f"beijing_air/{kind}/natural/12", THREE) for kind in ("identity", "fourier:315")),
    ("beijing_air/mlp/natural/12", THREE),
    ("beijing_air/mlp/pooled", THREE),
    ("fashion_mnist/cnn/dirichlet:0.1/10/once", ONE),
    ("mnist/conv:1024/exact/dirichlet", ONE),
    ("fashion_mnist/conv:1024/bytes", ONE),
    *((f"{name}/cnn/dirichlet:0.1/10/more", ONE) for name in ("fashion_mnist", "mnist")),
    ("fashion_mnist/conv:2048/bytes", ONE),
    *((f"{name}/cnn/dirichlet:0.1/10/once", ONE) for name in ("cifar10", "mnist")),
    ("femnist/cnn/natural/50", ONE),
    ("femnist/cnn/pooled", ONE),
    *((column, THREE) for column in (*DIGITS, *SHIFTED)),
    ("fashion_mnist/conv:1024/exact/dirichlet", ONE),
    ("mnist/conv:1024/check", ONE),
)

EXPERIMENT = Experiment(
    title="Exact pooling: NLL per point",
    columns=tuple(sorted({column for column, _ in PLAN})),
    trial=trial,
    score="nll",
    digits=3,
    scales=("full", "smoke"),
)


if __name__ == "__main__":
    stored = json.loads((Path(__file__).parent / "results" / "table.json").read_text())
    run_plan(EXPERIMENT, PLAN, Path(sys.argv[1]), sys.argv[2], stored)
