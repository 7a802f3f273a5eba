"""Studies of every kind, messages and commands do what they did before the rooms moved; see helpers/before.py."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from before import BEFORE, LOADED, TRAINED, kept, same, same_file
from tiny import Invoke
from transcripts import masked, same_text

from consilience.study.protocol.members import read

pytestmark = pytest.mark.usefixtures("unhurried")
HOUSE = BEFORE / "house"
STUDIES = sorted(path.name for path in (HOUSE / "studies").iterdir())
SCENES: list[dict[str, Any]] = kept("house", "transcripts.json")
LONG = {
    "run",
    "compare",
    "tune",
    "recommend",
    "pool",
    "report",
    "predict",
    "effects",
    "models",
    "features",
}  # over 0.5 s
ALIKE = [["show"], ["check"], ["ledger"], ["join"], ["fit"]]  # which studies differ little in


def scenes() -> list[Any]:
    marked = []
    for k, scene in enumerate(SCENES):
        long = scene["words"][0] in LONG and scene["code"] == 0
        long |= scene["words"][1:2] in ALIKE and scene["folder"] not in ("studies/secure", "studies/private")
        name = f"{k} {scene['folder'].removeprefix('studies/')} {' '.join(scene['words'][:3])}"
        marked.append(pytest.param(scene, id=name, marks=[pytest.mark.slow] * long))
    return marked


@pytest.mark.parametrize("scene", scenes())
def test_a_command_says_and_writes_what_it_did(
    scene: dict[str, Any], tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "copy"
    if scene["folder"] == ".":
        root.mkdir()
        for place in (BEFORE / "hospitals", HOUSE / "clinics", HOUSE / "typed"):
            if any(place.name in word or "typed/" in word for word in scene["words"]):  # whose runs read hospitals
                shutil.copytree(place, root / place.name)
    else:
        shutil.copytree(HOUSE / scene["folder"], root)
    for file in scene["without"]:
        (root / file).unlink()
    for key in root.rglob("*.key"):
        key.chmod(0o600)  # which git does not keep

    monkeypatch.chdir(root / scene["at"])
    code, out, err = invoke(*scene["words"])

    assert code == scene["code"], err
    before = re.sub(r"(?m)^(ECE [\d. %]*%)[\n ]+[\d.– ]+$", r"\1", masked("\n".join(scene["out"])))  # no interval since
    out = re.sub(r"(?m)^The sites .* in what the columns say of it: .*\n", "", out)  # not tested then
    out = out.replace("Effects on the hazard of the event, time '", "Effects on '")  # named so since
    out = re.sub(r"(?m)^hats +[\d ]+The row beside broken lines .*\n", "", out)  # no map then
    out = out.replace("--features hats:320", "--features fourier:302")  # usual since
    same_text(masked(out), before, TRAINED, "what it printed")
    same_text(masked(err), "\n".join(scene["err"]), TRAINED, "what it said of errors")
    for file, old in scene["files"].items():
        same_content(root / file, HOUSE / scene["folder"] / old)


def same_content(found: Path, before: Path) -> None:
    """Two files, by their kind."""
    if before.suffix in (".json", ".join"):
        content, old = (json.loads(path.read_text(encoding="utf-8")) for path in (found, before))
        if ((content.get("effects") or {}).get("fitted") or {}).get("predicting"):  # of all rows, which they were not
            del content["effects"], old["effects"]
        for about in (content, old):
            about["files"] = [*about.get("files", [])]  # their hashes turn on the last digit of a number
        same(content, old, TRAINED)
    elif before.suffix in (".csv", ".toml"):
        same_text(*(path.read_text(encoding="utf-8") for path in (found, before)), TRAINED, before.name)
    else:
        same_file(found, before, TRAINED)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_the_one_that_was_signed_and_its_models_predict(
    name: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = kept("house", "studies", name, "expected.json")
    study = read(HOUSE / "studies" / name / "server" / "sepsis.toml")  # which checks every signature
    assert study.agreement.hash == expected["hash"]
    assert [[s.number, s.name, s.key] for s in study.sites] == expected["sites"]

    monkeypatch.chdir(HOUSE / "studies" / name)
    for model, before in expected["predictions"].items():
        table = tmp_path / "p.csv"
        code, _, err = invoke("predict", model, "new.csv", "--study", "server/sepsis.toml", "-o", str(table))
        assert code == 0, err
        same_text(table.read_text(), before, LOADED, model)
