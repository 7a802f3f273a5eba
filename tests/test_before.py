"""Runs, studies, comparisons and searches that an earlier version wrote are still read, and give the same numbers.

What is in tests/before was written once, by the code of one day (README.md there says how), and is never made
again: if a test here is red, files that people keep can no longer be used as they were.

Whatever is no computed number (names, counts, hashes, seeds, what has which shape) must be equal. Numbers may differ by
what other processors round otherwise: see `LOADED` and `TRAINED`. With CONSILIENCE_EXACT=1, on the machine and with the
torch that wrote the files, every bit must be the same.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tiny import Invoke

import consilience as co
from consilience.key import Key

pytestmark = pytest.mark.usefixtures("unhurried")
BEFORE = Path(__file__).parent / "before"
EXACT = bool(os.environ.get("CONSILIENCE_EXACT"))
LOADED = 1e-5  # nothing is trained: one pass through a small network in float32, whose rounding is 6e-8 a number
TRAINED = 1e-4  # up to a few hundred steps in float32, each of which carries on what the steps before it rounded
PRINTED = 2e-6  # predictions in a table have six digits behind the point
VARYING = {"seconds", "consilience", "versions", "version", "checksum", "signature"}  # when, by what; signed numbers
NAMES = ("north", "south", "west")
REPLIES = [f"{name}.reply" for name in NAMES]
RUNS = sorted(path.name for path in (BEFORE / "runs").iterdir())
KINDS = {  # of files that are signed, in each study
    "default": ("reply", "memory", "model", "statistics"),
    "beta": ("reply", "memory", "model", "statistics"),
    "numbers": ("reply", "memory", "model", "sums"),
    "pvi": ("reply", "memory", "model", "message", "state"),
    "scaffold": ("reply", "memory", "model", "message", "state"),
}


def kept(*path: str) -> Any:
    return json.loads(BEFORE.joinpath(*path).read_text(encoding="utf-8"))


INPUTS = kept("inputs.json")


def same(found: Any, before: Any, tolerance: float, where: str = "") -> None:
    """Equal, but for the rounding of numbers that are not whole and for what varies from run to run."""
    if isinstance(before, dict):
        assert found.keys() - VARYING == before.keys() - VARYING, where
        for name in before.keys() - VARYING:
            same(found[name], before[name], tolerance, f"{where}.{name}")
    elif isinstance(before, (list, tuple)):
        assert len(found) == len(before), where
        for i, (a, b) in enumerate(zip(found, before, strict=True)):
            same(a, b, tolerance, f"{where}[{i}]")
    elif isinstance(before, float) and not EXACT:
        assert found == pytest.approx(before, rel=tolerance, abs=tolerance), where
    else:
        assert found == before, where


def same_file(found: Path, before: Path, tolerance: float) -> None:
    """Two files of tensors: the same header, names, types and shapes, and numbers that are near."""
    contents = []
    for path in (found, before):
        with safe_open(path, framework="pt") as file:
            head = json.loads(file.metadata()["consilience"])
            contents.append((head, {name: file.get_tensor(name) for name in file.keys()}))  # noqa: SIM118 — not a dict
    (head, tensors), (head_before, tensors_before) = contents
    same(head, head_before, tolerance, found.name)
    assert tensors.keys() == tensors_before.keys(), found.name
    for name, t in tensors_before.items():
        assert (tensors[name].dtype, tensors[name].shape) == (t.dtype, t.shape), name
        same(tensors[name].tolist(), t.tolist(), tolerance, f"{found.name} {name}")


def predicted(result: co.Result, problem: str) -> dict[str, Any]:
    p = result.predict(torch.tensor(INPUTS[problem]))
    return {name: value.tolist() for name, value in p._asdict().items() if value is not None}


def copied(what: str, to: Path) -> Path:
    """A copy that may be changed, without what is expected of it."""
    return Path(shutil.copytree(BEFORE / what, to, ignore=shutil.ignore_patterns("expected.json")))


# --- what the tests stand on -----------------------------------------------------------------------------------------


def test_no_file_of_before_was_changed_or_made_again() -> None:
    places = [line.split("  ") for line in (BEFORE / "SUMS").read_text().splitlines()]
    for digest, count, place in places:
        root = BEFORE / place
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        each = ((hashlib.sha256(p.read_bytes()).hexdigest(), p.relative_to(BEFORE).as_posix()) for p in files)
        text = "".join(f"{own}  {name}\n" for own, name in each)
        assert (hashlib.sha256(text.encode()).hexdigest(), str(len(files))) == (digest, count), place
    assert {p.name for p in BEFORE.iterdir() if p.is_dir()} == {place.split("/")[0] for _, _, place in places} - {
        "inputs.json",
        "keys.json",
        "splits.json",
    }


def folded(seed: int, path: list[int], tensor: bool = False) -> Key:
    key = Key(seed).tensor if tensor else Key(seed)
    for i in path:
        key = key.fold(i)
    return key


def test_keys_are_derived_as_before() -> None:
    table = kept("keys.json")
    for seed, path, derived in table["seeds"]:
        for tensor in (False, True):  # plain integers, and what vmap stacks
            assert int(folded(seed, path, tensor).seed) == derived, (seed, path)
    for draw in table["draws"]:
        key = folded(draw["seed"], draw["path"])
        assert key.uniform(5).tolist() == draw["uniform"]  # whole numbers of 24 bits, scaled by a power of two
        assert key.permutation(12).tolist() == draw["permutation"]
        same(key.normal((4,)).tolist(), draw["normal"], LOADED)  # sine and logarithm: the last digits may differ
        same(key.normal((20,)).tolist(), draw["normal20"], LOADED)


def test_rows_are_handed_out_as_before() -> None:
    """Pixels are sixteenths, so the hash of all rows in their roles is the same on every machine."""
    every = co.datasets.digits()
    made = [
        co.splits.iid(),
        co.splits.dirichlet(0.3),
        co.splits.heterogeneous(0.9),
        co.splits.heterogeneous(0.5, "hasan2023"),
        co.splits.step(2, 10),
    ]
    by_name = {str(split): split for split in (*made, co.splits.dominant(0.8))}
    table = kept("splits.json")
    assert {row["split"] for row in table} == {*by_name}
    for row in table:
        roles = {"test": 0.2, "calibration": 30, "inputs": 20, "validation": 0.1, "seed": row["seed"]}
        sites = every.split(by_name[row["split"]], sites=6, **roles)
        assert sites.label_counts().tolist() == row["train"], row["split"]
        assert [len(part.y) for part in sites.test] == row["test"], row["split"]
        assert sites.fingerprint() == row["fingerprint"], row["split"]


# --- runs from Python ------------------------------------------------------------------------------------------------


def moons() -> tuple[co.Task, co.Sites]:
    sites = co.datasets.moons(n=120).split(
        co.splits.dirichlet(0.8), sites=3, test=0.25, calibration=12, inputs=10, seed=1
    )
    return co.classification(co.models.mlp(2, 2, hidden=(4,))), sites


def many() -> tuple[co.Task, co.Sites]:
    sites = co.datasets.moons(n=160).split(co.splits.iid(), sites=8, test=0.25, calibration=12, seed=2)
    return co.classification(co.models.mlp(2, 2, hidden=(4,))), sites


def sine() -> tuple[co.Task, co.Sites]:
    sites = co.datasets.sine(n_per_site=20).split(
        co.splits.natural(), sites=3, test=0.25, calibration=6, inputs=8, seed=1
    )
    return co.regression(co.models.mlp(1, hidden=(4,))), sites


def digits() -> tuple[co.Task, co.Sites]:
    every = co.datasets.digits()
    few = co.data.Dataset("digits", every.x[:200], every.y[:200], classes=10, public=True)
    sites = few.split(co.splits.heterogeneous(0.7), sites=3, test=0.2, calibration=10, seed=3)
    return co.classification(co.models.mlp(64, 10, hidden=(6,))), sites


def tables() -> tuple[co.Task, co.Sites]:
    files = str(BEFORE / "hospitals" / "*.csv")
    sites = co.from_csv(files, target="disease", test=0.2, calibration=12, seed=0)
    return co.classification(co.models.linear(sites.features, sites.classes)), sites


PROBLEMS: dict[str, Callable[[], tuple[co.Task, co.Sites]]] = {
    f.__name__: f for f in (moons, many, sine, digits, tables)
}


def how(report: dict[str, Any]) -> dict[str, Any]:
    """What else a run was given."""
    given: dict[str, Any] = {"rounds": report["rounds"], "seed": report["seed"], "scored": "metrics" in report}
    taking = report.get("participation")
    return given | ({"participation": co.Participation(**taking)} if taking else {})


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_loaded_and_predicts(name: str) -> None:
    expected = kept("runs", name, "expected.json")

    result = co.load(BEFORE / "runs" / name)

    assert list(result.sites.names) == expected["sites"]
    assert len(result.replies) == expected["replies"]
    assert result.report["rounds"] == expected["rounds"]
    assert result.report["failures"] == expected["failures"]
    assert {k: result.report["ledger"][k] for k in expected["crossed"]} == expected["crossed"]
    assert result.report.get("metrics") == expected["metrics"]  # read, not computed
    if "refused" in expected:
        with pytest.raises(co.InputError, match="has a model for each site and none for all"):
            predicted(result, expected["problem"])
    else:
        same(predicted(result, expected["problem"]), expected["predictions"], LOADED)


def is_portable(name: str) -> bool:
    """Whether the hash of a run's rows is the same on every machine: the sine's rows are drawn with a logarithm."""
    return "sine" not in name


@pytest.mark.parametrize("name", filter(is_portable, RUNS))
def test_a_run_knows_its_rows_and_its_replies_are_pooled_again(name: str, tmp_path: Path) -> None:
    """The hash of method, task and rows is still the one in the folder, so that it is taken for what it is."""
    expected = kept("runs", name, "expected.json")
    task, sites = PROBLEMS[expected["problem"]]()
    folder = copied(f"runs/{name}", tmp_path / name)
    loaded = co.load(folder, sites=sites)
    state = (folder / "state.safetensors").read_bytes()

    on = co.run(loaded.method, task, sites, out=folder, resume=True, **how(loaded.report))  # nothing is left to do

    assert (folder / "state.safetensors").read_bytes() == state
    if expected["metrics"] is not None:
        same(on.metrics, expected["metrics"], LOADED)  # computed anew
    if "predictions" in expected:
        same(predicted(on, expected["problem"]), expected["predictions"], LOADED)
        if expected["rounds"] == 1 and name != "server_only":  # which has no replies, but the server's own rows
            again = loaded.pool(loaded.method, scored=False)
            same(predicted(again, expected["problem"]), expected["predictions"], TRAINED)  # some train a student


@pytest.mark.parametrize("name", RUNS)
def test_the_same_run_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    expected = kept("runs", name, "expected.json")
    before = co.load(BEFORE / "runs" / name)
    task, sites = PROBLEMS[expected["problem"]]()

    result = co.run(before.method, task, sites, out=tmp_path / name, **how(before.report))

    if "predictions" in expected:
        same(predicted(result, expected["problem"]), expected["predictions"], TRAINED)
    made, old = tmp_path / name, BEFORE / "runs" / name
    files = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    assert files | {Path("expected.json")} == {path.relative_to(old) for path in old.rglob("*") if path.is_file()}
    parts = json.loads((made / "task.json").read_text()).keys() - {"columns"}  # of tables, which runs know since
    assert parts == json.loads((old / "task.json").read_text()).keys()
    if is_portable(name):
        for file in files:
            if file.suffix == ".safetensors":
                same_file(made / file, old / file, TRAINED)


# --- runs from the command line --------------------------------------------------------------------------------------


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """Where the commands were typed: files of three hospitals, and the runs on them."""
    copied("hospitals", tmp_path / "hospitals")
    return copied("typed", tmp_path / "typed")


def ran(invoke: Invoke, *words: str) -> str:
    """A command that works; what it printed."""
    code, out, err = invoke(*words)
    assert code == 0, err
    return out


def test_a_typed_run_is_loaded_and_reported(typed: Path, invoke: Invoke) -> None:
    for name in ("mixture", "gaussian_product"):
        same(predicted(co.load(typed / name), "tables"), kept("typed", "expected.json")[name], LOADED)

    ran(invoke, "report", "typed/mixture")

    title = json.loads((typed / "mixture" / "run.json").read_text())["title"]
    assert title in (typed / "mixture" / "report.html").read_text(encoding="utf-8")


def test_a_typed_run_is_pooled_by_another_rule(typed: Path, invoke: Invoke) -> None:
    told = ran(invoke, "pool", "typed/mixture", "--method", "bcm", "--json")

    same(json.loads(told)["metrics"], kept("typed", "expected.json")["pooled"], LOADED)


def test_the_bounds_of_a_finished_run_are_the_same(typed: Path, invoke: Invoke) -> None:
    told = json.loads(ran(invoke, "run", "--resume", "typed/mixture", "--json"))

    bounds = kept("typed", "expected.json")["bounds"]
    assert told["bounds"].keys() == bounds.keys() == {"local_only", "server_only", "centralised"}
    for name, before in bounds.items():
        same({k: told["bounds"][name]["metrics"][k] for k in ("nll", "brier")}, scores(before["metrics"]), TRAINED)


def scores(metrics: dict[str, float]) -> dict[str, float]:
    """Smooth ones: an ECE's bins and an accuracy jump where a probability crosses a line by its last digit."""
    return {name: metrics[name] for name in ("nll", "brier")}


