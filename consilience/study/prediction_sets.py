"""Prediction sets of a study: the coordinator finds thresholds by the sites' counts, or each site finds its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.errors import InputError
from consilience.prediction_sets.kinds import find_guarantee, own_guarantee
from consilience.prediction_sets.sets import Guarantee
from consilience.study.account import account
from consilience.study.coordinator import ChosenFiles, left_out, own_key
from consilience.study.counting import Counts, add_counts, score_site
from consilience.study.model import Model, model_file
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.guarantees import describe_counts, read_calibration
from consilience.study.protocol.members import Study
from consilience.study.site import Site


def own_thresholds(site: Site, model: Model) -> bytes:
    """Write the threshold of a site that has its own: the file stays there.

    Args:
        model: The model that predicts there, the pooled one or the site's own.

    Raises:
        InputError: Too few rows are held out.
    """
    agreement, member = site.study.agreement, site.member
    plan = read_calibration(agreement)._replace(own_models=model.own)  # whichever model predicts here
    scores = score_site(agreement, plan, model, member.number, site.role(Counts.part))
    own = own_guarantee(plan, [scores], [member.name])
    about = {"model": model.checksum, "kind": plan.kind, "number": member.number, "guarantee": own.to_json()}
    return seal({}, Header("thresholds", agreement.hash, agreement.name, member.name, 1, about), site.key)


def calibrate(
    study: Study, model: Model, paths: Sequence[Path], key: Ed25519PrivateKey, known: dict[str, Any] | None = None
) -> ChosenFiles:
    """Find thresholds from the sites' counts, and write the model with them.

    Args:
        model: The model that the counts are about.
        known: The account of the model when it was pooled or chosen.

    Returns:
        The files to distribute.

    Raises:
        InputError: The key is not the coordinator's, the model holds a site that left, too few sites' counts can be
            used, or too few rows are behind them.
    """
    agreement = study.agreement
    own_key(agreement, key)
    plan = read_calibration(agreement)
    if plan.kind == "own":
        raise InputError(
            "Each site has its own threshold in this study: `site calibrate` writes it, and it stays there."
        )
    gone = [name for name in model.facts.sites if name not in {site.name for site in study.active}]
    if gone:
        raise InputError(f"This model holds {', '.join(gone)}, who left the study: pool anew, from the first round.")
    total = add_counts(study, model, paths)
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

    Raises:
        InputError: The file is damaged, or is about another model.
    """
    envelope = open_envelope(path, "thresholds")
    if not envelope.signed_by(envelope.key):
        raise InputError(f"{path} is damaged: run `site calibrate` again.")
    if envelope.header.about.get("model") != model.checksum:
        raise InputError(f"{path} is about another model than this one: run `site calibrate` again.")
    return Guarantee.from_json(envelope.header.about.get("guarantee"))
