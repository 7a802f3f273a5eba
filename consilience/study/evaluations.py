"""Calibration by site in a study: the file that a site sends about its test rows, and how the coordinator reads it.

No small count follows from a file. Neighbouring bins of a reliability diagram are merged until each has enough rows
with the outcome and enough without; a level of coverage is told only where enough rows lie outside it, and enough
between it and the level below.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.predictive import Categorical, Distribution
from consilience.errors import InputError
from consilience.metrics.binning import align
from consilience.metrics.calibration import Bin, Coverage, wilson
from consilience.metrics.scores import recalibration
from consilience.metrics.site_calibration import BINS, bin_json, level_json, site_calibration
from consilience.privacy.disclosure.rules import SMALLEST_CELL, by_rule
from consilience.report.suppression import RECALIBRATION, merge_bins
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Envelope, Header, seal
from consilience.study.admission import admit, rules_of
from consilience.study.files import from_sites
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.calibration import check_may_evaluate
from consilience.study.protocol.members import Member, Study
from consilience.study.spending import Door, Leaving
from consilience.study.validation.gate import refuse_errors

KIND = "evaluation"
LEVELS = (0.5, 0.8, 0.95)  # of the intervals whose coverage is told
WITHHELD = -1
ROUNDING = 1e-9  # of a mean of probabilities


def evaluation_file(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    model: str,
    p: Distribution,
    data: Data,
    door: Door,
) -> bytes:
    """Write what a site tells of a model's calibration on its test rows.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        model: The model's checksum.
        p: What the model predicts for the rows, in the target's own unit.
        data: The rows.
        door: Where the file leaves from, past the site's ledger.

    Returns:
        The signed file that leaves.

    Raises:
        InputError: The study did not agree on it, or too few rows are behind it.
    """
    y = data.y
    if not study.agreement.target.classes:
        y = y * study.agreement.target.spread + study.agreement.target.centre
    content = _evaluation_file(study, member, key, model, p, y)
    leaving = Leaving(f"evaluation of {model[:12]}", data, part="test", one_model=True)
    return door.let_out(study.agreement, key, leaving, content)


def _evaluation_file(
    study: Study, member: Member, key: Ed25519PrivateKey, model: str, p: Distribution, y: Tensor
) -> bytes:
    """The file of `evaluation_file`, which nothing charges."""
    agreement = study.agreement
    check_may_evaluate(agreement)
    if isinstance(p, Categorical):
        value = _tabulate_bins(p, y, agreement.smallest)
    else:
        value = _tabulate_levels(p, y, agreement.smallest)
    if value is None:
        sentence = (
            f"{len(y)} test rows are too few to tell calibration by counts of at least {agreement.smallest}: this site "
            "sends none."
        )
        raise InputError(by_rule(SMALLEST_CELL, sentence))
    about = {"model": model, "number": member.number}
    header = Header(KIND, agreement.hash, agreement.name, member.name, 1, about)
    return seal({**value, "count": torch.tensor(len(y))}, header, key)


def _tabulate_bins(p: Categorical, y: Tensor, smallest: int) -> dict[str, Tensor] | None:
    """Merged bins, each at the place of its last one, and the fits; None where no bin may be shown."""
    if not len(y):
        return None
    merged = merge_bins(site_calibration(p, y)["reliability"], smallest)
    if not merged:
        return None
    empty = _empty(is_categorical=True)
    for b in merged:
        place = round(b["high"] * BINS) - 1
        empty["bins"][place] = torch.tensor([b["count"], round(b["count"] * b["accuracy"])])
        empty["confidence"][place] = b["confidence"]
    fitted = recalibration(*align(p, y))
    for i, name in enumerate(RECALIBRATION):
        if name in fitted:
            empty["fitted"][i] = torch.tensor(fitted[name], dtype=torch.float64)
            empty["told"][i] = 1
    return empty


def _tabulate_levels(p: Distribution, y: Tensor, smallest: int) -> dict[str, Tensor] | None:
    """How many rows lie inside the intervals of each level; None where no level may be shown."""
    empty = _empty(is_categorical=False)
    below = 0
    for i, level in enumerate(site_calibration(p, y).get("coverage", [])):
        within = round(level["observed"] * len(y))
        if min(within - below, len(y) - within) >= smallest:
            empty["inside"][i] = within
            below = within
    if not below:
        return None
    return empty


def _empty(is_categorical: bool) -> dict[str, Tensor]:
    """What a file holds beside the number of rows, without any."""
    if not is_categorical:
        return {"inside": torch.full((len(LEVELS),), WITHHELD)}
    return {
        "bins": torch.zeros(BINS, 2, dtype=torch.int64),
        "confidence": torch.zeros(BINS, dtype=torch.float64),
        "fitted": torch.zeros(len(RECALIBRATION), 3, dtype=torch.float64),
        "told": torch.zeros(len(RECALIBRATION), dtype=torch.int64),
    }


def read_evaluations(study: Study, model: str, paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Read what sites tell of a model's calibration.

    Args:
        study: The study.
        model: The checksum of the model that it must be about.
        paths: The sites' files.

    Returns:
        For each site whose file can be used, its calibration by the names of `run.json`, and a sentence for each file
        that is left out.

    Raises:
        InputError: The study did not agree on it, or no file can be used.
    """
    check_may_evaluate(study.agreement)
    envelopes, refused = from_sites(study, paths, KIND)
    sites = []
    for envelope in envelopes:
        try:
            with refuse_errors():
                sites.append(_admit(study, model, envelope))
        except InputError as error:
            refused.append(str(error))
    if not sites:
        raise InputError(f"No site's calibration can be used. {' '.join(refused)}".strip())
    order = [site.name for site in study.sites]
    return sorted(sites, key=lambda site: order.index(site["site"])), refused


