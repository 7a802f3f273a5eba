"""Prediction sets of a study: each site counts the scores of rows it set aside, the coordinator finds thresholds.

A site's table shows how strange these rows look to the model, and no row. Cells with few rows are counted in a cell
above them, which only enlarges the sets; also before they are masked, so that no difference of sums shows a row. Under
masks a site with too few rows sends zeros, which nobody can tell from counts. Under differential privacy a table leaves
with noise, which is drawn once for each model and kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.aggregation.summands import Cells
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.prediction_sets.counts import add_noise, merge_upwards
from consilience.prediction_sets.kinds import Calibration, find_guarantee, own_guarantee, site_table
from consilience.prediction_sets.scores import CALIBRATION, draws, row_scores
from consilience.prediction_sets.sets import Guarantee
from consilience.privacy.dp.budget import UNBOUNDED, Cost, People
from consilience.privacy.entropy import Entropy
from consilience.runs.engines import threads_for, using_threads
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Header, open_envelope, seal
from consilience.study.account import account
from consilience.study.coordinator import ChosenFiles, left_out, own_key
from consilience.study.counting import add_counts
from consilience.study.files import open_file
from consilience.study.masking import MaskBook, book_path, counts_of
from consilience.study.model import Model, model_file
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.guarantees import calibration_of, describe_counts, fewest_scores
from consilience.study.protocol.members import Member, Study
from consilience.study.rows import draw_by_content, fingerprint
from consilience.study.spending import Door, Leaving, nothing, release
from consilience.study.summing import mask_table

KEPT = "counts"  # the kind of the file that keeps what left with noise


class Counts(NamedTuple):
    """What a site made of its rows.

    Attributes:
        file: What leaves; where each site has its own threshold, the file that stays.
        kept: What stays where noise was added, so that it is repeated and never drawn again; else nothing.
        repeated: Whether it is what was sent before.
    """

    file: bytes
    kept: bytes = b""
    repeated: bool = False


def kept_path(study: Study, member: Member, folder: Path = Path()) -> Path:
    """Say where a site keeps the counts that it sent with noise: one file for each study.

    Args:
        study: The study.
        member: The site.
        folder: Where the site keeps its files.
    """
    return folder / f"{member.name}-{study.agreement.hash[:8]}.counts"


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
    if not len(rows.y):
        return torch.zeros(0, dtype=torch.float64)
    u = draws(model.agreement.key, CALIBRATION, len(rows.y), number)
    if plan.noise:  # by place, one row more would change the scores of all after it
        u = draw_by_content(model.agreement, rows, "score")
    with torch.no_grad(), using_threads(threads_for(model.agreement.build_task())):
        return row_scores(plan.score, model.on_network_scale(rows.x), rows.y, u, plan.level)


def count(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    model: Model,
    door: Door,
    book: Path | None = None,
    kept: Path | None = None,
) -> Counts:
    """Write a site's file for the coordinator; where each site has its own threshold, the file that stays there.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        rows: The rows set aside to calibrate.
        model: The pooled model.
        door: Where counts leave from, past the site's ledger; it keeps those with noise.
        book: The site's book of masks, in a study that masks; by default here.
        kept: What the site keeps of counts with noise; by default here.

    Returns:
        The files.

    Raises:
        InputError: The study agreed on no prediction sets, too few rows are set aside, the model is not the site's own
            where the others' are, or the site has sent other counts.
    """
    counts = _count(study, member, key, rows, model, book, kept)
    if calibration_of(study.agreement).kind == "own":  # they stay here
        return counts
    keep = nothing
    if counts.kept:
        keep = partial(door.keep, counts.kept)
    leave = partial(door.leave, counts.file)
    release_counts(door.ledger, study.agreement, key, rows, door.people, model, counts, leave, keep)
    return counts


def _count(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    model: Model,
    book: Path | None = None,
    kept: Path | None = None,
) -> Counts:
    """The files of `count`, which nothing charges."""
    agreement = study.agreement
    plan = calibration_of(agreement)
    if plan.kind == "own":  # whichever model predicts here
        plan = plan._replace(own_models=model.own)
    if plan.own_models != model.own:
        raise InputError(
            "Prediction sets of this study are of the sites' own models, and this is a newcomer's: give "
            "what `site fit` kept with --memory. A site that took no part sends no counts."
        )
    shown = plan.kind == "own" or not (agreement.secure or plan.noise)
    if shown and len(rows.y) < agreement.smallest:
        raise InputError(
            f"Only {len(rows.y)} rows are set aside to calibrate and no count below {agreement.smallest} may be shown: "
            "this site sends no counts."
        )
    if agreement.kind == "survival" and model.baseline is None:
        raise InputError(
            "Lower bounds of times need survival curves, and this model has no baseline: first `site statistics` at "
            "the sites and `study choose` at the coordinator."
        )
    scores = score_rows(model, plan, member.number, rows)
    about: dict[str, Any] = {"model": model.checksum, "kind": plan.kind, "number": member.number}
    header = Header("calibration", agreement.hash, agreement.name, member.name, 1, about)
    if plan.kind == "own":
        own = own_guarantee(plan, [scores], [member.name])
        return Counts(seal({}, header._replace(kind="thresholds", about={**about, "guarantee": own.to_json()}), key))
    table = site_table(plan, scores, rows.y)
    if plan.noise:
        return _with_noise(study, member, key, rows, header, plan, table, book, kept)
    counted = len(rows.y)
    if plan.kind != "quantile":
        table = merge_upwards(table, fewest_scores(agreement))
        counted = int(table.sum())
    return Counts(_seal(study, member, key, rows, header, table, counted, book))


def _seal(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    header: Header,
    table: Tensor,
    counted: int,
    book: Path | None,
) -> bytes:
    """The file that leaves, masked where that was agreed; a site without rows says so only under its mask."""
    if not study.agreement.secure:
        return seal({"conformal": table, "count": torch.tensor(counted)}, header, key)
    masks = MaskBook(book or book_path(study, member), study, member, key)
    has_rows = torch.tensor(float(counted > 0), dtype=torch.float64)
    what = counts_of(str(header.about["model"]))
    masked = mask_table(masks, what, fingerprint(rows), Cells(table.double(), has_rows), counted)
    return seal({"masked": masked}, header, key)


def _with_noise(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    header: Header,
    plan: Calibration,
    table: Tensor,
    book: Path | None,
    kept: Path | None,
) -> Counts:
    """The table with noise from the operating system, or the one that was sent before; how many rows is not said."""
    agreement = study.agreement
    assert agreement.privacy is not None
    agreement.privacy.check(len(study.active), sum(site.rows for site in study.active))
    model = str(header.about["model"])
    path = kept or kept_path(study, member)
    tables, made_from = _read_kept(study, member, path)
    repeated = model in tables
    if repeated and made_from.get(model) != fingerprint(rows):
        raise InputError(
            "This site has sent counts of other rows about this model, and a second answer would cost twice the "
            f"privacy budget: use the table of then, which {path} keeps."
        )
    if not repeated:
        tables[model] = add_noise(table, plan.noise, Entropy())
        made_from[model] = fingerprint(rows)
    remembered = seal(tables, header._replace(kind=KEPT, about={"rows": made_from}), key)
    return Counts(_seal(study, member, key, rows, header, tables[model], 0, book), remembered, repeated)


def _read_kept(study: Study, member: Member, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tables that left with noise and the rows they were made from, by model."""
    if not path.exists():
        return {}, {}
    envelope = open_file(study, path, KEPT)
    if envelope.header.sender != member.name:
        raise InputError(f"{path} is another site's: give this site's own.")
    return dict(envelope.value(TYPES)), dict(envelope.header.about["rows"])


