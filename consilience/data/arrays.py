"""Data sets from a user's own arrays and tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.data.dataset import Dataset
from consilience.data.sites import narrow
from consilience.errors import InputError, unknown_name


def from_arrays(
    x: Any,
    y: Any = None,
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
    outcome: str = "",
    tokens: bool = False,
) -> Dataset:
    """Make a data set of anything numpy can read, of a data frame, or of a `torch.utils.data.Dataset`.

    Whole numbers, truth values and text in `y` are classes, numbered in sorted order; floating-point numbers are the
    targets of a regression.

    Args:
        x: Features, a row for every example; one dimension is one feature. Of a data frame, all columns but those of
            `y` and `site`; of a `Dataset`, the first of every pair.
        y: A class or a target for every row; the name of a data frame's column; None for a `Dataset`'s second.
        site: The natural site of every row, numbers or text; or the name of a data frame's column.
        x_test: Features of an official test part, where there is one.
        y_test: Its classes or targets.
        classes: C where `y` holds the numbers 0 … C−1 as they are, 0 where it holds targets.
        name: The name of the data set.
        feature_names: The names of the features.
        public: Whether single rows may be shown.
        standardise: Whether `Dataset.split` standardises by default.
        outcome: "counts" where `y` holds counts, or counts and exposures [N, 2]; "survival" where it holds times and
            events, 1 or 0 where the time is censored [N, 2].
        tokens: Whether `x` holds token ids, whole numbers from 0 that a network looks up in an `nn.Embedding`: they
            stay whole numbers and are not standardised.

    Raises:
        InputError: Something is not a number, is missing, or does not fit the rest.

    Example:
        >>> import consilience as co
        >>> rows = co.from_arrays([[0.1, 1.0], [0.4, 0.2], [0.9, 0.3], [0.7, 0.8]], ["no", "yes", "yes", "no"])
        >>> rows.x.shape, rows.class_names
        (torch.Size([4, 2]), ('no', 'yes'))
    """
    if isinstance(x, torch.utils.data.Dataset):
        x, y = _unpack(x, y)
    elif hasattr(x, "columns"):
        x, y, site, feature_names = _unframe(x, y, site, feature_names)
    if y is None:
        raise InputError("y is missing: give a class or a target for every row.")
    labels = _to_array(y)
    class_names: tuple[str, ...] | None = None
    if classes is None and labels.dtype.kind != "f" and not outcome:
        class_names, target, target_test = _encode("y", labels, y_test)
        classes = len(class_names)
    else:
        target, target_test = _to_targets(labels, y_test, classes or 0)
    site_names: tuple[str, ...] | None = None
    sites: Tensor | None = None
    sites_test: Tensor | None = None
    if site is not None:
        site_names, sites, sites_test = _encode("site", site, site_test)
    x = _to_matrix("x", x, tokens)
    if x_test is not None:
        x_test = _to_matrix("x_test", x_test, tokens)
    if feature_names is not None:
        feature_names = tuple(feature_names)
    return Dataset(
        name=name,
        x=x,
        y=target,
        classes=classes or None,
        site=sites,
        x_test=x_test,
        y_test=target_test,
        site_test=sites_test,
        site_names=site_names,
        class_names=class_names,
        feature_names=feature_names,
        public=public,
        standardise=standardise,
        outcome=outcome,
        tokens=tokens,
    )


def _unpack(rows: Any, y: Any) -> tuple[Any, Any]:
    """Features and labels of a `Dataset` of pairs."""
    pairs = [rows[i] for i in range(len(rows))]
    if y is not None or not pairs or len(pairs[0]) != 2:
        raise InputError("A torch Dataset holds pairs of features and label: leave y out.")
    x = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
    return x, np.asarray([_plain(pair[1]) for pair in pairs])


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return value


def _unframe(frame: Any, y: Any, site: Any, names: Sequence[str] | None) -> tuple[Any, Any, Any, Sequence[str] | None]:
    """Features, labels, sites and names of a data frame, whose columns may be named."""
    used = []
    for argument in (y, site):
        if isinstance(argument, str):
            if argument not in frame.columns:
                raise unknown_name("column", argument, map(str, frame.columns))
            used.append(argument)
    features = frame.drop(columns=used)
    text = [str(column) for column in features.columns if features[column].dtype.kind not in "biuf"]
    if text:
        raise InputError(f"Column '{text[0]}' holds no numbers: encode it, or write a CSV file and use from_csv.")
    if isinstance(y, str):
        y = frame[y]
    if isinstance(site, str):
        site = frame[site]
    return features, y, site, names or [str(column) for column in features.columns]


def _to_array(values: Any) -> np.ndarray[Any, Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
    return np.asarray(values)


def _to_floats(name: str, values: Any) -> Tensor:
    array = _to_array(values)
    try:
        if np.can_cast(array.dtype, np.float32):
            return torch.from_numpy(array.astype(np.float32))
        return narrow(torch.from_numpy(array.astype(np.float64)))
    except (TypeError, ValueError):
        raise InputError(
            f"{name} must hold numbers only: encode text as numbers, or read the file with from_csv."
        ) from None


def _to_matrix(name: str, values: Any, tokens: bool) -> Tensor:
    x = _to_integers(name, values, "tokens=True") if tokens else _to_floats(name, values)
    if x.ndim == 1:
        return x.unsqueeze(1)
    return x


def _to_integers(name: str, values: Any, where: str = "classes=") -> Tensor:
    numbers = _to_floats(name, values)
    if not torch.equal(numbers, numbers.floor()):
        raise InputError(f"{name} must hold whole numbers where {where} is given.")
    return numbers.long()


def _to_targets(y: Any, y_test: Any, classes: int) -> tuple[Tensor, Tensor | None]:
    """Classes as they are, or the targets of a regression where there are none."""
    read = _to_integers if classes else _to_floats
    if y_test is None:
        return read("y", y), None
    return read("y", y), read("y_test", y_test)


def _encode(name: str, values: Any, test: Any) -> tuple[tuple[str, ...], Tensor, Tensor | None]:
    """The distinct values in sorted order as text, and each value's place among them."""
    distinct, codes = np.unique(_to_sortable(name, values), return_inverse=True)
    names = tuple(str(value) for value in distinct.tolist())
    places = torch.from_numpy(codes.astype(np.int64))
    if test is None:
        return names, places, None
    test = _to_sortable(name, test)
    unknown = np.setdiff1d(test, distinct)
    if len(unknown):
        raise InputError(f"The test part has '{unknown[0]}' in {name}, which no training row has: remove those rows.")
    return names, places, torch.from_numpy(np.searchsorted(distinct, test))


def _to_sortable(name: str, values: Any) -> np.ndarray[Any, Any]:
    """One-dimensional values that can be sorted; objects are read as text."""
    array = _to_array(values)
    if array.ndim != 1:
        raise InputError(f"{name} has the shape {array.shape}: give one value per row.")
    if array.dtype.kind in "fmM" and (gaps := int(np.isnan(array).sum())):
        raise InputError(f"{name} is missing in {gaps} rows: drop those rows, or give them a value of their own.")
    if array.dtype.kind != "O":
        return array
    gaps = sum(value is None or (isinstance(value, float) and math.isnan(value)) for value in array)
    if gaps:
        raise InputError(f"{name} is missing in {gaps} rows: drop those rows.")
    return array.astype(str)
