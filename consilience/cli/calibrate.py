"""Commands around prediction sets: `site calibrate` and `study calibrate`, and what `predict --set` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from consilience.cli.handed import Key_, Memory_, Model_, Study_, Table_, say, server_key, site_identity, write_files
from consilience.cli.site import Ledger_, site_app
from consilience.cli.site import Out_ as SiteOut_
from consilience.cli.site_rows import check_unchanged, remembered
from consilience.cli.study import Files_, Out_, write_pooled
from consilience.cli.study_new import study_app
from consilience.disk.locks import lock_file
from consilience.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from consilience.data.sites import Data
    from consilience.guarantees.sets import Guarantee
    from consilience.study.model import Model


@site_app.command("calibrate")
def calibrate_site(
    study_file: Study_,
    model: Model_,
    table: Table_,
    out_: SiteOut_ = None,
    key: Key_ = None,
    memory: Memory_ = None,
    ledger: Ledger_ = None,
) -> None:
    """Count how strange the rows set aside look to the model, for `study calibrate` at the coordinator. No row leaves.

    Where each site has a threshold of its own, it is written to SITE.thresholds, which stays here.
    """
    from consilience.agreement.guarantees import calibration_of, describe_counts
    from consilience.agreement.members import read
    from consilience.study.calibration import charge_counts, count, kept_path
    from consilience.study.model import read_model
    from consilience.study.recall import recall
    from consilience.study.rows import rows_of

    study = read(study_file)
    plan = calibration_of(study.agreement)
    member, signing_key = site_identity(study, key)
    pooled = read_model(model, study)
    data, _ = rows_of(study.agreement, table, one_class=True)
    recalled = recall(study.agreement, member.number, signing_key, remembered(member.name, memory), data)
    check_unchanged(recalled)
    rows = recalled.rows
    kept = kept_path(study, member)
    with lock_file(kept):
        counts = count(study, member, signing_key, rows.calibrate, pooled, kept=kept)
        if plan.kind == "own":
            path = out_ or Path(f"{member.name}.thresholds")
            write_files(path, counts.file, "Stays here")
            say(f"Next: `consilience predict {model.name} TABLE --set {plan.level:g} --thresholds {path.name}`.")
            return
        path = ledger or Path(f"{member.name}.ledger")
        charge_counts(path, study.agreement, signing_key, rows.calibrate, pooled, counts)  # first: see `site fit`
        if counts.kept:
            write_files(kept, counts.kept, "Stays here, so that noise is not drawn again")
        write_files(out_ or Path(f"{member.name}.calibration"), counts.file, "For the coordinator")
    say(f"{len(rows.calibrate.y):,} rows, used neither for training nor for choosing, were counted.")
    say(describe_counts(study.agreement))


@study_app.command("calibrate")
def calibrate_study(study_file: Study_, model: Model_, files: Files_, out_: Out_ = None, key: Key_ = None) -> None:
    """Find the thresholds of prediction sets by the sites' counts, and write the model with them."""
    from consilience.agreement.members import read
    from consilience.study.account import kept_account
    from consilience.study.calibration import calibrate
    from consilience.study.model import read_model

    study = read(study_file)
    signing_key = server_key(study_file, key)
    pooled = read_model(model, study)
    known = kept_account(model.with_suffix(".json"), pooled.checksum)
    calibrated = calibrate(study, pooled, files, signing_key, known)
    path = out_ or model.with_name(f"{model.stem}-calibrated{model.suffix}")
    write_pooled(study_file, path, calibrated)
    guarantee = read_model(path, study).guarantee
    assert guarantee is not None
    say(str(guarantee))
    say(f"Next: `consilience predict {path.name} TABLE --set {guarantee.level:g}`.")


def find_thresholds(pooled: Model, level: float, thresholds: Path | None) -> Guarantee:
    """Find a model's thresholds for a level, or those that a site keeps for itself."""
    from consilience.study.calibration import read_thresholds

    guarantee = pooled.guarantee
    if thresholds is not None:
        guarantee = read_thresholds(thresholds, pooled)
    if guarantee is None:
        raise InputError(
            "This model holds no thresholds for prediction sets: the sites run `site calibrate`, the coordinator "
            "`study calibrate`."
        )
    if guarantee.level != level:
        raise InputError(
            f"The thresholds of this model are for --set {guarantee.level:g}, not for {level:g}: another level needs "
            "another study."
        )
    return guarantee


def show_coverage(pooled: Model, guarantee: Guarantee, rows: Data) -> None:
    """Say how often a model's prediction sets hold the truth on some rows, and how large they are."""
    from consilience.findings.numbers import percent
    from consilience.findings.prediction_sets import write_size
    from consilience.guarantees.measured import measure
    from consilience.guarantees.sets import contains

    inside, sizes = contains(pooled.on_network_scale(rows.x), rows.y, guarantee)
    target = pooled.agreement.target
    if not target.classes:
        sizes = sizes * target.spread
    covered = measure(inside, sizes)
    low, high = (percent(end) for end in covered.interval)
    size = write_size(covered.size, not target.classes)
    share = f"{percent(covered.coverage, 1)} of {covered.rows:,} rows ({low} to {high})"
    say(f"Prediction sets for {percent(guarantee.level)} hold {share}, {size} on average.")


def set_columns(pooled: Model, guarantee: Guarantee, x: Tensor) -> tuple[list[str], list[list[str]]]:
    """Write prediction sets as further columns of a table: the classes of a set, or the ends of an interval."""
    from consilience.guarantees.sets import prediction_intervals, prediction_sets
    from consilience.predictive import Categorical, Normal

    site = None
    if guarantee.kind == "own":
        site = guarantee.names[0]
    target = pooled.agreement.target
    p = pooled.on_network_scale(x)
    if isinstance(p, Categorical):
        return write_sets(guarantee.level, target.classes, prediction_sets(p, guarantee, site))
    assert isinstance(p, Normal)  # no study predicts counts or times
    low, high = (end * target.spread + target.centre for end in prediction_intervals(p, guarantee, site))
    return write_intervals(guarantee.level, low, high)


def write_sets(level: float, classes: Sequence[str], sets: Tensor) -> tuple[list[str], list[list[str]]]:
    """Write sets of classes as a column."""
    texts = [" | ".join(c for c, inside in zip(classes, row, strict=True) if inside) for row in sets.tolist()]
    return [f"set{100 * level:g}"], [[text] for text in texts]


def write_intervals(level: float, low: Tensor, high: Tensor) -> tuple[list[str], list[list[str]]]:
    """Write the ends of intervals as two columns."""
    rows = [[f"{a:.6g}", f"{b:.6g}"] for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    percent = f"{100 * level:g}"
    return [f"set_low{percent}", f"set_high{percent}"], rows
