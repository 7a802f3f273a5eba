"""What crosses a network: a tree as one ArrayRecord and a JSON outline, and the checks before it counts.

Only types on a method's allow-list can be packed or rebuilt: rows (`Data`) are on none, so no message can hold them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from consilience import tree
from consilience.admission import admit_gaussian
from consilience.data.data import Data
from consilience.engines.exchange import Turn, client_view
from consilience.errors import InputError
from consilience.key import Key
from consilience.method import Method
from consilience.spec import decode, encode, types_of
from consilience.task import Task
from consilience.tree import Tree

LARGEST = 2**30  # bytes of one message, unless a study says otherwise


class Refused(InputError):
    """Something that came over the network and is not used; the sentence says why."""


class Form(NamedTuple):
    """What a value looks like: its outline, and the type and shape of every tensor; −1 where rows decide."""

    outline: str
    leaves: dict[str, tuple[str, tuple[int, ...]]]


def pack(value: Tree, types: Mapping[str, type]) -> tuple[ArrayRecord, str]:
    """A tree as named arrays and an outline; a type that is not in `types` cannot leave."""
    _only(value, types)
    tensors, outline = encode(value)
    return ArrayRecord({name: Array(_as_numpy(t)) for name, t in tensors.items()}), json.dumps(
        {"outline": json.loads(outline), "bfloat16": [n for n, t in tensors.items() if t.dtype == torch.bfloat16]}
    )


def unpack(arrays: ArrayRecord, outline: str, types: Mapping[str, type]) -> Tree:
    """The inverse of `pack`; whatever is wrong with the bytes or the outline is `Refused`."""
    try:
        about = json.loads(outline)
        halves = set(about["bfloat16"])
        tensors = {n: _as_tensor(a, n in halves) for n, a in arrays.items()}
        return decode(tensors, json.dumps(about["outline"]), types)
    except InputError as error:
        raise Refused(str(error)) from error
    except (ValueError, KeyError, TypeError, EOFError, OSError, RecursionError) as error:
        raise Refused(f"the bytes cannot be read ({type(error).__name__}).") from error


def record(arrays: ArrayRecord, outline: str, about: Mapping[str, Any]) -> RecordDict:
    """One message's content: the arrays, their outline, and who, which round, for which study."""
    header = ConfigRecord({"outline": outline, "about": json.dumps(about, sort_keys=True, ensure_ascii=False)})
    return RecordDict({"arrays": arrays, "header": header})


def opened(content: RecordDict, largest: int) -> tuple[ArrayRecord, str, dict[str, Any]]:
    """The parts of `record`, with the size checked before anything is decoded."""
    arrays, header = content.get("arrays"), content.get("header")
    if not isinstance(arrays, ArrayRecord) or not isinstance(header, ConfigRecord):
        raise Refused("the message is not one of consilience.")
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
    """A hash of all that a message carries but its signature: what is signed, and what both sides log."""
    found = hashlib.sha256()
    for name, array in sorted((n, a) for r in content.array_records.values() for n, a in r.items()):
        found.update(f"{name} {len(array.data)} ".encode())
        found.update(array.data)
    texts = {n: str(t) for r in content.config_records.values() for n, t in r.items() if n != "signature"}
    for name, text in sorted(texts.items()):
        found.update(f"{name} {text} ".encode())
    return found.hexdigest()


def form_of(value: Tree) -> Form:
    tensors, outline = encode(value)
    return Form(outline, {n: (str(t.dtype), tuple(t.shape)) for n, t in tensors.items()})


