"""Options that would change nothing are refused, by one table, in every command that has them."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tiny import Invoke, hospitals

from consilience.cli import every_command
from consilience.cli.applies import TABLE

COMMANDS = ("run", "compare", "tune", "recommend", "study new")
FILES = ("--data", "hospitals/*.csv", "--target", "disease")
REFUSED = {
    ("run", "exact", "--data", "moons", "--target", "x"): "--target is for CSV files, and moons",
    ("run", "exact", "--data", "moons", "--drop", "x"): "--drop is for CSV files",
    ("compare", "exact", "--data", "moons", "--group", "x"): "--group is for CSV files",
    ("tune", "fedavg", "--data", "moons", "--delimiter", ";"): "--delimiter is for CSV files",
    ("recommend", "--data", "moons", "--task", "counts"): "--task is for CSV files",
    ("run", "exact", *FILES, "--data-dir", "."): "--data-dir is where data sets are kept",
    ("run", "--data", "hospitals", "--event", "disease"): "--event: survival needs both columns",
    ("recommend", "--data", "hospitals", "--time", "age"): "--time: survival needs both columns",
    ("run", *FILES, "--time", "age", "--event", "disease"): "--target: --time and --event",
    ("recommend", *FILES, "--horizon", "3"): "--horizon is for times to an event",
    ("compare", "glm", *FILES, "--exposure", "dose"): "--exposure is for counts",
    (
        "run",
        "--data",
        "hospitals",
        "--target",
        "age",
        "--task",
        "counts",
        "--level",
        "0.9",
    ): "--level: there are no prediction sets",
    ("run", "exact", "--data", "moons", "--noise", "once"): "--noise belongs to --epsilon",
    ("run", "exact", "--data", "moons", "--epsilon", "0", "--delta", "1e-4"): "epsilon=0 is not a privacy budget",
    ("run", "exact", "--data", "moons", "--epsilon", "1", "--honest", "2"): "--honest is for --noise once",
    ("compare", "exact", "--data", "moons", "--delta", "1e-5"): "--delta belongs to --epsilon",
    ("study", "new", "trial", "--guarantee", "class"): "--guarantee is the kind of prediction sets",
    ("study", "new", "trial", "--delta", "1e-5"): "--delta belongs to --epsilon",
    ("study", "new", "trial", "--like", "a.csv", "--target", "b", "--columns", "c.toml"): "--like and --columns both",
}


@pytest.mark.parametrize(("words", "sentence"), REFUSED.items(), ids=lambda value: " ".join(value[:6]))
def test_what_does_not_apply_is_refused(words: tuple[str, ...], sentence: str, invoke: Invoke, tmp_path: Path) -> None:
    hospitals(tmp_path / "hospitals")
    code, _, error = invoke(*words)
    assert code == 2
    assert sentence in " ".join(error.split())
    assert [path.name for path in tmp_path.iterdir()] == ["hospitals"]  # nothing was begun


def test_the_environment_is_no_mistake(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospitals(tmp_path / "hospitals")
    monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    code, _, _ = invoke("recommend", *FILES)
    assert code == 0


def test_the_table_names_options_that_exist() -> None:
    """Every row of the table is an option of one of the commands, and every refusal above says what to do."""
    group = every_command()
    known = set()
    for name in COMMANDS:
        command: click.Command = group
        for word in name.split():
            command = command.commands[word]  # type: ignore[attr-defined]
        known |= {parameter.name for parameter in command.params}
    assert {option for row in TABLE for option in row.options} <= known
    for row in TABLE:
        assert re.search(r"leave|give|are what is predicted", row.sentence)
