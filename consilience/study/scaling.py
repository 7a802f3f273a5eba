"""The scaling of a study's columns by sums of the sites: signed in the open, or under masks, for which keys come first.

Every number is masked as its place within the agreed range, from 0 to 1, so that what is masked is no larger than the
number of rows, whatever the column's unit.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.data.quantiles import quantiles_from
from consilience.errors import InputError
from consilience.models.hats import LEVELS
from consilience.models.maps import knows_quantiles
from consilience.privacy.disclosure.rules import FEWEST_SITES, by_rule
from consilience.privacy.secure_aggregation.masks import derive_key, is_usable, public_half
from consilience.study.exchange import File, Made, Part, add, hear
from consilience.study.joining import draft_hash, draft_of
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.columns import sums as add_up
from consilience.study.protocol.envelope import Envelope, bytes_of, open_envelope
from consilience.study.protocol.members import Member, Sender, Study
from consilience.study.protocol.names import check_name
from consilience.study.protocol.signature import public, sign, verifies
from consilience.study.spending import agreed_rows
from consilience.study.summing import mask_table
from consilience.study.validation.gate import Rules
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site

SCALING = "sums for the scaling"  # what is summed
SLIGHT = 1e-3  # rounding of a masked count
GRID = 128  # cells of a column's range, in which values are counted where a feature map asks for quantiles


def keys_text(agreement: Agreement, name: str, key: Ed25519PrivateKey) -> str:
    """Write what a site sends before it gives masked sums: its public keys, signed.

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
        paths: What `consilience site keys` wrote at the sites.

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
    """Make the study of those that give sums for the scaling, before anybody has signed.

    Args:
        study: The study, with the sites' keys where sums are masked.

    Returns:
        A study whose agreement lacks the constants.

    Raises:
        InputError: The keys for masks are missing, or not signed.
    """
    if study.agreement.secure:
        _check_senders(study)
    members = tuple(
        Member(sender.name, number, sender.key, sender.signature, masks=sender.masks)
        for number, sender in enumerate(study.sums)
    )
    return Study(draft_of(study.agreement), members, text=study.text)


