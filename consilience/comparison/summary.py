"""From the cells of a comparison to its tables: means over seeds, paired differences, JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from consilience.comparison.rows import Row
from consilience.metrics.communication import KEPT, communication
from consilience.metrics.communication import sentence as communicated
from consilience.metrics.paired import SEEDS, Difference, arrow, difference, holm
from consilience.metrics.scores import BETTER
from consilience.report import wording as words
from consilience.report.wording import Json
from consilience.runs.recipe import Recipe
from consilience.runs.store import FORMAT
from consilience.version import __version__

Problem: TypeAlias = dict[str, Any]  # what the rows of one split and seed have in common
Found: TypeAlias = Mapping[str | None, Mapping[int, tuple[Problem, Mapping[str, Json]]]]  # by split and seed
FIXED = (
    "Standard errors are over seeds (split, start and draws) on one fixed test set: they leave out the chance in "
    "which rows it holds."
)
FRESH = (
    "Standard errors are over seeds, each with its own split, start, draws and test rows: they leave out the chance "
    "in which rows the data set holds, and count test rows that several seeds share as new."
)


def comparison(
    recipe: Recipe, rows: Mapping[str | None, Sequence[Row]], found: Found, seeds: Sequence[int], reference: str | None,
    fixed_test: bool,
) -> dict[str, Any]:  # fmt: skip
    """What compare.json holds, from the cells that exist so far."""
    parts = [
        _part(rows[split], by_seed, reference)
        for split, by_seed in found.items()
        if any(cells for _, cells in by_seed.values())
    ]
    first = parts[0]
    several = len(seeds) > 1
    names = ", ".join(part["split"] for part in parts)
    return {
        "kind": "comparison",
        "format": FORMAT,
        "consilience": __version__,
        "title": f"{_listed([r.name for r in _named(rows)])} on {first['data']}",
        "sentence": first["sentence"] if len(parts) == 1 else "",
        **{k: first[k] for k in ("data", "sites", "task", "class_names", "parameters")},
        "model": recipe.model,
        "split": names,
        "seeds": list(seeds),
        "seed": seeds[0],
        "reference": first["reference"],
        "leaves_out": (FIXED if fixed_test else FRESH) if several else "",
        "fixed_test_set": fixed_test,
        **{k: first[k] for k in ("rows", "labels", "site_names", "rows_of_data", "ece_if_calibrated")},
        "warnings": [w for part in parts for w in part["warnings"]],
        "seconds": sum(part["seconds"] for part in parts),
        "versions": first["versions"],
        "splits": parts,
    }


def _part(rows: Sequence[Row], by_seed: Mapping[int, tuple[Problem, Mapping[str, Json]]], reference: str | None) -> Any:
    """One split's table."""
    problems = [problem for problem, _ in by_seed.values()]
    made = []
    for r in rows:
        cells = {seed: cells[r.word] for seed, (_, cells) in by_seed.items() if r.word in cells}
        if cells:
            made.append(_row(r, cells))
    named = reference or next((r.word for r in rows if not r.method.bound), rows[0].word)
    pair(made, named)
    every = [cell for _, cells in by_seed.values() for cell in cells.values()]
    known = [c["ece_if_calibrated"] for c in every if c.get("ece_if_calibrated") is not None]
    tested = statistics.mean(p["rows_of_data"]["test"] for p in problems)
    return {
        **{k: v for k, v in problems[0].items() if k not in ("format", "fingerprint", "rows_of_data")},
        "rows_of_data": {
            k: round(statistics.mean(p["rows_of_data"][k] for p in problems)) for k in problems[0]["rows_of_data"]
        },
        "sentence": sentence(made, len(by_seed), round(tested)),
        "reference": named,
        "rows": made,
        "communication": [c for c in (communication(made, named, k) for k in KEPT) if c is not None],
        "ece_if_calibrated": statistics.mean(known) if known else None,
        "warnings": [w for row in made for w in row["warnings"]],
        "seconds": sum(c["seconds"] for c in every),
        "versions": next((c["versions"] for c in every if c.get("versions")), None),
    }


