"""Labelled rows in one place, and how they are given roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from consilience.data.sites import Data, Features, Sites
from consilience.errors import InputError
from consilience.key import Key
from consilience.splits.features import Shifted
from consilience.splits.labels import Natural, SortedFeature, dirichlet, iid, natural
from consilience.splits.split import Rows, Split


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled rows in one place, before anybody has a role; checked when it is made."""

    name: str
    x: Tensor  # [N, …] float32; or float64, which becomes float32 once it is scaled
    y: Tensor  # [N] int64, classes 0 … C−1, or [N] targets, with the same choice
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
    gaps: tuple[tuple[int | None, int], ...] = ()  # numbers that may be missing, None for categories, and their marks

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

    def usual_split(self) -> Split:
        """How rows are dealt where nobody says: natural where they have sites, else by class, or evenly."""
        return natural() if self.site is not None else dirichlet(0.5) if self.classes else iid()

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
        an official test part is always the test part, and `test` is then ignored. `inputs`: a count, or, below 1, a
        share of the rows that are not for testing. `validation`: the share cut from each site's training rows. A site's
        test rows follow that site's own distribution, and where there are too few for that a site can be without.
        `standardise`: features, and regression targets, by the mean and deviation of all training rows.
        """
        if not isinstance(split, Split):
            raise InputError(f"{split!r} is no split: pass for example iid() or dirichlet(0.1).")
        bare = split.split if isinstance(split, Shifted) else split
        self._check_sorting(bare)
        if isinstance(bare, Natural):
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
                f"Of {len(rows.y)} rows, calibration={calibration} and inputs={inputs} leave {max(left, 0)} "
                f"to train on at {len(names)} sites: ask for fewer of them."
            )
        order = key.fold(1).permutation(len(rows.y))
        server = [rows.take(part) for part in order.tensor_split([labelled, labelled + unlabelled])]
        rows = rows.take(order[labelled + unlabelled :].sort().values)

        dealt = split(rows, len(names), key.fold(2))
        train = [rows.take(part) for part in dealt]
        held_parts = split.follow(held, train, key.fold(3))
        if bare.shares_rows:  # a row that one site tunes on is trained on at none
            tuning = key.fold(4).uniform(len(rows.y)) < validation
            cuts = [(rows.take(part[~tuning[part]]), rows.take(part[tuning[part]])) for part in dealt]
            if any(len(part) and not len(kept.y) for part, (kept, _) in zip(dealt, cuts, strict=True)):
                raise InputError(f"validation={validation} leaves a site nothing to train on: ask for less of it.")
        else:
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
        made = _filled(made, [(column, mark) for column, mark in self.gaps if column is not None])
        marks = [mark for _, mark in self.gaps]
        made = _moved(made, split, key.fold(5), marks) if isinstance(split, Shifted) else made
        made = made.standardised() if (self.standardise if standardise is None else standardise) else made
        return made.to(torch.float32)

    def _check_sorting(self, split: Split) -> None:
        """Gaps are filled once rows have roles, so they cannot decide where a row goes."""
        gaps = [column for column, _ in self.gaps if column is not None]
        if not isinstance(split, SortedFeature) or not gaps or split.column not in (None, *gaps):
            return
        place = gaps[0] if split.column is None else split.column
        name = self.feature_names[place] if self.feature_names else f"column {place}"
        raise InputError(
            f"'{name}' has gaps, so rows can be sorted neither by it nor by the widest column: name another, as "
            "sorted_feature:2."
        )

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


def _check_rows(of: Dataset, part: str, x: Tensor, y: Tensor, site: Tensor | None) -> None:
    if not x.is_floating_point() or x.ndim < 2 or 0 in x.shape[1:]:
        raise InputError(f"{of.name}: the {part}features must be floating-point numbers with a row for every example.")
    for what, column in (("labels", y), ("site ids", site)):
        if column is not None and len(column) != len(x):
            raise InputError(f"{of.name} has {len(x)} {part}rows and {len(column)} {what}: give one for each row.")
    bad = ~torch.isfinite(x.float()).flatten(1)  # as float32, which is what networks see
    if bad.any():
        first = int(bad.any(0).int().argmax())
        known = f" ('{of.feature_names[first]}')" if of.feature_names else ""
        raise InputError(
            f"{of.name}: column {first}{known} is NaN or infinite in {int(bad[:, first].sum())} {part}rows, "
            f"{int(bad.any(0).sum())} columns in all are concerned: drop those rows or fill the values in."
        )
    if of.classes is None:
        if not y.is_floating_point() or not torch.isfinite(y.float()).all():
            raise InputError(f"{of.name}: the {part}targets of a regression must be finite floating-point numbers.")
    elif of.classes < 2:
        raise InputError(f"{of.name} has {of.classes} class: give labels of at least two classes.")
    elif y.dtype != torch.int64 or y.ndim != 1 or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < of.classes):
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
    if value < 0 or value != value // 1:
        also = " or a share below 1" if share_of is not None else ""
        raise InputError(f"{what}={value} cannot be used: give a count{also}.")
    return int(value)


def _filled(sites: Sites, gaps: Sequence[tuple[int, int]]) -> Sites:
    """Each gap filled with its column's mean over the training rows without one."""
    if not gaps:
        return sites
    train = torch.cat([part.x for part in sites.train])
    means = {}
    for column, mark in gaps:
        known = train[train[:, mark] == 0, column].double()
        means[column] = float(known.mean()) if len(known) else 0.0

    def filled(x: Tensor) -> Tensor:
        x = x.clone()
        for column, mark in gaps:
            x[x[:, mark] == 1, column] = means[column]
        return x

    return sites.map_x(filled)


def _moved(sites: Sites, split: Shifted, key: Key, marks: Sequence[int]) -> Sites:
    """The sites' own rows with their features changed, except for marks of gaps; the server's stay."""

    def changed(x: Tensor, k: int, own: Key) -> Tensor:
        made = split.moved(x, k, len(sites), own)
        if marks:
            made[:, marks] = x[:, marks]
        return made

    def moved(parts: tuple[Data, ...], role: int) -> tuple[Data, ...]:
        own = key.fold(role)
        return tuple(d._replace(x=changed(d.x, k, own)) if len(d.x) else d for k, d in enumerate(parts))

    validation = None if sites.validation is None else moved(sites.validation, 2)
    return replace(sites, train=moved(sites.train, 0), test=moved(sites.test, 1), validation=validation)


def _data(rows: Rows) -> Data:
    return Data.of(rows.x, rows.y)
