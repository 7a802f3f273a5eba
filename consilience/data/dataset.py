"""Labelled rows in one place, and how they are given roles."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from consilience.data.encoding import Encoding
from consilience.data.roles import (
    cut_validation,
    fill_gaps,
    hold_out,
    serve,
    set_aside,
    shift_features,
    to_count,
    to_data,
)
from consilience.data.sites import Features, Sites
from consilience.data.splits.features import Shifted
from consilience.data.splits.labels import Natural, SortedFeature, dirichlet, iid, natural
from consilience.data.splits.split import Rows, Split
from consilience.data.streamed import Streamed
from consilience.data.targets import check_outcome
from consilience.errors import InputError
from consilience.key import Key

SITES = 5  # where nobody says how many


class Draw(enum.IntEnum):
    """What the key of a split is folded by first, so that no two steps draw the same numbers.

    The values decide who has which row, and so every saved run: they never change.
    """

    TEST = 0  # which rows are held out, folded by natural site
    SERVER = 1  # which rows the server has
    SITES = 2  # which site a training row goes to
    FOLLOW = 3  # which site a test row goes to
    VALIDATION = 4  # which training rows are tuned on, folded by site
    SHIFT = 5  # noise in the features, folded by role, shift and site
    INPUTS = 5  # which rows of another data set the server has; `inputs_from`, with a seed of its own
    CONFORMAL = 6  # which rows are held out for prediction sets, folded by site
    HOMES = 7  # which site a row that the server drew would be at


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled rows in one place, before anybody has a role; checked when it is made.

    Attributes:
        name: The name of the data set.
        x: Features, [N, …], float32; or float64, which becomes float32 once it is scaled; or, with `tokens`, int64.
        y: Classes 0 … C−1, [N] int64; or targets, [N], float32 or float64 as the features.
        classes: How many there are; None for a regression.
        site: The natural site of each row, [N] int64; None where rows have none.
        x_test: Features of the official test part, where there is one.
        y_test: Its classes or targets.
        site_test: Its natural sites.
        site_names: The names of the natural sites, by id.
        class_names: The names of the classes.
        feature_names: The names of the features.
        public: Whether single rows may be shown.
        standardise: Whether `split` standardises by default.
        image: Channels, height and width, where rows are images whose pixels lie in one list; None where the shape of
            `x` says it all.
        gaps: A pair for every column that may be missing: its number, or None for categories, and the number of the
            column that marks its gaps.
        columns: How the columns of a table became features; None where rows came as numbers.
        outcome: `counts` where targets are counts [N], or counts with exposures [N, 2]; `survival` where they are times
            with events, 1 or 0 where the time is censored [N, 2].
        imputations: How many times missing values are filled by draws at every site, where the method can; 0: by means.
        tokens: Whether features are token ids, whole numbers from 0 that a network looks up: they stay as they are.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> rows = co.data.Dataset("mine", torch.rand(30, 2), torch.arange(30) % 2, classes=2)
        >>> sites = rows.split(co.splits.iid(), 3, calibration=0)
        >>> [len(part.y) for part in sites.train]
        [8, 8, 8]
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int | None = None
    site: Tensor | None = None
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    site_test: Tensor | None = None
    site_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    public: bool = False
    standardise: bool = False
    gaps: tuple[tuple[int | None, int], ...] = ()
    image: tuple[int, int, int] | None = None
    columns: tuple[Encoding, ...] | None = None
    outcome: str = ""
    imputations: int = 0
    tokens: bool = False

    def __post_init__(self) -> None:
        _check_part(self, "", self.x, self.y, self.site)
        if len(self.x) < 2:
            raise InputError(f"{self.name} has {len(self.x)} rows: at least 2 are needed.")
        if (self.x_test is None) != (self.y_test is None):
            raise InputError(f"{self.name} has half a test part: give both x_test and y_test.")
        if self.x_test is not None and self.y_test is not None:
            _check_part(self, "test ", self.x_test, self.y_test, self.site_test)
            if self.x_test.shape[1:] != self.x.shape[1:]:
                raise InputError(
                    f"{self.name}: a test row has the shape {tuple(self.x_test.shape[1:])} and a training row "
                    f"{tuple(self.x.shape[1:])}; give both the same columns."
                )

    @property
    def features(self) -> Features:
        """How many features a row has, or its shape."""
        if self.x.ndim == 2:
            return int(self.x.shape[1])
        return tuple(self.x.shape[1:])

    def usual_split(self) -> Split:
        """Choose a split where nobody says.

        Returns:
            Natural where rows have sites, by class in a classification, evenly in a regression.
        """
        if self.site is not None:
            return natural()
        if self.classes:
            return dirichlet(0.5)
        return iid()

    def split(
        self,
        split: Split,
        sites: int | None = None,
        *,
        test: float = 0.2,
        calibration: int = 30,
        inputs: int | float = 0,
        validation: float = 0.0,
        conformal: float = 0.0,
        seed: int = 0,
        standardise: bool | None = None,
    ) -> Sites:
        """Give every row one role: test, the server's calibration rows and inputs, or training at one of the sites.

        A site's test rows follow that site's own distribution; where there are too few for that, a site can be without.

        Args:
            split: How rows are dealt.
            sites: How many sites, 5 by default. For the natural split all of them, or the first so many by id; the rows
                of the others then take no part.
            test: The share held out, within each natural site where rows have one. Where there is an official test
                part, that is what is held out, whatever the share; with 0 nothing is, and all rows are trained on.
            calibration: How many labelled rows the server has.
            inputs: How many rows without labels the server has; below 1, a share of the rows that are not for testing.
            validation: The share cut from each site's training rows to tune on.
            conformal: The share that each site holds out for prediction sets, before anything else is cut.
            seed: Equal seeds give equal roles.
            standardise: Whether features, and regression targets, are scaled by the mean and deviation of all training
                rows; by default as the data set says.

        Returns:
            The rows with their roles.

        Raises:
            InputError: An argument cannot be used, or there are too few rows.

        Example:
            >>> import consilience as co
            >>> sites = co.datasets.moons(200).split(co.splits.iid(), 4, calibration=20)
            >>> [len(part.y) for part in sites.train], len(sites.calibration.y)
            ([35, 35, 35, 35], 20)
        """
        if not isinstance(split, Split):
            raise InputError(f"{split!r} is not a split: pass for example iid() or dirichlet(0.1).")
        if self.tokens and (standardise or isinstance(split, Shifted)):
            raise InputError(f"{self.name} holds token ids, which are no amounts: leave standardise and shifts out.")
        base = split.split if isinstance(split, Shifted) else split
        self._check_sorting(base)
        source, names = self._choose_sites(base, sites)
        if not 0 <= validation < 1:
            raise InputError(f"validation={validation} is not a share from 0 to below 1: try validation=0.1.")
        if not 0 <= conformal < 1:
            raise InputError(f"conformal={conformal} is not a share from 0 to below 1: try conformal=0.2.")

        key = Key(seed)
        rows, held_out = source._hold_out(test, key.fold(Draw.TEST))
        server = serve(rows, calibration, inputs, len(names), key.fold(Draw.SERVER))
        rows = server.rest
        parts = split(rows, len(names), key.fold(Draw.SITES))
        test_parts = split.follow(held_out, [rows.take(part) for part in parts], key.fold(Draw.FOLLOW))
        kept, aside = set_aside(parts, len(rows.y), conformal, base.shares_rows, key.fold(Draw.CONFORMAL))
        train, tuned = cut_validation(rows, kept, validation, base.shares_rows, key.fold(Draw.VALIDATION))
        numbers = None
        if base.shares_rows:  # the same cut of the rows' numbers
            numbered = rows._replace(y=torch.arange(len(rows.y)))
            cuts, _ = cut_validation(numbered, kept, validation, True, key.fold(Draw.VALIDATION))
            numbers = tuple(part.y for part in cuts)

        with_roles = Sites(
            train=train,
            test=tuple(to_data(held_out.take(part.sort().values)) for part in test_parts),
            validation=tuned,
            inputs=server.inputs,
            calibration=server.calibration,
            classes=self.classes,
            features=self.features,
            name=self.name,
            split=str(split),
            names=names,
            public=self.public,
            class_names=self.class_names,
            feature_names=self.feature_names,
            image=self.image,
            numbers=numbers,
            columns=self.columns,
            outcome=self.outcome,
            imputations=self.imputations,
            tokens=self.tokens,
        )
        if aside is not None:
            with_roles = replace(with_roles, conformal=tuple(to_data(rows.take(part)) for part in aside))
        if server.drawn is not None and not base.shares_rows:
            homes = split.follow(server.drawn, [rows.take(part) for part in parts], key.fold(Draw.HOMES))
            with_roles = replace(with_roles, drawn=tuple(to_data(server.drawn.take(part)) for part in homes))
        return self._prepare(with_roles, split, standardise, key.fold(Draw.SHIFT))

    def _check_sorting(self, split: Split) -> None:
        """Gaps are filled once rows have roles, so they cannot decide where a row goes."""
        gaps = [column for column, _ in self.gaps if column is not None]
        if not isinstance(split, SortedFeature) or not gaps or split.column not in (None, *gaps):
            return
        place = gaps[0] if split.column is None else split.column
        name = f"column {place}"
        if self.feature_names:
            name = self.feature_names[place]
        raise InputError(
            f"'{name}' has missing values, so rows can be sorted neither by it nor by the column of largest "
            "variance: choose another column, as in sorted_feature(2)."
        )

    def _choose_sites(self, split: Split, count: int | None) -> tuple[Dataset, tuple[str, ...]]:
        """The rows that take part, and the sites' names."""
        if isinstance(split, Natural):
            return self._first_sites(count)
        if count is None:
            count = SITES
        if count > len(self.y):  # before there is a name for each
            raise InputError(
                f"{self.name} has {len(self.y)} rows, too few to train on at {count} sites: ask for fewer sites."
            )
        return self, tuple(str(k) for k in range(to_count("sites", count)))

    def _first_sites(self, count: int | None) -> tuple[Dataset, tuple[str, ...]]:
        """The rows of the first natural sites by id, and the sites' names."""
        if self.site is None:
            raise InputError(f"{self.name} has no natural sites: use another split, such as iid().")
        ids = sorted(set(self.site.tolist()))
        if count is not None and not 1 <= count <= len(ids):
            raise InputError(f"{self.name} has {len(ids)} natural sites: ask for 1 to {len(ids)}, not for {count}.")
        ids = ids[:count]
        names = tuple(str(i) for i in ids)
        if self.site_names is not None:
            names = tuple(self.site_names[i] for i in ids)
        mask = torch.isin(self.site, torch.tensor(ids))
        part = replace(self, x=self.x[mask], y=self.y[mask], site=self.site[mask])
        if self.x_test is None or self.y_test is None or self.site_test is None:
            return part, names
        mask = torch.isin(self.site_test, torch.tensor(ids))
        part = replace(part, x_test=self.x_test[mask], y_test=self.y_test[mask], site_test=self.site_test[mask])
        return part, names

    def _hold_out(self, share: float, key: Key) -> tuple[Rows, Rows]:
        """The rows to train on, and those to test on: the official test part, or a share; with 0, none."""
        rows = Rows(self.x, self.y, self.site, self.classes)
        if self.x_test is None or self.y_test is None:
            return hold_out(rows, share, key)
        if share:
            return rows, Rows(self.x_test, self.y_test, self.site_test, self.classes)
        site = self.site
        if site is not None and self.site_test is not None:
            site = torch.cat([site, self.site_test])
        every = Rows(torch.cat([self.x, self.x_test]), torch.cat([self.y, self.y_test]), site, self.classes)
        return hold_out(every, share, key)

    def _prepare(self, sites: Sites, split: Split, standardise: bool | None, key: Key) -> Sites:
        """Fill missing values, shift features and standardise, now that rows have roles."""
        sites = fill_gaps(sites, [(column, mark) for column, mark in self.gaps if column is not None])
        if isinstance(split, Shifted):
            sites = shift_features(sites, split, [mark for _, mark in self.gaps], key)
        if standardise is None:
            standardise = self.standardise and not self.tokens
        if standardise:
            sites = sites.standardised()
        return sites.to(torch.float32)