def _row(r: Row, cells: Mapping[int, Json]) -> dict[str, Any]:
    """One row over its seeds; a mean that would leave out a failed seed is not taken."""
    each, seeds = list(cells.values()), list(cells)
    failed = [f"{r.name}, seed {seed}: {c['failure']}" for seed, c in cells.items() if c["failure"]]
    heard = sorted({w for c in each for w in c.get("warnings") or []})
    heard += words.losses([f for c in each for f in c.get("failures") or []])
    plain = over_seeds([] if failed else [c["metrics"] for c in each])
    soft = [c.get("tempered") for c in each]
    tempered = None
    if not failed and all(soft):
        tempered = over_seeds([t["metrics"] for t in soft if t])
        tempered |= {"temperature": statistics.mean(t["temperature"] for t in soft if t)}
        tempered |= {"intervals": (soft[0] or {}).get("intervals") if len(each) == 1 else {}}
    settings = each[0]["settings"].get("inner") or each[0]["settings"]
    epochs = (settings.get("inference") or {}).get("epochs")
    bins = [c["reliability"] for c in each if c.get("reliability")]
    worst = [(c.get("worst_site") or {}).get("nll") for c in each]
    return {
        "name": r.name,
        "row": r.word,
        **{k: each[0][k] for k in ("method", "needs", "rounds", "settings")},
        "passes": None if epochs is None else epochs * r.rounds,
        "seeds": seeds,
        **plain,
        "intervals": each[0].get("intervals") if len(each) == 1 else {},
        "tempered": tempered,
        "reliability": (bins[0] if len(bins) == 1 else join_seeds(bins)) if bins else None,
        "worst_site_nll": _mean(worst),
        "best_site": over_seeds([c["best"] for c in each])["metrics"] if all(c.get("best") for c in each) else None,
        **{k: _whole([c.get(k) for c in each]) for k in ("up_bytes", "down_bytes")},
        "curves": {seed: c["curve"] for seed, c in cells.items() if c.get("curve")},
        "seconds": sum(c["seconds"] for c in each),
        "warnings": failed + [f"{r.name}: {w}" for w in heard],
    }


