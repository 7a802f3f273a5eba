"""No model that predicts a number that is not finite is written or read, and each site's influence is named.

The gate lets everything in here that has the right form: what it refuses already is tested where the gate is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from rounds import replies, server_key
from tiny import Invoke

from consilience import tree
from consilience.distributions.posterior import Dense
from consilience.distributions.predictive import Categorical
from consilience.errors import Diverged, InputError
from consilience.report.study_page import study_page
from consilience.runs.engines.soundness import UNSOUND
from consilience.serialisation.codec import types_of
from consilience.study.account import influence_warnings
from consilience.study.coordinator import choose, pool
from consilience.study.model import Model, model_file, read_model
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import PROBES, probe_rows
from consilience.study.protocol.signature import read_key
from consilience.study.validation import gate

LIAR = "west"
FOUR = ("north", "south", "east", "west")
POINT: dict[str, Any] = {"method": "fedavg", "settings": ("inference.epochs=1",), "model": "mlp"}
DENSE: dict[str, Any] = {
    "method": "gaussian_product",
    "settings": ("inference.dense=True", "inference.mode=Newton"),
    "model": "linear",
}


@pytest.fixture(autouse=True)
def open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "CONTENT", (gate.check_form,))


def spoil(study: Study, folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Put something else into a site's reply, signed by the site."""
    path = folder / f"{name}.reply"
    envelope = open_envelope(path)
    value = envelope.value(types_of(study.agreement.build_method()))
    path.write_bytes(seal({**value, "send": change(value["send"])}, envelope.header, read_key(folder / f"{name}.key")))


def large(send: Any) -> Any:
    return tree.map(lambda leaf: leaf * 0 + 3e38, send)


def test_probes_are_plausible_and_reach_every_end(tmp_path: Path) -> None:
    agreement = studies.agreement(tmp_path)
    x = probe_rows(agreement)
    age, lactate, missing, *ward = x.T

    assert x.shape == (PROBES, len(agreement.feature_names))
    assert float(age.min()) == pytest.approx((18 - 50) / 15) and float(age.max()) == pytest.approx((100 - 50) / 15)
    assert set(missing.tolist()) == {0.0, 1.0}
    assert set(lactate[missing == 1].tolist()) == {(1.0 - 2.0) / 2.0}  # what stands for a missing one
    assert all(0 < float(level.sum()) < PROBES for level in ward)
    assert 0 in torch.stack(ward).sum(0)  # and none of them
    assert torch.equal(x, probe_rows(agreement))


@pytest.mark.parametrize("settings", [POINT, {}, {"method": "bcm", "hand_out": "ensemble"}, DENSE], ids=str)
def test_a_site_that_spoils_the_model_is_named_and_left_out(tmp_path: Path, settings: dict[str, Any]) -> None:
    study = studies.study(tmp_path, FOUR, **settings)
    files = replies(study, tmp_path)
    three = pool(study, files[:3], server_key(tmp_path))
    spoil(study, tmp_path, LIAR, large)

    pooled = pool(study, files, server_key(tmp_path))

    assert pooled.refused == (f"The reply of {LIAR} is not used: {UNSOUND}",)
    assert any(LIAR in told and "not finite" in told for told in pooled.account["warnings"])
    assert {*pooled.facts.sites} == {*FOUR} - {LIAR}
    for name, content in (("three", three), ("four", pooled)):
        (tmp_path / f"{name}.model").write_bytes(content.model)
    first, second = (read_model(tmp_path / f"{name}.model") for name in ("three", "four"))
    assert torch.equal(first(probe_rows(study.agreement))[0], second(probe_rows(study.agreement))[0])


def test_no_model_where_too_few_are_left(tmp_path: Path) -> None:
    study = studies.study(tmp_path, **POINT, fewest_sites=3)  # and there are three sites
    files = replies(study, tmp_path)
    spoil(study, tmp_path, LIAR, large)

    with pytest.raises(
        InputError, match=f"2 replies can be used, and the study pools no fewer than 3.*The reply of {LIAR}"
    ):
        pool(study, files, server_key(tmp_path))
    for name in studies.NAMES:
        spoil(study, tmp_path, name, large)
    with pytest.raises(Diverged, match="not finite, whichever site is left out"):
        pool(study, files, server_key(tmp_path))


