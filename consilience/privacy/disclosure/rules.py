"""The rules of disclosure by their names: what may not be shown of few rows or few sites, by files and over Flower.

What data custodians check themselves elsewhere. A study agrees on the numbers; every refusal names the rule it is by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from consilience.errors import InputError

SMALLEST_CELL = "smallest cell"
RARE_VALUES = "rare values"
ROWS_PER_PARAMETER = "rows per parameter"
OUTCOME_LEVELS = "outcome levels"
FEWEST_SITES = "fewest sites"
SUBTRACTION = "subtraction"
OUTCOMES = ("warn", "refuse")


class Rule(NamedTuple):
    """A rule as people read it.

    Attributes:
        name: Its name, which refusals give.
        says: What it says, one sentence.
    """

    name: str
    says: str


def by_rule(name: str, sentence: str) -> str:
    """Add the rule's name to a refusal.

    Args:
        sentence: What is refused, why, and what to do; it ends with a full stop.

    Returns:
        The sentence with the rule at its end.
    """
    return f"{sentence.removesuffix('.')} (rule: {name})."


@dataclass(frozen=True)
class DisclosureRules:
    """The rules of one study.

    Attributes:
        smallest: The fewest rows of a cell that is shown, and of a site that takes part.
        rare: What becomes of values that fewer rows have: other, merge, refuse, noise where noise hides them, or
            keep in studies that agreed on no rule.
        rows_per_parameter: Training rows that a site needs for each parameter; 0: no such rule.
        outcomes: What becomes of classes that fewer rows are of: warn, or refuse.
        fewest_sites: The fewest sites whose replies are pooled, and by which two models differ.
        named: Whether what each site sent is released by name, so that there is nothing to subtract.
        events: Whether counts or times to an event are predicted.
    """

    smallest: int = 10
    rare: str = "other"
    rows_per_parameter: float = 3.0
    outcomes: str = "warn"
    fewest_sites: int = 3
    named: bool = False
    events: bool = False

    def listed(self) -> list[Rule]:
        """List the rules in words.

        Returns:
            Those that hold.
        """
        few = self.smallest
        rules = []
        if few > 1:
            says = f"No count from 1 to {few - 1} is shown, and no site takes part with fewer rows."
            rules.append(Rule(SMALLEST_CELL, says))
        if self.rare == "other":
            says = f"Levels that fewer than {few} rows have become 'other' before a site fits"
            rules.append(Rule(RARE_VALUES, f"{says}, and rows that a combination of columns shows are left out."))
        elif self.rare == "merge":
            says = f"Values that fewer than {few} rows have are merged before a site fits"
            rules.append(Rule(RARE_VALUES, f"{says}, and rows that a combination of columns shows are left out."))
        elif self.rare == "refuse":
            rules.append(Rule(RARE_VALUES, f"A site with values that fewer than {few} rows have does not fit."))
        elif self.rare == "noise":
            says = "Rare values stay as they are, under noise: what becomes of one row may not depend on others."
            rules.append(Rule(RARE_VALUES, says))
        if self.rows_per_parameter:
            per = f"{self.rows_per_parameter:g} training rows for each parameter of the model"
            rules.append(Rule(ROWS_PER_PARAMETER, f"A site needs {per}."))
        if self.events:
            rules.append(Rule(OUTCOME_LEVELS, f"A site with fewer than {few} rows that have an event does not fit."))
        elif self.outcomes == "refuse":
            rules.append(Rule(OUTCOME_LEVELS, f"A site with 1 to {few - 1} rows of a class does not fit."))
        else:
            rules.append(Rule(OUTCOME_LEVELS, f"A site with 1 to {few - 1} rows of a class is warned before it sends."))
        if self.fewest_sites > 1:
            rules.append(Rule(FEWEST_SITES, f"Fewer than {self.fewest_sites} replies, sums or tables are not pooled."))
        says = "What would give a withheld count away by subtraction is withheld too"
        if self.fewest_sites > 1 and not self.named:
            says += f", and models that differ by fewer than {self.fewest_sites} sites need these sites' consent"
        rules.append(Rule(SUBTRACTION, f"{says}."))
        return rules

    def check_rows(self, rows: int, where: str) -> None:
        """Refuse a table of few rows.

        Raises:
            InputError: There are fewer than `smallest`.
        """
        if rows < self.smallest:
            sentence = f"{where} has {rows} rows; the study asks for at least {self.smallest}."
            raise InputError(by_rule(SMALLEST_CELL, sentence))

    def fewest_rows(self, parameters: int) -> int:
        """Find the fewest training rows that a site may fit a model to.

        Args:
            parameters: How many the model has.

        Returns:
            The count.
        """
        return max(self.smallest, math.ceil(self.rows_per_parameter * parameters))

    def check_parameters(self, rows: int, parameters: int) -> None:
        """Refuse a model with many parameters for a site's rows.

        Args:
            rows: The rows left to train on.
            parameters: How many the model has.

        Raises:
            InputError: The rows are too few.
        """
        fewest = self.fewest_rows(parameters)
        if rows < fewest:
            sentence = (
                f"{rows} rows are left to train on and the model has {parameters:,} parameters: the study asks for "
                f"{fewest:,} rows. Agree on a smaller model or on another rows_per_parameter "
                f"({self.rows_per_parameter:g}), or take part with more rows."
            )
            raise InputError(by_rule(ROWS_PER_PARAMETER, sentence))

    def check_outcomes(self, counts: Mapping[str, int]) -> list[str]:
        """Refuse, or warn of, classes that few rows are of: merging classes would falsify them.

        Args:
            counts: Rows of each class.

        Returns:
            A warning for each such class, where the study only warns.

        Raises:
            InputError: There is one and the study refuses it.
        """
        few = [label for label, count in counts.items() if 0 < count < self.smallest]
        if few and self.outcomes == "refuse":
            names = ", ".join(f"'{label}'" for label in few)
            sentence = (
                f"Fewer than {self.smallest} rows are of the class {names}, and a reply would tell what they have in "
                "common: take part with more rows, or leave them all out."
            )
            raise InputError(by_rule(OUTCOME_LEVELS, sentence))
        return [
            f"Fewer than {self.smallest} rows are of the class '{label}': the reply tells roughly what they have in "
            "common."
            for label in few
        ]

    def check_events(self, events: int, what: str) -> None:
        """Refuse a model of events that few rows have: what is sent would be about these alone.

        Args:
            events: How many rows have one.
            what: What they have, for the sentence.

        Raises:
            InputError: There are fewer than `smallest`.
        """
        if events < self.smallest:
            sentence = (
                f"Fewer than {self.smallest} training rows have {what}, and a reply would tell what they have in "
                "common: take part with more rows, or agree on a smaller count."
            )
            raise InputError(by_rule(OUTCOME_LEVELS, sentence))

    def check_sites(self, count: int, what: str, remedy: str = "") -> None:
        """Refuse to add up what few sites sent.

        Args:
            what: What they sent, as `replies`.

        Raises:
            InputError: There are fewer than agreed.
        """
        if count < self.fewest_sites:
            sentence = (
                f"{count} {what} can be used, and the study pools no fewer than {self.fewest_sites}: with two sites, "
                f"each could compute what the other sent. {remedy}"
            )
            raise InputError(by_rule(FEWEST_SITES, sentence.strip()))
