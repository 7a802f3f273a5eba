"""What is shown depends on how wide the terminal is."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement


class Fitting:
    """The first of several renderings that fits the terminal without cutting anything off; else the last.

    Attributes:
        choices: The renderings, the widest first.
    """

    def __init__(self, *choices: RenderableType) -> None:
        self.choices = choices

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=10_000)
        fits = (c for c in self.choices if Measurement.get(console, wide, c).minimum <= options.max_width)
        yield next(fits, self.choices[-1])