def release_counts(
    path: Path,
    agreement: Agreement,
    key: Ed25519PrivateKey,
    rows: Data,
    people: People,
    model: Model,
    counts: Counts,
    leave: Callable[[], None],
    keep: Callable[[], None],
) -> None:
    """Let counts leave a site. Their rows train nobody: they spend a budget of their own.

    Args:
        path: The ledger's file.
        agreement: The study's agreement.
        key: The site's private key.
        rows: The rows that were counted.
        people: Whose they are.
        model: The pooled model.
        counts: What is to leave.
        leave: Writes them where they leave from.
        keep: Writes what the site must remember.

    Raises:
        InputError: The budget does not allow it.
    """
    if not len(rows.y):  # nobody's: zeros, with noise or without
        keep()
        return leave()
    spent = UNBOUNDED
    if agreement.privacy is not None:
        spent = Cost(agreement.privacy.mu)
    what = f"counts about {model.checksum[:12]}"
    leaving = Leaving(what, rows, people, "calibrate", cost=spent, repeated=counts.repeated, one_model=not counts.kept)
    release(path, agreement, key, leaving, leave, keep)


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
    total = add_counts(study, model.checksum, plan, paths)
    summed = plan._replace(noise=plan.noise * len(total.names))
    guarantee = find_guarantee(summed, total.table, total.sizes, total.names, groups=total.groups)
    calibrated = dataclasses.replace(model, guarantee=guarantee)
    report = {**(known or account(study, model.facts))}
    report.pop("checksum", None)
    report["guarantee"] = {**guarantee.to_json(), "promise": guarantee.promise, "assumption": guarantee.assumption}
    report["guarantee"]["leaves"] = describe_counts(agreement)
    missing = [name for name in model.facts.sites if name not in total.names]
    notes = left_out(total.refused)
    if missing:
        notes.append(f"Calibrated without counts of {', '.join(missing)}.")
    report["warnings"] = [*(report.get("warnings") or []), *notes]
    return ChosenFiles(model_file(calibrated, key), model.facts, tuple(total.refused), report)


def check_whose(model: Model, guarantee: Guarantee) -> None:
    """Refuse thresholds of another model than the one that predicts.

    Args:
        model: The model that predicts.
        guarantee: The thresholds.

    Raises:
        InputError: They are of the sites' own models and this is a newcomer's, or the other way round.
    """
    if guarantee.own_models == model.own:
        return
    if model.own:
        raise InputError(
            "These thresholds are of the model for all sites, and this is the site's own: leave --memory out, or "
            "calibrate again."
        )
    raise InputError(
        "These thresholds are of the sites' own models: a site that took part gives --study and --memory. Nothing is "
        "promised of the sets of a newcomer."
    )


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
