"""A run's folder. Everything a run knows is in it, written atomically, so that any kill leaves the last whole round.

`state.safetensors` alone decides where a run stands: state, client memories, history and ledger in one file. The other
files are made from it or before it, and can be made again.

What was damaged is not believed: a checksum in every file of tensors covers all of it, one in JSON covers the rest of
that file, and that of a finished run.json also the task and the state it belongs to. Folders of versions that wrote
none are read without.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from consilience.disk.typed import parse_json
from consilience.disk.writing import PRIVATE, SHARED, sync_folder, write_whole
from consilience.errors import InputError, refuse_damage
from consilience.messages import Received
from consilience.method import Method
from consilience.models import is_import_path
from consilience.runs.engines.ledger import COLUMNS, Ledger
from consilience.runs.engines.soundness import holds_finite
from consilience.serialisation.codec import decode, digest, encode, kept_types_of
from consilience.tree import Tree

FORMAT = 1
ALL_ROWS = "all-rows"  # the folder, in a run's own, of the same run on all rows: what its effects are of
BESIDE = ("task.json", "state.safetensors")  # what predicts, beside run.json
STATE_FIELDS = ("rounds", "history", "ledger", "fingerprint", "failures", "warnings")
REPLY_FIELDS = ("site", "round")


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
        private: Whether only its owner may read what is written, as a study's.

    Raises:
        InputError: `keep_replies` is none of these.
    """

    def __init__(self, folder: str | Path, keep_replies: str = "last", private: bool = False) -> None:
        if keep_replies not in ("last", "all", "none"):
            raise InputError(f"keep_replies='{keep_replies}': it can be last, all or none.")
        self.folder = Path(folder)
        self.keep_replies = keep_replies
        self.private = private

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / "run.json").exists() or (self.folder / "state.safetensors").exists()

    @property
    def has_rounds(self) -> bool:
        """Whether the folder holds a run with a round to keep, and not one that was refused before its first."""
        if not self.exists:
            return False
        if any((self.folder / name).exists() for name in ("state.safetensors", "replies")):
            return True
        try:
            return bool(self.read_json().get("finished", True))
        except InputError:  # damaged, or of another version
            return True

    def save(self, checkpoint: Checkpoint, replies: list[Received]) -> None:
        """Finish a round: replies first, then the state that refers to them, then what people read.

        Args:
            checkpoint: Where the run stands.

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
        self.write_history(checkpoint)

    def write_history(self, checkpoint: Checkpoint) -> None:
        """Write the scores of each round for people; again after a resume, as a kill may have come before it.

        Args:
            checkpoint: Where the run stands.

        Raises:
            InputError: The file cannot be written.
        """
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
        tree, extra = unpack(path, method, STATE_FIELDS)
        with refuse_damage(_damaged(path)):
            if not holds_finite(tree["state"]):
                raise InputError(
                    f"The state in {path} is not finite and cannot be used: start the run in a new folder."
                )
            checkpoint = Checkpoint(
                rounds=extra["rounds"],
                state=tree["state"],
                memories=dict(tree["memories"]),
                history=extra["history"],
                ledger=Ledger(extra["ledger"]),
                fingerprint=extra["fingerprint"],
                failures=tuple(extra.get("failures", ())),
                warnings=tuple(extra.get("warnings", ())),
            )
            _check_fields(checkpoint)
        return checkpoint

    def save_replies(self, rounds: int, replies: list[Received]) -> None:
        """Keep a round's replies, and forget older ones where only the last are kept.

        Args:
            rounds: The number of the round, from 1.

        Raises:
            InputError: A file cannot be written.
        """
        if self.keep_replies == "none":
            return
        folder = Path("replies") / f"round-{rounds:04d}"
        for r in replies:
            value = {"payload": r.payload, "size": torch.as_tensor(r.size)}
            content = pack(value, {"site": r.client, "round": rounds})
            self.write(folder / f"site-{r.client:04d}.safetensors", content, sync=False)
        if replies:
            sync_folder(self.folder / folder)  # once for all of them
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
            raise InputError(
                f"{self.folder} holds no replies of round {rounds}; run again with "
                "keep_replies='last' (--keep-replies last)."
            )
        replies = []
        for file in files:
            tree, extra = unpack(file, method, REPLY_FIELDS)
            with refuse_damage(_damaged(file)):
                reply = Received(extra["site"], tree["size"], tree["payload"])
                if file.name != f"site-{reply.client:04d}.safetensors" or extra["round"] != rounds:
                    raise ValueError("the reply of another site or round")
                replies.append(reply)
        return replies

    def write(self, name: str | Path, content: bytes, sync: bool = True) -> None:
        """Write a file whole or not at all.

        Args:
            name: The file's name in the folder.
            sync: Whether its name must survive a loss of power at once.

        Raises:
            InputError: The file cannot be written.
        """
        remedy = "What was saved before is complete: make room or choose another folder, then resume the run."
        mode = SHARED
        if self.private:
            mode = PRIVATE
        write_whole(self.folder / name, content, remedy, mode, sync)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file.

        Args:
            name: The file's name in the folder.
            value: What to write; numbers that are not finite become null.

        Raises:
            InputError: The file cannot be written.
        """
        self.write(name, (as_json(value) + "\n").encode())

    def write_checked(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file with a checksum of its content, which `read_json` compares.

        Args:
            name: The file's name in the folder.
            value: What to write, as in `write_json`.

        Raises:
            InputError: The file cannot be written.
        """
        content = json.loads(json.dumps(_replace_not_finite(value), allow_nan=False))  # as it will be read
        self.write_json(name, {**content, "checksum": _checksum(content)})

    def write_report(self, report: dict[str, Any]) -> None:
        """Write what a finished run says about itself, bound to the task and the state that it speaks of.

        Args:
            report: The content of `run.json`.

        Raises:
            InputError: The file cannot be written.
        """
        paths = [self.folder / name for name in BESIDE]
        files = {path.name: _checksum_of_file(path) for path in paths if path.exists()}
        self.write_checked("run.json", {**report, "files": files})

    def read_json(self, name: str = "run.json") -> dict[str, Any]:
        """Read a JSON file.

        Args:
            name: The file's name in the folder.

        Returns:
            Its content, without the checksum.

        Raises:
            InputError: There is no such file, or it is damaged, or another version wrote it.
        """
        path = self.folder / name
        if not path.exists():
            raise InputError(f"{self.folder} is not a run's folder: it holds no {name}.")
        with refuse_damage(f"{path} is damaged or not ours; restore it or start the run again."):
            value = parse_json(path.read_text(encoding="utf-8"))
            checksum = value.pop("checksum", None)
            if checksum is not None and checksum != _checksum(value):
                raise InputError(f"{path} is damaged, its checksum does not match: restore it or start the run again.")
        if value.get("format") != FORMAT:
            raise InputError(f"{path} was not written by this version of consilience.")
        return dict(value)

    def read_report(self, alone: bool = False) -> dict[str, Any]:
        """Read what a finished run says about itself.

        Args:
            alone: Leave out to look at the task and the state that it speaks of, which are not used.

        Returns:
            The content of `run.json`.

        Raises:
            InputError: The folder holds no run, or one that has not finished, or a file is damaged.
        """
        report = self.read_json()
        if not report.get("finished"):
            how = "`co.run(…, resume=True)`, as it was started from Python"
            if "recipe" in report:
                how = f"`consilience run --resume {shlex.quote(str(self.folder))}{_own_model(report['recipe'])}`"
            raise InputError(f"The run in {self.folder} has not finished: continue it with {how}.")
        files = report.pop("files", {})
        for name in BESIDE:
            path = self.folder / name
            if not alone and name in files and path.exists() and _checksum_of_file(path) != files[name]:
                raise InputError(
                    f"{path} is damaged or of another run than run.json: restore it from a copy, or start the run "
                    "again in another folder."
                )
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
        extra: JSON values to write beside it.

    Returns:
        The file's bytes.
    """
    tensors, outline = encode(value)
    header = json.loads(json.dumps({"format": FORMAT, "outline": outline, **extra}))
    header["checksum"] = digest(json.dumps(header, sort_keys=True), tensors)
    return save(tensors, metadata={"consilience": json.dumps(header)})


def unpack(path: Path, method: Method, fields: Sequence[str]) -> tuple[Tree, dict[str, Any]]:
    """Read a tree from a safetensors file that `pack` wrote.

    Args:
        method: The run's method, which says what types the tree may hold.
        fields: The names of the JSON values that may lie beside the tree.

    Returns:
        The tree, and the JSON values beside it.

    Raises:
        InputError: The file is damaged, or another version wrote it.
    """
    with refuse_damage(_damaged(path)):
        header, tensors = _open(path)
    if header.get("format") != FORMAT:
        raise InputError(f"{path} was not written by this version of consilience.")
    with refuse_damage(_damaged(path)):
        checksum = header.pop("checksum", None)
        if checksum is not None and checksum != digest(json.dumps(header, sort_keys=True), tensors):
            raise ValueError("the checksum is another one")
        if not header.keys() <= {"format", "outline", *fields}:  # "checksum" itself may be what was damaged
            raise ValueError("something else lies beside the tree")
        return decode(tensors, header["outline"], kept_types_of(method)), header


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["consilience"])
        return dict(header), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — not a dict


