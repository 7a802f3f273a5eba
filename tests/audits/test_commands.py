"""The promises attacked through the very commands: `consilience site …` over and over, and the file that it writes.

Before each draw the site forgets what it kept, so that noise is drawn anew and a ledger begun; nothing else is put in
its place. Each command takes 50 ms of a processor: `make test-audit` runs 2 000 a side, the slow suite a
tenth: that finds 2 ε in 99 of 100.

A release whose noise hides behind a random batch is no Gaussian one. There the family is that of the promise itself: a
patient who is in the batch with probability q moves it by 1 in units of the noise σ, and a found share t of patients at
a share f suspected in vain is possible only if t ≤ (1 − q) f + q Φ(1/σ − Φ⁻¹(1 − f)). The largest σ at which what was
seen is possible, with Clopper and Pearson's ends, has an ε by the accountant: that was found, at least.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import studies
import torch
from auditing import (
    DELTA,
    ENDS,
    EPSILON,
    EXTREME,
    POWER,
    SUMS,
    WORSE,
    Audit,
    Table,
    counted,
    write_page,
)
from rounds import pooled_model, replies
from scipy.stats import beta, binom, norm
from tiny import Invoke
from torch import Tensor

from consilience import tree
from consilience.privacy.dp.mechanisms import Clipped, Privacy
from consilience.privacy.dp.subsampled import epsilon_of_steps, noise_for
from consilience.serialisation.codec import TYPES, types_of
from consilience.study import counting
from consilience.study.masking import REPLY
from consilience.study.protocol.columns import Column
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import INVENTED, rehearsal_of
from consilience.study.protocol.text import study_text
from consilience.study.reply import first_message
from consilience.study.rows import parts, rows_of
from consilience.study.summing import add_masked, scales_for, summation_of

DRAWS = 2000 if os.environ.get("CONSILIENCE_AUDIT_PAGE") else 200
AGAIN = "the command"
Read = Callable[[], Tensor]


@pytest.fixture(scope="module")
def audits() -> Iterator[list[Audit]]:
    done: list[Audit] = []
    yield done
    if os.environ.get("CONSILIENCE_AUDIT_PAGE"):
        write_page(done)


class Desk(NamedTuple):
    """A site's folder with both tables, and its command line."""

    study: Study
    folder: Path
    invoke: Invoke

    def forget(self, name: str = "north") -> None:
        """All that the site keeps, but for its key and what it was given."""
        for path in self.folder.glob(f"{name}*"):
            if path.suffix not in (".key", ".csv"):
                path.unlink()

    def ask(self, *words: str, name: str = "north") -> None:
        self.forget(name)
        code, _, err = self.invoke("site", *words, "--key", f"{name}.key")
        assert code == 0, err

    def draws(self, count: int, read: Read, *words: str) -> Tensor:
        """What leaves, so many times [count, numbers]."""
        found = []
        for _ in range(count):
            self.ask(*words)
            found.append(read())
        return torch.stack(found)

    def value(self, name: str) -> Any:
        return open_envelope(self.folder / name).value({**TYPES, **types_of(self.study.agreement.build_method())})


def desk(folder: Path, invoke: Invoke, records: Table, patient: dict[str, str], **words: Any) -> Desk:
    study = studies.study(folder, committed=300, **words)
    (folder / "a.toml").write_text(study_text(study))
    studies.table(folder / "without.csv", records)
    studies.table(folder / "with.csv", [patient, *records])
    return Desk(study, folder, invoke)


def patient_of(role: str, folder: Path, records: Table, patient: dict[str, str], **words: Any) -> dict[str, str]:
    """A patient who has this role, by content."""
    study = studies.study(folder, committed=300, **words)
    for tenths in range(100):
        someone = {**patient, "lactate": f"{29 + tenths / 100:.2f}"}
        data, _ = rows_of(study.agreement, studies.table(folder / "some.csv", [someone, *records]))
        own = getattr(parts(study.agreement, 0, data), role)
        if bool((own.x == data.x[0]).all(1).any()):
            return someone
    raise AssertionError(f"no patient is in '{role}'")