def _check_part(dataset: Dataset, part: str, x: Tensor, y: Tensor, site: Tensor | None) -> None:
    """Refuse rows that do not fit together or that no network can use; `part` is "" or "test "."""
    name = dataset.name
    kind = "floating-point numbers"
    fits = x.is_floating_point()
    if dataset.tokens:
        kind = "token ids in int64"
        fits = x.dtype == torch.int64
    if not fits or x.ndim < 2 or 0 in x.shape[1:]:
        raise InputError(f"{name}: the {part}features must be {kind} with a row for every example.")
    if dataset.tokens and x.numel() and int(x.min()) < 0:
        raise InputError(f"{name}: the {part}token ids must be whole numbers from 0, and one is {int(x.min())}.")
    for what, column in (("labels", y), ("site ids", site)):
        if column is not None and len(column) != len(x):
            raise InputError(f"{name} has {len(x)} {part}rows and {len(column)} {what}: give one for each row.")
    check_finite(name, part, x, dataset.feature_names)
    _check_targets(name, part, y, dataset.classes)
    if dataset.outcome:
        check_outcome(f"{name}: the {part}targets", y, dataset.outcome)
    if site is not None and len(site):
        most = len(dataset.site_names or ()) or int(site.max()) + 1
        if site.dtype != torch.int64 or not 0 <= int(site.min()) <= int(site.max()) < most:
            raise InputError(f"{name}: the {part}site ids must be whole numbers from 0, with a name for each.")


