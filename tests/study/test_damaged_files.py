"""Studies, models and messages that are validly signed and nonsense all the same: one sentence each, no traceback."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import studies
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from damage import Outcomes, mutated, mutated_tensors, mutated_toml
from safetensors.torch import save
from uncharged import fit

from consilience.errors import InputError
from consilience.serialisation.codec import digest
from consilience.study.coordinator import pool
from consilience.study.files import message_file
from consilience.study.model import read_model
from consilience.study.protocol.agreement import from_fields
from consilience.study.protocol.envelope import FORMAT, KEY, Envelope, open_envelope
from consilience.study.protocol.members import Study, read
from consilience.study.protocol.signature import public, read_key, sign
from consilience.study.protocol.text import agreement_text, study_text
from consilience.study.protocol.toml import read_columns
from consilience.study.reply import first_message, read_message
from consilience.study.rows import parts, rows_of

VARIANTS: tuple[dict[str, Any], ...] = (
    {"method": "mixture"},
    {"method": "gaussian_product", "settings": ("inference.mode.epochs=2",)},
    {"method": "fedavg", "settings": ("inference.epochs=2",), "rounds": 2},
)
FEW_AND_MANY = [80, pytest.param(2000, marks=pytest.mark.slow)]


class Place(NamedTuple):
    """A folder with a study, the coordinator's message and the model."""

    folder: Path
    study: Study
    key: Ed25519PrivateKey


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Place]:
    made = []
    for variant in VARIANTS:
        folder = tmp_path_factory.mktemp("study")
        study = studies.study(folder, **variant)
        key = read_key(folder / "server.key")
        (folder / "server.message").write_bytes(message_file(study.agreement, first_message(study), 1, key))
        replies = []
        for site, name in enumerate(studies.NAMES):
            table = studies.table(folder / f"{name}.csv", studies.rows(site, 140))
            data, _ = rows_of(study.agreement, table)
            rows = parts(study.agreement, site, data)
            replies.append(folder / f"{name}.reply")
            member = study.member(name)
            replies[-1].write_bytes(fit(study, member, read_key(folder / f"{name}.key"), rows).reply)
        (folder / "study.model").write_bytes(pool(study, replies, key).model)
        (folder / "study.toml").write_text(study_text(study))
        made.append(Place(folder, study, key))
    return made


