"""What is to be learned, and from which rows: in words, or as objects of one's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from torch import nn

from consilience.data import datasets
from consilience.data.dataset import Dataset
from consilience.data.inputs import inputs_from
from consilience.data.inspection import describe_files
from consilience.data.reading import Reading, reading_from
from consilience.data.sites import Sites
from consilience.data.splits.own import Dealing, Own
from consilience.data.splits.split import Split
from consilience.data.splits.text import parse
from consilience.data.streams import are_large, stream_sites
from consilience.data.tables import is_tables, list_files, merge_reading, read_rows, split_files
from consilience.disk.typed import declared_types
from consilience.distributions.likelihood import Likelihood
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.method import Bound, Method, OnFeatures, Streaming
from consilience.method import name as method_name
from consilience.method.declared import on_linear
from consilience.methods.advice import usual_map, usual_network, usual_settings
from consilience.models import Factory, model
from consilience.models.controlled import control
from consilience.models.maps import bound_features, on_features, width_of
from consilience.serialisation.blueprint import describe_network
from consilience.serialisation.settings import describe
from consilience.task import Task, classification, counts, regression, survival

T = TypeVar("T")
AnySplit: TypeAlias = str | Split | Dealing
CALIBRATION = 30  # labelled rows of the server, where nobody says
FIRST = (  # what a problem's JSON always holds; anything else only where it is not as usual
    *("data", "target", "sites", "split", "model", "test", "calibration", "inputs", "validation", "data_dir"),
)
OF_FILES = ("target", "reading", "time", "event", "exposure")
OF_ROWS = (
    *("data", "target", "sites", "split", "test", "calibration", "inputs", "validation", "data_dir", "reading"),
    *("conformal", "time", "event", "exposure", "stream"),
)
OF_TASK = ("model", "features", "prior_var", "likelihood", "horizon", "bounded")
WORDS: dict[str, Any] = {  # what stands in JSON for fields that may be objects, too
    **dict.fromkeys(("sites",), int | None),
    **dict.fromkeys(("split", "task", "features", "data_dir"), str | None),
    **dict.fromkeys(("data", "model", "reading"), str),
}
FRAMES = (
    "A {} is no name, files or data set: pass Problem(sites=lambda seed: co.from_frame(frame, target, seed=seed)), or "
    "Problem(co.from_arrays(frame, target))."
)
NO_ROWS = 'Say which rows there are: a data set\'s name or files, as Problem("moons"), or Problem(sites=my_sites).'


class Memory:
    """What a problem and its copies have read, the last of each kind: a command reads its files once."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Hashable, Any]] = {}

    def recall(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """Give what was made before under the same key; make it where nothing was."""
        if kind not in self.kept or self.kept[kind][0] != key:
            self.kept[kind] = (key, make())
        made: T = self.kept[kind][1]
        return made

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()  # other processes read for themselves


@dataclass(frozen=True)
class Problem:
    """What is to be learned from which rows: what methods are run, compared and tuned on.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=3, split="dirichlet:0.5")
        >>> co.run("mixture", problem).report["model"]
        'Sequential'
        >>> task, sites = problem.build(seed=1)  # the objects themselves

    Rows are read when they are first asked for, and once.

    Attributes:
        data: A data set's name, CSV files, one a site (a folder, patterns, or the files), or a `Dataset`.
        target: The column to predict, for CSV files.
        sites: How many; 5, or as many as the data name, if None. Or the rows with their roles: `Sites`, which all
            seeds share, or a function from a seed to them.
        split: How rows are spread over the sites: in words, a `Split`, or a function (rows, sites, key) → row numbers
            of every site, redrawn by each seed. If None, natural where files or sites are named, else
            `dirichlet:0.5`, or `iid` for numbers. For a comparison also several, a table each.
        model: The network: a name, any `nn.Module`, or a class or function called with (features, classes). What is
            usual if None: linear on features and for counts and survival, else `mlp`.
        test: The share of rows to test on.
        calibration: Labelled rows that the server has.
        inputs: Unlabelled rows that the server has: how many, a share below 1, or another data set, as
            `cifar100:2000`.
        validation: The share of training rows left out.
        data_dir: Where data sets are kept.
        features: The feature map under the network: a name, as `conv:512`, a run's folder, or any network, which is
            frozen. If None and no network is named either, what is usual where a method needs fixed features.
        reading: How tables are read: a `Reading`, or what its `to_text` writes.
        conformal: The share of training rows held out for prediction sets.
        task: What the target of CSV files is read as: `classification`, `regression` or `counts`; by its cells if
            None. Or a `Task`, or a function from `Sites` to one.
        time: The column of times to an event, for CSV files; with `event`, in place of a target.
        event: The column that says whether the event was seen.
        exposure: The column of how long or how many were exposed, for counts.
        horizon: The time at which predicted risks of an event are held against what was seen.
        bounded: Whether features are no longer than 1, as differential privacy asks for.
        prior_var: The variance of every weight under the prior, N(0, prior_var); 1 if None.
        likelihood: How targets arise from the network's outputs; by the targets if None.
        columns: A columns.toml that says how CSV files are read, and perhaps the target.
        stream: Whether training rows stay in their files, CSV or Parquet, one a site, and are read a part at a time,
            for methods that need sums alone; None: where all methods do, and files are larger than 2 GB in all.
        memory: What was read; copies share it.

    Raises:
        InputError: No rows are named, or something is said twice; the sentence says what.
    """

    data: str | Path | Sequence[str | Path] | Dataset | None = None
    target: str | None = None
    _: KW_ONLY
    sites: int | Sites | Callable[[int], Sites] | None = None
    split: AnySplit | Sequence[AnySplit] | None = None
    model: str | nn.Module | Factory | None = None
    test: float = 0.2
    calibration: int = CALIBRATION
    inputs: float | str = 0
    validation: float = 0.0
    data_dir: str | None = None
    features: str | nn.Module | None = None
    reading: str | Reading = ""
    conformal: float = 0.0
    task: str | Task | Callable[[Sites], Task] | None = None
    time: str | None = None
    event: str | None = None
    exposure: str | None = None
    horizon: float | None = None
    bounded: bool = False
    prior_var: float | None = None
    likelihood: Likelihood | None = None
    columns: str | Path | None = None
    stream: bool | None = None
    memory: Memory = field(default_factory=Memory, repr=False, compare=False)

    def __post_init__(self) -> None:
        changes: dict[str, Any] = {}
        if isinstance(self.data, Path):
            changes["data"] = str(self.data)
        elif self.data is not None and not isinstance(self.data, str | Dataset):
            if not isinstance(self.data, Sequence):
                raise InputError(FRAMES.format(type(self.data).__name__))
            changes["data"] = ",".join(str(path) for path in self.data)
        if isinstance(self.reading, Reading):
            changes["reading"] = self.reading.to_text()
        if self.columns is not None:
            reading, target = merge_reading(reading_from(changes.get("reading", self.reading)), self.columns)
            changes |= {"reading": reading.to_text(), "target": self.target or target, "columns": None}
        if callable(self.split) and not isinstance(self.split, Split):
            changes["split"] = Own(self.split)
        elif isinstance(self.split, Sequence) and not isinstance(self.split, str):
            changes["split"] = tuple(_named(split) for split in self.split)
        for name, value in changes.items():
            object.__setattr__(self, name, value)
        self._refuse_twice()

    def _refuse_twice(self) -> None:
        """Refuse what objects say already, and would be ignored."""
        if self.given_sites:
            self._refuse([name for name in OF_ROWS if name != "sites"], "the sites hold their rows and roles already")
        elif self.data is None:
            raise InputError(NO_ROWS)
        elif isinstance(self.data, Dataset):
            self._refuse([*OF_FILES, "data_dir"], "the data set is read already")
        if self.given_task:
            self._refuse(OF_TASK, "the task says what is learned already")
        elif isinstance(self.task, str) and (self.given_sites or isinstance(self.data, Dataset)):
            raise InputError(f"task='{self.task}' is for CSV files: leave it out, or pass a Task.")

    def _refuse(self, names: Iterable[str], why: str) -> None:
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        said = [name for name in names if getattr(self, name) is not usual[name] and getattr(self, name) != usual[name]]
        if said:
            raise InputError(f"{' and '.join(said)} would change nothing, as {why}: leave that out.")

    @property
    def given_sites(self) -> bool:
        """Whether the sites come as objects, with their rows."""
        return isinstance(self.sites, Sites) or callable(self.sites)

    @property
    def given_task(self) -> bool:
        """Whether the task comes as an object."""
        return isinstance(self.task, Task) or callable(self.task)

    @property
    def redraws(self) -> bool:
        """Whether each seed splits the rows anew."""
        return not isinstance(self.sites, Sites)

    @property
    def splits(self) -> tuple[str | Split | None, ...]:
        """The splits, a table of a comparison each; None is the data's usual one."""
        splits = self.split if isinstance(self.split, tuple) else (self.split,)
        return tuple(split if split is None or isinstance(split, str | Split) else Own(split) for split in splits)

    @property
    def reads_files(self) -> bool:
        """Whether the rows come from CSV files."""
        return isinstance(self.data, str) and self.data not in datasets.DATASETS and is_tables(self.data)

    @property
    def name(self) -> str:
        """The data in words."""
        if isinstance(self.data, str):
            return self.data
        if isinstance(self.data, Dataset):
            return self.data.name
        return self.build_sites().name

    @property
    def holds_out(self) -> bool:
        """Whether there are rows to score on; of a data set's own test rows it is told by `test`, too."""
        if self.given_sites:
            return self.build_sites().holds_out
        return self.test > 0

    @property
    def labelled(self) -> bool:
        """Whether the server has labelled rows."""
        if self.given_sites:
            return self.build_sites().calibration is not None
        return bool(self.calibration)

    @property
    def predicts_times(self) -> bool:
        """Whether times to an event are predicted; no file is read."""
        if self.given_sites:
            return self.build_sites().outcome == "survival"
        if isinstance(self.data, Dataset):
            return self.data.outcome == "survival"
        facts = datasets.FACTS.get(str(self.data))
        return self.time is not None or (facts is not None and facts.outcome == "survival")

    @property
    def has_fixed_test(self) -> bool:
        """Whether all seeds share their test rows."""
        return not self.redraws or (not self.given_sites and self._dataset().x_test is not None)

    @property
    def network(self) -> str:
        """The network in words, with the feature map under it."""
        shown = _in_words(self.model)
        if isinstance(self.task, Task):
            shown = type(self.task.model).__name__
        elif self.given_task:
            shown = _in_words(self.task)
        if self.features is None:
            return str(shown)
        return f"{shown} on {_in_words(self.features)}"

    def settle(self, methods: Iterable[Method], seed: int = 0) -> Problem:
        """Choose the feature map and the network on it, where nobody named them.

        Args:
            methods: What is to run.
            seed: Of rows that are looked at.

        Returns:
            The problem with both; as it is where there is a task.

        Raises:
            InputError: A prior is asked for that none of the methods would look at.
        """
        methods = list(methods)
        check_prior(self.prior_var, methods)
        if self.stream is None and self.streams and not all(isinstance(method, Streaming) for method in methods):
            return dataclasses.replace(self, stream=False).settle(methods, seed)  # nobody asked, and rows are needed
        if self.given_task or self.model is not None:
            return self
        chosen, features = None, self.features
        if features is None and self.build_sites(seed).outcome:
            chosen = "linear"  # effects of the columns themselves are what counts and survival are modelled for
        elif features is None and any(isinstance(method, OnFeatures) for method in methods):
            features = usual_map(methods, self.build_sites(seed).shape, self.bounded)
        if chosen is None and features is None:
            chosen = usual_network(methods) or "mlp"
        return dataclasses.replace(self, model=chosen or "linear", features=features)

    def usual_settings(self, method: Method, chosen: Iterable[str] = (), seed: int = 0) -> tuple[str, ...]:
        """List a method's usual settings on this network, on these rows: the same for runs and comparisons.

        Args:
            chosen: Settings that somebody chose.
            seed: Of rows that are looked at.

        Returns:
            `field=value` each; none where the network is not linear on the columns.
        """
        if not on_linear(method) or not self._is_linear(seed):
            return ()
        sites = self.build_sites(seed)
        weights = (sites.train[0].x[0].numel() + 1) * (sites.classes or 1)
        return usual_settings(method, sites.kind, weights, chosen)

    def _is_linear(self, seed: int) -> bool:
        """Whether the network is one affine layer on the columns, however it was named."""
        if isinstance(self.model, str) and not self.given_task:
            return self.model == "linear" and self.features in (None, "identity")
        if self.features is not None:
            return False
        network = self.build(seed)[0].model
        layers = [layer for layer in network.modules() if not isinstance(layer, nn.Sequential | nn.Flatten)]
        return [type(layer) for layer in layers] == [nn.Linear]

    def build(self, seed: int = 0, kept: Task | None = None) -> tuple[Task, Sites]:
        """Build the same rows, split and network for every method.

        Args:
            seed: What the split comes from.
            kept: The task as an earlier start built it, where what it was built from may have gone.

        Raises:
            InputError: The rows are of another kind, or the feature map is not to be had.

        Example:
            >>> import consilience as co
            >>> task, sites = co.Problem("moons", sites=3, model="linear").build(seed=1)
            >>> sites.names
            ('0', '1', '2')
        """
        sites = self.build_sites(seed)
        if self.horizon is not None and sites.outcome != "survival":
            raise InputError("horizon is for times to an event, which these rows do not have: leave it out.")
        if isinstance(self.task, Task):
            kept = self.task
        elif callable(self.task):
            kept = _made(self.task(sites), Task, "task")
        if kept is not None:
            return kept, sites
        return self.settle((), seed)._task(sites), sites

    def _task(self, sites: Sites) -> Task:
        """The network, with the likelihood of such targets unless there is one, and the prior."""
        network = self._network(sites)
        prior = None
        if self.prior_var is not None:
            prior = Isotropic(self.prior_var)
        if self.likelihood is not None:
            return Task(control(network), self.likelihood, prior or Isotropic())
        if sites.classes:
            return classification(network, prior)
        if sites.outcome == "counts":
            return counts(network, prior)
        if sites.outcome == "survival":
            return survival(network, prior, horizon=self.horizon)
        return regression(network, prior=prior)

    def _network(self, sites: Sites) -> nn.Module:
        """The network on its features."""
        feature_map = None
        if isinstance(self.features, nn.Module):
            feature_map = self.features
        elif self.features is not None:
            from consilience.runs.feature_maps import features_from  # which loads runs, whose module needs this one

            feature_map = features_from(self.features, sites, self.bounded)
        if self.bounded:
            feature_map = bound_features(feature_map, sites.shape)
        if isinstance(self.model, str):
            return model(self.model, sites.features, sites.classes, feature_map)
        width: Any = sites.features
        if feature_map is not None:
            width = width_of(feature_map, sites.features)
        network = self.model
        if not isinstance(network, nn.Module):
            assert network is not None
            network = _call(network, width, sites.classes)
        if feature_map is None:
            return network
        return on_features(feature_map, network)

    def build_sites(self, seed: int = 0) -> Sites:
        """Build the sites with their rows.

        Args:
            seed: What the split comes from.

        Raises:
            InputError: The data are unknown, or need a target, or have one already.

        Example:
            >>> import consilience as co
            >>> len(co.Problem("moons", sites=3).build_sites(seed=1).train)
            3
        """
        if isinstance(self.sites, Sites):
            return self.sites
        if len(self.splits) > 1:
            raise InputError(f"{len(self.splits)} splits are for a comparison, a table each: name one split.")
        key = (seed, self.splits, *(getattr(self, name) for name in OF_ROWS if name != "split"), self.task)
        return self.memory.recall("sites", (key, self._stamps()), lambda: self._build_sites(seed))

    def _build_sites(self, seed: int) -> Sites:
        if callable(self.sites):
            return _made(self.sites(seed), Sites, "sites")
        if self.streams:
            return self._stream_sites(seed)
        if isinstance(self.inputs, str):
            without_inputs = dataclasses.replace(self, inputs=0).build_sites(seed)
            return with_inputs(without_inputs, self.inputs, seed, self.data_dir)
        inputs = self.inputs
        if not 0 < inputs < 1:
            if not float(inputs).is_integer():
                raise InputError(f"inputs={inputs} is neither a count nor a fraction below 1: try inputs=100.")
            inputs = int(inputs)
        roles: dict[str, Any] = {
            "test": self.test,
            "calibration": self.calibration,
            "inputs": inputs,
            "validation": self.validation,
            "conformal": self.conformal,
            "seed": seed,
        }
        (split,) = self.splits
        count = self.sites
        assert count is None or isinstance(count, int)
        if isinstance(split, str):
            split = parse(split)
        rows = self._dataset()
        if self.reads_files:
            return split_files(rows, split, count, standardise=True, **roles)
        return rows.split(split or rows.usual_split(), count, **roles)

    @property
    def streams(self) -> bool:
        """Whether training rows stay in their files."""
        if self.stream is not None or not self.reads_files:
            return bool(self.stream)
        try:
            return not self._unstreamed() and are_large(list_files(str(self.data)))
        except InputError:  # said where they are read, after what else is missing
            return False

    def _unstreamed(self) -> list[str]:
        """What is asked for that rows cannot have that stay in their files."""
        asked = {name: getattr(self, name) for name in ("sites", "inputs", "validation", "conformal")}
        asked |= {"split": self.splits != (None,), "calibration": self.calibration not in (0, CALIBRATION)}
        return [name for name, value in asked.items() if value]

    def _stream_sites(self, seed: int) -> Sites:
        if not self.reads_files:
            raise InputError(f"stream is for files, and {self.name} is read already: leave it out.")
        if asked := self._unstreamed():
            raise InputError(
                f"Rows that stay in their files are trained on or tested on, and a file is a site: leave "
                f"{' and '.join(asked)} out, or read them whole (--no-stream, stream=False)."
            )
        reading = reading_from(str(self.reading))
        if isinstance(self.task, str):
            reading = dataclasses.replace(reading, task=self.task)
        told: dict[str, Any] = {
            "test": self.test,
            "seed": seed,
            "time": self.time,
            "event": self.event,
            "exposure": self.exposure,
        }
        return stream_sites(str(self.data), self.target, reading, **told)

    def _dataset(self) -> Dataset:
        """The rows before anybody has a role, read once."""
        if isinstance(self.data, Dataset):
            return self.data
        assert isinstance(self.data, str)
        what = (self.data, self.data_dir, self.task, *(getattr(self, name) for name in OF_FILES), self._stamps())
        return self.memory.recall("rows", what, self._read)

    def _read(self) -> Dataset:
        assert isinstance(self.data, str)
        if self.reads_files:
            reading = reading_from(str(self.reading))
            if isinstance(self.task, str):
                reading = dataclasses.replace(reading, task=self.task)
            return read_rows(self.data, self.target, reading, self.time, self.event, self.exposure)
        if self.reading:
            raise InputError(f"{self.data} is a data set that is read already: how to read is for CSV files.")
        for name in ("target", "task", "time", "event", "exposure"):
            if getattr(self, name) is not None and not (name == "task" and self.given_task):
                raise InputError(f"{name} is for CSV files, and {self.data} knows what it predicts: leave it out.")
        return datasets.load(self.data, self.data_dir)

    def _stamps(self) -> Hashable:
        """What changes where a file is written anew."""
        if not self.reads_files:
            return None
        try:
            files = [(path, path.stat()) for path in list_files(str(self.data))]
        except InputError:
            return None  # whoever reads them says what is wrong
        return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in files)

    def describe_files(self) -> dict[str, str]:
        """Say how each of the files is written; nothing for data sets."""
        if not self.reads_files:
            return {}
        make = lambda: describe_files(list_files(str(self.data)), reading_from(str(self.reading)))
        return self.memory.recall("files", (self.data, self.reading, self._stamps()), make)

    def to_json(self) -> dict[str, Any]:
        """Write the problem as JSON, without the data folder, which is this machine's business.

        Objects are written as what tells them from others; rows are hashed where they are used.
        """
        value: dict[str, Any] = {}
        for each in dataclasses.fields(self):
            told = getattr(self, each.name)
            plain = told is None or isinstance(told, bool | int | float | str)
            usual = told == each.default if plain else each.name == "memory"
            if each.name in FIRST or not usual:
                value[each.name] = _in_words(told)
        return {**value, "data_dir": None}


