"""A site's budget: a ledger of everything it ever released about its rows, over all studies. It stays at the site.

Rows are known by a hash of their content, keyed by the site, so that the ledger tells nobody a row. A release is
charged to the rows it was made from, and a new one may not take what was released about any of its rows past the
budget: every earlier release that shares a row with it counts in full. Releases with Gaussian noise compose to
μ = √Σ μᵢ²; noisy steps on random batches (DP-SGD) are composed with them by their privacy losses. A release without
noise has no bound: with it, nothing that is promised later about the same rows holds.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError, refuse_damage
from consilience.privacy.accountant import check_budget, compose
from consilience.privacy.subsampled import Steps, add_steps, epsilon_of_all

FORMAT = 1
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

    Args:
        costs: Of each.

    Returns:
        What they tell together.
    """
    each = list(costs)
    return Cost(compose(cost.mu for cost in each), add_steps(kind for cost in each for kind in cost.steps))


class Release(NamedTuple):
    """Something that left the site.

    Attributes:
        study: The study's name.
        agreement: The hash of its agreement.
        what: In words: moments, scaling sums, statistics.
        round: The round, from 1 on; 0 outside of rounds.
        cost: What it tells.
        when: The day, as 2024-01-31.
        rows: Hashes of the rows it was made from, sorted.
        whole: Whether its promise holds for all that was ever released about the rows; if not, it holds for what has
            noise, whatever left without.
    """

    study: str
    agreement: str
    what: str
    round: int
    cost: Cost
    when: str
    rows: Hashes
    whole: bool = True

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
    """

    epsilon: float = 0.0
    delta: float = 0.0
    releases: tuple[Release, ...] = ()

    def spent(self, rows: Hashes | None = None, noisy: bool = False) -> Cost:
        """Add up what was released.

        Args:
            rows: The rows it is about; None: any.
            noisy: Whether to count what has noise alone.

        Returns:
            What all releases told that were made from one of these rows, at least.
        """
        counted = (r for r in self.releases if r.bounded or not noisy)
        return add_costs(r.cost for r in counted if rows is None or np.isin(rows, r.rows).any())

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
            same = earlier.name == release.name and np.array_equal(earlier.rows, release.rows)
            if same and (repeated or not release.bounded):
                return self
        self._check_clock(release)
        if release.bounded:
            self._check(release, self.spent(release.rows, noisy=not release.whole))
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
                f"Nothing is sent: something about these rows was released without noise before ({studies}), and no ε "
                "holds for them any more; use other rows, or name another ledger with --ledger if that was public."
            )
        after = add_costs([before, release.cost]).epsilon(self.delta)
        if after > self.epsilon * (1 + SLACK):
            raise InputError(
                f"Nothing is sent: ε would become {after:.3g} at δ = {self.delta:g} for these rows, and this site's "
                f"budget is {self.epsilon:g}; raise it with `consilience site ledger --epsilon` if its people agree."
            )

    def limit(self, epsilon: float, delta: float) -> Budget:
        """Choose the budget.

        Args:
            epsilon: ε.
            delta: δ.

        Returns:
            The ledger with that limit.

        Raises:
            InputError: They promise nothing.
        """
        check_budget(epsilon, delta)
        return replace(self, epsilon=epsilon, delta=delta)


def hash_rows(rows: Sequence[Tensor], secret: bytes) -> Hashes:
    """Name rows by their content.

    Args:
        rows: Columns of the rows: tensors with one entry a row.
        secret: What only this site knows, so that nobody can look a row up by its hash.

    Returns:
        Sorted hashes of 64 bits, equal rows once.
    """
    columns = [leaf.detach().contiguous().reshape(len(leaf), -1).numpy() for leaf in rows]
    texts = (b"".join(column[i].tobytes() for column in columns) for i in range(len(columns[0])))
    names = [hmac.new(secret, text, hashlib.sha256).digest()[:8] for text in texts]
    found: Hashes = np.unique(np.frombuffer(b"".join(names), dtype=np.uint64))
    return found


def today() -> str:
    """Return the day, as a ledger writes it."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def read_budget(path: Path) -> Budget:
    """Read a ledger.

    Args:
        path: Its file; where there is none, nothing was released.

    Returns:
        The ledger.

    Raises:
        InputError: The file is damaged: without it, nobody knows what was released.
    """
    if not path.exists():
        return Budget()
    damaged = f"{path} is damaged, and without it nobody knows what was released: restore it from a copy."
    with refuse_damage(damaged):
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise InputError(f"{path} is of another version of consilience: use that one.")
        releases = tuple(_release(entry) for entry in value["releases"])
        return Budget(float(value["epsilon"]), float(value["delta"]), releases)


def write_budget(path: Path, budget: Budget) -> None:
    """Write a ledger, whole or not at all, and so that it survives a loss of power.

    Args:
        path: Its file.
        budget: The ledger.
    """
    releases = [_entry(release) for release in budget.releases]
    value = {"format": FORMAT, "epsilon": budget.epsilon, "delta": budget.delta, "releases": releases}
    write_whole(path, json.dumps(value, indent=1).encode(), "Choose another place with --ledger.", PRIVATE)


def _entry(release: Release) -> dict[str, Any]:
    """One line of a ledger's file, as JSON has it; steps where there are any."""
    entry = {**release._asdict(), "mu": str(release.cost.mu), "rows": _pack(release.rows)}
    del entry["cost"]
    if release.cost.steps:
        entry["steps"] = [list(kind) for kind in release.cost.steps]
    return entry


def _release(entry: dict[str, Any]) -> Release:
    """One line of a ledger's file."""
    known = {**entry, "rows": _unpack(entry["rows"])}
    steps = tuple(Steps(float(noise), float(share), int(number)) for noise, share, number in known.pop("steps", ()))
    mu = float(known.pop("mu"))
    if not mu >= 0 or not all(kind.noise_multiplier > 0 and 0 < kind.share <= 1 and kind.number > 0 for kind in steps):
        raise ValueError("cost")
    return Release(**known, cost=Cost(mu, steps))


def _pack(rows: Hashes) -> str:
    return base64.b64encode(np.ascontiguousarray(rows, dtype="<u8").tobytes()).decode()


def _unpack(text: str) -> Hashes:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8").astype(np.uint64)