def signed(envelope: Envelope, key: Ed25519PrivateKey) -> bytes:
    """A file with a checksum and a signature that are right, whatever is inside."""
    head = {**envelope.header._asdict(), "format": FORMAT, "version": "0", "outline": envelope.outline}
    text = json.dumps(head, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    checksum = digest(text, envelope.tensors)
    signature = sign(key, envelope.header.kind, checksum.encode())
    outer = {"header": head, "checksum": checksum, "key": public(key), "signature": signature}
    return save(envelope.tensors, metadata={KEY: json.dumps(outer, ensure_ascii=False)})


def changed(envelope: Envelope, draw: random.Random) -> Envelope:
    """What is inside with one thing changed; a model's hash is that of the agreement it then holds."""
    header = envelope.header
    match draw.choice(("about", "about", "outline", "outline", "tensors")):
        case "about":
            about = mutated(header.about, draw) if header.about else {}
            try:
                study = from_fields(about["agreement"]).hash
            except (InputError, KeyError, TypeError):
                study = header.study
            return envelope._replace(header=header._replace(about=about, study=study))
        case "outline":
            return envelope._replace(outline=json.dumps(mutated(json.loads(envelope.outline), draw)))
        case _:
            return envelope._replace(tensors=mutated_tensors(envelope.tensors, draw))


def read_changed(places: list[Place], file: str, use: Callable[[Place, Path], Any], trials: int) -> Outcomes:
    """Change a signed file in every way, sign it again with the coordinator's key and read it."""
    draw = random.Random(6)
    outcomes = Outcomes()
    while outcomes.total() < trials:
        place = draw.choice(places)
        path = place.folder / "changed"
        try:
            path.write_bytes(signed(changed(open_envelope(place.folder / file), draw), place.key))
        except (ValueError, UnicodeEncodeError):  # what no program can write: no number, half a character
            continue
        outcomes.note(lambda place=place, path=path: use(place, path))
    return outcomes


@pytest.mark.parametrize("trials", FEW_AND_MANY)
def test_a_model_that_is_signed_nonsense_is_one_sentence(places: list[Place], trials: int) -> None:
    def use(place: Place, path: Path) -> None:
        x = torch.randn(3, len(place.study.agreement.feature_names))
        for study in (place.study, None):
            model = read_model(path, study)
            model(x)
            model.uncertainty(x)
            assert all(isinstance(name, str) for name in (*model.facts.sites, *model.facts.notes, model.facts.method))

    outcomes = read_changed(places, "study.model", use, trials)

    assert not outcomes.bad, outcomes
    assert outcomes["refused"] > 0.5 * trials


@pytest.mark.parametrize("trials", FEW_AND_MANY)
def test_a_message_that_is_signed_nonsense_is_one_sentence(places: list[Place], trials: int) -> None:
    outcomes = read_changed(places, "server.message", lambda place, path: read_message(place.study, path), trials)

    assert not outcomes.bad, outcomes
    assert outcomes["refused"] > 0.2 * trials


@pytest.mark.parametrize("key", [1, None, True, 1.5, "\ud800"])
def test_names_of_mixed_types_are_one_sentence(places: list[Place], key: Any) -> None:
    envelope = open_envelope(places[0].folder / "server.message")
    outline = json.loads(envelope.outline)
    outline["items"][0]["dict"][0][0] = key
    path = places[0].folder / "mixed"
    path.write_bytes(signed(envelope._replace(outline=json.dumps(outline)), places[0].key))

    with pytest.raises(InputError, match="does not hold what a message holds"):
        read_message(places[0].study, path)


@pytest.mark.parametrize("trials", [150, pytest.param(4000, marks=pytest.mark.slow)])
def test_a_changed_study_is_one_sentence_or_works(places: list[Place], trials: int, tmp_path: Path) -> None:
    draw = random.Random(7)
    outcomes = Outcomes()
    path = tmp_path / "study.toml"
    for _ in range(trials):
        place = draw.choice(places)
        study = place.study
        if draw.random() < 0.6:
            study = dataclasses.replace(study, sites=())  # what nobody has signed yet: no signature hides a mistake
        path.write_bytes(mutated_toml(study_text(study), draw).encode("utf-8", "surrogateescape"))

        def use(place: Place = place) -> None:
            found = read(path)
            agreement = found.agreement
            assert agreement.build_task().draws > 0
            agreement_text(agreement, agreement.build_method().about.sends)
            study_text(found)
            rows, _ = rows_of(agreement, place.folder / "north.csv")
            parts(agreement, 0, rows)

        outcomes.note(use)
        outcomes.note(lambda: read_columns(path))

    assert not outcomes.bad, outcomes
    assert outcomes["refused"] > 0.4 * trials


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("prior_var = 1.0", "prior_var = nan"),
        ("prior_var = 1.0", "prior_var = -1"),
        ("draws = 100", "draws = 0"),
        ("draws = 100", "draws = 1000000000"),
        ("format = 2", "format = 0"),
        ("range = [18.0, 100.0]", "range = [18.0, 100.0, 200.0]"),
        ("seed = 0", "seed = 1" + 400 * "0"),
        ("noise = ", "noise = inf # "),
    ],
)
def test_numbers_that_no_model_can_work_with_are_named(
    places: list[Place], tmp_path: Path, before: str, after: str
) -> None:
    text = study_text(dataclasses.replace(places[0].study, sites=()))
    path = tmp_path / "study.toml"
    assert before in text
    path.write_text(text.replace(before, after))

    with pytest.raises(InputError, match=before.split(" ", maxsplit=1)[0]):
        read(path)
