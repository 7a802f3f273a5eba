"""The baseline hazard of a study's survival model, and Kaplan and Meier's curve beside it, from the sites' sums.

A partial likelihood says how hazards compare, not how large they are. Once a model is pooled, each site adds up its
training rows on the agreed times: events, censored rows, rows at risk, and the hazard at risk under the model. Steps
with few events or censored rows are made one before anything leaves. The sums of all sites give one baseline for all,
by Breslow, though the coefficients are stratified by site.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.curves import (
    Curve,
    TimeSums,
    baseline,
    curve_of,
    hide_few,
    limit_hazards,
    protect,
    protect_hazards,
    sum_times,
)
from consilience.distributions.survival import Survival
from consilience.errors import InputError
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Envelope, Header, seal
from consilience.study.admission import admit, rules_of
from consilience.study.files import from_sites
from consilience.study.masked_round import read_told, sort_files
from consilience.study.masking import MaskBook, book_path, statistics_of
from consilience.study.model import Baseline, Model
from consilience.study.protocol.members import Member, Study
from consilience.study.rows import fingerprint
from consilience.study.spending import Door, Leaving
from consilience.study.summing import add_tables, mask_table
from consilience.study.validation.gate import refuse_errors

LINES = 4  # of a site's table: events, censored rows, rows at risk, hazard at risk
ROUNDING = 1e-3  # of sums that are added up under masks


class Found(NamedTuple):
    """What the sites' sums give.

    Attributes:
        baseline: The cumulative baseline hazard.
        curve: Kaplan and Meier's curve of all training rows.
        sites: Whose sums they are.
        rows: How many rows stand behind them.
        refused: A sentence for each file that is left out.
    """

    baseline: Baseline
    curve: Curve
    sites: tuple[str, ...]
    rows: int
    refused: tuple[str, ...]


def sum_rows(model: Model, data: Data) -> Tensor:
    """Add up a site's training rows on the agreed times, under the disclosure rules.

    Args:
        model: The pooled model.
        data: The rows that the site trained on.

    Returns:
        Events, censored rows, rows at risk and hazards at risk [4, T].

    Raises:
        InputError: The site has too few events to send sums that show none of them.
    """
    times = torch.tensor(model.agreement.target.times, dtype=torch.float64)
    p = model(data.x)
    assert isinstance(p, Survival)
    smallest = model.agreement.smallest
    y = hide_few(data.y, times, smallest)
    sums = sum_times(y, times)
    hazards = sum_times(y, times, limit_hazards((p.risk + p.var / 2).exp(), y, times, smallest)).at_risk
    shown = protect(sums, times, smallest)
    return torch.stack([*shown[:3], protect_hazards(hazards, sums, times, smallest)])


def sums_file(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    data: Data,
    model: Model,
    door: Door,
    book: Path | None = None,
) -> bytes:
    """Write a site's sums on the agreed times, for a model's baseline.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        data: The rows that it trained on.
        model: The pooled model.
        door: Where the file leaves from, past the site's ledger.
        book: The site's book of masks, in a study that masks; by default here.

    Returns:
        The file that leaves.

    Raises:
        InputError: The site has too few events to send sums that show none of them.
    """
    content = _sums_file(study, member, key, data, model, book)
    leaving = Leaving(f"statistics about {model.checksum[:12]}", data, part="train", one_model=True)
    return door.let_out(study.agreement, key, leaving, content)


def _sums_file(
    study: Study, member: Member, key: Ed25519PrivateKey, data: Data, model: Model, book: Path | None = None
) -> bytes:
    """The file of `sums_file`, which nothing charges."""
    agreement = study.agreement
    table = sum_rows(model, data)
    about = {"number": member.number, "model": model.checksum}
    header = Header("statistics", agreement.hash, agreement.name, member.name, 1, about)
    if not agreement.secure:
        return seal({"times": table, "count": torch.tensor(len(data.y))}, header, key)
    masks = MaskBook(book or book_path(study, member), study, member, key)
    masked = mask_table(masks, statistics_of(model.checksum), fingerprint(data), table, len(data.y))
    return seal({"masked": masked}, header, key)


def find_baseline(study: Study, model: Model, paths: Sequence[Path]) -> Found:
    """Add the sites' sums up, and find the baseline and the curve.

    Args:
        study: The study.
        model: The model that the sums must be about.
        paths: The sites' files.

    Returns:
        What they give.

    Raises:
        InputError: Fewer sites than agreed sent sums that can be used, or they hold too few events.
    """
    agreement = study.agreement
    times = torch.tensor(agreement.target.times, dtype=torch.float64)
    if agreement.secure:
        total, rows, names, refused = _read_masked(study, model, paths)
    else:
        total, rows, names, refused = _read_plain(study, model, paths)
    agreement.disclosure.check_sites(len(names), "files of sums", " ".join(refused))
    count = torch.tensor(float(rows), dtype=torch.float64)
    people = TimeSums(total[0], total[1], total[2], count)
    hazard = baseline(times, [TimeSums(total[0], total[1], total[3], count)], agreement.smallest)
    found = Baseline(agreement.target.times, tuple(hazard.tolist()))
    return Found(found, curve_of(times, people, agreement.smallest), names, rows, tuple(refused))


def _read_plain(study: Study, model: Model, paths: Sequence[Path]) -> tuple[Tensor, int, tuple[str, ...], list[str]]:
    """The sum of the sites' tables, the rows behind it, whose they are, and a sentence for each that is left out."""
    envelopes, refused = from_sites(study, paths, "statistics")
    total = torch.zeros(LINES, len(study.agreement.target.times), dtype=torch.float64)
    rows = 0
    names = []
    for envelope in envelopes:
        try:
            with refuse_errors():
                table, count = _admit(study, model, envelope)
        except InputError as error:
            refused.append(str(error))
            continue
        total = total + table
        rows += count
        names.append(envelope.header.sender)
    return total, rows, tuple(names), refused


