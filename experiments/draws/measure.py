"""Pooled draws of nine models beside NUTS on all rows.

python experiments/draws/measure.py fit FOLDER [MODEL …]      # draws of every site and of all rows, kept in FOLDER
python experiments/draws/measure.py pool FOLDER [MODEL …]     # adds to results/table.json, writes README's table
python experiments/draws/measure.py coverage MODEL [WORLDS]   # adds to results/coverage.json, writes README's table
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from models import CASES, SITES, mask, prior_of, world_of
from numpyro.infer.hmc import hmc
from numpyro.infer.hmc_util import consensus, parametric_draws
from numpyro.infer.util import initialize_model

from consilience.draws import RULES, Draws, Pooled, pool, read
from consilience.draws.convergence import effective, r_hat
from consilience.errors import InputError

HERE = Path(__file__).parent
TABLE, COVERAGE, PAGE = HERE / "results" / "table.json", HERE / "results" / "coverage.json", HERE / "README.md"
CHAINS, WARMUP, KEPT = 4, 400, int(os.environ.get("KEPT", "750"))
CLOSE, ALIKE = 0.1, 0.15  # of the issue: means in SDs, SDs relative
SEED = int(os.environ.get("SEED", "1"))


@cache
def compiled(name: str, size: str, kept: int) -> Any:
    """NUTS from a start to the last draw, of all chains of one site together; compiled once for rows of one shape."""
    rows = ROWS[size]
    found = initialize_model(jax.random.PRNGKey(0), CASES[name].model, model_args=(rows,), dynamic_args=True)
    first = found.param_info.z
    start, step = hmc(potential_fn_gen=found.potential_fn, algo="NUTS")

    def chain(key: Any, rows: Any) -> Any:
        keys = jax.random.split(key, 1 + len(first))
        z = {n: 0.5 * jax.random.normal(k, v.shape, v.dtype) for k, (n, v) in zip(keys[1:], first.items(), strict=True)}
        settings = {"target_accept_prob": 0.9, "model_args": (rows,), "model_kwargs": {}, "rng_key": keys[0]}
        state = start(z, WARMUP, **settings)

        def move(state: Any, _: None) -> Any:
            state = step(state, (rows,), {})
            return state, state.z

        return jax.lax.scan(move, state, None, WARMUP + kept)[1]

    def chains(key: Any, rows: Any) -> Any:
        drawn = jax.vmap(chain, (0, None))(jax.random.split(key, CHAINS), rows)
        kept_ones = {n: v[:, WARMUP:] for n, v in drawn.items()}
        return jax.vmap(jax.vmap(found.postprocess_fn(rows)))(kept_ones)

    return jax.jit(chains)


ROWS: dict[str, Any] = {}


def run(name: str, rows: dict[str, Any], seed: int, kept: int = KEPT) -> dict[str, np.ndarray]:
    rows = jax.tree.map(jax.numpy.asarray, rows)
    size = name + str(jax.tree.map(lambda x: (x.shape, x.dtype), rows))
    ROWS.setdefault(size, rows)
    drawn = compiled(name, size, kept)(jax.random.PRNGKey(seed), rows)
    return {key: np.asarray(value) for key, value in drawn.items() if key != "z"}


def fit(name: str, folder: Path) -> None:
    case = CASES[name]
    for split, counts in case.sizes.items():
        rows = case.make(np.random.default_rng(SEED), counts)
        for site in (None, *range(SITES)):
            path = folder / f"{name}-{split}-{'all' if site is None else site}.npz".replace(" ", "_")
            if path.exists():
                continue
            start = time.process_time()
            draws = run(name, mask(name, counts, site)(rows), 10 + (site or 0))
            np.savez(path, **draws)
            worst = max(float(r_hat(flat(v)).max()) for v in draws.values())
            least = min(float(effective(flat(v)).min()) for v in draws.values())
            took = time.process_time() - start
            print(f"{path.name}: R-hat {worst:.3f}, {least:.0f} effective, {took:.1f} s", flush=True)


def flat(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(x.copy()).double().reshape(*x.shape[:2], -1)


def load(name: str, split: str, folder: Path) -> tuple[dict[str, np.ndarray], list[Draws]]:
    found = []
    for site in ("all", *range(SITES)):
        with np.load(folder / f"{name}-{split}-{site}.npz".replace(" ", "_")) as file:
            found.append({key: file[key] for key in file})
    return found[0], [read(draws, f"site {k}") for k, draws in enumerate(found[1:])]


def compare(reference: dict[str, np.ndarray], posterior: Any) -> dict[str, float]:
    """The worst number: how far its mean is, in SDs, and its SD, relative."""
    gaps, ratios = [], []
    for key, kept in reference.items():
        x = kept.reshape(-1, *kept.shape[2:])
        y = np.asarray(posterior[key]).reshape(-1, *x.shape[1:])
        gaps.append(np.abs(y.mean(0) - x.mean(0)) / x.std(0))
        ratios.append(y.std(0) / x.std(0) - 1)
    every = np.concatenate([r.reshape(-1) for r in ratios])
    return {"mean": float(max(g.max() for g in gaps)), "sd": float(every[np.abs(every).argmax()])}


def by_numpyro(rule: str, sites: list[Draws]) -> dict[str, np.ndarray]:
    """NumPyro's own functions on the sites' draws as they are."""
    parts = [{str(k): v.values.reshape(-1, *v.shape[2:]) for k, v in s.posterior.items()} for s in sites]
    if rule == "consensus":
        made = consensus(parts, num_draws=4000, rng_key=jax.random.PRNGKey(0))
    else:
        made = parametric_draws(parts, 4000, rng_key=jax.random.PRNGKey(0))
    return {key: np.asarray(value) for key, value in made.items()}


def likelihoods(name: str, split: str) -> list[Any] | None:
    case = CASES[name]
    if case.likelihood is None:
        return None
    counts = case.sizes[split]
    rows = case.make(np.random.default_rng(SEED), counts)
    compiled = jax.jit(case.likelihood)
    parts = [jax.tree.map(jax.numpy.asarray, mask(name, counts, site)(rows)) for site in range(SITES)]
    return [lambda theta, part=part: compiled(theta, part) for part in parts]


def measure(name: str, split: str, folder: Path) -> dict[str, Any]:
    reference, sites = load(name, split, folder)
    transforms = dict(CASES[name].transforms)
    found: dict[str, Any] = {}

    def note(rule: str, made: Pooled) -> None:
        stops = [alarm.kind for alarm in made.alarms if alarm.stops]
        cautions = [alarm.kind for alarm in made.alarms if not alarm.stops]
        found[rule] = {
            **compare(reference, made.posterior), "used": made.rule, "stops": stops, "cautions": cautions, "k": made.k,
            "values": {alarm.kind: round(alarm.value, 3) for alarm in made.alarms},
        }  # fmt: skip

    for rule in ("auto", *RULES):
        if rule == found.get("auto", {}).get("used"):  # the same draws, by the same seed
            found[rule] = found["auto"]
            continue
        start = time.process_time()
        note(rule, pool(sites, prior_of(name), rule, transforms=transforms))
        found[rule]["seconds"] = round(time.process_time() - start, 2)
    functions = likelihoods(name, split)
    if functions is not None:
        note("corrected", pool(sites, prior_of(name), transforms=transforms, draws=2000, log_likelihoods=functions))
    for rule in ("consensus", "parametric"):
        found[f"numpyro {rule}"] = compare(reference, by_numpyro(rule, sites))
    return found


def good(cell: dict[str, Any]) -> bool:
    return bool(cell["mean"] <= CLOSE and abs(cell["sd"]) <= ALIKE)


def usable(cell: dict[str, Any]) -> bool:
    return not cell.get("stops")


def show_table(table: dict[str, Any]) -> None:
    """The tables of the page."""
    rules = ("auto", "corrected", *RULES, "numpyro parametric", "numpyro consensus")
    lines = []
    for name, case in CASES.items():
        for split in case.sizes:
            cells = table.get(name, {}).get(split)
            if cells is None:
                continue
            auto = cells["auto"]
            said = "used" if usable(auto) else "refused: " + ", ".join(dict.fromkeys(auto["stops"]))
            if usable(auto) and auto["cautions"]:
                said += ", caution: " + ", ".join(dict.fromkeys(auto["cautions"]))
            lines.append([case.title, split, f"{auto['mean']:.2f}", f"{auto['sd']:+.0%}", auto["used"], said])
    write_between("auto", ("model", "sites", "mean, SDs", "SD", "rule", "verdict"), lines)
    lines = []
    for rule in rules:
        line = [rule]
        for split in ("equal", "skewed", "few rows"):
            cells = [table[n][split][rule] for n in CASES if rule in table.get(n, {}).get(split, {})]
            close = sum(map(good, cells))
            middle = sorted(cell["mean"] for cell in cells)[len(cells) // 2] if cells else float("nan")
            wide = sorted(abs(cell["sd"]) for cell in cells)[len(cells) // 2] if cells else float("nan")
            line.append(f"{close} of {len(cells)}; {middle:.2f}, {wide:.0%}")
        lines.append(line)
    write_between("rules", ("rule", "equal", "skewed", "few rows"), lines)


def write_between(mark: str, heads: tuple[str, ...], lines: list[list[str]]) -> None:
    rows = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    rows += ["| " + " | ".join(line).replace("-", "−") + " |" for line in lines]
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {mark}: measure.py -->\n", f"<!-- end of {mark} -->"
    before, rest = page.split(begin)
    PAGE.write_text(before + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1], encoding="utf-8")


def coverage(name: str, worlds: int) -> None:
    """How often 90 % intervals of the pool hold the truth, in made worlds whose parameters are drawn from the prior."""
    found = json.loads(COVERAGE.read_text()) if COVERAGE.exists() else {}
    made = found.setdefault(name, [])
    for world in range(len(made), worlds):
        made.append(one_world(name, 1000 + world))
        write_json(COVERAGE, found)
    lines = []
    for key, cells in found.items():
        used = [cell for cell in cells if not cell["stops"]]
        row = [CASES[key].title, str(len(cells)), str(len(cells) - len(used))]
        for whose in ("pool", "all rows"):
            inside = [hit for cell in used for hit in cell[whose]]
            error = (np.var([np.mean(cell[whose]) for cell in used]) / len(used)) ** 0.5
            row.append(f"{np.mean(inside):.1%} ± {error:.1%}")
        lines.append(row)
    write_between("coverage", ("model", "worlds", "refused", "pool", "all rows"), lines)


def one_world(name: str, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    truth, rows, counts = world_of(name, rng)
    parts = [sampled(name, mask(name, counts, site)(rows), rng) for site in (None, *range(SITES))]
    pooled = pool([read(part, f"site {k}") for k, part in enumerate(parts[1:])], prior_of(name), draws=2000)

    def hits(draws: Any) -> list[bool]:
        found: list[bool] = []
        for key, value in truth.items():
            x = np.asarray(draws[key]).reshape(-1, *np.shape(value))
            low, high = np.quantile(x, (0.05, 0.95), axis=0)
            found += np.ravel((low <= value) & (value <= high)).tolist()
        return found

    stops = [alarm.kind for alarm in pooled.alarms if alarm.stops]
    return {"pool": hits(pooled.posterior), "all rows": hits(parts[0]), "stops": stops, "rule": pooled.rule}


@cache
def log_density(name: str) -> Any:
    """A regression's log-posterior of α, β and, for Weibull, log of the shape; with its gradient and Hessian."""

    def log(u: Any, rows: Any) -> Any:
        theta = {"alpha": u[0], "beta": u[1:4]}
        prior = -0.5 * ((u[:4] / 2.5) ** 2).sum()
        if len(u) > 4:
            theta["shape"] = jax.numpy.exp(u[4])
            prior = prior - 0.5 * (theta["shape"] / 2) ** 2 + u[4]
        return prior + CASES[name].likelihood(theta, rows)

    return [jax.jit(f) for f in (log, jax.grad(log), jax.hessian(log), jax.vmap(log, (0, None)))]


