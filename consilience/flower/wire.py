"""What crosses a network: a tree as one ArrayRecord and a JSON outline.

Only types on a method's allow-list can be packed or rebuilt: rows (`Data`) are on none, so no message can hold them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.formats.codec import decode, encode
from consilience.tree import Tree

LARGEST = 2**30  # bytes of one message, unless a study says otherwise


class Refused(InputError):
    """Something that came over the network and is not used; the sentence says why."""


def pack(value: Tree, types: Mapping[str, type]) -> tuple[ArrayRecord, str]:
    """A tree as named arrays and an outline; a type that is not in `types` cannot leave."""
    _only(value, types)
    tensors, outline = encode(value)
    return ArrayRecord({name: Array(_as_numpy(t)) for name, t in tensors.items()}), json.dumps(
        {"outline": json.loads(outline), "bfloat16": [n for n, t in tensors.items() if t.dtype == torch.bfloat16]}
    )


def unpack(arrays: ArrayRecord, outline: str, types: Mapping[str, type]) -> Tree:
    """The inverse of `pack`; whatever is wrong with the bytes or the outline is `Refused`."""
    with refuse_errors():
        about = json.loads(outline)
        halves = set(about["bfloat16"])
        tensors = {n: _as_tensor(a, n in halves) for n, a in arrays.items()}
        return decode(tensors, json.dumps(about["outline"]), types)


@contextmanager
def refuse_errors() -> Iterator[None]:
    """While a stranger's bytes are read: any error is theirs, and `Refused`."""
    try:
        yield
    except InputError as error:
        raise Refused(str(error)) from error
    except Exception as error:
        raise Refused(f"the bytes cannot be read ({type(error).__name__}).") from error


def record(arrays: ArrayRecord, outline: str, about: Mapping[str, Any]) -> RecordDict:
    """One message's content: the arrays, their outline, and who, which round, for which study."""
    header = ConfigRecord({"outline": outline, "about": json.dumps(about, sort_keys=True, ensure_ascii=False)})
    return RecordDict({"arrays": arrays, "header": header})


def open_record(content: RecordDict, largest: int) -> tuple[ArrayRecord, str, dict[str, Any]]:
    """The parts of `record` and nothing beside them, with the size checked before anything is decoded."""
    arrays, header = content.get("arrays"), content.get("header")
    if not isinstance(arrays, ArrayRecord) or not isinstance(header, ConfigRecord) or len(content) != 2:
        raise Refused("the message is not one of consilience.")
    if not {"outline", "about"} <= set(header) <= {"outline", "about", "signature"}:
        raise Refused("its header cannot be read.")
    held = weight(content)
    if held > largest:
        raise Refused(f"it weighs {held:,} bytes, more than the {largest:,} agreed.")
    try:
        about = json.loads(str(header["about"]))
        if not isinstance(about, dict):
            raise ValueError("not a dict")
        return arrays, str(header["outline"]), about
    except (ValueError, KeyError, RecursionError) as error:
        raise Refused("its header cannot be read.") from error


def weight(content: RecordDict) -> int:
    """Bytes of arrays and header, before Flower's framing (0.03 to 0.4 % more)."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    texts = sum(len(str(text).encode()) for record in content.config_records.values() for text in record.values())
    return arrays + texts


def digest(content: RecordDict) -> str:
    """A hash of all that a message carries but its signature: what is signed, and what both sides log.

    Records are hashed by name and kind, and every part with its length, so that no two messages look the same.
    """
    found = hashlib.sha256()

    def add(part: bytes) -> None:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)

    for place in sorted(content):
        held = {n: v for n, v in content[place].items() if (place, n) != ("header", "signature")}
        add(f"{type(content[place]).__name__} {len(held)} {place}".encode())
        for name, value in sorted(held.items()):
            add(name.encode())
            if isinstance(value, Array):
                add(f"{value.stype} {value.dtype} {list(value.shape)}".encode())
                add(value.data)
            else:
                add(repr(value).encode())
    return found.hexdigest()


def signed_text(study: str, *digests: str) -> bytes:
    """What is signed: a question in this study, or this question and its answer; so it serves for no other."""
    return " ".join((study, *digests)).encode()


def check_leaves_rows_behind(value: Tree, data: Data) -> None:
    """Refuse to send a tensor that is a site's rows, or a part of them."""
    own = {t.untyped_storage().data_ptr() for t in data if t.numel()}
    for leaf in tree.leaves(value):
        same = [t for t in data if t.ndim > 1 and t.shape == leaf.shape and t.dtype == leaf.dtype]
        if leaf.untyped_storage().data_ptr() in own or any(torch.equal(t, leaf) for t in same):
            raise Refused("the reply holds the site's own rows, which never leave it.")


def _only(value: Tree, types: Mapping[str, type]) -> None:
    if isinstance(value, dict):
        for child in value.values():
            _only(child, types)
    elif isinstance(value, tuple):
        kind = type(value)
        if kind is not tuple and types.get(kind.__name__) is not kind:
            raise Refused(f"a '{kind.__name__}' may not leave a site.")
        for child in value:
            _only(child, types)
    elif not isinstance(value, Tensor):
        raise Refused(f"a {type(value).__name__} cannot be sent; only tensors can.")


def _as_numpy(tensor: Tensor) -> numpy.ndarray[Any, Any]:
    plain = tensor.detach().cpu().contiguous()
    return (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()


def _as_tensor(array: Array, half: bool) -> Tensor:
    tensor = torch.from_numpy(array.numpy().copy())
    return tensor.view(torch.bfloat16) if half else tensor
