"""Commands of a site: join, sums, check, fit, show, statistics, evaluate. Nothing is ever sent: files are written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.handed import Key_, Model_, Study_, Table_, columns, say, site_identity, warn_unsigned, write_files
from consilience.cli.options import app
from consilience.cli.screen import out, progress
from consilience.errors import InputError

site_app = typer.Typer(no_args_is_help=True, help="Take part in a study with rows that stay here.")
app.add_typer(site_app, name="site")

Out_ = Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; SITE.reply and the like by default.")]
OneClass_ = Annotated[bool, typer.Option("--one-class", help="Yes, all rows here are of one class.")]
Memory_ = Annotated[Path | None, typer.Option("--memory", help="What `site fit` kept here; SITE.memory by default.")]


@site_app.command()
def join(
    study: Study_,
    name: Annotated[str, typer.Argument(help="This site's name, as everybody will see it.")],
    out_: Out_ = None,
) -> None:
    """Sign the agreement after reading it: makes NAME.key, which stays here, and NAME.join for the coordinator."""
    from consilience.formats.signature import new_key, read_key
    from consilience.study.agreement import read
    from consilience.study.joining import join_text
    from consilience.study.names import check_name
    from consilience.study.proposal import consistent

    check_name(name)
    found = read(study)
    consistent(found.agreement)
    path = Path(f"{name}.key")
    key = read_key(path) if path.exists() else new_key(path)
    write_files(out_ or Path(f"{name}.join"), join_text(found.agreement, name, key), "For the coordinator")
    say(f"Your key stays here and is never handed out: {path}")
    say(f"You signed the agreement {found.agreement.hash[:12]} of '{found.agreement.name}'.")


@site_app.command()
def sums(
    study: Study_,
    table: Table_,
    name: Annotated[str, typer.Option("--site", help="This site's name.")],
    out_: Out_ = None,
) -> None:
    """Write counts, sums and sums of squares of the number columns, where the study finds its scaling that way."""
    from consilience.formats.signature import new_key, read_key
    from consilience.study.agreement import read
    from consilience.study.joining import sums_file
    from consilience.study.names import check_name
    from consilience.study.site import rows_of

    check_name(name)
    agreement = read(study).agreement
    if agreement.scaling != "sums":
        raise InputError('This study\'s constants are agreed in advance (scaling = "agreed"): no sums are needed.')
    _, found = rows_of(agreement, table, one_class=True)
    path = Path(f"{name}.key")
    key = read_key(path) if path.exists() else new_key(path)
    write_files(out_ or Path(f"{name}.sums"), sums_file(agreement, name, found, key), "For the coordinator")


@site_app.command()
def check(study: Study_, table: Table_) -> None:
    """Hold a table against the study and show what would leave. Sends nothing, writes nothing."""
    from consilience.study.admission import rehearse
    from consilience.study.agreement import read
    from consilience.study.columns import inspect
    from consilience.study.proposal import consistent

    agreement = read(study).agreement
    consistent(agreement)
    found = inspect(table, agreement.columns, agreement.target)
    few = agreement.smallest
    say(f"{found.path}: {shown(found.rows, few)} rows", "bold")
    listed = columns(("column", "type", "unit", "plausible", "missing"), right=("missing",))
    for c in agreement.columns:
        plausible = ", ".join(c.levels) if c.levels else f"{c.range[0]:g} to {c.range[1]:g}"
        listed.add_row(c.name, c.type, c.unit, plausible, shown(found.missing.get(c.name, 0), few))
    out.print(listed)
    for label, count in zip(found.classes, show_parts(list(found.classes.values()), few), strict=True):
        say(f"{agreement.target.name} = {label}: {count} rows")
    if found.extra:
        say(f"Not in the study and never read: {', '.join(found.extra)}.")
    for problem in found.problems:
        say(problem, "yellow")
    say(f"What would leave: {agreement.build_method().sends}", "bold")
    replies = [rehearse(agreement, round=t) for t in range(1, min(agreement.rounds, 2) + 1)]
    sent = [{"send": reply.send, "size": reply.size} for reply in replies]
    if len(sent) == 2 and outline(sent[0]) == outline(sent[1]):
        sent = sent[:1]  # every round sends the same
    for number, value in enumerate(sent, 1):
        if len(sent) > 1:
            say(f"In round {number}{', and so in turn' if number == 2 < agreement.rounds else ''}:")
        contents(value, invented=True)
    if found.problems:
        raise InputError(f"{len(found.problems)} thing(s) to correct before `site fit`: they are listed above.")
    if found.rows < few:
        raise InputError(f"{found.path} has fewer than {few} rows, the smallest number the study allows.")
    say("Everything fits. Nothing was sent or written.")


@site_app.command()
def fit(
    study: Study_,
    table: Table_,
    out_: Out_ = None,
    key: Key_ = None,
    message: Annotated[Path | None, typer.Option(help="The coordinator's message, from the second round on.")] = None,
    memory: Memory_ = None,
    one_class: OneClass_ = False,
) -> None:
    """Fit the model to this site's rows and write the one file that leaves."""
    from consilience.study.agreement import read
    from consilience.study.site import fit as fitted
    from consilience.study.site import own_scores, parts, rows_of

    found = read(study)
    member, own = site_identity(found, key)
    data, _ = rows_of(found.agreement, table, one_class)
    rows = parts(found.agreement, member.number, data)
    path = out_ or Path(f"{member.name}.reply")
    kept = memory or Path(f"{member.name}.memory")
    with progress(True) as _:
        made = fitted(found, member, own, rows, message, kept)
    write_files(path, made.reply, "For the coordinator")
    write_files(kept, made.memory, "Stays here")
    train, aside, test = (f"{len(part.y):,}" for part in rows)
    say(f"Trained on {train} rows; {aside} are set aside to choose by, {test} to test on.")
    found_scores = own_scores(found.agreement, made.send, rows.test) if len(rows.test.y) else {}
    if found_scores:
        say(f"This site's own model on its test rows (these numbers stay here): {brief(found_scores)}")
    say(f"See all that leaves with `consilience site show {path}`.")


