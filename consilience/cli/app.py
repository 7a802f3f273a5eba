"""The application, its groups of commands, and the file that each command is loaded from when somebody asks for it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_command_name, get_group_from_info
from typer.models import CommandInfo

from consilience.errors import InputError
from consilience.version import __version__

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(NamedTuple):
    """A command that is not loaded yet.

    Attributes:
        about: What it does, in a line of the help.
        files: Where it is, in consilience/cli/commands; a group has several.
    """

    about: str
    files: tuple[str, ...]


STUDY = "Coordinate a study: agree, collect files, pool."
SITE = "Take part in a study; your rows never leave."
DRAWS = "Pool the draws of any Bayesian model: Stan, PyMC, NumPyro, brms."
DATASETS = "List the data sets, or fetch one."
STEPS = (  # of a study: at the coordinator and at a site
    *("new", "check", "keys", "sums", "scale", "join", "add", "show", "describe", "audit", "message", "fit", "pool"),
    *("draws", "statistics", "choose", "calibrate", "evaluate", "leave", "drop", "unmask", "register", "ledger"),
    *("deploy", "certs", "nodekey", "serve"),
    *("moments", "ask", "correct"),  # of draws, after pool
)
STUDY_FILES = ("calibrate", "deploy", "describe", "draws", "evaluate", "masking", "study", "study_new")
SITE_FILES = ("calibrate", "deploy", "describe", "draws", "evaluate", "masking", "site")
COMMANDS = {
    "demo": Command("Compare methods on five very different sites, in a minute.", ("runs",)),
    "recommend": Command("Say which method suits the data, and why.", ("recommend",)),
    "inspect": Command("Show what is understood of CSV files.", ("look",)),
    "describe": Command("Describe the columns by site: table one.", ("describe",)),
    "run": Command("Run one method and write a report.", ("runs",)),
    "pool": Command("Pool a run's replies by another method, without training.", ("runs",)),
    "compare": Command("Compare methods on the same splits and seeds.", ("tables",)),
    "tune": Command("Choose a method's settings on validation rows.", ("tables",)),
    "reproduce": Command("Repeat a paper's experiment, beside the paper's results.", ("tables",)),
    "report": Command("Write a folder's report.html again.", ("runs",)),
    "predict": Command("Predict for a table, with uncertainty.", ("predict",)),
    "export": Command("Write a run's model as ONNX or torch.export.", ("predict",)),
    "effects": Command("Show a linear model's coefficients, ratios and intervals.", ("effects",)),
    "draws": Command(DRAWS, ("draws",)),
    "kaplan-meier": Command("Draw one survival curve for several sites from their sums.", ("survival",)),
    "study": Command(STUDY, STUDY_FILES),
    "site": Command(SITE, SITE_FILES),
    "health": Command("Tell whether a server or site is alive.", ("health",)),
    "methods": Command("List the methods, or show one in full.", ("lists",)),
    "models": Command("List the networks.", ("lists",)),
    "features": Command("List the feature maps.", ("lists",)),
    "datasets": Command(DATASETS, ("lists",)),
    "check-device": Command("Check that a device computes what the processor does.", ("device",)),
}


class Screen(TyperGroup):
    """Help that fits a screen, a narrow terminal and a pipe: one line per command, without frames.

    A command is loaded when it is asked for: all of them together take longer than most of them run.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.rich_markup_mode = None  # wrong words end with a plain sentence, as all other mistakes do
        self.commands = {name: click.Command(name, short_help=known.about) for name, known in COMMANDS.items()}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Load the command that is asked for."""
        if args[0] in COMMANDS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the plain help of click."""
        click.Group.format_help(self, ctx, formatter)


class Steps(TyperGroup):
    """A group whose help lists its commands in the order in which one needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands by `STEPS`."""
        return sorted(super().list_commands(ctx), key=STEPS.index)


class Action(TyperCommand):
    """A command that looks for methods of other packages, after its words were understood: looking takes a while."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an empty word: a variable of the shell that is not set would be taken for something left out."""
        for before, word in zip(["", *args], args, strict=False):
            if word == "" or (word.startswith("--") and word.endswith("=")):
                raise InputError(_say_empty(before, word))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Make methods that do not come with the package known; torch is not loaded for nothing."""
        from consilience.plugins import any_plugins

        if any_plugins():
            from consilience.methods import register_plugins

            register_plugins()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from consilience.cli.screen import stop

            raise stop("No file is left half written: run the same command again.") from None


def _say_empty(before: str, word: str) -> str:
    """The sentence for an empty word, by the word before it."""
    name = word.removesuffix("=")
    if not name and before.startswith("-"):
        name = before
    if not name:
        return "One of the words is empty: give a name in its place; a variable of the shell may not be set."
    return f"{name} is empty: give a value, or leave it out; a variable of the shell may not be set."


class Actions(typer.Typer):
    """Commands that know the methods of other packages."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Add a command."""
        return super().command(name, cls=Action, **settings)


app = Actions(
    cls=Screen,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    help="Bayesian federated learning: private sites, one round, one calibrated model.",
    epilog="""\b
Examples:
  consilience demo
  consilience run evidence --data "hospitals/*.csv" --target disease
  consilience compare evidence mixture "fedavg[rounds=10]" --seeds 0-9
  consilience COMMAND --help""",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"consilience {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Bayesian federated learning: private sites, one round, one calibrated model."""


study_app = Actions(cls=Steps, no_args_is_help=True, help=STUDY)
app.add_typer(study_app, name="study")

site_app = Actions(cls=Steps, no_args_is_help=True, help=SITE)
app.add_typer(site_app, name="site")

draws_app = Actions(cls=Steps, no_args_is_help=True, help=DRAWS)
app.add_typer(draws_app, name="draws")


@functools.cache
def load_command(name: str) -> click.Command:
    """Import the files of a command and make it of its function, once a process.

    Args:
        name: A name of `COMMANDS`.

    Returns:
        The command, or the group of commands.
    """
    for file in COMMANDS[name].files:
        importlib.import_module(f"consilience.cli.commands.{file}")
    look: dict[str, Any] = {"pretty_exceptions_short": True, "rich_markup_mode": app.rich_markup_mode}
    for group in app.registered_groups:
        if group.name == name:
            return get_group_from_info(group, suggest_commands=False, **look)
    made = (known for known in app.registered_commands if name_of(known) == name)
    return get_command_from_info(next(made), **look)


def name_of(known: CommandInfo) -> str:
    """Say what one types for a command.

    Args:
        known: What typer knows of it.
    """
    if known.name is not None:
        return known.name
    assert known.callback is not None
    return get_command_name(known.callback.__name__)
