"""Whether a device computes what the processor does, for every method, and how fast: a table to report."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from consilience import tree
from consilience.data import datasets
from consilience.data.sites import Data, Sites
from consilience.data.splits.labels import dirichlet, natural
from consilience.errors import Diverged, InputError
from consilience.inference.point import SGD
from consilience.method import Bound, Method, OnFeatures, is_personal
from consilience.method.declared import averages
from consilience.methods import METHODS
from consilience.models.cnn import cnn_chen
from consilience.models.maps import features, on_features
from consilience.models.mlp import linear, mlp
from consilience.progress import track
from consilience.runs.device import device as find_device
from consilience.runs.engines.workers import cores
from consilience.runs.result import Result
from consilience.runs.run import Compute, run
from consilience.task import Task, classification, regression

T = TypeVar("T")

ENGINES = ("sequential", "vectorised", "parallel")
AGREED = {"cpu": 1e-4}  # the largest difference of a prediction: float32 sums in another order
ELSEWHERE = 1e-3  # on other devices, whose products round in their own way
SHORT = {"epochs": 2, "batch": 16, "cycles": 1, "samples": 2, "keep": 2, "burn": 0, "every": 1, "rows": 4, "noises": 2}
SHORT |= {"trajectories": 2, "steps": 6, "data_steps": 2, "coreset_steps": 2, "updates": 2}
ROLES: dict[str, Any] = {"test": 0.25, "calibration": 12, "inputs": 10, "seed": 1}
WIDTH = 6  # fixed features, for methods that learn a linear layer on them


class Agreement(NamedTuple):
    """How far a method's predictions on the device are from those of the processor, one site after another.

    Attributes:
        method: Its name.
        differences: The largest difference of a prediction, by engine.
        error: What went wrong; empty where nothing did.
    """

    method: str
    differences: dict[str, float]
    error: str = ""

    def holds(self, tolerance: float) -> bool:
        """Say whether all engines agree.

        Args:
            tolerance: The largest difference that is rounding.
        """
        return not self.error and all(gap <= tolerance for gap in self.differences.values())


class Speed(NamedTuple):
    """How long a round takes.

    Attributes:
        what: The network and the sites.
        engine: Where the sites' work ran.
        processor: Seconds on the processor.
        device: Seconds on the device.
    """

    what: str
    engine: str
    processor: float
    device: float


class DeviceCheck(NamedTuple):
    """What a check found.

    Attributes:
        device: Its name.
        facts: What it is, and under what it was checked.
        tolerance: The largest difference that counts as rounding.
        agreements: One for every method.
        speeds: Rounds of FedAvg's kind, by network and engine.
    """

    device: str
    facts: dict[str, str]
    tolerance: float
    agreements: tuple[Agreement, ...]
    speeds: tuple[Speed, ...]

    @property
    def passed(self) -> bool:
        """Whether every method agrees."""
        return all(agreement.holds(self.tolerance) for agreement in self.agreements)

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON, to be reported."""
        return {
            "device": self.device,
            "facts": self.facts,
            "tolerance": self.tolerance,
            "passed": self.passed,
            "agreements": [agreement._asdict() for agreement in self.agreements],
            "speeds": [speed._asdict() for speed in self.speeds],
        }


def check_device(name: str, methods: Sequence[str] = (), bench: bool = True) -> DeviceCheck:
    """Run every method on a tiny problem on a device, and hold its predictions against the processor's.

    Args:
        name: The device: `cpu`, `cuda`, `cuda:1` or `mps`.
        methods: Which methods; none: all.
        bench: Whether to time rounds too.

    Returns:
        What was found.

    Raises:
        InputError: There is no such device here, or no such method.
    """
    place = find_device(name)
    agreements = [compare_engines(method, name) for method in track(list(methods or METHODS), "method")]
    speeds: list[Speed] = []
    if bench:
        speeds = [time_rounds(what, engine, name) for what in NETWORKS for engine in ENGINES]
    tolerance = AGREED.get(place.type, ELSEWHERE)
    return DeviceCheck(name, describe_device(place), tolerance, tuple(agreements), tuple(speeds))


