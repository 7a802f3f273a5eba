"""What a study agrees on about the sites' own models: which parameters are pooled, their prior, and what leaves.

A parameter is written as `NAME[SHAPE] as TRANSFORM ~ DENSITY`: `beta[age, lactate] ~ normal(0, 2.5)`,
`sigma ~ exponential(1)`, `share[3] as simplex ~ dirichlet(1)`, `R[2; 2] as correlation ~ lkj(2)`. Every site gives its
model this prior, so that the pool can count it once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from consilience.draws.pooling_rules import BY_MOMENTS, RULES
from consilience.draws.priors import Density, make_prior
from consilience.draws.space import Parameter, Space
from consilience.draws.transforms import REAL, Shape, parse
from consilience.errors import InputError, unknown_name
from consilience.methods.claims import privacy_statement

if TYPE_CHECKING:
    from consilience.study.protocol.agreement import Agreement

SENDS = ("draws", "moments")
AUTO = "auto"
PARTS = 4  # that a site's draws are cut into, so that they can be compared
FEWEST_DRAWS = 400
DECLARED = re.compile(
    r"\s*(?P<name>[A-Za-z_][\w.]*)\s*(?:\[(?P<labels>[^\]]*)\])?\s*(?:as\s+(?P<transform>[a-z]+(?:\([^)]*\))?))?\s*"
    r"~\s*(?P<density>\S.*)"
)
EXAMPLE = "beta[2] ~ normal(0, 2.5)"
NO_EPSILON = (
    "posteriors are of models that only the sites know, and how far one row moves such a posterior is not known, so "
    "that noise which covers it is as wide as the prior, however many rows there are; leave [posteriors] out, or "
    'promise no epsilon. A linear model with ε is method = "glm" (docs/private.md).'
)
NONE = (
    "This study agreed on no posteriors of the sites' own models: write posteriors = [\"" + EXAMPLE + '"] under '
    "[posteriors] in a new one, or make it with `study new --posterior`."
)


class Declared(NamedTuple):
    """One parameter that the sites' own models share.

    Attributes:
        parameter: Its name, labels and transform.
        density: Its prior, by name.
        labelled: Whether labels were given, rather than their number.
    """

    parameter: Parameter
    density: str
    labelled: tuple[bool, ...]


def declared(agreement: Agreement) -> list[Declared]:
    """Read the agreed parameters.

    Raises:
        InputError: There are none, or one cannot be read.
    """
    if not agreement.posteriors:
        raise InputError(NONE)
    return [_read(text) for text in agreement.posteriors]


def space_of(agreement: Agreement) -> Space:
    """Say by which unconstrained numbers the agreed parameters are written, the same at every site."""
    return Space(tuple(each.parameter for each in declared(agreement)))


def prior_of(agreement: Agreement) -> dict[str, str]:
    """Name the agreed prior of each parameter."""
    return {each.parameter.name: each.density for each in declared(agreement)}


def fewest_rows_of(agreement: Agreement) -> int:
    """Count the rows that a site needs before its posterior may leave."""
    return max(agreement.smallest, agreement.rows_per_number * space_of(agreement).width)


def check_posteriors(agreement: Agreement) -> None:
    """Refuse posteriors that cannot be pooled, or would break what else is promised.

    Raises:
        InputError: They do not fit the rest.
    """
    if agreement.posteriors_as not in SENDS:
        raise unknown_name("way to send posteriors", agreement.posteriors_as, SENDS)
    if not agreement.posteriors:
        return
    if agreement.epsilon:
        raise InputError(f"[posteriors] and epsilon = {agreement.epsilon:g}: {NO_EPSILON}")
    if privacy_statement(agreement.build_method()) is not None:
        raise InputError(f"[posteriors] and private training: {NO_EPSILON}")
    space = space_of(agreement)
    names = [parameter.name for parameter in space.parameters]
    if len(set(names)) < len(names):
        raise InputError(f"[posteriors] names '{max(names, key=names.count)}' twice: write it once.")
    make_prior(prior_of(agreement), [], space, [])
    if agreement.pool_by not in (AUTO, *RULES):
        raise unknown_name("rule", agreement.pool_by, (AUTO, *RULES))
    moments = agreement.posteriors_as == "moments"
    if moments and agreement.pool_by not in (AUTO, *BY_MOMENTS):
        raise InputError(
            f'pool_by = "{agreement.pool_by}" needs draws, and moments leave: write pool_by = "gaussian", or '
            'posteriors_as = "draws".'
        )
    if agreement.secure and not moments:
        raise InputError('Draws do not add up, and secure = true masks sums: write posteriors_as = "moments".')
    if agreement.secure and agreement.pool_by not in (AUTO, "gaussian"):
        raise InputError(f'pool_by = "{agreement.pool_by}" is no sum, and secure = true masks sums: write "gaussian".')
    if agreement.rows_per_number < 1:
        raise InputError(f"rows_per_number = {agreement.rows_per_number} is a count: write 1 or more, as 10.")
    if agreement.posterior_draws < FEWEST_DRAWS or agreement.posterior_draws % PARTS:
        raise InputError(
            f"posterior_draws = {agreement.posterior_draws}: write {FEWEST_DRAWS} or more, a multiple of {PARTS}."
        )


def describe_posteriors(agreement: Agreement) -> str:
    """Say what leaves of a site's own model, before anybody signs and where it is written; empty where nothing does."""
    if not agreement.posteriors:
        return ""
    width = space_of(agreement).width
    what = f"{agreement.posterior_draws:,} draws of the posterior of {width} numbers"
    tells = "; draws about few rows reveal these rows"
    if agreement.posteriors_as == "moments":
        what = f"mean and covariance of the posterior of {width} numbers"
        tells = ", which tell less about rows than draws do, and not nothing"
        if agreement.secure:
            tells = "; masked, so that the sum over all sites can be read and no site's own"
    named = ", ".join(prior_of(agreement))
    return (
        f"Of its own model, a site can send {what} ({named}), fitted to {fewest_rows_of(agreement):,} rows or more"
        f"{tells}."
    )


def _read(text: str) -> Declared:
    found = DECLARED.fullmatch(text)
    if found is None:
        raise InputError(f"'{text}' is no parameter with its prior: write it as \"{EXAMPLE}\".")
    name = found["name"]
    coords: list[tuple[object, ...]] = []
    labelled = []
    for axis in (found["labels"] or "").split(";") if found["labels"] is not None else []:
        words = [word.strip() for word in axis.split(",")]
        counted = len(words) == 1 and words[0].isdecimal()
        if counted and int(words[0]) > 0:
            coords.append(tuple(range(int(words[0]))))
        elif all(words) and len(set(words)) == len(words) and not counted:
            coords.append(tuple(words))
        else:
            raise InputError(f"'{text}': between the brackets is a number, as [2], or labels, as [age, lactate].")
        labelled.append(not counted)
    density = found["density"].strip()
    transform = Density(density).support or REAL
    if found["transform"]:
        transform = parse(found["transform"])
    dims = tuple(f"{name}_dim_{axis}" for axis in range(len(coords)))
    shape: Shape = tuple(map(len, coords))
    if str(transform) in ("simplex", "ordered") and not shape:
        raise InputError(f"'{text}': {name} is one number; give its size, as {name}[3].")
    if str(transform) in ("correlation", "cholesky") and (len(shape) < 2 or shape[-1] != shape[-2]):
        raise InputError(f"'{text}': {name} is no matrix; give its size, as {name}[2; 2].")
    return Declared(Parameter(name, dims, tuple(coords), transform), density, tuple(labelled))
