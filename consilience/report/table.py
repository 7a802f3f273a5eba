"""The tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from consilience.report.warnings import doubts
from consilience.report.wording import (
    FEW_ROWS,
    PAIRED,
    Json,
    arrow,
    best,
    bounds,
    count,
    ece_note,
    error,
    groups,
    human_bytes,
    interval,
    losses,
    metric,
    order,
    parts,
    regression,
    score,
    sentence,
    temperature_name,
    test_rows,
    value,
)


class Fitting:
    """The first of several renderings that fits the terminal without cutting anything off; else the last."""

    def __init__(self, *choices: RenderableType) -> None:
        self.choices = choices

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=10_000)
        fits = (c for c in self.choices if Measurement.get(console, wide, c).minimum <= options.max_width)
        yield next(fits, self.choices[-1])


def _plain_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))


IN_TERMINAL = ("accuracy", "nll", "brier", "ece", "ece_debiased", "rmse", "crps", "coverage95")


def run_table(run: Json) -> RenderableType:
    """A run for the terminal: scores with intervals beside the bounds, the weakest site, the bytes."""
    columns: list[tuple[str, Json]] = [("This run", run)]
    if run.get("tempered"):
        columns.append((f"Tempered\n{temperature_name(run, run['tempered'])}", run["tempered"]))
    columns += [(name, {"metrics": b["metrics"]}) for _, name, b in bounds(run)]  # their intervals are in the report
    table = Fitting(*(_run_grid(run, columns[:n]) for n in (len(columns), 2, 1)))
    title = Text(str(run.get("title") or run.get("method") or "Run"), "bold")
    return Padding(Group(title, Text(sentence(run)), Text(), table, Text(), Text(_run_notes(run), "dim")), (1, 0))


def _run_grid(run: Json, columns: Sequence[tuple[str, Json]]) -> Table:
    """Scores down, these columns across."""
    few = (test_rows(run) or FEW_ROWS) < FEW_ROWS
    keys = [key for key in order(run.get("metrics") or {}) if key in IN_TERMINAL]
    style = {key: "dim" if few and key.startswith("ece") else "bold" if metric(key).proper else "" for key in keys}
    cells = [[_cell(key, part, style[key]) for key in keys] for _, part in columns]
    table = _plain_table()
    table.add_column("Score", no_wrap=True)
    for (name, _), own in zip(columns, cells, strict=True):
        widest = max([len(line) for text in own for line in text.plain.split("\n")] + [1])
        table.add_column(Text(name), justify="right", min_width=widest)  # headings wrap, numbers do not
    for key, *row in zip(keys, *cells, strict=True):
        table.add_row(Text(metric(key).name, style[key]), *row)
    return table


def _cell(key: str, part: Json, style: str) -> Text:
    text = Text(score(key, (part.get("metrics") or {}).get(key)), style)
    span = interval(key, (part.get("intervals") or {}).get(key))
    return text.append(f"\n{span}", "dim not bold") if span else text


def _run_notes(run: Json) -> str:
    worst, ledger = run.get("worst_site"), run.get("ledger")
    lines = ["95 % intervals; rank by NLL, Brier or CRPS." if run.get("intervals") else "", ece_note(run)]
    if worst:
        scores = ", ".join(
            f"{metric(k).name} {score(k, v)}" for k, v in worst.items() if k in ("nll", "accuracy", "rmse")
        )
        lines.append(f"Weakest site: {worst.get('site')}" + (f" ({scores})" if scores else ""))
    if ledger:
        lines.append(f"Bytes: {human_bytes(ledger.get('up_bytes'))} up, {human_bytes(ledger.get('down_bytes'))} down")
    lines += [f"Warning: {w}" for w in [*doubts(run), *(run.get("warnings") or [])]]
    lines += [f"Lost: {f}" for f in losses(run.get("failures") or [])]
    return "\n".join(line for line in lines if line)


def comparison_table(comparison: Json) -> RenderableType:
    """A comparison for the terminal: a table a split, rows by what the server needs, plain and tempered."""
    shown = parts(comparison)
    lines: list[RenderableType] = [Text(str(comparison.get("title") or "Comparison"), "bold")]
    for part in shown:
        heading = [Text(), Text(str(part.get("split")), "bold")] if len(shown) > 1 else []
        grids = Fitting(*(_comparison_grid(part, short) for short in (False, True)))
        lines += [*heading, Text(str(part.get("sentence") or "")), Text(), grids]
    notes = ["Needs: what the server must have. Temp.: after tempering. Underlined: the lowest of its group."]
    notes.append("" if regression(comparison) else "In brackets: ECE, debiased.")
    rows = [row for part in shown for row in part["rows"]]
    notes.append("±: standard error over seeds." if any(row.get("errors") for row in rows) else "")
    if any(row.get("differences") for row in rows):
        notes.append(f"{PAIRED} Reference: {comparison.get('reference')}.")
    notes += [str(comparison.get("leaves_out") or ""), ece_note(comparison)]
    lines.append(Text(" ".join(n for n in notes if n), "dim"))
    lines += [Text(f"Warning: {w}", "dim") for w in comparison.get("warnings") or []]
    return Padding(Group(*lines), (1, 0))


def _comparison_grid(comparison: Json, short: bool) -> Table:
    """A table's rows; short: the first proper score alone, plain and tempered."""
    point, second = ("rmse", "crps") if regression(comparison) else ("accuracy", "brier")
    tail = [] if regression(comparison) or short else ["ECE"]
    ranks = ("nll",) if short else ("nll", second)
    grid = _plain_table()
    several = any(row.get("errors") for row in comparison["rows"])
    grid.add_column("Method", min_width=12 if several else 16)
    few = (test_rows(comparison) or FEW_ROWS) < FEW_ROWS
    start = [] if short else ["Rounds", "Up", "RMSE" if point == "rmse" else "Acc."]
    for heading in [*start, *(h for k in ranks for h in (metric(k).name, "temp.")), *tail]:
        grid.add_column(heading, justify="right", no_wrap=True)
    for group, _, rows in groups(comparison):
        grid.add_row(Text("Bounds" if group == "bound" else f"Needs {group}", "italic"))
        for row in rows:
            moved = [Text(count(row.get("rounds"))), Text(human_bytes(row.get("up_bytes"))), _mean(point, row)]
            texts = [] if short else moved
            for key in ranks:
                for soft in (False, True):
                    found = value(row, key, soft)
                    winner = group != "bound" and found is not None and found == best(rows, key, soft)
                    texts.append(_mean(key, (row.get("tempered") or {}) if soft else row, winner))
            texts += [_ece(row, "dim" if few else "") for _ in tail]
            name = Text(str(row.get("name", "–")), "dim" if group == "bound" else "")
            grid.add_row(Padding(name, (0, 0, 0, 2)), *texts)
        grid.add_section()
    return grid


