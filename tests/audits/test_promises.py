"""Every promise of differential privacy, attacked from a site's table to the numbers that leave it.

Two tables differ by one patient, put first and as extreme as the columns allow. Each goes the way of `site fit`: read,
given its roles, guarded, trained on, and noise drawn from the operating system. Drawn again, 2 000 times a side, is
the noise: of sums the very call that the site made, with the sums that it had; of training the whole of it. A
number is made of each release that tells the tables apart as well as any can, and a threshold that was fixed before
says how often the patient is found (t) and suspected in vain (f). By Clopper and Pearson t ≥ t₀ and f ≤ f₀ in 99 of 100
audits. The promise says that telling releases apart is no easier than N(0, 1) from N(μ, 1), so that

    μ ≥ Φ⁻¹(t₀) − Φ⁻¹(f₀),      ε ≥ ε(μ, δ)                                      (Nasr et al. 2023, section 6)

and a promise below is refuted. An audit that cannot refute shows nothing: its power is how often it would have refuted
the promise, had the truth been 1.3 ε. `make test-audit` runs it and writes the table of docs/private.md.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import studies
import torch
from auditing import (
    BEGIN,
    DELTA,
    DRAWS,
    END,
    EPSILON,
    EXTREME,
    PAGE,
    POWER,
    SUMS,
    WORSE,
    Audit,
    Table,
    counted,
    least_mu,
    power,
    write_page,
)
from rounds import pooled_model, replies, server_key
from scipy.stats import norm
from torch import Tensor
from uncharged import count, fit, table_file

from consilience import tree
from consilience.errors import InputError
from consilience.glm.noisy_posterior import Effort
from consilience.privacy.dp.accountant import mu_of
from consilience.privacy.dp.mechanisms import Clipped, Privacy
from consilience.privacy.entropy import Entropy
from consilience.study import counting
from consilience.study.coordinator import pool
from consilience.study.model import read_model
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.reply import read_message
from consilience.study.reply import run_local as _reply
from consilience.study.rows import Parts, parts, rows_of, training_rows

NUMBERS = Target("died", (), "points", (-100.0, 100.0), 0.0, 2.0)
BRIEF = Effort(1, 2, 8)  # draws of a posterior that nobody looks at


@pytest.fixture(scope="module")
def audits() -> Iterator[list[Audit]]:
    """What was found, which `make test-audit` writes down."""
    done: list[Audit] = []
    yield done
    if os.environ.get("CONSILIENCE_AUDIT_PAGE"):
        write_page(done)


# --- the two tables --------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A study, and one site's rows by role without the patient and with it."""

    folder: Path
    study: Study
    without: Parts
    with_: Parts

    @property
    def sides(self) -> tuple[Parts, Parts]:
        return self.without, self.with_


def pair(folder: Path, records: Table | None = None, patient: dict[str, str] | None = None, **words: Any) -> Pair:
    """Read both tables as `site fit` does."""
    study = studies.study(folder, committed=300, **words)
    patient = patient or EXTREME
    records = records or studies.rows(1, 60, number=not study.agreement.target.classes)
    sides = []
    for name, table in (("without", records), ("with", [patient, *records])):
        data, _ = rows_of(study.agreement, studies.table(folder / f"{name}.csv", table))
        sides.append(parts(study.agreement, study.member("north").number, data))
    return Pair(folder, study, *sides)


def fitted(two: Pair, side: Parts, message: Path | None, memory: Path) -> Path:
    """`site fit`, whose memory is kept for the next round."""
    key = read_key(two.folder / "north.key")
    made = fit(two.study, two.study.member("north"), key, side, message, memory)
    memory.write_bytes(made.memory)
    return memory


# --- sums ------------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One addition of noise that a site made."""

    privacy: Privacy
    values: Tensor
    part: float

    @property
    def deviation(self) -> float:
        return self.privacy.deviation(self.values.numel(), self.part)


