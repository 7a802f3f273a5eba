"""Table one of a study: a signed file of counts from every site, added up by the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.biostatistics.summary import WITHHELD, Summary, nothing, summarise
from consilience.biostatistics.table_one import TableOne, combine
from consilience.biostatistics.variables import Column, Variable
from consilience.errors import InputError
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Header, seal
from consilience.study.admission import admit, rules_of
from consilience.study.files import from_sites
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column as Agreed
from consilience.study.protocol.columns import Inspection
from consilience.study.protocol.members import Member, Study
from consilience.study.rows import is_promised
from consilience.study.spending import Door, Leaving, agreed_rows
from consilience.study.validation.gate import refuse_errors


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


def table_file(study: Study, member: Member, key: Ed25519PrivateKey, inspection: Inspection, door: Door) -> bytes:
    """Write a site's part of table one.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        inspection: Its table.
        door: Where the file leaves from, past the site's ledger.

    Returns:
        The signed file that leaves.

    Raises:
        InputError: The study promises privacy, or the table does not fit the agreement, or has too few rows.
    """
    content = _table_file(study, member, key, inspection)
    leaving = Leaving("table one", agreed_rows(study.agreement, inspection, key))
    return door.let_out(study.agreement, key, leaving, content)


def _table_file(study: Study, member: Member, key: Ed25519PrivateKey, inspection: Inspection) -> bytes:
    """The file of `table_file`, which nothing charges."""
    agreement = study.agreement
    if is_promised(agreement):
        raise InputError(
            "Table one would show exact counts and means of the columns, and this study promises differential privacy: "
            "none is sent; describe the columns by what is public."
        )
    summary = site_summary(agreement, inspection)
    about = {"number": member.number}
    header = Header("table", agreement.hash, agreement.name, member.name, 1, about)
    return seal(summary._asdict(), header, key)


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