def _mean(key: str, part: Json, winner: bool = False) -> Text:
    """A score, its arrow, and its standard error below."""
    text = Text(score(key, value(part, key)), "bold underline" if winner else "").append(arrow(part, key))
    near = error(part, key)
    return text.append(f"\n{near}", "dim not bold not underline") if near else text


def _ece(row: Json, style: str) -> Text:
    text, debiased = Text(score("ece", value(row, "ece")), style), value(row, "ece_debiased")
    return text if debiased is None else text.append(f"\n({score('ece', debiased).removesuffix(' %')})", "dim")


def trial_table(
    method: str, trials: Sequence[tuple[Json, Sequence[float | None], float | None]], key: str, most: int = 5
) -> RenderableType:
    """The best trials of a search, and how many there were."""
    grid = _plain_table()
    grid.add_column("", justify="right")
    grid.add_column(metric(key).name, justify="right", no_wrap=True)
    grid.add_column("Settings")
    for place, (point, values, mean) in enumerate(trials[:most], 1):
        said = ", ".join(f"{path}={setting}" for path, setting in point.items())
        known = [v for v in values if v is not None]
        near = f" ± {score(key, stdev(known) / len(known) ** 0.5)}" if mean is not None and len(known) > 1 else ""
        grid.add_row(str(place), "failed" if mean is None else f"{score(key, mean)}{near}", Text(said))
    failed = sum(mean is None for _, _, mean in trials)
    note = f"{count(len(trials), 'trial')}, scored on validation rows alone" + (f"; {failed} failed" if failed else "")
    return Padding(Group(Text(f"Settings for {method}", "bold"), Text(), grid, Text(f"{note}.", "dim")), (1, 0))
