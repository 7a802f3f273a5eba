"""Tables of the UCI repository from the data folder: five regressions, and two collected at several sites.

The regressions are honest by default: no column that gives the target away, no row numbers, scaling from training rows
(`Dataset.split`). `variant="hasan2023"` is what Hasan et al. ran, for their tables alone: every column, target
included, standardised over the whole file, and the last fifth of the rows for testing.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.data.dataset import Dataset
from consilience.datasets.folder import find
from consilience.errors import InputError, unknown_name

Column = np.ndarray[Any, np.dtype[np.float64]]
VARIANTS = ("hasan2023",)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
COMPASS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")


def air_quality(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Carbon monoxide in an Italian street, hour by hour, from a box of sensors (De Vito et al. 2008).

    The 6941 hours in which everything was measured, but for NMHC, which is missing in nine of ten; month and hour as
    points on a circle. A random test part asks for the gaps between known hours, not for a forecast.
    hasan2023: 7674 hours with a known target; other missing values are −200, month and hour plain numbers.
    """
    _check(variant)
    path = find("air_quality.csv", data_dir)
    table = _table(path)
    columns = _numbers(path, table, [name for name in table if name not in ("Date", "Time", "NMHC(GT)")])
    columns["month"] = np.array([float(date[5:7]) for date in table["Date"]])
    columns["hour"] = np.array([float(time[:2]) for time in table["Time"]])
    known = columns["CO(GT)"] != -200
    if variant is None:
        known = np.all([column != -200 for column in columns.values()], axis=0)
    columns = {name: column[known] for name, column in columns.items()}
    if variant is None:
        columns = _circles(columns, month=12, hour=24)
    return _regression("air_quality", columns, "CO(GT)", variant)