def _admit(study: Study, model: Model, envelope: Envelope) -> tuple[Tensor, int]:
    _check_model(model, envelope)
    like = torch.zeros(LINES, len(study.agreement.target.times), dtype=torch.float64)
    value = envelope.value(TYPES)
    admit(value, {"times": like, "count": torch.tensor(0)}, envelope.path)
    count = int(value["count"])
    most = rules_of(study.agreement, study.member(envelope.header.sender).rows).largest_site
    _check_table(study, value["times"], count, most, envelope.path)
    return value["times"], count


def _read_masked(study: Study, model: Model, paths: Sequence[Path]) -> tuple[Tensor, int, tuple[str, ...], list[str]]:
    own, told_paths = sort_files(paths)
    envelopes, refused = from_sites(study, own, "statistics")
    told, others = read_told(study, told_paths, 1)
    for envelope in envelopes:
        _check_model(model, envelope)
    like = torch.zeros(LINES, len(study.agreement.target.times), dtype=torch.float64)
    summed = add_tables(study, envelopes, told, like, statistics_of(model.checksum))
    assert isinstance(summed.table, Tensor)
    most = sum(study.member(name).rows for name in summed.names)
    _check_table(study, summed.table, summed.rows, most, "The sum of the statistics")
    return summed.table, summed.rows, summed.names, [*refused, *others, *summed.refused]


def _check_model(model: Model, envelope: Envelope) -> None:
    if envelope.header.about.get("model") != model.checksum:
        raise InputError(f"{envelope.path} is about another model than this one: ask the site for new statistics.")


def _check_table(study: Study, table: Tensor, rows: int, most: int, where: str) -> None:
    """Refuse sums that no site under the study's rules can have."""
    events, censored, at_risk, hazards = table
    smallest = study.agreement.smallest
    if not smallest <= rows <= most:
        raise InputError(f"{where} is not used: it speaks for {rows:,} rows; {smallest} to {most:,} are expected.")
    people = float((events + censored).sum())
    sound = bool((table >= -ROUNDING).all()) and people <= rows + ROUNDING
    sound &= bool((at_risk <= rows + ROUNDING).all()) and bool((at_risk.diff() <= ROUNDING).all())
    sound &= bool((hazards.diff() <= ROUNDING * (1 + float(hazards.max()))).all())
    sound &= smallest - ROUNDING <= float(events.sum())
    if not sound:
        raise InputError(f"{where} is not used: its numbers cannot be sums over people who leave one after another.")
