"""What a study's coordinator can honestly know of a model, for its report: no row, no label of a row, no test score.

The sites' rows stay at the sites, and so does how well the model predicts them. What arrives is weights, counts, and,
if the sites send statistics, sums of log-scores over rows they held out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from consilience.distributions.curves import Curve
from consilience.messages import Received
from consilience.method import Method
from consilience.report.schema.wording import percent
from consilience.runs.engines.ledger import Ledger
from consilience.runs.identity import citation, today, versions
from consilience.serialisation.settings import describe
from consilience.study.choice import TEMPERATURES
from consilience.study.model import Facts, is_unnamed
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.promise import describe_promise
from consilience.study.validation.form import leaves_of
from consilience.tree import Tree
from consilience.version import __version__


class Judgement(NamedTuple):
    """What one site's statistics say about a model.

    Attributes:
        site: The site's name.
        rows: How many rows it held out to choose by.
        chosen: Summed log-score with the value and temperature that were chosen.
        pooled: Summed log-score as the model was pooled; None where the grid lacks that value.
    """

    site: str
    rows: int
    chosen: float
    pooled: float | None


def bytes_crossed(received: Sequence[Received], names: tuple[str, ...], message: Tree, round: int) -> dict[str, Any]:
    """Count what a round moved.

    Args:
        message: What the sites were sent; () if every site computes it for itself.
        round: The number of the round, from 1.

    Returns:
        The sums, and those of each site.
    """
    ledger = Ledger()
    for number, reply in enumerate(received):
        ledger.record(round, number, message, reply.payload)
    return {**ledger.summary(names), "round": round}


def account(
    study: Study,
    facts: Facts,
    rows: Mapping[str, int] | None = None,
    replies: Mapping[str, Received] | None = None,
    ledger: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    influence: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Say what a pooled model is and where it came from.

    Args:
        facts: What the model says about itself.
        rows: Each site's rows, 0 where it withheld their number.
        replies: The last round's replies, by site.
        ledger: What the last round moved.
        warnings: What else to warn of.
        influence: How much of the pool is each site's, where that was measured.

    Returns:
        Values by the names of the report.
    """
    agreement = study.agreement
    target = agreement.target
    task = agreement.build_task()
    method = agreement.build_method()
    title, source = citation(type(method))
    rows = rows or {}
    replies = replies or {}
    influence = influence or {}
    signed = {*facts.sites, *(site.name for site in study.active)}
    return {
        "kind": "study",
        "consilience": __version__,
        "smallest_count": agreement.smallest,
        "date": today(),
        "study": agreement.name,
        "hash": agreement.hash,
        "method": agreement.method,
        "title": title,
        "summary": source,
        "sends": _sends(agreement, method),
        "hand_out": _hand_out(agreement, facts),
        "model": agreement.network,
        "parameters": sum(p.numel() for p in task.weights(task.like).values()),
        "task": agreement.kind,
        "target": target.name,
        "unit": target.unit,
        "classes": len(target.classes) or None,
        "class_names": list(target.classes) or None,
        "sites": len(facts.sites),
        "signed": len(signed),
        "signers": [_signer(member) for member in study.sites if member.name in signed],
        "coordinator": agreement.server,
        "secure": agreement.secure,
        "rounds": facts.rounds,
        "of": agreement.rounds,
        "rows": {"train": facts.rows},
        "per_site": [_site(name, rows.get(name), replies.get(name), influence.get(name)) for name in facts.sites],
        "ledger": ledger,
        "warnings": [*warnings, *facts.notes],
        "seed": agreement.seed,
        "settings": _settings(agreement, method),
        "versions": versions(),
        "columns": {column.name: _column(column) for column in agreement.columns},
        "most_influence": agreement.most_influence,
        **describe_promise(agreement),
    }


def _signer(member: Member) -> dict[str, Any]:
    """A site that signed: by which key, and for how many rows."""
    return {"site": member.name, "key": member.key, "rows": member.rows, "left": member.left}


def _sends(agreement: Agreement, method: Method) -> str:
    """What leaves a site."""
    if agreement.secure:
        return f"{method.about.sends}; under masks, so that only the sum over all sites can be read"
    return method.about.sends


def _hand_out(agreement: Agreement, facts: Facts) -> str:
    """What the sites get back; where there is one posterior for all, that."""
    if agreement.hand_out == "mixture" and not is_unnamed(agreement, facts.method):
        return "posterior"
    return agreement.hand_out


def influence_warnings(agreement: Agreement, influence: Mapping[str, float], unknown: str = "") -> list[str]:
    """Say which sites have more influence on a model than agreed, or why that is not known.

    Args:
        influence: How much of the pool is each site's.
        unknown: Why that was not measured; empty where it was.

    Returns:
        Sentences.
    """
    sentences = []
    if unknown:
        sentences.append(f"The sites' influence on the model was not measured: {unknown}")
    for name, share in influence.items():
        if round(share, 3) > agreement.most_influence:  # less than a thousandth more is rounding, not influence
            mine, agreed = _distinct_percents(share, agreement.most_influence)
            sentences.append(
                f"{name} has an influence of {mine} on this model, and at most {agreed} is agreed: look at its reply, "
                "or pool without it."
            )
    return sentences


def _distinct_percents(share: float, limit: float) -> tuple[str, str]:
    """Write two shares with as few decimals as tell them apart: '50.3 %' and '50.0 %', never '50 %' and '50 %'."""
    digits = 0
    while digits < 3 and percent(share, digits) == percent(limit, digits):
        digits += 1
    return percent(share, digits), percent(limit, digits)