@site_app.command()
def show(
    file: Annotated[Path, typer.Argument(help="Any file of a study.")],
    every: Annotated[bool, typer.Option("--all", help="Print every number.")] = False,
) -> None:
    """All that is in a file, in words and numbers."""
    from consilience.formats.envelope import open_envelope

    envelope = open_envelope(file)
    header = envelope.header
    signed = "its signature fits the key it names" if envelope.signed_by(envelope.key) else "ITS SIGNATURE IS WRONG"
    say(f"{file}: a {header.kind} of '{header.sender}' in the study '{header.study_name}'", "bold")
    key = f"{envelope.key[8:20]}…"
    say(f"Study {header.study[:12]}, round {header.round}, {envelope.nbytes:,} bytes, key {key}; {signed}.")
    for name, value in header.about.items():
        for key_, part in value.items() if isinstance(value, dict) else (("", value),):
            say(f"{name} {key_}".strip() + f": {part}")
    contents(envelope.tensors)
    if every:
        for name, tensor in sorted(envelope.tensors.items()):
            say(f"{name.removeprefix('tree.')} = {tensor.tolist()}")


@site_app.command()
def statistics(
    study: Study_, model: Model_, table: Table_, out_: Out_ = None, key: Key_ = None, memory: Memory_ = None
) -> None:
    """Sums of log-scores on the rows set aside, by which β or λ and the temperature are chosen. No row leaves."""
    from consilience.study.agreement import read
    from consilience.study.model import read_model
    from consilience.study.site import check_unseen, parts, rows_of
    from consilience.study.site import statistics as table_of

    found = read(study)
    member, own = site_identity(found, key)
    pooled = read_model(model, found)
    strangers = [name for name in pooled.facts.sites if name not in {site.name for site in found.active}]
    if strangers:
        raise InputError(f"The model holds {', '.join(strangers)}, not in your copy of the study: ask for new ones.")
    data, _ = rows_of(found.agreement, table, one_class=True)
    rows = parts(found.agreement, member.number, data)
    if not check_unseen(found, memory or Path(f"{member.name}.memory"), rows):
        say("What `site fit` kept is not here, so nobody can tell whether this is the table it saw.", "yellow")
    made = table_of(found, member, own, rows.choose, pooled.method, pooled.state, pooled.checksum)
    write_files(out_ or Path(f"{member.name}.statistics"), made, "For the coordinator")


