"""The sites' counts for the prediction sets of a model: what a site makes of rows it held out, and their sum.

A site's table shows how strange these rows look to the model, and no row. Cells with few rows are counted in a cell
above them, which only enlarges the sets; also before they are masked, so that no difference of sums shows a row. Under
masks a site with too few rows sends zeros, which nobody can tell from counts. Under differential privacy a table leaves
with noise, which is drawn once for each model and kept.

What can be checked of counts: their form, that they are numbers of rows, and that no site speaks for more rows than it
committed to. With noise a count is any number not too far from that; under masks all this is checked of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from consilience.aggregation.summands import Cells
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.prediction_sets.kinds import Calibration, site_table
from consilience.prediction_sets.nonconformity import CALIBRATION, draws, row_scores
from consilience.prediction_sets.score_counts import add_noise, merge_upwards
from consilience.privacy.dp.mechanisms import Released
from consilience.privacy.entropy import Entropy
from consilience.runs.engines import computing
from consilience.serialisation.codec import TYPES
from consilience.study.budget import Cost
from consilience.study.exchange import File, Made, Part, add, check_rows, hear
from consilience.study.files import SLACK, open_file
from consilience.study.model import Model
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import Header, seal
from consilience.study.protocol.guarantees import empty_counts, fewest_scores, read_calibration
from consilience.study.protocol.members import Member, Study
from consilience.study.rows import draw_by_content, fingerprint
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site

KEPT = "counts"  # the kind of the file that keeps what left with noise
NOISE = 12.0  # standard deviations that no noise exceeds: once in 10³²


class Total(NamedTuple):
    """The counts of all sites that can be used.

    Attributes:
        table: Their sum.
        sizes: How many rows each site counted; all together under masks, nothing under noise.
        names: The sites in it.
        refused: A sentence for each file that cannot be used.
        groups: How many sites have rows, where `sizes` does not say.
    """

    table: Tensor
    sizes: list[int]
    names: list[str]
    refused: list[str]
    groups: int | None = None


class Counts(File):
    """How strange the rows that a site held out look to a model, on the agreed grid.

    Attributes:
        plan: What was agreed.
    """

    kind = "calibration"
    title = "counts"
    part = "calibrate"
    model: Model

    def __init__(self, study: Study, model: Model) -> None:
        """Ask for counts about a model, where prediction sets are agreed on."""
        super().__init__(study, model)
        self.plan = read_calibration(study.agreement)

    def about(self, member: Member) -> dict[str, Any]:
        """Say in the file's header who answers, about which model, and what was agreed."""
        return {**super().about(member), "kind": self.plan.kind}

    @property
    def most_bytes(self) -> int:
        """How large the file may be."""
        return self.study.agreement.most_bytes + SLACK + empty_counts(self.plan).nbytes

    def make(self, site: Site) -> Made:
        """Count, with noise where privacy is promised.

        Raises:
            InputError: Too few rows are held out, the model is not the site's own where the others' are, or the site
                has sent other counts.
        """
        agreement = self.study.agreement
        rows = site.role(self.part)
        scores = score_site(agreement, self.plan, self.model, site.member.number, rows)
        table = site_table(self.plan, scores, rows.y)
        if self.plan.noise:
            return self._with_noise(site, rows, table)
        counted = len(rows.y)
        if self.plan.kind != "quantile":
            table = merge_upwards(table, fewest_scores(agreement))
            counted = int(table.sum())
        return Made(_value(table, counted), counted, rows)

    def _with_noise(self, site: Site, rows: Data, table: Tensor) -> Made:
        """The table with noise of the operating system, or the one that was sent before; how many rows is not said."""
        study, model = self.study, self.model.checksum
        privacy = study.agreement.privacy
        assert privacy is not None
        privacy.check(len(study.active), sum(one.rows for one in study.active))
        tables, made_from = _read_kept(site)
        repeated = model in tables
        if repeated and made_from.get(model) != fingerprint(rows):
            raise InputError(
                "This site has sent counts of other rows about this model, and a second answer would cost twice the "
                f"privacy budget: use the table of then, which {site.kept(KEPT)} keeps."
            )
        if not repeated:
            tables[model] = add_noise(table, self.plan.noise, Entropy())
            made_from[model] = fingerprint(rows)
        agreement = study.agreement
        header = Header(KEPT, agreement.hash, agreement.name, site.member.name, 1, {"rows": made_from})
        kept = (seal(tables, header, site.key), "Stays here, so that noise is not drawn again")
        return Made(_value(tables[model], 0), 0, rows, Cost(privacy.mu), {site.kept(KEPT): kept}, repeated)

    def form(self) -> Tree:
        """Give a file's value without any rows."""
        table = empty_counts(self.plan)
        if self.plan.noise:
            table = table.double()
        return _value(table, 0)

    def summand(self, value: Any) -> Cells:
        """Take the cells from a file's value, and whether its site has rows.

        Args:
            value: What the file holds.
        """
        return Cells(value["conformal"].double(), torch.tensor(float(value["count"] > 0), dtype=torch.float64))

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse what cannot be counts of so many rows.

        Args:
            most: The most rows that its sites committed to.

        Raises:
            InputError: It is not used.
        """
        table = part.table.values
        groups = round(float(part.table.groups))
        if self.plan.noise:
            sound = _is_noisy(table, most, self.plan.noise * len(part.sites)) and groups == part.rows == 0
        elif self.masked:
            sound = _are_counts(table, part.rows, most) and 0 <= groups <= len(part.sites)
        else:
            check_rows(part.rows, 1, most, where)
            fewest, rows = 1, 1
            if self.plan.kind != "quantile":
                fewest, rows = fewest_scores(self.study.agreement), part.rows
            sound = _are_counts(table, rows, most) and int(table[table != 0].min()) >= fewest
        if not sound and self.masked:
            raise InputError(
                f"{where} cannot be one of rows: one of the sites sent something else than it should, and masks hide "
                "which."
            )
        if not sound:
            raise InputError(f"{where} cannot be counts of enough rows: not used.")


def _value(table: Tensor, rows: int) -> dict[str, Tensor]:
    return {"conformal": table, "count": torch.tensor(rows)}


def _read_kept(site: Site) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tables that left with noise and the rows they were made from, by model."""
    if not site.kept(KEPT).exists():
        return {}, {}
    envelope = open_file(site.study, site.kept(KEPT), KEPT)
    if envelope.header.sender != site.member.name:
        raise InputError(f"{site.kept(KEPT)} is another site's: give this site's own.")
    return dict(envelope.value(TYPES)), dict(envelope.header.about["rows"])


