"""Bayesian federated learning: private sites infer, one server pools, and the probabilities can be trusted.

The names here are what a study needs: rows, a task, a method, an inference, and something to run them with. The rest
is in namespaces:

- `co.splits`: how rows are dealt to simulated sites, and `co.datasets`: what there is to deal;
- `co.models`: networks;
- `co.inference`: every way a client infers, with optimisers and schedules;
- `co.aggregation`: rules that pool posteriors and predictions;
- `co.metrics`: scores, calibration and paired differences;
- `co.prediction_sets`: prediction sets, and how much they cover;
- `co.engines`: where the clients' work runs;
- `co.method`, `co.messages`, `co.distributions`: the vocabulary of a method's file;
- `co.glm`: what linear models share;
- `co.draws`: draws of any Bayesian model, pooled.
"""

import ast
import functools
import importlib
import pathlib
from typing import TYPE_CHECKING, Any

from consilience.version import __version__

if TYPE_CHECKING:  # for type checkers and editors; a program loads a name when it first uses it
    from consilience import (
        aggregation,
        data,
        distributions,
        draws,
        glm,
        inference,
        key,
        messages,
        method,
        methods,
        metrics,
        models,
        prediction_sets,
        runs,
        task,
    )
    from consilience.benchmark.folds import cross_conformal
    from consilience.benchmark.running import compare
    from consilience.benchmark.tuning import tune
    from consilience.biostatistics.table_one import table_one
    from consilience.data import Sites, datasets, from_arrays, from_csv, from_frame, from_table, splits
    from consilience.errors import Diverged, InputError
    from consilience.inference import SGD, SGLD, SWAG, Adam, CyclicalSGHMC, Laplace, MeanField, Sampler
    from consilience.inference.hmc import HMC
    from consilience.method import Method
    from consilience.methods.bcm import BCM
    from consilience.methods.beta import BetaPredictiveBayes
    from consilience.methods.bounds import Centralised, LocalOnly, ServerOnly
    from consilience.methods.coreset import CoresetFL
    from consilience.methods.dosfl import DOSFL
    from consilience.methods.ep_mcmc import EPMCMC
    from consilience.methods.evidence import EvidencePooling
    from consilience.methods.evidence_logits import EvidenceLogits
    from consilience.methods.evidence_tuned import EvidenceTuned
    from consilience.methods.exact import ExactPooling
    from consilience.methods.exact_tuned import ExactTuned
    from consilience.methods.fedavg import FedAvg
    from consilience.methods.fedbe import FedBE
    from consilience.methods.fedkt import FedKT
    from consilience.methods.fedopt import FedAdam, FedAvgM, FedYogi
    from consilience.methods.fedpa import FedPA
    from consilience.methods.fedprox import FedProx
    from consilience.methods.gaussian_product import GaussianProduct
    from consilience.methods.glm import GLM
    from consilience.methods.hierarchical import Hierarchical
    from consilience.methods.mime import Mime, MimeLite
    from consilience.methods.mixture import Mixture
    from consilience.methods.oneshot import OneShotFL
    from consilience.methods.pvi import PVI
    from consilience.methods.scaffold import Scaffold
    from consilience.methods.situation import recommend
    from consilience.methods.variational import VariationalAveraging
    from consilience.runs import engines
    from consilience.runs.conformal import conformal
    from consilience.runs.engines.participation import Participation
    from consilience.runs.estimator import FederatedClassifier, FederatedRegressor
    from consilience.runs.problem import Problem
    from consilience.runs.result import Result
    from consilience.runs.run import Compute, load, run
    from consilience.task import Task, classification, counts, regression, survival

__all__ = [
    "BCM", "DOSFL", "EPMCMC", "GLM", "HMC", "PVI", "SGD", "SGLD", "SWAG", "Adam", "BetaPredictiveBayes",
    "Centralised", "Compute", "CoresetFL", "CyclicalSGHMC", "Diverged", "EvidenceLogits", "EvidencePooling",
    "EvidenceTuned", "ExactPooling", "ExactTuned", "FedAdam", "FedAvg", "FedAvgM", "FedBE", "FedKT", "FedPA",
    "FedProx", "FedYogi", "FederatedClassifier", "FederatedRegressor", "GaussianProduct", "Hierarchical",
    "InputError", "Laplace", "LocalOnly", "MeanField", "Method", "Mime", "MimeLite", "Mixture", "OneShotFL",
    "Participation", "Problem", "Result", "Sampler", "Scaffold", "ServerOnly", "Sites", "Task", "VariationalAveraging",
    "__version__", "aggregation", "classification", "compare", "conformal", "counts", "cross_conformal", "data",
    "datasets", "distributions", "draws", "engines", "from_arrays", "from_csv", "from_frame", "from_table", "glm",
    "inference", "key", "load",
    "messages", "method", "methods", "metrics", "models", "prediction_sets", "recommend", "regression", "run",
    "runs", "splits", "survival", "table_one", "task", "tune",
]  # fmt: skip


@functools.cache
def _read_homes() -> dict[str, str]:
    """Where each name is, from the imports above that only type checkers run, so that it is written once."""
    homes: dict[str, str] = {}
    for node in ast.walk(ast.parse(pathlib.Path(__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{__name__}."):
            homes |= {alias.name: node.module for alias in node.names}
    return homes


if not TYPE_CHECKING:  # a name that is not there shall be a mistake to type checkers

    def __getattr__(name: str) -> Any:
        """Load a public name when it is first used: torch alone takes two seconds that `--help` need not wait for."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _read_homes().get(name)
        if home is not None:
            module = importlib.import_module(home)
            value = getattr(module, name, None) or importlib.import_module(f"{home}.{name}")  # or a room inside a room
        else:
            value = importlib.import_module(f"{__name__}.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
