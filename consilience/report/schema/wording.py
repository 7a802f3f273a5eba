"""Words of the reports: names of scores and bounds, scores with their intervals, and a comparison's rows and groups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from consilience.errors import InputError
from consilience.report.schema.numbers import count, human_bytes, number, p_value, percent, temperature

__all__ = [
    "BASELINE", "BASELINES", "BASELINE_NOTE", "BOUND", "BOUNDS", "BOUND_NOTES", "CENTRALISED", "FEW_ROWS", "GROUPS",
    "LOCAL_ONLY", "METRICS", "NEEDS", "NEWCOMER_NOTE", "PAIRED", "SERVER_ONLY", "Json", "Metric", "baseline_name",
    "beaten_by_base_rate", "comparison_keys", "count", "difference", "difference_words",
    "enumerate_words", "group_rows", "groups", "human_bytes", "interval", "losses", "metric",
    "newcomer_name", "number", "order", "parts", "percent", "scope", "score", "score_keys", "spread",
    "temperature_name", "value",
]  # fmt: skip

Json: TypeAlias = Mapping[str, Any]
R = TypeVar("R")
FEW_ROWS = 200  # below this a perfectly calibrated model's ECE is already large (protocol.md)
FEW_LOSSES = 4  # more are counted, not listed


class Metric(NamedTuple):
    """How a score is named and written.

    Attributes:
        name: The name shown in tables.
        percent: Whether it is written as a percentage.
        proper: Whether it is a proper score, by which rows may be ranked; lower is better.
    """

    name: str
    percent: bool = False
    proper: bool = False


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
    "deviance": Metric("Deviance"),
    "concordance": Metric("Concordance"),
    "ibs": Metric("Integrated Brier", proper=True),
}

# The protocol's bounds, the one place where the report knows them by name.
LOCAL_ONLY = "local_only"
SERVER_ONLY = "server_only"
CENTRALISED = "centralised"
BOUNDS = {LOCAL_ONLY: "Local only", SERVER_ONLY: "Server only", CENTRALISED: "Centralised"}
BOUND_NOTES = {
    LOCAL_ONLY: "Local only: each site's own model. On all rows: every model predicts the rows of all sites, scores "
    "averaged over the models. On own rows: each predicts its own site's rows; hold this against a shared model, whose "
    "scores over all rows are over each site's own rows too.",
    SERVER_ONLY: "Server only: a model trained on the server's labelled rows alone.",
    CENTRALISED: "Centralised: a model trained on all rows in one place, with as many passes over them as the method's "
    "sites make over theirs in all rounds, or until it converged.",
}

NEWCOMER_NOTE = (
    "Own rows: each site's own model predicts its own site's rows, so that every test row is predicted once. Newcomer: "
    "the common model, which a site that took no part gets, on all rows."
)

# What every method should beat, by the keys of `baselines`; for classes and for numbers.
BASELINES = {
    "base_rate": ("Base rate", "Overall mean"),
    "site_rate": ("Site base rate", "Site mean"),
    "pooled_linear": ("Pooled linear", "Pooled linear"),
    "kaplan_meier": ("Kaplan–Meier", "Kaplan–Meier"),
}
BASELINE_NOTE = (
    "Baselines need no federated method: the frequencies of the classes (or the mean) of all training rows, those "
    "of a row's own site, and a linear model trained on all rows in one place; for survival, the Kaplan–Meier curve of "
    "all training rows."
)

BOUND = "bound"  # what stands under `needs` in the row of a bound
BASELINE = "baseline"  # the same for a baseline
NEEDS = {"nothing": "no data", "inputs": "unlabelled inputs", "labels": "labelled rows"}
GROUPS = {**{key: f"The server needs {what}" for key, what in NEEDS.items()}, BOUND: "Bounds, for reference"}
GROUPS[BASELINE] = "Baselines"
PAIRED = (
    "Differences from the reference are paired by seed, with 95 % intervals; p-values are Holm-adjusted over the rows "
    "of a table. Arrows: better (↑) or worse (↓) than the reference at the 5 % level; two arrows, at the 1 % level."
)


def baseline_name(key: str, is_regression: bool) -> str:
    """Name a baseline.

    Args:
        key: One of `BASELINES`.
        is_regression: Whether numbers are predicted rather than classes.

    Returns:
        Its name for people.
    """
    return BASELINES[key][is_regression]


def over_dispersed(ratio: float, measure: str) -> str:
    """Warn of counts that vary more than a Poisson allows.

    Args:
        ratio: How many times as much.
        measure: What that was seen from, with its verb.
    """
    return (
        f"Counts are over-dispersed: {measure} {number(ratio)} times what a Poisson allows. "
        f"Standard errors and intervals should be about {number(math.sqrt(ratio))} times as wide."
    )


def unequal_noise(site: str, ratio: float) -> str:
    """Warn of a site whose noise is another one than the model's.

    Args:
        ratio: Its squared errors over what the model expects.
    """
    return (
        f"The noise of sites differs, and the model has one for all: at site {site} squared errors are "
        f"{number(ratio)} times what it expects, so that its intervals there are too narrow."
    )


def beaten_by_base_rate(scores: Mapping[str, float | None], base: Mapping[str, float | None]) -> str:
    """Compare scores with those of the base rate, or of the overall mean for numbers.

    Returns:
        What is worse and what to do, as a sentence; empty where nothing is.
    """
    key, trivial = "nll", "always predicting the classes' frequencies"
    if "rmse" in base:
        key, trivial = "rmse", "always predicting the overall mean"
    ours = scores.get(key)
    theirs = base.get(key)
    if ours is None or theirs is None or not math.isfinite(ours):
        return ""
    if ours <= theirs:
        return _narrower_than_base_rate(scores, base)
    return (
        f"an {metric(key).name} of {number(ours)} is worse than {trivial} ({number(theirs)}): do not use this "
        "model; a chain may have diverged or the pool may be far too confident. Try a linear model, a smaller learning "
        "rate, more epochs, a temperature, or another method."
    )


def _narrower_than_base_rate(scores: Mapping[str, float | None], base: Mapping[str, float | None]) -> str:
    """What is wrong with numbers that are well predicted and badly surrounded; empty where nothing is."""
    ours = scores.get("nll")
    theirs = base.get("nll")
    if ours is None or theirs is None or not math.isfinite(ours) or ours <= theirs:
        return ""
    return (
        f"an {metric('nll').name} of {number(ours)} is worse than always predicting the overall mean with its variance "
        f"({number(theirs)}), although the {metric('rmse').name} is not: do not use its intervals, which are too "
        "narrow. Fit a temperature on labelled rows; where weights are averaged, set rule=pooled_variance."
    )


def enumerate_words(texts: Sequence[str]) -> str:
    """Join texts as a sentence lists them.

    Returns:
        'a', 'a and b', or 'a, b and c'.
    """
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def bound_name(key: str, trained: str) -> str:
    """Name a bound in a table.

    Args:
        trained: How long it trained; empty where nobody counted.

    Returns:
        'Centralised, 100 passes', or the name alone.
    """
    if key == CENTRALISED and trained:
        return f"{BOUNDS[key]}, {trained}"
    return BOUNDS[key]


def scope(name: str, own: bool, models: int | None = None, sites: int | None = None) -> str:
    """Name a row whose models are the sites' own by the rows that they predict.

    Args:
        own: Whether each model predicts its own site's rows; else all rows.
        models: How many sites' models predict all rows, if that is known.
        sites: How many sites there are, if that is known.

    Returns:
        'Local only, own rows' or 'Local only, all rows', with the number of models where it is not all.
    """
    if own:
        return f"{name}, own rows"
    if models is not None and sites is not None and models < sites:
        return f"{name}, all rows ({count(models)} of {count(sites)} models)"
    return f"{name}, all rows"


def newcomer_name(name: str) -> str:
    """Name the common model of a row whose sites have models of their own.

    Returns:
        'Hierarchical, newcomer (all rows)'.
    """
    return f"{name}, newcomer (all rows)"


def metric(key: str) -> Metric:
    """Look up how a score is written.

    Args:
        key: The score's key in `run.json`.

    Returns:
        Its description; a key without one is written as it is.
    """
    unknown = Metric(key.replace("_", " ").capitalize(), percent=key.startswith("ece"))
    return METRICS.get(key, unknown)


def order(keys: Iterable[str]) -> list[str]:
    """Sort scores for reading.

    Args:
        keys: Keys of scores, in any order.

    Returns:
        The keys in the order of `METRICS`; those without a description come last, alphabetically.
    """
    rank = {key: i for i, key in enumerate(METRICS)}
    return sorted(set(keys), key=lambda key: (rank.get(key, len(rank)), key))


def score(key: str, value: float | None) -> str:
    """Write a score in its own unit.

    Args:
        value: Its value, or None.

    Returns:
        A percentage or a number; a dash where the value is missing.
    """
    if metric(key).percent:
        return percent(value, 1)
    return number(value)


def interval(key: str, pair: Sequence[float | None] | None) -> str:
    """Write the interval of a score, as '92.1–96.0'.

    Args:
        pair: The ends of the interval, or None.

    Returns:
        The interval; empty where there is none or an end is not finite.
    """
    if pair is None or len(pair) != 2 or any(end is None or not math.isfinite(end) for end in pair):
        return ""
    low, high = (score(key, end).removesuffix(" %") for end in pair)
    if "−" in low + high:
        return f"{low} to {high}"
    return f"{low}–{high}"


def difference(key: str, mean: float) -> str:
    """Write a difference of scores with its sign.

    Returns:
        The difference, with a plus where it is positive.
    """
    text = score(key, mean)
    if mean > 0:
        return f"+{text}"
    return text


def temperature_name(t: float | None, regression: bool) -> str:
    """Name the factor by which predictions were rescaled.

    Args:
        regression: Whether it multiplies the variance of a number; classes have a temperature.

    Returns:
        'variance × 1.12' or 'T = 1.31'.
    """
    if regression:
        return f"variance × {temperature(t)}"
    return f"T = {temperature(t)}"


def group_rows(rows: Sequence[R], needs: Callable[[R], str]) -> list[tuple[str, str, list[R]]]:
    """Group the rows of a table by what the server needs.

    Args:
        rows: The rows of a table.
        needs: What a row needs: a key of `GROUPS`, or another word.

    Returns:
        Key, title and rows of each group, bounds after the other known groups; groups without rows are left out.
    """
    others = sorted({needs(row) for row in rows} - set(GROUPS))
    groups = []
    for key in (*GROUPS, *others):
        members = [row for row in rows if needs(row) == key]
        if members:
            groups.append((key, GROUPS.get(key, key), members))
    return groups


def score_keys(present: Iterable[str]) -> tuple[str, list[str], list[str]]:
    """Select the scores of a comparison's table.

    Args:
        present: Keys of the scores that any row has.

    Returns:
        The plain score, the proper scores that rank, and those shown beside them.
    """
    present = set(present)
    point, ranks, beside = "accuracy", ["nll", "brier"], ["ece"]
    if "rmse" in present:
        point, ranks, beside = "rmse", ["nll", "crps"], ["coverage80"]
    if "concordance" in present:
        point, ranks, beside = "concordance", ["nll", "ibs"], []
    return point, [key for key in ranks if key in present], [key for key in beside if key in present]


def comparison_keys(comparison: Json) -> tuple[str, list[str], list[str]]:
    """Select the scores of a comparison's tables.

    Args:
        comparison: What `compare.json` holds.

    Returns:
        As `score_keys`, from the scores of all rows of all splits.
    """
    rows = [row for part in parts(comparison) for row in part["rows"]]
    return score_keys(key for row in rows for key in row.get("metrics") or {})


def parts(comparison: Json) -> list[Json]:
    """Take a comparison apart, one table for each split.

    Args:
        comparison: What `compare.json` holds.

    Returns:
        What each split's table holds; a comparison of one split is its own only part.
    """
    tables: list[Json] = [{**comparison, **part} for part in comparison.get("splits") or []]
    return tables or [comparison]


def groups(comparison: Json) -> list[tuple[str, str, list[Json]]]:
    """Group the rows of a comparison by what the server needs.

    Args:
        comparison: One of a comparison's `parts`.

    Returns:
        As `group_rows`.

    Raises:
        InputError: There are no rows.
    """
    rows = comparison.get("rows")
    if not rows or not isinstance(rows, list):
        raise InputError("The comparison has no rows: compare at least one method.")
    return group_rows(rows, lambda row: str(row.get("needs", "nothing")))


def value(row: Json, key: str, tempered: bool = False) -> float | None:
    """Look up a score.

    Args:
        row: A run, or a row of a comparison.
        tempered: Whether to take the score after tempering.

    Returns:
        The score; None where it is missing or not finite.
    """
    x = (_part(row, tempered).get("metrics") or {}).get(key)
    if x is None or not math.isfinite(x):
        return None
    return float(x)


def spread(row: Json, key: str, tempered: bool = False) -> str:
    """Write a score with its standard error and its arrow, as '0.231 ± 0.012 ↑'.

    Args:
        row: A row of a comparison.
        tempered: Whether to take the score after tempering.

    Returns:
        The text, without what the row does not have.
    """
    part = _part(row, tempered)
    texts = [score(key, value(row, key, tempered))]
    error = (part.get("errors") or {}).get(key)
    if error is not None:
        texts.append(f"± {score(key, error).removesuffix(' %')}")
    arrow = ((part.get("differences") or {}).get(key) or {}).get("arrow")
    if arrow:
        texts.append(str(arrow))
    return " ".join(texts)


def difference_words(row: Json, key: str) -> str:
    """Write a row's difference from the reference with its interval, and the p-value where it was tested.

    Args:
        row: A row of a comparison.

    Returns:
        The text; empty where the row was not paired.
    """
    paired = (row.get("differences") or {}).get(key)
    if paired is None:
        return ""
    span = f"{score(key, paired['low'])} to {score(key, paired['high'])}"
    details = [span, p_value(paired.get("p_holm")), skew_words(key, paired)]
    return f"{difference(key, paired['mean'])} ({', '.join(text for text in details if text)})"


def skew_words(key: str, paired: Json) -> str:
    """Write the median of skewed differences, and their signs, beside the mean that they move.

    Returns:
        The text; empty where the differences are not skewed.
    """
    if "median" not in paired:
        return ""
    return f"skewed: median {difference(key, paired['median'])}, below 0 in {paired['negative']} of {paired['n']}"


def _part(row: Json, tempered: bool) -> Json:
    if not tempered:
        return row
    part: Json = row.get("tempered") or {}
    return part


def losses(failures: Sequence[Any]) -> list[str]:
    """Describe the replies that were lost.

    Args:
        failures: What `run.json` lists under `failures`: the site, the round and the reason of each.

    Returns:
        A sentence each while they are few, otherwise one with how many were lost for each reason.
    """
    if len(failures) <= FEW_LOSSES:
        return [_loss(failure) for failure in failures]
    reasons = Counter(_reason(failure) for failure in failures)
    listed = ", ".join(f"{times} {reason}" for reason, times in reasons.most_common())
    return [f"{len(failures)} replies were lost: {listed}; run.json lists the sites and rounds"]


def _loss(failure: Any) -> str:
    if not isinstance(failure, Mapping):
        return str(failure)
    when = ""
    if "round" in failure:
        when = f", round {failure['round']}"
    return f"Site {failure.get('site', '–')}{when}: {failure.get('why', 'lost')}"


def _reason(failure: Any) -> str:
    """Why a reply was lost, without the particulars after a colon."""
    if isinstance(failure, Mapping):
        failure = failure.get("why", "lost")
    return str(failure).partition(":")[0]


def privacy_note(content: Json) -> str:
    """Say what a run, or a model, promises about single rows.

    Args:
        content: What `run.json` or a model's facts hold.

    Returns:
        Two or three sentences; none where nothing is promised.
    """
    known = content.get("privacy") or {}
    if not known:
        return ""
    where = "by every site"
    if known["noise"] == "once":
        where = f"once, as long as {known['honest_sites']} sites add their share and keep it to themselves"
    text = (
        f"Differentially private: ε = {known['epsilon']:g}, δ = {known['delta']:g} for each {known['unit']} "
        f"({known['adjacency']}), noise added {where}."
    )
    if known["simulated"]:
        text += " The noise is simulated: it comes from the seed and protects nobody."
    if known["not_covered"]:
        text += f" Not covered: {'; '.join(known['not_covered'])}."
    return text
