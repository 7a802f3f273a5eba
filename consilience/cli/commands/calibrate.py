"""Commands around prediction sets: `site calibrate` and `study calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from consilience.cli.app import site_app, study_app
from consilience.cli.commands.site_rows import check_unchanged, kept_model, own_model, remembered
from consilience.cli.commands.study import write_pooled
from consilience.cli.handed import say, server_key, site_home, write_files
from consilience.cli.study_options import Files_, Key_, Ledger_, Memory_, Model_, SiteOut_, Study_, StudyOut_, Table_

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


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
    """Count how strange the rows held out look to the model, for `study calibrate` at the coordinator. No row leaves.

    Where each site has a threshold of its own, it is written to SITE.thresholds, which stays here.
    """
    from consilience.study.counting import Counts
    from consilience.study.model import read_model
    from consilience.study.prediction_sets import own_thresholds
    from consilience.study.protocol.guarantees import describe_counts, read_calibration
    from consilience.study.protocol.members import read

    study = read(study_file)
    plan = read_calibration(study.agreement)
    home = site_home(study, key)
    pooled = own_model(read_model(model, study), home, memory)
    opened = home.open(table, ledger, remembered(home, memory), keep=write_files)
    check_unchanged(opened.recalled)
    if plan.kind == "own":
        path = out_ or Path(f"{home.member.name}.thresholds")
        write_files(path, own_thresholds(opened.site, pooled), "Stays here")
        words = f"{model.name} TABLE --set {plan.level:g} --thresholds {path.name}"
        if pooled.own:
            words += f" --study {study_file.name} --memory {kept_model(home, memory)}"
        say(f"Next: `consilience predict {words}`.")
        return
    content = opened.site.answer(Counts(study, pooled)).content
    write_files(out_ or Path(f"{home.member.name}.calibration"), content, "For the coordinator")
    say(f"{len(opened.recalled.rows.calibrate.y):,} rows, used neither for training nor for choosing, were counted.")
    say(describe_counts(study.agreement))


@study_app.command("calibrate")
def calibrate_study(study_file: Study_, model: Model_, files: Files_, out_: StudyOut_ = None, key: Key_ = None) -> None:
    """Find the thresholds of prediction sets by the sites' counts, and write the model with them."""
    path = out_ or model.with_name(f"{model.stem}-calibrated{model.suffix}")
    write_calibrated(study_file, model, files, server_key(study_file, key), path)


def write_calibrated(
    study_file: Path, model: Path, files: Sequence[Path], signing_key: Ed25519PrivateKey, path: Path
) -> None:
    """Find a model's thresholds by the sites' files, write the model with them, and say what they promise."""
    from consilience.study.account import kept_account
    from consilience.study.model import read_model
    from consilience.study.prediction_sets import calibrate
    from consilience.study.protocol.members import read

    study = read(study_file)
    pooled = read_model(model, study)
    known = kept_account(model.with_suffix(".json"), pooled.checksum)
    calibrated = calibrate(study, pooled, files, signing_key, known)
    write_pooled(study_file, path, calibrated)
    guarantee = read_model(path, study).guarantee
    assert guarantee is not None
    say(str(guarantee))
    words = f"{path.name} TABLE --set {guarantee.level:g}"
    if guarantee.own_models:
        words += f" --study {study_file.name} --memory SITE.memory"
    say(f"Next: `consilience predict {words}`.")
