"""Table one of a study: a signed file of counts from every site, added up by the coordinator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.biostatistics.noisy_table import combine_noisy, sum_rows, width_of
from consilience.biostatistics.summary import WITHHELD, Summary, nothing, summarise
from consilience.biostatistics.table_one import TableOne, combine
from consilience.biostatistics.variables import Column, Variable
from consilience.errors import InputError
from consilience.privacy.dp.budget import Cost
from consilience.privacy.entropy import Entropy
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Envelope, Header, seal
from consilience.study.admission import admit, rules_of
from consilience.study.files import from_sites, open_file
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column as Agreed
from consilience.study.protocol.columns import Inspection
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.promise import table_promise
from consilience.study.rows import is_promised, patient_weights
from consilience.study.spending import Door, Leaving, agreed_rows
from consilience.study.validation.gate import refuse_errors

KEPT = "kept table"  # the kind of the file that keeps what left with noise
REACH = 12.0  # deviations that no noise exceeds


def agreed_variables(agreement: Agreement) -> list[Variable]:
    """Describe a study's columns, the target last.

    Args:
        agreement: The study's agreement.

    Returns:
        The columns; the range of a number gives the bins of its quartiles.
    """
    columns = (*agreement.columns, *agreement.target.as_columns())
    return [Variable(column.name, column.levels, column.unit, *column.range) for column in columns]


def site_summary(agreement: Agreement, inspection: Inspection) -> Summary:
    """Describe a site's table under the study's rules.

    Args:
        agreement: The study's agreement.
        inspection: The table.

    Returns:
        What may leave.

    Raises:
        InputError: The table does not fit the agreement, or has too few rows.
    """
    inspection.sound()
    columns = (*agreement.columns, *agreement.target.as_columns())
    values = [_values(column, inspection) for column in columns]
    return summarise(agreed_variables(agreement), values, agreement.smallest)


def _values(column: Agreed, inspection: Inspection) -> Column:
    cells = inspection.cells[column.name]
    gaps = column.gaps(cells)
    if column.type == "category":
        return Column(torch.from_numpy(column.codes(cells)).double(), torch.from_numpy(gaps))
    return Column(torch.from_numpy(cells.numbers()).double(), torch.from_numpy(gaps))


def kept_table(study: Study, member: Member, folder: Path = Path()) -> Path:
    """Say where a site keeps the table one that it sent with noise, so that it is never drawn again.

    Args:
        study: The study.
        member: The site.
        folder: Where the site keeps its files.
    """
    return folder / f"{member.name}-{study.agreement.hash[:8]}.kept-table"


def table_file(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    inspection: Inspection,
    door: Door,
    kept: Path | None = None,
) -> bytes:
    """Write a site's part of table one; in a study that promises privacy sums with noise, which are drawn once.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        inspection: Its table.
        door: Where the file leaves from, past the site's ledger; it keeps what has noise.
        kept: Where the site keeps that; by default here.

    Returns:
        The signed file that leaves.

    Raises:
        InputError: The study promises privacy and agreed on no table one, the table does not fit the agreement, or has
            too few rows.
    """
    agreement = study.agreement
    leaving = Leaving("table one", agreed_rows(agreement, inspection, key))
    promise = table_promise(agreement)
    if promise is None:
        return door.let_out(agreement, key, leaving, _table_file(study, member, key, inspection))
    drawn = _with_noise(study, member, key, inspection, kept or kept_table(study, member))
    leaving = leaving._replace(cost=Cost(promise.mu), repeated=drawn.repeated)
    return door.let_out(agreement, key, leaving, drawn.file, drawn.kept)


class Drawn(NamedTuple):
    """A table one with noise.

    Attributes:
        file: What leaves.
        kept: What stays, so that noise is not drawn again.
        repeated: Whether it is what was sent before.
    """

    file: bytes
    kept: bytes
    repeated: bool


def _table_file(study: Study, member: Member, key: Ed25519PrivateKey, inspection: Inspection) -> bytes:
    """The file of `table_file` without noise, which nothing charges."""
    agreement = study.agreement
    if is_promised(agreement):
        raise InputError(
            "Table one would show exact counts and means of the columns, and this study promises differential privacy: "
            "none is sent; agree on table_epsilon under [privacy] for one with noise, or describe the columns by what "
            "is public."
        )
    return seal(site_summary(agreement, inspection)._asdict(), _header(study, member), key)


def _header(study: Study, member: Member) -> Header:
    agreement = study.agreement
    return Header("table", agreement.hash, agreement.name, member.name, 1, {"number": member.number})


def _with_noise(study: Study, member: Member, key: Ed25519PrivateKey, inspection: Inspection, path: Path) -> Drawn:
    """Noise from the operating system on the sums over the site's rows, or what was sent before."""
    agreement = study.agreement
    promise = table_promise(agreement)
    assert promise is not None
    promise.check(len(study.active), sum(site.rows for site in study.active))
    made_from = hashlib.sha256(agreed_rows(agreement, inspection, key).tobytes()).hexdigest()
    repeated = path.exists()
    if repeated:
        envelope = open_file(study, path, KEPT)
        if envelope.header.about["rows"] != made_from:
            raise InputError(
                "This site has sent a table one of other rows in this study, and a second one would cost twice the "
                f"privacy budget: use the table of then, which {path} is about."
            )
        sums = envelope.value(TYPES)["noisy"]
    else:
        columns = (*agreement.columns, *agreement.target.as_columns())
        values = [_values(column, inspection) for column in columns]
        weights = torch.ones(inspection.rows)
        if agreement.patient:
            weights = patient_weights(agreement.patient, inspection)
        sums = promise.add_noise(sum_rows(agreed_variables(agreement), values, weights), Entropy()).values
    header = _header(study, member)
    kept = seal({"noisy": sums}, header._replace(kind=KEPT, about={"rows": made_from}), key)
    return Drawn(seal({"noisy": sums}, header, key), kept, repeated)