def test_the_second_rounds_message_is_not_made_of_a_bad_state(tmp_path: Path) -> None:
    study = studies.study(tmp_path, FOUR, **POINT, rounds=3)
    first = pool(study, replies(study, tmp_path), server_key(tmp_path))
    (tmp_path / "one.state").write_bytes(first.state or b"")
    (tmp_path / "one.message").write_bytes(first.message or b"")
    files = replies(study, tmp_path, tmp_path / "one.message")
    spoil(study, tmp_path, LIAR, large)

    second = pool(study, files, server_key(tmp_path), after=tmp_path / "one.state")

    assert second.facts.notes[-1] == f"Without a reply of {LIAR} in round 2."
    for kind, content in (("state", second.state), ("message", second.message)):
        (tmp_path / f"two.{kind}").write_bytes(content or b"")
        value = open_envelope(tmp_path / f"two.{kind}").value(types_of(study.agreement.build_method()))
        assert tree.all_finite(value)
    bad = open_envelope(tmp_path / "one.state")
    value = large(bad.value(types_of(study.agreement.build_method())))
    spoilt = tree.map(lambda leaf: leaf * torch.inf, value)
    (tmp_path / "bad.state").write_bytes(seal(spoilt, bad.header, server_key(tmp_path)))
    with pytest.raises(InputError, match="go on from the state of an earlier round"):
        pool(study, files, server_key(tmp_path), after=tmp_path / "bad.state")


def spoilt_model(study: Study, folder: Path) -> Path:
    """A model that an older version would have written, signed by the coordinator."""
    path = folder / "sepsis.model"
    path.write_bytes(pool(study, replies(study, folder), server_key(folder)).model)
    envelope = open_envelope(path)
    value = envelope.value(types_of(study.agreement.build_method()))
    path.write_bytes(seal({"state": large(value["state"])}, envelope.header, server_key(folder)))
    return path


def test_a_model_that_predicts_no_number_is_neither_read_nor_written(tmp_path: Path, invoke: Invoke) -> None:
    study = studies.study(tmp_path, **POINT)
    path = spoilt_model(study, tmp_path)
    table = studies.table(tmp_path / "new.csv", studies.rows(9))

    with pytest.raises(Diverged, match=r"sepsis\.model is not used: it predicts numbers that are not finite"):
        read_model(path)
    code, _, err = invoke("predict", str(path), str(table), "--abstain", "0.9", "-o", "decisions.csv")
    assert code == 2 and "not finite" in err and not Path("decisions.csv").exists()
    good = pool(study, replies(study, tmp_path), server_key(tmp_path))
    path.write_bytes(good.model)
    model = read_model(path)
    with pytest.raises(Diverged, match="The model is not written"):
        model_file(dataclasses.replace(model, state=large(model.state)), server_key(tmp_path))


