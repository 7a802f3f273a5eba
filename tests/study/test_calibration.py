"""Prediction sets of a study: counts leave the sites, thresholds come back in the model, lies are refused by name."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from rounds import pooled_model, replies, rows, server_key
from uncharged import count

from consilience.errors import InputError
from consilience.prediction_sets.coverage import rank
from consilience.prediction_sets.sets import Guarantee, contains
from consilience.serialisation.codec import TYPES
from consilience.study.counting import score_rows
from consilience.study.model import read_model
from consilience.study.prediction_sets import calibrate, read_thresholds
from consilience.study.protocol.agreement import from_toml
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.guarantees import read_calibration
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import agreement_text
from consilience.study.rows import Parts, parts

SETS: dict[str, Any] = {"level": 0.8, "calibrate": 0.4, "choose": 0.0, "smallest": 4}
Change = Callable[[dict[str, Any]], Any]


def made(folder: Path, **changes: Any) -> tuple[Study, Path]:
    study = studies.study(folder, **{**SETS, **changes})
    return study, pooled_model(study, folder, replies(study, folder))


def counts(study: Study, folder: Path, model: Path) -> list[Path]:
    files = []
    for name, own in rows(study, folder).items():
        content = count(study, study.member(name), read_key(folder / f"{name}.key"), own.calibrate, read_model(model))
        files.append(folder / f"{name}.calibration")
        files[-1].write_bytes(content.file)
    return files


def calibrated(study: Study, folder: Path, model: Path) -> tuple[Guarantee, Path]:
    found = calibrate(study, read_model(model, study), counts(study, folder, model), server_key(folder))
    path = folder / "calibrated.model"
    path.write_bytes(found.model)
    guarantee = read_model(path, study).guarantee
    assert guarantee is not None
    return guarantee, path


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, Path]:
    folder = tmp_path_factory.mktemp("calibration")
    study, model = made(folder)
    return study, model, folder


def test_thresholds_of_each_class_are_those_of_all_rows_rounded_up(classes: tuple[Study, Path, Path]) -> None:
    """Merging small cells upwards moves them up by a few ranks, and never down."""
    study, model, folder = classes
    guarantee, _ = calibrated(study, folder, model)
    plan = read_calibration(study.agreement)
    by_class: dict[int, list[float]] = {0: [], 1: []}
    for name, own in rows(study, folder).items():
        scores = score_rows(read_model(model), plan, study.member(name).number, own.calibrate)
        for y, score in zip(own.calibrate.y.tolist(), scores.tolist(), strict=True):
            by_class[y].append(score)

    assert guarantee.kind == "class" and guarantee.names == ("no", "yes")
    assert guarantee.rows == tuple(len(by_class[c]) for c in range(2))
    for c, threshold in enumerate(guarantee.thresholds):
        exact = sorted(by_class[c])[rank(0.8, len(by_class[c])) - 1]
        assert exact <= threshold


def test_roles_do_not_overlap_and_studies_of_before_keep_theirs(tmp_path: Path) -> None:
    study = studies.study(tmp_path, **{**SETS, "choose": 0.1})
    before = studies.study(tmp_path, choose=0.1, smallest=4)
    with_sets = rows(study, tmp_path)["north"]
    data = with_sets.train._replace(**{f: torch.cat([getattr(part, f) for part in with_sets]) for f in ("x", "y", "w")})
    old = parts(before.agreement, 0, data)
    new = parts(study.agreement, 0, data)

    assert sum(len(part.y) for part in new) == len(data.y)
    assert torch.equal(old.choose.x, new.choose.x) and torch.equal(old.test.x, new.test.x)
    assert len(old.calibrate.y) == 0 and len(new.calibrate.y) == pytest.approx(0.4 * len(data.y), abs=1)
    assert isinstance(new, Parts)


def test_a_model_of_before_has_no_thresholds_and_the_same_bytes(classes: tuple[Study, Path, Path]) -> None:
    _, model, _ = classes

    assert read_model(model).guarantee is None
    assert "guarantee" not in open_envelope(model).header.about


@pytest.mark.parametrize("kind", ["pooled", "quantile"])
def test_numbers_have_intervals(kind: str, tmp_path: Path) -> None:
    target = Target("died", (), "points", (-100.0, 100.0), 0.0, 2.0)
    study, model = made(tmp_path, target=target, guarantee=kind)
    guarantee, path = calibrated(study, tmp_path, model)
    own = rows(study, tmp_path)["north"]

    inside, width = contains(read_model(path).on_network_scale(own.test.x), own.test.y, guarantee)

    assert guarantee.kind == kind and guarantee.score == "residual"
    assert math.isfinite(float(width.max())) and float(inside.double().mean()) > 0.5


def test_own_thresholds_stay_at_the_site(tmp_path: Path) -> None:
    study, model = made(tmp_path, guarantee="own")
    own = rows(study, tmp_path)["north"].calibrate
    path = tmp_path / "north.thresholds"
    made_here = count(study, study.member("north"), read_key(tmp_path / "north.key"), own, read_model(model))
    path.write_bytes(made_here.file)

    guarantee = read_thresholds(path, read_model(model))

    assert guarantee.names == ("north",) and guarantee.rows == (len(own.y),)
    with pytest.raises(InputError, match="it stays there"):
        calibrate(study, read_model(model), [path], server_key(tmp_path))
    other = read_model(model)
    with pytest.raises(InputError, match="about another model"):
        read_thresholds(path, type(other)(other.agreement, other.facts, other.method, other.state, "else"))


def table(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda value: {**value, "conformal": change(value["conformal"])}


LIES: dict[str, tuple[str, Change]] = {
    "more rows than it committed to": ("it speaks for 101 rows", lambda v: {**v, "count": torch.tensor(101)}),
    "a sum that is another": ("cannot be counts", lambda v: {**v, "count": v["count"] + 1}),
    "negative counts": ("cannot be counts", table(lambda t: -t)),
    "counts that overflow": ("cannot be counts", table(lambda t: t + 2**62)),
    "small counts": ("cannot be counts", table(lambda t: torch.where(t > 0, torch.ones_like(t), t))),
    "another grid": ("has the shape", table(lambda t: t[:, 1:])),
    "fractions": ("has the shape", table(lambda t: t.double())),
    "another structure": ("its names are wrong", lambda v: (v["count"],)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_counts_is_refused_and_the_others_calibrate(
    name: str, classes: tuple[Study, Path, Path], tmp_path: Path
) -> None:
    study, model, folder = classes
    sentence, change = LIES[name]
    files = counts(study, folder, model)
    honest = open_envelope(files[2])
    lie = tmp_path / "west.calibration"
    lie.write_bytes(seal(change(honest.value(TYPES)), honest.header, read_key(folder / "west.key")))

    found = calibrate(study, read_model(model, study), [*files[:2], lie], server_key(folder))

    assert len(found.refused) == 1 and sentence in found.refused[0]
    assert found.account["guarantee"]["sites"] == ("north", "south")
    assert any("without counts of west" in warning for warning in found.account["warnings"])


def test_counts_about_another_model_and_too_few_sites_are_refused(tmp_path: Path) -> None:
    study, model = made(tmp_path, fewest_sites=3)
    files = counts(study, tmp_path, model)
    honest = open_envelope(files[0])
    header = honest.header._replace(about={**honest.header.about, "model": "0" * 64})
    files[0].write_bytes(seal(honest.value(TYPES), header, read_key(tmp_path / "north.key")))

    with pytest.raises(InputError, match=r"The counts of 2 site\(s\) can be used.*about another model"):
        calibrate(study, read_model(model), files, server_key(tmp_path))


def test_a_model_that_holds_a_site_that_left_is_not_calibrated(classes: tuple[Study, Path, Path]) -> None:
    study, model, folder = classes

    with pytest.raises(InputError, match="holds west, who left"):
        calibrate(study.without("west"), read_model(model), counts(study, folder, model)[:2], server_key(folder))


def test_an_agreement_with_sets_survives_its_text(tmp_path: Path) -> None:
    agreement = studies.agreement(tmp_path, **SETS, guarantee="pooled", nonconformity="aps", grid=50)
    text = agreement_text(agreement, "something")

    assert from_toml(tomllib.loads(text), "text") == agreement
    assert "[guarantees]" not in agreement_text(studies.agreement(tmp_path), "something")
    assert studies.agreement(tmp_path).hash == studies.agreement(tmp_path, grid=1000).hash


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"level": 0.9, "calibrate": 0.0}, "need both a level"),
        ({"level": 0.0, "calibrate": 0.2}, "need both a level"),
        ({"level": 1.5, "calibrate": 0.2}, "not between 0 and 1"),
        ({"level": 0.9, "calibrate": 0.8}, "together below 1"),
        ({"level": 0.9, "calibrate": 0.2, "guarantee": "best"}, "kind of guarantee"),
        ({"level": 0.9, "calibrate": 0.2, "nonconformity": "residual"}, "score"),
    ],
)
def test_what_cannot_be_agreed_on_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        studies.agreement(tmp_path, **changes).check()


def test_a_study_without_sets_says_so(tmp_path: Path) -> None:
    study = studies.study(tmp_path)

    with pytest.raises(InputError, match="agreed on no prediction sets"):
        read_calibration(study.agreement)


def test_single_scores_are_shown_where_that_is_agreed(tmp_path: Path) -> None:
    study, model = made(tmp_path, cells=1, guarantee="pooled")
    guarantee, _ = calibrated(study, tmp_path, model)
    plan = read_calibration(study.agreement)
    own = rows(study, tmp_path)
    scores = [score_rows(read_model(model), plan, study.member(n).number, part.calibrate) for n, part in own.items()]
    every = torch.cat(scores).sort().values

    exact = float(every[rank(0.8, len(every), extra=3) - 1])
    assert exact <= guarantee.thresholds[0] < exact + 4 / 3 / study.agreement.grid
