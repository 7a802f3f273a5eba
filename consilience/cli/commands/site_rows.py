"""Which rows of its table a site uses: those it used before, and for scores only those that no model has seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from consilience.cli.handed import at_home, say, site_home, warn_unsigned
from consilience.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from consilience.data.sites import Data
    from consilience.study.home import Home, Opened
    from consilience.study.model import Model
    from consilience.study.protocol.agreement import Agreement
    from consilience.study.recall import Recalled
    from consilience.study.rows import Parts


def kept_rows(home: Home) -> Path:
    """Find where a site remembers: what `site fit` left beside its key, or what `site serve` left in its own folder."""
    served = home.served / home.memory.name
    if not home.memory.exists() and served.with_suffix(".rows").exists():
        return served
    return home.memory


def remembered(home: Home, memory: Path | None) -> Path:
    """Find the memory beside which a site's rows are remembered; `site serve` keeps its own under another name."""
    if memory is None:
        return kept_rows(home)
    if memory.suffix == ".bin":
        return memory.with_name(home.memory.name)
    return memory


def kept_model(home: Home, memory: Path | None) -> Path:
    """Find what a site kept of its own model, by `site fit` or by `site serve`; need not exist."""
    if memory is not None:
        return memory
    kept = kept_rows(home)
    served = kept.with_name(f"memory-{home.study.agreement.hash[:16]}.bin")
    if not kept.exists() and served.exists():
        return served
    return kept


def check_unchanged(recalled: Recalled) -> None:
    """Refuse a table that is not the one of `site fit`; say so where that is not known."""
    if not recalled.known:
        say("What `site fit` kept is not here: whether this is the table it was fitted to cannot be checked.", "yellow")
    if recalled.difference:
        raise InputError(
            f"The table has changed since `site fit`: {recalled.difference}. Use the table of then: two sums show "
            "where they differ, and rows held out may have been trained on."
        )


def same_rows(opened: Opened, replace: bool) -> Parts:
    """Take the rows that were answered with before; others only where the site says so."""
    from consilience.study.recall import check_same
    from consilience.study.rows import parts

    recalled, site = opened.recalled, opened.site
    if not recalled.difference:
        return recalled.rows
    if not replace:
        check_same(recalled, site.memory)
    say(f"Not the table of before: {recalled.difference}.", "yellow")
    say("Hand over this reply or the one before, never both: where they differ, they show single patients.", "yellow")
    return parts(site.study.agreement, site.member.number, opened.data)


def unseen_rows(
    model: Path, table: Path, study_file: Path | None, key: Path | None, memory: Path | None, leaves: bool = False
) -> tuple[Model, Data]:
    """Read a model and the rows to evaluate it on: none it was trained, chosen or calibrated on, as is known.

    Where the results leave the site, the table must be that of `site fit`.
    """
    from consilience.study.model import read_model
    from consilience.study.protocol.members import read
    from consilience.study.recall import recall
    from consilience.study.rows import rows_of

    if study_file is None:
        pooled = read_model(model, None)
        if pooled.is_personal:
            if memory is not None:
                raise InputError("A site's own model is held against its study: give --study too.")
            say("This is the model that a newcomer gets. If this site took part, give --study for its own.", "yellow")
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
        home = site_home(study, key)
        number, signing_key = home.member.number, home.key
        pooled = own_model(pooled, home, memory)
        memory = remembered(home, memory)
    recalled = recall(pooled.agreement, number, signing_key, memory, data)
    if leaves:
        check_unchanged(recalled)
    _say_unseen(recalled, table)
    return pooled, recalled.rows.test


def own_model(pooled: Model, home: Home, memory: Path | None) -> Model:
    """Make this site's own model, where sites have such and this one kept its part."""
    if not pooled.is_personal:
        return pooled
    kept = kept_model(home, memory)
    if memory is None and not kept.exists():
        say(f"{kept} is not here: this is the model that a newcomer gets.", "yellow")
        return pooled
    return at_home(pooled, home.study, kept)


def _own_memory(
    agreement: Agreement, key: Path | None, memory: Path | None
) -> tuple[Path, Ed25519PrivateKey, int] | None:
    """Find what a site kept in a model's study, and the key it was kept with; None where there is nothing."""
    from consilience.study.protocol.envelope import open_envelope
    from consilience.study.protocol.signature import public, read_key

    folders = dict.fromkeys([Path(), *([key.parent] if key is not None else [])])
    patterns = ("*.rows", "*.memory", "*.site/*.rows")
    files = [path for pattern in patterns for folder in folders for path in sorted(folder.glob(pattern))]
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
            f"Every row of {table.name} was trained on, chosen or calibrated by: give rows that the model has not seen."
        )
    purposes = "neither for training nor for choosing"
    if len(recalled.rows.calibrate.y):
        purposes = "for neither training, choosing nor calibrating"
    say(f"{count} test rows of this site, used {purposes}.")
    if recalled.new:
        say(f"{recalled.new} of them were not in the table of `site fit`.")
    if recalled.new and recalled.missing:
        say(
            f"{recalled.missing} rows of then are missing: where a new row is the corrected copy of one that was "
            "trained on, its score flatters the model.",
            "yellow",
        )