def noised(two: Pair, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Call], list[Call]]:
    """The noise that either site added in all rounds of a study; both are asked the same, by a coordinator's files."""
    add_noise, calls = Privacy.add_noise, list[Call]()

    def noting(self: Privacy, clipped: Clipped, source: Any, part: float = 1.0) -> Any:
        assert not source.simulated
        calls.append(Call(self, clipped.values, part))
        return add_noise(self, clipped, source, part)

    rounds = two.study.agreement.rounds
    messages: list[Path | None] = [None]
    after = None
    for round in range(1, rounds):
        pooled = pool(two.study, replies(two.study, two.folder, messages[-1]), server_key(two.folder), after=after)
        messages.append(two.folder / f"message-{round}")
        after = two.folder / f"state-{round}"
        messages[-1].write_bytes(pooled.message)  # type: ignore[union-attr]
        after.write_bytes(pooled.state)  # type: ignore[arg-type]
    sides = []
    for name, side in zip(("without", "with"), two.sides, strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(Privacy, "add_noise", noting)
            for message in messages:
                fitted(two, side, message, two.folder / f"{name}.memory")
        sides.append([*calls])
        calls.clear()
    assert len(sides[0]) == len(sides[1]) == rounds
    return sides[0], sides[1]


def redraw(call: Call, worse: float) -> Tensor:
    """The call that the site made, once more; with the noise of another ε where the audit itself is tried."""
    privacy = dataclasses.replace(call.privacy, epsilon=worse * call.privacy.epsilon)
    return privacy.add_noise(Clipped(call.values), Entropy(), call.part).values


def tell_apart(
    mechanism: str, sides: tuple[list[Call], list[Call]], draws: int, worse: float = 1.0
) -> tuple[Audit, float]:
    """Draw the noise again, by the call that the site made; what a release says is its likelihood ratio.

    Returns:
        The audit, and by how much the patient moves all releases in deviations of their noise.
    """
    directions = [(b.values - a.values) / a.deviation**2 for a, b in zip(*sides, strict=True)]
    moved = sum(float(((b.values - a.values) ** 2).sum()) / a.deviation**2 for a, b in zip(*sides, strict=True))
    ratios = []
    for side in sides:
        drawn = []
        for _ in range(draws):
            releases = [redraw(call, worse) for call in side]
            parts_ = zip(releases, sides[0], directions, strict=True)
            drawn.append(sum(float(((z - first.values) * direction).sum()) for z, first, direction in parts_))
        ratios.append(torch.tensor(drawn, dtype=torch.float64))
    return counted(mechanism, "noise", ratios[0], ratios[1], moved / 2), math.sqrt(moved)


STUDIES: dict[str, dict[str, Any]] = {
    "`exact`": {"method": "exact", **SUMS},
    "`exact_tuned`, two messages": {"method": "exact_tuned", **SUMS, "rounds": 2},
    "`gaussian_product`": {"method": "gaussian_product", "model": "linear", "target": NUMBERS, **SUMS},
    "`glm`, four messages": {"method": "glm", "model": "linear", **SUMS, "rounds": 4},
}
PATIENTS = {"`gaussian_product`": "100", "`glm`, four messages": "no"}  # whose outcome moves a release most


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", STUDIES)
def test_sums_keep_their_promise(
    mechanism: str, audits: list[Audit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.glm.noisy_posterior.LAST", BRIEF)
    monkeypatch.setattr("consilience.glm.private.SEARCH", BRIEF)
    words = STUDIES[mechanism]
    patient = {**EXTREME, "died": PATIENTS.get(mechanism, "yes")}
    two = pair(tmp_path, patient=patient, **words)
    assert len(two.with_.train.y) == len(two.without.train.y) + 1

    audit, moved = tell_apart(mechanism, noised(two, monkeypatch), DRAWS)

    audits.append(audit)
    assert 0.94 < moved / mu_of(EPSILON, DELTA) < 1 + 1e-6  # nearly as bad a case as the promise allows
    assert audit.epsilon <= EPSILON
    assert power(DRAWS, WORSE * EPSILON) >= POWER


@pytest.mark.parametrize(("draws", "worse"), [(300, 3.0), pytest.param(DRAWS, 1.5, marks=pytest.mark.slow)])
def test_too_little_noise_is_found_out(
    draws: int, worse: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit itself is tried: the same site, with the noise of a larger ε."""
    sides = noised(pair(tmp_path, method="exact", **SUMS), monkeypatch)
    audit, moved = tell_apart("exact", sides, draws, worse)
    assert moved == pytest.approx(mu_of(EPSILON, DELTA), rel=0.02)  # the patient is as bad a case as there is
    assert audit.epsilon > EPSILON


# --- training --------------------------------------------------------------------------------------------------------

TRAINING: dict[str, Any] = {
    "method": "fedavg",
    "settings": ("inference=DPSGD", f"inference.epsilon={EPSILON:g}", f"inference.delta={DELTA:g}",
                 "inference.steps=1", "inference.share=1.0", "inference.clip=0.1"),
    "model": "linear",
    "rounds": 1,
}  # fmt: skip


def trained(two: Pair, side: Parts, draws: int) -> Tensor:
    """What the site would send, trained anew each time, as the sum of gradients that led there [draws, weights]."""
    agreement = two.study.agreement
    message, round_ = read_message(two.study, None)
    data = training_rows(agreement, side.train).data
    start = tree.ravel(message.params)
    sent = []
    for _ in range(draws):
        reply = _reply(agreement, two.study.member("north"), message, round_, data, {})
        sent.append((tree.ravel(reply.send.params) - start).double())
    return torch.stack(sent) * len(data.y)  # how many rows there are counts as known


def tell_training_apart(two: Pair, draws: int, pilot: int) -> Audit:
    """The direction and the threshold come from draws of their own."""
    sides = [trained(two, side, draws + pilot) for side in two.sides]
    means = [side[:pilot].mean(0) for side in sides]
    direction = means[1] - means[0]
    along = [side @ direction for side in sides]
    threshold = float(along[0][:pilot].mean() + along[1][:pilot].mean()) / 2
    return counted("training by `DPSGD`", "training", along[0][pilot:], along[1][pilot:], threshold)


@pytest.mark.slow
def test_private_training_keeps_its_promise(audits: list[Audit], tmp_path: Path) -> None:
    """One row put first must not deal the others anew: where it did, ε = 4 was refuted by far."""
    two = pair(tmp_path, records=studies.rows(1, 200), patient=trained_on(tmp_path), **TRAINING)
    audit = tell_training_apart(two, DRAWS, 500)
    audits.append(audit)
    assert audit.epsilon <= EPSILON


def trained_on(folder: Path) -> dict[str, str]:
    """A patient whose role is training, by content."""
    records = studies.rows(1, 200)
    for tenths in range(100):
        patient = {**EXTREME, "age": f"{99 + tenths / 100:.2f}", "died": "no"}
        two = pair(folder, records, patient, **TRAINING)
        if len(two.with_.train.y) > len(two.without.train.y):
            return patient
    raise AssertionError("no patient is trained on")


def test_one_row_deals_no_other_rows_anew(tmp_path: Path) -> None:
    two = pair(tmp_path, records=studies.rows(1, 200), **TRAINING)
    for before, after in zip(two.without, two.with_, strict=True):
        old = {row.numpy().tobytes() for row in before.x}
        new = {row.numpy().tobytes() for row in after.x}
        assert len(old - new) == 0 and len(new - old) <= 1


# --- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_counts_keep_their_promise(audits: list[Audit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {**SUMS, "method": "exact", "fewest_sites": 3, "level": 0.8, "calibrate": 0.4, "grid": 4}
    records, patient = studies.rows(1, 60), {}
    for tenths in range(100):
        patient = {**EXTREME, "age": f"{99 + tenths / 100:.2f}"}
        two = pair(tmp_path, records, patient, **words)
        if len(two.with_.calibrate.y) > len(two.without.calibrate.y):
            break
    model = read_model(pooled_model(two.study, tmp_path, replies(two.study, tmp_path)), two.study)
    add_noise, calls = counting.add_noise, list[tuple[Tensor, float]]()

    def noting(table: Tensor, var: float, source: Any) -> Tensor:
        assert not source.simulated
        calls.append((table, var))
        return add_noise(table, var, source)

    monkeypatch.setattr(counting, "add_noise", noting)
    member, key = two.study.member("north"), read_key(tmp_path / "north.key")
    for name, side in zip(("without", "with"), two.sides, strict=True):
        count(two.study, member, key, side.calibrate, model, kept=tmp_path / f"{name}.kept")
    (without, var), (with_, _) = calls
    direction = (with_ - without).double()
    ratios = []
    for table in (without, with_):
        drawn = torch.stack([add_noise(table.double(), var, Entropy()) for _ in range(DRAWS)])
        ratios.append(((drawn - without) * direction).flatten(1).sum(1))
    audit = counted("counts of `site calibrate`", "noise", ratios[0], ratios[1], float((direction**2).sum()) / 2)
    audits.append(audit)
    assert float(direction.norm()) == 1.0  # a row is in one cell
    assert audit.epsilon <= EPSILON


# --- table one -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_table_one_of_a_private_study_shows_no_patient(tmp_path: Path) -> None:
    """Without noise the patient is found every time: nothing may leave, or it must be paid for."""
    two = pair(tmp_path, method="exact", **SUMS)
    key, member = read_key(tmp_path / "north.key"), two.study.member("north")
    _, inspection = rows_of(two.study.agreement, tmp_path / "with.csv")
    with pytest.raises(InputError):
        table_file(two.study, member, key, inspection)


# --- arithmetic, and the page ----------------------------------------------------------------------------------------


def test_the_bounds_are_clopper_and_pearsons() -> None:
    """binom.test(10, 20, conf.level = 0.99) in R: 0.2177 … 0.7823."""
    assert least_mu(10, 10, 20) == pytest.approx(2 * norm.ppf(0.217747), abs=1e-5)
    assert least_mu(0, 0, 20) == -math.inf and least_mu(20, 20, 20) == -math.inf


def test_the_audit_has_power_and_seldom_refutes_what_holds() -> None:
    assert power(DRAWS, WORSE * EPSILON) >= POWER
    assert power(DRAWS, EPSILON) <= 0.025


def test_the_page_shows_every_audit_with_its_power() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    for mechanism in [*STUDIES, "training by `DPSGD`", "counts of `site calibrate`"]:
        cells = next(line for line in table.splitlines() if mechanism in line).split("|")
        assert float(cells[6]) <= EPSILON and int(cells[3].replace(" ", "")) >= 2000
        assert float(cells[7].strip(" %")) >= 100 * POWER
