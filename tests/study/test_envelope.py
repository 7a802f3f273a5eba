"""Files that are handed over: the same bytes for the same content, and no damage unnoticed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch
from damage import damaged

from consilience.cli.handed import write_files as written_whole
from consilience.distributions.posterior import Samples
from consilience.errors import InputError
from consilience.serialisation.codec import TYPES
from consilience.study.protocol.envelope import FORMAT, Envelope, Header, open_envelope, seal
from consilience.study.protocol.signature import new_key, public, read_key

HEADER = Header("reply", "0" * 64, "sepsis", "north", 1, {"rows": 42})


def content() -> dict[str, object]:
    params = {"0.weight": torch.arange(12.0).reshape(2, 3, 2), "0.bias": torch.zeros(2, 0)}
    return {"send": Samples(params), "size": torch.tensor(42.0), "nothing": ()}


def written(folder: Path) -> tuple[Path, str]:
    key = new_key(folder / "north.key")
    path = folder / "north.reply"
    path.write_bytes(seal(content(), HEADER, key))
    return path, public(key)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    path, key = written(tmp_path)

    envelope = open_envelope(path, "reply")
    value = envelope.value(TYPES)

    assert envelope.header == HEADER and envelope.signed_by(key)
    assert isinstance(value["send"], Samples) and value["nothing"] == ()
    assert torch.equal(value["send"].params["0.weight"], torch.arange(12.0).reshape(2, 3, 2))
    assert path.read_bytes() == seal(content(), HEADER, read_key(tmp_path / "north.key"))


def test_what_is_inside_comes_in_the_order_of_its_names(tmp_path: Path) -> None:
    """safetensors gives it in another order every time, and `site show` printed it so."""
    path = tmp_path / "north.reply"
    path.write_bytes(seal({f"{i:02d}": torch.zeros(1) for i in range(20)}, HEADER, new_key(tmp_path / "north.key")))

    names = [*open_envelope(path).tensors]

    assert names == sorted(names) and len(names) == 20


def test_only_the_owner_of_the_key_can_sign(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    envelope = open_envelope(path, "reply")

    assert not envelope.signed_by(public(new_key(tmp_path / "other.key")))
    assert not envelope.signed_by("ed25519:nonsense")
    assert not envelope._replace(header=HEADER._replace(kind="message")).signed_by(envelope.key)
    assert (tmp_path / "north.key").stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="already exists"):
        new_key(tmp_path / "north.key")


def test_types_outside_the_allow_list_are_refused(tmp_path: Path) -> None:
    path, _ = written(tmp_path)

    with pytest.raises(InputError, match="holds a 'Samples'"):
        open_envelope(path, "reply").value({})


@pytest.mark.parametrize("content", [b"", b"\0", b"x" * 7, b"\xff" * 100, b"(2\x1e0", b'{"a": 1}'])
def test_what_is_no_envelope_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.reply"
    path.write_bytes(content)

    with pytest.raises(InputError, match="damaged or was not written"):
        open_envelope(path, "reply")


def test_other_kinds_formats_and_sizes_are_named(tmp_path: Path) -> None:
    path, _ = written(tmp_path)

    with pytest.raises(InputError, match="is a reply file and a model is needed"):
        open_envelope(path, "model")
    with pytest.raises(InputError, match=r"bytes, more than the 100 that are read"):
        open_envelope(path, "reply", most=100)
    with pytest.raises(InputError, match="There is no file"):
        open_envelope(tmp_path / "none", "reply")
    path.write_bytes(path.read_bytes().replace(b'\\"format\\":1', b'\\"format\\":9'))
    with pytest.raises(InputError, match=f"format 9 .* reads {FORMAT}"):
        open_envelope(path, "reply")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.reply")
    (tmp_path / "y.reply").symlink_to("/dev/zero")
    path, _ = written(tmp_path)
    (tmp_path / "z.reply").symlink_to(path)

    for name in ("x.reply", "y.reply"):
        with pytest.raises(InputError, match="not a plain file"):
            open_envelope(tmp_path / name, "reply")
    assert open_envelope(tmp_path / "z.reply", "reply").header == HEADER


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links need rights here")
def test_a_file_is_not_written_through_a_link_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "one.model.part").symlink_to(tmp_path / "precious")

    written_whole(tmp_path / "one.model", b"model", "")

    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "one.model").read_bytes() == b"model" and not (tmp_path / "one.model").is_symlink()


def deeply(nested: int) -> bytes:
    """A header whose JSON is nested so deeply that a careless parser overflows."""
    text = json.dumps({"__metadata__": {"consilience": "[" * nested}}).encode()
    return len(text).to_bytes(8, "little") + text


def test_a_header_that_is_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "x.reply"
    path.write_bytes(deeply(100_000))

    with pytest.raises(InputError, match="damaged"):
        open_envelope(path, "reply")


def outcome(path: Path, key: str) -> Envelope | None:
    """The file if it is let in."""
    try:
        envelope = open_envelope(path, "reply")
        return envelope if envelope.signed_by(key) else None
    except InputError:
        return None


def survives_damage(folder: Path, trials: int) -> int:
    """Refused, or harmless: what is let in is what was written. Returns how many were let in."""
    path, key = written(folder)
    raw, kept = path.read_bytes(), open_envelope(path, "reply")
    theirs = new_key(folder / "south.key")
    changed = {**content(), "size": torch.tensor(43.0)}
    other = seal(changed, HEADER._replace(sender="south"), theirs)
    draw, let_in = random.Random(0), 0
    for _ in range(trials):
        path.write_bytes(damaged(raw, other, draw))
        found = outcome(path, key)
        if found is not None:
            let_in += 1
            assert (found.header, found.outline, found.checksum) == (kept.header, kept.outline, kept.checksum)
            assert all(torch.equal(found.tensors[n], t) for n, t in kept.tensors.items())
    return let_in


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    assert survives_damage(tmp_path, 300) < 60


@pytest.mark.slow
def test_thousands_of_damages_are_refused_or_harmless(tmp_path: Path) -> None:
    assert survives_damage(tmp_path, 10_000) < 2000
