"""Table one of a study: a signed file of counts from every site, added up by the coordinator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from consilience.biostatistics.noisy_table import combine_noisy, sum_rows, width_of
from consilience.biostatistics.site_summary import WITHHELD, Summary, nothing, summarise
from consilience.biostatistics.table_one import TableOne, combine
from consilience.biostatistics.variables import Column, Variable
from consilience.errors import InputError
from consilience.privacy.entropy import Entropy
from consilience.serialisation.codec import TYPES
from consilience.study.budget import Cost
from consilience.study.exchange import File, Made, Part, check_rows, hear
from consilience.study.files import open_file
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column as Agreed
from consilience.study.protocol.columns import Inspection
from consilience.study.protocol.envelope import Header, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.promise import table_promise
from consilience.study.rows import is_promised, patient_weights
from consilience.study.spending import agreed_rows
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site

KIND = "kept table"  # of the file that keeps what left with noise
KEPT = "kept-table"  # the ending of its name
REACH = 12.0  # SDs that no noise exceeds


def agreed_variables(agreement: Agreement) -> list[Variable]:
    """Describe a study's columns, the target last.

    Returns:
        The columns; the range of a number gives the bins of its quartiles.
    """
    columns = (*agreement.columns, *agreement.target.as_columns())
    return [Variable(column.name, column.levels, column.unit, *column.range) for column in columns]


def site_summary(agreement: Agreement, inspection: Inspection) -> Summary:
    """Describe a site's table under the study's rules.

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


class Description(File):
    """A site's part of table one: counts, means and SDs of the agreed columns."""

    kind = "table"
    title = "table one"

    def make(self, site: Site) -> Made:
        """Describe the table.

        Raises:
            InputError: The study promises privacy, or the table does not fit the agreement, or has too few rows.
        """
        agreement = self.study.agreement
        if is_promised(agreement):
            raise InputError(
                "Table one would show exact counts and means of the columns, and this study promises differential "
                "privacy: none is sent; agree on table_epsilon under [privacy] for one with noise, or describe the "
                "columns by what is public."
            )
        summary = site_summary(agreement, site.table)
        return Made(summary._asdict(), int(summary.rows), agreed_rows(agreement, site.table, site.key))

    def form(self) -> Tree:
        """Give a file's value without any rows."""
        return nothing(agreed_variables(self.study.agreement))._asdict()

    def summand(self, value: Any) -> Summary:
        """Take the summary from a file's value.

        Args:
            value: What the file holds.
        """
        return Summary(**value)

    def count(self, value: Any) -> int:
        """Read how many rows a file describes."""
        return int(value["rows"])

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse counts that no table under the study's rules can have.

        Args:
            most: The most rows that its site committed to.

        Raises:
            InputError: It is not used.
        """
        summary: Summary = part.table
        smallest = self.study.agreement.smallest
        check_rows(part.rows, smallest, most, where)
        if not _is_possible(agreed_variables(self.study.agreement), summary, smallest):
            raise InputError(f"{where} is not used: its counts cannot be those of a table under the study's rules.")


class NoisyDescription(File):
    """A site's part of table one where the study agreed on an ε for it: sums with noise, which are drawn once."""

    kind = "table"
    title = "table one"

    def __init__(self, study: Study) -> None:
        """Ask for sums with noise, where they were agreed on."""
        super().__init__(study)
        self.variables = agreed_variables(study.agreement)
        promise = table_promise(study.agreement)
        assert promise is not None
        self.promise = promise
        self.width = sum(width_of(variable) for variable in self.variables)

    @property
    def deviation(self) -> float:
        """The standard deviation of each number's noise."""
        return self.promise.deviation(self.width)

    def make(self, site: Site) -> Made:
        """Add noise from the operating system to the sums over the site's rows, or find what was sent before.

        Raises:
            InputError: Another table was described before.
        """
        study, agreement, path = self.study, self.study.agreement, site.kept(KEPT)
        self.promise.check(len(study.active), sum(one.rows for one in study.active))
        source = agreed_rows(agreement, site.table, site.key)
        made_from = hashlib.sha256(source.tobytes()).hexdigest()
        repeated = path.exists()
        if repeated:
            envelope = open_file(study, path, KIND)
            if envelope.header.about["rows"] != made_from:
                raise InputError(
                    "This site has sent a table one of other rows in this study, and a second one would cost twice the "
                    f"privacy budget: use the table of then, which {path} is about."
                )
            sums = envelope.value(TYPES)["noisy"]
        else:
            columns = (*agreement.columns, *agreement.target.as_columns())
            values = [_values(column, site.table) for column in columns]
            weights = torch.ones(site.table.rows)
            if agreement.patient:
                weights = patient_weights(agreement.patient, site.table)
            sums = self.promise.add_noise(sum_rows(self.variables, values, weights), Entropy()).values
        header = Header(KIND, agreement.hash, agreement.name, site.member.name, 1, {"rows": made_from})
        kept = (seal({"noisy": sums}, header, site.key), "Stays here, so that noise is not drawn again")
        return Made({"noisy": sums}, 0, source, Cost(self.promise.mu), {path: kept}, repeated)

    def form(self) -> Tree:
        """Give a file's value without any rows."""
        return {"noisy": torch.zeros(self.width, dtype=torch.float64)}

    def summand(self, value: Any) -> Tensor:
        """Take the sums from a file's value.

        Args:
            value: What the file holds.
        """
        sums: Tensor = value["noisy"]
        return sums

    def count(self, value: Any) -> int:
        """Say nothing of rows: noise hides how many they are.

        Args:
            value: What the file holds.
        """
        return 0

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse sums of more rows than a site may have.

        Args:
            most: The most rows that its site committed to.

        Raises:
            InputError: It is not used.
        """
        if not bool((part.table.abs() <= most + REACH * self.deviation).all()):
            raise InputError(f"{where} is not used: its sums are of more rows than its site may have.")

    @property
    def said(self) -> str:
        """What the table says of its noise."""
        promise = self.promise
        return (
            f"Every number has noise, for ε = {promise.epsilon:g} at δ = {promise.delta:g} for each {promise.unit} of "
            "a site, beside the study's own."
        )


def description(study: Study) -> Description | NoisyDescription:
    """Ask for table one as the study agreed on it."""
    if study.agreement.table_epsilon:
        return NoisyDescription(study)
    return Description(study)


def read_tables(study: Study, paths: Sequence[Path]) -> tuple[TableOne, list[str]]:
    """Add the sites' tables up.

    Args:
        paths: What the sites wrote.

    Returns:
        Table one, and a sentence for each file that is left out.

    Raises:
        InputError: Fewer sites than agreed sent a table that can be used.
    """
    agreement = study.agreement
    asked = description(study)
    parts, refused = hear(asked, paths)
    agreement.disclosure.check_sites(len(parts), "tables", " ".join(refused))
    tables = {part.sites[0]: part.table for part in parts}
    if isinstance(asked, NoisyDescription):
        return combine_noisy(asked.variables, tables, asked.deviation, asked.said), refused
    return combine(agreed_variables(agreement), tables, agreement.smallest), refused


def _is_possible(variables: Sequence[Variable], summary: Summary, smallest: int) -> bool:
    """Whether counts can be those of a table under the study's rules."""
    rows = int(summary.rows)
    sound = bool(((summary.told == 0) | (summary.told == 1)).all())
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
    return sound