class Scaling(File):
    """Counts, sums and sums of squares of the numeric columns, before anybody has signed; and counts on a grid.

    The counts are for feature maps that are laid out by quantiles, and none is of fewer rows than may be shown.

    Under masks every number is summed as its place within the agreed range.
    """

    kind = "sums"
    title = "scaling sums"

    def __init__(self, study: Study) -> None:
        """Ask for sums.

        Args:
            study: The study; under masks with the sites' keys.

        Raises:
            InputError: The constants are agreed in advance, or under masks the keys are missing.
        """
        agreement = study.agreement
        if agreement.scaling != "sums":
            raise InputError(
                'This study\'s constants are agreed in advance (scaling = "agreed"): no sums are needed, and nothing '
                "has to be computed."
            )
        super().__init__(draft_study(study))
        self.columns = (*agreement.columns, agreement.target.as_scaled())
        self.grid = GRID * knows_quantiles(agreement.features)

    @property
    def masked(self) -> str:
        """What the sum is called under masks."""
        return SCALING if self.study.agreement.secure else ""

    def about(self, member: Member) -> dict[str, Any]:
        """Say nothing in the open: nobody has a number yet."""
        if self.masked:
            return super().about(member)
        return {}

    def open(self, paths: Sequence[Path]) -> tuple[list[Envelope], list[str]]:
        """Open the sites' files; in the open they are signed with keys that nobody has listed.

        Raises:
            InputError: One is of another study, or not signed by its sender, or a second one of a site.
        """
        if self.masked:
            return super().open(paths)
        found: list[Envelope] = []
        for path in paths:
            envelope = open_envelope(path, self.kind, most=10_000_000)
            name = envelope.header.sender
            if envelope.header.study != self.study.agreement.hash:
                raise InputError(f"{path} belongs to another study ('{envelope.header.study_name}').")
            again = any(
                name.casefold() == other.header.sender.casefold() or envelope.key == other.key for other in found
            )
            if not envelope.signed_by(envelope.key) or again:
                raise InputError(f"{path} is not signed by its sender, or a second file of '{name}': ask for it again.")
            check_name(name)
            found.append(envelope)
        return found, []

    def make(self, site: Site) -> Made:
        """Add the columns up.

        Raises:
            InputError: The table does not fit the agreement.
        """
        agreement = self.study.agreement
        sums = add_up(agreement.columns, agreement.target, site.table, agreement.smallest, self.grid)
        return Made(sums, int(float(sums[:, 0].max())), agreed_rows(agreement, site.table, site.key))

    def mask(self, site: Site, made: Made) -> Tree:
        """Put a mask over the sums."""
        decides = str(made.value.tolist())
        return {"masked": mask_table(site.masks, self.masked, decides, self.summand(made.value), made.rows)}

    def form(self) -> Tensor:
        """Give a file's value without any rows."""
        return torch.zeros(len(self.columns), 3 + self.grid, dtype=torch.float64)

    def summand(self, value: Tensor) -> Tensor:
        """Turn sums into what is added up.

        Args:
            value: What a file holds in the open.
        """
        if self.masked:
            return torch.cat([to_places(self.columns, value[:, :3]), value[:, 3:]], 1)
        return value

    def count(self, value: Tensor) -> int:
        """Read how many rows stand behind sums.

        Args:
            value: What the file holds.
        """
        return int(float(value[:, 0].max()))

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse sums that no table of the agreed columns can have.

        Args:
            most: More rows than anybody has.

        Raises:
            InputError: It is not used.
        """
        smallest = self.study.agreement.smallest
        if self.masked:
            _check_places(part.table[:, :3])
        else:
            check_sums(self.columns, part.table[:, :3], smallest, where)
        if self.grid:
            check_counts(self.columns[:-1], part.table, smallest, where)


def with_scaling(study: Study, paths: Sequence[Path]) -> tuple[Agreement, tuple[Sender, ...]]:
    """Find the constants that columns are scaled by from the sites' sums.

    Args:
        study: The study; under masks with the sites' keys.
        paths: What `consilience site sums` wrote at the sites.

    Returns:
        The agreement with the constants, and the sites they came from.

    Raises:
        InputError: The constants are agreed in advance, a file cannot be used, there are too few, or no tables can have
            such sums.
    """
    agreement = study.agreement
    scaling = Scaling(study)
    if not scaling.masked:
        senders = tuple(Sender(envelope.header.sender, envelope.key) for envelope in scaling.open(paths)[0])
        scaling = Scaling(replace(study, sums=senders))
    parts, refused = hear(scaling, paths)
    if refused and not scaling.masked:
        raise InputError(refused[0])
    names = [name for part in parts for name in part.sites]
    if len(names) < agreement.fewest_sites:
        sentence = (
            f"Sums of {len(names)} sites are here and the study asks for {agreement.fewest_sites} or more: with two, "
            "each could compute the other's."
        )
        raise InputError(by_rule(FEWEST_SITES, sentence))
    total = add(parts)
    if scaling.masked:
        total = torch.cat([of_places(scaling.columns, total[:, :3]), total[:, 3:].round()], 1)
    return scale_by(agreement, total), tuple(Sender(site.name, site.key) for site in scaling.study.sites)


def scale_by(agreement: Agreement, total: Tensor) -> Agreement:
    """Write the constants into an agreement.

    Args:
        total: Count, sum and sum of squares of each column and the target over all sites, and counts on a grid where
            there are some, [columns, 3 + grid].
    """
    columns = (*agreement.columns, agreement.target.as_scaled())
    *scaled, last = (_scale(column, *row) for column, row in zip(columns, total.tolist(), strict=True))
    target = dataclasses.replace(agreement.target, centre=last.centre, spread=last.spread)
    scaling = dataclasses.replace(agreement, columns=tuple(scaled), target=target)
    scaling.check()
    return scaling


def check_counts(columns: Sequence[Column], table: Tensor, smallest: int, where: str) -> None:
    """Refuse counts on a grid that are not those of the rows that are summed up.

    Args:
        columns: The agreed columns, without the target.
        table: Count, sum, sum of squares and counts of each, and of the target, [columns + 1, 3 + grid].
        smallest: The fewest that are shown.
        where: Where they are from, such as a file.

    Raises:
        InputError: No table has them; the sentence names the first column.
    """
    counts = table[:, 3:]
    small = (counts < smallest - SLIGHT) & (counts.abs() > SLIGHT)
    odd = small.any(1) | ((counts - counts.round()).abs() > SLIGHT).any(1)
    odd[:-1] |= (counts[:-1].sum(1) - table[:-1, 0]).abs() > SLIGHT
    odd[-1] |= bool((counts[-1] != 0).any())
    if odd.any():
        name = [*(column.name for column in columns), "the target"][int(odd.int().argmax())]
        raise InputError(
            f"{where} is not used: the counts of '{name}' on the agreed grid are not whole numbers from {smallest} on "
            "that add up to its rows."
        )


def check_sums(columns: Sequence[Column], sums: Tensor, smallest: int, where: str) -> None:
    """Refuse sums that no table of the agreed columns can have.

    Args:
        columns: The agreed columns and the target.
        sums: Count, sum and sum of squares of each, [columns, 3].
        smallest: The fewest values that are summed up.
        where: Where they are from, such as a file.

    Raises:
        InputError: They cannot be sums of such columns; the sentence names the first.
    """
    for column, (count, first, second) in zip(columns, sums.tolist(), strict=True):
        if not _is_possible(column, count, first, second, smallest):
            raise InputError(
                f"{where} is not used: {count:g} values of '{column.name}' within {column.range[0]:g} to "
                f"{column.range[1]:g} cannot have the sum {first:g} and the sum of squares {second:g}."
            )
    whole = [int(row[0]) for row, column in zip(sums, columns, strict=True) if column.missing == "refuse" and row[0]]
    if whole and (len({*whole}) > 1 or float(sums[:, 0].max()) > whole[0]):
        raise InputError(f"{where} is not used: its columns do not have the same number of rows.")


def _is_possible(column: Column, count: float, first: float, second: float, smallest: int) -> bool:
    """Whether so many numbers within the column's range can have such a sum and sum of squares."""
    if count == 0 or column.type == "category":
        return count == first == second == 0
    low, high = column.range
    largest = max(abs(low), abs(high), 1.0)
    rounding = 1e-9 * count * largest
    return (
        count.is_integer()
        and smallest <= count <= Rules().largest_site
        and count * low - rounding <= first <= count * high + rounding
        and first * first / count <= second * (1 + 1e-9)
        and second <= (low + high) * first - count * low * high + rounding * largest  # Σ (v − low) (high − v) ≥ 0
    )


def _scale(column: Column, count: float, first: float, second: float, *counts: float) -> Column:
    if column.type == "category" or count == 0:
        return column
    mean = first / count
    deviation = math.sqrt(max(second / count - mean**2, 0.0))
    quantiles = quantiles_from(np.array(counts), column.range, LEVELS) if counts else ()
    rounded = tuple(float(f"{quantile:.6g}") for quantile in quantiles)
    return dataclasses.replace(
        column, centre=float(f"{mean:.6g}"), spread=float(f"{deviation:.6g}") or 1.0, quantiles=rounded
    )


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