class Rehearsal:
    """What a site's reply must look like: the reply to the same message on a few made-up rows of the same kind.

    Made with 8 and with 9 rows: a dimension in which the two differ depends on a site's rows and is free. Repeated only
    for a message of a new form; the made-up sites keep their memory, as real ones do.
    """

    ROWS = (8, 9)

    def __init__(self, row: Data) -> None:
        self.row = row  # for the shapes and types of x and y alone
        self.memories: dict[int, Tree] = {}
        self.known: dict[str, Form | None] = {}

    @torch.no_grad()
    def __call__(self, method: Method, task: Task, message: Tree) -> Form | None:
        """The form, or None where made-up rows do not do."""
        asked = repr(form_of(message))
        if asked not in self.known:
            self.known[asked] = self._form(method, task, message)
        return self.known[asked]

    def _form(self, method: Method, task: Task, message: Tree) -> Form | None:
        found = []
        for count in self.ROWS:
            try:
                client = client_view(method, message, self.rows(task, count), self.memories, count, Turn(0, Key(0)))
                reply = method.local(task, message, client)
            except (RuntimeError, ValueError, TypeError, AssertionError, IndexError):
                return None
            self.memories[count] = reply.keep
            found.append(form_of(reply.send))
        first, second = found
        if first.outline != second.outline:
            return None
        free = {
            name: (kind, tuple(a if a == b else -1 for a, b in zip(shape, second.leaves[name][1], strict=True)))
            for name, (kind, shape) in first.leaves.items()
        }
        return Form(first.outline, free)

    def rows(self, task: Task, count: int) -> Data:
        def column(values: Tensor, like: Tensor) -> Tensor:
            return values.reshape(-1, *[1] * (like.ndim - 1)).expand(-1, *like.shape[1:]).to(like).contiguous()

        x = column(torch.linspace(-1, 1, count), self.row.x)
        if self.row.y.is_floating_point():
            return Data(x, column(torch.linspace(-1, 1, count), self.row.y), column(torch.ones(count), self.row.w))
        return Data(x, column(torch.arange(count) % task.classes(x), self.row.y), column(torch.ones(count), self.row.w))


def check(value: Tree, form: Form | None) -> None:
    """Refuse a reply with other names, types or shapes than expected, or with numbers that are not finite."""
    got = form_of(value)
    if form is not None:
        missing, extra = sorted(set(form.leaves) - set(got.leaves)), sorted(set(got.leaves) - set(form.leaves))
        if missing or extra:
            raise Refused(
                f"its names are wrong: «{(missing or extra)[0]}» is {'missing' if missing else 'not expected'}."
            )
        for name, (kind, shape) in form.leaves.items():
            its_kind, its_shape = got.leaves[name]
            fits = len(its_shape) == len(shape) and all(b in (-1, a) for a, b in zip(its_shape, shape, strict=True))
            if its_kind != kind or not fits:
                raise Refused(f"«{name}» has the shape {its_shape} of {its_kind}; {shape} of {kind} was expected.")
        if got.outline != form.outline:
            raise Refused("it is put together in another way than this method's replies.")
    if not tree.all_finite(value):
        raise Refused("it holds numbers that are not finite; try a smaller rate.")
    _check_gaussians(value)


def _check_gaussians(value: Tree) -> None:
    if isinstance(value, tuple):
        try:
            admit_gaussian(value, "it")
        except InputError as error:
            raise Refused(str(error)) from error
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ():
        _check_gaussians(child)


def check_leaves_rows_behind(value: Tree, data: Data) -> None:
    """Refuse to send a tensor that is a site's rows, or a part of them."""
    own = {t.untyped_storage().data_ptr() for t in data if t.numel()}
    for leaf in tree.leaves(value):
        same = [t for t in data if t.ndim > 1 and t.shape == leaf.shape and t.dtype == leaf.dtype]
        if leaf.untyped_storage().data_ptr() in own or any(torch.equal(t, leaf) for t in same):
            raise Refused("the reply holds the site's own rows, which never leave it.")


def allowed(method: Method) -> dict[str, type]:
    """What may cross for a method: never rows, nor what a site or the server sees."""
    kept = ("consilience.data", "consilience.parties")
    return {n: t for n, t in types_of(method).items() if not t.__module__.startswith(kept)}


def _only(value: Tree, types: Mapping[str, type]) -> None:
    if isinstance(value, dict):
        for child in value.values():
            _only(child, types)
    elif isinstance(value, tuple):
        kind = type(value)
        if kind is not tuple and types.get(kind.__name__) is not kind:
            raise Refused(f"a «{kind.__name__}» may not leave a site.")
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
