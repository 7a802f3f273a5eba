"""Effects where sites have weights of their own: the mean of the sites as lme4 has it, and a new site by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Invoke

import consilience as co
from consilience.biostatistics.effects import Effects, from_json
from consilience.data.sites import Data, Sites
from consilience.glm.site_likelihoods import find_gaussian, newcomer_of
from consilience.glm.sums import Sums
from consilience.key import Key
from consilience.messages import Received, Server
from consilience.methods.hierarchical import Hierarchical
from consilience.report.forest import effects_pictures

DOUBLE = torch.float64
R = json.loads((Path(__file__).parents[1] / "references" / "partial_pooling.json").read_text())
# The half-normal prior of τ and N(0, 1) on μ, which REML lacks, move a standard error by a tenth at 18 sites.
ERRORS = 0.1


def sleepstudy() -> Sites:
    """Reaction times by days without sleep of 18 subjects, all rows for training, columns as R standardised them."""
    x, y, site = (torch.tensor(R["sleepstudy"][name]) for name in ("x", "y", "site"))
    parts = tuple(Data.of(x[site == k].reshape(-1, 1).double(), y[site == k].double()) for k in site.unique())
    names = tuple(f"s{k}" for k in range(len(parts)))
    return Sites(parts, parts, None, None, None, None, 1, "Reaction", "natural", names, feature_names=("Days",))


@pytest.fixture(scope="module")
def run() -> co.Result:
    sites = sleepstudy()
    return co.run(Hierarchical(), co.regression(co.models.linear(1, None).to(DOUBLE)), sites, scored=False)


@pytest.fixture(scope="module")
def table(run: co.Result) -> Effects:
    return run.effects()


def test_effects_are_the_fixed_effects_of_lme4(table: Effects) -> None:
    for row, estimate, error in zip(table, R["sleepstudy"]["estimates"], R["sleepstudy"]["errors"], strict=True):
        assert row.estimate == pytest.approx(estimate, abs=ERRORS * error)
        assert row.error == pytest.approx(error, rel=ERRORS)
        assert (row.low, row.high) == pytest.approx(
            (row.estimate - 1.959964 * row.error, row.estimate + 1.959964 * row.error)
        )


def test_a_new_site_is_as_far_away_as_sites_differ(table: Effects) -> None:
    """√(T + V), the variances being lme4's: that of a site's deviation, and that of the fixed effect."""
    reference = R["sleepstudy"]
    for new, row, tau, error in zip(table.newcomers, table, reference["tau"], reference["errors"], strict=True):
        assert new.error == pytest.approx((tau**2 + error**2) ** 0.5, rel=ERRORS)
        assert new.error > 3 * row.error
        assert row.newcomer_low == pytest.approx(new.estimate - 1.959964 * new.error)


def test_pupils_of_65_schools_are_those_of_lme4() -> None:
    """Exam, from each school's sums: standLRT 0.5538 ± 0.0200, where a new school's ± 0.127 was once printed."""
    task = co.regression(co.models.linear(1, None).to(DOUBLE))
    method = Hierarchical()
    server = Server(None, None, Key(0), len(R["exam"]["moments"]))
    replies = []
    for k, (n, x, xx, y, xy, yy) in enumerate(R["exam"]["moments"]):
        numbers: list[Any] = [[n], [[y, xy]], [n, x, xx], [yy], []]
        replies.append(Received(k, torch.tensor(n), Sums(*(torch.tensor(part, dtype=DOUBLE) for part in numbers))))

    state = method.aggregate(task, method.init(task, server), replies, server)

    found = find_gaussian(task, state)
    errors = torch.linalg.inv(found.precision).diagonal().sqrt()
    (intercept, slope), (intercept_error, slope_error) = R["exam"]["estimates"], R["exam"]["errors"]
    assert list(task.like)[:2] == ["0.weight", "0.bias"]
    assert found.mean[:2].tolist() == pytest.approx([slope, intercept], abs=ERRORS * slope_error)
    assert errors[:2].tolist() == pytest.approx([slope_error, intercept_error], rel=0.03)
    new = newcomer_of(task, state)
    assert new is not None
    wide = torch.linalg.inv(new.precision).diagonal().sqrt()[:2].tolist()
    assert wide == pytest.approx(
        [(t**2 + e**2) ** 0.5 for t, e in zip(R["exam"]["tau"][::-1], [slope_error, intercept_error], strict=True)],
        rel=0.05,
    )
    told = method.diagnose(task, state, torch.zeros(1, 1))
    for name, tau, interval in zip(("intercepts", "slopes"), R["exam"]["tau"], R["exam"]["tau_intervals"], strict=True):
        assert told[f"tau_{name}"] == pytest.approx(tau, rel=0.03)
        assert told[f"tau_{name}_interval"] == pytest.approx(interval, rel=0.05)


def test_a_table_is_read_again_with_its_new_site(table: Effects) -> None:
    again = from_json(json.loads(str(table)))
    assert again == table
    assert again.at(0.5).rows[1].newcomer_low == pytest.approx(
        table.newcomers[1].estimate - 0.674490 * table.newcomers[1].error
    )


def test_the_report_has_a_line_for_a_new_site(table: Effects) -> None:
    picture, *_ = effects_pictures(table.to_json())
    assert [row[0] for row in picture.rows] == ["(Intercept)", "a new site", "Days", "a new site"]
    assert {len(row) for row in picture.rows} == {len(picture.headings)}
    assert "New site" not in picture.headings


def test_the_printed_table_has_a_line_for_a_new_site(run: co.Result, tmp_path: Path, invoke: Invoke) -> None:
    folder = run.save(tmp_path / "run")

    code, printed, _ = invoke("effects", str(folder))

    assert code == 0
    lines = [line.split() for line in printed.splitlines()]
    days = next(i for i, line in enumerate(lines) if line[:1] == ["Days"])
    assert lines[days + 1][:3] == ["a", "new", "site"]
    assert float(lines[days + 1][4]) > 3 * float(lines[days][2])
