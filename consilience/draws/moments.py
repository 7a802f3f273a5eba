"""Mean and covariance in place of draws: what a small site may send, and what can be masked, as the rule is a sum."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from consilience.distributions.posterior import Dense, Samples, dense_moments
from consilience.draws.reading import Draws
from consilience.draws.space import Space
from consilience.errors import refuse_damage

SUFFIX = ".json"
KIND = "consilience moments 1"


@dataclass(frozen=True, eq=False)
class Moments:
    """A site's posterior as a Gaussian in unconstrained space.

    Attributes:
        name: Who sends it.
        space: The parameters with their transforms, which all sites must share.
        gaussian: Mean and precision.
        count: Of how many draws.
    """

    name: str
    space: Space
    gaussian: Dense
    count: int

    def to_json(self) -> str:
        """Write them as text."""
        covariance = torch.linalg.inv(self.gaussian.precision)
        return json.dumps(
            {
                "kind": KIND,
                "name": self.name,
                "space": json.loads(self.space.to_json()),
                "mean": self.gaussian.mean.tolist(),
                "covariance": covariance.tolist(),
                "draws": self.count,
            }
        )


def moments_of(site: Draws, space: Space) -> Moments:
    """Take the moments of a site's draws.

    Args:
        space: The parameters with the transforms that all sites agreed on.
    """
    u = space.free(site.posterior, site.name).flatten(0, 1)
    return Moments(site.name, space, dense_moments(Samples({"u": u})), len(u))


def read_moments(path: Path) -> Moments:
    """Read what `Moments.to_json` wrote.

    Raises:
        InputError: It is damaged.
    """
    with refuse_damage(f"{path} holds no moments that can be read: write it again with `consilience draws moments`."):
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert value["kind"] == KIND
        space = Space.from_json(json.dumps(value["space"]))
        mean = torch.tensor(value["mean"], dtype=torch.float64)
        covariance = torch.tensor(value["covariance"], dtype=torch.float64)
        assert mean.shape == (space.width,) and covariance.shape == (space.width, space.width)
        assert bool(torch.isfinite(mean).all()) and bool(torch.allclose(covariance, covariance.mT))
        precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        return Moments(str(value["name"]), space, Dense(mean, precision), int(value["draws"]))
