"""What a study's coordinator can honestly know of a model, for its report: no row, no label of a row, no test score.

The sites' rows stay at the sites, and so does how well the model predicts them. What arrives is weights, counts, and,
if the sites send statistics, sums of log-scores over rows they set aside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from consilience.engines.ledger import Ledger
from consilience.formats.settings import describe
from consilience.method import Method
from consilience.parties import Received
from consilience.runs.provenance import citation, versions
from consilience.study.admission import leaves_of
from consilience.study.agreement import Agreement, Study
from consilience.study.choice import TEMPERATURES
from consilience.study.columns import Column
from consilience.study.model import Facts, is_unnamed
from consilience.tree import Tree
from consilience.version import __version__


class Judged(NamedTuple):
    """What one site's statistics say about a model.

    Attributes:
        site: The site's name.
        rows: How many rows it set aside to choose by.
        chosen: Summed log-score with the value and temperature that were chosen.
        pooled: Summed log-score as the model was pooled; None where the grid lacks that value.
    """

    site: str
    rows: int
    chosen: float
    pooled: float | None


def bytes_crossed(received: Sequence[Received], names: tuple[str, ...], message: Tree, round: int) -> dict[str, Any]:
    """What a round moved, by site; a message of () is one that every site computes for itself."""
    ledger = Ledger()
    for at, reply in enumerate(received):
        ledger.record(round, at, message, reply.payload)
    return {**ledger.summary(names), "round": round}


def account(
    study: Study,
    facts: Facts,
    rows: Mapping[str, int] | None = None,
    replies: Mapping[str, Received] | None = None,
    ledger: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """A pooled model and where it came from: each site's rows, and the last round's replies."""
    agreement, task = study.agreement, study.agreement.build_task()
    method = agreement.build_method()
    title, source = citation(type(method))
    rows, replies = rows or {}, replies or {}
    signed = {*facts.sites, *(site.name for site in study.active)}
    return {
        **{"kind": "study", "consilience": __version__, "smallest_count": agreement.smallest},
        **{"study": agreement.name, "hash": agreement.hash, "method": agreement.method, "title": title},
        **{"summary": source, "sends": method.sends, "hand_out": _handed(agreement, facts), "model": agreement.model},
        "parameters": sum(p.numel() for p in task.weights(task.like).values()),
        "task": "classification" if agreement.target.classes else "regression",
        **{"target": agreement.target.name, "unit": agreement.target.unit},
        **{"classes": len(agreement.target.classes) or None, "class_names": list(agreement.target.classes) or None},
        **{"sites": len(facts.sites), "signed": len(signed), "rounds": facts.rounds, "of": agreement.rounds},
        "rows": {"train": facts.rows},
        "per_site": [_site(name, rows.get(name), replies.get(name)) for name in facts.sites],
        "ledger": ledger,
        "warnings": [*warnings, *facts.notes],
        **{"seed": agreement.seed, "settings": _settings(agreement, method), "versions": versions()},
        "columns": {column.name: _column(column) for column in agreement.columns},
    }


def _handed(agreement: Agreement, facts: Facts) -> str:
    """What the sites get back; where there is one posterior for all, that."""
    if agreement.hand_out == "mixture" and not is_unnamed(agreement, facts.method):
        return "posterior"
    return agreement.hand_out


def _site(name: str, rows: int | None, reply: Received | None) -> dict[str, Any]:
    counts = [] if reply is None else [v for path, v in leaves_of(reply.payload) if path.split(".")[-1] == "counts"]
    labels = [int(n) for n in counts[0].tolist()] if counts else None
    return {"site": name, "train": rows or None, "labels": labels}


def _settings(agreement: Agreement, method: Method) -> dict[str, Any]:
    own = ("prior_var", "noise", "draws", "scaling", "choose", "test", "smallest", "most_bytes", "hand_out")
    return {"method": describe(method), **{name: getattr(agreement, name) for name in own}}


def _column(column: Column) -> str:
    plausible = ", ".join(column.levels) if column.levels else "{:g} to {:g}".format(*column.range)
    return f"{plausible} {column.unit}".strip()


def chosen_account(
    study: Study,
    facts: Facts,
    known: Mapping[str, Any] | None,
    judged: Sequence[Judged],
    symbol: str,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The account of a model whose knob and temperature the sites' statistics chose; `known` is that of its pool."""
    target, made = study.agreement.target, account(study, facts, warnings=warnings)
    unit = 0.0 if target.classes else math.log(target.spread)  # from the scaled target to its own unit
    if known is not None:
        made = {**made, **{k: known[k] for k in ("per_site", "ledger")}}
    nll = {j.site: unit - j.chosen / j.rows for j in judged}
    scores = {j.site: {"test": j.rows, "metrics": {"nll": nll[j.site]}} for j in judged}
    rows = sum(j.rows for j in judged)
    before = [j.pooled for j in judged if j.pooled is not None]
    found = {
        "metrics": {"nll": unit - sum(j.chosen for j in judged) / rows},
        "pooled": {"metrics": {"nll": unit - sum(before) / rows}} if len(before) == len(judged) else None,
        **{"knob": facts.knob, "knob_symbol": symbol, "value": facts.value, "temperature": facts.temperature},
        "diagnostics": {facts.knob: facts.value} if facts.knob else None,
        "rows": {**made["rows"], "set aside": rows},
        "per_site": [{**site, **scores.get(site["site"], {})} for site in made["per_site"]],
    }
    if facts.temperature in (TEMPERATURES[0], TEMPERATURES[-1]):
        end = (
            f"The temperature is at the end of its range ({facts.temperature:g}): look at the sites' scales and labels."
        )
        made["warnings"].append(end)
    if len(judged) > 1:
        worst = max(nll, key=lambda name: nll[name])
        found["worst_site"] = {"site": worst, "nll": nll[worst]}
    return {**made, **found}


def kept_account(path: Path, checksum: str) -> dict[str, Any] | None:
    """What was written down when this very model was pooled, if it lies beside the model."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found if found["checksum"] == checksum else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
