"""Scores as words: how numbers are written, what a table's rows say, and one honest sentence for a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from consilience.errors import InputError

Json: TypeAlias = Mapping[str, Any]
FEW_ROWS = 200  # below this a perfectly calibrated model's ECE is already large (protocol.md)
BIN_ROWS = 50  # a bin with fewer rows is not put into words
FEW_LOSSES = 4  # more are counted, not listed


class Metric(NamedTuple):
    """How a score is named and written."""

    name: str
    percent: bool = False
    proper: bool = False  # proper scores rank; the lower the better


METRICS = {
    "accuracy": Metric("Accuracy", percent=True),
    "rmse": Metric("RMSE"),
    "nll": Metric("NLL", proper=True),
    "brier": Metric("Brier", proper=True),
    "crps": Metric("CRPS", proper=True),
    "ece": Metric("ECE", percent=True),
    "ece_debiased": Metric("ECE, debiased", percent=True),
    "ece_adaptive": Metric("ECE, adaptive", percent=True),
    "ece_classwise": Metric("ECE, classwise", percent=True),
    "balanced_accuracy": Metric("Balanced accuracy", percent=True),
    "auroc": Metric("AUROC"),
    "coverage50": Metric("50 % coverage", percent=True),
    "coverage80": Metric("80 % coverage", percent=True),
    "coverage95": Metric("95 % coverage", percent=True),
    "sharpness": Metric("Sharpness"),
}
BOUNDS = {"local_only": "Local only", "server_only": "Server only", "centralised": "Centralised"}
GROUPS = {
    "nothing": "The server needs nothing",
    "inputs": "The server needs unlabelled inputs",
    "labels": "The server needs labelled rows",
    "bound": "Bounds, for reference",
}


def metric(key: str) -> Metric:
    """The metric behind a key; a key nobody described is written as it is."""
    return METRICS.get(key, Metric(key.replace("_", " ").capitalize(), percent=key.startswith("ece")))


def order(keys: Iterable[str]) -> list[str]:
    """Metric keys in the order of reading, the undescribed ones last."""
    known = list(METRICS)
    return sorted(set(keys), key=lambda k: (known.index(k) if k in METRICS else len(known), k))


def human_bytes(n: float | None) -> str:
    """1234567 → '1.2 MB', in powers of 1000."""
    if n is None or not math.isfinite(n):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < (1000 if unit == "B" else 999.95):
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def count(n: float | None, thing: str = "") -> str:
    """17510 → '17 510'; with a thing, '1 site' and '5 sites'."""
    digits = "–" if n is None else f"{n:,.0f}".replace(",", "\u00a0")
    return f"{digits} {thing}{'' if n == 1 else 's'}" if thing else digits


def number(x: float | None) -> str:
    """Three decimals for small numbers, fewer for large ones."""
    if x is None or not math.isfinite(x):
        return "–"
    if x != 0 and not 1e-3 <= abs(x) < 1e6:
        text = f"{x:.2e}"
    else:
        text = f"{x:.3f}" if abs(x) < 10 else f"{x:.2f}" if abs(x) < 100 else f"{x:,.1f}".replace(",", "\u00a0")
    return text.replace("-", "−")


def percent(x: float | None, digits: int = 0) -> str:
    """0.942 → '94 %'; never rounds to 0 or 100 what is neither, rounding errors apart."""
    if x is None or not math.isfinite(x):
        return "–"
    while digits < 3 and 1e-5 < x < 1 - 1e-5 and float(f"{100 * x:.{digits}f}") in {0.0, 100.0}:
        digits += 1
    return f"{100 * x:.{digits}f} %".replace("-", "−")


def score(key: str, value: float | None) -> str:
    """A score in its own unit."""
    return percent(value, 1) if metric(key).percent else number(value)


def interval(key: str, pair: Sequence[float | None] | None) -> str:
    """'92.1–96.0', or nothing where there is no interval."""
    if pair is None or len(pair) != 2 or any(p is None or not math.isfinite(p) for p in pair):
        return ""
    low, high = (score(key, p).removesuffix(" %") for p in pair)
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


def test_rows(page: Json) -> int | None:
    """How many test rows stand behind the scores, if that was written down."""
    rows = (page.get("rows_of_data") if isinstance(page.get("rows"), list) else page.get("rows")) or {}
    bins = page.get("reliability") or []
    counted = rows.get("test") or sum(b.get("count") or 0 for b in bins)
    return int(counted) or None


def ece_note(page: Json) -> str:
    """What an ECE on this many rows is worth."""
    n, floor = test_rows(page), page.get("ece_if_calibrated")
    if n is None or regression(page):
        return ""
    perfect = f"a perfectly calibrated model would show about {percent(floor, 1)}" if floor is not None else ""
    if n < FEW_ROWS:
        return f"ECE on {count(n, 'test row')} says little" + (f": {perfect}." if perfect else "; read NLL and Brier.")
    return f"ECE is taken over {count(n, 'test row')}" + (f"; {perfect}." if perfect else ".")


def groups(comparison: Json) -> list[tuple[str, str, list[Json]]]:
    """(key, title, rows) by what the server needs, bounds last."""
    rows = comparison.get("rows")
    if not rows or not isinstance(rows, list):
        raise InputError("The comparison has no rows; compare at least one method.")
    keys = [*GROUPS, *sorted({r.get("needs", "nothing") for r in rows} - set(GROUPS))]
    found = [(k, GROUPS.get(k, k), [r for r in rows if r.get("needs", "nothing") == k]) for k in keys]
    return [g for g in found if g[2]]


def parts(comparison: Json) -> list[Json]:
    """One table's worth a split; a comparison of one split is its own only part."""
    return [{**comparison, **part} for part in comparison.get("splits") or []] or [comparison]


