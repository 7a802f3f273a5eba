"""What a run gives back: scores, predictions with their uncertainty, and the replies, to be pooled again."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy
import torch
from rich.console import Console
from torch import Tensor, nn

from consilience.biostatistics.effects import Effects
from consilience.data.encoding import Encoded, Encoding, is_table, rows_of_table
from consilience.data.sites import Sites
from consilience.disk.locks import locking
from consilience.disk.typed import plain
from consilience.distributions.counts import Counts
from consilience.distributions.posterior import Dense, Gaussian, Point, Samples
from consilience.distributions.predictive import Categorical, Normal, Predictive, check_finite, tempered
from consilience.distributions.survival import Survival
from consilience.errors import InputError, unknown_name
from consilience.key import Key
from consilience.messages import Received, Server
from consilience.method import Method, is_made_at_home, is_personal, name, state_for
from consilience.method.declared import pools_rows
from consilience.metrics.baselines import lines_to_beat
from consilience.metrics.evaluate import BY_SITE, NEWCOMER, Scorer, fitted_temperature, uncertainty
from consilience.metrics.times import recall_baseline
from consilience.prediction_sets.sets import Guarantee, lower_bounds, prediction_intervals, prediction_sets
from consilience.report.schema.frames import to_frame, to_html
from consilience.report.table import run_table
from consilience.runs.effects import Fit, effects_report, run_effects
from consilience.runs.engines import computing
from consilience.runs.engines.influence import measure_influence
from consilience.runs.engines.ledger import Ledger
from consilience.runs.engines.round import play_round, server_in_round
from consilience.runs.engines.soundness import draw_probes
from consilience.runs.identity import check, facts, reported_identity
from consilience.runs.store import ALL_ROWS, FORMAT, Checkpoint, Store
from consilience.serialisation.blueprint import blueprint
from consilience.task import Task
from consilience.tree import Tree

if TYPE_CHECKING:  # no part of the reference
    P = ParamSpec("P")
    T = TypeVar("T")
# what stays true of a run however its replies are pooled
OF_THE_RUN = {"consilience", "format", "model", "compiled", "matmul", "device", "started_from", "participation"}
OF_THE_RUN |= {"ledger", "failures"}
INFLUENCE = 64  # rows on which models with and without a site are compared


def single_threaded(predict: Callable[Concatenate[Result, P], T]) -> Callable[Concatenate[Result, P], T]:
    """Let small networks predict with one BLAS thread, as they are trained: a row is 5 times faster.

    Args:
        predict: A method of a result.
    """

    @functools.wraps(predict)
    def run(result: Result, /, *args: P.args, **options: P.kwargs) -> T:
        with computing(result.task):
            return predict(result, *args, **options)

    return run


class Prediction(NamedTuple):
    """Predictions for some inputs, and where their uncertainty comes from (nats for classes, variance for numbers).

    Aleatoric and epistemic uncertainty add up to the entropy of `probs`, or to `var`.

    Attributes:
        probs: The probabilities of the classes, [N, C]; None for a regression.
        mean: The mean in the target's units; None for a classification.
        var: The variance of an observation; None for a classification.
        aleatoric: The uncertainty in the outcome itself.
        epistemic: The uncertainty from not knowing the weights.
        disagreement: The part of it between sites.
        sets: Whether each class is in the prediction set, [N, C]; None for a regression, or where no level is asked.
        low: The lower end of the prediction interval in the target's units, or a time's lower bound; None likewise.
        high: Its upper end; None also for times, which have none.
        survival: The chance of no event by each time, [N, T]; for times to an event only, whose `mean` and `var` are
            those of the log-hazard.
        times: The times, [T].
    """

    probs: Tensor | None
    mean: Tensor | None
    var: Tensor | None
    aleatoric: Tensor
    epistemic: Tensor
    disagreement: Tensor
    sets: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    survival: Tensor | None = None
    times: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """What a run gives back.

    Attributes:
        method: What was run.
        task: On which problem.
        sites: On whose rows; without rows after `co.load(folder)`.
        state: The server's state after the last round.
        replies: The replies of the last round, if they were kept.
        server: What the server saw.
        report: What run.json holds.
        store: The run's folder, if it has one.
        checkpoint: Where the run stands, with what its sites remember.
        on_all_rows: Gives the same run on all rows, those that are held out here too, which effects are of; None, or
            from it: there is none.

    Example:
        >>> import consilience as co
        >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
        >>> result.metrics["accuracy"] > 0.8
        True
        >>> len(result.replies)
        2
        >>> result.report["rows"]["test"]
        200
    """

    method: Method
    task: Task
    sites: Sites
    state: Tree
    replies: Sequence[Received]
    server: Server
    report: dict[str, Any]
    store: Store | None
    checkpoint: Checkpoint
    on_all_rows: Callable[[], Result | None] | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The scores over all test rows, by name.

        Example:
            >>> import consilience as co
            >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
            >>> sorted(result.metrics)[:3]
            ['accuracy', 'auroc', 'balanced_accuracy']
        """
        metrics: dict[str, float] = self.report["metrics"]
        return metrics

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in the order of a prediction's probabilities; none for a regression."""
        names = self.sites.class_names
        if names is None:
            return tuple(str(c) for c in range(self.sites.classes or 0))
        return names

    @single_threaded
    def predict(
        self,
        x: Any,
        temper: bool = False,
        level: float | Guarantee | None = None,
        site: str | None = None,
    ) -> Prediction:
        """Predict for inputs in the units the data came in.

        Args:
            x: Rows, [N, …]. Where columns have names: also a CSV file's name, a data frame, a dict of columns, or a
                list of dicts, whose categories and gaps are read as in training.
            temper: Apply the temperature that the calibration rows chose. It scales the parts of uncertainty as it does
                all of it: the variance of a number, the entropy of a class.
            level: Give prediction sets that cover this share of rows, calibrated on the rows that the sites held out;
                or the thresholds of `co.conformal`. Sets are of the model without a temperature.
            site: Whose rows they are, by its name: its own model predicts, where sites have models of their own, and
                its own threshold counts, where sites have those; None: the common model, which a newcomer gets, with
                thresholds of that model.

        Raises:
            InputError: The rows are not what the network takes, the site is unknown, or there are no calibration rows
                for a temperature or too few for prediction sets.
            Diverged: The predictions are not finite.

        Example:
            >>> import consilience as co
            >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
            >>> prediction = result.predict([[0.0, 1.0], [1.0, -0.5]])
            >>> prediction.probs.shape
            torch.Size([2, 2])
            >>> prediction.probs.argmax(1).tolist()
            [0, 1]
        """
        inputs = self._inputs(x)
        state = self._state_of(site)
        plain = self.method.predictive(self.task, state)(inputs)
        t = self._temperature(state, site) if temper else 1.0
        p = tempered(plain, t) if temper else plain
        check_finite(p)
        guarantee = self.guarantee(level, site)
        u = uncertainty(self.method, self.task, state, inputs, plain, p)
        if isinstance(p, Categorical):
            prediction = Prediction(p.probs, None, None, u.aleatoric, u.epistemic, u.disagreement)
            if guarantee is None or not isinstance(plain, Categorical):
                return prediction
            return prediction._replace(sets=prediction_sets(plain, guarantee, site))
        if isinstance(p, Survival):
            on = recall_baseline(p, self.report)
            assert isinstance(on, Survival)
            parts = (u.aleatoric, u.epistemic, u.disagreement)
            low = None
            if guarantee is not None:
                low = lower_bounds(on, guarantee, site)
            return Prediction(None, p.risk, p.var, *parts, low=low, survival=on.curves, times=on.times[0])
        if isinstance(p, Counts):
            return Prediction(None, p.mean, p.total, u.aleatoric, u.epistemic, u.disagreement)
        scale, shift = self.sites.target_scale, self.sites.target_shift
        assert isinstance(p, Normal)
        scaled = [v * scale**2 for v in (u.aleatoric, u.epistemic, u.disagreement)]
        prediction = Prediction(None, p.mean * scale + shift, p.total * scale**2, *scaled)
        if guarantee is None or not isinstance(plain, Normal):
            return prediction
        low, high = prediction_intervals(plain, guarantee, site)
        return prediction._replace(low=low * scale + shift, high=high * scale + shift)

    def guarantee(self, level: float | Guarantee | None, site: str | None = None) -> Guarantee | None:
        """Find the thresholds that `predict` makes sets by: of the model that predicts the site's rows.

        Args:
            level: The share of rows to be covered, or thresholds of that model.
            site: Whose rows they are, as for `predict`.

        Returns:
            Those given, those of the rows at hand, or those that the run wrote down; None where no level is asked.

        Raises:
            InputError: The thresholds are of another model, or there are none for this level.

        Example:
            >>> import consilience as co
            >>> result = co.run("exact", co.Problem(co.datasets.moons(1500), sites=2, split="iid", conformal=0.3))
            >>> result.guarantee(0.9).level
            0.9
        """
        from consilience.runs.conformal import guarantee_for  # which calibrates a result

        if level is None:
            return None
        return guarantee_for(self, level, site)

    @property
    def memories(self) -> Mapping[int, Tree]:
        """What each site kept in the last round, by number."""
        return self.checkpoint.memories

    def model(self, site: str | None = None) -> Predictive:
        """Take what predicts a site's rows, on the scale that the network sees.

        Args:
            site: Its name; None: the common model, which a newcomer gets.

        Returns:
            A function from inputs to a distribution: of the site's own model, where sites have such.

        Raises:
            InputError: The site is unknown, there is no model for all, or what sites kept is not at hand.

        Example:
            >>> import consilience as co
            >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
            >>> result.model()(result.sites.test[0].x[:4]).probs.shape
            torch.Size([4, 2])
        """
        return self.method.predictive(self.task, self._state_of(site))

    def read(self, table: Any) -> Encoded:
        """Read a table as the rows trained on were read; rows that cannot be used are named, one by one.

        Args:
            table: A CSV file's name, a data frame, a dict of columns, or a list of dicts.

        Returns:
            The rows, whose `x` can be predicted.

        Raises:
            InputError: The run's columns have no names, a column is missing, or no row can be used.

        Example:
            >>> import consilience as co
            >>> import polars as pl
            >>> age, sex, ill = [61, 54, 70, 48] * 20, ["f", "m", "f", "f"] * 20, [1, 0, 1, 0] * 20
            >>> frame = pl.DataFrame({"age": age, "sex": sex, "ill": ill})
            >>> sites = co.from_frame(frame, target="ill", sites=2, split=co.splits.iid(), calibration=0)
            >>> result = co.run("gaussian_product", co.Problem(sites=sites, model="linear"))
            >>> result.read({"age": [50], "sex": ["f"]}).x.shape
            torch.Size([1, 3])
        """
        columns = self.sites.columns
        if columns is None and self.sites.feature_names is not None:
            columns = tuple(Encoding(feature) for feature in self.sites.feature_names)
        if columns is None:
            raise InputError("This run was made from arrays without names of columns: give rows as an array [N, …].")
        return rows_of_table(table, columns)

    def _inputs(self, x: Any) -> Tensor:
        """Rows as the network takes them; what it was not made for is refused."""
        if is_table(x):
            x = self.read(x).whole()
        rows = x if isinstance(x, Tensor) else torch.as_tensor(numpy.asarray(x))  # lists keep their digits
        features = self.sites.features
        wanted = (features,) if isinstance(features, int) else tuple(features)
        if tuple(rows.shape[1:]) != wanted:
            each = " × ".join(str(n) for n in wanted)
            raise InputError(f"Give rows of {each} features each, an array [N, …]; this is {list(rows.shape)}.")
        if not bool(torch.isfinite(rows).all()):
            first = int((~torch.isfinite(rows)).flatten(1).any(1).int().argmax())
            raise InputError(f"Row {first} holds NaN or an infinite value: fill it in, or leave the row out.")
        return self._as_input(rows)

    def _as_input(self, rows: Tensor) -> Tensor:
        """Rows of finite numbers on the scale and of the type that the network takes."""
        device_and_type = next(iter(self.task.like.values()))
        if not self.sites.holds_tokens:
            return self.sites.scaled(rows.double()).to(device_and_type)
        if bool((rows != rows.round()).any()) or bool((rows < 0).any()):
            raise InputError("This run was made from token ids: give whole numbers from 0.")
        return rows.to(device_and_type.device, torch.int64)

    def _state_of(self, site: str | None) -> Any:
        """The state whose model predicts a site's rows; the server's where nobody says whose they are."""
        if site is None:
            return self.state
        if site not in self.sites.names:
            raise unknown_name("site", site, self.sites.names)
        if is_made_at_home(self.method) and not self.memories:
            raise InputError(
                "This copy of the run holds nothing that sites keep, and their own models are made of it: load the "
                "run from its folder, co.load(folder), or leave site= out for the model that a newcomer gets."
            )
        return state_for(self.method, self.task, self.state, self.memories, self.sites.names.index(site))

    def _temperature(self, state: Any, site: str | None) -> float:
        """The temperature of the model that predicts: fitted on the rows at hand, or what the run wrote down."""
        if self.sites.calibration is not None:
            return fitted_temperature(self.method.predictive(self.task, state), self.sites)
        report = self.report
        if is_personal(self.method) and site is None:
            report = report.get(NEWCOMER) or {}
        known = report.get("tempered") or {}
        if not known:
            raise InputError("There are no calibration rows to fit a temperature on; use temper=False.")
        if not is_personal(self.method) or site is None:
            return float(known["temperature"])
        if BY_SITE not in known:
            raise InputError(
                "This run did not write down the temperature of each site's own model: hand in the rows, "
                "co.load(folder, sites=sites), or use temper=False."
            )
        return float(known[BY_SITE][self.sites.names.index(site)])

    def check_predicts(self) -> None:
        """Predict one invented row, so that a state that does not fit its task is noticed before it is used.

        Raises:
            Exception: Whatever goes wrong; not where the method has its own sentence for why it does not predict.
        """
        features = self.sites.features
        shape = (features,) if isinstance(features, int) else tuple(features)
        loaded_alone = self.sites.calibration is None
        with suppress(InputError):
            self.predict(torch.zeros(1, *shape), temper=loaded_alone and bool(self.report.get("tempered")))

    @locking("folder")
    def save(self, folder: str | Path) -> Path:
        """Keep everything but the rows in a folder, with its report; `co.load(folder)` brings it back.

        Raises:
            InputError: The folder holds another run.

        Example:
            >>> import consilience as co
            >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
            >>> folder = result.save("results/exact")
            >>> (folder / "run.json").exists()
            True
        """
        from consilience.report.run_page import run_page  # here, because drawing takes a second to import

        store = Store(folder)
        if self.store is None or self.store.folder.resolve() != store.folder.resolve():
            if store.exists:
                raise InputError(f"{folder} already holds a run; choose another folder.")
            store.save(self.checkpoint, list(self.replies))
            store.write_json("task.json", {"format": FORMAT, **blueprint(self.task, self.sites)})
            if self.report.get("effects") and self.on_all_rows is not None:
                whole = self.on_all_rows()
                if whole is not None:
                    whole.save(store.folder / ALL_ROWS)
        report = {**self.report, "baselines": self.baselines}
        if "bounds" in self.__dict__:  # trained already
            report["bounds"] = self.bounds
        store.write_report(report)
        store.write("report.html", run_page(report).encode())
        return store.folder

    def pool(self, method: Method, scored: bool = True) -> Result:
        """Pool the same replies by another method's rule, without training.

        Args:
            method: The method whose rule it is.
            scored: False leaves the scores out.

        Raises:
            InputError: The replies are not at hand, or are not what the method pools.

        Example:
            >>> import consilience as co
            >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
            >>> result = co.run("mixture", problem)
            >>> result.pool(co.methods.BCM()).report["method"]
            'bcm'
        """
        self._check_pooling(method)
        try:
            start = method.init(self.task, self.server)
            key = Key(self.report["seed"])
            state = play_round(method, self.task, start, self.server, key, 0, lambda _: self.replies).state
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # replies of another kind
            raise InputError(
                f"{name(method)} needs replies of its own, not those of {name(self.method)}: run it."
            ) from error
        memories = {}
        if type(method) is type(self.method):  # whose sites would have kept the same
            memories = dict(self.memories)
        how = [self.report[field] for field in ("rounds", "seed", "engine", "threads")]
        report = facts(method, self.task, self.sites, *how)
        report |= {field: value for field, value in self.report.items() if field in OF_THE_RUN}
        if scored:
            if self.sites.holds_out:
                report |= plain(Scorer(method, self.task, self.sites).evaluate(state, memories))
            report |= effects_report(Fit(self.task, self.sites, state, self.replies))
        heard = self._warnings()
        report |= {"history": [], "warnings": heard, "seconds": 0.0, "finished": True}
        fingerprint = reported_identity(report, method, self.task, self.sites)
        rounds = self.report["rounds"]
        pooled = Checkpoint(rounds, state, memories, [], Ledger(), fingerprint, warnings=tuple(heard))
        return Result(method, self.task, self.sites, state, self.replies, self.server, report, None, pooled)

    def _check_pooling(self, method: Method) -> None:
        if not self.sites.train:
            raise InputError("This run was loaded without its rows: hand them in, co.load(folder, sites=sites).")
        if not self.replies:
            raise InputError("This run kept no replies; run again with keep_replies='last' (--keep-replies last).")
        if pools_rows(method) and not pools_rows(self.method):
            raise InputError(f"{name(method)} trains on all rows in one place and pools no replies: use co.run.")
        if method.about.everyone and len(self.replies) < len(self.sites):
            raise InputError(f"{name(method)} needs every site's reply; this run has {len(self.replies)}.")
        if is_made_at_home(method) and type(method) is not type(self.method):
            raise InputError(
                f"Sites make their own models of what they keep by {name(method)}, and here they kept what "
                f"{name(self.method)} needs: run it."
            )
        posteriors = all(isinstance(r.payload, (Point, Samples, Gaussian, Dense)) for r in self.replies)
        if type(method) is not type(self.method) and not posteriors:
            raise InputError(f"The replies of {name(self.method)} are not posteriors; {name(method)} cannot pool them.")
        check(method, self.task, self.sites, 1)

    def _warnings(self) -> list[str]:
        """What was heard while training, and not while scoring."""
        return list(self.checkpoint.warnings)

    def effects(self, level: float = 0.95, reference: Mapping[str, str] | None = None) -> Effects:
        """Make the table of a linear model's effects, in the units of the columns.

        Args:
            reference: The level that others are compared with, by column, and the class that others are compared
                with, by the name of the target; the first ones by default.

        Returns:
            The table; `to_frame()` makes a data frame of it.

        Raises:
            InputError: The model is not linear on the columns, or its state holds no Gaussian over its weights.

        Example:
            >>> import consilience as co
            >>> result = co.run("glm", co.Problem("moons", sites=3, model="linear"))
            >>> [(effect.column, effect.low < effect.estimate < effect.high) for effect in result.effects().rows]
            [('(Intercept)', True), ('x1', True), ('x2', True)]
        """
        return run_effects(self.fit, level, reference, self.report.get("effects"), self.on_all_rows)

    @property
    def fit(self) -> Fit:
        """What effects are read off: of the rows that were trained on."""
        return Fit(self.task, self.sites, self.state, self.replies)

    @cached_property
    def influence(self) -> dict[str, float]:
        """How much of the model is each site's, from 0 to 1: see `consilience.runs.engines.influence`.

        Measured for runs of one round that kept their replies, on rows drawn from the run's key.

        Raises:
            InputError: It cannot be measured; the sentence says why.

        Example:
            >>> import consilience as co
            >>> result = co.run("gaussian_product", co.Problem("moons", sites=3, split="iid", model="linear"))
            >>> sorted(result.influence)
            ['0', '1', '2']
        """
        if self.report["rounds"] > 1 or not self.replies:
            raise InputError("Influence is measured after one round whose replies are at hand: run with rounds=1.")
        key = Key(self.report["seed"])
        x = draw_probes(key, self._example_rows(), INFLUENCE)
        server = server_in_round(self.server, key, 0)
        start = self.method.init(self.task, self.server)
        influence = measure_influence(self.method, self.task, start, server, self.replies, x)
        if influence.unknown:
            raise InputError(f"The sites' influence cannot be measured: {influence.unknown}")
        return {self.sites.names[k]: share for k, share in influence.shares.items()}

    def _example_rows(self) -> Tensor:
        """Rows of the shape and type that the network takes; a loaded run may have none."""
        if self.sites.train:
            return self.sites.example
        if self.sites.holds_tokens:
            raise InputError("Influence is measured on rows of token ids, which this run came without: hand them in.")
        features = self.sites.features
        shape = (features,) if isinstance(features, int) else tuple(features)
        return torch.empty((0, *shape), dtype=next(iter(self.task.like.values())).dtype)

    @cached_property
    def bounds(self) -> dict[str, Any]:
        """Each site alone, the server's few rows alone, all data in one place: scores on the same test rows.

        They are trained when they are first asked for. A bound that diverges says so as its `failure`, and costs no
        other.
        """
        from consilience.runs.bounds import train_bounds  # a bound is a run, and runs make results

        if not self.sites.holds_out:  # loaded without its rows, or nothing to score on
            return dict(self.report.get("bounds") or {})
        return train_bounds(self)

    @cached_property
    def baselines(self) -> dict[str, Any]:
        """Baselines: the base rate or mean, that of every site, and a linear model of all rows in one place.

        Example:
            >>> import consilience as co
            >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
            >>> list(result.baselines)
            ['base_rate', 'site_rate', 'pooled_linear']
        """
        if not self.sites.holds_out:
            return dict(self.report.get("baselines") or {})
        return lines_to_beat(self.sites)

    def to_module(self, site: str | None = None) -> nn.Module:
        """Take the model by itself: a plain module from rows in their own units to probabilities.

        Args:
            site: Whose model, by its name, where sites have models of their own; None: the common model, which a
                newcomer gets.

        Returns:
            A module of [N, …] → [N, C], or → mean and variance [N, 2] of numbers; see `consilience.runs.module`.

        Raises:
            InputError: The method has a model for each site and none for all, or the site is unknown.

        Example:
            >>> import consilience as co
            >>> import torch
            >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
            >>> result.to_module()(torch.zeros(4, 2)).shape
            torch.Size([4, 2])
        """
        from consilience.runs.module import Predictor  # which names the type of a result

        return Predictor(self, site)

    def without_rows(self) -> Result:
        """Keep what predicts and what a run says about itself, and nobody's rows.

        What stays: method, task, state, the replies (what left the sites), the report, and of the sites their names,
        kinds and scales. What goes: all rows, those of the server too, and what sites remember between rounds.

        Returns:
            The result as `co.load(folder)` has it.

        Example:
            >>> import consilience as co
            >>> result = co.run("exact", co.Problem("moons", sites=2, split="iid"))
            >>> sum(len(part.y) for part in result.without_rows().sites.train)
            0
        """
        server = self.server._replace(inputs=None, calibration=None)
        checkpoint = self.checkpoint._replace(memories={})
        return replace(self, sites=self.sites.without_rows(), server=server, checkpoint=checkpoint, on_all_rows=None)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in a file, or in another process, holds no rows; scores that are known already stay."""
        return {**self.__dict__, **self.without_rows().__dict__}

    def __str__(self) -> str:
        """The table of the report, with bounds and baselines where they are known: printing trains nothing."""
        text = io.StringIO()
        known: dict[str, Any] = {}
        for field in ("bounds", "baselines"):
            if field in self.__dict__:
                known[field] = self.__dict__[field]
        Console(width=100, file=text).print(run_table({**self.report, **known}))
        return text.getvalue()

    def to_frame(self) -> Any:
        """The scores of every round as a data frame.

        Raises:
            InputError: Pandas is not installed.

        Example:
            >>> import consilience as co
            >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
            >>> len(co.run("fedavg", problem, rounds=2).to_frame())
            2
        """
        return to_frame(self.report.get("history") or [])

    def _repr_html_(self) -> str:
        """The scores in a notebook; nothing is trained for it."""
        intervals = self.report.get("intervals") or {}
        rows = []
        for score, value in self.report.get("metrics", {}).items():
            low, high = intervals.get(score) or (None, None)
            rows.append({"score": score, "value": value, "low (95 %)": low, "high (95 %)": high})
        return to_html(repr(self), rows)

    def __repr__(self) -> str:
        """What was run on what, and how good it is."""
        report = self.report
        scores = ", ".join(f"{score} {value:.3f}" for score, value in list(report.get("metrics", {}).items())[:3])
        return f"Result({report['method']} on {report['data']}, sites: {report['sites']}, {scores or 'not scored'})"
