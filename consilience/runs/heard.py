"""What a run warns of, said where it ends: to people in Python, who may never open its report."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from consilience.data.sites import Sites
from consilience.errors import RunWarning
from consilience.metrics.baselines import base_rate
from consilience.report.schema.wording import beaten_by_base_rate


def tell_warnings(report: Mapping[str, Any], sites: Sites) -> None:
    """Warn of what a run's report warns of, and of a model that knows less than the base rate.

    Args:
        report: What the run found.
    """
    said = list(report["warnings"])
    metrics = report.get("metrics")
    if metrics:
        beaten = beaten_by_base_rate(metrics, base_rate(sites))
        if beaten:
            said.append(beaten[:1].upper() + beaten[1:])
    for sentence in said:
        warnings.warn(RunWarning(sentence), stacklevel=4)


@contextmanager
def untold() -> Iterator[None]:
    """Leave the warnings of runs to a report that says them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)
        yield
