"""What a site would send, for tests that play many sites: made, masked and signed, but past no ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.data.sites import Data
from consilience.study.baseline import EventSums
from consilience.study.counting import KEPT, Counts
from consilience.study.exchange import Exchange, Made
from consilience.study.masking import book_path
from consilience.study.model import Model
from consilience.study.prediction_sets import own_thresholds
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Inspection
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.signature import public
from consilience.study.reply import Fit
from consilience.study.rows import Parts, Training
from consilience.study.scaling import Scaling
from consilience.study.site import Site
from consilience.study.statistics import Statistics
from consilience.study.table_one import description
from consilience.tree import Tree

NOWHERE = Path("nowhere/north.memory")  # where no folder is, nothing is locked or found


class Fitted(NamedTuple):
    """A reply, and what the site would keep."""

    reply: bytes
    memory: bytes
    send: Tree
    training: Training
    round: int
    repeated: bool


class Counted(NamedTuple):
    """Counts, and what the site would keep of them."""

    file: bytes
    kept: bytes = b""
    repeated: bool = False


def made(site: Site, question: Exchange[bytes]) -> tuple[bytes, Made]:
    """The steps of `Site.answer` that the ledger has no part in."""
    made = question.make(site)
    value = question.mask(site, made) if question.masked else made.value
    return question.seal(site, made, value), made


def site_of(study: Study, member: Member, key: Ed25519PrivateKey, rows: Any = None, **words: Any) -> Site:
    """A site whose rows of every role are the same, where one role is asked about."""
    if isinstance(rows, Data):
        rows = Parts(rows, rows, rows, rows)
    files = {"ledger": NOWHERE, "memory": NOWHERE, "book": book_path(study, member)}
    return Site(study, member, key, rows=rows, **{**files, **{k: v for k, v in words.items() if v is not None}})


def fit(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Parts,
    message: Path | None = None,
    memory: Path | None = None,
    replace: bool = False,
    book: Path | None = None,
) -> Fitted:
    book = book or book_path(study, member, (memory or Path()).parent)
    memory = memory or NOWHERE
    site = site_of(study, member, key, rows, memory=memory, book=book)
    question = Fit(study, message, replace)
    content, found = made(site, question)
    assert found.training is not None
    return Fitted(content, found.keeps[memory][0], found.value["send"], found.training, question.round, found.repeated)


def about(model: str, method: Any = None, state: Any = None, p: Any = None) -> Any:
    """A model of which only this is asked."""
    return SimpleNamespace(checksum=model, method=method, state=state)


def statistics(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    method: Any,
    state: Any,
    of: str,
    book: Path | None = None,
) -> bytes:
    site = site_of(study, member, key, rows, book=book)
    return made(site, Statistics(study, about(of, method, state)))[0]


def sums_file(
    study: Study, member: Member, key: Ed25519PrivateKey, rows: Data, model: Model, book: Path | None = None
) -> bytes:
    return made(site_of(study, member, key, rows, book=book), EventSums(study, model))[0]


def count(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    model: Model,
    book: Path | None = None,
    kept: Path | None = None,
) -> Counted:
    folder = None
    if kept is not None:
        folder = kept.parent if kept.suffix == ".counts" else kept
    site = site_of(study, member, key, rows, book=book, folder=folder)
    question = Counts(study, model)
    if question.plan.kind == "own":
        return Counted(own_thresholds(site, model))
    content, found = made(site, question)
    return Counted(content, found.keeps.get(site.kept(KEPT), (b"", ""))[0], found.repeated)


def table_file(study: Study, member: Member, key: Ed25519PrivateKey, inspection: Inspection) -> bytes:
    return made(site_of(study, member, key, inspection=inspection), description(study))[0]


def scaling_file(agreed: Agreement, name: str, inspection: Inspection, key: Ed25519PrivateKey) -> bytes:
    """Sums in the open, before anybody has joined."""
    question = Scaling(Study(agreed))
    member = Member(name, 0, public(key), "")
    return made(site_of(question.study, member, key, inspection=inspection), question)[0]
