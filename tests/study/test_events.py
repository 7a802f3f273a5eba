"""Counts and times to an event in studies by files: the numbers of lifelines, statsmodels and the simulation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import event_studies
import numpy as np
import pytest
import statsmodels.api as sm
import studies
import torch
from event_studies import COUNTS, TIMES, make_study, play, read_parts, sum_files, training_table
from lifelines import CoxPHFitter
from rounds import same_numbers, server_key
from uncharged import count

import consilience as co
from consilience.data.sites import Sites
from consilience.distributions.curves import baseline, sum_times
from consilience.distributions.posterior import Dense
from consilience.distributions.survival import Survival
from consilience.errors import InputError
from consilience.prediction_sets.sets import lower_bounds
from consilience.serialisation.codec import TYPES
from consilience.study.coordinator import choose
from consilience.study.effects import model_effects
from consilience.study.model import Model, read_model, select_hand_out
from consilience.study.prediction_sets import calibrate
from consilience.study.protocol.agreement import Agreement, from_fields
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import FURTHER, Target, lay_times
from consilience.study.protocol.text import agreement_text
from consilience.study.protocol.toml import parse
from consilience.study.rows import training_rows

TARGETS = {"counts": COUNTS, "survival": TIMES}
LAPLACE = ("inference.mode=Newton", "inference.dense=True")


class Made:
    """A study that was played to its end, once for all tests of a kind."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.study = make_study(folder, TARGETS[kind])
        self.path = play(self.study, folder)
        self.model = read_model(self.path, self.study)


PLAYED: dict[str, Made] = {}


def played(kind: str, factory: pytest.TempPathFactory) -> Made:
    if kind not in PLAYED:
        PLAYED[kind] = Made(factory.mktemp(kind), kind)
    return PLAYED[kind]


