"""The files of before are as they were, and so are keys and splits; see helpers/before.py."""

from __future__ import annotations

import hashlib

from before import BEFORE, LOADED, kept, same

import consilience as co
from consilience.key import Key


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