def comparison_keys(comparison: Json) -> tuple[str, list[str], list[str]]:
    """The plain score, the proper scores that rank, and what stands beside them, where any row has them."""
    present = {k for part in parts(comparison) for row in part["rows"] for k in row.get("metrics") or {}}
    wanted = ("rmse", ["nll", "crps"], ["coverage80"]) if "rmse" in present else ("accuracy", ["nll", "brier"], ["ece"])
    return wanted[0], [k for k in wanted[1] if k in present], [k for k in wanted[2] if k in present]


def error(part: Json, key: str) -> str:
    """'±0.012', the standard error over seeds, or nothing."""
    found = (part.get("errors") or {}).get(key)
    return "" if found is None else f"±{score(key, found).removesuffix(' %')}"


def arrow(part: Json, key: str) -> str:
    """The arrow of a row's difference to the reference."""
    return str(((part.get("differences") or {}).get(key) or {}).get("arrow") or "")


def spread(row: Json, key: str, tempered: bool = False) -> str:
    """A row's score with its standard error and its arrow: '0.231 ± 0.012 ↑'."""
    part = (row.get("tempered") or {}) if tempered else row
    near = error(part, key).replace("±", "± ")
    return " ".join(text for text in (score(key, value(row, key, tempered)), near, arrow(part, key)) if text)


def difference_words(row: Json, key: str) -> str:
    """A row's difference to the reference with its interval, and the p value where it was tested."""
    d = (row.get("differences") or {}).get(key)
    if d is None:
        return ""
    signed = f"{'+' if d['mean'] > 0 else ''}{score(key, d['mean'])}"
    p = d.get("p_holm")
    told = "" if p is None else ", p < 0.001" if p < 0.001 else f", p = {p:.2g}"
    return f"{signed} ({score(key, d['low'])} to {score(key, d['high'])}{told})"


PAIRED = (
    "Differences are paired over seeds, with 95 % intervals; p is Wilcoxon's, after Holm over the rows. Arrows: better "
    "(↑) or worse (↓) than the reference, p below 5 %; twice, below 1 %."
)


def value(row: Json, key: str, tempered: bool = False) -> float | None:
    """A row's score, plain or tempered; None where it is missing."""
    part = (row.get("tempered") or {}) if tempered else row
    found = (part.get("metrics") or {}).get(key)
    return None if found is None or not math.isfinite(found) else float(found)


def best(rows: Sequence[Json], key: str, tempered: bool = False) -> float | None:
    """The lowest value of a proper score in a group; None where nothing competes."""
    values = [v for r in rows if (v := value(r, key, tempered)) is not None]
    return min(values) if len(values) > 1 and metric(key).proper else None


