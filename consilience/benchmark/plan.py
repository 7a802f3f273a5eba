"""What a comparison is to run: rows, splits and seeds, checked before any data are read."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.benchmark.row_words import Row, assignments, fields, has, method_row, parse_word, read_settings, row
from consilience.data.splits.split import Split
from consilience.data.splits.text import parse
from consilience.errors import InputError, unknown_name
from consilience.method import Bound, Method, Needs, name, needs
from consilience.method.declared import on_linear, shares_replies
from consilience.methods.claims import check_private
from consilience.report.schema.wording import bound_name
from consilience.runs.bounds import bounds_of, find_inference, trained
from consilience.runs.device import on
from consilience.runs.engines.participation import Participation
from consilience.runs.problem import Problem
from consilience.runs.recipe import protect
from consilience.runs.store import FORMAT
from consilience.serialisation.settings import describe


@dataclass(frozen=True)
class Plan:
    """Rows to compare on the same splits and seeds.

    Attributes:
        words: The rows: a method in words, as `fedavg[rounds=10]`, or a method object.
        problem: The problem; its split is replaced by those below.
        splits: The splits, a table each; None is the data's usual one.
        seeds: The seeds, each with its own split, start and draws.
        rounds: The rounds of methods that have many; what is usual for each if None.
        engine: Where the sites' work runs.
        common: `field=value` texts for every row in words that has the field.
        settings: A file that `tune` wrote, or a preset's name.
        bounds: Whether to add the rows every table should have.
        participation: Who replies in a round, for every row that is not a bound.
        device: Where sites and server compute.
        usual: Settings that are usual for a method on the network that was chosen, by its name.
    """

    words: tuple[str | Method, ...]
    problem: Problem
    splits: tuple[str | Split | None, ...] = (None,)
    seeds: tuple[int, ...] = (0,)
    rounds: int | None = None
    engine: str = "auto"
    common: tuple[str, ...] = ()
    settings: str | Path | None = None
    bounds: bool = True
    participation: Participation = Participation()
    device: str = "cpu"
    usual: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def settle(self) -> Plan:
        """Choose the feature map and the network on it for all rows, where nobody named them.

        Returns:
            The plan with both, as `Problem.settle` chooses them.

        Raises:
            InputError: A row, a setting or a preset is unknown, or two rows are the same.
        """
        methods = [row.method for rows in self.check().values() for row in rows]
        first = dataclasses.replace(self.problem, split=self.splits[0])  # whose rows are then read already
        chosen = first.settle(methods, self.seeds[0])
        usual = {
            name(method): chosen.usual_settings(method, self.common, self.seeds[0])
            for method in methods
            if on_linear(method)
        }
        problem = dataclasses.replace(self.problem, model=chosen.model, features=chosen.features)
        return dataclasses.replace(self, problem=problem, usual=usual)

    def protect(self, settings: Sequence[str]) -> Plan:
        """Ask for differential privacy of every row that is not a bound.

        Args:
            settings: Texts that set a method's `privacy`; none: nothing is asked for.

        Returns:
            The plan, on bounded features for all rows.

        Raises:
            InputError: A row has no private form.
        """
        if not settings:
            return self
        for rows in self.check().values():
            for r in rows:
                if not isinstance(r.method, Bound):
                    check_private(r.method)
        protected, problem = protect(self.problem, settings, self.seeds[0])
        return dataclasses.replace(self, problem=problem, common=(*self.common, *protected), usual={})

    def rows(self, split: str | Split | None) -> list[Row]:
        """Build the rows with their settings.

        Args:
            split: The split, which a preset's settings may depend on.

        Returns:
            The rows in the order of `words`, bounds last.

        Raises:
            InputError: A row, a setting or a preset is unknown, or two rows are the same.
        """
        if not self.words:
            raise InputError("Say what to compare: name at least one method, for example beta, mixture and fedavg.")
        tuned: dict[str, dict[str, Any]] = {}
        if self.settings:
            tuned = read_settings(str(self.settings), self.problem.name, split)
        common = assignments(self.common)
        rows = [self._row(word, tuned, common) for word in self.words]
        bounds = self._bounds(rows, tuned, common)
        rows = [bounds.get(word, r) if isinstance(word, str) else r for word, r in zip(self.words, rows, strict=True)]
        if self.bounds:
            present = {name(r.method) for r in rows}
            rows += [bound for kind, bound in bounds.items() if kind not in present]
        _check_settings(common, rows)
        if len({slug(r.word) for r in rows}) < len(rows):
            raise InputError("Two rows are the same; give each method once, or with different settings in brackets.")
        return _distinguish(rows)

    def _row(self, word: str | Method, tuned: Mapping[str, Any], common: Mapping[str, str]) -> Row:
        if isinstance(word, Method):
            return method_row(word, self.rounds)
        kind, brackets = parse_word(word)
        usual = assignments(self.usual.get(kind, ()))
        if any(path.startswith(("inference", "privacy")) for path in brackets):
            usual = {}
        return row(word, {**usual, **tuned.get(kind, {})}, common, self.rounds)

    def _bounds(self, rows: Sequence[Row], tuned: Mapping[str, Any], common: Mapping[str, str]) -> dict[str, Row]:
        """The bounds of the row that they follow, as in a run of it; none where all rows are bounds."""
        methods = [r for r in rows if not isinstance(r.method, Bound)]
        leader = _leader(methods or rows)
        times = self.problem.predicts_times
        usual = bounds_of(leader.method, leader.rounds, 2, self.problem.labelled, by_rows=not times)
        follows = times or (methods and find_inference(leader.method) is not None)
        made = {}
        for bound, method in usual.items():
            made[bound] = row(bound, tuned.get(bound), common)
            if Needs.LABELS in needs(method):  # few rows need the many passes of its default, whatever is set for all
                made[bound] = row(bound, tuned.get(bound))
            elif follows and not tuned.get(bound):
                made[bound] = made[bound]._replace(method=method)
            title = bound_name(bound, trained(made[bound].method))
            made[bound] = made[bound]._replace(name=title)
        return made

    def check(self) -> dict[str | Split | None, list[Row]]:
        """Refuse what can be refused before any data are read.

        Returns:
            The rows of every split.

        Raises:
            InputError: A split or a row is unknown or named twice, or no row is held out.
        """
        if not self.problem.holds_out:
            raise InputError("A comparison scores rows that are held out: give test above 0, for example 0.2.")
        for split in self.splits:
            if isinstance(split, str):
                parse(split)
        if len(set(self.splits)) < len(self.splits):
            raise InputError("A split is named twice; give each once.")
        return {split: self.rows(split) for split in self.splits}

    def to_json(self) -> dict[str, Any]:
        """Describe all that decides the numbers: what plan.json holds."""
        recipe = self.problem.to_json()
        del recipe["split"]
        tables = []
        for split, rows in self.check().items():
            tables.append(
                {"split": split and str(split), "rows": [[r.word, r.rounds, describe(r.method)] for r in rows]}
            )
        value = {
            "format": FORMAT,
            "recipe": recipe,
            "rows": tables,
            "seeds": list(self.seeds),
            "engine": on(self.engine, self.device),
        }
        if self.participation.partial:
            value["participation"] = dataclasses.asdict(self.participation)
        return value


def _check_settings(common: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Refuse a setting for all rows that no row has."""
    for path in common:
        if not any(has(r.method, path) for r in rows):
            raise unknown_name("setting", path, {p for r in rows for p in fields(r.method)})