def _admit(study: Study, model: str, envelope: Envelope) -> dict[str, Any]:
    """A site's calibration, if it can be one of its rows."""
    agreement = study.agreement
    name = envelope.header.sender
    if envelope.header.about.get("model") != model:
        raise InputError(f"{envelope.path} is about another model than this one: ask the site to evaluate this one.")
    value = envelope.value(TYPES)
    is_categorical = bool(agreement.target.classes)
    admit(value, {**_empty(is_categorical), "count": torch.tensor(0)}, envelope.path)
    rows = int(value["count"])
    most = rules_of(agreement, study.member(name).rows).largest_site
    if not agreement.smallest <= rows <= most:
        raise InputError(
            f"{envelope.path} is not used: it speaks for {rows:,} rows, and its site may for {agreement.smallest:,} "
            f"to {most:,}."
        )
    if is_categorical:
        sound = _are_bins(value, rows, agreement)
    else:
        sound = _are_levels(value["inside"].tolist(), rows, agreement.smallest)
    if not sound:
        raise InputError(f"{envelope.path} is not used: it cannot be the calibration of these rows under the rules.")
    if is_categorical:
        return {"site": name, "test": rows, **_read_bins(value)}
    return {"site": name, "test": rows, "coverage": _read_levels(value["inside"].tolist(), rows)}


def _are_bins(value: dict[str, Tensor], rows: int, agreement: Agreement) -> bool:
    """Whether bins hold all rows, none of them few, with probabilities that lie in them."""
    counts, hits = value["bins"].unbind(1)
    if not bool(((counts >= 0) & (counts <= rows) & (hits >= 0) & (hits <= counts)).all()):
        return False
    filled = counts > 0
    fewest = torch.minimum(hits, counts - hits)[filled]
    if int(counts.sum()) != rows or not bool(filled[-1]) or int(fewest.min()) < agreement.smallest:
        return False
    if bool((value["confidence"][~filled] != 0).any()):
        return False
    inside = [b.low - ROUNDING <= (b.confidence or 0.0) <= b.high + ROUNDING for b in _bins(value)]
    return all(inside) and _are_fits(value, len(agreement.target.classes))


def _are_fits(value: dict[str, Tensor], classes: int) -> bool:
    """Whether intercept and slope lie in their intervals; there are none but for two classes."""
    told = value["told"]
    known = told == 1
    if not bool((known | (told == 0)).all()) or bool(value["fitted"][~known].any()):
        return False
    if classes != 2 and bool(known.any()):
        return False
    estimate, low, high = value["fitted"].unbind(1)
    return bool(((low <= estimate) & (estimate <= high)).all())


def _are_levels(inside: Sequence[int], rows: int, smallest: int) -> bool:
    """Whether counts of rows inside intervals grow by enough, and leave enough outside."""
    told = [count for count in inside if count != WITHHELD]
    steps = [after - before for before, after in zip([0, *told], [*told, rows], strict=True)]
    return bool(told) and min(steps) >= smallest


def _bins(value: dict[str, Tensor]) -> list[Bin]:
    """The bins that are filled; each begins where the one before ends."""
    found: list[Bin] = []
    low = 0.0
    for place, (count, hits) in enumerate(value["bins"].tolist()):
        if not count:
            continue
        high = (place + 1) / BINS
        share = hits / count
        found.append(Bin(low, high, count, float(value["confidence"][place]), share, wilson(share, count)))
        low = high
    return found


def _read_bins(value: dict[str, Tensor]) -> dict[str, Any]:
    metrics = {}
    intervals = {}
    for name, told, (estimate, low, high) in zip(
        RECALIBRATION, value["told"].tolist(), value["fitted"].tolist(), strict=True
    ):
        if told:
            metrics[name] = estimate
            intervals[name] = [low, high]
    return {"reliability": [bin_json(b) for b in _bins(value)], "metrics": metrics, "intervals": intervals}


def _read_levels(inside: Sequence[int], rows: int) -> list[dict[str, Any]]:
    """The coverage at each level; one that is withheld has no value."""
    found: list[dict[str, Any]] = []
    for level, count in zip(LEVELS, inside, strict=True):
        if count == WITHHELD:
            found.append({"level": level, "observed": None, "interval": None})
        else:
            share = count / rows
            found.append(level_json(Coverage(level, share, wilson(share, rows))))
    return found
