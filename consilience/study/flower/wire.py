"""What crosses a network: a tree as one ArrayRecord and a JSON outline.

Only types on a method's allow-list can be packed or rebuilt, and the type of rows (`Data`) is on none. What a method's
tensors hold is another matter: `holds_rows` finds cheap disguises, and what methods send is reviewed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from consilience.data.npy import read_npy
from consilience.errors import InputError
from consilience.serialisation.codec import decode, encode
from consilience.study.validation.gate import Refused, limit_bytes, refuse_errors
from consilience.tree import Tree

STYPE = "numpy.ndarray"  # how Flower names the format of an array
NUMBERS = "biufc"  # numpy's letters for what may be in one: the gate has its own sentence for complex numbers


def pack(value: Tree, types: Mapping[str, type]) -> tuple[ArrayRecord, str]:
    """Turn a tree into named arrays and an outline.

    Args:
        types: What may be inside, by name.

    Returns:
        The arrays, and the outline as JSON.

    Raises:
        Refused: A type that is not listed is inside.
    """
    _check_types(value, types)
    tensors, outline = encode(value)
    halves = [name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16]
    arrays = ArrayRecord({name: Array(_as_numpy(tensor)) for name, tensor in tensors.items()})
    return arrays, json.dumps({"outline": json.loads(outline), "bfloat16": halves})


def unpack(arrays: ArrayRecord, outline: str, types: Mapping[str, type]) -> Tree:
    """Invert `pack`.

    Args:
        outline: The outline as JSON.
        types: What may be inside, by name.

    Raises:
        Refused: Something is wrong with the bytes or the outline.
    """
    with refuse_errors():
        about = json.loads(outline)
        halves = set(about["bfloat16"])
        tensors = {name: _as_tensor(array, name in halves) for name, array in arrays.items()}
        return decode(tensors, json.dumps(about["outline"]), types)


def record(arrays: ArrayRecord, outline: str, about: Mapping[str, Any]) -> RecordDict:
    """Put one message's content together.

    Args:
        about: Who, which round, for which study.
    """
    header = ConfigRecord({"outline": outline, "about": json.dumps(about, sort_keys=True, ensure_ascii=False)})
    return RecordDict({"arrays": arrays, "header": header})


def open_record(content: RecordDict, most_bytes: int) -> tuple[ArrayRecord, str, dict[str, Any]]:
    """Take apart what `record` put together, with nothing beside it; the size is checked before anything is decoded.

    Returns:
        The arrays, their outline, and what the message says about itself.

    Raises:
        Refused: It is not such a content, or too large.
    """
    arrays = content.get("arrays")
    header = content.get("header")
    if not isinstance(arrays, ArrayRecord) or not isinstance(header, ConfigRecord) or len(content) != 2:
        raise Refused("the message is not one of consilience.")
    if not {"outline", "about"} <= set(header) <= {"outline", "about", "signature"}:
        raise Refused("its header cannot be read.")
    limit_bytes(weight(content), most_bytes)
    try:
        about = json.loads(str(header["about"]))
        if not isinstance(about, dict):
            raise ValueError("not a dict")
        return arrays, str(header["outline"]), about
    except (ValueError, KeyError, RecursionError) as error:
        raise Refused("its header cannot be read.") from error


def carry(file: bytes) -> RecordDict:
    """Put a file into a message as it is: it says itself what it is, whose, and is signed."""
    return RecordDict({"file": ArrayRecord({"file": Array(numpy.frombuffer(file, dtype=numpy.uint8))})})


def carried(content: RecordDict, most_bytes: int) -> bytes:
    """Take a file out of a message.

    Args:
        most_bytes: The largest that is read.

    Returns:
        The file, as nobody has looked at it.

    Raises:
        Refused: There is none, or it is too large.
    """
    arrays = content.get("file")
    if not isinstance(arrays, ArrayRecord) or len(content) != 1 or set(arrays) != {"file"}:
        raise Refused("the message does not carry a file of consilience.")
    limit_bytes(weight(content), most_bytes)
    with refuse_errors():
        tensor = _as_tensor(arrays["file"], False)
        if tensor.dtype != torch.uint8 or tensor.dim() != 1:
            raise Refused("the message does not carry a file of consilience.")
        return tensor.numpy().tobytes()


def signature_in(content: RecordDict) -> str:
    """Read the signature of a message; empty if there is none."""
    return str(content.config_records["header"].get("signature", ""))


def weight(content: RecordDict) -> int:
    """Count the bytes of arrays and header, before Flower's framing (0.03 to 0.4 % more)."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    texts = sum(len(str(text).encode()) for record in content.config_records.values() for text in record.values())
    return arrays + texts


def digest(content: RecordDict) -> str:
    """Hash all that a message carries but its signature: what is signed, and what both sides log.

    Records are hashed by name and kind, and every part with its length, so that no two messages look the same.
    """
    hashed = hashlib.sha256()

    def add(part: bytes) -> None:
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)

    for place in sorted(content):
        entries = {n: v for n, v in content[place].items() if (place, n) != ("header", "signature")}
        add(f"{type(content[place]).__name__} {len(entries)} {place}".encode())
        for name, value in sorted(entries.items()):
            add(name.encode())
            if isinstance(value, Array):
                add(f"{value.stype} {value.dtype} {list(value.shape)}".encode())
                add(value.data)
            else:
                add(repr(value).encode())
    return hashed.hexdigest()


def signed_text(study: str, *digests: str) -> bytes:
    """Write what is signed: a question in this study, or this question and its answer; so it serves for no other.

    Args:
        digests: Of the question, and of the answer.
    """
    return " ".join((study, *digests)).encode()


def _check_types(value: Tree, types: Mapping[str, type]) -> None:
    if isinstance(value, dict):
        for child in value.values():
            _check_types(child, types)
    elif isinstance(value, tuple):
        kind = type(value)
        if kind is not tuple and types.get(kind.__name__) is not kind:
            raise Refused(f"a '{kind.__name__}' may not leave a site.")
        for child in value:
            _check_types(child, types)
    elif not isinstance(value, Tensor):
        raise Refused(f"a {type(value).__name__} cannot be sent; only tensors can.")


def _as_numpy(tensor: Tensor) -> numpy.ndarray[Any, Any]:
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.int16)
    return plain.numpy()


def _as_tensor(array: Array, half: bool) -> Tensor:
    try:
        values = read_npy(array.data, NUMBERS)
    except InputError as error:
        raise Refused(f"the bytes cannot be read. {error}") from error
    if array.stype != STYPE or (array.dtype, tuple(array.shape)) != (str(values.dtype), values.shape):
        raise Refused("an array is of another type or shape than it says.")
    tensor = torch.from_numpy(values)
    if half:
        return tensor.view(torch.bfloat16)
    return tensor