def _own_model(recipe: Any) -> str:
    """The option that names a model of the user's own again: no code is imported because a folder names it."""
    model = ""
    if isinstance(recipe, dict):
        model = str(recipe.get("model", ""))
    if is_import_path(model):
        return f" --model {model}"
    return ""


def _damaged(path: Path) -> str:
    return f"{path} is damaged or not ours; delete the folder and start the run again."


def _check_fields(checkpoint: Checkpoint) -> None:
    """Raise an error where a field is of another type than its readers rely on."""
    if type(checkpoint.rounds) is not int or checkpoint.rounds < 0 or not isinstance(checkpoint.fingerprint, str):
        raise TypeError("rounds or fingerprint")
    for entry in (*checkpoint.history, *checkpoint.failures, *checkpoint.ledger.entries):
        if not isinstance(entry, dict):
            raise TypeError("history, failures or ledger")
    numbers = [entry[column] for entry in checkpoint.ledger.entries for column in ("round", "site", *COLUMNS)]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise TypeError("ledger")
    if not all(isinstance(client, int) for client in checkpoint.memories):
        raise TypeError("memories")
    if not all(isinstance(warning, str) for warning in checkpoint.warnings):
        raise TypeError("warnings")


def _checksum(content: dict[str, Any]) -> str:
    """SHA-256 of JSON; the same for the same values, however the file is laid out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _csv(history: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in history for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue().encode()