def describe_device(place: torch.device) -> dict[str, str]:
    """Say what a device is, and under what it is checked.

    Args:
        place: The device.

    Returns:
        Facts by name; no name of the machine.
    """
    kind = f"{cores()} cores"
    if place.type == "cuda":
        kind = torch.cuda.get_device_name(place)
    elif place.type != "cpu":
        kind = place.type
    return {
        "device": kind,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def compare_engines(name: str, device: str) -> Agreement:
    """Run a method on every engine on a device, and measure how far each is from the processor.

    Args:
        name: The method's name.
        device: The device's name.

    Returns:
        The differences; or what went wrong, which is a finding and stops no other method.
    """
    method = shorten(METHODS[name]())
    task, sites = small_problem(METHODS[name])
    try:
        reference = _predictions(run(method, task, sites, rounds=1, engine="sequential", scored=False))
        differences = {}
        for engine in ENGINES:
            if engine == "sequential" and device == "cpu":
                continue  # that is the reference
            result = run(method, task, sites, rounds=1, engine=Compute(engine, device=device), scored=False)
            differences[engine] = _distance(reference, _predictions(result))
    except (Diverged, InputError, RuntimeError, NotImplementedError) as error:
        return Agreement(name, {}, str(error).partition("\n")[0])
    return Agreement(name, differences)


def _predictions(result: Result) -> list[Any]:
    """What all models of a run say of the test rows; a run brings its state to the processor."""
    names: tuple[str | None, ...] = (None,)
    if is_personal(result.method):
        names = result.sites.names
    return [result.model(site)(result.sites.all_test.x) for site in names]


def _distance(a: Any, b: Any) -> float:
    """The largest difference between leaves, relative where numbers exceed 1."""
    gaps = []
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        left = torch.as_tensor(x, dtype=torch.float64)
        gaps.append(((left - torch.as_tensor(y, dtype=torch.float64)).abs() / left.abs().clamp(min=1)).max())
    return float(max(gaps))


def small_problem(kind: type[Method]) -> tuple[Task, Sites]:
    """Make a problem of few rows that suits a method.

    Args:
        kind: The method's class.

    Returns:
        The task and the sites: moons over four, or a curve over five.
    """
    if "classification" in kind.about.tasks:
        sites = datasets.moons(n=160).split(dirichlet(0.8), sites=4, **ROLES)
    else:
        sites = datasets.sine(n_per_site=30).split(natural(), **ROLES)
    network = mlp(sites.features, sites.classes, hidden=(5,))
    if issubclass(kind, OnFeatures):
        layer = linear(WIDTH, sites.classes)
        network = on_features(features(f"relu:{WIDTH}", sites.features), layer)
    if sites.classes:
        return classification(network), sites
    return regression(network), sites


def shorten(settings: T) -> T:
    """Cut settings to two epochs, one cycle and few samples, wherever those fields stand.

    Args:
        settings: A method, an inference, or anything else with settings.

    Returns:
        The same, shorter.
    """
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = shorten(value)
        elif field.name in SHORT:
            changes[field.name] = SHORT[field.name]
    return dataclasses.replace(settings, **changes)  # type: ignore[type-var]


class Network(NamedTuple):
    """What a round is timed on."""

    shape: int | tuple[int, ...]
    sites: int
    rows: int


NETWORKS = {
    "mlp, 20 sites of 100 rows": Network(784, 20, 100),
    "cnn_chen, 4 sites of 64 rows": Network((1, 28, 28), 4, 64),
}


def time_rounds(what: str, engine: str, device: str) -> Speed:
    """Time a round of weighted averaging on the processor and on a device; the second of two runs counts.

    Args:
        what: One of `NETWORKS`.
        engine: Where the sites' work runs.
        device: The device's name.

    Returns:
        Seconds of both.
    """
    network = NETWORKS[what]
    shape = network.shape
    if isinstance(shape, int):
        model = mlp(shape, 10)
        shape = (shape,)
    else:
        model = cnn_chen(shape, 10)
    draw = torch.Generator().manual_seed(0)
    train = []
    for _ in range(network.sites):
        x = torch.randn(network.rows, *shape, generator=draw)
        train.append(Data.of(x, torch.randint(0, 10, (network.rows,), generator=draw)))
    names = tuple(str(k) for k in range(network.sites))
    sites = Sites(tuple(train), tuple(train), None, None, None, 10, network.shape, "drawn", "iid", names)
    averaging_kinds = [kind for kind in METHODS.values() if averages(kind()) and not issubclass(kind, Bound)]
    averaging: Method = averaging_kinds[0](SGD(epochs=1, batch=20))  # type: ignore[call-arg]
    took = {}
    for place in ("cpu", device):
        for _ in range(2):
            begin = time.perf_counter()
            options: dict[str, Any] = {"scored": False, "keep_replies": "none"}
            run(averaging, classification(model), sites, rounds=1, engine=Compute(engine, device=place), **options)
            _wait(place)
            took[place] = time.perf_counter() - begin
    return Speed(what, engine, took["cpu"], took[device])


def _wait(name: str) -> None:
    """Wait until a device has done what it was asked for."""
    if torch.device(name).type == "cuda":
        torch.cuda.synchronize()
    elif torch.device(name).type == "mps":
        torch.mps.synchronize()
