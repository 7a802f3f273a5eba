"""Damaged folders of runs: every one is refused in one sentence or predicts as before, and no code in one is run."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from damage import Outcomes, damaged, mutated, mutated_tensors
from safetensors import safe_open
from safetensors.torch import save
from tiny import Invoke

import consilience as co
from consilience.errors import InputError

METHODS = ("fedavg", "beta", "gaussian_product", "scaffold", "fedbe")
FILES = ("state.safetensors", "state.safetensors", "run.json", "task.json")
FEW_AND_MANY = [25, pytest.param(3000, marks=pytest.mark.slow)]
Values = list[torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Finished runs of several methods."""
    made = []
    for name in METHODS:
        task, sites = tiny.classification()
        made.append(tmp_path_factory.mktemp("runs") / name)
        co.run(tiny.method(name), task, sites, rounds=1, out=made[-1])
    return made


def predicted(folder: Path) -> Values:
    """What a folder predicts for three rows, before and after tempering."""
    loaded = co.load(folder)
    x = torch.tensor([[0.1, 0.2], [1.0, -0.5], [-1.0, 2.0]])
    values = [*loaded.predict(x), *loaded.predict(x, temper=True)]
    return [value for value in values if value is not None]


def same(before: Values) -> Callable[[Values], bool]:
    def compare(values: Values) -> bool:
        return len(values) == len(before) and all(map(torch.equal, values, before))

    return compare


def change_json(path: Path, draw: random.Random, sealed: bool) -> None:
    """One value changed; without the checksum, as an older version or a stranger could have written it."""
    value = json.loads(path.read_text())
    if not sealed:
        value = {name: item for name, item in value.items() if name not in ("checksum", "files")}
    path.write_text(json.dumps(mutated(value, draw)))


def without_checksums(folder: Path) -> None:
    """As versions without checksums would have written it."""
    report = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({k: v for k, v in report.items() if k not in ("checksum", "files")}))
    rewrite(folder / "state.safetensors")


