"""What crossed a network before the rooms moved is read and sent again; see helpers/before.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
from before import BEFORE, EXACT, TRAINED, same
from flwr.app import Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto

from consilience.serialisation.codec import types_of
from consilience.study.flower.server import rounds
from consilience.study.flower.site import site_of
from consilience.study.flower.wire import open_record, pack, record, unpack
from consilience.study.protocol.members import read
from consilience.study.protocol.signature import read_key

HOUSE = BEFORE / "house"
STUDIES = sorted(path.name for path in (HOUSE / "flower").iterdir())
NUMBERED = {"signature", "message"}  # parts of a message that follow from every bit of its numbers


def packed(content: RecordDict) -> bytes:
    """A message as Flower writes it."""
    return bytes(recorddict_to_proto(content).SerializeToString(deterministic=True))


def opened(file: bytes) -> RecordDict:
    proto = Proto()
    proto.ParseFromString(file)
    return recorddict_from_proto(proto)


def crossed(name: str) -> list[Path]:
    return sorted((HOUSE / "flower" / name).iterdir())


class Listening(loopback.Loopback):
    """What crosses, in both directions."""

    heard: list[tuple[str, RecordDict]]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            before = len(self.waiting)
            numbers += super().push_messages([message])
            for way, one in (("down", message), *(("up", reply) for reply in self.waiting[before:])):
                about = f"{len(self.heard):02d}-{way}-{message.metadata.message_type}"
                self.heard.append((f"{about}-{message.metadata.dst_node_id - 100}.bin", one.content))
        return numbers


@pytest.mark.parametrize("name", STUDIES)
def test_messages_are_read_and_packed_to_the_same_bytes(name: str) -> None:
    types = types_of(read(HOUSE / "studies" / name / "server" / "sepsis.toml").agreement.build_method())
    files = [path for path in crossed(name) if "train" in path.name]
    assert files
    for path in files:
        content = opened(path.read_bytes())
        arrays, outline, about = open_record(content, 1_000_000)

        made = record(*pack(unpack(arrays, outline, types), types), about)
        made["header"]["signature"] = content["header"]["signature"]

        assert packed(made) == path.read_bytes(), path.name


@pytest.mark.parametrize("name", STUDIES)
def test_the_same_study_sends_the_same_messages(name: str, tmp_path: Path) -> None:
    at = Path(shutil.copytree(HOUSE / "studies" / name, tmp_path / name))
    study = read(at / "server" / "sepsis.toml")
    places = [(m, at / m.name) for m in study.active]
    sites = [site_of(study, m, read_key(p / f"{m.name}.key"), p / "data.csv", at / f"{m.name}.site") for m, p in places]
    grid = Listening(sites, None)
    grid.heard = []

    rounds(study, read_key(next((at / "server").glob("*.key"))), grid, at / "run", wait=0.2, deadline=5.0)

    files = crossed(name)
    assert [where for where, _ in grid.heard] == [path.name for path in files]
    for (where, content), path in zip(grid.heard, files, strict=True):
        if EXACT:
            assert packed(content) == path.read_bytes(), where
        else:
            same(spelled(content), spelled(opened(path.read_bytes())), TRAINED, where)


def spelled(content: RecordDict) -> dict[str, Any]:
    """A message's numbers and words, without those that follow from every bit."""
    header = dict(content.config_records["header"])
    if str(header["about"]).startswith("{"):
        about = json.loads(str(header["about"]))
        header["about"] = {name: value for name, value in about.items() if name not in NUMBERED}
    arrays = {
        name: [array.dtype, list(array.shape), array.numpy().tolist()]
        for held in content.array_records.values()
        for name, array in held.items()
    }
    return {"header": {k: v for k, v in header.items() if k not in NUMBERED}, "arrays": arrays}