def sampled(name: str, rows: Any, rng: np.random.Generator, count: int = 1600) -> dict[str, np.ndarray]:
    """Draws by importance: from Student's t about the mode, then by weight. NUTS would take a hundred times as long."""
    rows = jax.tree.map(jax.numpy.asarray, rows)
    log, slope, curve, logs = log_density(name)
    u = np.full(4 + (name == "weibull"), 0.01)  # at logits of 0 the slope of Bernoulli is not the right one
    for _ in range(100):
        step = -np.linalg.solve(np.asarray(curve(u, rows)), np.asarray(slope(u, rows)))
        while np.abs(step).max() > 1e-12 and not float(log(u + step, rows)) >= float(log(u, rows)):
            step = step / 2
        u = u + step
        if np.abs(step).max() < 1e-8:
            break
    lower, freedom = np.linalg.cholesky(np.linalg.inv(-np.asarray(curve(u, rows)))), 5
    z = rng.normal(size=(6 * count, len(u)))
    z = z / np.sqrt(rng.chisquare(freedom, (6 * count, 1)) / freedom)
    heights = np.asarray(logs(u + z @ lower.T, rows)) + (freedom + len(u)) / 2 * np.log1p((z**2).sum(1) / freedom)
    weights = np.exp(heights - heights.max())
    weights /= weights.sum()
    if 1 / (weights**2).sum() < 2 * count:
        raise SystemExit(f"{name}: proposals are worth {1 / (weights**2).sum():.0f} draws.")
    kept = (u + z @ lower.T)[rng.choice(len(z), count, p=weights)].reshape(CHAINS, -1, len(u))
    found = {"alpha": kept[..., 0], "beta": kept[..., 1:4]}
    if name == "weibull":
        found["shape"] = np.exp(kept[..., 4])
    return found


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main(words: list[str]) -> None:
    warnings.simplefilter("ignore")
    action, *rest = words
    if action == "fit":
        folder = Path(rest[0])
        folder.mkdir(parents=True, exist_ok=True)
        for name in rest[1:] or CASES:
            fit(name, folder)
    elif action == "pool":
        table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        for name in rest[1:] or CASES:
            for split in CASES[name].sizes:
                try:
                    table.setdefault(name, {})[split] = measure(name, split, Path(rest[0]))
                except (InputError, FileNotFoundError) as error:
                    print(name, split, error)
                    continue
                write_json(TABLE, table)
                for rule, cell in table[name][split].items():
                    print(f"{name:18} {split:9} {rule:20} {cell['mean']:6.2f} {cell['sd']:+6.2f}",
                          cell.get("used", ""), cell.get("stops", ""), cell.get("values", ""), flush=True)  # fmt: skip
        show_table(table)
    elif action == "coverage":
        coverage(rest[0], int((rest[1:] or ["100"])[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
