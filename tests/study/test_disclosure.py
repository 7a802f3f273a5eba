"""No patient can be read out of a reply: the attack on the example of docs/study.md, and the rules that stop it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import studies
import torch
from places import SHORT, Place
from rounds import replies, rows, server_key
from tiny import Invoke
from torch import Tensor
from uncharged import fit

from consilience.disk.data_folder import locate
from consilience.distributions.posterior import Dense
from consilience.errors import InputError
from consilience.glm.sums import Sums, square_matrix
from consilience.privacy.disclosure.guard import Span, find_apart, guard
from consilience.study.coordinator import pool
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import study_text
from consilience.study.rows import parts, rows_of, training_rows

ROOT = Path(__file__).parents[2]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
DEFAULT = {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=True")}
SENDERS = [
    DEFAULT,
    {"method": "exact", "settings": (), "smallest": 5},
]  # switzerland has five patients without the disease


# --- the attack ------------------------------------------------------------------------------------------------------


def second_moments(send: Dense | Sums, agreement: Agreement) -> Tensor:
    """Σ p (1 − p) x xᵀ with the constant last: a precision of two logits, less the prior's, for the second of them.

    A Gram matrix is the same without p (1 − p), the constant first.
    """
    if isinstance(send, Sums):
        return square_matrix(send.gram.double(), send.features).roll((-1, -1), (0, 1))
    features = len(agreement.feature_names)
    data = send.precision.double() - torch.eye(len(send.mean)) / agreement.prior_var
    own = [*range(features, 2 * features), 2 * features + 1]  # weights [2, D] come first, then biases [2]
    return data[own][:, own]


def guesses(agreement: Agreement) -> Tensor:
    """What somebody who knows the columns would combine: levels, marks, all but these, and one less another."""
    width = len(agreement.feature_names) + 1
    unit = torch.eye(width, dtype=torch.float64)
    single = [*unit]
    first = 0
    for column in agreement.columns:
        own = unit[first : first + len(column.names)]
        first += len(column.names)
        single += [unit[-1] - own.sum(0), *(unit[-1] - one for one in own)]
    vectors = torch.stack(single)
    i, j = torch.triu_indices(len(vectors), len(vectors), 1)
    return torch.cat([vectors, vectors[i] - vectors[j]])


def patients_in(send: Dense | Sums, agreement: Agreement, x: Tensor) -> set[int]:
    """Training rows that can be read out of a reply, every feature to within 0.02."""
    lines = guesses(agreement) @ second_moments(send, agreement)
    lines = lines[lines[:, -1].abs() > 1e-3]
    found = lines[:, :-1] / lines[:, -1:]  # the constant is 1 in every row
    near = torch.cdist(found, x.double(), p=float("inf")) < 0.02
    return set(near.any(0).nonzero().flatten().tolist())


def heart(folder: Path, **words: object) -> Study:
    """The study of docs/study.md, signed by its hospitals."""
    from consilience.study.protocol.toml import read_columns

    target, columns = read_columns(ROOT / "examples" / "hospitals" / "columns.toml")
    return studies.study(folder, HOSPITALS, 400, target=target, columns=columns, **(DEFAULT | words))


def tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The hospitals' tables as the example prepares them."""
    import runpy
    import sys

    monkeypatch.setattr(sys, "argv", ["prepare.py", str(folder)])
    runpy.run_path(str(ROOT / "examples" / "hospitals" / "prepare.py"), run_name="__main__")
    return {name: folder / name / "patients.csv" for name in HOSPITALS}


