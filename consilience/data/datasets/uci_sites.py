"""Tables of the UCI repository that were collected at several sites, from the data folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from consilience.data.dataset import Dataset
from consilience.data.datasets.facts import Facts
from consilience.data.datasets.published import Column, as_circles, as_matrix, as_numbers, as_vector, read_columns
from consilience.data.npy import check_npz
from consilience.disk.data_folder import find
from consilience.errors import InputError

COMPASS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
# What a healthy adult would show: fixed here, so that filling a gap looks at no row.
HEALTHY = {"trestbps": 120.0, "chol": 200.0, "fbs": 0.0, "thalach": 150.0, "exang": 0.0, "oldpeak": 0.0, "ca": 0.0}
CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2"), "slope": ("1", "2", "3"), "thal": ("3", "6", "7")}


def heart_disease(data_dir: str | None = None) -> Dataset:
    """Narrowed coronary arteries, yes or no, in the patients of four hospitals (Detrano et al. 1989).

    A missing number is a healthy adult's, marked in a column of its own; a missing category is none of them. A blood
    pressure or cholesterol of 0 is missing. What is missing differs by hospital and gives the hospital away.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        A classification of 29 features, two classes, with four natural sites.

    Raises:
        InputError: The file is missing or damaged.
    """
    path = find("heart_disease.csv", data_dir)
    table = read_columns(path)
    names = sorted(set(table["site"]))
    columns: dict[str, Column] = {}
    for name, cells in table.items():
        if name in CATEGORIES:
            for category in CATEGORIES[name]:
                columns[f"{name}={category}"] = np.array([float(cell == category) for cell in cells])
        elif name in HEALTHY:
            gaps = [not cell or (cell == "0" and name in ("trestbps", "chol")) for cell in cells]
            numbers = as_numbers(path, {name: _fill(cells, gaps, HEALTHY[name])}, [name])
            columns[name] = numbers[name]
            columns[f"{name} missing"] = np.array(gaps, dtype=np.float64)
        elif name in ("age", "sex"):
            columns |= as_numbers(path, table, [name])
    return Dataset(
        name="heart_disease",
        x=as_matrix(list(columns.values())),
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

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.
        every: Take every so many hours.

    Returns:
        A regression of 15 features, with twelve natural sites.

    Raises:
        InputError: The file is missing, or `every` is below 1.
    """
    if every < 1:
        raise InputError(f"every={every} is not a positive number of hours: try every=25.")
    path = find("beijing_air.npz", data_dir)
    check_npz(path)
    with np.load(path) as archive:
        values = archive["values"][:, :, ::every]  # [station, quantity, hour]
        wind = archive["wind_dir"][:, ::every]
        time = archive["time"][::every]
        quantities = [str(name) for name in archive["columns"]]
        compass = [str(name) for name in archive["wind_names"]]
        stations = tuple(str(name) for name in archive["stations"])
    names = [name for name in quantities if name != "PM10"]
    complete = ~np.isnan(values[:, [quantities.index(name) for name in names]]).any(1) & (wind >= 0)  # [station, hour]
    station, hour = complete.nonzero()
    year = time[hour, 0]
    month = time[hour, 1]
    columns: dict[str, Column] = {}
    for name in names:
        columns[name] = values[:, quantities.index(name)][complete].astype(np.float64)
    columns["wind"] = np.array([COMPASS.index(name) for name in compass], dtype=np.float64)[wind[complete]]
    columns["month"] = month.astype(np.float64)
    columns["hour"] = time[hour, 3].astype(np.float64)
    y = as_vector(columns.pop("PM2.5"))
    columns = as_circles(columns, wind=16, month=12, hour=24)
    x = as_matrix(list(columns.values()))
    site = torch.from_numpy(station)
    last = torch.from_numpy((year == 2017) | ((year == 2016) & (month >= 3)))
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


DATASETS: dict[str, Callable[[str | None], Dataset]] = {"heart_disease": heart_disease, "beijing_air": beijing_air}
FACTS = {
    "heart_disease": Facts(920, 29, 2, 4, "heart_disease.csv"),
    "beijing_air": Facts(15301, 15, sites=12, file="beijing_air.npz"),
}


def _fill(cells: Sequence[str], gaps: Sequence[bool], value: float) -> list[str]:
    """The cells, with the value in place of every gap."""
    filled = list(cells)
    for i, gap in enumerate(gaps):
        if gap:
            filled[i] = str(value)
    return filled
