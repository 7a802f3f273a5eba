"""Bayesian federated learning: private sites infer, one server pools, and the probabilities can be trusted.

The names here are what a study needs: rows, a task, an inference, and something to run them with. Methods and the rest
are in namespaces:

- `co.methods`: every method, for example `co.methods.FedAvg`;
- `co.splits`: how rows are dealt to simulated sites, `co.datasets`: what there is to deal, and `co.data`: rows and
  their roles;
- `co.models`: networks;
- `co.inference`: every way a client infers, with optimisers and schedules;
- `co.aggregation`: rules that pool posteriors and predictions;
- `co.metrics`: scores, calibration and paired differences;
- `co.prediction_sets`: prediction sets, and how much they cover;
- `co.engines`: where the clients' work runs;
- `co.method`, `co.messages`, `co.task`, `co.key`, `co.distributions`: the vocabulary of a method's file;
- `co.glm`: what linear models share;
- `co.draws`: draws of any Bayesian model, pooled.
"""

from typing import Any

import lazy_loader

from consilience.version import __version__ as __version__

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names are in __init__.pyi


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: torch alone takes two seconds that `--help` need not wait for."""
    try:
        return _load(name)
    except AttributeError as error:
        if name.startswith("_") or error.name is not None:
            raise
        raise AttributeError(
            f"consilience has no {name}: methods are in co.methods, inferences in co.inference, networks in co.models."
        ) from None