def as_problem(task: Task | Problem, sites: Sites | None) -> Problem:
    """Take a problem as it is; make one of a task and its rows.

    Args:
        sites: The rows of a task.

    Raises:
        InputError: There are no rows, or two kinds of them.
    """
    if not isinstance(task, Problem):
        if sites is None:
            raise InputError("Say on which rows: run(method, task, sites), or run(method, problem).")
        return Problem(task=task, sites=sites)
    if sites is not None:
        raise InputError("A problem holds its sites: leave sites out, or pass Problem(sites=…, task=…).")
    return task


def words_of(kind: type) -> dict[str, Any]:
    """List the fields of a problem that can be said in words, with the types of the words.

    Args:
        kind: `Problem`.

    Returns:
        Types by name, in order.
    """
    hints = declared_types(kind)
    names = [each.name for each in dataclasses.fields(kind) if each.name not in ("likelihood", "columns", "memory")]
    return {name: WORDS.get(name, hints[name]) for name in names}


def check_prior(var: float | None, methods: Iterable[Method]) -> None:
    """Refuse a prior that cannot be, or that would change nothing.

    Args:
        var: The variance of every weight that is asked for; None: nothing is.
        methods: What is to run; nothing, where that is yet to be chosen.

    Raises:
        InputError: It is no variance, or every method weighs a prior of its own.
    """
    if var is None:
        return
    if not 0 < var < math.inf:
        raise InputError(f"A prior variance of {var:g} is not a variance: give a number above 0, for example 100.")
    learning = [method for method in methods if not isinstance(method, Bound)]
    if learning and all(isinstance(method, OnFeatures) and method.own_prior for method in learning):
        names = " and ".join(method_name(method) for method in learning)
        raise InputError(f"A prior variance would change nothing: {names} weighs a prior of its own. Leave it out.")


