"""Sums in which hardly any row counts: a coordinator chooses where `glm` is asked for derivatives.

Σ p (1 − p) φφᵀ is one patient's where p is 0 or 1 for all others, and Σ (p − y) φ, less what the first round said,
where p is 1 for that patient and 0 for all others. Where few have the outcome such weights predict hardly worse than
guessing, so that no bound on the loss refuses them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import studies
import torch
from event_studies import COUNTS
from torch import Tensor
from uncharged import fit

from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.errors import InputError
from consilience.glm.derivatives import Derivatives, unpack
from consilience.glm.linear_model import layer_of
from consilience.glm.posteriors import differentiate_at
from consilience.glm.sums import square_matrix
from consilience.privacy.disclosure.hidden_rows import RowSearch
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import Header, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import Broadcasts, invent_rows
from consilience.study.protocol.signature import read_key
from consilience.study.reply import check_leaving, run_local
from consilience.study.rows import parts, rows_of, training_rows
from consilience.study.validation.gate import Refused
from consilience.study.validation.message import check_asked, check_message
from consilience.study.validation.rules import rules_of

GLM: dict[str, Any] = {"method": "glm", "settings": (), "rounds": 8, "test": 0.0, "choose": 0.0, "calibrate": 0.0}
LACTATE = 2  # its place behind the constant
OTHERS, HERS = 1.5, 13.5  # the most that others have of it, and what one patient has, in agreed units
Records = list[dict[str, str]]


class Home(NamedTuple):
    """A site: what was agreed, its training rows, and those before the guard."""

    study: Study
    data: Data
    table: Data

    @property
    def agreement(self) -> Agreement:
        return self.study.agreement

    def asked(self, weights: Tensor) -> Derivatives:
        """What is sent in a second round, past all checks but `check_asked`."""
        task, method = self.agreement.build_task(), self.agreement.build_method()
        message = self.message(weights)
        check_message(message, Broadcasts(method, task, invent_rows(self.agreement)).until(2), task)
        reply = run_local(self.agreement, self.study.member("north"), message, 2, self.data, {0: self.data.size})
        check_leaving(reply, RowSearch(self.data), method, self.agreement.build_task(), rules_of(self.agreement, 400))
        return reply.send

    def message(self, weights: Tensor) -> Point:
        return Point(unpack(weights.double(), layer_of(self.agreement.build_task())))

    def check(self, *rounds: Tensor) -> None:
        method, task = self.agreement.build_method(), self.agreement.build_task()
        messages = [self.message(weights) for weights in rounds]
        check_asked(method, task, messages, self.data, self.agreement.smallest)


def home(folder: Path, records: Records, **words: Any) -> Home:
    study = studies.study(folder, committed=400, **GLM, **words)
    data, _ = rows_of(study.agreement, studies.table(folder / "d.csv", records))
    own = parts(study.agreement, 0, data).train
    return Home(study, training_rows(study.agreement, own).data, own)


def one_far_out(**more: str) -> Records:
    """Patients of whom one has far more lactate, and one in twenty has the outcome."""
    draw = random.Random(3)
    made = []
    for i in range(240):
        made.append(
            {"age": str(draw.randint(30, 90)), "lactate": f"{draw.uniform(0, 5):.2f}", "ward": draw.choice("abc")}
        )
        made[-1] |= {"died": "yes" if i % 20 == 1 else "no", "visits": str(draw.randint(0, 2)), "years": "1"}
    made[7]["lactate"] = "29"
    return made


def away(line: Tensor, x: Tensor) -> float:
    """How far what was read is from the row far out, as a share of its length."""
    row = x.double()[x[:, LACTATE - 1].argmax()]
    return float((line[1:] / line[0] - row).norm() / row.norm())


def boundary(slope: float, at: float, classes: int = 2) -> Tensor:
    """p = ½ where lactate is so; a single log-rate of 0 there."""
    weights = torch.zeros(classes, 7)
    weights[-1, 0], weights[-1, LACTATE] = -slope * at, slope
    return weights


def test_a_boundary_at_one_patient_is_not_answered(tmp_path: Path) -> None:
    site = home(tmp_path, one_far_out())
    chosen = boundary(2.0, HERS)

    sent = site.asked(chosen)  # the attack: 1.4 nats a row, where 2.1 are allowed

    assert away(square_matrix(sent.curvature, 14)[7, 7:], site.table.x) < 1e-6
    with pytest.raises(Refused, match="fewer than 10 rows would count in what it asks for"):
        site.check(chosen)


def test_a_boundary_between_one_patient_and_all_others_is_not_answered(tmp_path: Path) -> None:
    """Hardly any row has curvature, nor stands out in it: the gradient, less the first round's, is this patient."""
    site = home(tmp_path, one_far_out())
    chosen = boundary(2.0, (HERS + OTHERS) / 2)
    one = torch.cat([torch.ones(len(site.data.y), 1), site.data.x], 1).double()
    first = one[site.data.y == 1].sum(0)  # as the first round's sums by class have it

    sent = site.asked(chosen)

    assert away(sent.gradient[1] + first, site.table.x) < 1e-3
    with pytest.raises(Refused, match="fewer than 10 rows would count"):
        site.check(chosen)