def _distinguish(rows: Sequence[Row]) -> list[Row]:
    """Rows that would be shown by the same name are shown as typed."""
    names = Counter(r.name for r in rows)
    distinct = []
    for r in rows:
        if names[r.name] > 1:
            r = r._replace(name=r.word)  # noqa: PLW2901
        distinct.append(r)
    return distinct


def _leader(rows: Sequence[Row]) -> Row:
    """The row that bounds follow: the first of one round whose replies serve them too, else the first that infers."""
    sharing = [r for r in rows if shares_replies(r.method) and r.rounds == 1]
    inferring = [r for r in rows if find_inference(r.method) is not None]
    return (sharing or inferring or list(rows))[0]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds from a text.

    Args:
        text: `0-9`, `0,3,7` or `5`.

    Returns:
        The seeds in the order of the text.

    Raises:
        InputError: The text is not a list of seeds, or names one twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise InputError(f"'{text}' is not a list of seeds: write for example 0-9, or 0,3,7, or 5.")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"'{text}' names a seed twice; give each once.")
    return tuple(seeds)


def slug(word: str) -> str:
    """Turn a row or a split into a file's name.

    Args:
        word: The row or split, as typed.

    Returns:
        The word with a hyphen for whatever a file's name should not hold.
    """
    return re.sub(r"[^\w=.,+-]+", "-", word).strip("-")
