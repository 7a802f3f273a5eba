"""Regressions of the UCI repository from the data folder.

They are honest by default: no column that gives the target away, no row numbers, scaling from training rows
(`Dataset.split`). `variant="hasan2023"` is what Hasan et al. ran, for their tables alone: every column, target
included, standardised over the whole file, and the last fifth of the rows for testing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from consilience.data.dataset import Dataset
from consilience.data.datasets.facts import Facts
from consilience.data.datasets.published import Column, as_circles, as_matrix, as_numbers, as_vector, read_columns
from consilience.disk.data_folder import find
from consilience.errors import unknown_name

VARIANTS = ("hasan2023",)
ALL_HOURS = "hasan2023_all_hours"  # of air quality
SENSORS_ON = "hasan2023_sensors_on"  # of air quality
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def air_quality(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Carbon monoxide in an Italian street, hour by hour, from a box of sensors (De Vito et al. 2008).

    The 6941 hours in which everything was measured, but for NMHC, which is missing in nine of ten; month and hour as
    points on a circle. A random test part asks for the gaps between known hours, not for a forecast.
    hasan2023: 7674 hours with a known target; other missing values are −200, month and hour plain numbers.
    hasan2023_all_hours: all 9357, a missing target being −200 too, on which the thesis's MSE seems to rest.
    hasan2023_sensors_on: the 7344 hours with a known target in which the box of sensors measured at all.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.
        variant: None, "hasan2023", "hasan2023_all_hours" or "hasan2023_sensors_on".

    Returns:
        A regression of 15 features.

    Raises:
        InputError: The file is missing or damaged, or there is no such variant.
    """
    _check_variant(variant, (*VARIANTS, ALL_HOURS, SENSORS_ON))
    path = find("air_quality.csv", data_dir)
    table = read_columns(path)
    columns = as_numbers(path, table, [name for name in table if name not in ("Date", "Time", "NMHC(GT)")])
    columns["month"] = np.array([float(date[5:7]) for date in table["Date"]])
    columns["hour"] = np.array([float(time[:2]) for time in table["Time"]])
    complete = columns["CO(GT)"] != -200
    if variant == ALL_HOURS:
        complete = np.ones_like(complete)
    if variant == SENSORS_ON:
        complete &= columns["C6H6(GT)"] != -200
    if variant is None:
        complete = np.all([column != -200 for column in columns.values()], axis=0)
    columns = {name: column[complete] for name, column in columns.items()}
    if variant is None:
        columns = as_circles(columns, month=12, hour=24)
    return _regression("air_quality", columns, "CO(GT)", variant)


def bike(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Bicycles hired in Washington, day by day, from weather and calendar (Fanaee-T and Gama 2013).

    Without the two counts that add up to the target; season, month and weekday as points on a circle.
    hasan2023: with both counts, calendar as plain numbers.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.
        variant: None, or "hasan2023".

    Returns:
        A regression of 14 features.

    Raises:
        InputError: The file is missing or damaged, or there is no such variant.
    """
    _check_variant(variant)
    path = find("bike.csv", data_dir)
    table = read_columns(path)
    columns = as_numbers(path, table, [name for name in table if name not in ("instant", "dteday")])
    if variant is None:
        columns = {name: column for name, column in columns.items() if name not in ("casual", "registered")}
        columns = as_circles(columns, season=4, mnth=12, weekday=7)
    return _regression("bike", columns, "cnt", variant)


def wine(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Tasters' marks for red wines from eleven measurements (Cortez et al. 2009).

    240 rows repeat an earlier one, as published; a random test part will have some rows that were trained on.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.
        variant: None, or "hasan2023".

    Returns:
        A regression of eleven features.

    Raises:
        InputError: The file is missing or damaged, or there is no such variant.
    """
    _check_variant(variant)
    path = find("winequality-red.csv", data_dir, get="wine")
    table = read_columns(path, delimiter=";")
    return _regression("wine", as_numbers(path, table, list(table)), "quality", variant)


def real_estate(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """House prices in New Taipei City from place, age and date (Yeh and Hsu 2018).

    Without the row number. hasan2023: with it.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.
        variant: None, or "hasan2023".

    Returns:
        A regression of six features.

    Raises:
        InputError: The file is missing or damaged, or there is no such variant.
    """
    _check_variant(variant)
    path = find("real_estate.csv", data_dir)
    table = read_columns(path)
    names = [name for name in table if variant is not None or name != "No"]
    return _regression("real_estate", as_numbers(path, table, names), "Y house price of unit area", variant)


def forest_fire(data_dir: str | None = None, variant: str | None = None) -> Dataset:
    """Burnt area of Portuguese forest fires, as log(1 + hectares), from weather (Cortez and Morais 2007).

    Month and weekday as points on a circle. hasan2023: as whole numbers from 1.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.
        variant: None, or "hasan2023".

    Returns:
        A regression of 14 features.

    Raises:
        InputError: The file is missing or damaged, or there is no such variant.
    """
    _check_variant(variant)
    path = find("forestfires.csv", data_dir)
    table = read_columns(path)
    table["month"] = _number(table["month"], MONTHS)
    table["day"] = _number(table["day"], DAYS)
    columns = as_numbers(path, table, list(table))
    columns["area"] = np.log1p(columns["area"])
    if variant is None:
        columns = as_circles(columns, month=12, day=7)
    return _regression("forest_fire", columns, "area", variant)


WITH_VARIANTS: dict[str, Callable[[str | None, str | None], Dataset]] = {
    "air_quality": air_quality,
    "bike": bike,
    "wine": wine,
    "real_estate": real_estate,
    "forest_fire": forest_fire,
}
FACTS = {
    "air_quality": Facts(6941, 15, file="air_quality.csv"),
    "bike": Facts(731, 14, file="bike.csv"),
    "wine": Facts(1599, 11, file="winequality-red.csv"),
    "real_estate": Facts(414, 6, file="real_estate.csv"),
    "forest_fire": Facts(517, 14, file="forestfires.csv"),
}


def _regression(name: str, columns: dict[str, Column], target: str, variant: str | None) -> Dataset:
    """The honest data set, or the papers': mean 0 and sample SD 1 over all rows, the last fifth for testing."""
    names = tuple(column for column in columns if column != target)
    if variant is None:
        x = as_matrix([columns[name] for name in names])
        y = as_vector(columns[target])
        return Dataset(name, x, y, feature_names=names, public=True, standardise=True)
    scaled = {name: (column - column.mean()) / column.std(ddof=1) for name, column in columns.items()}
    x = as_matrix([scaled[name] for name in names])
    y = as_vector(scaled[target])
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


def _check_variant(variant: str | None, known: Sequence[str] = VARIANTS) -> None:
    if variant is not None and variant not in known:
        raise unknown_name("variant", variant, known)


def _number(cells: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names replaced by their places, counted from 1; other cells stay."""
    places = {name: str(place) for place, name in enumerate(names, start=1)}
    return [places.get(cell, cell) for cell in cells]
