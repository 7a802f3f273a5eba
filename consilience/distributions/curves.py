"""Sums on an agreed grid of times, and what they give together: Kaplan and Meier's curve, Breslow's baseline hazard.

A site sends, for every interval of the grid, how many had an event, how many were censored, and how much hazard was at
risk. Sums of all sites are added, and neighbouring intervals with fewer events than the smallest count are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from consilience.errors import InputError

FEWEST_SITES = 3  # behind a curve: of two, each could take its own away
SMALLEST = 5  # events behind a step, where nobody says
HALF = 0.5  # of a person, who stays at risk where everybody leaves
PASSES = 20  # of the search for events in proportion to those at risk
STEPS = 20  # of a grid that nobody chose
Z95 = 1.959963984540054


class TimeSums(NamedTuple):
    """What rows add up to on the intervals (t₋, t] of a grid.

    Attributes:
        events: Events in each interval [T].
        censored: Rows whose time ended in it without one [T]; later than the grid: not counted.
        at_risk: Rows, or their hazards, at risk during it [T]: a censored row counts by the share of the interval in
            which it was still seen, one with an event wholly.
        rows: All rows, a scalar.
    """

    events: Tensor
    censored: Tensor
    at_risk: Tensor
    rows: Tensor


class Curve(NamedTuple):
    """A Kaplan–Meier curve.

    Attributes:
        times: Where the steps end [M].
        survival: The share without an event [M].
        low: The lower end of its 95 % interval [M], log-log.
        high: Its upper end [M].
        at_risk: Rows at risk in each interval [M].
        events: Events in it [M].
    """

    times: Tensor
    survival: Tensor
    low: Tensor
    high: Tensor
    at_risk: Tensor
    events: Tensor


def even_times(y: Tensor, steps: int = STEPS) -> Tensor:
    """Lay an even grid over most of the times at which events were seen.

    Args:
        y: Times and events [N, 2].

    Returns:
        The grid [T], up to the time by which nine in ten events were seen.

    Raises:
        InputError: There is no event.
    """
    seen = y[y[:, 1] > 0, 0].double()
    if not len(seen):
        raise InputError("There is no event among these rows: a survival model needs some.")
    end = float(seen.quantile(0.9))
    return torch.linspace(end / steps, end, steps, dtype=torch.float64)


def sum_times(y: Tensor, times: Tensor, hazards: Tensor | None = None) -> TimeSums:
    """Add up a site's rows on a grid.

    Args:
        y: Times and events [N, 2].
        times: The grid [T], ascending.
        hazards: How many times the baseline's hazard each row has [N]; 1 without them.

    Returns:
        The sums. A grid that holds every time gives Kaplan and Meier's and Breslow's own.
    """
    time = y[:, 0].double().contiguous()
    event = y[:, 1].double()
    weight = torch.ones_like(time)
    if hazards is not None:
        weight = hazards.double()
    steps = len(times)
    place = torch.searchsorted(times.double(), time)  # the interval a time lies in; T where it is later
    zeros = torch.zeros(steps + 1, dtype=torch.float64)
    events = zeros.index_add(0, place, event)
    censored = zeros.index_add(0, place, 1 - event)
    starts = torch.cat([torch.zeros(1, dtype=torch.float64), times.double()])
    widths = torch.cat([times.double() - starts[:-1], torch.full((1,), torch.inf, dtype=torch.float64)])
    share = (time - starts[place]) / widths[place].clamp(min=1e-300)
    share = torch.where(widths[place] > 0, share, torch.ones_like(share))  # a grid may begin at 0
    unseen = weight * (1 - event) * (1 - share)
    leaving = zeros.index_add(0, place, weight)
    at_risk = leaving.flip(0).cumsum(0).flip(0) - zeros.index_add(0, place, unseen)
    return TimeSums(events[:-1], censored[:-1], at_risk[:-1], torch.tensor(float(len(y)), dtype=torch.float64))


def add_times(parts: Sequence[TimeSums]) -> TimeSums:
    """Add sums up.

    Args:
        parts: One a site, on one grid.

    Returns:
        Those of all rows.
    """
    return TimeSums(*(torch.stack(list(leaves)).sum(0) for leaves in zip(*parts, strict=True)))


def merge(times: Tensor, sums: TimeSums, smallest: int, hazards: bool = False) -> tuple[Tensor, TimeSums]:
    """Make one interval of neighbours until each has no event or at least so many; events left over join the last.

    Args:
        times: The grid [T].
        sums: Sums of all sites on it.
        smallest: The smallest number of events to show.
        hazards: Whether hazards are at risk rather than rows. Then no interval is left without an event, for a model's
            hazard is nowhere 0; of rows, those with an event count as at risk for the whole of the coarser interval.

    Returns:
        The coarser grid [M] and the sums on it.
    """
    ends: list[int] = []
    pending = 0.0
    for i, events in enumerate(sums.events.tolist()):
        pending += events
        if pending >= smallest or (pending == 0 and not hazards):
            ends.append(i)
            pending = 0.0
    if not ends or ends[-1] < len(times) - 1:
        while ends and pending < max(smallest, 1):  # too few are left: they join the interval before
            last = ends.pop()
            start = ends[-1] + 1 if ends else 0
            pending += float(sums.events[start : last + 1].sum())
        if pending >= max(smallest, 1):
            ends.append(len(times) - 1)
    if not ends:
        nothing = torch.zeros(0, dtype=torch.float64)
        return nothing, TimeSums(nothing, nothing, nothing, sums.rows)
    starts = [0, *(end + 1 for end in ends[:-1])]
    widths = _widths(times)
    pairs = [slice(a, b + 1) for a, b in zip(starts, ends, strict=True)]
    at_risk = []
    for part in pairs:
        during = sums.at_risk[part]
        if not hazards:
            during = during + sums.events[part].cumsum(0) - sums.events[part]
        at_risk.append((widths[part] * during).sum() / widths[part].sum())
    events = torch.stack([sums.events[part].sum() for part in pairs])
    censored = torch.stack([sums.censored[part].sum() for part in pairs])
    return times[ends], TimeSums(events, censored, torch.stack(at_risk), sums.rows)


def hide_few(y: Tensor, times: Tensor, smallest: int) -> Tensor:
    """Let few rows that are censored at another time than all others of a step count as censored with these.

    Where everybody is followed up to one day, or to one of two, the rows at risk during that step would tell when one
    patient left.

    Args:
        y: Times and events [N, 2].
        times: The grid [T].
        smallest: The fewest rows that may be told from others.

    Returns:
        Times and events [N, 2].
    """
    y = y.clone()
    place = torch.searchsorted(times.double(), y[:, 0].double().contiguous())
    for step in range(len(times)):
        own = (place == step) & (y[:, 1] == 0)
        if not own.any():
            continue
        days = y[own, 0]
        common = days.mode().values
        _, group, counts = days.unique(return_inverse=True, return_counts=True)
        for unlike in (days != common, counts[group] < smallest):
            if 0 < int(unlike.sum()) < smallest:
                days[unlike] = common
        y[own, 0] = days
    return y


def limit_hazards(hazards: Tensor, y: Tensor, times: Tensor, smallest: int) -> Tensor:
    """Cut the largest hazards off where one row has more than half of all that is at risk when it leaves.

    A coordinator that chooses the model chooses hazards: their sum would be one patient's, and tell when it leaves.

    Args:
        hazards: Each row's [N].
        y: Times and events [N, 2].
        times: The grid [T].
        smallest: The fewest rows that may be told from others.

    Returns:
        Hazards [N]; if they were cut, none is larger than the largest but `smallest` − 1.
    """
    at_risk = sum_times(y, times, hazards).at_risk
    place = torch.searchsorted(times.double(), y[:, 0].double().contiguous()).clamp(max=len(times) - 1)
    if bool((hazards > at_risk[place] / 2).any()) and len(hazards) >= smallest:
        return hazards.clamp(max=hazards.topk(smallest).values[-1])
    return hazards


def protect(sums: TimeSums, times: Tensor, smallest: int) -> TimeSums:
    """Spread the counts of steps with few people over neighbouring steps, before a site sends its sums.

    Steps that are made one show totals alone: over them censored rows end evenly, and events come at a constant hazard
    of those who are left. Spread evenly, events of a wide last part would come too late, when few are left for them.

    Args:
        sums: A site's sums on the grid.
        times: The grid [T].
        smallest: The smallest number of events, or of censored rows, that may be told from none.

    Returns:
        Sums that follow from totals of at least so many, or none; unchanged where all steps have as many. Few rows that
        are seen for longer than the grid count as censored at its end.

    Raises:
        InputError: The site has too few rows to take part.
    """
    events, censored = sums.events.clone(), _with_longer(sums, smallest)
    widths = _widths(times)
    at_risk = sums.at_risk.clone()
    for part in safe_parts(sums, times, smallest):
        if part.stop - part.start > 1:
            left = sums.rows - events[: part.start].sum() - censored[: part.start].sum()
            censored[part] = widths[part] / widths[part].sum() * censored[part].sum()
            events[part] = _spread_events(widths[part], float(left), float(events[part].sum()), censored[part])
            gone = events[part] + censored[part]
            at_risk[part] = left - gone.cumsum(0) + gone - censored[part] / 2
    return TimeSums(events, censored, at_risk, sums.rows)


def _spread_events(widths: Tensor, left: float, events: float, censored: Tensor) -> Tensor:
    """Events over steps at a constant hazard of those who are left, with these censored rows between them."""
    spread = events * widths / widths.sum()
    for _ in range(PASSES):
        gone = spread + censored
        at_risk = (left - gone.cumsum(0) + gone / 2).clamp(min=HALF)
        spread = events * widths * at_risk / (widths * at_risk).sum()
    return spread


def protect_hazards(at_risk: Tensor, sums: TimeSums, times: Tensor, smallest: int) -> Tensor:
    """Average the hazards at risk over steps that `protect` makes one, so that no step shows one person's hazard.

    Args:
        at_risk: Hazards at risk in each step [T].
        sums: The same site's sums, with rows at risk.
        times: The grid [T].
        smallest: As for `protect`.

    Returns:
        Hazards at risk [T].

    Raises:
        InputError: The site has too few rows to take part.
    """
    widths = _widths(times)
    averaged = at_risk.clone()
    for part in safe_parts(sums, times, smallest):
        averaged[part] = (widths[part] * at_risk[part]).sum() / widths[part].sum()
    return averaged


def safe_parts(sums: TimeSums, times: Tensor, smallest: int) -> list[slice]:
    """Cut a grid into parts in each of which a site has no event or enough, and no censored row or enough.

    Args:
        sums: A site's sums on the grid.
        times: The grid [T].
        smallest: How many are enough.

    Returns:
        The parts, in order; what is left over at the end has joined the last.

    Raises:
        InputError: The site has too few rows to take part.
    """
    events, censored = sums.events, _with_longer(sums, smallest)
    ends: list[int] = []
    start = 0
    for i in range(len(times)):
        if _is_safe(events[start : i + 1], smallest) and _is_safe(censored[start : i + 1], smallest):
            ends.append(i)
            start = i + 1
    while start < len(times):  # what is left over joins the steps before
        if not ends:
            raise InputError(
                f"This site has fewer than {smallest} events or censored rows on the grid: it cannot send sums that "
                "show none of them."
            )
        ends.pop()
        start = ends[-1] + 1 if ends else 0
        if _is_safe(events[start:], smallest) and _is_safe(censored[start:], smallest):
            ends.append(len(times) - 1)
            start = len(times)
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [slice(first, end + 1) for first, end in zip(starts, ends, strict=True)]


def _with_longer(sums: TimeSums, smallest: int) -> Tensor:
    """Censored rows in each step; few that are seen for longer than the grid count as censored at its end."""
    censored = sums.censored.clone()
    longer = float(sums.rows - sums.events.sum() - censored.sum())
    if 0 < longer < smallest:
        censored[-1] += longer
    return censored


def _widths(times: Tensor) -> Tensor:
    return times.double().diff(prepend=torch.zeros(1, dtype=torch.float64))


def _is_safe(counts: Tensor, smallest: int) -> bool:
    """Whether a total tells nobody apart."""
    total = float(counts.sum())
    return total == 0 or total >= smallest


def curve(times: Tensor, parts: Sequence[TimeSums], smallest: int = SMALLEST) -> Curve:
    """Draw Kaplan and Meier's curve of all sites' rows.

    Args:
        times: The agreed grid [T].
        smallest: The smallest number of events, and of rows at risk, to show; steps with fewer are one.

    Returns:
        The curve, with Greenwood's variance on the scale log(−log S). It ends where fewer rows are at risk.

    Raises:
        InputError: There are too few sites, or too few events for a step.

    Example:
        >>> import torch
        >>> from consilience.distributions.curves import curve, sum_times
        >>> y = torch.tensor([[day, 1.0] for day in range(1, 21)])  # an event a day
        >>> times = torch.tensor([5.0, 10.0, 15.0, 20.0])
        >>> [round(share, 2) for share in curve(times, [sum_times(y, times)] * 3).survival.tolist()]
        [0.75, 0.5, 0.25, 0.0]
    """
    if len(parts) < FEWEST_SITES:
        raise InputError(
            f"A pooled curve of {len(parts)} sites would show each of them what the others sent: bring together at "
            f"least {FEWEST_SITES}."
        )
    return curve_of(times, add_times(parts), smallest)


def curve_of(times: Tensor, totals: TimeSums, smallest: int = SMALLEST) -> Curve:
    """Draw Kaplan and Meier's curve of sums that were added up.

    Args:
        times: The agreed grid [T].
        smallest: The smallest number of events, and of rows at risk, to show; steps with fewer are one.

    Raises:
        InputError: There are too few events for a step.
    """
    grid, sums = merge(times, totals, smallest)
    shown = int(((sums.at_risk >= smallest).cumprod(0)).sum())
    grid = grid[:shown]
    sums = TimeSums(sums.events[:shown], sums.censored[:shown], sums.at_risk[:shown], sums.rows)
    if not shown or float(sums.events.sum()) == 0:
        raise InputError(f"No interval of the grid has {smallest} events: give a coarser grid or a smaller count.")
    at_risk = sums.at_risk.clamp(min=1)
    survival = (1 - sums.events / at_risk).clamp(min=0).cumprod(0)
    rest = (at_risk - sums.events).clamp(min=1e-12)
    variance = (sums.events / (at_risk * rest)).cumsum(0)
    low, high = log_log_interval(survival, variance)
    return Curve(grid, survival, low, high, sums.at_risk, sums.events)


def log_log_interval(survival: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Compute 95 % intervals of survival by Greenwood's variance on the scale log(−log S).

    Args:
        survival: S [M].
        variance: Σ d / (n (n − d)) up to each step [M].

    Returns:
        The intervals' ends [M]; S itself where it is 0 or 1.
    """
    inner = survival.clamp(1e-12, 1 - 1e-12)
    reach = Z95 * variance.sqrt() / -inner.log()
    ends = [torch.exp(inner.log() * torch.exp(sign * reach)) for sign in (1.0, -1.0)]
    flat = (survival <= 0) | (survival >= 1)
    return torch.where(flat, survival, ends[0]), torch.where(flat, survival, ends[1])


def baseline(times: Tensor, parts: Sequence[TimeSums], smallest: int = SMALLEST) -> Tensor:
    """Estimate one cumulative baseline hazard for all sites, by Breslow.

    Args:
        times: The agreed grid [T].
        parts: Every site's sums, with the hazards of its rows.
        smallest: The smallest number of events of a step; steps with fewer are one.

    Returns:
        The cumulative hazard at the grid's times [T]; in steps that were made one it grows evenly. Where there are too
        few events for any step, it is that of half an event.
    """
    totals = add_times(parts)
    grid, sums = merge(times, totals, smallest, hazards=True)
    if not len(grid):
        return 0.5 * times.double() / times[-1].double() / totals.at_risk.mean().clamp(min=1e-12)
    hazard = (sums.events / sums.at_risk.clamp(min=1e-12)).cumsum(0)
    steps = np.interp(times.double().numpy(), [0.0, *grid.tolist()], [0.0, *hazard.tolist()])
    return torch.from_numpy(steps)
