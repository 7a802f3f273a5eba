"""From the cells of a comparison to its tables: means over seeds and paired differences."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.console import Console, RenderableType

from consilience.benchmark.cells import Cell, Described, Json
from consilience.benchmark.pairing import pair
from consilience.benchmark.row_summary import RowSummary, Scores, over_seeds, summarise_row
from consilience.benchmark.row_words import Row
from consilience.method import Bound
from consilience.metrics.communication import KEPT, communication
from consilience.metrics.paired import SEEDS
from consilience.report.schema import wording as words
from consilience.report.schema.frames import to_frame, to_html
from consilience.report.table import comparison_table
from consilience.runs.identity import today
from consilience.runs.store import FORMAT
from consilience.version import __version__

Cells: TypeAlias = Mapping[str, Cell]  # by a row's word
WIDTH = 120  # columns of a table as text
FIXED = (
    "Standard errors are over seeds (split, start and draws) on one fixed test set: they leave out the chance in "
    "which rows it holds. p is from Wilcoxon's signed-rank test."
)
FRESH = (
    "Every seed splits the same table anew, so that seeds share rows: standard errors, intervals and p are those of "
    "Nadeau and Bengio (2003), s²(1/seeds + test rows/training rows), which allow for that."
)
ONE_SPLIT = (
    "All seeds share one split, that of the sites: standard errors are over starts and draws, and leave out the chance "
    "in who has which rows. p is from Wilcoxon's signed-rank test."
)
AGAINST = {"centralised": "with all data in one place", "server_only": "from the server's labelled rows alone"}


@dataclass(frozen=True)
class Part:
    """The table of one split.

    Attributes:
        problem: What its rows have in common, of the first seed.
        rows_of_data: Role → number of rows, the mean over seeds.
        sentence: What the table says.
        reference: The row that the others are paired with.
        rows: The rows over their seeds.
        baselines: The baselines, by key: their scores over seeds.
        communication: What each row sends to reach the reference's score, for every score that curves show.
        ece_if_calibrated: The ECE that a calibrated model would show, the mean over cells.
        seconds: How long all cells took.
        versions: Of Python and the libraries.
    """

    problem: Described
    rows_of_data: dict[str, int]
    sentence: str
    reference: str
    rows: tuple[RowSummary, ...]
    baselines: dict[str, Scores]
    communication: list[Json]
    ece_if_calibrated: float | None
    seconds: float
    versions: Json | None

    @property
    def warnings(self) -> list[str]:
        """What was noticed in any row, and which rows a trivial prediction beats."""
        noticed = [warning for row in self.rows for warning in row.warnings]
        base = self.baselines.get("base_rate")
        if base is None:
            return noticed
        beaten = [(row.name, words.beaten_by_base_rate(row.metrics, base.metrics)) for row in self.rows]
        return [*(f"{name}: {sentence}" for name, sentence in beaten if sentence), *noticed]

    def to_json(self) -> Json:
        """Write the table as JSON."""
        problem = self.problem
        return {
            "data": problem.data,
            "split": problem.split,
            "sites": problem.sites,
            "site_names": problem.site_names,
            "task": problem.task,
            "class_names": problem.class_names,
            "labels": problem.labels,
            "parameters": problem.parameters,
            "data_hash": problem.fingerprint,
            "rows_of_data": self.rows_of_data,
            "sentence": self.sentence,
            "reference": self.reference,
            "rows": [row.to_json() for row in self.rows],
            "baselines": {key: scores.to_json() for key, scores in self.baselines.items()},
            "communication": self.communication,
            "ece_if_calibrated": self.ece_if_calibrated,
            "warnings": self.warnings,
            "seconds": self.seconds,
            "versions": self.versions,
        }


@dataclass(frozen=True)
class Comparison:
    """Rows on the same splits and seeds; `str()` is the table.

    Attributes:
        title: What is compared.
        model: The network, in words.
        seeds: The seeds that were asked for.
        fixed_test_set: Whether all seeds share their test rows.
        parts: A table a split.
        fixed_split: Whether all seeds share the split, too.
    """

    title: str
    model: str
    seeds: tuple[int, ...]
    fixed_test_set: bool
    parts: tuple[Part, ...]
    fixed_split: bool = False

    @property
    def rows(self) -> tuple[RowSummary, ...]:
        """The rows of the first split."""
        return self.parts[0].rows

    @property
    def reference(self) -> str:
        """The row that the others are paired with."""
        return self.parts[0].reference

    @property
    def sentence(self) -> str:
        """What the table says; empty where there are several."""
        if len(self.parts) > 1:
            return ""
        return self.parts[0].sentence

    @property
    def leaves_out(self) -> str:
        """What the standard errors leave out; empty where there are none."""
        if len(self.seeds) == 1:
            return ""
        if self.fixed_split:
            return ONE_SPLIT
        if self.fixed_test_set:
            return FIXED
        return FRESH

    @property
    def warnings(self) -> list[str]:
        """What was noticed in any table."""
        return [warning for part in self.parts for warning in part.warnings]

    def to_json(self) -> Json:
        """Write the comparison as JSON: what compare.json holds."""
        parts = [part.to_json() for part in self.parts]
        first = parts[0]
        return {
            "kind": "comparison",
            "format": FORMAT,
            "consilience": __version__,
            "title": self.title,
            "sentence": self.sentence,
            **{key: first[key] for key in ("data", "data_hash", "sites", "task", "class_names", "parameters")},
            "date": today(),
            "model": self.model,
            "split": ", ".join(part["split"] for part in parts),
            "seeds": list(self.seeds),
            "seed": self.seeds[0],
            "reference": self.reference,
            "leaves_out": self.leaves_out,
            "fixed_test_set": self.fixed_test_set,
            **{key: first[key] for key in ("rows", "baselines", "labels", "site_names", "rows_of_data")},
            "ece_if_calibrated": first["ece_if_calibrated"],
            "warnings": self.warnings,
            "seconds": sum(part.seconds for part in self.parts),
            "versions": first["versions"],
            "splits": parts,
        }

    def __str__(self) -> str:
        return plain_text(comparison_table(self.to_json()))

    def __repr__(self) -> str:
        """What is compared on what."""
        rows = ", ".join(row.row for row in self.rows)
        return f"Comparison({rows}; seeds: {len(self.seeds)}, splits: {len(self.parts)})"

    def to_rows(self) -> list[dict[str, Any]]:
        """List every score of every row, split and seed.

        Returns:
            Mappings with the columns split, row, method, seed, score and value.
        """
        rows = []
        for part in self.parts:
            for row in part.rows:
                about = {"split": part.problem.split, "row": row.row, "method": row.method}
                for score, values in row.scores.values.items():
                    pairs = zip(row.seeds, values, strict=True)
                    rows += [{**about, "seed": seed, "score": score, "value": value} for seed, value in pairs]
        return rows

    def to_frame(self) -> Any:
        """Every score of every row, split and seed as a data frame.

        Raises:
            InputError: Pandas is not installed.
        """
        return to_frame(self.to_rows())

    def _repr_html_(self) -> str:
        """The means over seeds in a notebook."""
        pairs = [(part.problem.split, row) for part in self.parts for row in part.rows]
        rows = [{"split": split, "row": row.name, **row.scores.metrics} for split, row in pairs]
        return to_html(self.sentence or repr(self), rows)


def plain_text(table: RenderableType) -> str:
    """Write a terminal's table as text.

    Returns:
        Lines of at most 120 columns, without colours.
    """
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines).strip("\n")


def title(rows: Sequence[Row], data: str) -> str:
    """Name a comparison by what it compares.

    Args:
        rows: All rows; bounds are left out if there are others.

    Returns:
        The methods where they fit into a title, else how many there are, and the data.
    """
    names = [r.name for r in rows if not isinstance(r.method, Bound)] or [r.name for r in rows]
    text = names[0]
    if len(names) > 1:
        text = f"{', '.join(names[:-1])} and {names[-1]}"
    if len(text) > 60:
        text = f"{len(names)} methods"
    return f"{text} on {data}"


def summarise_part(
    rows: Sequence[Row],
    cells: Mapping[int, Cells],
    problems: Sequence[Described],
    reference: str | None,
    fixed_test_set: bool = True,
    baselines: Sequence[Json] = (),
) -> Part:
    """Summarise one split over its seeds.

    Args:
        rows: The rows of the plan.
        cells: The cells that exist so far, by seed and row.
        problems: What the rows of a seed have in common, for every seed.
        reference: The row that the others are paired with; the first that is not a bound if None.
        fixed_test_set: Whether all seeds share their test rows; else each splits the same table anew.
        baselines: The baselines of every seed; of fewer where a seed was run by an older version.

    Returns:
        The split's table.
    """
    counts = {
        role: statistics.mean(problem.rows_of_data[role] for problem in problems) for role in problems[0].rows_of_data
    }
    overlap = 0.0
    if not fixed_test_set:
        overlap = counts["test"] / counts["train"]
    summaries = []
    for r in rows:
        by_seed = {seed: by_row[r.word] for seed, by_row in cells.items() if r.word in by_row}
        if by_seed:
            summaries.append(summarise_row(r, by_seed, overlap))
    reference = reference or next((r.word for r in rows if not isinstance(r.method, Bound)), rows[0].word)
    summaries = pair(summaries, reference, overlap)
    every = [cell for by_row in cells.values() for cell in by_row.values()]
    return Part(
        problem=problems[0],
        rows_of_data={role: round(number) for role, number in counts.items()},
        sentence=sentence(summaries, len(cells), round(counts["test"])),
        reference=reference,
        rows=tuple(summaries),
        baselines=_baselines(baselines, len(problems), overlap),
        communication=_communication(summaries, reference),
        ece_if_calibrated=_known_mean([cell.ece_if_calibrated for cell in every]),
        seconds=sum(cell.seconds for cell in every),
        versions=next((cell.versions for cell in every if cell.versions), None),
    )


def _communication(rows: Sequence[RowSummary], reference: str) -> list[Json]:
    values = [row.to_json() for row in rows]
    tables = (communication(values, reference, score) for score in KEPT)
    return [table for table in tables if table is not None]


def _baselines(each: Sequence[Json], seeds: int, overlap: float) -> dict[str, Scores]:
    """The baselines over seeds, if every seed has them."""
    if not each or len(each) < seeds:
        return {}
    return {key: over_seeds([lines[key]["metrics"] for lines in each], overlap) for key in each[0]}


def _known_mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return statistics.mean(known)


def sentence(rows: Sequence[RowSummary], seeds: int, test_rows: int) -> str:
    """Say what a table says, whichever way it comes out.

    Args:
        test_rows: How many rows a seed is scored on.

    Returns:
        The sentence; empty where no federated row has an NLL.
    """
    federated = [row for row in rows if row.needs != "bound"]
    ranked = [(row.name, row.scores) for row in federated]
    ranked += [(f"{row.name}, tempered", row.tempered.scores) for row in federated if row.tempered]
    ranked = [(name, scores) for name, scores in ranked if scores.value("nll") is not None]
    if not ranked:
        return ""
    name, best = min(ranked, key=lambda entry: entry[1].value("nll") or 0.0)
    lowest = words.number(best.value("nll"))
    if "nll" in best.errors:
        lowest += f" ± {words.number(best.errors['nll'])}"
    where = "On one split"
    few = "one seed"
    if seeds > 1:
        where = f"Over {seeds} seeds"
        few = f"{seeds} seeds"
    text = f"{where} the lowest federated NLL is {lowest} ({name})"
    against = _bounds_words(rows)
    if against:
        text += f", against {words.enumerate_words(against)}"
    if seeds < SEEDS:
        text += f"; {few} and {words.count(test_rows, 'test row')} do not rank rows that are close"
    return f"{text}."


def _bounds_words(rows: Sequence[RowSummary]) -> list[str]:
    """The NLL of every bound that a reader knows without the table."""
    texts = []
    for row in rows:
        nll = row.scores.value("nll")
        if row.needs == "bound" and row.method in AGAINST and nll is not None:
            texts.append(f"{words.number(nll)} {AGAINST[row.method]}")
        if row.own_rows is not None and row.own_rows.scores.value("nll") is not None:
            own = words.number(row.own_rows.scores.value("nll"))
            texts.append(f"{own} for each site's own model on its own rows")
    return texts