def with_inputs(sites: Sites, text: str, seed: int, data_dir: str | None) -> Sites:
    """Give the server inputs from another data set.

    Args:
        text: The data set's name, as `cifar100`, or `cifar100:2000` for so many of its rows.
        seed: What the draw of rows comes from.
        data_dir: Where data sets are kept.

    Returns:
        The same sites with these inputs.

    Raises:
        InputError: What follows the colon is not a number of rows.
    """
    name, colon, number = text.partition(":")
    if colon and not number.isdecimal():
        raise InputError(f"'{text}' does not say how many rows: write for example {name}:2000.")
    count = None
    if colon:
        count = int(number)
    return inputs_from(sites, datasets.load(name, data_dir), count, seed)


def _named(split: AnySplit) -> str | Split:
    """A split as it is, a function as one."""
    if isinstance(split, str | Split):
        return split
    return Own(split)


def _call(factory: Factory, features: Any, classes: int | None) -> nn.Module:
    """A network of somebody's own class or function."""
    try:
        made = factory(features, classes)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"The model {_in_words(factory)} cannot be made for {features} features and {classes or 1} outputs: "
            f"{type(error).__name__}: {error}; a class or function is called with both."
        ) from error
    return _made(made, nn.Module, "model")


def _made(value: Any, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise InputError(f"{what}= is a function that returned {type(value).__name__}: return {kind.__name__}.")
    return value


def _in_words(value: Any) -> Any:
    """A field as JSON: words as they are, an object as what tells it from others."""
    if isinstance(value, tuple):
        return [_in_words(part) for part in value]
    if isinstance(value, Sites):
        return {"name": value.name, "fingerprint": value.fingerprint()}
    if isinstance(value, Task):
        network = describe_network(value.model) or type(value.model).__name__
        return {"network": network, "likelihood": describe(value.likelihood), "prior": describe(value.prior)}
    if isinstance(value, Split | Dataset):
        return getattr(value, "name", str(value))
    if callable(value):  # a module, too
        return getattr(value, "__qualname__", type(value).__name__)
    return describe(value)