def test_a_run_starts_where_another_ended(typed: Path, invoke: Invoke) -> None:
    words = ["--data", "hospitals/*.csv", "--target", "disease", "--model", "linear", "--calibration", "12"]
    words += ["--set", "inference.epochs=6", "--set", "inference.batch=16", "--rounds", "2", "--no-bounds"]

    ran(invoke, "run", "fedavg", *words, "--start", "typed/gaussian_product", "--seed", "4", "--out", "on")

    same(predicted(co.load("on"), "tables"), kept("typed", "expected.json")["started"], TRAINED)


# --- runs that stopped half-way --------------------------------------------------------------------------------------


def check_whole(result: co.Result, expected: dict[str, Any]) -> None:
    """As if nobody had ever stopped it."""
    same(predicted(result, expected["problem"]), expected["predictions"], TRAINED)
    same(scores(result.metrics), scores(expected["metrics"]), TRAINED)
    assert [row["round"] for row in result.report["history"]] == [1, 2, 3, 4]
    for row, before in zip(result.report["history"], expected["history"], strict=True):
        same(scores(row), scores(before), TRAINED)
    assert {k: result.report["ledger"][k] for k in expected["crossed"]} == expected["crossed"]


def test_a_run_of_two_rounds_goes_on_to_four(tmp_path: Path) -> None:
    folder = copied("stopped/scaffold", tmp_path / "run")
    task, sites = moons()
    method = co.Scaffold(co.SGD(rate=0.3, epochs=8, batch=16, momentum=0.0))  # as it was typed then

    result = co.run(method, task, sites, rounds=4, seed=7, out=folder, resume=True, keep_replies="all")

    check_whole(result, kept("stopped", "scaffold", "expected.json"))
    assert result.report["history"][:2] == kept("stopped", "scaffold", "run.json")["history"]  # read, not run again


