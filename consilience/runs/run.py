"""Run a method over sites, and bring a finished run back."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from consilience.data.dataset import check_finite
from consilience.data.sites import Data, Sites
from consilience.disk.locks import locking
from consilience.disk.typed import plain
from consilience.errors import InputError, refuse_damage
from consilience.inference.imputed import marks_of
from consilience.key import Key
from consilience.messages import Received
from consilience.method import Method, usual_rounds
from consilience.method.declared import folds, impute, pools_rows
from consilience.methods.claims import for_rounds, privacy_statement, promised_privacy
from consilience.metrics.evaluate import Scorer
from consilience.runs.callbacks import OnRound, observing
from consilience.runs.conformal import check_level, report_guarantee
from consilience.runs.device import device as named_device
from consilience.runs.device import on, place_on
from consilience.runs.effects import Fit, effects_report
from consilience.runs.engines import Engine, choose_engine, threads_for
from consilience.runs.engines import engine as named_engine
from consilience.runs.engines import participation as part
from consilience.runs.engines.arithmetic import check_matmul, choose_matmul, resumed_matmul
from consilience.runs.engines.client_turn import Prepares
from consilience.runs.engines.participation import Participation
from consilience.runs.engines.round import server_view
from consilience.runs.engines.soundness import draw_probes
from consilience.runs.heard import tell_warnings, untold
from consilience.runs.identity import check, facts, identity, reported_identity
from consilience.runs.loop import Loop, collect_warnings, new_checkpoint
from consilience.runs.problem import Problem, as_problem
from consilience.runs.recipe import ingredients
from consilience.runs.result import Result
from consilience.runs.start import Start, start_from
from consilience.runs.store import ALL_ROWS, FORMAT, Checkpoint, Store
from consilience.serialisation.blueprint import blueprint, sites_from, task_from
from consilience.serialisation.settings import restore
from consilience.task import Task
from consilience.tree import Tree
from consilience.version import __version__

EngineFactory = Callable[[Sequence[Data]], Engine]


@dataclass(frozen=True)
class Compute:
    """Where and how a run computes; numbers depend on the engine and the device alone.

    Attributes:
        engine: An engine's name, `auto` for a rule, or a function from the sites' rows to an engine.
        threads: Torch's; one for small networks if None.
        compiled: Whether vectorised steps are compiled; None: where enough of them lie ahead on a single core, and
            as before after a resume.
        device: Where sites and server compute; what is kept, scored and given back lies on the processor.
        workers: For comparisons, how many seeds run at a time, each in a process of its own with its part of the
            cores. With several, a script calls `compare` below `if __name__ == "__main__":`.
        matmul: "medium" multiplies float32 by oneDNN, "highest" by torch's usual library; "auto" takes oneDNN on
            processors where it is faster and keeps the digits. None: what CONSILIENCE_MATMUL says, else "auto", and as
            before after a resume.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=2, split="iid")
        >>> co.run("exact", problem, engine=co.Compute("sequential", threads=1)).report["engine"]
        'sequential'
    """

    engine: str | EngineFactory = "auto"
    threads: int | None = None
    compiled: bool | None = None
    device: str = "cpu"
    workers: int = 1
    matmul: str | None = None


@locking("out")
def run(
    method: Method | str,
    task: Task | Problem,
    sites: Sites | None = None,
    *,
    rounds: int | None = None,
    seed: int = 0,
    engine: str | EngineFactory | Compute = "auto",
    participation: float | Participation | None = None,
    start: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    keep_replies: str = "last",
    scored: bool = True,
    level: float | None = None,
    about: dict[str, Any] | None = None,
    on_round: OnRound | None = None,
    effects: bool = True,
) -> Result:
    """Run a method on a problem.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=3, model="linear")
        >>> co.run("fedavg", problem, rounds=2).report["rounds"]
        2
        >>> task, sites = problem.build()
        >>> co.run(co.methods.FedAvg(), task, sites, rounds=2).report["rounds"]
        2

    Scores and predictions are of a model that saw the training rows alone. Effects of a linear model are of all rows:
    where some are held out, it is fitted once more on all of them, unless it promises differential privacy.

    Args:
        method: How the sites learn together: an object, or a name, with the settings that are usual on the problem.
        task: The problem; or the network, its likelihood and its prior.
        sites: Everybody's rows, by role, where `task` is no `Problem`.
        rounds: How many; 1 for one-round methods and what is usual for the others if None.
        engine: Where the sites' work runs: an engine's name, or a `Compute` that also sets threads and device.
        participation: How many sites, or which fraction of them, are asked a round; a `Participation` also says who
            is lost and how many replies suffice.
        start: The folder of another run, whose posterior this one begins at.
        out: A folder in which everything is kept.
        resume: Continue from the last whole round in that folder.
        keep_replies: Which rounds' replies are kept: `last`, `all` or `none`. With `none`, a method that averages
            or sums folds replies as they arrive, so that thousands of sites need little memory.
        scored: False leaves the scores to the caller. Where no row is held out, nothing is scored.
        level: What prediction sets shall cover, where the sites hold rows out for them; 0.9 if None.
        about: What is added to run.json.
        on_round: Is called with a `RoundEvent` after every round; see `consilience.runs.callbacks` for ready ones.
        effects: False leaves effects out of the report.

    Raises:
        InputError: The run cannot work as asked; the sentence says what to change.
        Diverged: A site's weights are not finite, or the pooled model predicts numbers that are not.
    """
    method, task, sites = ingredients(method, as_problem(task, sites), seed)
    scored_sites = sites  # pooled rows are scored site by site too
    how: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "engine": engine,
        "participation": participation,
        "start": start,
    }
    again = functools.partial(run, method, task, **how, keep_replies=keep_replies, scored=False)
    on_all_rows = functools.cache(functools.partial(_on_all_rows, again, method, task, sites, out))
    method, sites, rounds = _settle(method, sites, rounds)
    compute = engine if isinstance(engine, Compute) else Compute(engine)
    if compute.workers > 1:
        raise InputError(f"workers={compute.workers} is for a comparison of several seeds: leave it out of a run.")
    cohort = part.participation(participation)
    check(method, task, sites, rounds)
    check_level(sites, level)
    part.check(cohort, method, len(sites))
    if cohort.min_replies is None:  # else a site whose training fails is lost
        for site, rows in zip(sites.names, sites.train, strict=True):
            check_finite(f"Site {site}", "training ", rows.x, sites.feature_names)
    store = _store(out, keep_replies, resume)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        place = _place(compute, method, task, sites, rounds, store)
    fingerprint = identity(method, task, sites, seed, on(place.engine_name, compute.device), cohort.fingerprint())
    key = Key(seed)
    server = server_view(key, len(sites), sites.inputs, sites.calibration)
    origin = None if start is None else start_from(start, task)
    checkpoint = new_checkpoint(_first_state(method, task, server, origin), fingerprint)
    checkpoint = checkpoint._replace(warnings=collect_warnings((), noticed, sites.names))
    spent = 0.0
    if store is not None and resume:
        checkpoint = _saved(store, method, fingerprint, rounds) or checkpoint
        spent = _seconds_spent(store)
    if store is not None:
        store.write_json("task.json", {"format": FORMAT, **blueprint(task, sites)})
    header = {
        **_header(method, task, sites, rounds, seed, place, compute.device),
        **_circumstances(method, sites, origin, cohort),
        **(about or {}),
    }
    scorer = Scorer(method, task, scored_sites)
    place.engine.forgiving = cohort.min_replies is not None
    loop = Loop(
        method,
        place.task,
        place.engine,
        server._replace(inputs=place.sites.inputs, calibration=place.sites.calibration),
        key,
        rounds,
        names=sites.names,
        sizes=[len(rows.w) for rows in sites.train],
        fingerprint=fingerprint,
        header=header,
        participation=cohort,
        folding=keep_replies == "none" and folds(method),
        threads=place.threads,
        matmul=place.matmul,
        device=place.device,
        store=store,
        score=scorer.history if scored and sites.holds_out else None,
        probes=draw_probes(key, sites.example),
        spent=spent,
    )
    with observing(on_round):
        checkpoint, replies = loop(checkpoint)
    if not replies and not loop.folding and store is not None and keep_replies != "none":
        replies = store.replies(checkpoint.rounds, method)

    def evaluate(state: Tree, memories: dict[int, Tree]) -> dict[str, Any]:
        found = {}
        if sites.holds_out:
            found = plain(scorer.evaluate(state, memories))
        found |= report_guarantee(method, task, state, memories, scored_sites, level, seed)
        if effects:
            found |= effects_report(Fit(task, sites, state, replies), on_all_rows)
        return found

    report = loop.finish(checkpoint, evaluate if scored else None)
    tell_warnings(report, scored_sites)
    return Result(method, task, sites, checkpoint.state, replies, server, report, store, checkpoint, on_all_rows)


def _on_all_rows(
    again: Callable[..., Result], method: Method, task: Task, sites: Sites, out: str | Path | None
) -> Result | None:
    """The same run on all rows, those that were held out too; None where none are, or it must not or cannot be."""
    whole = sites.trained_on_all()
    if whole is None or promised_privacy(method) is not None or privacy_statement(method) is not None:
        return None
    try:
        check(method, task, whole, 1)
    except InputError:  # it needs rows of the server's
        return None
    folder = None
    if out is not None:
        folder = Path(out) / ALL_ROWS
    try:
        with untold():
            return again(whole, out=folder, resume=folder is not None)
    except InputError:  # what the others' rows alone could tell, all rows cannot: no half a run is left for `load`
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None


def _settle(method: Method, sites: Sites, rounds: int | None) -> tuple[Method, Sites, int]:
    """The method, the rows and the number of rounds as they are run."""
    if pools_rows(method):
        sites = sites.pooled()
    if rounds is None:
        rounds = usual_rounds(method)
    method = for_rounds(method, rounds)
    if sites.imputations:
        method = impute(method, marks_of(sites.feature_names or ()), sites.imputations)
    return method, sites, rounds


def _circumstances(method: Method, sites: Sites, origin: Start | None, cohort: Participation) -> dict[str, Any]:
    """What run.json says of a run that begins elsewhere, keeps a promise, or does not ask all sites."""
    known: dict[str, Any] = {}
    if origin is not None:
        known["started_from"] = origin.about
    privacy = promised_privacy(method)
    if privacy is not None:
        known["privacy"] = privacy.describe(simulated=True, not_covered=_not_covered(sites))
    if cohort.partial:
        known["participation"] = dataclasses.asdict(cohort)
    promise = privacy_statement(method)
    if promise is not None:
        known["privacy"] = promise
    return known


def _not_covered(sites: Sites) -> list[str]:
    """What of a run no noise was added to."""
    parts = ["the scores of this report, on test rows", "how many rows a site has"]
    if sites.feature_shift is not None:
        parts.append("the constants that columns were scaled by, which are those of the training rows")
    if sites.classes is None:
        parts.append("the constants that targets were scaled by, which are those of the training rows")
    if sites.calibration is not None:
        parts.append("the server's own labelled rows, where a temperature is fitted on them")
    return parts


class _Place(NamedTuple):
    """Where a run computes, and what lies there."""

    device: torch.device
    task: Task
    sites: Sites
    engine_name: str
    engine: Engine
    compiled: bool
    threads: int
    matmul: str


def _place(compute: Compute, method: Method, task: Task, sites: Sites, rounds: int, store: Store | None) -> _Place:
    if compute.threads is not None and compute.threads < 1:
        raise InputError(f"threads={compute.threads}: at least one is needed; leave it out to choose by the network.")
    device = named_device(compute.device)
    placed_task, placed_sites = place_on(task, sites, device)
    name, engine = _engine(compute.engine, task, sites, placed_sites)
    compiled = _prepare(engine, store, compute.compiled, method, task, rounds)
    threads = compute.threads or threads_for(task)
    return _Place(
        device, placed_task, placed_sites, name, engine, compiled, threads, _matmul(compute, device, store, task)
    )


def _matmul(compute: Compute, device: torch.device, store: Store | None, task: Task) -> str:
    """How matrices are multiplied; on other devices than the processor as torch does."""
    check_matmul(compute.matmul, device.type)
    if device.type != "cpu":
        return torch.get_float32_matmul_precision()
    if store is not None and (store.folder / "run.json").exists():
        return resumed_matmul(compute.matmul, store.read_json().get("matmul"), task)
    return choose_matmul(compute.matmul, task)


def _header(
    method: Method, task: Task, sites: Sites, rounds: int, seed: int, place: _Place, device: str
) -> dict[str, Any]:
    """What run.json says before there is a result."""
    return {
        "consilience": __version__,
        "format": FORMAT,
        **facts(method, task, sites, rounds, seed, place.engine_name, place.threads),
        "compiled": place.compiled,
        "matmul": place.matmul,
        "device": device,
    }


def _engine(engine: str | EngineFactory, task: Task, sites: Sites, placed: Sites) -> tuple[str, Engine]:
    """Its name, and the engine over the rows, wherever they lie."""
    if not isinstance(engine, str):
        return getattr(engine, "__name__", "custom"), engine(placed.train)
    name = choose_engine(engine, task, sites.train)
    return name, named_engine(name, placed.train)


def _store(out: str | Path | None, keep_replies: str, resume: bool) -> Store | None:
    store = Store(out or "", keep_replies)  # which refuses what cannot be kept, with and without a folder
    if out is None:
        return None
    if store.has_rounds and not resume:
        raise InputError(
            f"{store.folder} already holds a run: continue it with resume=True (--resume), or choose another folder."
        )
    return store


def _prepare(
    engine: Engine, store: Store | None, compiled: bool | None, method: Method, task: Task, rounds: int
) -> bool:
    """Let an engine get ready for what lies ahead; whether it compiles its steps. A resumed run does as before."""
    if not isinstance(engine, Prepares):
        return False
    if store is not None and (store.folder / "run.json").exists():
        compiled = store.read_json().get("compiled")
    return engine.prepare(method, task, rounds, compiled)


def _first_state(method: Method, task: Task, server: Any, origin: Start | None) -> Tree:
    state = method.init(task, server)
    if origin is None:
        return state
    return origin.into(state, task)


def _saved(store: Store, method: Method, fingerprint: str, rounds: int) -> Checkpoint | None:
    """The last whole round, if it is of the same run and not beyond its end."""
    saved = store.load(method)
    if saved is not None and saved.fingerprint != fingerprint:
        raise InputError(
            f"{store.folder} was made with another method, model, data, seed or engine; use what it was made with."
        )
    if saved is not None and saved.rounds > rounds:
        raise InputError(f"{store.folder} already holds {saved.rounds} rounds; ask for as many or more, not {rounds}.")
    return saved


def _seconds_spent(store: Store) -> float:
    """The seconds of a run before it is resumed; in run.json, so that equal runs have equal states."""
    try:
        return float(store.read_json().get("seconds") or 0.0)
    except InputError:  # lost or damaged, and made again
        return 0.0


def load(
    folder: str | Path, method: Method | None = None, task: Task | None = None, sites: Sites | None = None
) -> Result:
    """Bring a finished run back from its folder; nothing is trained.

    Args:
        folder: The run's folder. It alone is enough to predict, unless method or network are your own.
        method: The method, if it is your own.
        task: The task, if the network is your own.
        sites: The rows, which are not kept: hand them in to score or to pool again.

    Raises:
        InputError: The folder holds no finished run, or one of another method, task or data.

    Example:
        >>> import consilience as co
        >>> folder = co.run("exact", co.Problem("moons", sites=2, split="iid")).save("results/moons")
        >>> co.load(folder).report["method"]
        'exact'
    """
    store = Store(folder)
    report = store.read_report()
    plan = {}
    if task is None or sites is None:
        plan = store.read_json("task.json")
    if method is None:
        method = _method_of(store, report)
    saved = store.load(method)
    if saved is None:
        raise InputError(f"{folder} holds no state: start the run again.")
    if task is None:
        state_bytes = (store.folder / "state.safetensors").stat().st_size
        task = task_from(plan, most_parameters=state_bytes)
    if sites is None:
        sites = sites_from(plan)
    else:
        if pools_rows(method):
            sites = sites.pooled()
        if saved.fingerprint != reported_identity(report, method, task, sites):
            raise InputError(f"{folder} was made with another method, model or data than these.")
    replies: Sequence[Received] = []
    if (store.folder / "replies").exists():
        replies = store.replies(saved.rounds, method)
    on_all_rows = None
    if (store.folder / ALL_ROWS).exists():
        on_all_rows = functools.cache(functools.partial(load, store.folder / ALL_ROWS, method, task))
    with refuse_damage(f"{folder} is damaged or was made with another network or method: restore it from a copy."):
        server = server_view(Key(report["seed"]), len(sites.names), sites.inputs, sites.calibration)
        result = Result(method, task, sites, saved.state, replies, server, report, store, saved, on_all_rows)
        result.check_predicts()
    return result


def _method_of(store: Store, report: dict[str, Any]) -> Method:
    """The method that a report describes."""
    with refuse_damage(f"{store.folder / 'run.json'} is damaged: restore it from a copy."):
        method = restore(report["settings"])
        if not isinstance(method, Method):
            raise ValueError("not a method")
        return method
