"""A site's budget: a ledger of everything it ever released about its people, over all studies. It stays at the site.

A release is charged to those it is about, by something that no study's choices change: patients by their agreed
column, else whole rows of the site's own table. An earlier release counts in full unless it is certainly about
others, which it is in three cases alone:

- the same study made both from the same table, and from rows of other roles, of which each row has one;
- both name patients in the same column, and share none;
- the rows of both stand in tables that the site registered as holding different people.

So, without a patient column and without a register, whatever leaves is charged to everybody at the site: columns,
scalings, features and orders of classes are a study's choice, and other hashes would make the same people new ones.

Releases with Gaussian noise compose to μ = √Σ μᵢ²; noisy steps on random batches (DP-SGD) are composed with them by
their privacy losses. A release without noise has no bound: with it, nothing that is promised later about the same
people holds. Hashes are keyed by the site, so that the ledger tells nobody a row.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError, refuse_damage
from consilience.privacy.dp.accountant import check_budget, compose
from consilience.privacy.dp.subsampled import Steps, add_steps, epsilon_of_all

FORMAT = 2
ROWS = "rows"  # the kind of people that are known by whole rows of the site's table
SLACK = 1e-6  # of ε, that adding up squares may cost
Hashes = NDArray[np.uint64]


class Cost(NamedTuple):
    """What releases tell about a row.

    Attributes:
        mu: μ = Δ/σ of all with Gaussian noise; infinite where one has no noise.
        steps: Noisy steps on random batches beside them.
    """

    mu: float = 0.0
    steps: tuple[Steps, ...] = ()

    def epsilon(self, delta: float) -> float:
        """Find the ε that goes with a δ.

        Args:
            delta: δ, between 0 and 1.

        Returns:
            ε; infinite without a bound.
        """
        return epsilon_of_all(delta, self.mu, self.steps)


UNBOUNDED = Cost(math.inf)


def add_costs(costs: Iterable[Cost]) -> Cost:
    """Put several releases together.

    Returns:
        What they tell together.
    """
    each = list(costs)
    return Cost(compose(cost.mu for cost in each), add_steps(kind for cost in each for kind in cost.steps))


class People(NamedTuple):
    """Whom a release is about, whatever a study makes of their rows.

    Attributes:
        kind: `rows`: by whole rows of the site's table; `patients COLUMN`: by what stands in that column; empty: they
            are not known, as in ledgers of older versions.
        names: Hashes of these rows or patients, sorted.
        table: What tells the table that they are in from others of the same study.
    """

    kind: str = ""
    names: Hashes = np.zeros(0, dtype=np.uint64)
    table: str = ""


EVERYBODY = People()


class Table(NamedTuple):
    """A table that the site registered: its people are in no other one.

    Attributes:
        name: Its file's name.
        when: The day.
        rows: Hashes of its rows, sorted.
    """

    name: str
    when: str
    rows: Hashes


class Release(NamedTuple):
    """Something that left the site.

    Attributes:
        study: The study's name.
        agreement: The hash of its agreement.
        what: In words: moments, scaling sums, statistics.
        round: The round, from 1 on; 0 outside of rounds.
        cost: What it tells.
        when: The day, as 2024-01-31.
        rows: Hashes of the rows it was made from as the study encodes them, sorted; equal rows as often as there are.
        whole: Whether its promise holds for all that was ever released about the rows; if not, it holds for what has
            noise, whatever left without.
        people: Whom it is about.
        part: The role of the rows it was made from, where they have one: `train`, `choose`.
    """

    study: str
    agreement: str
    what: str
    round: int
    cost: Cost
    when: str
    rows: Hashes
    whole: bool = True
    people: People = EVERYBODY
    part: str = ""

    @property
    def kind(self) -> str:
        """What is released, whatever model it is about: the first word."""
        return self.what.partition(" ")[0]

    def is_of(self, rows: Hashes) -> bool:
        """Say whether it was made from these rows."""
        if not self.people.kind:  # older versions entered equal rows once
            rows = np.unique(rows)
        return np.array_equal(self.rows, rows)

    @property
    def bounded(self) -> bool:
        """Whether it has noise."""
        return math.isfinite(self.cost.mu)

    @property
    def name(self) -> tuple[str, str, int]:
        """What tells it from other releases: the same again is no new one."""
        return self.agreement, self.what, self.round


@dataclass(frozen=True)
class Budget:
    """A ledger with its limit.

    Attributes:
        epsilon: The most that may be learned about a row, at `delta`; 0: not chosen yet.
        delta: δ.
        releases: Everything that was released, in order.
        tables: Those that the site registered as holding different people.
    """

    epsilon: float = 0.0
    delta: float = 0.0
    releases: tuple[Release, ...] = ()
    tables: tuple[Table, ...] = ()

    def spent(self, about: Release | None = None, noisy: bool = False) -> Cost:
        """Add up what was released.

        Args:
            about: The release whose people it is about; None: any.
            noisy: Whether to count what has noise alone.

        Returns:
            What all releases show that may be about one of these people.
        """
        counted = (r for r in self.releases if r.bounded or not noisy)
        return add_costs(r.cost for r in counted if about is None or not self._are_apart(r, about))

    def _are_apart(self, one: Release, other: Release) -> bool:
        """Whether two releases are certainly about different people or rows."""
        kinds = {one.people.kind, other.people.kind}
        if one.agreement == other.agreement and one.people.table and one.people.table == other.people.table:
            return bool(one.part and other.part) and one.part != other.part
        if len(kinds) == 1 and kinds.isdisjoint({ROWS, ""}):
            return not np.isin(one.people.names, other.people.names).any()
        if kinds != {ROWS}:
            return False
        here, there = self.registered(one.people), self.registered(other.people)
        return bool(here and there) and here.isdisjoint(there)

    def registered(self, people: People) -> set[str]:
        """Find the registered tables that people are in.

        Returns:
            The tables' names; none where one of them is in no table, and so may be anybody.
        """
        if people.kind != ROWS or not self.tables:
            return set()
        if not np.isin(people.names, np.concatenate([table.rows for table in self.tables])).all():
            return set()
        return {table.name for table in self.tables if np.isin(people.names, table.rows).any()}

    def register(self, name: str, rows: Hashes, when: str) -> Budget:
        """Enter a table whose people are in no other; one that shares a row with another is counted as part of it.

        Args:
            rows: Hashes of its rows, sorted.

        Returns:
            The ledger with it.

        Raises:
            InputError: Another table has this name.
        """
        same = [table for table in self.tables if np.isin(rows, table.rows).any()]
        others = [table for table in self.tables if not np.isin(rows, table.rows).any()]
        if any(table.name == name for table in others):
            raise InputError(f"A table '{name}' with other rows is registered: rename the file.")
        joined = [*same, Table(name, when, rows)]
        first = joined[0]
        whole = np.unique(np.concatenate([table.rows for table in joined]))
        return replace(self, tables=(*others, Table(first.name, first.when, whole)))

    def check_once(self, release: Release, one_model: bool = False) -> None:
        """Refuse to answer a question of a study again from other rows: where two answers differ, they show a row.

        Args:
            release: What is to leave.
            one_model: Whether about another model it may not be answered either.

        Raises:
            InputError: Another answer of this kind has left in this study.
        """
        before = [r for r in self.releases if r.agreement == release.agreement and r.kind == release.kind]
        if not before:
            return
        last = before[-1]
        if not last.is_of(release.rows) or (one_model and last.what != release.what):
            other = "from other rows"
            if one_model:
                other += " or about another model"
            raise InputError(
                f"This site has answered this in this study {other} ({last.what}, {last.when}), and a second answer "
                "would show more of single rows: hand over the first, and use the table of then."
            )

    def charge(self, release: Release, repeated: bool = False) -> Budget:
        """Enter a release before it is made.

        Args:
            release: What is to leave.
            repeated: Whether it is the very same numbers that left before, which tell nothing new.

        Returns:
            The ledger with it; as it was, where it is repeated and was entered.

        Raises:
            InputError: The budget does not allow it, or nothing that it promises would hold.
        """
        for earlier in self.releases:
            if earlier.name == release.name and earlier.is_of(release.rows) and (repeated or not release.bounded):
                return self
        self._check_clock(release)
        if release.bounded:
            self._check(release, self.spent(release, noisy=not release.whole))
        else:
            self._check_promised(release)
        return replace(self, releases=(*self.releases, release))

    def _check_clock(self, release: Release) -> None:
        """Refuse a date before that of the last entry: a ledger out of order proves nothing to anybody."""
        if self.releases and release.when < self.releases[-1].when:
            raise InputError(
                f"Nothing is sent: the clock says {release.when}, and this site's ledger was last written on "
                f"{self.releases[-1].when}; set the clock right, and try again."
            )

    def _check(self, release: Release, before: Cost) -> None:
        if not math.isfinite(before.mu):
            studies = ", ".join(sorted({r.study for r in self.releases if not r.bounded}))
            raise InputError(
                f"Nothing is sent: something about these people was released without noise before ({studies}), and no "
                "ε holds for them any more. If this table's people are others, say so: `consilience site register`."
            )
        after = add_costs([before, release.cost]).epsilon(self.delta)
        if after > self.epsilon * (1 + SLACK):
            raise InputError(
                f"Nothing is sent: ε would become {after:.3g} at δ = {self.delta:g} for these people, and this site's "
                f"budget is {self.epsilon:g}; raise it with `consilience site ledger --epsilon` if they agree."
            )

    def _check_promised(self, release: Release) -> None:
        """Refuse what has no noise where other studies promised something about the same people."""
        promised = [r for r in self.releases if r.bounded and r.whole and r.agreement != release.agreement]
        studies = ", ".join(sorted({r.study for r in promised if not self._are_apart(r, release)}))
        if studies and self.epsilon < math.inf:
            raise InputError(
                f"Nothing is sent: it has no noise, and of these people no more than ε = {self.epsilon:g} may be "
                f"learned over all studies, since they took part in {studies}. If they agree that this ends, say so: "
                "`consilience site ledger FILE --epsilon inf`."
            )

    def limit(self, epsilon: float, delta: float) -> Budget:
        """Choose the budget.

        Args:
            epsilon: ε; infinite where nothing is promised over all studies any more.
            delta: δ.

        Returns:
            The ledger with that limit.

        Raises:
            InputError: They promise nothing.
        """
        check_budget(min(epsilon, sys.float_info.max), delta)
        return replace(self, epsilon=epsilon, delta=delta)


def hash_rows(rows: Sequence[Tensor], secret: bytes) -> Hashes:
    """Name rows by their content.

    Args:
        rows: Columns of the rows: tensors with one entry a row.
        secret: What only this site knows, so that nobody can look a row up by its hash.

    Returns:
        Sorted hashes of 64 bits, equal rows as often as there are.
    """
    columns = [leaf.detach().contiguous().reshape(len(leaf), -1).numpy() for leaf in rows]
    return hash_texts((b"".join(column[i].tobytes() for column in columns) for i in range(len(columns[0]))), secret)


def hash_texts(texts: Iterable[bytes], secret: bytes) -> Hashes:
    """Name whatever has a text.

    Args:
        secret: What only this site knows.

    Returns:
        Sorted hashes of 64 bits.
    """
    names = [hmac.new(secret, text, hashlib.sha256).digest()[:8] for text in texts]
    found: Hashes = np.sort(np.frombuffer(b"".join(names), dtype=np.uint64))
    return found


def today() -> str:
    """Return the day, as a ledger writes it."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def read_budget(path: Path) -> Budget:
    """Read a ledger.

    Args:
        path: Its file; where there is none, nothing was released.

    Raises:
        InputError: The file is damaged: without it, nobody knows what was released.
    """
    if not path.exists():
        return Budget()
    damaged = f"{path} is damaged, and without it nobody knows what was released: restore it from a copy."
    with refuse_damage(damaged):
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] == 1:
            entries = [{**entry, "rows": _unpack(entry["rows"])} for entry in value["releases"]]
            return Budget(float(value["epsilon"]), float(value["delta"]), tuple(map(_release, entries)))
        if value["format"] != FORMAT:
            raise InputError(f"{path} is of another version of consilience: use that one.")
        hashes = {name: _unpack(text) for name, text in value["hashes"].items()}
        releases = tuple(_release(_with_hashes(entry, hashes)) for entry in value["releases"])
        tables = tuple(Table(t["name"], t["when"], hashes[t["rows"]]) for t in value["tables"])
        return Budget(float(value["epsilon"]), float(value["delta"]), releases, tables)


