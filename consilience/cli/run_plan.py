"""What `run` does: a recipe and how to run it, from options or from the folder of an earlier start."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from consilience.cli.screen import progress
from consilience.disk.typed import restore_fields
from consilience.errors import InputError, refuse_damage
from consilience.method import Method
from consilience.methods import is_own_method, known_method
from consilience.methods.claims import check_private
from consilience.models import is_import_path
from consilience.runs.engines.participation import Participation
from consilience.runs.feature_maps import names_a_map
from consilience.runs.identity import hash_tables
from consilience.runs.recipe import Recipe
from consilience.runs.resuming import check_resumed
from consilience.runs.run import Compute
from consilience.runs.run import run as run_method
from consilience.runs.store import Store
from consilience.serialisation.blueprint import task_from
from consilience.serialisation.settings import restore
from consilience.task import Task

MOST_PARAMETERS = 10**8  # of a network that a folder describes before any round is saved
RESUMED = {"rounds": int, "engine": str, "threads": int, "keep_replies": str}  # options that a folder remembers


class RunPlan(NamedTuple):
    """What to run and how."""

    recipe: Recipe
    bounds: bool
    options: dict[str, Any]  # arguments of `co.run`
    method: Method | None = None  # as an earlier start made it; None: as the recipe does, with today's defaults
    task: Task | None = None  # as an earlier start made it, on what another run learned; None: as the recipe does


def choose(recipe: Recipe, private: Sequence[str], one_round: bool = False) -> Recipe:
    """Choose the method and the network where nobody named them, and protect them where that is asked for.

    Args:
        recipe: What was asked for; without a method, `""`.
        private: Settings of a method's `privacy`; none: nothing is asked for.
        one_round: Whether there is one round only.

    Returns:
        The recipe, with everything chosen.

    Raises:
        InputError: The method, its settings or the data cannot be used, or it has no private form.
    """
    recipe = recipe.choose(bool(private), one_round)
    if private:
        check_private(recipe.build_method())
        recipe = recipe.protect(private)
    return recipe


def execute(plan: RunPlan, resume: bool, as_json: bool) -> dict[str, Any]:
    """Run a plan, with its bounds where they are wanted."""
    recipe, problem = plan.recipe, plan.recipe.problem
    options = dict(plan.options)
    compute = Compute(options.pop("engine"), options.pop("threads"), device=options.pop("device"))
    about = {
        "recipe": recipe.to_json(),
        "model": problem.network,
        "keep_replies": plan.options["keep_replies"],
        "with_bounds": plan.bounds and not problem.streams,
    }
    if problem.reads_files:
        about["tables"] = hash_tables(problem.name)
    dialects = problem.describe_files()
    if dialects:
        about["dialects"] = dialects
    if options["level"] is not None:
        about["level"] = options["level"]
    bounds: dict[str, Any] = {}
    with progress(not as_json):
        method = plan.method or recipe.build_method()
        options |= {"seed": recipe.seed, "engine": compute, "resume": resume, "about": about}
        result = run_method(method, *problem.build(recipe.seed, plan.task), **options)
    if plan.bounds and not problem.streams:  # which need all rows in memory
        with progress(not as_json):
            bounds = result.bounds
    return {**result.report, "bounds": bounds, "baselines": result.baselines}


def resume_plan(folder: Path, asked: dict[str, Any]) -> RunPlan:
    """Read from a run's folder what it was made with; anything else that is asked for is refused, but more rounds."""
    saved = Store(folder).read_json()
    recipe = saved_recipe(folder, saved, asked.get("model"), asked.get("data_dir"))
    if is_own_method(recipe.method):
        if asked.get("method") != recipe.method:
            place = shlex.quote(str(folder))
            raise InputError(
                f"The run in {folder} uses the method '{recipe.method}', which is not part of consilience and would be "
                f"imported: if you trust that code, write `consilience run {recipe.method} --resume {place}`."
            )
        known_method(recipe.method)
    with refuse_damage(say_damaged(folder)):
        check_resumed(str(folder), saved, asked)
    min_replies = asked.get("min_replies")
    with refuse_damage(say_damaged(folder)):
        cohort = restore_fields(Participation, saved.get("participation", {}))
        options = {
            "out": folder,
            "start": (saved.get("started_from") or {}).get("folder"),
            "device": saved.get("device", "cpu"),
            "level": saved.get("level"),
            "participation": dataclasses.replace(cohort, min_replies=min_replies or cohort.min_replies),
        }
        for name, kind in RESUMED.items():
            options[name] = saved[name]
            if type(saved[name]) is not kind:
                raise TypeError(name)
        options["rounds"] = asked.get("rounds") or options["rounds"]
        method = None
        if saved.get("settings"):
            method = restore(saved["settings"])
        return RunPlan(recipe, bool(saved["with_bounds"]), options, method, _kept_task(folder, recipe))


def _kept_task(folder: Path, recipe: Recipe) -> Task | None:
    """The task of a run on what another run learned, whose folder may have gone: task.json has its numbers."""
    if recipe.problem.features is None or names_a_map(str(recipe.problem.features)):
        return None
    return task_from(Store(folder).read_json("task.json"), most_parameters=MOST_PARAMETERS)


def saved_recipe(folder: Path, saved: dict[str, Any], model: str | None, data_dir: str | None) -> Recipe:
    """Read a run's recipe. Code that the folder names is not imported unless the user names it too."""
    recipe = Recipe.from_json(saved.get("recipe", {"": ""}), data_dir)
    problem = recipe.problem
    if is_import_path(str(problem.model)) and problem.model != model:
        raise InputError(
            f"The run in {folder} uses the model '{problem.model}', which is not part of consilience and would be "
            f"imported and called: if you trust that code, repeat the command with `--model {problem.model}`."
        )
    asked = problem.split or problem.sites
    with refuse_damage(say_damaged(folder)):
        natural = asked and problem.reads_files and saved["split"] == "natural"
        if natural:  # older runs took the files regardless
            files = dataclasses.replace(problem, split="natural", sites=int(saved["sites"]))
            return dataclasses.replace(recipe, problem=files)
    return recipe


def say_damaged(folder: Path) -> str:
    """Say what to do about a run whose file cannot be read."""
    return f"{folder / 'run.json'} is damaged: restore it from a copy, or start the run again in another folder."
