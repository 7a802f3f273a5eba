"""What a study predicts: classes, a number, counts with their exposure, or times to an event."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.data.cells import Cells
from consilience.data.sites import narrow
from consilience.data.targets import OUTCOMES, pair_up
from consilience.errors import InputError
from consilience.study.protocol.columns import Column

EVENTS = ("0", "1")  # not seen so far, and seen
FURTHER: dict[str, Any] = {  # what targets of older studies lack: at these values it is neither written nor hashed
    "event": "",
    "times": (),
    "horizon": 0.0,
    "counts": False,
    "exposure": "",
    "exposure_range": (0.0, 0.0),
}


@dataclass(frozen=True)
class Target:
    """What is predicted: one of several classes, a number, a count, or the time to an event.

    Attributes:
        name: Its name in a table; that of the column of times, where there is an event.
        classes: The classes; none where a number is predicted.
        unit: Of a number.
        range: Plausible numbers, in this unit.
        centre: The network predicts (value − centre) / spread; counts and times are not scaled.
        spread: See `centre`.
        event: The column that is 1 where the event was seen at that time, 0 where nobody looked for longer.
        times: The grid on which survival curves are given, and events summed up.
        horizon: The time at which risks are shown.
        counts: Whether the numbers are counts.
        exposure: The column that says for how long a row was counted; none if empty.
        exposure_range: Plausible exposures.
    """

    name: str
    classes: tuple[str, ...] = ()
    unit: str = ""
    range: tuple[float, float] = (0.0, 1.0)
    centre: float = 0.0
    spread: float = 1.0
    event: str = ""
    times: tuple[float, ...] = ()
    horizon: float = 0.0
    counts: bool = False
    exposure: str = ""
    exposure_range: tuple[float, float] = (0.0, 0.0)

    @property
    def kind(self) -> str:
        """The kind of problem: `classification`, `regression`, `counts` or `survival`."""
        if self.classes:
            return "classification"
        if self.event:
            return "survival"
        if self.counts:
            return "counts"
        return "regression"

    @property
    def counts_events(self) -> bool:
        """Whether counts or times to an event are predicted."""
        return self.kind in OUTCOMES

    @property
    def fields(self) -> dict[str, Any]:
        """What says something, by name: what is hashed, and what older studies hold."""
        names = self.__dataclass_fields__
        return {k: getattr(self, k) for k in names if k not in FURTHER or getattr(self, k) != FURTHER[k]}

    def as_column(self) -> Column:
        """Describe it as a column of a table."""
        kind = "number"
        if self.classes:
            kind = "category"
        return Column(self.name, kind, self.unit, self.range, self.centre, self.spread, self.classes)

    def as_columns(self) -> tuple[Column, ...]:
        """Describe all columns that it is read from."""
        columns = [self.as_column()]
        if self.event:
            columns.append(Column(self.event, "category", levels=EVENTS))
        if self.exposure:
            columns.append(Column(self.exposure, "number", range=self.exposure_range))
        return tuple(columns)

    def as_scaled(self) -> Column:
        """Describe it as a column whose sums find its scaling; counts and times have none: nothing is summed."""
        if self.counts_events:
            return Column(self.name, "category")
        return self.as_column()

    def values(self, cells: Mapping[str, Cells]) -> Tensor:
        """Turn cells into classes, scaled numbers, counts, or times with events.

        Args:
            cells: The cells by column; those of the target are sound.

        Returns:
            [N]; [N, 2] for counts with exposures and for times with events, as a simulation reads them.
        """
        own = cells[self.name]
        if not self.counts_events:
            features = self.as_column().features(own)
            if self.classes:
                return features.argmax(1)
            return features.squeeze(1).float()
        first = torch.from_numpy(own.numbers())
        if self.event:
            event = self.as_columns()[1]
            return pair_up(first, torch.from_numpy(event.codes(cells[self.event])))
        if self.exposure:
            return pair_up(first, torch.from_numpy(cells[self.exposure].numbers()))
        return narrow(first)

    def groups(self, y: Tensor) -> Tensor:
        """Say which rows are of one kind, so that every role gets its share of each.

        Args:
            y: Targets of N rows.

        Returns:
            The class, or whether the event was seen; 0 for numbers [N].
        """
        if self.classes:
            return y
        if self.event:
            return y[:, 1].long()
        return torch.zeros(len(y), dtype=torch.int64)

    def doubts(self, cells: Mapping[str, Cells]) -> list[str]:
        """Say what is wrong with targets whose cells are plausible one by one.

        Args:
            cells: The cells by column.

        Returns:
            Sentences.
        """
        if self.counts:
            values = cells[self.name].numbers()
            if (values != np.floor(values)).any():
                return [f"Column '{self.name}' holds numbers that are no counts: correct them."]
            if self.exposure and (cells[self.exposure].numbers() <= 0).any():
                return [f"Column '{self.exposure}' holds an exposure that is not above 0: leave those rows out."]
        if self.event:
            y = self.values(cells)
            if bool(((y[:, 0] == 0) & (y[:, 1] == 1)).any()):
                return [f"Column '{self.name}' has an event at time 0: count time from entry, or leave the row out."]
        return []

    def check(self) -> None:
        """Refuse what cannot be predicted.

        Raises:
            InputError: Fields do not fit together, or a number cannot be.
        """
        if sum((bool(self.classes), bool(self.event), self.counts)) > 1:
            raise InputError("[target] is of one kind: write classes, event (with times and horizon) or counts = true.")
        if self.kind != "survival" and (self.times or self.horizon):
            raise InputError("times and horizon belong to an event: name its column as event under [target].")
        if self.exposure and not self.counts:
            raise InputError("exposure belongs to counts: write counts = true under [target].")
        if not self.counts_events:
            return
        if self.range[0] < 0 or (self.centre, self.spread) != (0.0, 1.0):
            raise InputError(f"'{self.name}' is not scaled: write a range from 0 on, and leave centre and spread out.")
        if self.event:
            self._check_times()
        low, high = self.exposure_range
        if self.exposure and not 0 <= low < high < math.inf:
            raise InputError(f"'{self.exposure}' is an exposure: write exposure_range = [low, high], from 0 on.")

    def _check_times(self) -> None:
        """Refuse a grid that does not ascend, and a horizon that is not on it."""
        ascending = all(b > a for a, b in itertools.pairwise((0.0, *self.times)))
        if not self.times or not ascending or not math.isfinite(self.times[-1]):
            raise InputError("times must ascend from above 0: write for example times = [365.0, 730.0, 1095.0].")
        if self.horizon not in self.times:
            raise InputError(f"horizon = {self.horizon:g} is not one of the agreed times: write one of these.")


def lay_times(seen: Sequence[float], horizon: float | None, steps: int = 20) -> tuple[tuple[float, ...], float]:
    """Propose a grid of times with round numbers.

    Args:
        seen: The times of events in an example table.
        horizon: A time that must be on it; the middle of the grid if None.

    Returns:
        The grid, up to about the time by which nine in ten events were seen, and the horizon.

    Raises:
        InputError: There is no event, or the horizon is not a time.
    """
    if not len(seen):
        raise InputError("The table holds no event, so that no grid of times can be proposed: use another table.")
    if horizon is not None and not 0 < horizon < math.inf:
        raise InputError(f"horizon={horizon:g} is not a time: give one above 0, in the unit of the rows' times.")
    end = max(float(np.quantile(np.asarray(seen), 0.9)), horizon or 0.0)
    step = _round_up(end / steps)
    grid = [float(f"{step * (i + 1):.10g}") for i in range(max(1, math.ceil(end / step - 1e-9)))]
    at = horizon or grid[len(grid) // 2]
    apart = [time for time in grid if abs(time - at) >= step / 2]  # no sliver of a step beside the horizon
    return tuple(sorted([*apart, float(at)])), float(at)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 … times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(scale * digit for digit in (1.0, 2.0, 5.0, 10.0) if scale * digit >= value * (1 - 1e-9))