def test_predictions_of_these_rows_must_be_finite_and_unsure_means_abstain(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consilience.cli.predictions import _class_predictions

    study = studies.study(tmp_path, **POINT)
    path = tmp_path / "sepsis.model"
    path.write_bytes(pool(study, replies(study, tmp_path), server_key(tmp_path)).model)
    table = studies.table(tmp_path / "new.csv", studies.rows(9))
    honest = Model.__call__

    def only_here(self: Model, x: torch.Tensor) -> Any:
        p = honest(self, x)
        assert isinstance(p, Categorical)
        if len(x) == PROBES:  # sound wherever it was tried
            return p
        p.log_probs[2] = torch.nan
        return p

    monkeypatch.setattr(Model, "__call__", only_here)
    code, _, err = invoke("predict", str(path), str(table), "--abstain", "0.9", "-o", "decisions.csv")

    assert code == 2 and "not finite for 1 of 60 rows (first: row 3)" in err and not Path("decisions.csv").exists()
    unknown = Categorical(torch.tensor([[torch.nan, torch.nan], [-0.01, -4.6], [-0.7, -0.7]]))
    assert _class_predictions(unknown, study.agreement.target, 0.9).abstains == [True, False, True]


def test_one_site_that_decides_is_named_and_equal_ones_are_not(tmp_path: Path, invoke: Invoke) -> None:
    study = studies.study(tmp_path, FOUR, **DENSE)
    files = replies(study, tmp_path)
    equal = pool(study, files, server_key(tmp_path))
    size = len(open_envelope(files[0]).value(types_of(study.agreement.build_method()))["send"].mean)
    spoil(study, tmp_path, LIAR, lambda send: Dense(-send.mean, 1e6 * torch.eye(size)))

    decided = pool(study, files, server_key(tmp_path))

    shares = {site["site"]: site["influence"] for site in equal.account["per_site"]}
    assert list(shares.values()) == pytest.approx([0.25] * 4, abs=0.16) and not equal.remarks  # 42 rows each
    assert sum(shares.values()) == pytest.approx(1, abs=0.2)  # each against the pool without it: not quite additive
    shares = {site["site"]: site["influence"] for site in decided.account["per_site"]}
    assert shares[LIAR] > 0.95 and max(shares[name] for name in FOUR if name != LIAR) < 0.05
    (warning,) = decided.remarks
    assert warning.startswith(f"{LIAR} has an influence of ") and "at most 50 % is agreed" in warning
    assert warning in decided.account["warnings"]
    page = study_page(json.loads(json.dumps(decided.account)))
    assert "Influence by site" in page and f"{LIAR} has an influence of" in page


def test_what_a_site_may_have_is_agreed(tmp_path: Path) -> None:
    agreement = studies.agreement(tmp_path, most_influence=0.9)
    assert influence_warnings(agreement, {"north": 0.89, "south": 0.11}) == []
    assert len(influence_warnings(agreement, {"north": 0.91, "south": 0.09})) == 1
    assert influence_warnings(agreement, {}, "why.") == ["The sites' influence on the model was not measured: why."]


def test_choosing_keeps_the_influence_and_its_warning(tmp_path: Path) -> None:
    from rounds import statistics_of

    study = studies.study(
        tmp_path,
        choose=0.3,
        smallest=9,
        most_influence=0.3,
        method="evidence",
        settings=("inference.epochs=2",),
        hand_out="ensemble",
    )
    pooled = pool(study, replies(study, tmp_path), server_key(tmp_path))
    path = tmp_path / "sepsis.model"
    path.write_bytes(pooled.model)

    chosen = choose(
        study, read_model(path), statistics_of(study, tmp_path, path), server_key(tmp_path), known=pooled.account
    )

    assert [s["influence"] for s in chosen.account["per_site"]] == [s["influence"] for s in pooled.account["per_site"]]
    assert pooled.remarks and set(pooled.remarks) <= set(chosen.account["warnings"])


def test_a_deployed_study_goes_on_without_the_site_and_measures_influence(tmp_path: Path) -> None:
    doors = pytest.importorskip("doors")
    pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")
    study = studies.study(tmp_path, **POINT, rounds=1, fewest_sites=1)
    lie = doors.Lie(UNSOUND, change=lambda value: {**value, "send": large(value["send"])})

    outcome = doors.by_flower(study, tmp_path, tmp_path / "lied", lie)

    assert (outcome.names, outcome.refused) == (("north", "south"), UNSOUND)
    report = json.loads((tmp_path / "lied" / "run" / "run.json").read_text())
    assert report["finished"] and sum(report["influence"]["shares"].values()) == pytest.approx(1, abs=0.01)


def test_a_warning_about_influence_names_two_numbers_that_differ(tmp_path: Path) -> None:
    agreement = studies.agreement(tmp_path)
    assert influence_warnings(agreement, {"north": 0.5 + 1e-7, "south": 0.5}) == []  # rounding alone
    (warning,) = influence_warnings(agreement, {"north": 0.503, "south": 0.49})
    assert warning.startswith("north has an influence of 50.3 % on this model, and at most 50.0 % is agreed")
    (warning,) = influence_warnings(agreement, {"north": 0.7, "south": 0.3})
    assert "of 70 % on this model, and at most 50 %" in warning
