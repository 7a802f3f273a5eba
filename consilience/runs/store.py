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
from consilience.engines.soundness import holds_finite
from consilience.errors import InputError
from consilience.formats.codec import decode, encode, kept_types_of
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
    """A run's folder.

    Args:
        folder: Where it is; it need not exist.
        keep_replies: Of which rounds replies are kept: `last`, `all` or `none`.

    Raises:
        InputError: `keep_replies` is none of these.
    """

    def __init__(self, folder: str | Path, keep_replies: str = "last") -> None:
        if keep_replies not in ("last", "all", "none"):
            raise InputError(f"keep_replies='{keep_replies}': it can be last, all or none.")
        self.folder = Path(folder)
        self.keep_replies = keep_replies

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / "run.json").exists() or (self.folder / "state.safetensors").exists()

    def save(self, checkpoint: Checkpoint, replies: list[Received]) -> None:
        """Finish a round: replies first, then the state that refers to them, then what people read.

        Args:
            checkpoint: Where the run stands.
            replies: The round's replies.

        Raises:
            InputError: A file cannot be written.
        """
        self.save_replies(checkpoint.rounds, replies)
        extra: dict[str, Any] = {
            "rounds": checkpoint.rounds,
            "history": checkpoint.history,
            "ledger": checkpoint.ledger.entries,
            "fingerprint": checkpoint.fingerprint,
        }
        if checkpoint.failures:
            extra["failures"] = checkpoint.failures
        if checkpoint.warnings:
            extra["warnings"] = checkpoint.warnings
        memories = tuple(sorted(checkpoint.memories.items()))
        self.write("state.safetensors", pack({"state": checkpoint.state, "memories": memories}, extra))
        self.write("history.csv", _csv(checkpoint.history))

    def load(self, method: Method) -> Checkpoint | None:
        """Read the last whole round.

        Args:
            method: The run's method, which says what types its state may hold.

        Returns:
            Where the run stands, or None before the first round.

        Raises:
            InputError: The file is damaged, or holds numbers that are not finite.
        """
        path = self.folder / "state.safetensors"
        if not path.exists():
            return None
        tree, extra = unpack(path, method)
        if not holds_finite(tree["state"]):
            raise InputError(f"The state in {path} is not finite and cannot be used: start the run in a new folder.")
        return Checkpoint(
            rounds=extra["rounds"],
            state=tree["state"],
            memories=dict(tree["memories"]),
            history=extra["history"],
            ledger=Ledger(extra["ledger"]),
            fingerprint=extra["fingerprint"],
            failures=tuple(extra.get("failures", ())),
            warnings=tuple(extra.get("warnings", ())),
        )

    def save_replies(self, rounds: int, replies: list[Received]) -> None:
        """Keep a round's replies, and forget older ones where only the last are kept.

        Args:
            rounds: The number of the round, from 1.
            replies: Its replies.

        Raises:
            InputError: A file cannot be written.
        """
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
        """Read the replies of one round.

        Args:
            rounds: The number of the round, from 1.
            method: The run's method, which says what types a reply may hold.

        Returns:
            The replies, sorted by client.

        Raises:
            InputError: None were kept, or a file is damaged.
        """
        files = sorted((self.folder / "replies" / f"round-{rounds:04d}").glob("site-*.safetensors"))
        if not files:
            raise InputError(f"{self.folder} holds no replies of round {rounds}; run again with keep_replies='last'.")
        replies = []
        for file in files:
            tree, extra = unpack(file, method)
            replies.append(Received(extra["site"], tree["size"], tree["payload"]))
        return replies

    def write(self, name: str | Path, content: bytes) -> None:
        """Write a file wholly or not at all: a temporary file beside the target, then a rename.

        Args:
            name: The file's name in the folder.
            content: Its bytes.

        Raises:
            InputError: The file cannot be written.
        """
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
                f"Cannot write {path}: {error.strerror}. What was saved before is complete: make room or choose "
                "another folder, then resume the run."
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file.

        Args:
            name: The file's name in the folder.
            value: What to write; numbers that are not finite become null.

        Raises:
            InputError: The file cannot be written.
        """
        self.write(name, (as_json(value) + "\n").encode())

    def read_json(self, name: str = "run.json") -> dict[str, Any]:
        """Read a JSON file.

        Args:
            name: The file's name in the folder.

        Returns:
            Its content.

        Raises:
            InputError: There is no such file, or it is damaged, or another version wrote it.
        """
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
        """Read what a finished run says about itself.

        Returns:
            The content of `run.json`.

        Raises:
            InputError: The folder holds no run, or one that has not finished.
        """
        report = self.read_json()
        if not report.get("finished"):
            how = "`co.run(…, resume=True)`, as it was started from Python"
            if "recipe" in report:
                how = f"`consilience run --resume {self.folder}`"
            raise InputError(f"The run in {self.folder} has not finished: continue it with {how}.")
        return report


def as_json(value: Any) -> str:
    """Write JSON that any program can read.

    Args:
        value: Dicts, lists, tuples, texts and numbers.

    Returns:
        The text, indented; what is not finite is null.
    """
    return json.dumps(_replace_not_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def _replace_not_finite(node: Any) -> Any:
    """The same with None in place of numbers that are not finite."""
    if isinstance(node, dict):
        return {key: _replace_not_finite(child) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return [_replace_not_finite(child) for child in node]
    if isinstance(node, float) and not math.isfinite(node):
        return None
    return node


def pack(value: Tree, extra: dict[str, Any]) -> bytes:
    """Write a tree as one safetensors file. Several metadata keys would come in random order: one key, equal bytes.

    Args:
        value: The tree.
        extra: JSON values to write beside it.

    Returns:
        The file's bytes.
    """
    tensors, outline = encode(value)
    header = json.dumps({"format": FORMAT, "outline": outline, **extra})
    return save(tensors, metadata={"consilience": header})


def unpack(path: Path, method: Method) -> tuple[Tree, dict[str, Any]]:
    """Read a tree from a safetensors file that `pack` wrote.

    Args:
        path: The file.
        method: The run's method, which says what types the tree may hold.

    Returns:
        The tree, and the JSON values beside it.

    Raises:
        InputError: The file is damaged, or another version wrote it.
    """
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
