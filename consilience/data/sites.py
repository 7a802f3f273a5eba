"""Rows, and who holds which: every site's training and test rows, the server's few."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.errors import InputError

TRIFLE = 1e-4  # of a column's deviation, which its rounding may cost
APART = 10.0  # how much the deviations of a target's numbers may differ


class Data(NamedTuple):
    """Labelled rows. w is 1 for a row, 0 for padding, and a weight for a pseudo-row."""

    x: Tensor
    y: Tensor
    w: Tensor

    @property
    def size(self) -> Tensor:
        """How many rows this stands for."""
        return self.w.sum()

    @staticmethod
    def of(x: Tensor, y: Tensor) -> Data:
        return Data(x, y, torch.ones(len(x), dtype=x.dtype, device=x.device))


Features = int | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sites:
    """Rows with their roles: what each site trains and is tested on, and what the server sees."""

    train: tuple[Data, ...]
    test: tuple[Data, ...]
    validation: tuple[Data, ...] | None
    inputs: Tensor | None  # the server's rows without labels
    calibration: Data | None  # the server's rows with labels
    classes: int | None  # None: regression
    features: Features
    name: str  # of the data set
    split: str
    names: tuple[str, ...]  # of the sites
    target_shift: float = 0.0  # original target = shift + scale · y
    target_scale: float = 1.0
    public: bool = False  # may single rows be shown?
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    feature_shift: Tensor | None = None  # original features = shift + scale · x
    feature_scale: Tensor | None = None
    elsewhere: bool = False  # a study: rows are at the sites, which choose afterwards what needs labels

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def all_test(self) -> Data:
        """The test rows of all sites."""
        return concatenate(self.test)

    @property
    def all_validation(self) -> Data:
        """The validation rows of all sites."""
        if self.validation is None:
            raise InputError("There are no validation rows: split with validation=0.1, or add --validation 0.1.")
        return concatenate(self.validation)

    def pooled(self) -> Sites:
        """One site that holds every site's rows, in the order of the sites; the server keeps what it has."""
        validation = None if self.validation is None else (concatenate(self.validation),)
        return replace(
            self,
            train=(concatenate(self.train),),
            test=(self.all_test,),
            validation=validation,
            split="pooled",
            names=("pooled",),
        )

    def label_counts(self) -> Tensor:
        """How many training rows of each class every site has [K, C]."""
        if self.classes is None:
            raise InputError(f"{self.name} is a regression and has no labels to count.")
        return torch.stack([torch.bincount(part.y, minlength=self.classes) for part in self.train])

    def to(self, where: torch.dtype | torch.device | str) -> Sites:
        """On another device, or with features, weights and regression targets of another dtype."""

        def moved(t: Tensor) -> Tensor:
            return t if isinstance(where, torch.dtype) and not t.is_floating_point() else t.to(where)

        return self._each(moved, moved, moved)

    def scaled(self, x: Tensor) -> Tensor:
        """New rows in their original units, on the scale the sites train on."""
        if self.feature_shift is None or self.feature_scale is None:
            return x
        return _scaled(x, self.feature_shift, self.feature_scale)

    def standardised(self) -> Sites:
        """Features, and regression targets, with mean 0 and deviation 1 over all training rows; a constant column is
        only shifted, and images have one constant per channel. Targets of several numbers share one shift and scale."""
        pooled = concatenate(self.train)
        shift, scale = _moments(pooled.x, (0, *range(2, pooled.x.ndim)))
        made = replace(self.map_x(lambda x: _scaled(x, shift, scale)), feature_shift=shift[0], feature_scale=scale[0])
        if self.classes is not None:
            return made
        each = _moments(pooled.y, (0,))[1]
        if bool(each.max() > APART * each.min()):
            told = f"The target's numbers differ {float(each.max() / each.min()):.0f}-fold in their deviations"
            warnings.warn(f"{told} and share one scale: give them in units that make them alike.", stacklevel=2)
        y_shift, y_scale = _moments(pooled.y, tuple(range(pooled.y.ndim)))
        made = made._each(lambda x: x, lambda y: _scaled(y, y_shift, y_scale), lambda w: w)
        return replace(made, target_shift=float(y_shift), target_scale=float(y_scale))

    def map_x(self, f: Callable[[Tensor], Tensor]) -> Sites:
        """The same function applied to the features in every role."""
        return self._each(f, lambda y: y, lambda w: w)

    def fingerprint(self) -> str:
        """A hash of every row and its role: two runs that agree here saw the same data."""
        digest = hashlib.sha256(f"{self.classes} {self.target_shift!r} {self.target_scale!r}".encode())
        for role, parts in self._roles().items():
            digest.update(f"{role} {len(parts)}".encode())
            for tensor in (t for part in parts for t in part):
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _roles(self) -> dict[str, Sequence[Sequence[Tensor]]]:
        return {
            "train": self.train,
            "test": self.test,
            "validation": self.validation or (),
            "calibration": () if self.calibration is None else (self.calibration,),
            "inputs": () if self.inputs is None else ((self.inputs,),),
        }

    def _each(
        self, x: Callable[[Tensor], Tensor], y: Callable[[Tensor], Tensor], w: Callable[[Tensor], Tensor]
    ) -> Sites:
        def changed(part: Data) -> Data:
            return Data(x(part.x), y(part.y), w(part.w))

        return replace(
            self,
            train=tuple(changed(part) for part in self.train),
            test=tuple(changed(part) for part in self.test),
            validation=None if self.validation is None else tuple(changed(part) for part in self.validation),
            inputs=None if self.inputs is None else x(self.inputs),
            calibration=None if self.calibration is None else changed(self.calibration),
        )


def concatenate(parts: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Data:
    """All rows, one part after another."""
    return Data(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def narrow(values: Tensor) -> Tensor:
    """Rows as float32; as float64 where rounding moves a column by more than a trifle of its deviation, so that digits
    are left when it is scaled. The other columns are rounded all the same: what they hold never depends on these."""
    rounded = values.float().double()
    if not len(values):
        return values.float()
    lost = (values - rounded).abs().amax(0) > TRIFLE * values.std(0, correction=0)
    return torch.where(lost, values, rounded) if bool(lost.any()) else values.float()


def _moments(values: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and deviation in double precision, the reduced dimensions kept; the deviation of a constant is 1."""
    v = values.double()
    constant = v.amax(over, keepdim=True) == v.amin(over, keepdim=True)
    deviation = v.std(over, correction=0, keepdim=True)
    return v.mean(over, keepdim=True), torch.where(constant, torch.ones_like(deviation), deviation)


def _scaled(values: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return ((values.double() - shift.to(values.device)) / scale.to(values.device)).to(values.dtype)
