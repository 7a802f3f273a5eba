"""What a study's model holds and says of itself, and that it predicts what the pool does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import studies
import torch
from rounds import pooled_model, replies, rows, same_numbers, server_key, statistics_of

from consilience.distributions.posterior import Point, Samples
from consilience.errors import InputError
from consilience.key import Key
from consilience.messages import Received
from consilience.serialisation.codec import types_of
from consilience.study.choice import TEMPERATURES
from consilience.study.coordinator import choose, pool, write_model
from consilience.study.files import collect
from consilience.study.model import Facts, Model, model_file, read_model, select_hand_out, unnamed_mixture
from consilience.study.protocol.columns import inspect, labelled_rows
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.rehearsal import invent_rows, rehearse, server_of
from consilience.study.protocol.signature import read_key
from consilience.study.validation.form import leaves_of
from consilience.study.validation.rules import gate_of

TAUGHT = ("distil=Distil", "distil.inference.epochs=1")
QUICK = ("learn.trajectories=2", "learn.steps=4", "learn.data_steps=2", "learn.updates=1", "learn.coreset_steps=1")
HANDED: dict[str, tuple[tuple[str, ...], str, set[str]]] = {
    "coreset": (("learn.interval=1", *QUICK, "downstream.epochs=1"), "mixture", {"posterior"}),
    "dosfl": (("learn.epochs=1", "learn.updates=1"), "mixture", {"posterior"}),
    "evidence_logits": (("inference.epochs=1", "distil.inference.epochs=1"), "student", {"posterior"}),
    "evidence": (("inference.epochs=1", *TAUGHT), "student", {"posterior"}),
    "scaffold": (("inference.epochs=1",), "mixture", {"posterior"}),
    "fedbe": (("distil=None",), "ensemble", {"posterior", "posteriors", "weights"}),
    "bcm": (studies.SHORT, "ensemble", {"posterior", "posteriors", "weights"}),
    "evidence_tuned": (("inference.epochs=1",), "ensemble", {"posterior", "posteriors", "weights", "counts", "chosen"}),
}


@pytest.mark.parametrize(
    ("hand_out", "labels", "said"),
    [
        ("ensemble", True, "β = {:.2f}, fitted on the coordinator's own labelled rows."),
        ("ensemble", False, "β has not been chosen by statistics of the sites, so this is the mixture (β = 0)."),
        ("mixture", True, "The study releases a mixture without names, from which β cannot be chosen"),
        ("student", True, "β = {:.2f}, fitted on the coordinator's own labelled rows."),
        ("student", False, "Nothing has chosen β, so the student was taught by the mixture (β = 0)."),
    ],
)
def test_a_model_says_where_beta_stands_and_why(tmp_path: Path, hand_out: str, labels: bool, said: str) -> None:
    taught = ("distil=Distil", "distil.inference.epochs=1") if hand_out == "student" else ()
    study = studies.study(tmp_path, method="beta", hand_out=hand_out, settings=(*studies.SHORT, *taught))
    agreement, own = study.agreement, rows(study, tmp_path)
    method, task = agreement.build_method(), agreement.build_task()
    received = collect(study, replies(study, tmp_path), gate_of(agreement)).received
    known = own["north"].train if labels else None
    server = server_of(agreement, len(received), own["west"].train.x)._replace(calibration=known)
    state = method.aggregate(task, method.init(task, server), received, server)

    trained = dict.fromkeys(studies.NAMES, 42)
    made, facts = write_model(study, method, state, trained, studies.NAMES, 1, server_key(tmp_path), labels)

    assert facts.notes[0].startswith(said.format(state.beta)) and (state.beta > 0) == labels
    (tmp_path / "one.model").write_bytes(made)
    assert hand_out == "mixture" or read_model(tmp_path / "one.model", study).state.beta == state.beta


def test_a_model_of_several_rounds_names_everyone_in_it(tmp_path: Path) -> None:
    """North and west reply in round 1 alone, but the weights that round 2 began from are theirs too."""
    study = studies.study(tmp_path, method="fedavg", settings=("inference.epochs=1",), rounds=2, choose=0.3)
    first = pool(study, replies(study, tmp_path), server_key(tmp_path))
    state, message, model = (tmp_path / f"one.{kind}" for kind in ("state", "message", "model"))
    state.write_bytes(first.state or b"")
    message.write_bytes(first.message or b"")
    south = [path for path in replies(study, tmp_path, message) if path.stem == "south"]

    second = pool(study, south, server_key(tmp_path), after=state)
    after = pool(study.without("north"), south, server_key(tmp_path), after=state)

    sizes = [len(own.train.y) for own in rows(study, tmp_path).values()]
    assert first.facts.sites == second.facts.sites == after.facts.sites == studies.NAMES
    assert first.facts.rows == second.facts.rows == sum(sizes)
    assert [(s["site"], s["train"]) for s in second.account["per_site"]] == list(zip(studies.NAMES, sizes, strict=True))
    assert second.facts.notes[1:] == ("Without a reply of north, west in round 2.",)
    assert after.facts.notes[1] == "Without a reply of west in round 2."
    assert after.facts.notes[2].startswith("It holds earlier replies of north, who left")
    assert study.without("north").recorded("one", after.facts.sites).models[0].superseded
    model.write_bytes(second.model)
    with pytest.raises(InputError, match="holds north, who left the study: pool anew, from the first round"):
        choose(study.without("north"), read_model(model), [], server_key(tmp_path))
    old = open_envelope(state)
    value = old.value(types_of(study.agreement.build_method()))
    state.write_bytes(seal(value, old.header._replace(about={}), server_key(tmp_path)))
    with pytest.raises(InputError, match="does not hold what a state holds"):
        pool(study, south, server_key(tmp_path), after=state)


def test_a_penalty_that_is_estimated_survives_the_model_file(tmp_path: Path) -> None:
    settings = ("inference.epochs=2", "penalty=None")
    study = studies.study(tmp_path, method="evidence", settings=settings, hand_out="ensemble", smallest=1)

    model = read_model(pooled_model(study, tmp_path, replies(study, tmp_path)), study)

    assert model.method == study.agreement.build_method()


def test_the_mixture_handed_out_has_no_names_and_predicts_the_same(tmp_path: Path) -> None:
    named = studies.study(tmp_path, hand_out="ensemble")
    unnamed = studies.study(tmp_path, hand_out="mixture")
    x = torch.randn(20, len(named.agreement.feature_names), generator=torch.Generator().manual_seed(0))

    first = read_model(pooled_model(named, tmp_path, replies(named, tmp_path)))
    second = read_model(pooled_model(unnamed, tmp_path, replies(unnamed, tmp_path)))

    assert len(first.state.posteriors) == 3 and len(second.state.posteriors) == 6  # 2 samples a site, each on its own
    assert torch.allclose(first(x)[0], second(x)[0], atol=1e-6)
    theirs, ours = first.uncertainty(x), second.uncertainty(x)
    assert list(theirs) == ["aleatoric", "epistemic", "disagreement"]
    assert list(ours) == ["aleatoric", "epistemic"]  # whose is whose nobody knows, so neither what lies between sites
    for part, value in ours.items():
        assert torch.allclose(value, theirs[part], atol=1e-5)
    assert bool((theirs["disagreement"] <= theirs["epistemic"] + 1e-5).all())


def test_the_mixture_handed_out_is_the_same_whoever_sent_what(tmp_path: Path) -> None:
    """So neither the order of samples nor that of names can be turned back into sites, whatever else one knows."""
    agreed = studies.agreement(tmp_path, hand_out="mixture")
    start = agreed.build_task().init(Key(0))
    sent = tuple(
        Samples({k: v + torch.full((3, *v.shape), float(site)) for k, v in start.params.items()}) for site in range(3)
    )
    weights = torch.tensor([0.5, 0.3, 0.2])

    one = unnamed_mixture(agreed, start, sent, weights)
    two = unnamed_mixture(agreed, start, sent[::-1], weights.flip(0))

    assert same_numbers(one, two) and len(one.posteriors) == 9


def test_names_are_listed_by_the_alphabet_where_samples_have_none(tmp_path: Path) -> None:
    study = studies.study(tmp_path, names=("west", "south", "north"))

    assert pool(study, replies(study, tmp_path), server_key(tmp_path)).facts.sites == ("north", "south", "west")


def test_weights_tell_no_size_where_one_was_withheld(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    files = replies(study, tmp_path)
    value = open_envelope(files[0]).value(types_of(study.agreement.build_method()))
    header = open_envelope(files[0]).header
    files[0].write_bytes(seal({**value, "size": torch.zeros(())}, header, read_key(tmp_path / "north.key")))

    model = read_model(pooled_model(study, tmp_path, files))

    assert model.facts.rows == 0 and len(set(model.state.weights.tolist())) == 1


def test_a_student_is_one_set_of_weights(tmp_path: Path) -> None:
    settings = (*studies.SHORT, "distil=Distil", "distil.inference.epochs=5")
    study = studies.study(tmp_path, hand_out="student", settings=settings)
    files = replies(study, tmp_path)
    inputs = torch.randn(64, len(study.agreement.feature_names), generator=torch.Generator().manual_seed(0))

    with pytest.raises(InputError, match="unlabelled rows"):
        pool(study, files, server_key(tmp_path))
    path = tmp_path / "student.model"
    path.write_bytes(pool(study, files, server_key(tmp_path), inputs).model)

    model = read_model(path)
    assert model.state.posteriors == () and model.uncertainty(inputs) == {}
    assert torch.isfinite(model(inputs)[0]).all()


@pytest.mark.filterwarnings("ignore:Coresets can show")
@pytest.mark.parametrize("name", sorted(HANDED))
def test_a_model_holds_what_predicting_needs_and_nothing_else(tmp_path: Path, name: str) -> None:
    settings, hand_out, expected = HANDED[name]
    agreed = studies.agreement(tmp_path, method=name, settings=settings, hand_out=hand_out)
    method, task, rows = agreed.build_method(), agreed.build_task(), invent_rows(agreed)
    server, reply = server_of(agreed, 2, rows.x), rehearse(agreed)
    with torch.no_grad():
        received = [Received(i, reply.size, reply.send) for i in range(2)]
        state = method.aggregate(task, method.init(task, server), received, server)

        called, how, out = select_hand_out(agreed, method, state)

        ours = method.predictive(task, state)(rows.x)[0]
    made = model_file(Model(agreed, Facts(("north", "south"), 64, 1, called), how, out), server_key(tmp_path))
    (tmp_path / "one.model").write_bytes(made)
    model = read_model(tmp_path / "one.model")
    assert {path.split(".")[0] for path, _ in leaves_of(model.state)} == expected
    assert torch.allclose(ours, model(rows.x)[0], atol=1e-6)  # a temperature of 1 normalises once more
    assert not model.uncertainty(rows.x) or hand_out == "ensemble" or not isinstance(model.state[0], Point)


def test_pools_by_site_cannot_be_handed_out_without_names(tmp_path: Path) -> None:
    study = studies.study(tmp_path, method="bcm", hand_out="mixture")

    with pytest.raises(InputError, match='hand_out = "ensemble"'):
        pool(study, replies(study, tmp_path), server_key(tmp_path))


def test_numbers_are_predicted_in_their_unit(tmp_path: Path) -> None:
    target = dataclasses.replace(studies.agreement(tmp_path).target, classes=(), unit="points", range=(-50.0, 50.0))
    target = dataclasses.replace(target, centre=1.0, spread=2.0)
    study = studies.study(tmp_path, target=target, settings=("inference.epochs=30",), choose=0.3)
    model = pooled_model(study, tmp_path, replies(study, tmp_path))
    made, facts, *_ = choose(study, read_model(model), statistics_of(study, tmp_path, model), server_key(tmp_path))
    model.write_bytes(made)

    found = inspect(tmp_path / "north.csv", study.agreement.columns, target)
    data = labelled_rows(study.agreement.columns, target, found)
    p = read_model(model)(data.x)

    truth = torch.tensor([float(cell.text) for cell in found.cells["died"]])
    assert torch.allclose(data.y, (truth - 1) / 2, atol=1e-6)
    assert float(((p.mean - truth) ** 2).mean()) < float(truth.var())  # type: ignore[union-attr]
    assert facts.temperature in TEMPERATURES
