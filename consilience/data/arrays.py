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
from consilience.errors import InputError


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
    array = _array(values)
    try:
        if np.can_cast(array.dtype, np.float32):
            return torch.from_numpy(array.astype(np.float32))
        return narrow(torch.from_numpy(array.astype(np.float64)))
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
        raise InputError(f"The test part has '{strange[0]}' in {what}, which no training row has: remove those rows.")
    return names, torch.from_numpy(codes.astype(np.int64)), torch.from_numpy(np.searchsorted(distinct, more))


def _plain(what: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One-dimensional values that can be sorted; objects are read as text."""
    if values.ndim != 1:
        raise InputError(f"{what} has the shape {values.shape}: give one value per row.")
    if values.dtype.kind == "O":
        gaps = sum(v is None or (isinstance(v, float) and math.isnan(v)) for v in values)
        if gaps:
            raise InputError(f"{what} is missing in {gaps} rows: drop those rows.")
        return values.astype(str)
    return values
