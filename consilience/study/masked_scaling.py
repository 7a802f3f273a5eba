"""Sums for the scaling under masks: keys are exchanged first, as nobody has joined yet.

Every number is summed as its place within the agreed range, from 0 to 1, so that what is masked is no larger than the
number of rows, whatever the column's unit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.errors import InputError
from consilience.privacy.secure_aggregation.masks import derive_key, is_usable, public_half
from consilience.serialisation.envelope import Header, bytes_of, seal
from consilience.serialisation.signature import public, sign, verifies
from consilience.study.files import from_sites
from consilience.study.joining import draft_hash, draft_of, scale_by
from consilience.study.masking import MaskBook
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column, Inspection
from consilience.study.protocol.columns import sums as add_up
from consilience.study.protocol.members import Member, Sender, Study
from consilience.study.protocol.names import check_name
from consilience.study.spending import Door, Leaving, agreed_rows
from consilience.study.summing import add_tables, mask_table

SCALING = "sums for the scaling"  # what is summed


def keys_text(agreement: Agreement, name: str, key: Ed25519PrivateKey) -> str:
    """Write what a site sends before it gives masked sums: its public keys, signed.

    Args:
        agreement: The study's agreement.
        name: The site's name.
        key: Its private key.

    Returns:
        The file's text, JSON.

    Raises:
        InputError: The name cannot be a site's, or the study does not mask sums for its scaling.
    """
    check_name(name)
    if not agreement.secure or agreement.scaling != "sums":
        raise InputError('Keys come first where sums for the scaling are masked: secure = true and scaling = "sums".')
    draft = draft_hash(agreement)
    masks = public_half(derive_key(key, draft))
    fields = {"site": name, "draft": draft, "key": public(key), "masks": masks}
    return json.dumps({**fields, "signature": sign(key, "masks", _words(draft, masks, name))}, indent=2) + "\n"


def with_keys(study: Study, paths: Sequence[Path]) -> Study:
    """List the sites that will give masked sums; the list is final once one of them has.

    Args:
        study: The study.
        paths: What `consilience site keys` wrote at the sites.

    Returns:
        The study with the sites' keys.

    Raises:
        InputError: A file cannot be used, or there are too few.
    """
    senders: list[Sender] = []
    for path in paths:
        try:
            value = json.loads(bytes_of(path, most=100_000))
            sender = Sender(*(str(value[name]) for name in ("site", "key", "masks", "signature")))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"{path} is not what `consilience site keys` writes: ask the site for it again.") from None
        if any(sender.name.casefold() == other.name.casefold() or sender.key == other.key for other in senders):
            raise InputError(f"{path} is a second file of '{sender.name}', or of its key: keep the right one.")
        senders.append(sender)
    made = replace(study, sums=tuple(sorted(senders)))
    _check_senders(made)
    return made


def _words(draft: str, masks: str, name: str) -> bytes:
    return f"{draft} {masks} {name}".encode()


def _check_senders(study: Study) -> None:
    """Refuse keys that are not signed by their sites, and too few of them."""
    draft = draft_hash(study.agreement)
    for sender in study.sums:
        check_name(sender.name)
        signed = verifies(sender.key, "masks", _words(draft, sender.masks, sender.name), sender.signature)
        if not signed or not is_usable(sender.masks):
            raise InputError(f"The key for masks of '{sender.name}' is not signed for this study: ask for it again.")
    if len(study.sums) < study.agreement.fewest_sites:
        raise InputError(
            f"Keys of {len(study.sums)} sites are here and the study asks for {study.agreement.fewest_sites} or more: "
            "with two, each could compute the other's sums."
        )


def draft_study(study: Study) -> Study:
    """Make the study of those that mask sums for the scaling, before anybody has signed.

    Args:
        study: The study, with the sites' keys.

    Returns:
        A study whose agreement lacks the constants.

    Raises:
        InputError: The keys are missing, or not signed.
    """
    _check_senders(study)
    members = tuple(
        Member(sender.name, number, sender.key, sender.signature, masks=sender.masks)
        for number, sender in enumerate(study.sums)
    )
    return Study(draft_of(study.agreement), members, text=study.text)


def masked_sums_file(
    study: Study, name: str, inspection: Inspection, key: Ed25519PrivateKey, book: Path, door: Door
) -> bytes:
    """Write a site's counts, sums and sums of squares under masks.

    Args:
        study: The study, with the sites' keys.
        name: The site's name.
        inspection: Its table.
        key: The site's private key.
        book: Its book of masks.
        door: Where the file leaves from, past the site's ledger.

    Returns:
        The signed file.

    Raises:
        InputError: The site's key is not listed, or it has given other sums.
    """
    agreement = study.agreement
    totals = add_up(agreement.columns, agreement.target, inspection, agreement.smallest)
    content = _masked_sums_file(study, name, totals, key, book)
    return door.let_out(agreement, key, Leaving("scaling sums", agreed_rows(agreement, inspection, key)), content)


def _masked_sums_file(study: Study, name: str, sums: Tensor, key: Ed25519PrivateKey, book: Path) -> bytes:
    """The file of `masked_sums_file`, which nothing charges."""
    draft = draft_study(study)
    member = draft.member(name)
    columns = (*study.agreement.columns, study.agreement.target.as_scaled())
    places = to_places(columns, sums)
    masked = mask_table(
        MaskBook(book, draft, member, key), SCALING, str(sums.tolist()), places, int(float(sums[:, 0].max()))
    )
    header = Header("sums", draft.agreement.hash, draft.agreement.name, name, 1, {"number": member.number})
    return seal({"masked": masked}, header, key)


def with_masked_scaling(study: Study, paths: Sequence[Path]) -> tuple[Agreement, tuple[Sender, ...]]:
    """Find the constants that columns are scaled by from the sites' masked sums.

    Args:
        study: The study, with the sites' keys.
        paths: What `consilience site sums` wrote at the sites.

    Returns:
        The agreement with the constants, and the sites they came from.

    Raises:
        InputError: A file is missing or cannot be used, or no tables can have such sums.
    """
    draft = draft_study(study)
    columns = (*study.agreement.columns, study.agreement.target.as_scaled())
    envelopes, refused = from_sites(draft, paths, "sums")
    try:
        like = torch.zeros(len(columns), 3, dtype=torch.float64)
        places = add_tables(draft, envelopes, [], like, SCALING).table
    except InputError as error:
        raise InputError(f"{error} {' '.join(refused)}".strip()) from error
    _check_places(places)
    senders = tuple(Sender(sender.name, sender.key) for sender in study.sums)
    return scale_by(study.agreement, of_places(columns, places)), senders


def _check_places(places: Tensor) -> None:
    """Refuse sums that no numbers from 0 to 1 have: Σ u ≤ n, Σ u² ≤ Σ u, and (Σ u)² ≤ n Σ u²."""
    count, first, second = places.unbind(1)
    rounding = 1e-3
    whole = bool((count == count.round()).all()) and bool((count >= 0).all())
    within = (first >= -rounding) & (first <= count + rounding) & (second <= first + rounding)
    if not whole or not bool((within & (first**2 <= (second + rounding) * count + rounding)).all()):
        raise InputError(
            "The sum over all sites is not used: no numbers within the agreed ranges have it. One of the sites sent "
            "something else than it should, and masks hide which."
        )


def to_places(columns: Sequence[Column], sums: Tensor) -> Tensor:
    """Sum places within the agreed ranges, u = (v − low) / (high − low), instead of numbers.

    Args:
        columns: The columns.
        sums: Count, Σ v and Σ v² of each, [columns, 3].

    Returns:
        Count, Σ u and Σ u² of each.
    """
    low, width = _ranges(columns)
    count, first, second = sums.unbind(1)
    return torch.stack(
        [count, (first - low * count) / width, (second - 2 * low * first + low**2 * count) / width**2], 1
    )


def of_places(columns: Sequence[Column], places: Tensor) -> Tensor:
    """Undo `to_places`.

    Args:
        columns: The columns.
        places: Count, Σ u and Σ u² of each, [columns, 3].

    Returns:
        Count, Σ v and Σ v² of each.
    """
    low, width = _ranges(columns)
    count, first, second = places.unbind(1)
    total = low * count + width * first
    return torch.stack([count, total, width**2 * second + 2 * low * total - low**2 * count], 1)


def _ranges(columns: Sequence[Column]) -> tuple[Tensor, Tensor]:
    """Lower ends and widths; categories have none and are not summed."""
    low = torch.tensor([c.range[0] for c in columns], dtype=torch.float64)
    width = torch.tensor([(c.range[1] - c.range[0]) or 1.0 for c in columns], dtype=torch.float64)
    return low, width