def test_a_killed_run_goes_on_from_its_folder_alone(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    folder = copied("stopped/typed", tmp_path / "run")
    assert kept("stopped", "typed", "run.json")["finished"] is False

    ran(invoke, "run", "--resume", "run", "--json")

    check_whole(co.load(folder), kept("stopped", "typed", "expected.json"))


def test_a_stopped_run_of_other_rows_is_refused(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    copied("stopped/typed", tmp_path / "run")
    file = tmp_path / "hospitals" / "south.csv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-1], "51.5,0.250,yes"]) + "\n")

    code, _, err = invoke("run", "--resume", "run")

    assert code == 2 and "made with another method, model, data, seed or engine" in " ".join(err.split())


# --- studies by files ------------------------------------------------------------------------------------------------


class Study:
    """A copy of a study's folders, and commands that are typed in them."""

    def __init__(self, root: Path, name: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.before = copied(f"studies/{name}", root / name), BEFORE / "studies" / name
        self.expected = kept("studies", name, "expected.json")
        self.invoke, self.monkeypatch = invoke, monkeypatch
        for site in NAMES:  # whose copy of the study only lacks the list of models made since
            self.carry("sepsis.toml", site)

    def at(self, where: str, *words: str) -> str:
        """A command that works; what it printed."""
        self.monkeypatch.chdir(self.root / where)
        return ran(self.invoke, *words)

    def carry(self, name: str, taker: str) -> None:
        shutil.copy(self.root / "server" / name, self.root / taker / name)

    def fitted(self, *words: str) -> None:
        """Every site's reply, made anew and handed over."""
        for site in NAMES:
            (self.root / "server" / f"{site}.reply").unlink()
            self.at(site, "site", "fit", "sepsis.toml", "data.csv", "-o", f"../server/{site}.reply", *words)

    def predicts(self, model: str, before: str, tolerance: float) -> None:
        """What a model says of five new patients."""
        self.at(".", "predict", model, "new.csv", "--study", "server/sepsis.toml", "-o", "p.csv")
        found, expected = (
            list(csv.DictReader(io.StringIO(text)))
            for text in ((self.root / "p.csv").read_text(), self.expected["predictions"][before])
        )
        assert len(found) == len(expected) == 5
        for row, old in zip(found, expected, strict=True):
            assert row.keys() == old.keys()
            for name in old:
                numbers = name not in ("row", "decision") or (name == "decision" and "." in old[name])
                same(*(float(r[name]) if numbers else r[name] for r in (row, old)), tolerance + PRINTED, name)


@pytest.fixture
def studied(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Study]:
    return lambda name: Study(tmp_path, name, invoke, monkeypatch)


@pytest.mark.parametrize("name", KINDS)
def test_a_study_is_still_the_one_that_was_signed(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)

    told = study.at("server", "study", "show", "sepsis.toml")

    assert study.expected["hash"] in told
    listed = [line.split() for line in told.splitlines()]
    for number, site, key in study.expected["sites"]:
        assert [site, str(number), f"{key[8:20]}…", "signed"] in listed
    files = {path.suffix[1:]: path.relative_to(study.root) for path in sorted(study.root.rglob("*.*"))}
    assert files.keys() == {"csv", "toml", "key", "json", "join", *KINDS[name]}
    for kind in KINDS[name]:  # one of each; the other tests use the rest
        shown = study.at(".", "site", "show", str(files[kind]))
        assert "its signature fits the key it names" in shown, files[kind]
        assert f"a {kind} of '" in shown and "in the study 'sepsis'" in shown
        assert kind == "sums" or f"Study {study.expected['hash'][:12]}" in shown  # sums are made before it is known


def test_a_signature_is_for_one_agreement(studied: Callable[[str], Study]) -> None:
    study = studied("default")
    path = study.root / "server" / "sepsis.toml"
    assert path.read_text(encoding="utf-8").count("smallest = 10") == 1
    path.write_text(path.read_text(encoding="utf-8").replace("smallest = 10", "smallest = 11"), encoding="utf-8")

    study.monkeypatch.chdir(study.root / "server")
    code, _, err = study.invoke("study", "show", "sepsis.toml")

    assert code == 2 and "The signature of 'north' is not for this agreement" in " ".join(err.split())


@pytest.mark.parametrize("name", KINDS)
def test_the_models_of_a_study_predict(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    assert study.expected["predictions"]
    for model in study.expected["predictions"]:
        study.predicts(model, model, LOADED)


def without_comments(text: str) -> dict[str, Any]:
    """What a study's file says; comments may be worded differently."""
    return tomllib.loads(text)


@pytest.mark.parametrize("name", ["default", "numbers"])
def test_sites_sign_the_same_agreement_again(name: str, studied: Callable[[str], Study]) -> None:
    """With the same key the same words give the same signature, and who signed before is taken in again."""
    study = studied(name)
    path = study.root / "server" / "sepsis.toml"
    signed = path.read_text(encoding="utf-8")
    path.write_text(signed.split("# Sites, written")[0], encoding="utf-8")
    for site in NAMES:
        study.carry("sepsis.toml", site)
        study.at(site, "site", "join", "sepsis.toml", site)
        made = json.loads((study.root / site / f"{site}.join").read_text())
        assert made == json.loads((study.before / "server" / f"{site}.join").read_text())

    study.at("server", "study", "add", "sepsis.toml", *(f"{site}.join" for site in NAMES))

    assert without_comments(path.read_text(encoding="utf-8")) == without_comments(signed.split("[[models]]")[0])


@pytest.mark.parametrize("name", ["default", "beta", "numbers"])
def test_replies_are_pooled_and_made_again(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    before = study.before / "server"

    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "again.model")
    study.predicts("server/again.model", "server/sepsis.model", LOADED)
    same_file(study.root / "server" / "again.model", before / "sepsis.model", LOADED)

    study.fitted()
    for reply in REPLIES:
        same_file(study.root / "server" / reply, before / reply, TRAINED)
    for site in NAMES:
        same_file(study.root / site / f"{site}.memory", study.before / site / f"{site}.memory", TRAINED)
    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "new.model")
    study.predicts("server/new.model", "server/sepsis.model", TRAINED)


@pytest.mark.parametrize("name", ["default", "beta"])
def test_statistics_choose_the_same(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    files = [f"{site}.statistics" for site in NAMES]

    told = study.at("server", "study", "choose", "sepsis.toml", "sepsis.model", *files, "-o", "again.model")

    assert "Chosen by statistics of north, south, west" in told
    same_file(study.root / "server" / "again.model", study.before / "server" / "sepsis-chosen.model", LOADED)
    study.predicts("server/again.model", "server/sepsis-chosen.model", LOADED)
    for site, file in zip(NAMES, files, strict=True):  # what 'site fit' kept then says that the rows are the same
        study.carry("sepsis.model", site)
        told = study.at(site, "site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")
        assert "nobody can tell" not in told
        same_file(study.root / site / file, study.before / "server" / file, LOADED)


@pytest.mark.parametrize("name", ["pvi", "scaffold"])
def test_a_study_stopped_after_its_first_round_goes_on(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    for site in NAMES:
        study.carry("one.message", site)

    study.fitted("--message", "one.message")
    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "two.model", "--after", "one.state")

    for file in (*REPLIES, "two.model"):
        same_file(study.root / "server" / file, study.before / "second" / file, TRAINED)
    study.predicts("server/two.model", "second/two.model", TRAINED)


@pytest.mark.parametrize("name", ["pvi", "scaffold"])
def test_the_first_round_of_a_study_is_pooled_again(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)

    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "again.model")

    for kind in ("model", "message", "state"):
        same_file(study.root / "server" / f"again.{kind}", study.before / "server" / f"one.{kind}", LOADED)


def test_scales_are_found_again_from_sums(studied: Callable[[str], Study]) -> None:
    study = studied("numbers")
    path = study.root / "server" / "sepsis.toml"
    agreed = path.read_text(encoding="utf-8").split("# Sites, written")[0]
    path.write_text(agreed, encoding="utf-8")
    for site in NAMES:
        study.at(site, "site", "sums", "sepsis.toml", "data.csv", "--site", site)
        same_file(study.root / site / f"{site}.sums", study.before / "server" / f"{site}.sums", LOADED)

    study.at("server", "study", "scale", "sepsis.toml", *(f"{site}.sums" for site in NAMES))

    assert without_comments(path.read_text(encoding="utf-8")) == without_comments(agreed)


# --- comparisons and searches ----------------------------------------------------------------------------------------


def check_only(folder: Path, missing: str, go_on: Callable[[], object]) -> None:
    """Go on; what was there is left as it is, and one file comes."""
    files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*.json")}
    assert folder / missing not in files and len(files) > 1
    go_on()
    assert (folder / missing).exists()
    for path, was in files.items():
        assert (path.stat().st_mtime_ns, path.read_bytes()) == was, path
    parts = {path.relative_to(folder).parts[0] for path in files} & {"cells", "trials"}
    made = {path for part in parts for path in (folder / part).rglob("*.json")} - {*files}
    assert made == {folder / missing}


def test_a_comparison_goes_on_with_the_cell_it_lacks(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    folder, expected = copied("comparison", tmp_path / "comparison"), kept("comparison", "expected.json")

    check_only(folder, expected["missing"], lambda: ran(invoke, *expected["words"]))

    found = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    assert found.pop("rows") == found["splits"][0]["rows"]
    before = expected["compare"]
    assert found.pop("leaves_out") != before.pop("leaves_out")
    widen_errors(before)
    drop_additions(found, before)
    for part in (*found["splits"], *before["splits"]):
        for row in part["rows"]:
            del row["tempered"]  # few events: temperatures are fitted with more caution since
    for part in (*found["splits"], *before["splits"], found, before):
        part["sentence"] = re.sub(r"± [\d.]+", "±", part["sentence"])
    same(found, before, TRAINED)


def drop_additions(found: Any, before: Any) -> None:
    """Forget what comparisons have learned to say since: lines to beat, own rows."""
    if isinstance(before, dict):
        for name in found.keys() - before.keys():
            del found[name]
        for name, value in before.items():
            drop_additions(found.get(name), value)
    elif isinstance(before, list):
        for one, other in zip(found, before, strict=True):
            drop_additions(one, other)


def widen_errors(compare: dict[str, Any]) -> None:
    """Standard errors now allow for the rows that both seeds share: s²(1/2 + test/train) where it was s²/2."""
    rows = compare["rows_of_data"]
    factor = (1 + 2 * rows["test"] / rows["train"]) ** 0.5
    for part in compare["splits"]:
        for row in part["rows"]:
            for scores in (row, row["tempered"] or {}):
                for name in scores.get("errors", {}):
                    scores["errors"][name] *= factor


def test_a_search_goes_on_with_the_trial_it_lacks(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    folder, expected = copied("tuning", tmp_path / "tuning"), kept("tuning", "expected.json")

    check_only(folder, expected["missing"], lambda: ran(invoke, *expected["words"]))

    assert (folder / "settings.json").read_text() == expected["settings.json"]
    found, before = (
        list(csv.DictReader(io.StringIO(text))) for text in ((folder / "tune.csv").read_text(), expected["tune.csv"])
    )
    assert len(before) == 3
    for row, old in zip(found, before, strict=True):
        same({**row, "value": float(row["value"])}, {**old, "value": float(old["value"])}, TRAINED)