def _site(name: str, rows: int | None, reply: Received | None, influence: float | None) -> dict[str, Any]:
    """What is known of a site: its rows, how often it saw each class where its reply says so, and its influence."""
    labels = None
    if reply is not None:
        labels = _label_counts(reply.payload)
    site: dict[str, Any] = {"site": name, "train": rows or None, "labels": labels}
    if influence is not None:
        site["influence"] = round(influence, 4)
    return site


def _label_counts(payload: Tree) -> list[int] | None:
    """The counts in a reply; None if it holds none."""
    for path, value in leaves_of(payload):
        if path.split(".")[-1] == "counts":
            return [int(count) for count in value.tolist()]
    return None


def _settings(agreement: Agreement, method: Method) -> dict[str, Any]:
    return {
        "method": describe(method),
        "prior_var": agreement.prior_var,
        "noise": agreement.noise,
        "draws": agreement.draws,
        "scaling": agreement.scaling,
        "choose": agreement.choose,
        "test": agreement.test,
        "smallest": agreement.smallest,
        "most_bytes": agreement.most_bytes,
        "hand_out": agreement.hand_out,
    }


def _column(column: Column) -> str:
    """What is plausible in a column: its levels, or its range and unit."""
    low, high = column.range
    plausible = ", ".join(column.levels) or f"{low:g} to {high:g}"
    return f"{plausible} {column.unit}".strip()


def chosen_account(
    study: Study,
    facts: Facts,
    known: Mapping[str, Any] | None,
    judgements: Sequence[Judgement],
    symbol: str,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Say what a model is whose knob and temperature the sites' statistics chose.

    Args:
        facts: What the model says about itself.
        known: The account of its pool, if it was kept.
        judgements: What each site's statistics say.
        warnings: What else to warn of.

    Returns:
        Values by the names of the report.
    """
    target = study.agreement.target
    report = _from_known(study, account(study, facts, warnings=warnings), known)
    unit = 0.0  # from the scaled target to its own unit
    if not target.classes:
        unit = math.log(target.spread)
    nll = {j.site: unit - j.chosen / j.rows for j in judgements}
    scores = {j.site: {"test": j.rows, "metrics": {"nll": nll[j.site]}} for j in judgements}
    rows = sum(j.rows for j in judgements)
    report["metrics"] = {"nll": unit - sum(j.chosen for j in judgements) / rows}
    report["pooled"] = _pooled_metrics(judgements, unit)
    report["knob"] = facts.knob
    report["knob_symbol"] = symbol
    report["value"] = facts.value
    report["temperature"] = facts.temperature
    report["diagnostics"] = None
    if facts.knob:
        report["diagnostics"] = {facts.knob: facts.value}
    report["rows"] = {**report["rows"], "set aside": rows}
    report["per_site"] = [{**site, **scores.get(site["site"], {})} for site in report["per_site"]]
    if facts.temperature in (TEMPERATURES[0], TEMPERATURES[-1]):
        report["warnings"].append(
            f"The temperature is at the end of its range ({facts.temperature:g}): look at the sites' scales and labels."
        )
    if len(judgements) > 1:
        worst = max(nll, key=lambda name: nll[name])
        report["worst_site"] = {"site": worst, "nll": nll[worst]}
    return report


def baseline_account(
    study: Study, facts: Facts, known: Mapping[str, Any] | None, curve: Curve, warnings: Sequence[str]
) -> dict[str, Any]:
    """Say what a report says of a survival model that has its baseline.

    Args:
        facts: What the model says about itself.
        known: The account of the model when it was pooled.
        curve: Kaplan and Meier's curve of all training rows.
        warnings: What to warn of.

    Returns:
        Values by the names of the report.
    """
    report = _from_known(study, account(study, facts, warnings=warnings), known)
    report["kaplan_meier"] = {name: leaf.tolist() for name, leaf in curve._asdict().items()}
    return report


def evaluated_account(
    study: Study,
    facts: Facts,
    known: Mapping[str, Any] | None,
    evaluated: Sequence[Mapping[str, Any]],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Say what a report says of a model whose sites sent its calibration on their test rows.

    Args:
        facts: What the model says about itself.
        known: The account of the model when it was pooled or chosen.
        evaluated: Each site's calibration, by the names of the report.
        warnings: What else to warn of.

    Returns:
        Values by the names of the report.
    """
    report = {**(known or account(study, facts))}
    report["evaluation"] = [dict(site) for site in evaluated]
    report["warnings"] = list(dict.fromkeys([*(report.get("warnings") or []), *warnings]))
    return report


def _from_known(study: Study, report: dict[str, Any], known: Mapping[str, Any] | None) -> dict[str, Any]:
    """The report with what was written down when the model was pooled."""
    if known is None:
        return report
    report["per_site"] = known["per_site"]
    report["ledger"] = known["ledger"]
    if known.get("effects"):
        report["effects"] = known["effects"]
    influence = {site["site"]: site["influence"] for site in known["per_site"] if "influence" in site}
    report["warnings"] += influence_warnings(study.agreement, influence)
    return report


def _pooled_metrics(judgements: Sequence[Judgement], unit: float) -> dict[str, Any] | None:
    """The scores of the model as it was pooled; None where a site's statistics lack them."""
    total = 0.0
    for j in judgements:
        if j.pooled is None:
            return None
        total += j.pooled
    return {"metrics": {"nll": unit - total / sum(j.rows for j in judgements)}}


def kept_account(path: Path, checksum: str) -> dict[str, Any] | None:
    """Read what was written down when this very model was pooled, if it lies beside the model.

    Args:
        checksum: Hash of the model's file.

    Returns:
        The account; None if there is none, or one of another model.
    """
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if report["checksum"] == checksum:
            return report
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None
