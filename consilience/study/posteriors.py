"""Posteriors of the sites' own models in a study: the file that a site sends, and how the coordinator pools them.

A site fits any model of its own to the rows of its table, with the agreed prior. What leaves is written by the agreed
parameters' unconstrained numbers: draws, or their mean and covariance, which add up under masks as precisions do. Which
draws belong to the table nobody can check; that they are not those of a handful of rows, not broken and not sent twice
is checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from consilience.aggregation.summands import Cells
from consilience.distributions.posterior import Dense, Natural, Samples, dense_moments, from_natural, natural
from consilience.draws.alarms import WIDER, beside_prior, chain_alarms
from consilience.draws.disclosure import check_rows as check_enough
from consilience.draws.moments import Moments
from consilience.draws.pooling import Pooled, check_moments, pool, pool_sum
from consilience.draws.priors import Prior, make_prior
from consilience.draws.reading import Draws, read
from consilience.draws.space import labels_of
from consilience.errors import InputError
from consilience.privacy.disclosure.rules import ROWS_PER_PARAMETER, by_rule
from consilience.study.exchange import File, Made, Part, check_rows, hear
from consilience.study.files import SLACK, open_file
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import Header, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.posteriors import PARTS, declared, fewest_rows_of, prior_of, space_of
from consilience.study.spending import agreed_rows
from consilience.study.summing import mask_table
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site

KIND = "kept posterior"  # of the file that remembers what left
KEPT = "kept-posterior"  # the ending of its name
A_ROW = 1e6  # times the prior's precision that a row may add
DIFFERENT = 0.05  # share of draws that differ from each other; a chain that stands still has fewer


class OwnPosterior(File):
    """The posterior of a site's own model, as the study agreed on it."""

    kind = title = "posterior"

    def __init__(self, study: Study, source: str | Path | Draws | None = None, replaces: bool = False) -> None:
        """Ask for it.

        Args:
            study: The study, which agreed on it.
            source: The draws, at a site.
            replaces: Whether what left before was never handed over.
        """
        super().__init__(study)
        self.space = space_of(study.agreement)
        self.source = source
        self.replaces = replaces

    @property
    def moments(self) -> bool:
        """Whether mean and covariance leave in place of draws."""
        return self.study.agreement.posteriors_as == "moments"

    @property
    def masked(self) -> str:
        """What the sum is called under masks; empty where it leaves in the open."""
        if not self.study.agreement.secure:
            return ""
        return self.title

    @property
    def most_bytes(self) -> int:
        """How large a file may be: draws are as many as agreed."""
        return 8 * (self.study.agreement.posterior_draws + 2 * self.space.width + 4) * self.space.width + SLACK

    @property
    def prior(self) -> Prior:
        """The agreed prior, in unconstrained space."""
        return make_prior(prior_of(self.study.agreement), [], self.space, [])

    def make(self, site: Site) -> Made:
        """Take from a site's draws what may leave.

        Args:
            site: The site.

        Raises:
            InputError: There are too few rows, or the draws are not those of the agreed parameters, or broken, or
                other ones than left before.
        """
        agreement, name = self.study.agreement, site.member.name
        site.table.sound()
        rows = site.table.rows
        with_rule(rows, agreement)
        if self.source is None:
            raise InputError("The posterior of a site's own model is asked for: give its draws.")
        drawn = read(self.source, name)
        u = self._free(drawn)
        for alarm in chain_alarms([name], [u], self.space.labels):
            if alarm.stops:
                raise InputError(f"{alarm.sentence} Nothing has left.")
        flat = u.flatten(0, 1)
        gaussian = check_moments(name, flat, self.space)
        value: dict[str, Tensor] = {"mean": gaussian.mean, "covariance": torch.linalg.inv(gaussian.precision)}
        if not self.moments:
            wanted = agreement.posterior_draws
            if len(flat) < wanted:
                raise InputError(f"There are {len(flat):,} draws, and the study agreed on {wanted:,}: sample more.")
            places = torch.arange(wanted) * len(flat) // wanted
            value = {"draws": flat[places].reshape(PARTS, wanted // PARTS, self.space.width)}
        value["count"] = torch.tensor(rows)
        self.check(Part((name,), rows, self.summand(value)), rows, f"What {name} would send")
        source = agreed_rows(agreement, site.table, site.key)
        checksum = hashlib.sha256(b"".join(leaf.numpy().tobytes() for leaf in value.values())).hexdigest()
        path = site.kept(KEPT)
        repeated = path.exists() and not self.replaces
        if repeated and open_file(self.study, path, KIND).header.about["posterior"] != checksum:
            raise InputError(
                "This site has sent another posterior in this study, and two of them show how their rows differ: send "
                "the file of then, or, if it was never handed over, write over it with --replace."
            )
        header = Header(KIND, agreement.hash, agreement.name, name, 1, {"posterior": checksum})
        kept = (seal({"count": value["count"]}, header, site.key), "Stays here, so that no second one is sent")
        return Made(value, rows, source, keeps={path: kept}, repeated=repeated)

    def mask(self, site: Site, made: Made) -> Tree:
        """Put a mask over precision and mean times precision, which add up.

        Args:
            site: The site.
            made: What it made.
        """
        table = self.summand(made.value)
        decides = hashlib.sha256(table.values.numpy().tobytes()).hexdigest()
        return {"masked": mask_table(site.masks, self.masked, decides, table, made.rows)}

    def form(self) -> Tree:
        """Give a file's value without any rows."""
        width = self.space.width
        count = torch.tensor(0)
        if self.moments:
            eye = torch.eye(width, dtype=torch.float64)
            return {"mean": torch.zeros(width, dtype=torch.float64), "covariance": eye, "count": count}
        each = self.study.agreement.posterior_draws // PARTS
        return {"draws": torch.zeros(PARTS, each, width, dtype=torch.float64), "count": count}

    def summand(self, value: Any) -> Any:
        """Take draws from a file's value, or what of moments adds up, in units of the prior's SDs.

        Args:
            value: What the file holds.

        Raises:
            InputError: The covariance is none.
        """
        if not self.moments:
            return value["draws"]
        covariance: Tensor = value["covariance"]
        if not torch.allclose(covariance, covariance.mT) or float(torch.linalg.eigvalsh(covariance).min()) <= 0:
            raise InputError("A covariance is not positive definite: write the file again.")
        precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        linear = precision @ value["mean"]
        scale = self._scale
        parts = ((precision * scale * scale.unsqueeze(1)).reshape(-1), linear * scale, (linear @ value["mean"])[None])
        return Cells(torch.cat(parts), torch.ones(()))

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse what cannot be a posterior under the agreed prior of so many rows.

        Args:
            part: What came in.
            most: The most rows that its sites committed to.
            where: Where it is from.

        Raises:
            InputError: It is not used.
        """
        fewest = fewest_rows_of(self.study.agreement) * len(part.sites)
        check_rows(part.rows, fewest, most, where)
        if self.moments:
            g = self.total(part.table).product
        else:
            flat = part.table.flatten(0, 1)
            if len(flat.unique(dim=0)) < DIFFERENT * len(flat):
                raise InputError(
                    f"{where} is not used: most of its draws are the same, as of a chain that stands still."
                )
            g = check_moments(where, flat, self.space)
        self._check_width(g, part.rows, len(part.sites), where)

    def _check_width(self, g: Dense, rows: int, sites: int, where: str) -> None:
        """Refuse what is wider than the prior, or narrower than so many rows can make it."""
        j, times = beside_prior(self.prior, g)
        if times > WIDER:
            raise InputError(
                f"{where} is not used: its posterior of {self.space.labels[j]} is {times:.1f} times as wide as the "
                "agreed prior: look whether the model has this prior."
            )
        known = self.prior.natural(g.mean).precision.diagonal()
        own = 1 / torch.linalg.inv(g.precision).diagonal()
        for label, before, after in zip(self.space.labels, known.tolist(), own.tolist(), strict=True):
            if before > 0 and after > (sites + A_ROW * rows) * before:
                raise InputError(
                    f"{where} is not used: its posterior of {label} is narrower than {rows:,} rows can make it."
                )

    def total(self, table: Cells) -> Summed:
        """Read what adds up: precision, mean times precision, and what says how much sites differ."""
        width, scale = self.space.width, self._scale
        precision, linear, own = table.values.split([width**2, width, 1])
        precision = precision.reshape(width, width) / scale / scale.unsqueeze(1)
        return Summed(Natural(linear / scale, (precision + precision.mT) / 2), float(own))

    @property
    def _scale(self) -> Tensor:
        """About the prior's SDs, so that fixed-point steps are fine enough; no site's numbers are in it."""
        known = self.prior.natural(torch.zeros(self.space.width, dtype=torch.float64)).precision.diagonal()
        return torch.where(known > 0, known, torch.ones_like(known)).rsqrt()

    def _free(self, drawn: Draws) -> Tensor:
        """A site's draws as the agreed unconstrained numbers [C, S, d]."""
        for each in declared(self.study.agreement):
            p = each.parameter
            if p.name not in drawn.posterior.data_vars:
                raise InputError(f"There are no draws of '{p.name}', which the study pools: name it so in the model.")
            found = labels_of(drawn.posterior[p.name])
            if tuple(map(len, found)) != p.shape:
                sizes = " × ".join(str(len(labels)) for labels in found) or "one number"
                agreed_sizes = " × ".join(map(str, p.shape)) or "one number"
                raise InputError(f"'{p.name}' is {sizes}, and the study agreed on {agreed_sizes}: change the model.")
            for own, agreed, labelled in zip(found, p.coords, each.labelled, strict=True):
                plain = all(isinstance(label, int) for label in own)
                if not plain and tuple(map(str, own)) != tuple(map(str, agreed)) and labelled:
                    raise InputError(
                        f"'{p.name}' has the labels {', '.join(map(str, own))}, and the study agreed on "
                        f"{', '.join(map(str, agreed))}: put them in this order."
                    )
        bare = drawn.posterior.drop_vars(list(drawn.posterior.coords))
        return self.space.free(bare, drawn.name)


class Summed(NamedTuple):
    """The sum of Gaussians by their natural parameters.

    Attributes:
        natural: Σ Λₖ and Σ Λₖ μₖ.
        own: Σ μₖᵀ Λₖ μₖ.
    """

    natural: Natural
    own: float

    @property
    def product(self) -> Dense:
        """It as mean and precision.

        Raises:
            InputError: It is no sum of Gaussians.
        """
        if not float(torch.linalg.eigvalsh(self.natural.precision).min()) > 0:
            raise InputError("The sum of precisions is not positive definite: ask the sites for their files again.")
        found = from_natural(self.natural, {}, 0.0)
        assert isinstance(found, Dense)
        return found


def with_rule(rows: int, agreement: Agreement) -> None:
    """Refuse draws about a handful of rows.

    Raises:
        InputError: There are too few rows a number.
    """
    try:
        check_enough(rows, space_of(agreement).width, agreement.rows_per_number)
    except InputError as error:
        raise InputError(by_rule(ROWS_PER_PARAMETER, str(error))) from None


def pool_posteriors(
    study: Study, paths: Sequence[Path], draws: int = 4000, seed: int = 0
) -> tuple[Pooled, dict[str, float], list[str]]:
    """Pool what the sites sent by the agreed rule.

    Args:
        study: The study.
        paths: Their files; under masks also what was told of masks shared with missing sites.
        draws: How many to make.
        seed: Of the randomness.

    Returns:
        The pool, each site's share of what is known where that is seen, and a sentence for each file that is left out.

    Raises:
        InputError: Fewer sites than agreed sent a posterior that can be used.
    """
    agreement = study.agreement
    asked = OwnPosterior(study)
    parts, refused = hear(asked, paths)
    names = tuple(name for part in parts for name in part.sites)
    agreement.disclosure.check_sites(len(names), "posteriors", " ".join(refused))
    if asked.masked:
        total = asked.total(parts[0].table)
        return pool_sum(total.product, total.own, names, asked.space, asked.prior, draws, seed), {}, refused
    sites: list[Draws | Moments] = []
    for part in parts:
        if asked.moments:
            sites.append(Moments(part.sites[0], asked.space, asked.total(part.table).product, 0))
            continue
        sites.append(Draws(part.sites[0], asked.space.dataset(part.table.flatten(0, 1), PARTS)))
    settings: dict[str, Any] = {}
    if not asked.moments:
        settings = {
            "params": [p.name for p in asked.space.parameters],
            "transforms": {p.name: p.transform for p in asked.space.parameters},
        }
    pooled = pool(sites, prior_of(agreement), agreement.pool_by, draws=draws, seed=seed, **settings)
    return pooled, _influence(asked, parts), refused


def _influence(asked: OwnPosterior, parts: Sequence[Part]) -> dict[str, float]:
    """Each site's share of the precision beyond the prior, the mean over directions."""
    gaussians = []
    for part in parts:
        if asked.moments:
            gaussians.append(asked.total(part.table).product)
        else:
            gaussians.append(dense_moments(Samples({"u": part.table.flatten(0, 1)})))
    whole = torch.stack([natural(g).precision for g in gaussians]).sum(0)
    shares = [float(torch.linalg.solve(whole, g.precision).diagonal().mean()) for g in gaussians]
    return {part.sites[0]: share for part, share in zip(parts, shares, strict=True)}