def check_finite(name: str, part: str, x: Tensor, feature_names: Sequence[str] | None) -> None:
    """Refuse rows with cells that are no numbers.

    Args:
        name: Whose rows they are.
        part: Which of them, before the word `rows`.
        x: The rows.
        feature_names: The names of the columns, where they have some.

    Raises:
        InputError: A cell is NaN or infinite.
    """
    if isinstance(x, Streamed) or not x.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(x)).float()).all()):
        return  # a NaN anywhere is the least and the largest; rows in files are looked at when they are read
    bad = ~torch.isfinite(x.float()).flatten(1)  # as float32, which is what networks see
    first = int(bad.any(0).int().argmax())
    column = f"column {first}"
    if feature_names:
        column = f"column {first} ('{feature_names[first]}')"
    raise InputError(
        f"{name}: {column} is NaN or infinite in {int(bad[:, first].sum())} {part}rows, and {int(bad.any(0).sum())} "
        "columns in all have such values: drop those rows or fill the values in."
    )


def _check_targets(name: str, part: str, y: Tensor, classes: int | None) -> None:
    if classes is None:
        if not y.is_floating_point() or not torch.isfinite(y.float()).all():
            raise InputError(f"{name}: the {part}targets of a regression must be finite floating-point numbers.")
        return
    if classes < 2:
        raise InputError(f"{name} has {classes} class: give labels of at least two classes.")
    if y.dtype != torch.int64 or y.ndim != 1 or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes):
        raise InputError(f"{name}: the {part}labels must be one whole number from 0 to {classes - 1} for each row.")