def bike(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Bicycles hired in Washington, day by day, from weather and calendar (Fanaee-T and Gama 2013).

    Without the two counts that add up to the target; season, month and weekday as points on a circle.
    hasan2023: with both counts, calendar as plain numbers.
    """
    _check(variant)
    path = find("bike.csv", data_dir)
    table = _table(path)
    columns = _numbers(path, table, [name for name in table if name not in ("instant", "dteday")])
    if variant is None:
        columns = {name: column for name, column in columns.items() if name not in ("casual", "registered")}
        columns = _circles(columns, season=4, mnth=12, weekday=7)
    return _regression("bike", columns, "cnt", variant)


def wine(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Tasters' marks for red wines from eleven measurements (Cortez et al. 2009).

    240 rows repeat an earlier one, as published; a random test part will have some rows that were trained on.
    """
    _check(variant)
    path = find("winequality-red.csv", data_dir, get="wine")
    table = _table(path, delimiter=";")
    return _regression("wine", _numbers(path, table, list(table)), "quality", variant)


def real_estate(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """House prices in New Taipei City from place, age and date (Yeh and Hsu 2018).

    Without the row number. hasan2023: with it.
    """
    _check(variant)
    path = find("real_estate.csv", data_dir)
    table = _table(path)
    names = [name for name in table if variant is not None or name != "No"]
    return _regression("real_estate", _numbers(path, table, names), "Y house price of unit area", variant)


def forest_fire(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Burnt area of Portuguese forest fires, as log(1 + hectares), from weather (Cortez and Morais 2007).

    Month and weekday as points on a circle. hasan2023: as whole numbers from 1.
    """
    _check(variant)
    path = find("forestfires.csv", data_dir)
    table = _table(path)
    table["month"] = [str(MONTHS.index(month) + 1) if month in MONTHS else month for month in table["month"]]
    table["day"] = [str(DAYS.index(day) + 1) if day in DAYS else day for day in table["day"]]
    columns = _numbers(path, table, list(table))
    columns["area"] = np.log1p(columns["area"])
    if variant is None:
        columns = _circles(columns, month=12, day=7)
    return _regression("forest_fire", columns, "area", variant)


# What a healthy adult would show: fixed here, so that filling a gap looks at no row.
HEALTHY = {"trestbps": 120.0, "chol": 200.0, "fbs": 0.0, "thalach": 150.0, "exang": 0.0, "oldpeak": 0.0, "ca": 0.0}
CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2"), "slope": ("1", "2", "3"), "thal": ("3", "6", "7")}


def heart_disease(data_dir: str | None = None) -> Dataset:
    """Narrowed coronary arteries, yes or no, in the patients of four hospitals (Detrano et al. 1989).

    A missing number is a healthy adult's, marked in a column of its own; a missing category is none of them. A blood
    pressure or cholesterol of 0 is missing. What is missing differs by hospital and gives the hospital away.
    """
    path = find("heart_disease.csv", data_dir)
    table = _table(path)
    names = sorted(set(table["site"]))
    columns: dict[str, Column] = {}
    for name, cells in table.items():
        if name in CATEGORIES:
            columns |= {f"{name}={c}": np.array([float(cell == c) for cell in cells]) for c in CATEGORIES[name]}
        elif name in HEALTHY:
            gaps = [not cell or (cell == "0" and name in ("trestbps", "chol")) for cell in cells]
            filled = [str(HEALTHY[name]) if gap else cell for gap, cell in zip(gaps, cells, strict=True)]
            columns |= _numbers(path, {name: filled}, [name]) | {f"{name} missing": np.array(gaps, dtype=np.float64)}
        elif name in ("age", "sex"):
            columns |= _numbers(path, table, [name])
    return Dataset(
        name="heart_disease",
        x=_matrix(list(columns.values())),
        y=torch.tensor([int(cell != "0") for cell in table["num"]]),
        classes=2,
        site=torch.tensor([names.index(site) for site in table["site"]]),
        site_names=tuple(names),
        class_names=("healthy", "disease"),
        feature_names=tuple(columns),
        standardise=True,
    )


def beijing_air(data_dir: str | None = None, every: int = 25) -> Dataset:
    """Fine dust (PM2.5) at twelve stations in Beijing from gases, weather and time (Zhang et al. 2017).

    Every 25th hour, which goes round the clock in 25 days; `every=1` has all of them. Hours with a missing value are
    left out, and so is PM10, of which the target is a part. The stations see the same weather, so a random test part
    would be known from the neighbours: the test part is the last of the four years.
    """
    if every < 1:
        raise InputError(f"every={every} makes no sense: ask for every first, second, … hour, such as every=25.")
    with np.load(find("beijing_air.npz", data_dir)) as archive:
        values, wind, time = archive["values"], archive["wind_dir"], archive["time"]
        quantities, compass = [str(name) for name in archive["columns"]], [str(name) for name in archive["wind_names"]]
        stations = tuple(str(name) for name in archive["stations"])
    values, wind, time = values[:, :, ::every], wind[:, ::every], time[::every]
    kept = [name for name in quantities if name != "PM10"]
    whole = ~np.isnan(values[:, [quantities.index(name) for name in kept]]).any(1) & (wind >= 0)  # [station, hour]
    columns: dict[str, Column] = {name: values[:, quantities.index(name)][whole].astype(np.float64) for name in kept}
    columns["wind"] = np.array([COMPASS.index(name) for name in compass], dtype=np.float64)[wind[whole]]
    station, hour = whole.nonzero()
    columns["month"], columns["hour"] = time[hour, 1].astype(np.float64), time[hour, 3].astype(np.float64)
    y = _vector(columns.pop("PM2.5"))
    columns = _circles(columns, wind=16, month=12, hour=24)
    x, site = _matrix(list(columns.values())), torch.from_numpy(station)
    last = torch.from_numpy((time[hour, 0] == 2017) | ((time[hour, 0] == 2016) & (time[hour, 1] >= 3)))
    return Dataset(
        name="beijing_air",
        x=x[~last],
        y=y[~last],
        site=site[~last],
        x_test=x[last],
        y_test=y[last],
        site_test=site[last],
        site_names=stations,
        feature_names=tuple(columns),
        public=True,
        standardise=True,
    )


def _regression(name: str, columns: dict[str, Column], target: str, variant: str | None) -> Dataset:
    """The honest data set, or the papers': mean 0 and sample deviation 1 over all rows, the last fifth for testing."""
    names = tuple(column for column in columns if column != target)
    if variant is None:
        x, y = _matrix([columns[n] for n in names]), _vector(columns[target])
        return Dataset(name, x, y, feature_names=names, public=True, standardise=True)
    scaled = {n: (column - column.mean()) / column.std(ddof=1) for n, column in columns.items()}
    x, y = _matrix([scaled[n] for n in names]), _vector(scaled[target])
    cut = int(0.8 * len(y))
    return Dataset(
        name=f"{name}@{variant}",
        x=x[:cut],
        y=y[:cut],
        x_test=x[cut:],
        y_test=y[cut:],
        feature_names=names,
        public=True,
    )


def _check(variant: str | None) -> None:
    if variant is not None and variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)


def _table(path: Path, delimiter: str = ",") -> dict[str, list[str]]:
    """Named columns of cells."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file, delimiter=delimiter) if row] or [[]]
    if any(len(row) != len(header) for row in rows) or not rows:
        raise InputError(f"{path.name} is cut short: remove it and get it again.")
    return {name: [row[j] for row in rows] for j, name in enumerate(header)}


def _numbers(path: Path, table: dict[str, list[str]], names: Sequence[str]) -> dict[str, Column]:
    try:
        return {name: np.array([float(cell) for cell in table[name]]) for name in names}
    except ValueError as error:
        raise InputError(f"{path.name} has a cell that is no number ({error}): remove it and get it again.") from None


def _circles(columns: dict[str, Column], **periods: int) -> dict[str, Column]:
    """Columns that come round, such as hours, as sine and cosine: 23 is next to 0."""
    made: dict[str, Column] = {}
    for name, column in columns.items():
        if name in periods:
            angle = 2 * np.pi * column / periods[name]
            made |= {f"{name} sin": np.sin(angle), f"{name} cos": np.cos(angle)}
        else:
            made[name] = column
    return made


def _matrix(columns: Sequence[Column]) -> Tensor:
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def _vector(column: Column) -> Tensor:
    return torch.from_numpy(column.astype(np.float32))
