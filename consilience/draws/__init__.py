"""Pool the draws of any Bayesian model: each site fits its own model to its own rows and sends its posterior.

    pooled = co.draws.pool(["north.nc", "south.nc", "west.nc"], prior={"beta": "normal(0, 2.5)"})
    print(pooled.verdict)
    az.summary(pooled.to_arviz())

`read` reads draws of ArviZ, CmdStan, NumPyro and PyMC; `pool` multiplies posteriors, counts the prior once, and says
what speaks against the result; `ask`, `answer` and `correct` are a further round that makes it right where it is not.
"""

from consilience.draws.alarms import Alarm
from consilience.draws.correcting import answer, ask, correct
from consilience.draws.moments import Moments, moments_of, read_moments
from consilience.draws.pooling import Pooled, pool
from consilience.draws.pooling_rules import RULES
from consilience.draws.reading import Draws, read

__all__ = [
    "RULES",
    "Alarm",
    "Draws",
    "Moments",
    "Pooled",
    "answer",
    "ask",
    "correct",
    "moments_of",
    "pool",
    "read",
    "read_moments",
]