def over_seeds(each: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Means, standard errors and single values of the scores that every seed has."""
    keys = [k for k in each[0] if all(k in scores for scores in each)] if each else []
    values = {k: [scores[k] for scores in each] for k in keys}
    errors = {k: _error(v) for k, v in values.items() if len(v) > 1 and _finite(v)}
    return {"metrics": {k: _mean(v) for k, v in values.items()}, "errors": errors, "values": values}


def join_seeds(every: Sequence[Sequence[Json]]) -> list[dict[str, Any]]:
    """Reliability bins of several seeds in one; without intervals, as seeds may share test rows."""
    bins = []
    for same in zip(*every, strict=True):
        n = sum(b["count"] for b in same)
        means = {
            k: sum(b["count"] * b[k] for b in same if b["count"]) / n if n else None for k in ("confidence", "accuracy")
        }
        bins.append({"low": same[0]["low"], "high": same[0]["high"], "count": n, **means, "interval": None})
    return bins


def pair(rows: Sequence[dict[str, Any]], reference: str) -> None:
    """Add every row's differences to the reference, paired over seeds, from six seeds on.

    Holm's correction is over the rows of a table, for each score; bounds are no competitors and have no test.
    """
    base = next((r for r in rows if r["row"] == reference), None)
    others = [r for r in rows if r is not base]
    if base is None:
        return
    _pair(base, [(r, r) for r in others], base["seeds"])
    if base["tempered"]:
        _pair(base["tempered"], [(r, r["tempered"]) for r in others if r["tempered"]], base["seeds"])


def _pair(base: Json, others: Sequence[tuple[Json, dict[str, Any]]], seeds: Sequence[int]) -> None:
    """Pair scored parts, each given with the row it belongs to."""
    for key, b in base["values"].items():
        apart: list[tuple[Json, dict[str, Any], Difference]] = []
        for r, part in others:
            a = part["values"].get(key)
            if a and r["seeds"] == seeds and len(a) >= SEEDS and _finite([*a, *b]):
                apart.append((r, part, difference(a, b)))
        adjusted = iter(holm([d.p for r, _, d in apart if r["needs"] != "bound"]))
        for r, part, d in apart:
            said: dict[str, Any] = {"mean": d.mean, "low": d.low, "high": d.high, "n": d.n}
            if r["needs"] != "bound":
                p = next(adjusted)
                said |= {"p": d.p, "p_holm": p, "arrow": arrow(d, p, BETTER.get(key, 0))}
            part.setdefault("differences", {})[key] = said


def sentence(rows: Sequence[Json], seeds: int, tested: int) -> str:
    """What a table says, whichever way it comes out."""
    federated = [(r["name"], r) for r in rows if r["needs"] != "bound"]
    federated += [(f"{name}, tempered", r["tempered"]) for name, r in federated if r["tempered"]]
    ranked = [(name, r) for name, r in federated if words.value(r, "nll") is not None]
    if not ranked:
        return ""
    name, best = min(ranked, key=lambda pair: pair[1]["metrics"]["nll"])
    error = best["errors"].get("nll")
    spread = "" if error is None else f" ± {words.number(error)}"
    where = "On one split" if seeds == 1 else f"Over {seeds} seeds"
    said = f"{where} the lowest federated NLL is {words.number(best['metrics']['nll'])}{spread} ({name})"
    bounds = [(r, words.value(r, "nll")) for r in rows if r["needs"] == "bound"]
    known = {"centralised": "with all data in one place", "server_only": "from the server's labelled rows alone"}
    against = [f"{words.number(v)} {known[r['method']]}" for r, v in bounds if r["method"] in known and v is not None]
    said += f", against {' and '.join(against)}" if against else ""
    few = "one seed" if seeds == 1 else f"{seeds} seeds"
    caution = f"; {few} and {words.count(tested, 'test row')} do not rank rows that are close" if seeds < SEEDS else ""
    return f"{said}{caution}."


def csv_text(compared: Json) -> str:
    """Every value in long form."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("split", "seed", "row", "tempered", "score", "value"))
    for part in compared["splits"]:
        for row in part["rows"]:
            for tempered, scored in (("no", row), ("yes", row["tempered"] or {})):
                for key, values in (scored.get("values") or {}).items():
                    for seed, value in zip(row["seeds"], values, strict=True):
                        writer.writerow((part["split"], seed, row["row"], tempered, key, value))
    return text.getvalue()


def markdown(compared: Json) -> str:
    """The tables, one a split, by what the server needs."""
    return "\n".join([f"# {compared['title']}", "", *_markdown_lines(compared)]) + "\n"


def _markdown_lines(compared: Json) -> Iterator[str]:
    point, ranks, beside = words.comparison_keys(compared)
    columns = [(k, soft) for k in ranks for soft in (False, True)] + [(k, False) for k in (point, *beside)]
    heads = [f"{words.metric(k).name}{', tempered' if soft else ''}" for k, soft in columns]
    for part in words.parts(compared):
        paired = any(r.get("differences") for r in part["rows"])
        delta = [f"Δ {words.metric(ranks[0]).name} to {part['reference']}"] if paired else []
        yield from (f"## {part['split']}", "", part["sentence"], "")
        yield _line(["Row", "The server needs", "Rounds", "Sent", *heads, *delta])
        yield _line(["---", "---", *["---:"] * (2 + len(heads) + len(delta))])
        for group, _, rows in words.groups(part):
            for row in rows:
                cells = [words.spread(row, key, soft) for key, soft in columns]
                moved = [words.count(row["rounds"]), words.human_bytes(row["up_bytes"])]
                apart = [words.difference_words(row, ranks[0])] if paired else []
                yield _line([row["row"], "(bound)" if group == "bound" else group, *moved, *cells, *apart])
        yield ""
        for found in part.get("communication") or []:
            yield from (communicated(found), "")
    yield from (note for note in (compared["leaves_out"], words.PAIRED if paired else "") if note)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _named(rows: Mapping[str | None, Sequence[Row]]) -> list[Row]:
    return [r for r in next(iter(rows.values())) if not r.method.bound] or list(next(iter(rows.values())))


def _listed(names: Sequence[str]) -> str:
    """The names where they fit into a title, else how many there are."""
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return text if len(text) <= 60 else f"{len(names)} methods"


def _mean(values: Sequence[float | None]) -> float | None:
    return statistics.fmean(v for v in values if v is not None) if _finite(values) else None


def _finite(values: Sequence[float | None]) -> bool:
    return all(v is not None and math.isfinite(v) for v in values) and len(values) > 0


def _error(values: Sequence[float | None]) -> float:
    """The standard error of the mean."""
    return statistics.stdev(v for v in values if v is not None) / math.sqrt(len(values))


def _whole(values: Sequence[float | None]) -> int | None:
    mean = _mean(values)
    return None if mean is None else round(mean)