def merge_budgets(here: Budget, there: Budget) -> Budget:
    """Put two ledgers of one site together.

    Args:
        here: Its ledger, whose limit stays where it has one.
        there: Another, of whose entries some may be the same.

    Returns:
        One with the entries of both, by day.
    """
    known = {(r.name, r.when, r.cost, r.rows.tobytes()) for r in here.releases}
    new = [r for r in there.releases if (r.name, r.when, r.cost, r.rows.tobytes()) not in known]
    releases = tuple(sorted((*here.releases, *new), key=lambda release: release.when))
    merged = replace(here, releases=releases)
    if not here.epsilon:
        merged = replace(merged, epsilon=there.epsilon, delta=there.delta)
    for table in there.tables:
        merged = merged.register(table.name, table.rows, table.when)
    return merged


def write_budget(path: Path, budget: Budget) -> None:
    """Write a ledger, whole or not at all, and so that it survives a loss of power."""
    hashes: dict[str, str] = {}  # the same rows stand in many entries, and are written once
    releases = [_entry(release, hashes) for release in budget.releases]
    tables = [{**table._asdict(), "rows": _put(table.rows, hashes)} for table in budget.tables]
    epsilon = budget.epsilon if math.isfinite(budget.epsilon) else "inf"  # which JSON has no number for
    value = {"format": FORMAT, "epsilon": epsilon, "delta": budget.delta, "releases": releases}
    text = json.dumps({**value, "tables": tables, "hashes": hashes}, indent=1)
    write_whole(path, text.encode(), "Choose another place with --ledger.", PRIVATE)


