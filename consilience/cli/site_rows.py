"""Which rows of its table a site uses: those it used before, and for scores only those that no model has seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from consilience.cli.handed import say, site_identity, warn_unsigned
from consilience.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from consilience.agreement.agreement import Agreement
    from consilience.data.sites import Data
    from consilience.study.model import Model
    from consilience.study.recall import Recalled
    from consilience.study.rows import Parts


def kept_rows(name: str) -> Path:
    """Find where a site remembers: what `site fit` left in this folder, or what `site serve` left in its own."""
    memory = Path(f"{name}.memory")
    served = Path(f"{name}.site") / memory.name
    if not memory.exists() and served.with_suffix(".rows").exists():
        return served
    return memory


def same_rows(agreement: Agreement, number: int, data: Data, recalled: Recalled, memory: Path, replace: bool) -> Parts:
    """Take the rows that were answered with before; others only where the site says so."""
    from consilience.study.recall import check_same
    from consilience.study.rows import parts

    if not recalled.difference:
        return recalled.rows
    if not replace:
        check_same(recalled, memory)
    say(f"Not the table of before: {recalled.difference}.", "yellow")
    say("Hand over this reply or the one before, never both: where they differ, they show single patients.", "yellow")
    return parts(agreement, number, data)


def unseen_rows(
    model: Path, table: Path, study_file: Path | None, key: Path | None, memory: Path | None
) -> tuple[Model, Data]:
    """Read a model and the rows to evaluate it on: none that it was trained on or chosen by, as far as is known."""
    from consilience.agreement.agreement import read
    from consilience.study.model import read_model
    from consilience.study.recall import recall
    from consilience.study.rows import rows_of

    if study_file is None:
        pooled = read_model(model, None)
        warn_unsigned(pooled.agreement)
        data, _ = rows_of(pooled.agreement, table, one_class=True)
        found = _own_memory(pooled.agreement, key, memory)
        if found is None:
            say(
                f"All {len(data.y)} rows. Whether the model was trained on them is not known here: if this site took "
                "part, give --study, or run this where its memory and key are.",
                "yellow",
            )
            return pooled, data
        memory, signing_key, number = found
    else:
        study = read(study_file)
        pooled = read_model(model, study)
        data, _ = rows_of(pooled.agreement, table, one_class=True)
        member, signing_key = site_identity(study, key)
        number = member.number
        memory = memory or kept_rows(member.name)
    recalled = recall(pooled.agreement, number, signing_key, memory, data)
    _say_unseen(recalled, table)
    return pooled, recalled.rows.test


def _own_memory(
    agreement: Agreement, key: Path | None, memory: Path | None
) -> tuple[Path, Ed25519PrivateKey, int] | None:
    """Find what a site kept in a model's study, and the key it was kept with; None where there is nothing."""
    from consilience.formats.envelope import open_envelope
    from consilience.formats.signature import public, read_key

    files = [path for pattern in ("*.rows", "*.memory", "*.site/*.rows") for path in sorted(Path().glob(pattern))]
    if memory is not None:
        files = [path for path in (memory.with_suffix(".rows"), memory) if path.exists()]
    keys = sorted(Path().glob("*.key"))
    if key is not None:
        keys = [key]
    for path in files:
        envelope = open_envelope(path)
        if envelope.header.study != agreement.hash:
            continue
        for candidate in keys:
            signing_key = read_key(candidate)
            if public(signing_key) == envelope.key:
                return path.with_suffix(".memory"), signing_key, int(envelope.header.about.get("number", 0))
        raise InputError(
            f"This site took part in the study ({path} says so), and which rows were trained on is known only with "
            "its private key: give it with --key."
        )
    return None


def _say_unseen(recalled: Recalled, table: Path) -> None:
    """Say which rows are scored, and what is not known about them."""
    count = len(recalled.rows.test.y)
    if not recalled.known:
        say("What `site fit` kept is not here: whether this is the table it was fitted to cannot be checked.", "yellow")
        say(f"{count} test rows of this site, drawn for neither training nor choosing if the table is the same.")
        return
    if recalled.mixed:
        raise InputError(
            f"{table.name} is not the table of `site fit`: {recalled.difference}. Rows trained on cannot be told from "
            "others: use the table as it was then."
        )
    if not count:
        raise InputError(
            f"Every row of {table.name} was trained on or chosen by: give rows that the model has not seen."
        )
    say(f"{count} test rows of this site, used neither for training nor for choosing.")
    if recalled.new:
        say(f"{recalled.new} of them were not in the table of `site fit`.")
    if recalled.new and recalled.missing:
        say(
            f"{recalled.missing} rows of then are missing: where a new row is the corrected copy of one that was "
            "trained on, its score flatters the model.",
            "yellow",
        )
