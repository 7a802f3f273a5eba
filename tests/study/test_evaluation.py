"""Calibration by site in a study: merged counts leave a site once, and lies about them are refused by name."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
import uncharged
from rounds import pooled_model, replies, rows
from tiny import Invoke

from consilience.data.sites import Data
from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import InputError
from consilience.serialisation.codec import TYPES
from consilience.study.evaluations import Evaluation, read_evaluations, tabulate
from consilience.study.model import read_model
from consilience.study.protocol.agreement import from_toml
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import agreement_text, study_text
from consilience.study.spending import Leaving, charge

AGREED: dict[str, Any] = {"evaluation": True, "test": 0.5, "choose": 0.0, "smallest": 4}
Change = Callable[[dict[str, Any]], Any]
Made = tuple[Study, Path, Path]


def write(study: Study, folder: Path, name: str, rows: Data, model: Path) -> Path:
    pooled = read_model(model, study)
    path = folder / f"{name}.evaluation"
    key = read_key(folder / f"{name}.key")
    path.write_bytes(
        uncharged.made(uncharged.site_of(study, study.member(name), key, rows), Evaluation(study, pooled))[0]
    )
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A study whose sites wrote their calibration, with all its files in one folder."""
    folder = tmp_path_factory.mktemp("evaluation")
    study = studies.study(folder, **AGREED)
    (folder / "sepsis.toml").write_text(study_text(study))
    model = pooled_model(study, folder, replies(study, folder))
    for name, own in rows(study, folder).items():
        write(study, folder, name, own.test, model)
    return study, folder, model


def files(folder: Path) -> list[Path]:
    return [folder / f"{name}.evaluation" for name in studies.NAMES]


def test_what_arrives_is_what_the_rows_say_and_no_small_count(made: Made) -> None:
    """Sums over bins are sums over rows; at the intercept, the expected number of outcomes is the observed one."""
    study, folder, model = made
    pooled = read_model(model, study)
    found, refused = read_evaluations(study, pooled, files(folder))
    tests = {name: own.test for name, own in rows(study, folder).items()}

    assert not refused and [site["site"] for site in found] == list(studies.NAMES)
    for site in found:
        own = tests[site["site"]]
        p = pooled(own.x)
        assert isinstance(p, Categorical)
        bins = site["reliability"]
        hits = [b["count"] * b["accuracy"] for b in bins]
        assert site["test"] == len(own.y) == sum(b["count"] for b in bins)
        assert sum(hits) == pytest.approx(int(own.y.sum()))
        assert all(min(hit, b["count"] - hit) > 3.99 for hit, b in zip(hits, bins, strict=True))
        assert bins[0]["low"] == 0 and bins[-1]["high"] == 1
        mean = sum(b["count"] * b["confidence"] for b in bins)
        assert mean == pytest.approx(float(p.log_probs.double().exp()[:, 1].sum()), rel=1e-5)
        logits = (p.log_probs[:, 1] - p.log_probs[:, 0]).double()
        expected = torch.sigmoid(logits + site["metrics"]["calibration_intercept"]).sum()
        assert float(expected) == pytest.approx(int(own.y.sum()), rel=1e-5)


