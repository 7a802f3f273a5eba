"""What a site is shown: a table of rows, the contents of a file, scores; never a small count."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.cli.handed import Listing, columns, say
from consilience.cli.screen import out
from consilience.report.schema.wording import privacy_note

if TYPE_CHECKING:
    from torch import Tensor

    from consilience.distributions.predictive import Categorical
    from consilience.study.audit import SiteAudit
    from consilience.study.home import Home
    from consilience.study.protocol.agreement import Agreement
    from consilience.study.protocol.columns import Inspection
    from consilience.study.protocol.members import Study


def show_table(agreement: Agreement, inspection: Inspection) -> None:
    """Show a table's columns, classes and problems, without small counts."""
    smallest = agreement.smallest
    say(f"{inspection.path}: {show_count(inspection.rows, smallest)} rows", "bold")
    table = columns(("column", "type", "unit", "plausible", "missing"), right=("missing",))
    listed = agreement.columns
    if agreement.target.counts_events:
        listed = (*listed, *agreement.target.as_columns())
    for column in listed:
        plausible = ", ".join(column.levels) or f"{column.range[0]:g} to {column.range[1]:g}"
        missing = "no such column"
        if column.name in inspection.missing:
            missing = show_count(inspection.missing[column.name], smallest)
        table.add_row(column.name, column.type, column.unit, plausible, missing)
    out.print(table)
    counts = show_parts(list(inspection.classes.values()), smallest)
    for label, count in zip(inspection.classes, counts, strict=True):
        say(f"{agreement.target.name} = {label}: {count} rows")
    event = agreement.target.event
    if event and not inspection.problems:
        seen = int((inspection.cells[event].numbers() == 1).sum())
        counts = show_parts([seen, inspection.rows - seen], smallest)
        say(f"'{event}' was seen in {counts[0]} rows, and not in {counts[1]}, as far as they were followed.")
    if inspection.extra:
        say(f"Not in the study and never read: {', '.join(inspection.extra)}.")
    for problem in inspection.problems:
        say(problem, "yellow")


def show_rehearsal(agreement: Agreement) -> None:
    """Show what would leave, from a rehearsal on invented rows: once, where every round sends the same."""
    from consilience.study.protocol.calibration import describe_evaluation
    from consilience.study.protocol.guarantees import describe_counts
    from consilience.study.protocol.posteriors import describe_posteriors
    from consilience.study.protocol.promise import describe_promise
    from consilience.study.protocol.rehearsal import rehearse

    say(f"What would leave: {agreement.build_method().about.sends}", "bold")
    if agreement.secure:
        say("It is masked: the coordinator sees the sum of these numbers over all sites, and nobody sees this site's.")
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
    if describe_counts(agreement):
        say(describe_counts(agreement))
    if describe_evaluation(agreement):
        say(describe_evaluation(agreement))
    if describe_posteriors(agreement):
        say(describe_posteriors(agreement))
    if agreement.privacy is not None:
        say(privacy_note(describe_promise(agreement)))


def show_training(study: Study, path: Path, number: int) -> None:
    """Show how rare values would be merged before anything is fitted, and by which rules replies are pooled."""
    from consilience.methods.claims import privacy_statement
    from consilience.study.rows import parts, rows_of, training_rows
    from consilience.study.validation.rules import pooling_rules

    agreement = study.agreement
    data, _ = rows_of(agreement, path, one_class=True)
    training = training_rows(agreement, parts(agreement, number, data).train)
    say("What keeps single patients out of it", "bold")
    for note in training.notes:
        say(note, "yellow")
    promise = privacy_statement(agreement.build_method())
    if promise is not None:
        say(
            f"Differential privacy: ε = {promise['epsilon']:g}, δ = {promise['delta']:g} for each {promise['unit']} "
            f"({promise['adjacency']}), over all rounds; {promise['mode']}. Rare values are not merged: noise hides "
            f"them. Not covered: {'; '.join(promise['not_covered'])}."
        )
    elif not training.notes:
        say(f"No level, indicator or combination of them has fewer than {agreement.smallest} training rows.")
    rows = f"{len(training.data.y):,} training rows for {agreement.parameters:,} parameters"
    drawn = "drawn by the number that a site gets when it joins"
    if agreement.roles == "content":
        drawn = "drawn from the seed by each row's own content"
    say(f"{rows}; which rows train is {drawn}.")
    for sentence in pooling_rules(agreement):
        say(sentence)


