"""What a site is shown: a table of rows, the contents of a file, scores; never a small count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.agreement.promise import describe_promise
from consilience.cli.handed import Listing, columns, say
from consilience.cli.screen import out
from consilience.findings.wording import privacy_note

if TYPE_CHECKING:
    from torch import Tensor

    from consilience.agreement.agreement import Agreement, Study
    from consilience.agreement.columns import Inspection
    from consilience.predictive import Categorical


def show_table(agreement: Agreement, inspection: Inspection) -> None:
    """Show a table's columns, classes and problems, without small counts."""
    smallest = agreement.smallest
    say(f"{inspection.path}: {show_count(inspection.rows, smallest)} rows", "bold")
    table = columns(("column", "type", "unit", "plausible", "missing"), right=("missing",))
    for column in agreement.columns:
        plausible = ", ".join(column.levels) or f"{column.range[0]:g} to {column.range[1]:g}"
        missing = show_count(inspection.missing.get(column.name, 0), smallest)
        table.add_row(column.name, column.type, column.unit, plausible, missing)
    out.print(table)
    counts = show_parts(list(inspection.classes.values()), smallest)
    for label, count in zip(inspection.classes, counts, strict=True):
        say(f"{agreement.target.name} = {label}: {count} rows")
    if inspection.extra:
        say(f"Not in the study and never read: {', '.join(inspection.extra)}.")
    for problem in inspection.problems:
        say(problem, "yellow")


def show_rehearsal(agreement: Agreement) -> None:
    """Show what would leave, from a rehearsal on invented rows: once, where every round sends the same."""
    from consilience.agreement.rehearsal import rehearse

    say(f"What would leave: {agreement.build_method().sends}", "bold")
    rounds = range(1, min(agreement.rounds, 2) + 1)
    replies = [rehearse(agreement, round=number) for number in rounds]
    sent = [{"send": reply.send, "size": reply.size} for reply in replies]
    if len(sent) == 2 and outline(sent[0]) == outline(sent[1]):
        sent = sent[:1]
    for number, value in enumerate(sent, 1):
        if number == 2 < agreement.rounds:
            say("In round 2, then alternately:")
        elif len(sent) > 1:
            say(f"In round {number}:")
        contents(value, invented=True)
    if agreement.privacy is not None:
        say(privacy_note(describe_promise(agreement)))


def show_training(study: Study, path: Path, number: int) -> None:
    """Show how rare values would be merged before anything is fitted, and by which rules replies are pooled."""
    from consilience.study.admission import pooling_rules
    from consilience.study.rows import parts, rows_of, training_rows

    agreement = study.agreement
    data, _ = rows_of(agreement, path, one_class=True)
    training = training_rows(agreement, parts(agreement, number, data).train)
    say("What keeps single patients out of it", "bold")
    for note in training.notes:
        say(note, "yellow")
    if not training.notes:
        say(f"No level, mark or combination of them has fewer than {agreement.smallest} training rows.")
    rows = f"{len(training.data.y):,} training rows for {agreement.parameters:,} parameters"
    say(f"{rows}; which rows train is drawn by the number that a site gets when it joins.")
    for sentence in pooling_rules(agreement):
        say(sentence)


def score_table(scores: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]) -> Listing:
    table = columns(("score", "value", "95 % interval"), right=("value",))
    for name, value in scores.items():
        interval = ""
        if name in intervals:
            low, high = intervals[name]
            interval = f"{low:.4f} to {high:.4f}"
        table.add_row(name, f"{value:.4f}", interval)
    return table


def calibration_table(p: Categorical, y: Tensor, smallest: int) -> Listing:
    """Confidence and accuracy in five bins, without small counts."""
    from consilience.metrics.calibration import reliability

    heads = ("confidence", "rows", "accuracy")
    table = columns(heads, right=heads)
    bins = reliability(p, y, bins=5)
    counts = show_parts([b.count for b in bins], smallest)
    for b, count in zip(bins, counts, strict=True):
        if not b.count or b.confidence is None or b.accuracy is None:
            continue
        accuracy = ""
        if b.count >= smallest:
            accuracy = f"{100 * b.accuracy:.0f} %"
        table.add_row(f"{100 * b.confidence:.0f} %", count, accuracy)
    return table


def contents(value: Any, invented: bool = False) -> None:
    """Print a table of every tensor inside a value."""
    from consilience.admission.form import ranges

    range_head = "range"
    if invented:
        range_head = "range (from a rehearsal on invented rows)"
    table = columns(("name", "shape", "type", "bytes", range_head), right=("bytes",))
    total = 0
    for path, shape, kind, size, low, high in ranges(value):
        sizes = " × ".join(map(str, shape)) or "one number"
        table.add_row(path.removeprefix("tree."), sizes, kind, f"{size:,}", f"{low:.4g} to {high:.4g}")
        total += size
    out.print(table)
    say(f"{total:,} bytes of numbers in all.")


def outline(value: Any) -> list[tuple[Any, ...]]:
    """List names, shapes and types of the tensors inside a value."""
    from consilience.admission.form import ranges

    return [row[:3] for row in ranges(value)]


def show_count(count: int, smallest: int) -> str:
    """Write a count, unless it is small."""
    if 0 < count < smallest:
        return f"fewer than {smallest}"
    return f"{count:,}"


def show_parts(counts: list[int], smallest: int) -> list[str]:
    """Write counts beside their sum; where the small ones together are few, the next is left open, or it gave them."""
    texts = [show_count(n, smallest) for n in counts]
    few = sum(n for n in counts if n < smallest)
    others = [i for i, n in enumerate(counts) if n >= smallest]
    if 0 < few < smallest and others:
        texts[min(others, key=lambda i: counts[i])] = f"{smallest} or more"
    return texts


def brief(scores: Mapping[str, float]) -> str:
    """Write the most important scores on one line."""
    names = ("nll", "brier", "accuracy", "auroc", "rmse", "crps", "coverage95")
    return ", ".join(f"{name} {scores[name]:.3f}" for name in names if name in scores)
