"""Groups of options: what several commands ask for is written once, and arrives as one value.

A command under `with_groups` names a group as the type of a parameter:

    @app.command()
    @with_groups
    def run(method: str, *, rows: DataOptions, privacy: PrivacyOptions) -> None:
        problem = rows.problem(split=split)
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from consilience.cli.given import Read, privacy_settings, read_options
from consilience.cli.options import (
    Calibration_,
    Categories_,
    Columns_,
    Data_,
    DataDir_,
    Deadline_,
    Decimal_,
    Delimiter_,
    Delta_,
    Device_,
    Drop_,
    Dropout_,
    Engine_,
    Epsilon_,
    Event_,
    Exposure_,
    Features_,
    Group_,
    Honest_,
    Horizon_,
    Inputs_,
    MinReplies_,
    Missing_,
    Model_,
    Noise_,
    Participation_,
    PriorVar_,
    Sites_,
    Stream_,
    Target_,
    Task_,
    Test_,
    Text_,
    Time_,
    Unit_,
    Unknown_,
)

if TYPE_CHECKING:
    from consilience.runs.engines.participation import Participation
    from consilience.runs.problem import Problem


@dataclass(frozen=True)
class ReadingOptions:
    """How tables are read."""

    columns: Columns_ = None
    drop: Drop_ = None
    text: Text_ = None
    categories: Categories_ = None
    missing: Missing_ = None
    unknown: Unknown_ = None
    delimiter: Delimiter_ = None
    decimal: Decimal_ = None
    group: Group_ = None

    def read(self, target: str | None) -> Read:
        """Say how tables are read, as text for a problem.

        Args:
            target: The column to predict, as the command line has it; a columns.toml may name it, too.

        Raises:
            InputError: One of the options cannot be used.
        """
        return read_options({"target": target, **vars(self)})


@dataclass(frozen=True)
class RowOptions:
    """Which rows there are, and which of them the server has."""

    data: Data_ = "digits"
    target: Target_ = None
    task: Task_ = None
    time: Time_ = None
    event: Event_ = None
    exposure: Exposure_ = None
    horizon: Horizon_ = None
    sites: Sites_ = None
    calibration: Calibration_ = 30
    inputs: Inputs_ = 0
    test: Test_ = 0.2
    stream: Stream_ = None
    data_dir: DataDir_ = None


@dataclass(frozen=True)
class DataOptions(ReadingOptions, RowOptions):  # the fields of the last come first
    """Which rows there are, which of them the server has, and how tables are read."""

    def problem(self, **more: Any) -> Problem:
        """Write what these options say as a problem.

        Args:
            more: Fields of the problem that are options of some commands, such as the split.

        Returns:
            The problem.

        Raises:
            InputError: An option that says how tables are read cannot be used.
        """
        from consilience.runs.problem import Problem

        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        read = read_options(given)
        fields = {field.name for field in dataclasses.fields(Problem)}
        shared = {name: value for name, value in given.items() if name in fields}
        return Problem(**{**shared, "target": read.target, "reading": read.reading, **more})


@dataclass(frozen=True)
class NetworkOptions:
    """What is learned: a network, the fixed features under it, and what is believed of its weights beforehand."""

    model: Model_ = None
    features: Features_ = None
    prior_var: PriorVar_ = None


@dataclass(frozen=True)
class ComputeOptions:
    """Where sites and server compute."""

    engine: Engine_ = "auto"
    device: Device_ = "cpu"


@dataclass(frozen=True)
class CohortOptions:
    """Who takes part in a round."""

    participation: Participation_ = None
    dropout: Dropout_ = 0.0
    deadline: Deadline_ = None
    min_replies: MinReplies_ = None

    def cohort(self) -> Participation:
        """Write what these options say as an argument of `run`.

        Raises:
            InputError: One of them cannot be used.
        """
        from consilience.runs.engines.participation import Participation

        return Participation(self.participation, self.dropout, self.deadline, self.min_replies)


@dataclass(frozen=True)
class PrivacyOptions:
    """What is promised about a row."""

    epsilon: Epsilon_ = None
    delta: Delta_ = None
    unit: Unit_ = None
    noise: Noise_ = None
    honest: Honest_ = None

    def settings(self) -> tuple[str, ...]:
        """Write the promise as settings of a method, as `privacy_settings` does."""
        return privacy_settings(self.epsilon, self.delta, self.unit, self.noise, self.honest)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups: a parameter whose type is a group becomes the options of its fields.

    Args:
        command: A function whose parameters typer knows, or are groups.

    Returns:
        A function that typer sees with the options of the groups, one by one.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters = [shown for given in inspect.signature(command).parameters.values() for shown in _shown(given, hints)]

    @functools.wraps(command)
    def run(**options: Any) -> None:
        for name, kind in groups.items():
            options[name] = kind(**{field.name: options.pop(field.name) for field in dataclasses.fields(kind)})
        command(**options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _shown(parameter: inspect.Parameter, hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """The parameters that typer sees in place of one of a command's."""
    kind = hints[parameter.name]
    if not dataclasses.is_dataclass(kind):
        yield parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
        return
    fields = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        option = inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        yield option.replace(annotation=fields[field.name])