@pytest.fixture(scope="module", params=sorted(TARGETS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return played(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return played("survival", tmp_path_factory)


def posterior(model: Model) -> Dense:
    found = model.state.posterior  # type: ignore[union-attr]
    assert isinstance(found, Dense)
    return found


def as_sites(study: Study, folder: Path) -> Sites:
    """The same rows in one place, for the engines of a simulation."""
    each = list(read_parts(study, folder).values())
    train = tuple(training_rows(study.agreement, own.train).data for own in each)
    test = tuple(own.test for own in each)
    names = tuple(site.name for site in study.sites)
    return Sites(train, test, None, None, None, None, 2, "events", "natural", names, outcome=study.agreement.kind)


def test_files_equal_lifelines_and_statsmodels_on_pooled_rows(made: Made) -> None:
    """The prior's precision of 1e-6 is what is left between the two: below 1e-6 beside information of ten and more."""
    table = training_table(made.study, made.folder)
    if made.study.agreement.kind == "survival":
        fitter = CoxPHFitter().fit(table, "first", "second", strata=["site"], fit_options={"precision": 1e-12})
        expected, variance = fitter.params_.values, fitter.variance_matrix_.values
    else:
        x = sm.add_constant(table[["age", "treated"]].values)
        family = sm.families.Poisson()
        fitted = sm.GLM(table["first"].values, x, family=family, exposure=table["second"].values).fit(tol=1e-12)
        expected, variance = fitted.params, fitted.cov_params()

    found = posterior(made.model)
    order = [2, 0, 1][-len(found.mean) :]  # the bias comes first in statsmodels; a partial likelihood has none
    assert found.mean.numpy()[order] == pytest.approx(expected, abs=1e-6)
    assert torch.linalg.inv(found.precision).numpy()[np.ix_(order, order)] == pytest.approx(variance, abs=1e-6)


def test_files_equal_the_simulation_bit_for_bit(made: Made) -> None:
    agreed = made.study.agreement
    simulated = co.run(
        agreed.build_method(),
        agreed.build_task(),
        as_sites(made.study, made.folder),
        engine="sequential",
        rounds=agreed.rounds,
        seed=agreed.seed,
        scored=False,
    )

    _, _, expected = select_hand_out(agreed, agreed.build_method(), simulated.state)
    assert same_numbers(made.model.state, expected)


def test_effects_are_ratios_in_the_columns_units(made: Made) -> None:
    """exp of the coefficient of a year, which is a tenth of what the network sees, and of treated against not."""
    table = model_effects(made.model, None)

    means = posterior(made.model).mean.double()
    by_column = {row.column: row for row in table.rows}
    assert by_column["age"].ratio == pytest.approx(float((means[0] / 10).exp()), rel=1e-9)
    assert by_column["treated"].ratio == pytest.approx(float(means[1].exp()), rel=1e-9)


@pytest.mark.parametrize("kind", [pytest.param("counts", marks=pytest.mark.slow), "survival"])
def test_masked_equals_plain(tmp_path: Path, kind: str) -> None:
    models = []
    for secure in (False, True):
        folder = tmp_path / str(secure)
        folder.mkdir()
        study = make_study(folder, TARGETS[kind], prior_var=1.0, rounds=2, secure=secure)
        model = play(study, folder)
        if kind == "survival":
            chosen = choose(study, read_model(model, study), sum_files(study, folder, model), server_key(folder))
            model.write_bytes(chosen.model)
        models.append(read_model(model, study))

    plain, masked = models
    torch.testing.assert_close(posterior(masked).mean, posterior(plain).mean, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(posterior(masked).precision, posterior(plain).precision, rtol=1e-6, atol=1e-6)
    if plain.baseline is not None and masked.baseline is not None:
        assert masked.baseline.hazard == pytest.approx(plain.baseline.hazard, abs=1e-6)


@pytest.mark.parametrize("kind", [pytest.param("counts", marks=pytest.mark.slow), "survival"])
def test_one_round_by_the_product(tmp_path: Path, kind: str) -> None:
    study = make_study(tmp_path, TARGETS[kind], "gaussian_product", prior_var=1.0, settings=LAPLACE)
    model = read_model(play(study, tmp_path), study)
    agreed = study.agreement

    simulated = co.run(
        agreed.build_method(), agreed.build_task(), as_sites(study, tmp_path), engine="sequential", scored=False
    )

    assert same_numbers(model.state, simulated.state)


def test_a_baseline_is_breslows_of_the_sites_sums(tmp_path: Path) -> None:
    """With a smallest count of 1 nothing is made one: the baseline is that of a simulation with the same grid."""
    study = make_study(tmp_path, TIMES, rounds=1, prior_var=1.0, smallest=1)
    path = play(study, tmp_path)
    pooled = read_model(path, study)

    chosen = choose(study, pooled, sum_files(study, tmp_path, path), server_key(tmp_path))

    path.write_bytes(chosen.model)
    model = read_model(path, study)
    assert model.baseline is not None
    grid = torch.tensor(TIMES.times, dtype=torch.float64)
    parts = []
    for own in as_sites(study, tmp_path).train:
        p = pooled(own.x)
        assert isinstance(p, Survival)
        parts.append(sum_times(own.y, grid, (p.risk + p.var / 2).exp()))
    assert model.baseline.hazard == pytest.approx(baseline(grid, parts, 1).tolist(), rel=1e-9)
    p = model(read_parts(study, tmp_path)["north"].test.x)
    assert isinstance(p, Survival)
    assert p.times[0].tolist() == [200.0, 400.0, 800.0]
    assert bool((p.curves.diff(dim=1) <= 0).all())


def test_few_events_in_a_step_are_made_one_before_they_leave(times: Made) -> None:
    """Each line that leaves is one of totals of 5 or more; the baseline stays near that of the exact sums."""
    paths = sum_files(times.study, times.folder, times.path)

    chosen = choose(times.study, times.model, paths, server_key(times.folder))

    for path in paths:
        events, censored, *_ = open_envelope(path).value(TYPES)["times"].tolist()
        assert all(n == 0 or n >= 5 or sum(line) >= 5 for line in (events, censored) for n in line)
        assert sum(events) == pytest.approx(round(sum(events))) and sum(events) >= 5
    assert chosen.account["kaplan_meier"]["times"][-1] == 800.0
    assert any("One baseline hazard" in note for note in chosen.facts.notes)


def test_a_model_without_a_baseline_compares_hazards(times: Made) -> None:
    p = times.model(read_parts(times.study, times.folder)["north"].test.x)

    assert isinstance(p, Survival) and p.times.shape[1] == 0
    assert any("no site's sums" in note for note in times.model.facts.notes)


@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_few_events_at_a_site_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    study = make_study(tmp_path, TARGETS[kind])
    rows = event_studies.make_rows(0)
    for row in rows[4:]:
        row["died"] = "0"
        row["visits"] = "0"
    studies.table(tmp_path / "north.csv", rows)
    train = read_parts(study, tmp_path)["north"].train

    with pytest.raises(InputError, match=r"Fewer than 5 training rows have .* \(rule: outcome levels\)"):
        training_rows(study.agreement, train)


def spoilt(path: Path, folder: Path, line: int, factor: float) -> Path:
    """A site's file of sums with one of its lines multiplied."""
    envelope = open_envelope(path)
    value = dict(envelope.value(TYPES))
    value["times"] = value["times"].clone()
    value["times"][line] *= factor
    told = folder / "told.statistics"
    told.write_bytes(seal(value, envelope.header, read_key(folder / "west.key")))
    return told


@pytest.mark.parametrize(("line", "factor"), [(0, 100.0), (0, 0.0), (1, -1.0), (2, 50.0), (3, -1.0)])
def test_sums_that_nobody_can_have_are_refused(times: Made, line: int, factor: float) -> None:
    paths = sum_files(times.study, times.folder, times.path)
    lie = spoilt(paths[2], times.folder, line, factor)

    with pytest.raises(InputError, match=r"2 files of sums can be used.*cannot be sums"):
        choose(times.study, times.model, [*paths[:2], lie], server_key(times.folder))


def test_what_is_agreed_survives_its_text(tmp_path: Path) -> None:
    for target in TARGETS.values():
        agreed = make_study(tmp_path, target).agreement
        path = tmp_path / "study.toml"
        path.write_text(agreement_text(agreed, "sums"))

        from consilience.study.protocol.agreement import from_toml

        assert from_toml(parse(path)[1], path) == agreed
        assert from_fields(agreed.fields) == agreed


def test_targets_of_older_studies_keep_their_hash() -> None:
    agreed = Agreement("old", "key", Target("died", ("no", "yes")), event_studies.COLUMNS)

    assert set(agreed.fields["target"]) == {"name", "classes", "unit", "range", "centre", "spread"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": ("a", "b")}, "of one kind"),
        ({"event": ""}, "belong to an event"),
        ({"horizon": 300.0}, "not one of the agreed times"),
        ({"times": (400.0, 200.0)}, "must ascend"),
        ({"spread": 2.0}, "is not scaled"),
        ({"exposure": "years"}, "belongs to counts"),
    ],
)
def test_targets_that_cannot_be_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        dataclasses.replace(TIMES, **change).check()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "mixture"}, "cannot serve a survival study"),
        ({"epsilon": 1.0, "delta": 1e-6}, "glm"),
    ],
)
def test_what_does_not_apply_to_times_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    agreed = make_study(tmp_path, TIMES).agreement

    with pytest.raises(InputError, match=sentence):
        dataclasses.replace(agreed, **changes).check()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [("days", "0", "event at time 0"), ("died", "2", "none of the agreed"), ("visits", "1.5", "no counts")],
)
def test_rows_that_cannot_be_are_named(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    study = make_study(tmp_path, COUNTS if name == "visits" else TIMES)
    rows = event_studies.make_rows(0)
    rows[0] |= {"died": "1", name: value}
    studies.table(tmp_path / "north.csv", rows)

    with pytest.raises(InputError, match=sentence):
        read_parts(study, tmp_path)


def test_a_grid_is_proposed_with_round_numbers() -> None:
    assert lay_times([100.0, 900.0, 1000.0], None, steps=5) == ((200.0, 400.0, 600.0, 800.0, 1000.0), 600.0)
    assert lay_times([100.0, 900.0], 365.0, steps=5) == ((200.0, 365.0, 600.0, 800.0, 1000.0), 365.0)
    with pytest.raises(InputError, match="no event"):
        lay_times([], None)


@pytest.mark.parametrize("name", sorted(FURTHER))
def test_the_hash_covers_what_is_agreed_of_events(name: str) -> None:
    other = {str: "x", float: 0.5, bool: True, tuple: (0.5, 1.0)}[type(FURTHER[name])]
    changed = dataclasses.replace(TIMES, **{name: other})

    hashes = {Agreement("new", "key", target, event_studies.COLUMNS).hash for target in (TIMES, changed)}

    assert len(hashes) == 2


def test_times_have_lower_bounds_once_there_is_a_baseline(tmp_path: Path) -> None:
    """A row that was not set aside trains; the bound covers what was seen of the rows that calibrated it."""
    study = make_study(tmp_path, TIMES, level=0.8, calibrate=0.3, test=0.0, cells=1)
    path = play(study, tmp_path)
    own = read_parts(study, tmp_path)
    with pytest.raises(InputError, match="first `site statistics`"):
        count(study, study.member("north"), read_key(tmp_path / "north.key"), own["north"].calibrate, read_model(path))
    chosen = choose(study, read_model(path, study), sum_files(study, tmp_path, path), server_key(tmp_path))
    path.write_bytes(chosen.model)
    model = read_model(path, study)
    files = []
    for name, parts in own.items():
        files.append(tmp_path / f"{name}.calibration")
        key = read_key(tmp_path / f"{name}.key")
        files[-1].write_bytes(count(study, study.member(name), key, parts.calibrate, model).file)
    path.write_bytes(calibrate(study, model, files, server_key(tmp_path)).model)

    guarantee = read_model(path, study).guarantee
    assert guarantee is not None and guarantee.kind == "pooled" and guarantee.score == "time"
    x = torch.cat([parts.calibrate.x for parts in own.values()])
    y = torch.cat([parts.calibrate.y for parts in own.values()])
    bound = lower_bounds(read_model(path).on_network_scale(x), guarantee)
    assert {*bound.tolist()} <= {0.0, *TIMES.times}
    assert float((y[:, 0].double() >= bound).double().mean()) >= 0.8
    with pytest.raises(InputError, match="this predicts counts"):
        make_study(tmp_path, COUNTS, level=0.8, calibrate=0.3).agreement.check()