def test_from_the_sites_command_to_the_coordinators_page(
    made: Made, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, folder, model = made
    monkeypatch.chdir(folder)
    words = ("site", "evaluate", "sepsis.model", "west.csv", "--study", "sepsis.toml", "--key", "west.key")
    before = (folder / "west.evaluation").read_bytes()
    code, said, error = invoke(*words, "-o", "west.evaluation")
    assert code == 0, error
    other = studies.table(folder / "other.csv", studies.rows(7))
    others = (*(str(other) if word == "west.csv" else word for word in words), "-o", "other.evaluation")
    changed = invoke(*others)
    lonely = invoke("site", "evaluate", "sepsis.model", "west.csv", "-o", "lonely.evaluation", "--key", "west.key")
    unused = invoke(*words, "--ledger", "west.ledger")
    names = [path.name for path in files(folder)]
    code, out, error = invoke("study", "evaluate", "sepsis.toml", "sepsis.model", *names)

    assert "each with at least 4 rows" in said.replace("\n", " ")
    assert (folder / "west.evaluation").read_bytes() == before
    assert changed[0] == 2 and "The table has changed since" in changed[2]
    entered = (folder / "west.ledger", study.agreement, read_key(folder / "west.key"))
    own = rows(study, folder)
    what = f"evaluation of {read_model(model).checksum[:12]}"
    charge(*entered, Leaving(what, own["west"].test, one_model=True), dry=True)
    for other in (Leaving("evaluation of another", own["west"].test), Leaving(what, own["north"].test)):
        with pytest.raises(InputError, match="a second answer would show more"):
            charge(*entered, other._replace(one_model=True))
    assert not (folder / "other.evaluation").exists()
    assert lonely[0] == 2 and "give --study too" in lonely[2]
    assert unused[0] == 2 and "give --out too" in unused[2]
    ledger = json.loads((folder / "west.ledger").read_text())
    assert [entry["what"].split()[0] for entry in ledger["releases"]] == ["evaluation"]
    assert code == 0 and "from north, south, west" in out, error
    page = (folder / "sepsis.html").read_text()
    assert "Calibration by site" in page and "Sites also sent a table of how well" in page
    assert "Calibration on test rows is known from 3 sites" in page.replace("\u00a0", " ").replace("\u202f", " ")
    assert [site["site"] for site in json.loads((folder / "sepsis.json").read_text())["evaluation"]] == [*studies.NAMES]


def bins(change: Callable[[torch.Tensor], Any]) -> Change:
    """The same file with other bins."""

    def changed(value: dict[str, Any]) -> dict[str, Any]:
        table = value["bins"].clone()
        change(table)
        return {**value, "bins": table}

    return changed


IMPOSSIBLE = "cannot be the calibration of these rows"
LIES: dict[str, tuple[str, Change]] = {
    "more rows than it committed to": ("it speaks for 101 rows", lambda v: {**v, "count": torch.tensor(101)}),
    "a negative number of rows": ("it speaks for -5 rows", lambda v: {**v, "count": torch.tensor(-5)}),
    "bins of other rows": (IMPOSSIBLE, lambda v: {**v, "count": v["count"] + 1}),
    "negative counts": (IMPOSSIBLE, bins(lambda t: t.neg_())),
    "counts that overflow": (IMPOSSIBLE, bins(lambda t: t.add_(2**62))),
    "more outcomes than rows": (IMPOSSIBLE, bins(lambda t: t[-1, 1].fill_(99))),
    "few outcomes": (IMPOSSIBLE, bins(lambda t: t[-1, 1].fill_(3))),
    "a probability outside its bin": (IMPOSSIBLE, lambda v: {**v, "confidence": v["confidence"] + 1}),
    "no number": ("not finite", lambda v: {**v, "fitted": v["fitted"] * torch.nan}),
    "a slope outside its interval": (IMPOSSIBLE, lambda v: {**v, "fitted": v["fitted"].flip(1)}),
    "numbers it says it does not tell": (IMPOSSIBLE, lambda v: {**v, "told": v["told"] * 0}),
    "other bins": ("has the shape", lambda v: {**v, "bins": v["bins"][1:]}),
    "another structure": ("its names are wrong", lambda v: (v["count"],)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_and_the_others_are_shown(name: str, made: Made, tmp_path: Path) -> None:
    study, folder, model = made
    sentence, change = LIES[name]
    honest = open_envelope(folder / "west.evaluation")
    lie = tmp_path / "west.evaluation"
    lie.write_bytes(seal(change(honest.value(TYPES)), honest.header, read_key(folder / "west.key")))

    found, refused = read_evaluations(study, read_model(model), [*files(folder)[:2], lie])

    assert [site["site"] for site in found] == ["north", "south"]
    assert len(refused) == 1 and sentence in refused[0]


def test_another_model_another_name_a_flipped_bit_and_two_answers_are_refused(made: Made, tmp_path: Path) -> None:
    study, folder, model = made
    pooled = read_model(model)
    honest = open_envelope(folder / "west.evaluation")
    key = read_key(folder / "west.key")
    about = {**honest.header.about, "model": "0" * 64}
    damaged = bytearray((folder / "west.evaluation").read_bytes())
    damaged[-20] ^= 1
    lies = {
        "about another model": seal(honest.value(TYPES), honest.header._replace(about=about), key),
        "in another site's name": seal(honest.value(TYPES), honest.header._replace(sender="north"), key),
        "its checksum does not match": bytes(damaged),
    }
    for sentence, content in lies.items():
        lie = tmp_path / "lie.evaluation"
        lie.write_bytes(content)
        with pytest.raises(InputError, match=f"No site's calibration can be used.*{sentence}"):
            read_evaluations(study, pooled, [lie])

    second = tmp_path / "second.evaluation"
    value = {**honest.value(TYPES), "told": torch.zeros(2, dtype=torch.int64)}
    value["fitted"] = torch.zeros(2, 3, dtype=torch.float64)
    second.write_bytes(seal(value, honest.header, key))
    found, refused = read_evaluations(study, pooled, [*files(folder), second])
    assert [site["site"] for site in found] == ["north", "south"] and "west.evaluation" in refused[0]


def test_numbers_tell_coverage_where_enough_rows_lie_on_either_side(tmp_path: Path) -> None:
    """Of 100 rows 56 lie in the 50 % interval, 93 in that of 80 % and 98 in that of 95 %; 2 outside may not be told."""
    target = Target("died", (), "points", (-100.0, 100.0), 0.0, 2.0)
    study = studies.study(tmp_path, **AGREED, target=target)
    y = torch.cat([torch.zeros(56), torch.ones(37), torch.full((5,), 1.5), torch.full((2,), 9.0)])
    p = Normal(torch.zeros(100), torch.ones(100), torch.zeros(100))
    path = tmp_path / "west.evaluation"
    key = read_key(tmp_path / "west.key")
    value = {**tabulate(study.agreement, p, y), "count": torch.tensor(100)}
    header = Header("evaluation", study.agreement.hash, "sepsis", "west", 1, {"number": 2, "model": "m"})
    path.write_bytes(seal(value, header, key))

    (site,), _ = read_evaluations(study, uncharged.about("m"), [path])

    assert [level["observed"] for level in site["coverage"]] == [0.56, 0.93, None]
    with pytest.raises(InputError, match="too few to tell calibration by counts of at least 4"):
        tabulate(study.agreement, Normal(p[0][:6], p[1][:6], p[2][:6]), y[:6])
    honest = open_envelope(path)
    for inside in ([56, 93, 98], [56, 50, -1], [-2, 93, -1], [-1, -1, -1]):
        path.write_bytes(seal({**honest.value(TYPES), "inside": torch.tensor(inside)}, honest.header, key))
        with pytest.raises(InputError, match=IMPOSSIBLE):
            read_evaluations(study, uncharged.about("m"), [path])


def test_it_is_agreed_on_or_nothing_leaves_and_old_hashes_stay(made: Made, tmp_path: Path) -> None:
    _, folder, _ = made
    before = studies.study(tmp_path, test=0.5, smallest=4)
    agreement = studies.agreement(tmp_path, **AGREED)
    text = agreement_text(agreement, "something")

    assert "evaluation" not in before.agreement.fields and "evaluation" not in before.text
    assert "evaluation = true  # sites may also send" in text and from_toml(tomllib.loads(text), "text") == agreement
    with pytest.raises(InputError, match="did not agree that calibration leaves a site"):
        read_evaluations(before, uncharged.about("m"), files(folder))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "exact", "settings": (), "secure": True, "fewest_sites": 3}, "which secure = true hides"),
        ({"method": "exact", "settings": (), "epsilon": 1.0, "delta": 1e-3}, "epsilon = 1 would not cover"),
        ({"test": 0.0}, "write test = 0.2"),
    ],
)
def test_what_would_break_another_promise_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        studies.agreement(tmp_path, **{**AGREED, **changes}).check()
