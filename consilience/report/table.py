"""The tables for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from statistics import stdev

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from consilience.metrics.findings import Scores
from consilience.report.schema.comparison_findings import ComparisonReport, ComparisonRow, SplitTable, read_comparison
from consilience.report.schema.comparison_findings import Group as RowGroup
from consilience.report.schema.prediction_sets import sets_sentence
from consilience.report.schema.run_findings import RunReport, read_run, seed_error
from consilience.report.schema.sentence import ece_note, sentence
from consilience.report.schema.warnings import doubts
from consilience.report.schema.wording import (
    FEW_ROWS,
    PAIRED,
    Json,
    count,
    human_bytes,
    interval,
    losses,
    metric,
    newcomer_name,
    order,
    privacy_note,
    scope,
    score,
    temperature_name,
)
from consilience.report.terminal_width import Fitting

IN_TERMINAL = (
    *("accuracy", "nll", "brier", "ece", "ece_debiased", "rmse", "crps", "deviance", "coverage95"),
    *("concordance", "ibs"),
)
OF_WEAKEST = ("nll", "accuracy", "rmse", "concordance")
OF_BASELINES = ("nll", "rmse", "ibs")


def run_table(run: Json) -> RenderableType:
    """Lay out a run for the terminal: scores with intervals beside the bounds, the weakest site, the bytes.

    Args:
        run: What `run.json` holds.

    Returns:
        What rich prints.
    """
    report = read_run(run)
    columns = [("This run", report.scores)]
    if report.own_rows is not None:
        columns.insert(0, (scope("This run", own=True), report.own_rows))
    if report.newcomer is not None:
        columns = [(scope("This run", own=True), report.scores), (newcomer_name("This run"), report.newcomer)]
    if report.tempered is not None:
        factor = temperature_name(report.tempered.temperature, report.is_regression)
        columns.append((f"Tempered\n{factor}", report.tempered))
    for _, name, scores in report.scored_bounds:
        columns.append((name, Scores(scores.metrics)))  # their intervals are in the report
    grids = [_run_grid(report, columns), *(_run_grid(report, columns[:n], narrow=True) for n in (len(columns), 2, 1))]
    shown: list[RenderableType] = [Fitting(*grids), Text()]
    if not report.scores.metrics:  # no row was held out
        shown = []
    notes = Text("\n".join(_run_notes(report)), "dim")
    return Padding(Group(Text(report.title, "bold"), Text(sentence(report)), Text(), *shown, notes), (1, 0))


def comparison_table(comparison: Json) -> RenderableType:
    """Lay out a comparison for the terminal: a table for each split, rows by what the server needs.

    Args:
        comparison: What `compare.json` holds.

    Returns:
        What rich prints.

    Raises:
        InputError: The comparison has no rows.
    """
    report = read_comparison(comparison)
    lines: list[RenderableType] = [Text(report.title, "bold")]
    for table in report.tables:
        if len(report.tables) > 1:
            lines += [Text(), Text(table.split, "bold")]
        grids = Fitting(_comparison_grid(report, table), _short_grid(table))
        lines += [Text(table.sentence), Text(), grids]
    lines.append(Text(" ".join(_comparison_notes(report)), "dim"))
    lines += [Text(f"Warning: {warning}", "dim") for warning in report.warnings]
    return Padding(Group(*lines), (1, 0))


def trial_table(
    method: str, trials: Sequence[tuple[Json, Sequence[float | None], float | None]], key: str, most: int = 5
) -> RenderableType:
    """Lay out the best trials of a search.

    Args:
        method: The method whose settings are searched.
        trials: Settings, scores over seeds and their mean of each trial, the best first.
        key: The key of the score.
        most: How many trials to show.

    Returns:
        What rich prints.
    """
    grid = _plain_table()
    grid.add_column("", justify="right")
    grid.add_column(metric(key).name, justify="right", no_wrap=True)
    grid.add_column("Settings")
    for place, (point, values, mean) in enumerate(trials[:most], 1):
        settings = ", ".join(f"{path}={setting}" for path, setting in point.items())
        grid.add_row(str(place), _trial_score(key, values, mean), Text(settings))
    note = f"{count(len(trials), 'trial')}, scored on validation rows only"
    failures = sum(mean is None for _, _, mean in trials)
    if failures:
        note += f"; {failures} failed"
    return Padding(Group(Text(f"Settings for {method}", "bold"), Text(), grid, Text(f"{note}.", "dim")), (1, 0))


def _plain_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))


def _run_grid(run: RunReport, columns: Sequence[tuple[str, Scores]], narrow: bool = False) -> Table:
    """Scores down, these columns across; where it is to be narrow, headings are broken into lines."""
    keys = [key for key in order(run.scores.metrics) if key in IN_TERMINAL]
    styles = {key: _style(key, run.test_rows) for key in keys}
    cells = [[_cell(key, scores, styles[key]) for key in keys] for _, scores in columns]
    table = _plain_table()
    names = [metric(key).name for key in keys]
    table.add_column("Score", min_width=max([len(name) for name in names] + [5]))
    for (name, _), column in zip(columns, cells, strict=True):
        lines = [line for text in column for line in text.plain.split("\n")]
        widest = max([len(line) for line in lines] + [1])
        heading = name
        if narrow:
            words = [textwrap.wrap(line, widest, break_long_words=False) for line in name.split("\n")]
            heading = "\n".join(line for wrapped in words for line in wrapped)
        width = max([len(line) for line in heading.split("\n")] + [widest])
        table.add_column(Text(heading), justify="right", min_width=width)  # so that its least width is its width
    for key, *row in zip(keys, *cells, strict=True):
        table.add_row(Text(metric(key).name, styles[key]), *row)
    return table


def _style(key: str, test_rows: int | None) -> str:
    """Proper scores are bold; an ECE on few rows is dim."""
    if key.startswith("ece") and _is_few(test_rows):
        return "dim"
    if metric(key).proper:
        return "bold"
    return ""


def _is_few(test_rows: int | None) -> bool:
    return test_rows is not None and test_rows < FEW_ROWS


def _cell(key: str, scores: Scores, style: str) -> Text:
    """A score with its interval below it."""
    text = Text(score(key, scores.value(key)), style)
    span = interval(key, scores.interval(key))
    if span:
        text.append(f"\n{span}", "dim not bold")
    return text


def _run_notes(run: RunReport) -> Iterator[str]:
    if run.scores.intervals:
        yield "Ranges are 95 % intervals. Rank by NLL, Brier or CRPS."
    note = ece_note(run.test_rows, run.ece_if_calibrated, run.is_regression)
    if note:
        yield note
    if run.baselines:
        keys = [key for key in OF_BASELINES if key in run.scores.metrics]
        lines = [f"{name} {_named_scores(scores, keys)}" for name, scores in run.named_baselines]
        yield f"Baselines: {'; '.join(lines)}."
    if run.weakest_site:
        known = run.weakest_site.scores
        scores = ", ".join(f"{metric(key).name} {score(key, x)}" for key, x in known.items() if key in OF_WEAKEST)
        yield f"Weakest site: {run.weakest_site.name} ({scores})".removesuffix(" ()")
    if run.sets is not None:
        yield sets_sentence(run.sets, run.is_regression)
    if run.ledger:
        yield f"Bytes: {human_bytes(run.ledger.up)} up, {human_bytes(run.ledger.down)} down"
    if run.content.get("privacy"):
        yield privacy_note(run.content)
    for warning in (*doubts(run), *run.warnings):
        yield f"Warning: {warning}"
    for loss in losses(run.failures):
        yield f"Lost: {loss}"


def _named_scores(scores: Scores, keys: Sequence[str]) -> str:
    return ", ".join(f"{metric(key).name} {score(key, scores.value(key))}" for key in keys)


def _comparison_notes(report: ComparisonReport) -> Iterator[str]:
    yield "Needs: what the server must have. Temp.: after tempering. Underlined: the lowest value of its group."
    if not report.is_regression:
        yield "In brackets: debiased ECE."
    if any(table.has_errors for table in report.tables):
        yield "±: standard error over seeds."
    if any(table.is_paired for table in report.tables):
        yield f"{PAIRED} Reference: {report.reference}."
    for note in (
        str(report.content.get("leaves_out") or ""),
        ece_note(report.test_rows, report.ece_if_calibrated, report.is_regression),
    ):
        if note:
            yield note


def _comparison_grid(report: ComparisonReport, table: SplitTable) -> Table:
    """All columns: what a row cost, its proper scores untempered and tempered, and its ECE."""
    point, point_heading, ranks = "accuracy", "Acc.", ["nll", "brier"]
    headings = ["NLL", "temp.", "Brier", "temp.", "ECE"]
    if report.is_regression:
        point, point_heading, ranks = "rmse", "RMSE", ["nll", "crps"]
        headings = ["NLL", "temp.", "CRPS", "temp."]
    if report.point == "concordance":
        point, point_heading, ranks = "concordance", "C", ["nll", "ibs"]
        headings = ["NLL", "temp.", "IBS", "temp."]
    grid = _new_grid(table, ["Rounds", "Up", point_heading, *headings])
    ece_style = ""
    if _is_few(report.test_rows):
        ece_style = "dim"
    for group in table.groups:
        _add_heading(grid, group)
        for row in group.rows:
            cost = [Text(count(row.rounds)), Text(human_bytes(row.up))]
            texts = [*cost, _mean(point, row.scores), *_proper_scores(group, row, ranks)]
            if not report.is_regression:
                texts.append(_ece(row.scores, ece_style))
            grid.add_row(_row_name(row), *texts)
        grid.add_section()
    return grid


def _short_grid(table: SplitTable) -> Table:
    """The first proper score alone, for a narrow terminal."""
    grid = _new_grid(table, [metric("nll").name, "temp."])
    for group in table.groups:
        _add_heading(grid, group)
        for row in group.rows:
            grid.add_row(_row_name(row), *_proper_scores(group, row, ["nll"]))
        grid.add_section()
    return grid


def _new_grid(table: SplitTable, headings: Sequence[str]) -> Table:
    grid = _plain_table()
    name_width = 16
    if table.has_errors:
        name_width = 12
    grid.add_column("Method", min_width=name_width)
    for heading in headings:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid


def _add_heading(grid: Table, group: RowGroup) -> None:
    title = f"Needs {group.key}"
    if group.is_bound:
        title = group.title.partition(",")[0]
    grid.add_row(Text(title, "italic"))


def _row_name(row: ComparisonRow) -> Padding:
    style = ""
    if row.is_bound:
        style = "dim"
    return Padding(Text(row.name, style), (0, 0, 0, 2))


def _proper_scores(group: RowGroup, row: ComparisonRow, keys: Sequence[str]) -> list[Text]:
    """Each score untempered and tempered."""
    texts = []
    for key in keys:
        for tempered in (False, True):
            style = ""
            if group.is_best(row, key, tempered):
                style = "bold underline"
            texts.append(_mean(key, row.part(tempered), style))
    return texts


def _mean(key: str, scores: Scores, style: str = "") -> Text:
    """A score, its arrow, and its standard error below."""
    text = Text(score(key, scores.value(key)), style).append(scores.arrow(key))
    error = seed_error(scores, key)
    if error:
        text.append(f"\n{error}", "dim not bold not underline")
    return text


def _ece(scores: Scores, style: str) -> Text:
    """The ECE with its debiased estimate below, in brackets."""
    text = Text(score("ece", scores.value("ece")), style)
    debiased = scores.value("ece_debiased")
    if debiased is not None:
        text.append(f"\n({score('ece', debiased).removesuffix(' %')})", "dim")
    return text


def _trial_score(key: str, values: Sequence[float | None], mean: float | None) -> str:
    """The mean over seeds with its standard error."""
    if mean is None:
        return "failed"
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return score(key, mean)
    return f"{score(key, mean)} ± {score(key, stdev(known) / len(known) ** 0.5)}"
