"""What an audit of a promise found, what it could have found, and the table of docs/private.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import beta, binom, norm
from torch import Tensor

from consilience.benchmark.trials import markdown_table, replace_between
from consilience.privacy.dp.accountant import epsilon_of, mu_of

EPSILON, DELTA = 4.0, 1e-3
DRAWS = 2000  # a side
ENDS = 0.005  # beyond each end of Clopper and Pearson
WORSE = 1.3  # times ε, which an audit must be able to find
POWER = 0.9
PAGE = Path(__file__).parents[2] / "docs" / "private.md"
BEGIN, END = "<!-- audits -->", "<!-- end of audits -->"
EXTREME = {"age": "100", "lactate": "30", "ward": "a", "died": "yes"}
SUMS: dict[str, Any] = {"settings": (), "choose": 0.0, "test": 0.0, "epsilon": EPSILON, "delta": DELTA}

Table = list[dict[str, str]]


class Audit(NamedTuple):
    """What an audit found: how often the patient was found and suspected in vain, and what that says."""

    mechanism: str
    way: str
    draws: int
    found: int
    suspected: int
    promised: float = EPSILON
    would_find: float = -1.0

    @property
    def power(self) -> float:
        """How often it would have found `WORSE` times what was promised."""
        if self.would_find >= 0:
            return self.would_find
        return power(self.draws, WORSE * self.promised)

    @property
    def mu(self) -> float:
        return least_mu(self.found, self.suspected, self.draws)

    @property
    def epsilon(self) -> float:
        return epsilon_of(DELTA, max(self.mu, 0.0))


def least_mu(found: Any, suspected: Any, draws: int) -> Any:
    """μ by Clopper and Pearson's ends, of which both hold in 99 of 100 audits."""
    t = beta.ppf(ENDS, found, draws - found + 1)
    f = beta.ppf(1 - ENDS, suspected + 1, draws - suspected)
    return norm.ppf(np.nan_to_num(t)) - norm.ppf(np.nan_to_num(f, nan=1.0))


def power(draws: int, true: float) -> float:
    """How often the promise would be refuted if the truth were another ε: over all outcomes, in closed form."""
    mu = mu_of(true, DELTA)
    outcomes = np.arange(draws + 1)
    p_found = binom.pmf(outcomes, draws, norm.cdf(mu / 2))
    p_suspected = binom.pmf(outcomes, draws, norm.cdf(-mu / 2))
    t = norm.ppf(np.nan_to_num(beta.ppf(ENDS, outcomes, draws - outcomes + 1)))
    f = norm.ppf(np.nan_to_num(beta.ppf(1 - ENDS, outcomes + 1, draws - outcomes), nan=1.0))
    refuted = t[:, None] - f[None, :] > mu_of(EPSILON, DELTA)
    return float(p_found @ refuted @ p_suspected)


def write_page(done: list[Audit]) -> None:
    """Both files of audits write their own rows, and leave the other's."""
    before = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    written = {(a.mechanism, a.way) for a in done}
    rows = [cells for line in before if (cells := [cell.strip() for cell in line.strip("| ").split("|")])]
    rows = [cells for cells in rows if (cells[0], cells[1]) not in written]
    for a in done:
        shares = f"{100 * a.found / a.draws:.1f} / {100 * a.suspected / a.draws:.1f} %"
        found = f"{100 * a.power:.0f}"
        draws = f"{a.draws:,}".replace(",", " ")
        rows.append([a.mechanism, a.way, draws, shares, f"{a.promised:g}", f"{a.epsilon:.2f}", found])
    headings = ["promise", "drawn again", "draws a side", "found / in vain", "ε promised", "ε found, at least"]
    replace_between(PAGE, BEGIN, markdown_table([*headings, f"would find {WORSE} ε, of 100"], rows), END)


def counted(mechanism: str, way: str, without: Tensor, with_: Tensor, threshold: float) -> Audit:
    return Audit(mechanism, way, len(with_), int((with_ > threshold).sum()), int((without > threshold).sum()))
