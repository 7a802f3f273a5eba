"""What a reply must look like, tried out on made-up rows, and the checks before one counts."""

from __future__ import annotations

from typing import NamedTuple

import torch

from consilience import tree
from consilience.data.sites import Data
from consilience.engines.exchange import Turn, client_view
from consilience.errors import InputError
from consilience.flower.wire import Refused
from consilience.formats.codec import encode
from consilience.key import Key
from consilience.method import Method
from consilience.study.admission import admit_gaussian, draw_rows
from consilience.task import Task
from consilience.tree import Tree


class Form(NamedTuple):
    """What a value looks like: its outline, and the type and shape of every tensor; −1 where rows decide."""

    outline: str
    leaves: dict[str, tuple[str, tuple[int, ...]]]


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
        classes = 0 if self.row.y.is_floating_point() else task.classes(self.row.x)
        made = draw_rows(count, self.row.x.shape[1:], classes)
        return Data(*(leaf.to(like) for leaf, like in zip(made, self.row, strict=True)))


def check(value: Tree, form: Form | None) -> None:
    """Refuse a reply with other names, types or shapes than expected, or with numbers that are not finite."""
    got = form_of(value)
    if form is not None:
        missing, extra = sorted(set(form.leaves) - set(got.leaves)), sorted(set(got.leaves) - set(form.leaves))
        if missing or extra:
            raise Refused(
                f"its names are wrong: '{(missing or extra)[0]}' is {'missing' if missing else 'not expected'}."
            )
        for name, (kind, shape) in form.leaves.items():
            its_kind, its_shape = got.leaves[name]
            fits = len(its_shape) == len(shape) and all(b in (-1, a) for a, b in zip(its_shape, shape, strict=True))
            if its_kind != kind or not fits:
                raise Refused(f"'{name}' has the shape {its_shape} of {its_kind}; {shape} of {kind} was expected.")
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