def show_masks(home: Home) -> None:
    """Say whose sum a masked file is part of, and how to find out whether all mean the same sites."""
    from consilience.study.masking import REPLY, list_roster, purpose_of

    members = list_roster(home.study)
    names = ", ".join(site.name for site in members)
    say(f"It is masked: nobody can read it, and the sum over {names} can be read once all of them have sent theirs.")
    digits = purpose_of(home.study, members, 1, REPLY).roster[:12]
    say(f"Ask the others on another channel whether their list of sites has these digits too: {digits}")
    say(f"Never delete or move {home.book}: it says which masks were used.")


def show_audit(agreement: Agreement, rows: int, found: Sequence[SiteAudit]) -> None:
    """Show what an audit found, and what it means."""
    from consilience.study.audit import KINDS, meaning

    say(f"What a reply of {agreement.method} would tell about single rows, at {rows:,} training rows", "bold")
    table = columns(
        ("rows put in by coin", "guessed", "right", "ε at least", "ε at most shown"), right=("guessed", "right")
    )
    for audit in found:
        bound = audit.bound
        share = f"{bound.correct} ({100 * bound.correct / bound.guesses:.0f} %)"
        guessed = f"{bound.guesses} of {bound.canaries}"
        table.add_row(audit.kind, guessed, share, f"{bound.epsilon:.2f}", f"{bound.ceiling:.2f}")
    out.print(table)
    for audit in found:
        say(f"{audit.kind.capitalize()} ({KINDS[audit.kind]}): {meaning(audit.bound)}")
    bound = found[0].bound
    say(
        f"Each ε is a lower bound at δ = {bound.delta:.2g} with {100 * bound.confidence:.0f} % confidence, by the "
        "one-run audit of Steinke, Nasr and Jagielski (2023); a better guesser may find more."
    )
    promised = agreement.privacy
    most = max(audit.bound.epsilon for audit in found)
    if promised is not None and most > promised.epsilon:
        say(f"THE PROMISE OF ε = {promised.epsilon:g} IS REFUTED: do not send anything, and tell us.", "red")
    elif promised is not None:
        say(f"The study's promise of ε = {promised.epsilon:g} at δ = {promised.delta:g} is not refuted.")
    say("Nothing was sent.")


def audit_json(agreement: Agreement, rows: int, found: Sequence[SiteAudit]) -> str:
    """Write what an audit found as JSON."""
    audits = [{"kind": audit.kind, "attack": audit.attack, **audit.bound._asdict()} for audit in found]
    return json.dumps({"study": agreement.hash, "method": agreement.method, "rows": rows, "audits": audits}, indent=1)


def score_table(scores: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]) -> Listing:
    """A line for each score, named and written as in reports."""
    from consilience.metrics.findings import Scores
    from consilience.report.schema import wording

    own = Scores(scores, intervals)
    table = columns(("score", "value", "95 % interval"), right=("value", "95 % interval"))
    for key in wording.order(scores):
        table.add_row(
            wording.metric(key).name, wording.score(key, scores[key]), wording.interval(key, own.interval(key))
        )
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
    from consilience.study.validation.form import ranges

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
    from consilience.study.validation.form import ranges

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
    from consilience.report.schema import wording

    keys = ("nll", "brier", "accuracy", "auroc", "rmse", "crps", "coverage95")
    return ", ".join(f"{wording.metric(key).name} {wording.score(key, scores[key])}" for key in keys if key in scores)
