"""A comparison as files: JSON, every value as CSV, tables as Markdown, and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from consilience.benchmark.row_summary import Scores, Tempered
from consilience.benchmark.summary import Comparison
from consilience.disk.locks import locking
from consilience.metrics.communication import csv_text as curves_text
from consilience.metrics.communication import sentence as communication_sentence
from consilience.report.comparison_page import comparison_page
from consilience.report.schema import wording as words
from consilience.runs.store import Store


@locking("folder")
def write_comparison(comparison: Comparison, folder: str | Path) -> None:
    """Write compare.json, compare.csv, curves.csv, compare.md and report.html."""
    store = Store(folder)
    value = comparison.to_json()
    store.write_checked("compare.json", value)
    store.write("compare.csv", csv_text(comparison).encode())
    store.write("curves.csv", curves_text(value).encode())
    store.write("compare.md", markdown(comparison).encode())
    store.write("report.html", comparison_page(value).encode())


def csv_text(comparison: Comparison) -> str:
    """Write every value in long form.

    Returns:
        A line for every split, row, score and seed, plain and tempered.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("split", "seed", "row", "tempered", "score", "value"))
    for part in comparison.parts:
        for row in part.rows:
            for seed, *rest in _values(row.seeds, row.scores, row.tempered):
                writer.writerow((part.problem.split, seed, row.row, *rest))
            for name, further in (
                (words.scope(row.row, own=True), row.own_rows),
                (words.newcomer_name(row.row), row.newcomer),
            ):
                if further is not None:
                    for seed, *rest in _values(row.seeds, further.scores, further.tempered):
                        writer.writerow((part.problem.split, seed, name, *rest))
    return text.getvalue()


def _values(
    seeds: Sequence[int], plain: Scores, tempered: Tempered | None
) -> Iterator[tuple[int, str, str, float | None]]:
    """(seed, whether tempered, score, value) of one row."""
    tables = [("no", plain)]
    if tempered:
        tables.append(("yes", tempered.scores))
    for is_tempered, scores in tables:
        for key, values in scores.values.items():
            for seed, value in zip(seeds, values, strict=True):
                yield seed, is_tempered, key, value


class _Column(NamedTuple):
    key: str
    tempered: bool

    @property
    def head(self) -> str:
        name = words.metric(self.key).name
        if self.tempered:
            return f"{name}, tempered"
        return name


def markdown(comparison: Comparison) -> str:
    """Write the tables as Markdown.

    Returns:
        A table a split, rows by what the server needs.
    """
    value = comparison.to_json()
    point, ranks, beside = words.comparison_keys(value)
    columns = [_Column(key, tempered) for key in ranks for tempered in (False, True)]
    columns += [_Column(key, False) for key in (point, *beside)]
    lines = [f"# {comparison.title}", ""]
    for part in value["splits"]:
        lines += [f"## {part['split']}", "", part["sentence"], ""]
        lines += _table(part, columns, ranks[0])
        lines.append("")
        for table in part["communication"]:
            lines += [communication_sentence(table), ""]
    if comparison.leaves_out:
        lines.append(comparison.leaves_out)
    if any(_is_paired(part) for part in value["splits"]):
        lines.append(words.PAIRED)
    return "\n".join(lines) + "\n"


def _is_paired(part: Mapping[str, Any]) -> bool:
    return any(row.get("differences") for row in part["rows"])


def _table(part: Mapping[str, Any], columns: Sequence[_Column], rank: str) -> Iterator[str]:
    """One split's table, with the difference to the reference in the score `rank` as last column if there is one."""
    heads = [column.head for column in columns]
    paired = _is_paired(part)
    if paired:
        heads.append(f"Δ {words.metric(rank).name} to {part['reference']}")
    yield _line(["Row", "The server needs", "Rounds", "Sent", *heads])
    yield _line(["---", "---", *["---:"] * (2 + len(heads))])
    for group, _, rows in words.groups(part):
        needs = group
        if group == "bound":
            needs = "(bound)"
        for row in _with_own_rows(rows):
            cells = [row["row"], needs, words.count(row["rounds"]), words.human_bytes(row["up_bytes"])]
            cells += [words.spread(row, column.key, column.tempered) for column in columns]
            if paired:
                cells.append(words.difference_words(row, rank))
            yield _line(cells)
    for key, line in part["baselines"].items():
        name = words.baseline_name(key, part["task"] == "regression")
        scores = [words.spread(line, column.key, column.tempered) for column in columns]
        yield _line([name, "(baseline)", "–", "–", *scores, *[""] * paired])


def _with_own_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows, and after a row of the sites' own models the same on their own rows, or the common model."""
    for row in rows:
        if row.get("newcomer"):
            yield {**row, "row": words.scope(row["row"], own=True)}
            yield {**row, **row["newcomer"], "row": words.newcomer_name(row["row"])}
            continue
        yield row
        if row.get("own_rows"):
            yield {**row, **row["own_rows"], "row": words.scope(row["row"], own=True)}


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
