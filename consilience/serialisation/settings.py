"""Settings as JSON, and back, with names from an allow-list: what resume, studies and other machines rebuild from."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from consilience import inference
from consilience.aggregation import averages, distil, ensembles, merging
from consilience.disk.typed import declared_types, matches
from consilience.distributions import likelihood, posterior, predictive, prior
from consilience.distributions.cox import Cox
from consilience.distributions.poisson import Poisson
from consilience.errors import InputError, unknown_name
from consilience.glm import heads
from consilience.inference import optimisers
from consilience.inference.coreset import BPCfKL
from consilience.inference.hmc import HMC
from consilience.inference.unrolled import Distillation
from consilience.method import Method
from consilience.methods import METHODS
from consilience.privacy.dp.mechanisms import Privacy

T = TypeVar("T")

# What may be named in a setting: dataclasses and plain functions.
KNOWN: dict[str, Callable[..., Any]] = {
    value.__name__: value
    for value in (
        # inferences, and what they are set with
        *(inference.SGD, inference.Adam, inference.SWA, inference.SGLD, inference.CyclicalSGHMC, inference.Newton, HMC),
        *(inference.PreconditionedSGHMC, inference.Sampler, inference.DPSGD),
        *(inference.MeanField, inference.Laplace, inference.SWAG, inference.ggn, inference.fisher),
        inference.VariationalGaussian,
        inference.MultipleImputation,
        *(inference.constant, inference.cosine, inference.stepwise, inference.CropAndFlip),
        *(BPCfKL, Distillation),
        # what the server does with the replies
        *(distil.Distil, distil.at_random, distil.at_client, distil.at_average),
        *(optimisers.Descent, optimisers.AdamSteps, optimisers.Yogi),
        *(ensembles.Ensemble, ensembles.GaussianModels, ensembles.DirichletModels),
        *(predictive.shared, predictive.robust, posterior.moments, posterior.dense_moments),
        *(merging.eaa, merging.gaa, merging.aalv, merging.ppa, merging.cf),
        *(heads.Ridge, heads.OneHot, heads.Discriminant, heads.Dirichlet),
        *(posterior.average, averages.pooled_variance, averages.median, averages.trimmed),
        # what rows are protected by
        Privacy,
    )
}
# What else a task is made of.
COUNTS = {"epochs", "batch", "cycles", "keep"}  # of which there must be one
LIKELIHOODS = (likelihood.Softmax, likelihood.GaussianNoise, likelihood.Heteroscedastic, Poisson, Cox)
PRIORS = (prior.Isotropic, prior.Flat)
PROBLEM = (*LIKELIHOODS, *PRIORS)


def describe(value: Any) -> Any:
    """Write a setting as JSON.

    Args:
        value: A frozen dataclass, a function, a plain value, or a tuple or list of these.

    Returns:
        A dataclass as its type's name and its fields, a function as its name, anything else as it is.
    """
    if isinstance(value, inference.Sampler):
        value = value.canonical()  # settings that ask for another sampler are stored as that
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if not _is_as_before(value, field)]
        return {"type": type(value).__name__, **{field.name: describe(getattr(value, field.name)) for field in fields}}
    if isinstance(value, (tuple, list)):
        return [describe(item) for item in value]
    if callable(value):
        return value.__name__
    if hasattr(value, "__dict__") and not isinstance(value, Tensor):  # somebody's own, told from others by its parts
        return {"type": type(value).__name__, **{name: describe(part) for name, part in vars(value).items()}}
    return value


def _is_as_before(settings: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether a field that older runs lack has the value with which nothing changed."""
    return bool(field.metadata.get("added")) and getattr(settings, field.name) == _before(field)


def _before(field: dataclasses.Field[Any]) -> Any:
    """What older runs, which lack a field, did: its default, unless it says otherwise."""
    return field.metadata.get("before", field.default)


def restore(value: Any) -> Any:
    """Rebuild what `describe` wrote.

    Returns:
        The setting; lists become tuples.

    Raises:
        InputError: A type is neither a method nor known here, or has other fields than here.
    """
    if isinstance(value, dict):
        return _restore_dataclass(value)
    if isinstance(value, list):
        return tuple(restore(item) for item in value)
    if isinstance(value, str):
        return KNOWN.get(value, value)
    return value