def score_site(agreement: Agreement, plan: Calibration, model: Model, number: int, rows: Data) -> Tensor:
    """Score the rows that a site held out, if thresholds can be found by them.

    Args:
        number: The site's number in the study.

    Returns:
        Their scores [N].

    Raises:
        InputError: Too few rows are held out, or the model is not the site's own where the others' are.
    """
    if plan.own_models != model.own:
        raise InputError(
            "Prediction sets of this study are of the sites' own models, and this is a newcomer's: give "
            "what `site fit` kept with --memory. A site that took no part sends no counts."
        )
    shown = plan.kind == "own" or not (agreement.secure or plan.noise)
    if shown and len(rows.y) < agreement.smallest:
        raise InputError(
            f"Only {len(rows.y)} rows are held out to calibrate and no count below {agreement.smallest} may be shown: "
            "this site sends no counts."
        )
    if agreement.kind == "survival" and model.baseline is None:
        raise InputError(
            "Lower bounds of times need survival curves, and this model has no baseline: first `site statistics` at "
            "the sites and `study choose` at the coordinator."
        )
    return score_rows(model, plan, number, rows)


def score_rows(model: Model, plan: Calibration, number: int, rows: Data) -> Tensor:
    """Score the rows that a site held out.

    Args:
        number: The site's number in the study.

    Returns:
        Their scores [N].
    """
    if not len(rows.y):
        return torch.zeros(0, dtype=torch.float64)
    u = draws(model.agreement.key, CALIBRATION, len(rows.y), number)
    if plan.noise:  # by place, one row more would change the scores of all after it
        u = draw_by_content(model.agreement, rows, "score")
    with torch.no_grad(), computing(model.agreement.build_task()):
        return row_scores(plan.score, model.on_network_scale(rows.x), rows.y, u, plan.level)


def add_counts(study: Study, model: Model, paths: Sequence[Path]) -> Total:
    """Add up the sites' counts about a model.

    Args:
        model: The model that they must be about.
        paths: The sites' files; under masks also what was told of masks shared with missing sites.

    Returns:
        The sum, and a sentence for each file that is left out.

    Raises:
        InputError: Too few sites' counts can be used, or masked ones cannot be summed.
    """
    agreement = study.agreement
    counts = Counts(study, model)
    parts, refused = hear(counts, paths)
    names = [name for part in parts for name in part.sites]
    if len(names) < agreement.fewest_sites:
        raise InputError(
            f"The counts of {len(names)} site(s) can be used, and {agreement.fewest_sites} are agreed on as the "
            f"fewest. {' '.join(refused)}".strip()
        )
    table = add([part._replace(table=part.table.values) for part in parts])
    groups = None
    if counts.plan.noise:
        groups = len(names)
    else:
        table = table.long()
        if counts.masked:
            groups = round(float(parts[0].table.groups))
    if agreement.privacy is not None:
        agreement.privacy.check_shares(Released(table, torch.tensor(float(len(names)))))
    return Total(table, [part.rows for part in parts], names, refused, groups)


def _are_counts(table: Tensor, rows: int, most: int) -> bool:
    """Whether a table is of whole numbers that add up to a number of rows."""
    whole = bool((table == table.round()).all()) and bool((table >= 0).all()) and bool((table <= rows).all())
    return whole and int(table.sum()) == rows and rows <= most


def _is_noisy(table: Tensor, most: int, var: float) -> bool:
    """Whether a table can be counts of that many rows with noise."""
    if not bool(table.isfinite().all()):
        return False
    reach = NOISE * math.sqrt(var)
    return bool((table.abs() <= most + reach).all()) and float(table.sum().abs()) <= most + reach * len(table.flatten())
