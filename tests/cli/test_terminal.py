"""What a terminal shows: help on one screen, completion, narrow windows and pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from reports import classification, comparison, text
from rich.markup import render
from tiny import Invoke

import consilience as co
from consilience.cli import every_command, spell
from consilience.cli.app import STEPS
from consilience.cli.catalogue import model_table, settings_of
from consilience.cli.listing import dataset_table, method_table
from consilience.cli.options import data_like, methods_like, models_like
from consilience.inference import SWA, AdamSteps, BPCfKL, CropAndFlip, Descent, Distillation, Newton, Yogi
from consilience.methods import METHODS
from consilience.report.table import comparison_table, run_table
from consilience.version import __version__


def consilience(*words: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    command = [Path(sys.executable).with_name("consilience"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**clean, **environment})
    return done.stdout


def test_help_fits_a_screen_and_has_examples() -> None:
    shown = consilience("--help", COLUMNS="80").splitlines()
    assert len(shown) <= 44
    assert max(len(line) for line in shown) <= 80
    assert any("consilience run evidence --data" in line for line in shown)
    commands = [line for line in shown if line.startswith("  ") and not line.startswith("   ")]
    assert not any(line.endswith("...") for line in commands)  # every command is told in full
    narrow = consilience("--help", COLUMNS="50").splitlines()[1:]
    assert not any(line.endswith("...") for line in narrow)


def test_help_says_all_that_is_written() -> None:
    """Brackets with a word inside are rich's markup: `[target]` would vanish, `\\[target]` does not."""
    for command in (*(commands := every_command().commands).values(), *subcommands(commands)):
        for option in command.params:
            written = getattr(option, "help", None) or ""
            assert render(written).plain == written.replace("\\[", "["), f"{command.name}: {option.name}"


def subcommands(commands: Mapping[str, click.Command]) -> list[click.Command]:
    groups = (group for group in commands.values() if isinstance(group, click.Group))
    return [command for group in groups for command in group.commands.values()]


@pytest.mark.parametrize("name", ["study", "site"])
def test_a_study_begins_at_the_top_of_its_help(name: str) -> None:
    group = every_command().commands[name]
    assert isinstance(group, click.Group)
    shown = group.list_commands(click.Context(group))
    assert shown[0] == {"study": "new", "site": "check"}[name]
    assert shown == sorted(group.commands, key=STEPS.index)


def test_a_pipe_gets_a_row_on_a_line() -> None:
    shown = consilience("methods").splitlines()
    rows = [line for line in shown if line.split(" ")[0] in METHODS]
    assert {line.split()[0] for line in rows} == set(METHODS)
    assert len(shown) == len(METHODS) + 1  # the headings, and nothing wrapped
    assert not any("\x1b" in line for line in shown)  # no colours


def test_the_shell_completes_names() -> None:
    assert methods_like("evid") == ["evidence", "evidence_logits", "evidence_tuned"]
    assert data_like("dig") == ["digits"]
    assert models_like("mlp") == ["mlp", "mlp_swish", "mlp_groupnorm"]
    words = {"COMP_WORDS": "consilience run fedy", "COMP_CWORD": "2"}
    assert consilience(_CONSILIENCE_COMPLETE="complete_bash", **words).split() == ["fedyogi"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_nothing_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    for renderable in (
        run_table(classification()),
        comparison_table(comparison()),
        method_table(),
        dataset_table(None),
        model_table(),
    ):
        shown = text(renderable, width)
        assert all(len(line) <= width for line in shown.splitlines())
        assert "…" not in shown
    assert "FedAvg, 10" in text(comparison_table(comparison()), width)


def test_no_run_waits_for_the_compiler_of_torch() -> None:
    """Its import takes longer than many a run; only compiled steps need it."""
    script = """
import sys, consilience as co
sites = co.datasets.sine(n_per_site=20).split(co.splits.natural())
task = co.regression(co.models.mlp(sites.features, hidden=(4,)))
for engine in ("sequential", "vectorised", "parallel"):
    co.run(co.methods.Mixture(co.CyclicalSGHMC(epochs=2, cycles=1)), task, sites, engine=engine)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


@dataclass(frozen=True)
class Documented:
    """A class whose settings are documented in its docstring.

    Attributes:
        rate: step size,
            on the mean loss

        batch: rows: so many a step

    Example:
        other: is not a setting
    """

    rate: float = 0.5
    batch: int = 2  # the docstring counts
    other: int = 3  # a comment, where the docstring is silent
    bare: int = 4


@dataclass(frozen=True)
class Derived(Documented):
    inner: Documented = Documented()  # nested


def test_settings_are_read_from_the_docstring_and_else_from_the_comment() -> None:
    rows = [
        ("rate", "0.5", "step size, on the mean loss"),
        ("batch", "2", "rows: so many a step"),
        ("other", "3", "a comment, where the docstring is silent"),
        ("bare", "4", ""),
    ]
    assert settings_of(Documented()) == rows
    nested = [(f"inner.{path}", default, meaning) for path, default, meaning in rows]
    assert settings_of(Derived()) == [*rows, ("inner", "Documented", "nested"), *nested]


INFERENCES = (
    *(
        co.SGD,
        co.Adam,
        SWA,
        co.SWAG,
        co.SGLD,
        co.CyclicalSGHMC,
        co.HMC,
        co.Laplace,
        Newton,
        co.MeanField,
    ),
    *(
        BPCfKL,
        Distillation,
        Descent,
        AdamSteps,
        Yogi,
        CropAndFlip,
    ),
)


@pytest.mark.parametrize("kind", INFERENCES, ids=lambda kind: kind.__name__)
def test_every_setting_of_an_inference_has_a_meaning(kind: type) -> None:
    assert all(meaning for _, _, meaning in settings_of(kind()))


def test_the_version_is_printed_and_nothing_else(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"consilience {__version__}\n", "")


def test_a_methods_page_shows_its_settings_once(invoke: Invoke) -> None:
    code, said, _ = invoke("methods", "mime")
    assert code == 0 and "Attributes:" not in said and said.count("optimiser.momentum") == 1


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("methods",), "beta-Predictive"),
        (("study", "--help"), "Coordinate a study"),
        (("run", "β"), "There is no method called 'beta'"),
    ],
)
def test_a_stream_that_knows_ascii_alone_is_written_to(words: tuple[str, ...], shown: str) -> None:
    command = [sys.executable, "-m", "consilience", *words]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    done = subprocess.run(command, capture_output=True, check=False, env=environment)

    said = (done.stdout + done.stderr).decode("ascii")
    assert shown in " ".join(said.split()) and "Traceback" not in said


def test_signs_are_spelt() -> None:
    assert [spell(sign) for sign in "εΛéß≥…♥"] == ["epsilon", "Lamda", "e", "?", ">=", "...", "?"]