def regression(page: Json) -> bool:
    """Whether a run or a comparison predicts numbers rather than classes."""
    parts = page["rows"] if isinstance(page.get("rows"), list) else [page]
    return page.get("task") == "regression" or any("rmse" in (part.get("metrics") or {}) for part in parts)


def sentence(run: Json) -> str:
    """The run in plain words: only what its numbers support."""
    metrics, rows = run.get("metrics") or {}, run.get("rows") or {}
    head = [count(run[k], thing) for k, thing in (("sites", "site"), ("rounds", "round")) if run.get(k) is not None]
    up = (run.get("ledger") or {}).get("up_bytes")
    head += [f"{human_bytes(up)} sent"] if up is not None else []
    said = _regression_words(run) if regression(run) else _classification_words(run)
    worst = run.get("worst_site")
    if worst and run.get("sites") != 1:
        said.append(f"weakest site: {worst.get('site')}")
    server = ((run.get("bounds") or {}).get("server_only") or {}).get("metrics") or {}
    if rows.get("calibration"):
        alone = f"a model from the server's {count(rows['calibration'], 'row')} alone would "
        if "accuracy" in metrics and server.get("accuracy") is not None:
            said.append(f"{alone}reach {percent(server['accuracy'])}")
        elif "rmse" in metrics and server.get("rmse") is not None:
            said.append(f"{alone}be off by {number(server['rmse'])}")
    body = "; ".join(said)
    return " ".join(s + "." for s in (", ".join(head), body[:1].upper() + body[1:]) if s)


def _classification_words(run: Json) -> list[str]:
    accuracy = (run.get("metrics") or {}).get("accuracy")
    said = [f"{percent(accuracy)} accurate"] if accuracy is not None else []
    full = max(run.get("reliability") or [{}], key=lambda b: b.get("count") or 0)
    if (full.get("count") or 0) >= BIN_ROWS and None not in {full.get("confidence"), full.get("accuracy")}:
        words = f"when it says {percent(full['confidence'])} it is right {percent(full['accuracy'])} of the time"
        said.append(words + _whole_percents(full.get("interval")))
    return said


def _regression_words(run: Json) -> list[str]:
    rmse = (run.get("metrics") or {}).get("rmse")
    said = [f"root mean square error {number(rmse)}"] if rmse is not None else []
    levels = [c for c in run.get("coverage") or [] if c.get("observed") is not None]
    if levels and (test_rows(run) or 0) >= BIN_ROWS:
        c = min(levels, key=lambda c: abs(c["level"] - 0.8))
        words = f"its {percent(c['level'])} intervals hold {percent(c['observed'])} of the test rows"
        said.append(words + _whole_percents(c.get("interval")))
    return said


def _whole_percents(pair: Sequence[float] | None) -> str:
    return f" ({percent(pair[0]).removesuffix(' %')}–{percent(pair[1]).removesuffix(' %')})" if pair else ""


def temperature_name(page: Json, tempered: Json) -> str:
    """How the post-hoc scalar is called: a temperature, or a factor on the variance."""
    t = scalar(tempered.get("temperature"))
    return f"variance × {t}" if regression(page) else f"T = {t}"


def scalar(t: float | None) -> str:
    """A temperature, to three digits."""
    return "–" if t is None or not math.isfinite(t) else f"{t:.3g}"


def bounds(run: Json) -> list[tuple[str, str, Json]]:
    """(key, name, scores) of the bounds that have scores."""
    found = run.get("bounds") or {}
    return [(key, name, found[key]) for key, name in BOUNDS.items() if (found.get(key) or {}).get("metrics")]


def losses(failures: Sequence[Any]) -> list[str]:
    """Replies that never counted: one line each while they are few, else how many for each reason."""
    if len(failures) <= FEW_LOSSES:
        return [_loss(f) if isinstance(f, Mapping) else str(f) for f in failures]
    reasons = Counter(str(f.get("why", "lost") if isinstance(f, Mapping) else f).partition(":")[0] for f in failures)
    said = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    return [f"{len(failures)} replies never counted: {said}; run.json says whose and when"]


def _loss(failure: Json) -> str:
    when = f", round {failure['round']}" if "round" in failure else ""
    return f"Site {failure.get('site', '–')}{when}: {failure.get('why', 'lost')}"