def rewrite(path: Path, draw: random.Random | None = None) -> None:
    """A file of tensors without its checksum, and with something in it changed if there is something to draw from."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["consilience"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a dict
    header.pop("checksum", None)
    if draw is not None:
        match draw.choice(("outline", "header", "tensors")):
            case "outline":
                header["outline"] = json.dumps(mutated(json.loads(header["outline"]), draw))
            case "header":
                header = mutated(header, draw)
            case _:
                tensors = mutated_tensors(tensors, draw)
    path.write_bytes(save(tensors, metadata={"consilience": json.dumps(header)}))


@pytest.mark.parametrize("trials", FEW_AND_MANY)
def test_a_damaged_folder_is_refused_or_predicts_the_same(folders: list[Path], trials: int) -> None:
    draw = random.Random(1)
    outcomes = Outcomes()
    expected = {folder: predicted(folder) for folder in folders}
    for _ in range(trials):
        folder, other = draw.sample(folders, 2)
        path = folder / draw.choice(FILES)
        raw = path.read_bytes()
        if path.suffix == ".json" and draw.random() < 0.6:
            change_json(path, draw, sealed=True)
        else:
            path.write_bytes(damaged(raw, (other / path.name).read_bytes(), draw))
        outcomes.note(lambda folder=folder: predicted(folder), same(expected[folder]))
        path.write_bytes(raw)

    assert not outcomes.bad and not outcomes["other"], outcomes
    assert outcomes["refused"] > 0.8 * trials


@pytest.mark.parametrize("trials", FEW_AND_MANY)
def test_a_folder_without_checksums_is_refused_or_predicts(folders: list[Path], trials: int, tmp_path: Path) -> None:
    """Of old folders, and of those that somebody made on purpose, nobody can tell whether they predict as before."""
    draw = random.Random(2)
    outcomes = Outcomes()
    for folder in folders:
        without_checksums(Path(shutil.copytree(folder, tmp_path / folder.name)))
        assert same(predicted(folder))(predicted(tmp_path / folder.name))
    for _ in range(trials):
        folder = tmp_path / draw.choice(folders).name
        path = folder / draw.choice(FILES)
        raw = path.read_bytes()
        if path.suffix == ".json":
            change_json(path, draw, sealed=False)
        else:
            rewrite(path, draw)
        outcomes.note(lambda folder=folder: predicted(folder))
        path.write_bytes(raw)

    assert not outcomes.bad, outcomes
    assert outcomes["refused"] > 0.2 * trials


def test_no_flipped_bit_of_a_state_is_accepted(folders: list[Path]) -> None:
    draw = random.Random(3)
    path = folders[0] / "state.safetensors"
    raw = path.read_bytes()
    for _ in range(30):
        at = draw.randrange(len(raw))
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :])
        with pytest.raises(InputError, match="is damaged"):
            co.load(folders[0])
    path.write_bytes(raw)


def test_the_state_of_another_run_is_refused(folders: list[Path], tmp_path: Path) -> None:
    """Each file is whole: only together are they wrong."""
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, seed=9, out=tmp_path / "other")
    folder = shutil.copytree(folders[0], tmp_path / "run")

    shutil.copy(tmp_path / "other" / "state.safetensors", folder)

    with pytest.raises(InputError, match=r"state\.safetensors is damaged or of another run"):
        co.load(folder)


@pytest.mark.parametrize("trials", [8, pytest.param(800, marks=pytest.mark.slow)])
def test_a_damaged_run_is_not_resumed(trials: int, tmp_path: Path) -> None:
    task, sites = tiny.classification()
    method = tiny.method("scaffold")  # its sites remember something
    whole = co.run(method, task, sites, rounds=2, out=tmp_path / "whole").metrics
    co.run(method, task, sites, rounds=1, out=tmp_path / "run")
    draw = random.Random(4)
    outcomes = {"state.safetensors": Outcomes(), "run.json": Outcomes()}
    for i in range(trials):
        folder = shutil.copytree(tmp_path / "run", tmp_path / f"run-{i}")
        path = folder / list(outcomes)[i % 2]
        if path.suffix == ".json":
            change_json(path, draw, sealed=True)
        else:
            path.write_bytes(damaged(path.read_bytes(), (tmp_path / "whole" / path.name).read_bytes(), draw))

        def resume(folder: Path = folder) -> Any:
            return co.run(method, task, sites, rounds=2, out=folder, resume=True).metrics

        outcomes[path.name].note(resume, lambda metrics: metrics == whole)
        shutil.rmtree(folder)

    for noted in outcomes.values():
        assert not noted.bad and not noted["other"], outcomes
    assert outcomes["state.safetensors"]["refused"] > 0.9 * trials / 2  # a lost run.json is made again


def test_a_damaged_reply_is_not_pooled(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("mixture"), task, sites, out=tmp_path)
    replies = sorted((tmp_path / "replies" / "round-0001").iterdir())
    raw = replies[0].read_bytes()
    for content in (raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:], replies[1].read_bytes(), raw[:50]):
        replies[0].write_bytes(content)
        with pytest.raises(InputError, match=r"site-0000\.safetensors is damaged"):
            co.load(tmp_path, sites=sites)


def test_a_network_of_a_file_is_not_built_if_it_is_too_large(folders: list[Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders[0], tmp_path / "run"))
    without_checksums(folder)
    plan = json.loads((folder / "task.json").read_text())
    plan["network"]["Sequential"]["0"]["Linear"]["in_features"] = 10**9
    (folder / "task.json").write_text(json.dumps(plan))

    with pytest.raises(InputError, match=r"5,000,000,\d+ weights"):
        co.load(folder)


# --- from the command line -------------------------------------------------------------------------------------------

RUN = ("run", "mixture", "--data", "moons", "--sites", "3", "--model", "linear", "--no-bounds", "--out", "run")
SHORT = ("--set", "inference.epochs=2", "--set", "inference.cycles=1", "--set", "inference.keep=2")


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("trials", [4, pytest.param(400, marks=pytest.mark.slow)])
def test_commands_refuse_a_damaged_folder(trials: int, tmp_path: Path, invoke: Invoke) -> None:
    assert invoke(*RUN, *SHORT)[0] == 0
    draw = random.Random(5)
    good = {name: (tmp_path / "run" / name).read_bytes() for name in set(FILES)}
    for _ in range(trials):
        name = draw.choice(FILES)
        path = tmp_path / "run" / name
        sealed = draw.random() < 0.5
        if path.suffix == ".json":
            change_json(path, draw, sealed)
        else:
            path.write_bytes(damaged(good[name], good[name][::-1], draw))
        changed = path.read_bytes()
        words = draw.choice((("report", "run"), ("pool", "run", "--method", "bcm"), ("run", "--resume", "run")))
        code, _, err = invoke(*words)
        assert code in (0, 2), (words, changed, err)
        assert code == 0 or (err.strip() and "Traceback" not in err), (words, changed, err)
        for other, raw in good.items():
            (tmp_path / "run" / other).write_bytes(raw)


@pytest.mark.usefixtures("hurried")
def test_no_module_is_imported_because_a_folder_names_it(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text(
        "from pathlib import Path\nfrom consilience.models import linear\nPath('imported').touch()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = [*RUN, *SHORT]
    own[own.index("linear")] = "planted:linear"
    assert invoke(*own)[0] == 0
    (tmp_path / "imported").unlink()
    del sys.modules["planted"]

    for words in (("run", "--resume", "run"), ("pool", "run", "--method", "bcm")):
        code, _, err = invoke(*words)
        assert code == 2 and "repeat the command with `--model planted:linear`" in " ".join(err.split())
        assert "planted" not in sys.modules and not (tmp_path / "imported").exists()

        code, _, err = invoke(*words, "--model", "planted:linear")
        assert code == 0, err
        (tmp_path / "imported").unlink()
        del sys.modules["planted"]
