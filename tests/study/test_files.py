"""A study by files gives the numbers of Sequential; whatever is wrong with a file is named and left out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from damage import damaged
from rounds import pooled_model, replies, rows, same_numbers, server_key, statistics_of

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.distributions.posterior import Point, Samples
from consilience.errors import InputError
from consilience.key import Key
from consilience.methods.beta import BETAS
from consilience.study.choice import TEMPERATURES, log_scores
from consilience.study.coordinator import choose, pool
from consilience.study.files import collect
from consilience.study.model import Model, read_model, select_hand_out
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import new_key, read_key
from consilience.study.recall import recall
from consilience.study.rows import parts, rows_of, training_rows
from consilience.study.validation.rules import gate_of


def sites(study: Study, folder: Path) -> Sites:
    """The same rows in one place, for the engines of a simulation."""
    each = list(rows(study, folder).values())
    train = tuple(training_rows(study.agreement, p.train).data for p in each)
    test = tuple(p.test for p in each)
    names = tuple(site.name for site in study.sites)
    classes = len(study.agreement.target.classes) or None
    return Sites(train, test, None, None, None, classes, train[0].x.shape[1], "sepsis", "natural", names)


SETTINGS = {
    "mixture": studies.SHORT,
    "bcm": studies.SHORT,
    "ep_mcmc": studies.SHORT,
    "evidence": ("inference.epochs=2",),
    "evidence_tuned": ("inference=CyclicalSGHMC", *studies.SHORT),
    "fedavg": ("inference.epochs=2",),
    "scaffold": ("inference.epochs=2",),
    "fedadam": ("inference.epochs=2",),
    "glm": (),
}


QUICK = ("evidence_tuned", "glm", "mixture", "scaffold")  # several rounds, sums, samples, and what a site remembers
DEAR = sorted(SETTINGS.keys() - set(QUICK))


@pytest.mark.parametrize("method", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in DEAR)])
def test_files_give_the_numbers_of_sequential(tmp_path: Path, method: str) -> None:
    rounds = {"fedavg": 3, "scaffold": 3, "fedadam": 3, "evidence_tuned": 2, "glm": 9}.get(method, 1)
    net = "linear" if method == "glm" else "mlp"  # it converges before the last round, and sends nothing then
    study = studies.study(
        tmp_path, method=method, settings=SETTINGS[method], rounds=rounds, hand_out="ensemble", smallest=1, model=net
    )
    agreed = study.agreement

    model = by_files(study, tmp_path)

    two = co.run(
        agreed.build_method(),
        agreed.build_task(),
        sites(study, tmp_path),
        engine="sequential",
        rounds=rounds,
        seed=agreed.seed,
        scored=False,
    )
    _, _, expected = select_hand_out(agreed, agreed.build_method(), two.state)
    assert same_numbers(model.state, expected)


def by_files(study: Study, folder: Path) -> Model:
    """All rounds of a study as the commands make them."""
    files, key = replies(study, folder), server_key(folder)
    pooled = pool(study, files, key)
    for _ in range(study.agreement.rounds - 1):
        (folder / "one.message").write_bytes(pooled.message or b"")
        (folder / "one.state").write_bytes(pooled.state or b"")
        pooled = pool(study, replies(study, folder, folder / "one.message"), key, after=folder / "one.state")
    (folder / "one.model").write_bytes(pooled.model)
    return read_model(folder / "one.model")


def test_leaving_gives_the_model_that_would_have_been(tmp_path: Path) -> None:
    all_three = studies.study(tmp_path)
    files = replies(all_three, tmp_path)

    after = pool(all_three.without("west"), files, server_key(tmp_path))
    never = pool(studies.study(tmp_path, names=("north", "south")), files[:2], server_key(tmp_path))

    assert any("west" in sentence and "has left" in sentence for sentence in after.refused)
    paths = []
    for name, made in (("after", after), ("never", never)):
        paths.append(tmp_path / f"{name}.model")
        paths[-1].write_bytes(made.model)
    models = [read_model(path) for path in paths]
    assert models[0].checksum == models[1].checksum
    assert models[0].facts.sites == ("north", "south")


def test_a_bad_file_is_named_and_the_rest_go_on(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    north, south, west = replies(study, tmp_path)
    key = read_key(tmp_path / "west.key")
    value = open_envelope(west).value({"Samples": Samples})
    header = open_envelope(west).header
    stranger = new_key(tmp_path / "stranger.key")
    nan = {**value, "send": value["send"]._replace(params={k: v * torch.nan for k, v in value["send"].params.items()})}
    bad = {
        "cut": (west.read_bytes()[:500], "damaged"),
        "stranger": (seal(value, header, stranger), "its signature is not that site's"),
        "unlisted": (seal(value, header._replace(sender="east"), key), "no site in the study"),
        "other-study": (seal(value, header._replace(study="0" * 64), key), "belongs to the study 'sepsis'"),
        "round": (seal(value, header._replace(round=2), key), "another round than round 1"),
        "nan": (seal(nan, header, key), "not finite"),
        "few": (seal({**value, "size": torch.tensor(3.0)}, header, key), "claims 3 rows"),
        "half": (seal({"send": value["send"]}, header, key), "not put together as replies are"),
        "kind": (seal(value, header._replace(kind="message"), key), "message file and a reply is needed"),
        "large": (seal({**value, "more": torch.zeros(300_000)}, header, key), "more than the"),
    }
    for name, (content, said) in bad.items():
        path = tmp_path / f"{name}.reply"
        path.write_bytes(content)

        found = collect(study, [north, path, south], gate_of(study.agreement))

        assert found.names == ("north", "south"), name
        assert len(found.refused) == 1 and said in found.refused[0] and path.name in found.refused[0]
    with pytest.raises(InputError, match="No reply can be used"):
        pool(study, [tmp_path / "cut.reply"], server_key(tmp_path))
    with pytest.raises(InputError, match="not the key of the study's coordinator"):
        pool(study, [north], key)


def test_a_site_answers_once(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    north, south, west = replies(study, tmp_path)
    value, other = open_envelope(west).value({"Samples": Samples}), tmp_path / "other.reply"
    changed = {**value, "size": value["size"] + 1}
    other.write_bytes(seal(changed, open_envelope(west).header, read_key(tmp_path / "west.key")))

    found = collect(study, [north, west, other], gate_of(study.agreement))
    copied = collect(study, [north, north, south], gate_of(study.agreement))  # the same file twice does no harm

    assert found.names == ("north",) and "west.reply" in found.refused[0] and "2 different answers" in found.refused[0]
    assert copied.names == ("north", "south") and not copied.refused


def survives_damage(folder: Path, trials: int) -> None:
    """A damaged reply is left out, or what comes in is what was written; the others always come in."""
    study = studies.study(folder)
    north, south, _ = replies(study, folder)
    gate = gate_of(study.agreement)
    whole = collect(study, [north, south], gate).received
    raw, other, draw = north.read_bytes(), south.read_bytes(), random.Random(1)
    for _ in range(trials):
        north.write_bytes(damaged(raw, other, draw))
        found = collect(study, [north, south], gate)
        assert "south" in found.names and len(found.names) + len(found.refused) <= 2  # a copy of south counts once
        for r in found.received:
            same = whole[r.client]
            assert same_numbers((r.payload, r.size), (same.payload, same.size))


def test_damaged_replies_never_give_another_model(tmp_path: Path) -> None:
    survives_damage(tmp_path, 100)


@pytest.mark.slow
def test_thousands_of_damaged_replies_never_give_another_model(tmp_path: Path) -> None:
    survives_damage(tmp_path, 5000)


def test_signed_nonsense_is_refused_too(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    north, south, west = replies(study, tmp_path)
    key, header = read_key(tmp_path / "west.key"), open_envelope(west).header
    value = open_envelope(west).value({"Samples": Samples})
    params = value["send"].params
    nonsense: list[Any] = [
        (),
        torch.zeros(3),
        {"send": (), "size": ()},
        {"send": params, "size": value["size"]},
        {"send": Point(params), "size": value["size"]},
        {"send": value["send"], "size": torch.zeros(2)},
        {"send": value["send"], "size": value["size"] + 0.5},
        {"send": value["send"], "size": -value["size"]},
        {"send": value["send"], "size": value["size"] * 1e9},
        {"send": Samples({k: v[:1] for k, v in params.items()}), "size": value["size"]},
        {"send": Samples(dict(reversed(params.items()))), "size": value["size"]},
        {"send": Samples({k: v.int() for k, v in params.items()}), "size": value["size"]},
        {"send": Samples({k: 7 for k in params}), "size": value["size"]},  # type: ignore[misc]
        {"send": Samples({k: v / 0 for k, v in params.items()}), "size": value["size"]},
        {"size": value["size"], "send": value["send"], "more": torch.zeros(1)},
    ]
    for content in nonsense:
        west.write_bytes(seal(content, header, key))

        found = collect(study, [north, south, west], gate_of(study.agreement))

        assert found.names == ("north", "south") and len(found.refused) == 1, content


def test_beta_and_temperature_from_sums_are_those_of_all_rows_in_one_place(tmp_path: Path) -> None:
    study = studies.study(tmp_path, method="beta", hand_out="ensemble", choose=0.3)
    model = pooled_model(study, tmp_path, replies(study, tmp_path))
    first = read_model(model, study)

    made, facts, refused, _ = choose(study, first, statistics_of(study, tmp_path, model), server_key(tmp_path))

    assert not refused and facts.statistics_from == studies.NAMES and facts.knob == "beta"
    # The coordinator with all rows set aside in its own hands: the same maximiser over the same grid.
    together = Data(
        *(torch.cat(leaves) for leaves in zip(*(p.choose for p in rows(study, tmp_path).values()), strict=True))
    )
    task, scored = study.agreement.build_task(), {}
    for beta in BETAS:
        p = first.method.predictive(task, first.state._replace(beta=beta))(together.x)
        for t in TEMPERATURES:
            log_p = torch.log_softmax(p.log_probs.double() / t, -1)[torch.arange(len(together.y)), together.y].sum()  # type: ignore[union-attr]
            scored[beta, t] = float(log_p) - 0.5 * float(torch.tensor(t).log()) ** 2
    best = max(scored.values())
    assert scored[facts.value, facts.temperature] == pytest.approx(best, abs=1e-3)  # float32 pools
    (tmp_path / "chosen.model").write_bytes(made)
    again = read_model(tmp_path / "chosen.model", study)
    assert again.state.beta == facts.value and again.facts.temperature == facts.temperature
    assert first.facts.notes[0].startswith("β has not been chosen")


def test_statistics_of_another_model_are_refused(tmp_path: Path) -> None:
    study = studies.study(tmp_path, choose=0.3)
    files = replies(study, tmp_path)
    model = pooled_model(study, tmp_path, files)
    old = statistics_of(study, tmp_path, model)
    smaller = study.without("west")
    with pytest.raises(InputError, match="holds west, who left the study: pool anew, from the first round"):
        choose(smaller, read_model(model, smaller), old, server_key(tmp_path))
    model.write_bytes(pool(smaller, files, server_key(tmp_path)).model)

    with pytest.raises(InputError, match=r"west.statistics is not used.*north.statistics is about another model"):
        choose(smaller, read_model(model, smaller), old, server_key(tmp_path))


def test_too_few_rows_to_choose_by_are_not_shown(tmp_path: Path) -> None:
    study = studies.study(tmp_path)  # a tenth of 60 rows is 6, below 10
    model = pooled_model(study, tmp_path, replies(study, tmp_path))

    with pytest.raises(InputError, match="no count below 10 may be shown"):
        statistics_of(study, tmp_path, model)


def test_a_small_class_does_not_leave(tmp_path: Path) -> None:
    study = studies.study(
        tmp_path, method="evidence", settings=("inference.epochs=2",), hand_out="ensemble", smallest=30
    )

    with pytest.raises(InputError, match="fewer than 30 times"):
        replies(study, tmp_path)


@pytest.mark.parametrize(("smallest", "refused"), [(9, False), (10, True)])
def test_sums_over_few_rows_set_aside_do_not_leave(tmp_path: Path, smallest: int, refused: bool) -> None:
    """A fifth of the 42 rows that train is 8.4, so nine have a rank below it: the method sets these aside."""
    study = studies.study(
        tmp_path,
        method="evidence_tuned",
        settings=("inference.epochs=1",),
        rounds=2,
        hand_out="ensemble",
        smallest=smallest,
    )

    if refused:
        with pytest.raises(InputError, match="sums over no more than 9 rows"):
            replies(study, tmp_path)
    else:
        replies(study, tmp_path)


def test_rows_have_one_role_and_keep_it(tmp_path: Path) -> None:
    study = studies.study(tmp_path, choose=0.2, test=0.3)
    data, _ = rows_of(study.agreement, studies.table(tmp_path / "a.csv", studies.rows(0)))

    first, second = (parts(study.agreement, 0, data) for _ in range(2))

    assert sum(len(p.y) for p in first) == 60
    assert all(torch.equal(a.x, b.x) for a, b in zip(first, second, strict=True))
    everything = torch.cat([p.x for p in first])
    assert sorted(map(tuple, everything.tolist())) == sorted(map(tuple, data.x.tolist()))
    for label in (0, 1):  # within each class
        own = int((data.y == label).sum())
        assert int((first.choose.y == label).sum()) == round(0.2 * own)
        assert int((first.test.y == label).sum()) == round(0.3 * own)


def test_the_sums_are_log_scores(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    model = read_model(pooled_model(study, tmp_path, replies(study, tmp_path)))
    data = rows(study, tmp_path)["north"].test

    table = log_scores(model.method, study.agreement.build_task(), model.state, data)

    p = model(data.x)
    own = p.log_probs.double()[torch.arange(len(data.y)), data.y].sum()  # type: ignore[union-attr]
    assert table.shape == (1, len(TEMPERATURES))
    assert float(table[0, TEMPERATURES.index(1.0)]) == pytest.approx(float(own), rel=1e-6)


def test_a_reply_heavier_than_agreed_does_not_leave(tmp_path: Path) -> None:
    study = studies.study(tmp_path, most_bytes=300)

    with pytest.raises(InputError, match="more than the 300 agreed"):
        replies(study, tmp_path)


def test_what_another_study_kept_is_not_taken_for_a_changed_table(tmp_path: Path) -> None:
    study, other = studies.study(tmp_path), studies.study(tmp_path, seed=1)
    replies(other, tmp_path)
    memory, key = tmp_path / "north.memory", read_key(tmp_path / "north.key")
    data, _ = rows_of(study.agreement, tmp_path / "north.csv")

    assert not recall(study.agreement, 0, key, memory, data).known
    assert recall(other.agreement, 0, key, memory, data).known
    with pytest.raises(InputError, match="not signed with this site's key"):
        recall(other.agreement, 0, read_key(tmp_path / "south.key"), memory, data)


def test_a_message_must_come_from_the_coordinator(tmp_path: Path) -> None:
    study = studies.study(tmp_path, method="fedavg", settings=("inference.epochs=1",), rounds=2)
    forged = tmp_path / "forged.message"
    header = Header("message", study.agreement.hash, "sepsis", "server", 1)
    forged.write_bytes(seal(study.agreement.build_task().init(Key(0)), header, read_key(tmp_path / "north.key")))

    with pytest.raises(InputError, match="not signed with the key of 'server'"):
        replies(study, tmp_path, forged)
