"""Damage as files suffer it on their way, and as somebody with the right key may do on purpose."""

from __future__ import annotations

import json
import math
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from consilience.errors import InputError


def damaged(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    """One of the accidents that can happen to a file: flipped bits, a cut, bytes of another file, noise."""
    accident = draw.choice(("flip", "flip", "flips", "cut", "swap", "noise", "grow"))
    at = draw.randrange(len(raw))
    match accident:
        case "flip":
            return raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :]
        case "flips":
            return bytes(b ^ (draw.random() < 0.01) * draw.randrange(256) for b in raw)
        case "cut":
            return raw[:at]
        case "swap":  # the header of one file before the tensors of another
            cut, own = (8 + int.from_bytes(part[:8], "little") for part in (raw, other))
            return raw[:cut] + other[own:] if draw.random() < 0.5 else raw[:at] + other[at:]
        case "noise":
            return raw[:at] + draw.randbytes(draw.randrange(1, 64)) + raw[at + 64 :]
        case _:
            return raw + draw.randbytes(draw.randrange(1, 64))


STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 3, 1.5, -0.5, 1e308, 10**30, math.nan, math.inf, "", "x", "SGD", "None"),
    *([], {}, [[]], [1, 2], ["x", 1], {"type": "SGD"}, {"type": "Data"}, {"a": 1}, "\ud800", "a" * 1000),
)
# Values of TOML that are not what a study holds in their place.
STRANGE_TOML = (
    *("true", "0", "-1", "3", "1.5", "1e308", "1" + 400 * "0", "nan", "inf", '""', '"x"', "'epochs'", "[]", "[[]]"),
    *(
        '["x", 1]',
        "[1.0]",
        "{}",
        "{a = 1}",
        '{type = "number"}',
        "1979-05-27",
        "07:32:00",
        '"\\u0000"',
        600 * "[" + 600 * "]",
    ),
)


def mutated(value: Any, draw: random.Random) -> Any:
    """A JSON value with one thing in it that is not as it was."""
    copy = [json.loads(json.dumps(value))]
    places = list(_places(copy))
    parent, key = draw.choice(places)
    change = draw.choice(("replace", "replace", "replace", "delete", "rename", "nest", "copy", "number"))
    old = parent[key]
    match change:
        case "delete" if parent is not copy:
            del parent[key]
        case "rename" if isinstance(parent, dict):
            parent[draw.choice(("x", "type", "format", ""))] = parent.pop(key)
        case "nest":
            parent[key] = draw.choice(([old], {"x": old}, {"value": old}))
        case "copy":
            other, place = draw.choice(places)
            parent[key] = json.loads(json.dumps(other[place]))
        case "number" if isinstance(old, (int, float)):
            parent[key] = draw.choice((old + 1, -old, old * 1e9, old * 0.5, old + 1e-3))
        case _:
            parent[key] = json.loads(json.dumps(draw.choice(STRANGE)))
    return copy[0]


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value: what it is in, and under which name or number."""
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(node, dict):
        entries = node.items()
    elif isinstance(node, list):
        entries = enumerate(node)
    for key, child in entries:
        yield node, key
        yield from _places(child)


def mutated_toml(text: str, draw: random.Random) -> str:
    """The text of a TOML file with one line in it that is not as it was."""
    lines = text.splitlines()
    numbers = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    i = draw.choice(numbers)
    name, equals, value = lines[i].partition(" = ")
    match draw.choice(("value", "value", "value", "value", "delete", "double", "rename", "bytes")):
        case "value" if equals:
            lines[i] = f"{name} = {draw.choice(STRANGE_TOML)}"
        case "delete":
            del lines[i]
        case "double":
            lines.insert(draw.choice(numbers), lines[i])
        case "rename" if equals:
            lines[i] = f"{draw.choice(('x', 'name', 'type', 'format', 'model'))} = {value}"
        case "rename":
            lines[i] = draw.choice(("[x]", "[[sites]]", "[columns]", "[[columns]]", "[model]", "[target]", "[sites]"))
        case _:
            return damaged(text.encode(), text.encode()[::-1], draw).decode("utf-8", "surrogateescape")
    return "\n".join(lines) + "\n"


def mutated_tensors(tensors: Mapping[str, Tensor], draw: random.Random) -> dict[str, Tensor]:
    """Tensors of which one is missing, or has another shape, type, name or numbers."""
    changed = dict(tensors)
    name = draw.choice(sorted(changed))
    tensor = changed.pop(name)
    match draw.choice(("missing", "flat", "wide", "empty", "whole", "double", "complex", "nan", "name", "huge")):
        case "flat":
            changed[name] = tensor.reshape(-1)
        case "wide":
            changed[name] = tensor.unsqueeze(0)
        case "empty":
            changed[name] = tensor.reshape(-1)[:0]
        case "whole":
            changed[name] = tensor.to(torch.int64)
        case "double":
            changed[name] = tensor.double()
        case "complex":
            changed[name] = tensor.to(torch.complex64)
        case "nan":
            changed[name] = torch.full_like(tensor, draw.choice((0, 1))) / torch.zeros_like(tensor)
        case "name":
            changed[name + draw.choice(("x", ".0", "é"))] = tensor
        case "huge":
            changed[name] = torch.full_like(tensor, 1e30) if tensor.is_floating_point() else tensor + 2**40
        case _:
            pass
    return changed


class Outcomes(Counter[str]):
    """What became of damaged files: how many were refused, did no harm, gave something else or broke the reader."""

    def note(self, work: Callable[[], Any], harmless: Callable[[Any], bool] = lambda _: True) -> str:
        """Read a damaged file, and count what comes of it: one sentence, what was there before, or something else."""
        try:
            outcome = "same" if harmless(work()) else "other"
        except InputError as error:
            outcome = "refused" if str(error).strip() and "\n" not in str(error) else f"not one sentence: {error}"
        except Exception as error:
            outcome = f"traceback {type(error).__name__}: {str(error)[:60]} at {_where(error)}"
        self[outcome] += 1
        return outcome

    @property
    def bad(self) -> dict[str, int]:
        """What must not happen, and how often it did."""
        return {outcome: count for outcome, count in self.items() if outcome not in ("same", "refused", "other")}


def _where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/consilience/" in f.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rsplit('/', 2)[-1]}:{last.lineno}"