def configure(settings: T, changes: Sequence[str]) -> T:
    """Apply changes in the form of text to a frozen dataclass.

    What a method does not have is set in the method it goes around: `inference.epochs=5` of FedBE is its inner one's.

    Args:
        settings: The dataclass; it is left as it is.
        changes: Texts such as `field=value` and `field.inner=value`.

    Returns:
        A copy with the changes.

    Raises:
        InputError: A text is not a setting, names a field that does not exist, or has a value of the wrong type.

    Example:
        >>> import consilience as co
        >>> from consilience.serialisation.settings import configure
        >>> configure(co.methods.FedAvg(), ["inference.epochs=3"]).inference.epochs
        3
    """
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"`{change}` is not a setting: write field=value, for example inference.epochs=20.")
        settings = _replace(settings, path.strip().split("."), text.strip(), change)
    return settings


def check_settings(settings: Any, path: str = "") -> None:
    """Refuse settings with which nothing would be trained: no epochs, empty batches, a learning rate of 0.

    Args:
        settings: A method, or anything else with settings.
        path: Of the settings, where they are another's.

    Raises:
        InputError: A count is below 1, or a rate is not above 0.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        name = f"{path}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check_settings(value, f"{name}.")
        elif field.name in COUNTS and type(value) is int and value < 1:
            raise InputError(f"{name}={value}: at least 1 is needed, or nothing is learned.")
        elif field.name == "rate" and isinstance(value, float) and not value > 0:
            raise InputError(f"{name}={value:g}: a learning rate is above 0.")


def _restore_dataclass(value: dict[str, Any]) -> Any:
    kinds: dict[Any, Any] = dict(KNOWN)
    kinds.update({kind.__name__: kind for kind in (*METHODS.values(), *PROBLEM)})
    name = value.get("type")
    if not isinstance(name, str) or name not in kinds:
        raise InputError(f"'{name}' is not known here: pass your own method as method=, or your own task as task=.")
    if not dataclasses.is_dataclass(kinds[name]):
        raise InputError(f"'{name}' has no settings, and the file gives it some: it is damaged.")
    fields = {field.name for field in dataclasses.fields(kinds[name])}
    if not set(value) <= {"type", *fields}:
        raise InputError(f"'{name}' has other settings here: it was saved by another version of consilience.")
    restored = {key: restore(item) for key, item in value.items() if key != "type"}
    declared = declared_types(kinds[name])
    for field, item in restored.items():
        if not matches(declared.get(field), item):
            raise InputError(f"'{name}' cannot have {field}={value[field]!r}: the file is damaged.")
    older = {field.name: field for field in dataclasses.fields(kinds[name]) if "before" in field.metadata}
    return kinds[name](**{name: _before(field) for name, field in older.items()} | restored)


def _replace(settings: T, path: list[str], text: str, change: str) -> T:
    """A copy with the field at the path set to what the text stands for."""
    fields: list[str] = []
    if dataclasses.is_dataclass(settings):
        fields = [field.name for field in dataclasses.fields(settings)]
    if path[0] not in fields and "inner" in fields and hasattr(settings.inner, path[0]):  # type: ignore[attr-defined]
        path = ["inner", *path]
    if path[0] not in fields:
        raise unknown_name(f"setting of {type(settings).__name__}", path[0], fields or ["none"])
    old = getattr(settings, path[0])
    if len(path) == 1:
        new = _parse(text, old, change)
    else:
        new = _replace(old, path[1:], text, change)
    return dataclasses.replace(settings, **{path[0]: new})  # type: ignore[type-var]


def _parse(text: str, old: Any, change: str) -> Any:
    """The value a text stands for, of the same kind as the one it replaces."""
    if isinstance(old, Method):
        if text not in METHODS:
            raise unknown_name("method", text, METHODS)
        return METHODS[text]()
    if text in KNOWN:
        named = KNOWN[text]
        if isinstance(named, type):
            return named()
        if inspect.isfunction(old) and not _is_alike(named, old):
            alike = [name for name, function in KNOWN.items() if _is_alike(function, old)]
            raise InputError(f"The value in `{change}` should be one of {', '.join(sorted(alike))}.")
        return named
    value = _parse_literal(text)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if old is not None and value is not None and type(value) is not type(old):
        kind = f"of type {type(old).__name__}"
        if callable(old):
            kind = f"one of {', '.join(sorted(KNOWN))}"
        raise InputError(f"The value in `{change}` should be {kind}.")
    return value


def _is_alike(named: Callable[..., Any], old: Callable[..., Any]) -> bool:
    """Whether a function takes what another takes."""
    return inspect.isfunction(named) and [*inspect.signature(named).parameters] == [*inspect.signature(old).parameters]


def _parse_literal(text: str) -> Any:
    """A Python literal; true, false and none in any case; or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