def _entry(release: Release, hashes: dict[str, str]) -> dict[str, Any]:
    """One line of a ledger's file, as JSON has it; steps where there are any."""
    people = {**release.people._asdict(), "names": _put(release.people.names, hashes)}
    entry = {**release._asdict(), "mu": str(release.cost.mu), "rows": _put(release.rows, hashes), "people": people}
    del entry["cost"]
    if release.cost.steps:
        entry["steps"] = [list(kind) for kind in release.cost.steps]
    return entry


def _with_hashes(entry: dict[str, Any], hashes: dict[str, Hashes]) -> dict[str, Any]:
    """One line of a ledger's file, with what its names of hashes stand for."""
    people = entry["people"]
    known = People(str(people["kind"]), hashes[people["names"]], str(people["table"]))
    return {**entry, "rows": hashes[entry["rows"]], "people": known}


def _release(entry: dict[str, Any]) -> Release:
    """One line of a ledger's file."""
    known = {**entry}
    steps = tuple(Steps(float(noise), float(share), int(number)) for noise, share, number in known.pop("steps", ()))
    mu = float(known.pop("mu"))
    if not mu >= 0 or not all(kind.noise_multiplier > 0 and 0 < kind.share <= 1 and kind.number > 0 for kind in steps):
        raise ValueError("cost")
    return Release(**known, cost=Cost(mu, steps))


def _put(rows: Hashes, hashes: dict[str, str]) -> str:
    """The name of hashes in a ledger's file."""
    text = base64.b64encode(np.ascontiguousarray(rows, dtype="<u8").tobytes()).decode()
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    hashes[name] = text
    return name


def _unpack(text: str) -> Hashes:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8").astype(np.uint64)
