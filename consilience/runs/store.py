"""A run's folder. Everything a run knows is in it, written atomically, so that any kill leaves the last whole round.

`state.safetensors` alone decides where a run stands: state, client memories, history and ledger in one file. The other
files are made from it or before it, and can be made again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from consilience.engines.ledger import Ledger
from consilience.errors import InputError
from consilience.formats.settings import decode, encode, kept_types_of
from consilience.method import Method
from consilience.parties import Received
from consilience.tree import Tree

FORMAT = 1


class Checkpoint(NamedTuple):
    """Where a run stands after a whole round.

    Attributes:
        rounds: How many are finished.
        state: The server's state.
        memories: What each client remembers.
        history: The scores of each round.
        ledger: What crossed the line.
        fingerprint: Hash of method, task, data and seed.
        failures: Who was lost, when and why.
        warnings: Warnings given while training.
    """

    rounds: int
    state: Tree
    memories: dict[int, Tree]
    history: list[dict[str, Any]]
    ledger: Ledger
    fingerprint: str
    failures: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


class Store:
    def __init__(self, folder: str | Path, keep_replies: str = "last") -> None:
        if keep_replies not in ("last", "all", "none"):
            raise InputError(f"keep_replies is '{keep_replies}'; it can be last, all or none.")
        self.folder = Path(folder)
        self.keep_replies = keep_replies

    @property
    def exists(self) -> bool:
        return (self.folder / "run.json").exists() or (self.folder / "state.safetensors").exists()

    def save(self, c: Checkpoint, replies: list[Received]) -> None:
        """Finish a round: replies first, then the state that refers to them, then what people read."""
        self.save_replies(c.rounds, replies)
        extra = {"rounds": c.rounds, "history": c.history, "ledger": c.ledger.entries, "fingerprint": c.fingerprint}
        extra |= {"failures": c.failures} if c.failures else {}
        extra |= {"warnings": c.warnings} if c.warnings else {}
        memories = tuple(sorted(c.memories.items()))
        self.write("state.safetensors", pack({"state": c.state, "memories": memories}, extra))
        self.write("history.csv", _csv(c.history))

    def load(self, method: Method) -> Checkpoint | None:
        """The last whole round, or None before the first."""
        path = self.folder / "state.safetensors"
        if not path.exists():
            return None
        tree, extra = unpack(path, method)
        memories = dict(tree["memories"])
        ledger = Ledger(extra["ledger"])
        found = (extra["rounds"], tree["state"], memories, extra["history"], ledger, extra["fingerprint"])
        return Checkpoint(*found, tuple(extra.get("failures", ())), tuple(extra.get("warnings", ())))

    def save_replies(self, rounds: int, replies: list[Received]) -> None:
        if self.keep_replies == "none":
            return
        folder = Path("replies") / f"round-{rounds:04d}"
        for r in replies:
            value = {"payload": r.payload, "size": torch.as_tensor(r.size)}
            self.write(folder / f"site-{r.client:04d}.safetensors", pack(value, {"site": r.client, "round": rounds}))
        if self.keep_replies == "last":
            for old in (self.folder / "replies").glob("round-*"):
                if old.name != folder.name:
                    shutil.rmtree(old)

    def replies(self, rounds: int, method: Method) -> list[Received]:
        """The saved replies of one round."""
        files = sorted((self.folder / "replies" / f"round-{rounds:04d}").glob("site-*.safetensors"))
        if not files:
            raise InputError(f"{self.folder} holds no replies of round {rounds}; run again with --keep-replies last.")
        read = [unpack(file, method) for file in files]
        return [Received(extra["site"], tree["size"], tree["payload"]) for tree, extra in read]

    def write(self, name: str | Path, content: bytes) -> None:
        """All or nothing: a temporary file beside the target, then a rename."""
        path = self.folder / name
        temporary = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise InputError(
                f"Cannot write {path}: {error.strerror}. What was saved before is whole; make room or choose another "
                "folder, then go on with --resume."
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, (as_json(value) + "\n").encode())

    def read_json(self, name: str = "run.json") -> dict[str, Any]:
        path = self.folder / name
        try:
            value = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise InputError(f"{self.folder} is not a run's folder: it holds no {name}.") from error
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is damaged or not ours; restore it or start the run again.") from error
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise InputError(f"{path} was not written by this version of consilience.")
        return value

    def read_report(self) -> dict[str, Any]:
        """What a finished run says about itself."""
        report = self.read_json()
        if not report.get("finished"):
            typed = f"`consilience run --resume {self.folder}`"
            how = typed if "recipe" in report else "co.run(…, resume=True), as it was started from Python"
            raise InputError(f"The run in {self.folder} has not finished; go on with {how}.")
        return report


def as_json(value: Any) -> str:
    """JSON that any program can read: what is not finite becomes null."""

    def plain(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: plain(child) for key, child in node.items()}
        if isinstance(node, (list, tuple)):
            return [plain(child) for child in node]
        return None if isinstance(node, float) and not math.isfinite(node) else node

    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def pack(value: Tree, extra: dict[str, Any]) -> bytes:
    """A tree as one safetensors file. Several metadata keys would come in random order: one key, equal bytes."""
    tensors, outline = encode(value)
    header = json.dumps({"format": FORMAT, "outline": outline, **extra})
    return save(tensors, metadata={"consilience": header})


def unpack(path: Path, method: Method) -> tuple[Tree, dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["consilience"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a dict
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise InputError(f"{path} is damaged or not ours; delete the folder and start the run again.") from error
    if header.get("format") != FORMAT:
        raise InputError(f"{path} was not written by this version of consilience.")
    return decode(tensors, header["outline"], kept_types_of(method)), header


def _csv(history: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in history for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue().encode()