@pytest.mark.skipif(locate("heart_disease.csv", None) is None, reason="the heart disease table is not there")
@pytest.mark.parametrize("sender", SENDERS)
def test_no_patient_of_the_example_can_be_read_out_of_a_reply(
    sender: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = heart(tmp_path, **sender)
    agreed = study.agreement
    unguarded = dataclasses.replace(agreed, smallest=1)
    before: dict[str, int] = {}
    for name, path in tables(tmp_path, monkeypatch).items():
        member = study.member(name)
        own = parts(agreed, member.number, rows_of(agreed, path)[0])
        key = read_key(tmp_path / f"{name}.key")
        open_study = dataclasses.replace(study, agreement=unguarded)
        shown = patients_in(fit(open_study, member, key, own).send, agreed, own.train.x)  # type: ignore[arg-type]
        guarded = fit(study, member, key, own)

        before[name] = len(shown)
        for x in (own.train.x, guarded.training.data.x):
            assert not patients_in(guarded.send, agreed, x), name  # type: ignore[arg-type]
        assert len(guarded.training.data.y) >= 0.95 * len(own.train.y)  # merging costs hardly a row
    assert sum(before.values()) >= 6 and min(before["hungarian"], before["switzerland"]) >= 2  # the attack works


def test_what_a_study_refuses_is_named_and_nothing_is_written(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    place.begun("--rare", "refuse")
    records = [{**row, "ward": "abc"[i % 3]} for i, row in enumerate(studies.rows(0, 120))]
    for row in records:
        row["lactate"] = row["lactate"].replace("?", "1.5")
    records = [{**row, "ward": "c" if i in (3, 4) else "ab"[i % 2]} for i, row in enumerate(records)]
    studies.table(tmp_path / "north" / "data.csv", records)

    for command in ("check", "fit"):
        code, _, err = place.tried("north", "site", command, "sepsis.toml", "data.csv")

        assert code == 2 and "Column 'ward': fewer than 10 rows have level 'c'" in " ".join(err.split())
        assert 'agree on rare = "other"' in " ".join(err.split())
    assert not (tmp_path / "north" / "north.reply").exists()


def test_a_site_is_told_what_is_merged_before_and_after(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    place.begun()  # about 8 of 84 values of lactate are missing

    checked = place.at("north", "site", "check", "sepsis.toml", "data.csv")
    fitted = place.at("north", "site", "fit", "sepsis.toml", "data.csv")

    sentence = "Column 'lactate': fewer than 10 rows lack it; what stands for a missing value counts as known there."
    assert sentence in checked and sentence in fitted
    assert f"{place.dealt('train', 'north')} training rows for 14 parameters" in checked
    assert "Fewer than 3 replies are not pooled" in checked and "old less new is what those sites sent" in checked


# --- which rows features set apart -----------------------------------------------------------------------------------

LEVELS = Span("ward", 0, ("a", "b", "c"))


def wards(*counts: int) -> Tensor:
    """Rows of wards a, b, c and of none of them."""
    codes = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    return torch.nn.functional.one_hot(codes, 4)[:, :3].float()


@pytest.mark.parametrize(
    ("counts", "after"),
    [
        ((20, 15, 10, 0), (20, 15, 10, 0)),  # nothing is rare
        ((20, 15, 3, 0), (23, 15, 0, 0)),  # a group of three would still show: the commonest level takes them
        ((20, 15, 3, 12), (20, 15, 0, 15)),  # the missing are enough to hide among
        ((20, 6, 5, 0), (20, 0, 0, 11)),  # together they are enough
        ((20, 15, 0, 2), (22, 15, 0, 0)),  # a rare missing value
        ((40, 1, 0, 0), (41, 0, 0, 0)),  # all but one
        ((4, 4, 4, 0), (0, 0, 0, 12)),
    ],
)
def test_rare_levels_join_a_group_that_is_large_enough(counts: tuple[int, ...], after: tuple[int, ...]) -> None:
    guarded = guard(wards(*counts), [LEVELS], 10, recode=True)

    own = guarded.x
    assert (*own.sum(0).int().tolist(), int((~own.any(1)).sum())) == after
    assert guarded.rows.all() and bool(guarded.findings) == (counts != after)


def number(values: list[float], missing: int = 0) -> Tensor:
    known = torch.tensor([[value, 0.0] for value in values]).reshape(-1, 2)
    return torch.cat([known, torch.tensor([[-1.0, 1.0]]).expand(missing, 2)])


@pytest.mark.parametrize(
    ("x", "after"),
    [
        (number([*range(40)], 12), number([*range(40)], 12)),
        (number([*range(40)], 3), number([*range(40), -1, -1, -1])),  # the mark is taken away, the fill stays
        (number([5, 6, 7], 40), number([], 43)),  # known in three rows only
        (number([0] * 40 + [7]), number([0] * 41)),  # two values are levels
        (number([0] * 40 + [7, 8, 9]), number([0] * 43)),  # a value less the commonest is 0 in all other rows
        (number([0] * 40 + [7, 8] * 5), number([0] * 40 + [7, 8] * 5)),
    ],
)
def test_numbers_and_their_marks_do_not_set_few_rows_apart(x: Tensor, after: Tensor) -> None:
    guarded = guard(x, [Span("lactate", 0, marked=True, fill=-1.0)], 10, recode=True)

    assert torch.equal(guarded.x, after) and guarded.rows.all()


def marks(*patterns: tuple[int, int, int, int]) -> tuple[Tensor, list[Span]]:
    """Three numbers with missing marks; how many rows have each pattern."""
    each = [torch.tensor([pattern[:3]]).float().expand(pattern[3], 3) for pattern in patterns]
    gaps = torch.cat(each)
    x = torch.zeros(len(gaps), 6)
    x[:, 0::2] = torch.randn(len(gaps), 3, generator=torch.Generator().manual_seed(0)) * (1 - gaps)
    x[:, 1::2] = gaps
    return x, [Span(name, 2 * i, marked=True) for i, name in enumerate(("age", "blood", "crp"))]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ([(0, 0, 0, 40), (1, 1, 0, 20), (1, 0, 0, 1)], 60),  # age missing less blood missing is one patient
        ([(1, 0, 0, 30), (0, 1, 0, 30), (0, 0, 0, 1)], 60),  # and so is 1 less both
        ([(0, 0, 0, 40), (1, 0, 1, 20), (0, 1, 1, 20), (0, 0, 1, 1)], 80),  # crp less age less blood
        ([(0, 0, 0, 40), (1, 0, 0, 20), (0, 1, 0, 20), (1, 1, 0, 1)], 81),  # a small cell that nothing linear isolates
        ([(0, 0, 0, 40), (1, 1, 0, 20), (1, 0, 0, 10)], 70),
    ],
)
def test_combinations_of_marks_that_set_few_rows_apart_are_left_out(
    patterns: list[tuple[int, int, int, int]], left: int
) -> None:
    x, spans = marks(*patterns)

    guarded = guard(x, spans, 10)

    assert int(guarded.rows.sum()) == left
    assert find_apart(guarded.x[guarded.rows], spans, 10) is None
    assert bool(guarded.findings) == (left < len(x))


# --- rows for each parameter -----------------------------------------------------------------------------------------


def test_a_model_needs_rows_for_its_parameters(tmp_path: Path) -> None:
    study = studies.study(tmp_path, rows_per_parameter=3.5, **DEFAULT)  # 14 parameters: 49 rows
    own = rows(study, tmp_path)["north"]

    with pytest.raises(InputError, match=r"42 rows are left to train on and the model has 14 parameters: .* 49 rows"):
        fit(study, study.member("north"), read_key(tmp_path / "north.key"), own)
    agreed = dataclasses.replace(study.agreement, rows_per_parameter=3.0)
    assert len(training_rows(agreed, own.train).data.y) == 42  # enough: 3 × 14


def test_a_new_study_says_how_many_rows_it_needs(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)

    told = place.at("server", "study", "new", "deep", "--model", "mlp")
    rules = ("--rows-per-parameter", "0.5", "--fewest-sites", "4", "--most-influence", "0.4", "--rare", "refuse")
    place.at("server", "study", "new", "other", *rules)
    code, _, err = place.tried("server", "study", "new", "bad", "--rare", "mergee")

    assert "every site needs 32,706 training rows, or agree on another rows_per_parameter" in told  # 3 × 10 902
    text = (tmp_path / "server" / "other.toml").read_text()
    for line in ("rows_per_parameter = 0.5", "fewest_sites = 4", "most_influence = 0.4", 'rare = "refuse"'):
        assert line in text
    assert code == 2 and "Did you mean 'merge'" in err and not (tmp_path / "server" / "bad.key").exists()


def test_over_flower_sites_fit_the_same_guarded_rows(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from consilience.study.flower.site import site_of

    study = studies.study(tmp_path)
    own = rows(study, tmp_path)["north"]
    key = read_key(tmp_path / "north.key")
    said: list[str] = []

    site = site_of(study, study.member("north"), key, tmp_path / "north.csv", tmp_path / "site", say=said.append)

    assert torch.equal(site.data.x, training_rows(study.agreement, own.train).data.x)
    assert any("'lactate': fewer than 10 rows lack it" in sentence for sentence in said)
    strict = dataclasses.replace(study, agreement=dataclasses.replace(study.agreement, rare="refuse"))
    with pytest.raises(InputError, match="a reply would show them"):
        site_of(strict, study.member("north"), key, tmp_path / "north.csv", tmp_path / "site")


# --- differencing ----------------------------------------------------------------------------------------------------


def test_old_less_new_is_what_a_leaver_sent_and_is_refused(tmp_path: Path) -> None:
    names = ("north", "south", "west", "east")
    study = studies.study(tmp_path, names, fewest_sites=3, **DEFAULT)
    files = replies(study, tmp_path)
    key = server_key(tmp_path)
    old = pool(study, files, key)
    after = study.recorded("old", names).without("east")

    with pytest.raises(InputError, match="can compute what was sent by east: ask these sites"):
        pool(after, files[:3], key)
    new = pool(after, files[:3], key, accept_difference=True)

    assert any(w.startswith("Accepted by the coordinator: whoever has this model") for w in new.account["warnings"])
    assert not any("ccepted" in note for note in new.facts.notes)  # the model is the one that would have been
    matrices = []
    for name, made in (("old", old), ("new", new)):
        (tmp_path / f"{name}.model").write_bytes(made.model)
        state = open_envelope(tmp_path / f"{name}.model").tensors
        matrices.append(next(t for path, t in state.items() if path.endswith("precision")))
    sent = open_envelope(files[3]).value({"Dense": Dense})["send"].precision
    prior = torch.eye(len(sent)) / study.agreement.prior_var
    assert torch.allclose(matrices[0] - matrices[1], sent - prior, atol=1e-3)  # what the rule is about


def test_who_may_be_told_from_whom_is_counted_in_both_directions(tmp_path: Path) -> None:
    names = ("a1", "b1", "c1", "d1", "e1", "f1")
    study = studies.study(tmp_path, names, fewest_sites=3).recorded("old", names[:4])
    files = replies(study, tmp_path)
    key = server_key(tmp_path)

    pool(study, files[:4], key)  # the same sites again
    with pytest.raises(InputError, match="which part of them came from a1, e1"):
        pool(study, files[1:5], key)
    pool(study, [*files[:2], *files[4:]], key)  # four of them differ
    with pytest.raises(InputError, match="2 replies can be used, and the study pools no fewer than 3"):
        pool(study, files[:2], key)
    named = studies.study(tmp_path, names, fewest_sites=3, hand_out="ensemble").recorded("old", names[:4])
    pool(named, replies(named, tmp_path)[:5], key)  # everybody's reply is handed out by name


def test_too_few_sites_are_not_pooled_and_the_refused_are_named(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    place.begun(*SHORT)
    place.fitted()
    (tmp_path / "server" / "west.reply").write_bytes(b"nonsense")

    code, _, err = place.tried("server", "study", "pool", "sepsis.toml", *place.files)

    said = " ".join(err.split())
    assert code == 2 and "2 replies can be used" in said and "west.reply is damaged" in said
    assert not (tmp_path / "server" / "sepsis.model").exists()


def test_a_deployed_study_pools_no_fewer_either(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    import loopback

    from consilience.study.flower.server import rounds

    study = studies.study(tmp_path, fewest_sites=3)

    with pytest.raises(InputError, match="pools no fewer than 3 replies"):
        rounds(study, server_key(tmp_path), loopback.Loopback([]), tmp_path / "run", min_replies=2)
    with pytest.raises(InputError, match="has 2 sites"):
        rounds(study.without("west"), server_key(tmp_path), loopback.Loopback([]), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_serving_a_study_asks_before_a_difference(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    names = ("north", "south", "west", "east")
    study = studies.study(tmp_path, names, fewest_sites=3).recorded("old", names).without("east")
    (tmp_path / "sepsis.toml").write_text(study_text(study))
    monkeypatch.chdir(tmp_path)

    code, _, err = invoke("study", "serve", "sepsis.toml", "--key", "server.key", "--insecure")

    assert code == 2 and "which part of them came from east" in " ".join(err.split())


def test_the_account_of_a_pool_says_what_was_accepted(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    place.begun(*SHORT, "--fewest-sites", "2")
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    two = ("server", "study", "pool", "sepsis.toml", *place.files[:2], "-o", "two.model")

    code, _, err = place.tried(*two)
    place.at(*two, "--accept-difference")

    assert code == 2 and "came from west" in " ".join(err.split())
    warnings = json.loads((tmp_path / "server" / "two.json").read_text())["warnings"]
    assert any("Accepted by the coordinator" in warning for warning in warnings)


def test_columns_say_where_their_features_lie() -> None:
    from consilience.study.protocol.columns import spans

    columns = (*studies.COLUMNS, Column("site", "category", levels=("x", "y")))

    assert spans(columns) == [
        Span("age", 0, (), False, pytest.approx(-10 / 3)),
        Span("lactate", 1, (), True, -0.5),
        Span("ward", 3, ("a", "b", "c"), False, 0.0),
        Span("site", 6, ("x", "y"), False, 0.0),
    ]