def test_rates_that_one_patient_has_alone_are_not_answered(tmp_path: Path) -> None:
    site = home(tmp_path, one_far_out(), target=COUNTS)
    chosen = boundary(1.0, HERS, classes=1)

    sent = site.asked(chosen)

    assert away(square_matrix(sent.curvature, 7)[0], site.table.x) < 1e-3
    with pytest.raises(Refused, match="fewer than 10 rows would count"):
        site.check(chosen)


@pytest.mark.parametrize("slope", [0.0, 0.05, -0.2])
def test_weights_that_a_search_goes_through_are_answered(slope: float, tmp_path: Path) -> None:
    home(tmp_path, one_far_out()).check(boundary(slope, 3.0))


SEVERAL = (-3.0, 0.0, 3.0, 5.0, 8.0, 11.0, 14.0)  # where p = ½ in one round after another
GENTLE = 0.5  # slope, at which each of these alone is answered
TWICE = 14.0  # lactate of one patient; nobody else has more than 5


def combination(hers: float) -> Tensor:
    """Weights of the Gram matrix and of the rounds' Hessians, by which nobody counts who has what others may have.

    The attacker knows the range of the others and of whom to look for, and no rows.
    """

    def counts(lactate: Tensor) -> Tensor:
        p = torch.stack([torch.sigmoid(GENTLE * (lactate - at)) for at in SEVERAL], 1)
        return torch.cat([torch.ones(len(lactate), 1), p * (1 - p)], 1)

    one = counts(torch.tensor([hers], dtype=torch.float64))[0]
    others = counts(torch.linspace(-1, OTHERS, 200, dtype=torch.float64)) / one
    products = others.T @ others
    found = torch.linalg.solve(products + 1e-16 * products.trace() * torch.eye(len(one)), torch.ones_like(one))
    return found / found.sum() / one


def with_twice(folder: Path, **words: Any) -> Home:
    records = one_far_out()
    records[7]["lactate"] = f"{TWICE}"
    return home(folder, records, **words)


def test_rounds_that_are_answered_one_by_one_are_not_answered_together(tmp_path: Path) -> None:
    site = with_twice(tmp_path)
    one = torch.cat([torch.ones(len(site.data.y), 1), site.data.x], 1).double()
    asked = [boundary(GENTLE, at) for at in SEVERAL]

    for weights in asked:
        site.check(weights)
    hessians = [square_matrix(site.asked(weights).curvature, 14)[7:, 7:] for weights in asked]
    combined = torch.einsum("r,rij->ij", combination((TWICE - 2) / 2), torch.stack([one.mT @ one, *hessians]))

    assert away(combined[0], site.table.x) < 1e-3  # the attack: differences of rounds are this patient
    with pytest.raises(Refused, match="fewer than 10 rows would count"):
        site.check(*asked)


def ask_by_files(folder: Path, study: Study, weights: list[Tensor]) -> int:
    """How many rounds a site answers by files."""
    member, key = study.member("north"), read_key(folder / "north.key")
    data, _ = rows_of(study.agreement, folder / "d.csv")
    own, memory = parts(study.agreement, 0, data), folder / "north.memory"
    memory.write_bytes(fit(study, member, key, own, None, memory).memory)
    for number, asked in enumerate(weights, 2):
        point = Point(unpack(asked.double(), layer_of(study.agreement.build_task())))
        header = Header("message", study.agreement.hash, study.agreement.name, "server", number)
        (folder / "message").write_bytes(seal(point, header, read_key(folder / "server.key")))
        try:
            memory.write_bytes(fit(study, member, key, own, folder / "message", memory).memory)
        except InputError:
            return number - 2
    return len(weights)


def test_a_site_remembers_what_it_was_asked_before(tmp_path: Path) -> None:
    site = with_twice(tmp_path)
    asked = [boundary(GENTLE, at) for at in SEVERAL]

    assert 1 <= ask_by_files(tmp_path, site.study, asked) < len(asked)


def test_a_search_that_arrives_is_answered_in_every_round(tmp_path: Path) -> None:
    """Its last steps are so short that rounds hardly differ, and their differences are told to many digits."""
    site = with_twice(tmp_path)
    point, asked = torch.zeros(2, 7), []
    for _ in range(7):
        found = differentiate_at(site.agreement.build_task(), site.data, point.double(), True)
        ridge = square_matrix(found.curvature, 14) + torch.eye(14)
        step = torch.linalg.solve(ridge, (found.gradient.reshape(-1) + point.reshape(-1)).unsqueeze(1))
        point = point - step.reshape(2, 7)
        asked.append(point)

    assert float(step.norm()) < 1e-6
    assert ask_by_files(tmp_path, site.study, asked) == len(asked)