def read_tables(study: Study, paths: Sequence[Path]) -> tuple[TableOne, list[str]]:
    """Add the sites' tables up.

    Args:
        study: The study.
        paths: What the sites wrote.

    Returns:
        Table one, and a sentence for each file that is left out.

    Raises:
        InputError: Fewer sites than agreed sent a table that can be used.
    """
    agreement = study.agreement
    variables = agreed_variables(agreement)
    envelopes, refused = from_sites(study, paths, "table")
    if agreement.table_epsilon:
        return _read_noisy(study, variables, envelopes, refused), refused
    summaries = {}
    for envelope in envelopes:
        name = envelope.header.sender
        try:
            with refuse_errors():
                value = envelope.value(TYPES)
                admit(value, nothing(variables)._asdict(), envelope.path)
                summary = Summary(**value)
                largest = rules_of(agreement, study.member(name).rows).largest_site
                _check(variables, summary, agreement.smallest, largest, envelope.path)
        except InputError as error:
            refused.append(str(error))
            continue
        summaries[name] = summary
    agreement.disclosure.check_sites(len(summaries), "tables", " ".join(refused))
    return combine(variables, summaries, agreement.smallest), refused


def _read_noisy(
    study: Study, variables: Sequence[Variable], envelopes: Sequence[Envelope], refused: list[str]
) -> TableOne:
    """The table of sums with noise; a sentence is added for each file that cannot be used."""
    agreement = study.agreement
    promise = table_promise(agreement)
    assert promise is not None
    expected = torch.zeros(sum(width_of(variable) for variable in variables), dtype=torch.float64)
    deviation = promise.deviation(len(expected))
    sums = {}
    for envelope in envelopes:
        name = envelope.header.sender
        try:
            with refuse_errors():
                value = envelope.value(TYPES)
                admit(value, {"noisy": expected}, envelope.path)
                most = rules_of(agreement, study.member(name).rows).largest_site + REACH * deviation
                if not bool((value["noisy"].abs() <= most).all()):
                    raise InputError(f"{envelope.path} is not used: its sums are of more rows than its site may have.")
                sums[name] = value["noisy"]
        except InputError as error:
            refused.append(str(error))
    agreement.disclosure.check_sites(len(sums), "tables", " ".join(refused))
    said = (
        f"Every number has noise, for ε = {promise.epsilon:g} at δ = {promise.delta:g} for each {promise.unit} of a "
        "site, beside the study's own."
    )
    return combine_noisy(variables, sums, deviation, said)


def _check(variables: Sequence[Variable], summary: Summary, smallest: int, largest: float, where: str) -> None:
    """Refuse counts that no table under the study's rules can have."""
    rows = int(summary.rows)
    sound = smallest <= rows <= largest
    sound &= bool(((summary.told == 0) | (summary.told == 1)).all())
    for variable, cells, told, moments in zip(
        variables, summary.cells.tolist(), summary.told.tolist(), summary.moments.tolist(), strict=True
    ):
        own = [*cells[: len(variable.levels)], cells[-1]]
        shown = [count for count in own if count != WITHHELD]
        sound &= all(count == 0 or smallest <= count <= rows for count in shown)
        sound &= sum(shown) <= rows and (not variable.levels or WITHHELD in own or sum(shown) == rows)
        spread = variable.high - variable.low
        if told:
            slack = spread + abs(variable.high)  # of rounding
            sound &= variable.low - slack <= moments[0] <= variable.high + slack and 0 <= moments[1] <= spread + slack
    for counts in summary.cumulative.tolist():
        shown = [count for count in counts if count != WITHHELD]
        sound &= shown == sorted(shown) and all(0 <= count <= rows for count in shown)
    if not sound:
        raise InputError(f"{where} is not used: its counts cannot be those of a table under the study's rules.")