def noticed(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], None]) -> tuple[Tensor, float]:
    """The sums that a command added noise to, and the noise's deviation: what the attacker knows of everybody else."""
    add_noise, seen = Privacy.add_noise, list[tuple[Tensor, float]]()
    add_counts = counting.add_noise

    def noting(self: Privacy, clipped: Clipped, source: Any, part: float = 1.0) -> Any:
        seen.append((clipped.values.double(), self.deviation(clipped.values.numel(), part)))
        return add_noise(self, clipped, source, part)

    def noting_counts(table: Tensor, var: float, source: Any) -> Tensor:
        seen.append((table.double(), math.sqrt(var)))
        return add_counts(table, var, source)

    with monkeypatch.context() as patch:
        patch.setattr(Privacy, "add_noise", noting)
        patch.setattr(counting, "add_noise", noting_counts)
        ask()
    assert len(seen) == 1
    return seen[0]


def tell_apart(
    mechanism: str, at: Desk, read: Read, words: Callable[[str], tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> Audit:
    """Ask both tables, and hold the likelihood ratio of each answer against the middle."""
    sides = ("without.csv", "with.csv")
    (without, deviation), (with_, _) = (noticed(monkeypatch, lambda t=t: at.ask(*words(t))) for t in sides)  # type: ignore[misc]
    direction = (with_ - without).flatten() / deviation**2
    moved = float((with_ - without).square().sum()) / deviation**2
    along = [(at.draws(DRAWS, read, *words(t)).flatten(1) - without.flatten()) @ direction for t in sides]
    audit = counted(mechanism, AGAIN, along[0], along[1], moved / 2)
    assert 0.6 < math.sqrt(moved) / Privacy(EPSILON, DELTA).mu < 1 + 1e-6
    return audit


# --- sums, counts and table one --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fit(audits: list[Audit], tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    at = desk(tmp_path, invoke, studies.rows(1, 60), EXTREME, method="exact", **SUMS)

    def read() -> Tensor:
        values: Tensor = at.value("north.reply")["send"].values
        return values

    audit = tell_apart("`exact`", at, read, lambda table: ("fit", "a.toml", table), monkeypatch)

    audits.append(audit)
    assert audit.epsilon <= EPSILON


@pytest.mark.slow
def test_describe(audits: list[Audit], tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {**SUMS, "epsilon": 1.0, "table_epsilon": EPSILON}
    at = desk(tmp_path, invoke, studies.rows(1, 60), EXTREME, method="exact", **words)

    def read() -> Tensor:
        values: Tensor = at.value("north.table")["noisy"]
        return values

    audit = tell_apart("table one with noise", at, read, lambda table: ("describe", "a.toml", table), monkeypatch)

    audits.append(audit)
    assert audit.epsilon <= EPSILON


@pytest.mark.slow
def test_calibrate(audits: list[Audit], tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {**SUMS, "method": "exact", "fewest_sites": 3, "level": 0.8, "calibrate": 0.4, "grid": 4}
    records = studies.rows(1, 60)
    patient = patient_of("calibrate", tmp_path, records, EXTREME, **words)
    at = desk(tmp_path, invoke, records, patient, **words)
    pooled_model(at.study, tmp_path, replies(at.study, tmp_path))

    def read() -> Tensor:
        values: Tensor = at.value("north.counts")["conformal"]
        return values.double()

    def asked(table: str) -> tuple[str, ...]:
        return "calibrate", "a.toml", "sepsis.model", table, "-o", "north.counts"

    studies.table(tmp_path / "without.csv", records)
    audit = tell_apart("counts of `site calibrate`", at, read, asked, monkeypatch)

    audits.append(audit)
    assert audit.epsilon <= EPSILON


@pytest.mark.slow
def test_fit_under_masks(audits: list[Audit], tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three sites adds a third of the variance; what is read is the sum, as the coordinator reads it."""
    words = {**SUMS, "method": "exact", "secure": True, "fewest_sites": 3, "noise_added": "once", "honest_sites": 3}
    at = desk(tmp_path, invoke, studies.rows(1, 60), EXTREME, **words)
    study, agreement = at.study, at.study.agreement
    numbers = {name: study.member(name).number for name in studies.NAMES}
    for name in studies.NAMES[1:]:
        studies.table(tmp_path / f"{name}.csv", studies.rows(numbers[name], 60))
    (without, own), (with_, _) = (
        noticed(monkeypatch, lambda t=t: at.ask("fit", "a.toml", t))
        for t in ("without.csv", "with.csv")  # type: ignore[misc]
    )
    others = torch.zeros_like(without)
    for name in studies.NAMES[1:]:
        others += noticed(monkeypatch, lambda n=name: at.ask("fit", "a.toml", f"{n}.csv", name=n))[0]  # type: ignore[misc]
    like = _summands(agreement)

    def masked(name: str, table: str) -> Any:
        at.ask("fit", "a.toml", table, name=name)
        return at.value(f"{name}.reply")["send"]

    ratios: list[list[float]] = [[], []]
    variance = 3 * own**2
    direction = (with_ - without).flatten() / variance
    for _ in range(DRAWS):  # the other two sites' noise serves both sides
        theirs = {numbers[name]: masked(name, f"{name}.csv") for name in studies.NAMES[1:]}
        for side, table in enumerate(("without.csv", "with.csv")):
            sent = {numbers["north"]: masked("north", table), **theirs}
            total = add_masked(study, sent, [], lambda members: scales_for(agreement, members, like), 1, REPLY).total
            ratios[side].append(float((_values(total) - without.flatten() - others.flatten()) @ direction))
    moved = float((with_ - without).square().sum()) / variance
    audit = counted("`exact` under masks, noise once", AGAIN, *map(torch.tensor, ratios), moved / 2)  # type: ignore[arg-type]

    audits.append(audit)
    assert 0.9 < math.sqrt(moved) / Privacy(EPSILON, DELTA).mu < 1 + 1e-6
    assert audit.epsilon <= EPSILON


def _summands(agreement: Any) -> Any:
    method = agreement.build_method()
    reply = rehearsal_of(agreement).reply(method, agreement.build_task(), None, 1, INVENTED)
    return summation_of(method).split(reply.send, reply.size)


def _values(total: Any) -> Tensor:
    leaves = [leaf.flatten() for leaf in tree.leaves(total) if leaf.numel() > 1]
    assert len(leaves) == 1
    return leaves[0].double()


# --- training on random batches --------------------------------------------------------------------------------------

SHARE, TRAINED = 0.7, 5.0  # q, and an ε at which 2 000 draws have power
FAR = (
    Column("age", "number", "years", (18.0, 100.0), 50.0, 0.01),  # nobody else has another age: the others add nothing
    *studies.COLUMNS[1:],
)
TRAINING: dict[str, Any] = {
    "method": "fedavg",
    "settings": ("inference=DPSGD", f"inference.epsilon={TRAINED:g}", f"inference.delta={DELTA:g}",
                 "inference.steps=1", f"inference.share={SHARE:g}", "inference.clip=0.1"),
    "model": "linear", "rounds": 1, "columns": FAR, "choose": 0.0, "test": 0.0, "calibrate": 0.0,
}  # fmt: skip


def least_noise(found: Any, suspected: Any, draws: int) -> Any:
    """1/σ at which what was seen is possible, at the least; 0 where it always is."""
    t = np.nan_to_num(beta.ppf(ENDS, found, draws - found + 1))
    f = np.nan_to_num(beta.ppf(1 - ENDS, suspected + 1, draws - suspected), nan=1.0)
    share = (t - (1 - SHARE) * f) / SHARE
    return np.maximum(np.nan_to_num(norm.ppf(np.clip(share, 0.0, 1.0)) + norm.isf(f), nan=0.0, neginf=0.0), 0.0)


class Sampled(Audit):
    """An audit of training on random batches."""

    @property
    def epsilon(self) -> float:
        inverse = float(least_noise(self.found, self.suspected, self.draws))
        return epsilon_of_steps(1 / inverse, DELTA, SHARE, 1) if inverse > 0 else 0.0


def sampled_power(draws: int, true: float, promised: float) -> float:
    """How often the promise would be refuted if the truth were another ε."""
    noise, less = noise_for(promised, DELTA, SHARE, 1), noise_for(true, DELTA, SHARE, 1)
    t = (1 - SHARE) * norm.sf(THRESHOLD / less) + SHARE * norm.sf((THRESHOLD - 1) / less)
    f = norm.sf(THRESHOLD / less)
    outcomes = np.arange(draws + 1)
    refuted = least_noise(outcomes[:, None], outcomes[None, :], draws) > 1 / noise
    return float(binom.pmf(outcomes, draws, t) @ refuted @ binom.pmf(outcomes, draws, f))


THRESHOLD = 0.75  # of the way that the patient moves a sum, where power is largest


@pytest.mark.slow
def test_training_on_random_batches(audits: list[Audit], tmp_path: Path, invoke: Invoke) -> None:
    records = [{**row, "age": "50"} for row in studies.rows(1, 60)]
    patient = {**EXTREME, "age": "100"}
    at = desk(tmp_path, invoke, records, patient, **TRAINING)
    start = tree.ravel(first_message(at.study).params)
    classes = 2
    ages = torch.tensor([0, len(at.study.agreement.feature_names)])  # their weights, of either class

    def read() -> Tensor:
        moved = tree.ravel(at.value("north.reply")["send"].params) - start
        return moved.double()[ages]

    pilot = DRAWS // 2
    sides = [at.draws(DRAWS + pilot, read, "fit", "a.toml", f"{name}.csv") for name in ("without", "with")]
    counts = [float(len(records)), float(len(records) + 1)]
    rate, clip = 0.5, 0.1
    one = rate * clip / SHARE  # what a gradient of the clipping length adds, times the number of rows
    toward = torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(classes)
    along = [-(side * count) @ toward / one for side, count in zip(sides, counts, strict=True)]
    prior = along[0][:pilot].mean()  # moves both sides alike
    way = torch.sign(along[1][:pilot].mean() - prior)
    along = [way * (one_side[pilot:] - prior) for one_side in along]

    noise = noise_for(TRAINED, DELTA, SHARE, 1)
    assert float(along[0].std()) == pytest.approx(
        noise, rel=5 / math.sqrt(2 * DRAWS)
    )  # the noise that was promised, and nothing else
    shown_by = float(along[1].mean() - along[0].mean())
    assert shown_by == pytest.approx(SHARE, abs=8 * noise / math.sqrt(DRAWS))  # as bad a case as there is
    shown = counted("training by `DPSGD` on random batches", AGAIN, along[0], along[1], THRESHOLD)
    audit = Sampled(*shown[:5], TRAINED, sampled_power(shown.draws, WORSE * TRAINED, TRAINED))
    audits.append(audit)
    assert audit.epsilon <= TRAINED


def test_the_audit_of_random_batches_has_power_and_seldom_refutes_what_holds() -> None:
    assert sampled_power(2000, WORSE * TRAINED, TRAINED) >= POWER
    assert sampled_power(2000, TRAINED, TRAINED) <= 0.01


def test_without_batches_it_is_the_gaussian_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SHARE", 1.0)
    for found, suspected in ((1450, 540), (1600, 300)):
        assert least_noise(found, suspected, 2000) == pytest.approx(Audit("", "", 2000, found, suspected).mu)
