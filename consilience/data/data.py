"""Rows, data sets, and the roles rows can have."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from consilience.data.partition import Natural, Rows, Split
from consilience.errors import InputError
from consilience.key import Key


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
class Dataset:
    """Labelled rows in one place, before anybody has a role; checked when it is made."""

    name: str
    x: Tensor  # [N, …] float32
    y: Tensor  # [N] int64, classes 0 … C−1, or [N] float32 targets
    classes: int | None = None  # None: regression
    site: Tensor | None = None  # [N] int64, the natural site of each row
    x_test: Tensor | None = None  # the official test part, where there is one
    y_test: Tensor | None = None
    site_test: Tensor | None = None
    site_names: tuple[str, ...] | None = None  # by site id
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    public: bool = False  # may single rows be shown?
    standardise: bool = False  # does `split` standardise unless told otherwise?

    def __post_init__(self) -> None:
        _check_rows(self, "", self.x, self.y, self.site)
        if len(self.x) < 2:
            raise InputError(f"{self.name} has {len(self.x)} rows: at least 2 are needed.")
        if (self.x_test is None) != (self.y_test is None):
            raise InputError(f"{self.name} has half a test part: give both x_test and y_test.")
        if self.x_test is not None and self.y_test is not None:
            _check_rows(self, "test ", self.x_test, self.y_test, self.site_test)
            if self.x_test.shape[1:] != self.x.shape[1:]:
                raise InputError(
                    f"{self.name}: a test row has the shape {tuple(self.x_test.shape[1:])} and a training row "
                    f"{tuple(self.x.shape[1:])}; give both the same columns."
                )

    @property
    def features(self) -> Features:
        return int(self.x.shape[1]) if self.x.ndim == 2 else tuple(self.x.shape[1:])

    def split(
        self,
        split: Split,
        sites: int | None = None,
        *,
        test: float = 0.2,
        calibration: int = 30,
        inputs: int | float = 0,
        validation: float = 0.0,
        seed: int = 0,
        standardise: bool | None = None,
    ) -> Sites:
        """Give every row one role: test, the server's calibration rows and inputs, or training at one of the sites.

        `sites`: 5 unless told otherwise; for the natural split all of them, or the first so many by id, in which case
        the rows of the others take no part. `test`: the share held out, within each natural site where rows have one;
        an official test part is always the test part, and `test` is then ignored. `inputs`: a count, or, below 1, a share of the
        rows that are not for testing. `validation`: the share cut from each site's training rows. A site's test rows
        follow that site's own distribution, and where there are too few for that a site can be without. `standardise`:
        features, and regression targets, by the mean and deviation of all training rows.
        """
        if not isinstance(split, Split):
            raise InputError(f"{split!r} is no split: pass for example iid() or dirichlet(0.1).")
        if isinstance(split, Natural):
            chosen, names = self._first_sites(sites)
        else:
            chosen, names = self, tuple(str(k) for k in range(_count("sites", 5 if sites is None else sites)))
        if not 0 <= validation < 1:
            raise InputError(f"validation={validation} is not a share from 0 to below 1: try validation=0.1.")
        key, rows = Key(seed), Rows(chosen.x, chosen.y, chosen.site, chosen.classes)
        if chosen.x_test is not None and chosen.y_test is not None:
            held = Rows(chosen.x_test, chosen.y_test, chosen.site_test, chosen.classes)
        else:
            picked = _held_out(rows, test, key.fold(0))
            held, rows = rows.take(picked.nonzero().flatten()), rows.take((~picked).nonzero().flatten())

        labelled, unlabelled = _count("calibration", calibration), _count("inputs", inputs, share_of=len(rows.y))
        left = len(rows.y) - labelled - unlabelled
        if left < len(names):
            raise InputError(
                f"Of {len(rows.y)} rows, calibration={calibration} and inputs={inputs} leave {max(left, 0)} to train on "
                f"at {len(names)} sites: ask for fewer of them."
            )
        order = key.fold(1).permutation(len(rows.y))
        server = [rows.take(part) for part in order.tensor_split([labelled, labelled + unlabelled])]
        rows = rows.take(order[labelled + unlabelled :].sort().values)

        train = [rows.take(part) for part in split(rows, len(names), key.fold(2))]
        held_parts = split.follow(held, train, key.fold(3))
        cuts = [_cut_validation(part, validation, key.fold(4).fold(k)) for k, part in enumerate(train)]
        made = Sites(
            train=tuple(_data(kept) for kept, _ in cuts),
            test=tuple(_data(held.take(part.sort().values)) for part in held_parts),
            validation=tuple(_data(cut) for _, cut in cuts) if validation else None,
            inputs=server[1].x if unlabelled else None,
            calibration=_data(server[0]) if labelled else None,
            classes=self.classes,
            features=self.features,
            name=self.name,
            split=str(split),
            names=names,
            public=self.public,
            class_names=self.class_names,
            feature_names=self.feature_names,
        )
        return made.standardised() if (self.standardise if standardise is None else standardise) else made

    def _first_sites(self, count: int | None) -> tuple[Dataset, tuple[str, ...]]:
        """The rows of the first natural sites by id, and the sites' names."""
        if self.site is None:
            raise InputError(f"{self.name} has no natural sites: use another split, such as iid().")
        ids = sorted(set(self.site.tolist()))
        if count is not None and not 0 <= count <= len(ids):
            raise InputError(f"{self.name} has {len(ids)} natural sites: ask for at most that many, not for {count}.")
        ids = ids[: count or len(ids)]
        names = tuple(str(i) if self.site_names is None else self.site_names[i] for i in ids)
        keep = torch.isin(self.site, torch.tensor(ids))
        part = replace(self, x=self.x[keep], y=self.y[keep], site=self.site[keep])
        if self.x_test is None or self.y_test is None or self.site_test is None:
            return part, names
        keep = torch.isin(self.site_test, torch.tensor(ids))
        return replace(part, x_test=self.x_test[keep], y_test=self.y_test[keep], site_test=self.site_test[keep]), names


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

    def __len__(self) -> int:
        return len(self.train)

    @property
    def all_test(self) -> Data:
        """The test rows of all sites."""
        return _joined(self.test)

    def pooled(self) -> Sites:
        """One site that holds every site's rows, in the order of the sites; the server keeps what it has."""
        validation = None if self.validation is None else (_joined(self.validation),)
        return replace(
            self,
            train=(_joined(self.train),),
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
        return x if self.feature_shift is None else _scaled(x, self.feature_shift, self.feature_scale)

    def standardised(self) -> Sites:
        """Features, and regression targets, with mean 0 and deviation 1 over all training rows; a constant column is
        only shifted, and images have one constant per channel."""
        pooled = _joined(self.train)
        shift, scale = _moments(pooled.x, (0, *range(2, pooled.x.ndim)))
        made = replace(self.map_x(lambda x: _scaled(x, shift, scale)), feature_shift=shift[0], feature_scale=scale[0])
        if self.classes is not None:
            return made
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
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
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


def from_arrays(
    x: Any,
    y: Any,
    site: Any = None,
    *,
    x_test: Any = None,
    y_test: Any = None,
    site_test: Any = None,
    classes: int | None = None,
    name: str = "arrays",
    feature_names: Sequence[str] | None = None,
    public: bool = False,
    standardise: bool = True,
) -> Dataset:
    """A data set from anything numpy can read, with an official test part if one is given.

    Whole numbers, truth values and text in y are classes, numbered in sorted order; floating-point numbers are the
    targets of a regression. `classes=C` says that y holds the numbers 0 … C−1 as they are, `classes=0` that it holds
    targets. Site ids may be numbers or text.
    """
    labels, labels_test = _array(y), None if y_test is None else _array(y_test)
    class_names: tuple[str, ...] | None = None
    target: Tensor
    target_test: Tensor | None
    if classes is None and labels.dtype.kind != "f":
        class_names, target, target_test = _coded("y", labels, labels_test)
        classes = len(class_names)
    else:
        read = _whole if classes else _floats
        target, target_test = read("y", labels), None if labels_test is None else read("y_test", labels_test)
    site_names, sites, sites_test = (
        (None, None, None)
        if site is None
        else _coded("site", _array(site), None if site_test is None else _array(site_test))
    )
    return Dataset(
        name=name,
        x=_matrix("x", x),
        y=target,
        classes=classes or None,
        site=sites,
        x_test=None if x_test is None else _matrix("x_test", x_test),
        y_test=target_test,
        site_test=sites_test,
        site_names=site_names,
        class_names=class_names,
        feature_names=None if feature_names is None else tuple(feature_names),
        public=public,
        standardise=standardise,
    )


def _array(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _floats(what: str, values: Any) -> Tensor:
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused with its column
            return torch.from_numpy(_array(values).astype(np.float32))
    except (TypeError, ValueError):
        raise InputError(
            f"{what} must hold numbers only: encode text as numbers, or read the file with from_csv."
        ) from None


def _matrix(what: str, values: Any) -> Tensor:
    x = _floats(what, values)
    return x.unsqueeze(1) if x.ndim == 1 else x


def _whole(what: str, values: np.ndarray[Any, Any]) -> Tensor:
    numbers = _floats(what, values)
    if not torch.equal(numbers, numbers.floor()):
        raise InputError(f"{what} must hold whole numbers when classes= is given.")
    return numbers.long()


def _coded(
    what: str, values: np.ndarray[Any, Any], more: np.ndarray[Any, Any] | None
) -> tuple[tuple[str, ...], Tensor, Tensor | None]:
    """The distinct values in sorted order as text, and each value's place among them."""
    distinct, codes = np.unique(_plain(what, values), return_inverse=True)
    names = tuple(str(v) for v in distinct.tolist())
    if more is None:
        return names, torch.from_numpy(codes.astype(np.int64)), None
    more = _plain(what, more)
    strange = np.setdiff1d(more, distinct)
    if len(strange):
        raise InputError(f"The test part has «{strange[0]}» in {what}, which no training row has: remove those rows.")
    return names, torch.from_numpy(codes.astype(np.int64)), torch.from_numpy(np.searchsorted(distinct, more))


def _plain(what: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One-dimensional values that can be sorted; objects are read as text."""
    if values.ndim != 1:
        raise InputError(f"{what} has the shape {values.shape}: give one value per row.")
    if values.dtype.kind == "O":
        gaps = sum(v is None or v != v for v in values)
        if gaps:
            raise InputError(f"{what} is missing in {gaps} rows: drop those rows.")
        return values.astype(str)
    return values


def _check_rows(of: Dataset, part: str, x: Tensor, y: Tensor, site: Tensor | None) -> None:
    if not x.is_floating_point() or x.ndim < 2 or 0 in x.shape[1:]:
        raise InputError(f"{of.name}: the {part}features must be floating-point numbers with a row for every example.")
    for what, column in (("labels", y), ("site ids", site)):
        if column is not None and len(column) != len(x):
            raise InputError(f"{of.name} has {len(x)} {part}rows and {len(column)} {what}: give one for each row.")
    bad = ~torch.isfinite(x).flatten(1)
    if bad.any():
        column = int(bad.any(0).int().argmax())
        known = f" («{of.feature_names[column]}»)" if of.feature_names else ""
        raise InputError(
            f"{of.name}: column {column}{known} is NaN or infinite in {int(bad[:, column].sum())} {part}rows, "
            f"{int(bad.any(0).sum())} columns in all are concerned: drop those rows or fill the values in."
        )
    if of.classes is None:
        if not y.is_floating_point() or not torch.isfinite(y).all():
            raise InputError(f"{of.name}: the {part}targets of a regression must be finite floating-point numbers.")
    elif of.classes < 2:
        raise InputError(f"{of.name} has {of.classes} class: give labels of at least two classes.")
    elif y.dtype != torch.int64 or y.ndim != 1 or len(y) and not 0 <= int(y.min()) <= int(y.max()) < of.classes:
        raise InputError(
            f"{of.name}: the {part}labels must be one whole number from 0 to {of.classes - 1} for each row."
        )
    if site is not None and len(site):
        most = len(of.site_names) if of.site_names else int(site.max()) + 1
        if site.dtype != torch.int64 or not 0 <= int(site.min()) <= int(site.max()) < most:
            raise InputError(f"{of.name}: the {part}site ids must be whole numbers from 0, with a name for each.")


def _held_out(rows: Rows, share: float, key: Key) -> Tensor:
    """Which rows are for testing: a random share of each natural site, or of all rows where there are no sites."""
    if not 0 < share < 1:
        raise InputError(f"test={share} is not a share between 0 and 1: try test=0.2.")
    picked = torch.zeros(len(rows.y), dtype=torch.bool)
    group = torch.zeros(len(rows.y), dtype=torch.int64) if rows.site is None else rows.site
    for i in sorted(set(group.tolist())):
        own = (group == i).nonzero().flatten()
        count = min(max(round(share * len(own)), 1), len(own) - 1)
        picked[own[key.fold(i).permutation(len(own))[:count]]] = True
    return picked


def _cut_validation(rows: Rows, share: float, key: Key) -> tuple[Rows, Rows]:
    """The rows to train on, at least one, and those to tune on."""
    order = key.permutation(len(rows.y))
    count = min(round(share * len(order)), len(order) - 1)
    return rows.take(order[count:].sort().values), rows.take(order[:count].sort().values)


def _count(what: str, value: float, share_of: int | None = None) -> int:
    if share_of is not None and 0 < value < 1:
        return max(round(value * share_of), 1)
    if value < 0 or value != int(value):
        also = " or a share below 1" if share_of is not None else ""
        raise InputError(f"{what}={value} cannot be used: give a count{also}.")
    return int(value)


def _data(rows: Rows) -> Data:
    return Data.of(rows.x, rows.y)


def _joined(parts: Sequence[Data]) -> Data:
    return Data(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _moments(values: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and deviation in double precision, the reduced dimensions kept; the deviation of a constant is 1."""
    v = values.double()
    constant = v.amax(over, keepdim=True) == v.amin(over, keepdim=True)
    deviation = v.std(over, correction=0, keepdim=True)
    return v.mean(over, keepdim=True), torch.where(constant, torch.ones_like(deviation), deviation)


def _scaled(values: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return ((values.double() - shift.to(values.device)) / scale.to(values.device)).to(values.dtype)
