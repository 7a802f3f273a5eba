"""A study as people run it: files from folder to folder, one sentence for every mistake."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import studies
import torch
from places import COLUMNS, SHORT, Place
from tiny import Invoke

from consilience.cli.commands.site_tables import show_parts
from consilience.distributions.posterior import Dense, multiply
from consilience.study.model import read_model
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.members import read
from consilience.study.protocol.rehearsal import probe_rows
from consilience.study.protocol.signature import new_key
from consilience.study.reply import read_memory


@pytest.fixture
def place(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, invoke, monkeypatch)


@pytest.mark.usefixtures("unhurried")
def test_one_round_from_start_to_predictions(place: Place) -> None:
    place.begun(*SHORT, "--method", "beta")
    checked = place.at("north", "site", "check", "sepsis.toml", "data.csv")
    place.fitted()
    shown = place.at("north", "site", "show", "north.reply", "--all")
    pooled = place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")
    for name in studies.NAMES:
        place.at(name, "site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")
        place.carry(f"{name}.statistics", name, "server")
    sums = [f"{name}.statistics" for name in studies.NAMES]
    chosen = place.at("server", "study", "choose", "sepsis.toml", "sepsis.model", *sums, "-o", "final.model")
    place.everybody("final.model")
    words = ("final.model", "data.csv", "--study", "sepsis.toml", "--report", "west.html")
    judged = place.at("west", "site", "evaluate", *words)
    unchecked = place.at("west", "site", "evaluate", "final.model", "data.csv")
    place.at("west", "predict", "final.model", "data.csv", "--abstain", "0.7", "-o", "p.csv")

    assert "Nothing was sent or written" in checked and "send.params.0.weight" in checked
    assert "its signature fits" in shown and "send.params.0.bias = [" in shown
    trained = place.dealt("train")
    assert trained == pytest.approx(0.7 * 360, abs=5 * (360 * 0.7 * 0.3) ** 0.5)  # each row by a draw of its own
    assert "this is the mixture (β = 0)" in pooled and f"Pooled from north, south, west, {trained} rows" in pooled
    assert "Chosen by statistics of north, south, west: " in chosen
    assert f"{place.dealt('test', 'west')} test rows" in judged and "Calibration slope" in judged
    assert "give --study to check" in unchecked and "give --study to check" not in judged
    page = (place.root / "west" / "west.html").read_text()
    assert "they stay here" in page and "Calibration slope" in page and "Provenance" in page
    with (place.root / "west" / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(1, 121))
    assert {row["decision"] for row in rows} == {"no", "yes", "abstain"}
    for row in rows:
        assert float(row["p(no)"]) + float(row["p(yes)"]) == pytest.approx(1, abs=1e-5)
        assert 0 <= float(row["disagreement"]) <= float(row["epistemic"]) + 1e-5
        assert (row["decision"] == "abstain") == (max(float(row["p(no)"]), float(row["p(yes)"])) < 0.7)
    for threshold in ("80", "-1"):
        code, _, err = place.tried("west", "predict", "final.model", "data.csv", f"--abstain={threshold}")
        assert code == 2 and f"--abstain {threshold} is not a probability" in err
    path = place.root / "west" / "data.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], "", *lines[5:], "", ""]))
    code, _, err = place.tried("west", "predict", "final.model", "data.csv", "-o", "q.csv")
    assert code == 2 and "data.csv, line 6 is blank" in err
    spoilt = [lines[0], lines[1].replace(lines[1].split(",")[0], "900"), *lines[2:]]
    path.write_text("\n".join(spoilt))
    code, out, _ = place.tried("west", "predict", "final.model", "data.csv", "--abstain", "0.7", "-o", "q.csv")
    assert code == 1 and "1 of 120 rows were not predicted" in out
    assert "data.csv, line 2: '900' in column 'age' is not plausible in this study (18 to 100 years)" in out
    old, new = (path.with_name(name).read_text().splitlines() for name in ("p.csv", "q.csv"))
    assert new[1].endswith("not predicted")
    assert [line.split(",")[-1] for line in new[2:]] == [line.split(",")[-1] for line in old[2:]]
    path.write_text("\n".join([*lines, "", ""]))
    place.at("west", "predict", "final.model", "data.csv", "--abstain", "0.7", "-o", "q.csv")
    assert path.with_name("q.csv").read_text() == path.with_name("p.csv").read_text()


def test_a_check_shows_what_leaves_in_every_round(place: Place) -> None:
    place.begun("--method", "evidence_tuned", "--set", "inference.epochs=1")

    told = place.at("north", "site", "check", "sepsis.toml", "data.csv")

    first, second = told.split("In round 2:")
    assert "In round 1:" in first and "send.counts" in first
    assert "send.counts" not in second and "54" in second  # 6 values of λ × 9 temperatures


def test_what_files_say_is_shown_as_it_stands_and_moves_no_cursor(place: Place) -> None:
    place.begun(target='name = "[/red]"\nclasses = ["no", "yes"]')
    path = place.root / "north" / "sepsis.toml"
    path.write_text(path.read_text().replace('unit = "years"', 'unit = "[mg/dl]"').split("# Sites, written")[0])
    records = [{("[/red]" if k == "died" else k): v for k, v in row.items()} for row in studies.rows(0, 120)]
    studies.table(place.root / "north" / "data.csv", records)
    key = new_key(place.root / "north" / "x.key")
    header = Header("reply", "0" * 64, "\x1b[2J\x1b]0;evil\x07\u202efake\nname", "north")
    (place.root / "north" / "x.reply").write_bytes(seal({"send": torch.ones(1)}, header, key))

    checked = place.at("north", "site", "check", "sepsis.toml", "data.csv")
    shown = place.at("north", "site", "show", "x.reply")
    code, _, err = place.tried("server", "study", "pool", "sepsis.toml", "../north/x.reply")

    assert "[mg/dl]" in checked and "[/red] = no: " in checked
    assert code == 2 and "'[2J]0;evilfake name'" in shown and "'[2J]0;evilfake name'" in " ".join(err.split())
    assert not {"\x1b", "\x07", "\u202e"} & {*shown, *err}


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([180, 8], ["10 or more", "fewer than 10"]),  # 188 − 180 would be the eight
        ([100, 8, 20], ["100", "fewer than 10", "10 or more"]),
        ([100, 1, 1], ["10 or more", "fewer than 10", "fewer than 10"]),  # 102 − 100 = 2 can only be 1 and 1
        ([100, 6, 7], ["100", "fewer than 10", "fewer than 10"]),
        ([100, 0, 1200], ["100", "0", "1,200"]),
        ([0, 5], ["0", "fewer than 10"]),
    ],
)
def test_a_small_count_does_not_follow_from_the_others(counts: list[int], told: list[str]) -> None:
    assert show_parts(counts, 10) == told


def test_a_check_does_not_give_a_small_class_away(place: Place) -> None:
    place.begun()
    records = [{**row, "died": "yes" if i < 8 else "no"} for i, row in enumerate(studies.rows(0, 120))]
    studies.table(place.root / "north" / "data.csv", records)

    told = place.at("north", "site", "check", "sepsis.toml", "data.csv")

    assert "data.csv: 120 rows" in told and "died = yes: fewer than 10 rows" in told
    assert "died = no: 10 or more rows" in told and "112" not in told


def test_the_default_study_multiplies_linear_posteriors(place: Place) -> None:
    place.begun()
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    told = place.at("server", "predict", "sepsis.model", "../north/data.csv", "-o", "p.csv")

    pooled = read_model(place.root / "server" / "sepsis.model")
    study = read(place.root / "server" / "sepsis.toml")
    task, like = study.agreement.build_task(), study.agreement.build_task().like
    factors = [open_envelope(place.root / "server" / f).value({"Dense": Dense})["send"] for f in place.files]
    product = multiply(factors, task.prior.dense(like))
    assert "120 rows" in told and isinstance(pooled.state.posterior, Dense)
    signed = f"key {study.agreement.server[8:20]}… in the study {study.agreement.hash[:12]}"
    assert signed in told and "give --study to check" in told
    assert torch.equal(pooled.state.posterior.precision, product.precision)
    assert torch.equal(pooled.state.posterior.mean, product.mean)


def test_a_pool_prints_every_sites_influence(place: Place) -> None:
    place.begun(*SHORT)
    place.fitted()

    told = place.at("server", "study", "pool", "sepsis.toml", *place.files)

    head, *lines = told[told.index("site ") :].splitlines()
    assert head.split() == ["site", "rows", "influence"]
    shares = {line.split()[0]: float(line.split()[2]) for line in lines[:3]}
    weights = {name: 100 * place.dealt("train", name) / place.dealt("train") for name in studies.NAMES}
    assert shares == pytest.approx(weights, abs=0.51)  # of a mixture: a site's weight
    assert "Influence by site" in (place.root / "server" / "sepsis.html").read_text()


def test_a_site_leaves_and_another_joins(place: Place) -> None:
    place.begun(*SHORT, "--fewest-sites", "2")
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)

    left = place.at("server", "study", "leave", "sepsis.toml", "west")
    place.at("server", "study", "pool", "sepsis.toml", *place.files, "-o", "without.model", "--accept-difference")
    listed = place.at("server", "study", "show", "sepsis.toml")
    old = place.at("server", "predict", "sepsis.model", "../north/data.csv", "--study", "sepsis.toml", "-o", "p.csv")
    place.carry("sepsis.toml", "server", "west")
    (place.root / "west" / "west.key").rename(place.root / "west" / "old")
    place.at("west", "site", "join", "sepsis.toml", "east", "data.csv")
    place.carry("east.join", "west", "server")
    place.at("server", "study", "add", "sepsis.toml", "east.join")
    place.carry("sepsis.toml", "server", "west")
    place.at("west", "site", "fit", "sepsis.toml", "data.csv")
    place.carry("east.reply", "west", "server")
    files = ("north.reply", "south.reply", "east.reply")
    more = place.at("server", "study", "pool", "sepsis.toml", *files, "--accept-difference")

    assert "still includes west" in left
    assert "OUTDATED: it includes a site that has left" in listed
    assert "outdated model: it includes west" in old
    assert "Pooled from east, north, south" in more


def test_a_number_is_predicted_with_its_interval(place: Place) -> None:
    for number, name in enumerate(studies.NAMES):
        studies.table(place.root / name / "data.csv", studies.rows(number, 120, number=True))
    words = 'name = "died"\nunit = "points"\nrange = [-50, 50]\ncentre = 0\nspread = 2'
    place.begun(target=words)
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    told = place.at("server", "predict", "sepsis.model", "../north/data.csv", "--abstain", "6", "-o", "p.csv")
    shown = place.at("server", "site", "show", "sepsis.model")

    with (place.root / "server" / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    truth = [float(r["died"]) for r in studies.rows(0, 120, number=True)]
    inside = sum(float(r["low95"]) <= y <= float(r["high95"]) for r, y in zip(rows, truth, strict=True))
    assert inside / 120 > 0.9  # of 95 %
    assert all((float(r["high95"]) - float(r["low95"]) > 6) == (r["decision"] == "abstain") for r in rows)
    assert "left open" in told and "mean (points)" in rows[0] and "facts sites: ['north', 'south', 'west']" in shown


def test_many_rounds_by_hand_over(place: Place) -> None:
    place.begun("--method", "scaffold", "--rounds", "2", "--set", "inference.epochs=1")
    place.fitted()
    first = place.at("server", "study", "pool", "sepsis.toml", *place.files, "-o", "one.model")
    place.everybody("one.message")
    place.fitted("--message", "one.message")
    second = place.at("server", "study", "pool", "sepsis.toml", *place.files, "-o", "two.model", "--after", "one.state")

    assert "one.message" in first and "one.state" in first
    assert "message" not in second.replace("statistics", "")
    code, _, err = place.tried("server", "study", "pool", "sepsis.toml", *place.files, "--after", "two.state")
    assert code == 2 and "no file 'two.state'" in err
    code, _, err = place.tried("server", "study", "pool", "sepsis.toml", *place.files)
    assert code == 2 and "answers another round than round 1" in err


def in_the_second_round(place: Place, rounds: str) -> None:
    """FedAvg, pooled once; everybody has replied again."""
    place.begun("--method", "fedavg", "--rounds", rounds, "--set", "inference.epochs=1", "--fewest-sites", "1")
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.message")
    place.fitted("--message", "sepsis.message")


def test_a_model_is_old_when_a_site_of_an_earlier_round_has_left(place: Place) -> None:
    in_the_second_round(place, rounds="2")
    last = ("study", "pool", "sepsis.toml", "south.reply", "--after", "sepsis.state", "-o")
    told = place.at("server", *last, "two.model")

    left = place.at("server", "study", "leave", "sepsis.toml", "north")
    used = place.at("server", "predict", "two.model", "../north/data.csv", "--study", "sepsis.toml", "-o", "p.csv")
    place.at("server", *last, "again.model")

    assert f"Pooled from north, south, west, {place.dealt('train')} rows" in told
    assert left.count("still includes north") == 2
    assert "outdated model: it includes north" in used
    assert place.at("server", "study", "show", "sepsis.toml").count("OUTDATED") == 3


def test_a_pool_that_cannot_write_its_message_can_be_run_again(place: Place) -> None:
    in_the_second_round(place, rounds="3")
    again = ("server", "study", "pool", "sepsis.toml", *place.files, "--after", "sepsis.state")
    (place.root / "server" / "sepsis.message").unlink()
    (place.root / "server" / "sepsis.message").mkdir()  # the message cannot be written

    code, _, err = place.tried(*again)
    (place.root / "server" / "sepsis.message").rmdir()
    place.at(*again)

    assert code == 2 and "Cannot write sepsis.message" in err
    assert open_envelope(place.root / "server" / "sepsis.message").header.round == 3


def test_a_memory_stays_in_the_folder_when_the_reply_goes_elsewhere(place: Place) -> None:
    place.begun(*SHORT, "--fewest-sites", "1")
    place.at("north", "site", "fit", "sepsis.toml", "data.csv", "-o", "../server/north.reply")
    place.at("server", "study", "pool", "sepsis.toml", "north.reply")
    place.everybody("sepsis.model")

    said = place.at("north", "site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")

    assert not (place.root / "server" / "north.memory").exists()
    assert "is not here" not in said


def test_a_lost_reply_is_made_again_by_the_same_command(place: Place) -> None:
    place.begun("--method", "scaffold", "--rounds", "2", "--set", "inference.epochs=1")
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.message")
    again = ("north", "site", "fit", "sepsis.toml", "data.csv", "--message", "sepsis.message")
    reply, memory = place.root / "north" / "north.reply", place.root / "north" / "north.memory"
    first = memory.read_bytes()
    reply.unlink()
    reply.mkdir()  # the reply cannot be written

    code, _, err = place.tried(*again)
    assert code == 2 and "Cannot write north.reply" in err
    assert memory.read_bytes() != first  # remembered before anything can be handed over
    reply.rmdir()
    place.at(*again)
    made = reply.read_bytes(), memory.read_bytes()
    reply.unlink()
    place.at(*again)

    assert (reply.read_bytes(), memory.read_bytes()) == made


def test_scaling_from_sums(place: Place) -> None:
    (place.root / "server" / "columns.toml").write_text(COLUMNS)
    place.at("server", "study", "new", "sepsis", "--columns", "columns.toml", "--scaling", "sums", *SHORT)
    for name in studies.NAMES:
        place.carry("sepsis.toml", "server", name)
        place.at(name, "site", "sums", "sepsis.toml", "data.csv", "--site", name)
        place.carry(f"{name}.sums", name, "server")

    place.at("server", "study", "scale", "sepsis.toml", *(f"{name}.sums" for name in studies.NAMES))

    ages = [float(r["age"]) for number in range(3) for r in studies.rows(number, 120)]
    mean = sum(ages) / len(ages)  # of all rows, though no row moved
    text = (place.root / "server" / "sepsis.toml").read_text()
    assert f"centre = {float(f'{mean:.6g}')!r}" in text
    place.carry("sepsis.toml", "server", "north")
    place.at("north", "site", "join", "sepsis.toml", "north", "--rows", "120")
    code, _, err = place.tried("server", "study", "add", "sepsis.toml", "../north/north.join", "../north/north.join")
    assert code == 2 and "in the study already" in err


def test_a_method_that_begins_with_a_message(place: Place) -> None:
    place.begun("--method", "evidence_logits", "--set", "inference.epochs=2", "--set", "distil.inference.epochs=2")
    place.at("server", "study", "message", "sepsis.toml", "--inputs", "../north/data.csv")
    place.everybody("sepsis.message")
    code, _, err = place.tried("north", "site", "fit", "sepsis.toml", "data.csv")
    place.fitted("--message", "sepsis.message")
    place.at("server", "study", "pool", "sepsis.toml", *place.files, "--inputs", "../north/data.csv")

    assert code == 2 and "give it with message=" in err


def older(text: str) -> str:
    """Ages in days."""
    head, *lines = text.splitlines()
    cells = [line.split(",") for line in lines]
    return "\n".join([head, *(",".join([str(round(float(c[0]) * 365)), *c[1:]]) for c in cells)])


BAD_TABLES: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace("age", "years", 1), "has no column 'age'"),
    (lambda text: text.splitlines()[0], "has 0 rows under its header"),
    (lambda text: "\n".join(text.splitlines()[:2]), "has 1 rows"),
    (lambda text: "", "is empty: a table has a header row"),
    (lambda text: text.replace("yes", "no"), "'died' is 'no' in every row"),
    (lambda text: text.replace(",a,", ",7,"), "none of the agreed a, b, c"),
    (lambda text: text.replace(",", ";", 7), "seems to separate its columns"),
    (older, "120 of 120 values lie outside 18 to 100 years"),
]


def test_a_site_commits_to_its_rows_when_it_joins(place: Place) -> None:
    (place.root / "server" / "columns.toml").write_text(COLUMNS)
    place.at("server", "study", "new", "sepsis", "--columns", "columns.toml")
    place.everybody("sepsis.toml")
    join = ("site", "join", "sepsis.toml")

    refusals = [
        place.tried("north", *join, "north"),
        place.tried("north", *join, "north", "data.csv", "--rows", "120"),
        place.tried("north", *join, "north", "--rows", "3"),
        place.tried("north", *join, "north", "sepsis.toml"),
    ]
    key = (place.root / "north" / "north.key").exists()
    counted = place.at("north", *join, "north", "data.csv")
    place.at("south", *join, "south", "--rows", "50")
    for name in ("north", "south"):
        place.carry(f"{name}.join", name, "server")
    added = place.at("server", "study", "add", "sepsis.toml", "north.join", "south.join")
    listed = place.at("server", "study", "show", "sepsis.toml")
    place.everybody("sepsis.toml")
    place.at("north", "site", "fit", "sepsis.toml", "data.csv")
    code, _, grown = place.tried("south", "site", "fit", "sepsis.toml", "data.csv")

    assert [code for code, _, _ in refusals] == [2] * 4 and not key  # nothing is written before the table is sound
    assert "A site commits to its number of rows: give its table" in refusals[0][2]
    assert "or --rows, not both" in refusals[1][2]
    assert "'north' commits to 3 rows; a whole number from 10" in refusals[2][2]
    assert "You committed to 120 rows" in counted
    assert "north (number 0, at most 120 rows)" in added and "at most 50 rows" in added
    assert "rows at most" in listed and "120" in listed
    assert code == 2 and "'south' committed to 50 when it joined" in grown


def test_a_table_that_cannot_be_used(place: Place) -> None:
    place.begun(*SHORT)
    path = place.root / "north" / "data.csv"
    good = path.read_text()
    for change, said in BAD_TABLES:
        path.write_text(change(good))

        code, _, err = place.tried("north", "site", "fit", "sepsis.toml", "data.csv")

        assert code == 2 and said in err and "Traceback" not in err, said
        assert not (place.root / "north" / "north.reply").exists()


def test_columns_more_and_in_another_order_do_no_harm(place: Place) -> None:
    place.begun(*SHORT)
    place.at("north", "site", "fit", "sepsis.toml", "data.csv")
    before = (place.root / "north" / "north.reply").read_bytes()
    records = [{"nurse": "x", **dict(reversed(list(r.items())))} for r in studies.rows(0, 120)]
    studies.table(place.root / "north" / "data.csv", records)

    said = place.at("north", "site", "check", "sepsis.toml", "data.csv")
    place.at("north", "site", "fit", "sepsis.toml", "data.csv")

    assert "never read: nurse" in said
    assert (place.root / "north" / "north.reply").read_bytes() == before


def test_keys_and_files_of_others_are_refused(place: Place) -> None:
    place.begun(*SHORT)
    place.fitted()
    place.carry("south.key", "south", "north")
    several = place.tried("north", "site", "fit", "sepsis.toml", "data.csv")
    wrong = place.tried("server", "site", "fit", "sepsis.toml", "../north/data.csv")
    theirs = place.tried("server", "study", "pool", "sepsis.toml", *place.files, "--key", "../north/north.key")
    again = place.tried("server", "study", "new", "sepsis")
    none = place.tried("north", "site", "fit", "none.toml", "data.csv")
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    shown = place.tried("server", "site", "show", "sepsis.toml")
    record = (place.root / "south" / "data.csv").read_text()
    (place.root / "south" / "data.csv").write_text(record.replace("\n", "\n", 1)[: record.rindex("\n", 0, -1) + 1])
    place.carry("sepsis.model", "server", "south")
    changed = place.tried("south", "site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")

    for found, said in (
        (several, "keys of north, south"),
        (wrong, "not the key of a site in the study"),
        (theirs, "not the key of the study's coordinator"),
        (again, "already exists"),
        (none, "no file 'none.toml'"),
        (shown, "damaged or was not written"),
        (changed, "has changed since"),
    ):
        assert found[0] == 2 and said in found[2] and "Traceback" not in found[2]


def test_a_site_predicts_with_its_own_model_where_sites_have_such(place: Place) -> None:
    """What is handed out holds nothing of a single site; the site adds what it kept, and a newcomer cannot."""
    place.begun("--method", "hierarchical", "--rows-per-parameter", "1")
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")
    options = ("sepsis.model", "data.csv", "--study", "sepsis.toml")

    newcomer = place.at("north", "predict", *options, "-o", "new.csv")
    own = place.at("north", "predict", *options, "--memory", "north.memory", "-o", "own.csv")
    evaluated = place.at("north", "site", "evaluate", *options)

    assert "the model that a newcomer gets" in newcomer
    assert "This site's own model" in own and "This site's own model" in evaluated
    assert (place.root / "north" / "own.csv").read_text() != (place.root / "north" / "new.csv").read_text()
    pooled = read_model(place.root / "server" / "sepsis.model")
    assert pooled.state.factors == ()
    study = read(place.root / "server" / "sepsis.toml")
    home = pooled.at_home(read_memory(study, place.root / "north" / "north.memory", 1))
    probes = probe_rows(study.agreement)
    lines = (place.root / "north" / "own.csv").read_text().splitlines()
    assert not torch.equal(home(probes)[0], pooled(probes)[0]) and len(lines) == 121
    place.at("north", "site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")
    for words, said in (
        (("predict", "sepsis.model", "data.csv", "--memory", "north.memory"), "give --study too"),
        (("predict", *options, "--memory", "none.memory"), "none.memory is not here"),
    ):
        code, _, error = place.tried("north", *words)
        assert code == 2 and said in error


def test_a_model_for_all_sites_takes_no_memory(place: Place) -> None:
    place.begun()
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")
    code, _, error = place.tried(
        "north", "predict", "sepsis.model", "data.csv", "--study", "sepsis.toml", "--memory", "north.memory"
    )
    assert code == 2 and "leave --memory out" in error
