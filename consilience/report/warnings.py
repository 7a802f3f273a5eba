"""What should make a reader doubt a run: warnings from its numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from consilience.report import wording as words
from consilience.report.wording import FEW_ROWS, Json, count, number, percent

OFF = 0.1  # a mean confidence this far from the accuracy is told
FEW_AT_A_SITE = 20  # test rows


def doubts(run: Json) -> list[str]:
    """Everything worth a warning, the gravest first."""
    return [*_useless(run), *_confidence(run), *_beta(run), *_rows(run), *_classes(run), *_bounds(run)]


def _useless(run: Json) -> Iterator[str]:
    """Worse than knowing nothing: as a rule a chain that diverged."""
    metrics, classes = run.get("metrics") or {}, run.get("classes")
    nll, rmse = words.value(run, "nll"), words.value(run, "rmse")
    if "nll" in metrics and nll is None:
        yield "The NLL is not a finite number: a chain diverged, or a probability is 0. Try a smaller rate."
    elif nll is not None and classes and nll > math.log(classes):
        even = number(math.log(classes))
        yield (
            f"An NLL of {number(nll)} is worse than that of equal odds for all {classes} classes ({even}): look for a "
            "chain that diverged or a pool that is far too sure."
        )
    spread = (run.get("predicted") or {}).get("spread")
    if rmse is not None and spread and rmse > spread:
        yield (
            f"An RMSE of {number(rmse)} is worse than always saying the mean ({number(spread)}): a chain may have "
            "diverged. Try a smaller rate."
        )


def _confidence(run: Json) -> Iterator[str]:
    full = [b for b in run.get("reliability") or [] if b.get("count") and b.get("confidence") is not None]
    n = sum(b["count"] for b in full)
    if n < 50:
        return
    said, right = (sum(b["count"] * b[k] for b in full) / n for k in ("confidence", "accuracy"))
    if said - right > OFF:
        cause = " A product of sites that saw the same things is surer than it should be." if _multiplies(run) else ""
        yield f"Overconfident: it says {percent(said)} on average and is right {percent(right)} of the time.{cause}"
    elif right - said > OFF:
        yield f"Underconfident: it says {percent(said)} on average and is right {percent(right)} of the time."


def _multiplies(run: Json) -> bool:
    return run.get("method") in {"bcm", "ep_mcmc"}


def _beta(run: Json) -> Iterator[str]:
    beta = (run.get("diagnostics") or {}).get("beta")
    if beta is not None and not 0.001 < beta < 0.999:
        end = "0, the mixture" if beta < 0.5 else "1, the product"
        rows = run.get("rows") or {}
        judges = f"the server's {count(rows.get('calibration'), 'labelled row')}"
        judges = f"the {count(rows.get('set aside'))} rows that sites set aside" if _study(run) else judges
        yield f"β is at the end of its range ({end}): {judges} found nothing better in between."


def _study(run: Json) -> bool:
    """Whether the rows behind the scores are the sites' own, set aside to choose by."""
    return run.get("kind") == "study"


def _rows(run: Json) -> Iterator[str]:
    n = words.test_rows(run)
    if n is not None and n < FEW_ROWS:
        little = "." if words.regression(run) else " and ECE says little."
        yield f"Only {count(n, 'test row')}: the intervals are wide{little}"
    sites: Sequence[Json] = run.get("per_site") or []
    few = [str(s.get("site")) for s in sites if s.get("test") is not None and s["test"] < FEW_AT_A_SITE]
    if few and len(sites) > 1:
        named = f"Site {few[0]} has" if len(few) == 1 else f"{count(len(few))} of {count(len(sites), 'site')} have"
        what = "rows set aside" if _study(run) else "test rows"
        yield f"{named} fewer than {FEW_AT_A_SITE} {what}: scores there are mostly chance, and which is weakest too."


def _classes(run: Json) -> Iterator[str]:
    counts = [s.get("labels") for s in run.get("per_site") or []]
    if not counts or not all(counts):
        return
    names = run.get("class_names") or [str(c) for c in range(len(counts[0] or []))]
    held = [any(site[c] != 0 for site in counts if site) for c in range(len(counts[0] or []))]  # None: a few
    empty = [str(name) for name, known in zip(names, held, strict=False) if not known]
    if empty:
        shown = ", ".join(empty[:5]) + (" and others" if len(empty) > 5 else "")
        yield f"No site has a training row of class {shown}: nothing can be learned about it."


def _bounds(run: Json) -> Iterator[str]:
    for key, name in words.BOUNDS.items():
        failure = ((run.get("bounds") or {}).get(key) or {}).get("failure")
        if failure:
            yield f"{name}, the bound: {failure}"