@site_app.command()
def evaluate(
    model: Model_,
    table: Table_,
    study: Annotated[Path | None, typer.Option(help="The study's file: only this site's test rows are used.")] = None,
    key: Key_ = None,
) -> None:
    """How well a returned model predicts here, and whether its probabilities can be trusted. Stays here."""
    from consilience.metrics.calibration import reliability
    from consilience.metrics.scores import intervals, scores
    from consilience.predictive import Categorical
    from consilience.study.agreement import read
    from consilience.study.model import read_model
    from consilience.study.site import parts, rows_of

    found = read(study) if study else None
    pooled = read_model(model, found)
    agreement = pooled.agreement
    data, _ = rows_of(agreement, table, one_class=True)
    if found is not None:
        data = parts(agreement, site_identity(found, key)[0].number, data).test
        say(f"{len(data.y)} test rows of this site, which no part of the study trained on or chose by.")
    else:
        warn_unsigned(agreement)
        say(f"All {len(data.y)} rows. If this site took part, give --study to use its test rows only.")
    scale, shift = agreement.target.spread, agreement.target.centre
    y = data.y if agreement.target.classes else data.y * scale + shift
    p = pooled(data.x)
    values, ends = scores(p, y), intervals(p, y)
    listed = columns(("score", "value", "95 % interval"), right=("value",))
    for name, value in values.items():
        reach = "{:.4f} to {:.4f}".format(*ends[name]) if name in ends else ""
        listed.add_row(name, f"{value:.4f}", reach)
    out.print(listed)
    if isinstance(p, Categorical):
        bins = columns(("predicted", "rows", "right"), right=("predicted", "rows", "right"))
        found_bins = reliability(p, y, bins=5)
        counts = show_parts([b.count for b in found_bins], agreement.smallest)
        for b, count in zip(found_bins, counts, strict=True):
            if b.count and b.confidence is not None and b.accuracy is not None:
                right = f"{100 * b.accuracy:.0f} %" if b.count >= agreement.smallest else ""
                bins.add_row(f"{100 * b.confidence:.0f} %", count, right)
        out.print(bins)


def contents(value: Any, invented: bool = False) -> None:
    """A table of every tensor inside."""
    from consilience.study.site import ranges

    note = "range (of a rehearsal on invented rows)" if invented else "range"
    table = columns(("name", "shape", "type", "bytes", note), right=("bytes",))
    total = 0
    for path, shape, kind, size, low, high in ranges(value):
        sizes = " × ".join(map(str, shape)) or "one number"
        table.add_row(path.removeprefix("tree."), sizes, kind, f"{size:,}", f"{low:.4g} to {high:.4g}")
        total += size
    out.print(table)
    say(f"{total:,} bytes of numbers in all.")


def outline(value: Any) -> list[tuple[Any, ...]]:
    """Names, shapes and types of the tensors inside."""
    from consilience.study.site import ranges

    return [row[:3] for row in ranges(value)]


def shown(count: int, smallest: int) -> str:
    """A count, unless it is small."""
    return f"fewer than {smallest}" if 0 < count < smallest else f"{count:,}"


def show_parts(counts: list[int], smallest: int) -> list[str]:
    """Counts beside their sum; where the small ones together are few, the next is left open too: it would give them."""
    told, few = [shown(n, smallest) for n in counts], sum(n for n in counts if n < smallest)
    others = [i for i, n in enumerate(counts) if n >= smallest]
    if 0 < few < smallest and others:
        told[min(others, key=lambda i: counts[i])] = f"{smallest} or more"
    return told


def brief(found: dict[str, float]) -> str:
    wanted = ("nll", "brier", "accuracy", "auroc", "rmse", "crps", "coverage95")
    return ", ".join(f"{name} {found[name]:.3f}" for name in wanted if name in found)
