"""Prediction sets of a study: each site counts the scores of rows it set aside, the coordinator finds thresholds.

A site's table shows how strange its rows look to the model, and no row. Where tables are handed over one by one, cells
with few rows are counted in a cell above them, which only enlarges the sets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.admission.gate import refuse_errors
from consilience.agreement.agreement import Member, Study
from consilience.agreement.guarantees import calibration_of, fewest_scores
from consilience.data.sites import Data
from consilience.engines import threads_for, using_threads
from consilience.errors import InputError
from consilience.formats.codec import TYPES
from consilience.formats.envelope import Envelope, Header, open_envelope, seal
from consilience.guarantees.counts import merge_upwards
from consilience.guarantees.kinds import Calibration, find_guarantee, own_guarantee, site_table
from consilience.guarantees.scores import CALIBRATION, draws, row_scores
from consilience.guarantees.sets import Guarantee
from consilience.study.account import account
from consilience.study.admission import admit, rules_of
from consilience.study.coordinator import ChosenFiles, left_out, own_key
from consilience.study.files import from_sites
from consilience.study.model import Model, model_file


class Counted(NamedTuple):
    """What one site's file says.

    Attributes:
        site: The site's name.
        rows: How many rows it counted.
        table: Their scores on the agreed grid.
    """

    site: str
    rows: int
    table: Tensor


def score_rows(model: Model, plan: Calibration, number: int, rows: Data) -> Tensor:
    """Score the rows that a site set aside.

    Args:
        model: The pooled model.
        plan: What was agreed.
        number: The site's number in the study.
        rows: The rows.

    Returns:
        Their scores [N].
    """
    u = draws(model.agreement.key, CALIBRATION, len(rows.y), number)
    with torch.no_grad(), using_threads(threads_for(model.agreement.build_task())):
        return row_scores(plan.score, model.on_network_scale(rows.x), rows.y, u, plan.level)


def count(study: Study, member: Member, key: Ed25519PrivateKey, rows: Data, model: Model) -> bytes:
    """Write a site's file for the coordinator; where each site has its own threshold, the file that stays there.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        rows: The rows set aside to calibrate.
        model: The pooled model.

    Returns:
        The file.

    Raises:
        InputError: The study agreed on no prediction sets, or too few rows are set aside.
    """
    agreement = study.agreement
    plan = calibration_of(agreement)
    if len(rows.y) < agreement.smallest:
        raise InputError(
            f"Only {len(rows.y)} rows are set aside to calibrate and no count below {agreement.smallest} may be shown: "
            "this site sends no counts."
        )
    scores = score_rows(model, plan, member.number, rows)
    about: dict[str, Any] = {"model": model.checksum, "kind": plan.kind}
    if agreement.format > 1:
        about["number"] = member.number
    header = Header("calibration", agreement.hash, agreement.name, member.name, 1, about)
    if plan.kind == "own":
        own = own_guarantee(plan, [scores], [member.name])
        return seal({}, header._replace(kind="thresholds", about={**about, "guarantee": own.to_json()}), key)
    table = site_table(plan, scores, rows.y)
    rows_counted = len(rows.y)
    if plan.kind != "quantile":
        table = merge_upwards(table, fewest_scores(agreement))
        rows_counted = int(table.sum())
    return seal({"conformal": table, "count": torch.tensor(rows_counted)}, header, key)


def calibrate(
    study: Study, model: Model, paths: Sequence[Path], key: Ed25519PrivateKey, known: dict[str, Any] | None = None
) -> ChosenFiles:
    """Find thresholds from the sites' counts, and write the model with them.

    Args:
        study: The study.
        model: The model that the counts are about.
        paths: The sites' files.
        key: The coordinator's key.
        known: The account of the model when it was pooled or chosen.

    Returns:
        The files to hand out.

    Raises:
        InputError: The key is not the coordinator's, the model holds a site that left, too few sites' counts can be
            used, or too few rows are behind them.
    """
    agreement = study.agreement
    own_key(agreement, key)
    plan = calibration_of(agreement)
    if plan.kind == "own":
        raise InputError(
            "Each site has its own threshold in this study: `site calibrate` writes it, and it stays there."
        )
    gone = [name for name in model.facts.sites if name not in {site.name for site in study.active}]
    if gone:
        raise InputError(f"This model holds {', '.join(gone)}, who left the study: pool anew, from the first round.")
    counted, refused = read_counts(study, model, plan, paths)
    if len(counted) < agreement.fewest_sites:
        raise InputError(
            f"The counts of {len(counted)} site(s) can be used, and {agreement.fewest_sites} are agreed on as the "
            f"fewest. {' '.join(refused)}".strip()
        )
    total = torch.stack([each.table for each in counted]).sum(0)
    names = [each.site for each in counted]
    guarantee = find_guarantee(plan, total, [each.rows for each in counted], names)
    calibrated = dataclasses.replace(model, guarantee=guarantee)
    report = {**(known or account(study, model.facts))}
    report.pop("checksum", None)
    report["guarantee"] = {**guarantee.to_json(), "promise": guarantee.promise, "assumption": guarantee.assumption}
    missing = [name for name in model.facts.sites if name not in names]
    notes = left_out(refused)
    if missing:
        notes.append(f"Calibrated without counts of {', '.join(missing)}.")
    report["warnings"] = [*(report.get("warnings") or []), *notes]
    return ChosenFiles(model_file(calibrated, key), model.facts, tuple(refused), report)


def read_counts(
    study: Study, model: Model, plan: Calibration, paths: Sequence[Path]
) -> tuple[list[Counted], list[str]]:
    """Read the sites' counts about a model.

    Args:
        study: The study.
        model: The model that they must be about.
        plan: What was agreed.
        paths: The sites' files.

    Returns:
        The counts that can be used, and a sentence for each file that cannot.
    """
    envelopes, refused = from_sites(study, paths, "calibration")
    counted = []
    for envelope in envelopes:
        try:
            with refuse_errors():
                counted.append(_admit(study, model, plan, envelope))
        except InputError as error:
            refused.append(str(error))
    return counted, refused


def _admit(study: Study, model: Model, plan: Calibration, envelope: Envelope) -> Counted:
    """A site's counts, if they can be counts of its rows."""
    agreement = study.agreement
    rules = rules_of(agreement, study.member(envelope.header.sender).rows)
    if envelope.header.about.get("model") != model.checksum:
        raise InputError(f"{envelope.path} is about another model than this one: ask the site for new counts.")
    lines = 1
    if plan.kind == "class":
        lines = len(plan.classes)
    expected = {
        "conformal": torch.zeros(lines, len(plan.edges) + 1, dtype=torch.int64),
        "count": torch.tensor(0),
    }
    value = envelope.value(TYPES)
    admit(value, expected, envelope.path)
    table = value["conformal"]
    rows = int(value["count"])
    if not 0 < rows <= rules.largest_site:
        raise InputError(
            f"{envelope.path} is not used: it speaks for {rows:,} rows, and its site may for {rules.largest_site:,}."
        )
    in_table = rows
    smallest = fewest_scores(agreement)
    if plan.kind == "quantile":
        in_table = 1
        smallest = 1
    filled = table[table != 0]
    sound = bool((table >= 0).all()) and bool((table <= in_table).all()) and int(table.sum()) == in_table
    if not sound or bool((filled < smallest).any()) or rows < smallest:
        raise InputError(f"{envelope.path} cannot be counts of enough rows: not used.")
    return Counted(envelope.header.sender, rows, table)


def read_thresholds(path: Path, model: Model) -> Guarantee:
    """Read the threshold that a site keeps for itself.

    Args:
        path: The file that `site calibrate` wrote.
        model: The model it must be for.

    Returns:
        The guarantee at that site.

    Raises:
        InputError: The file is damaged, or is about another model.
    """
    envelope = open_envelope(path, "thresholds")
    if not envelope.signed_by(envelope.key):
        raise InputError(f"{path} is damaged: run `site calibrate` again.")
    if envelope.header.about.get("model") != model.checksum:
        raise InputError(f"{path} is about another model than this one: run `site calibrate` again.")
    return Guarantee.from_json(envelope.header.about.get("guarantee"))
