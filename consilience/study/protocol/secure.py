"""What a study that masks its sums needs, and whom it went on without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from consilience.errors import InputError
from consilience.method import Method
from consilience.method.declared import summation

if TYPE_CHECKING:
    from consilience.study.protocol.agreement import Agreement

FEWEST = 3  # sites: of two, each can take its own part out of the sum


class Drop(NamedTuple):
    """Sites that a masked sum goes on without; what they send for it later is refused.

    Attributes:
        round: Counted from 1.
        what: What is summed, as `reply`.
        sites: The names of the sites.
    """

    round: int
    what: str
    sites: tuple[str, ...]


def drop_of(entry: dict[str, Any]) -> Drop:
    """Read an entry of a study's file.

    Raises:
        TypeError: It is not one.
    """
    drop = Drop(entry["round"], entry["what"], tuple(entry["sites"]))
    if type(drop.round) is not int or not all(isinstance(text, str) for text in (drop.what, *drop.sites)):
        raise TypeError(f"{entry!r} is not a drop")
    return drop


def check_secure(agreement: Agreement, method: Method) -> None:
    """Refuse to mask what is no sum.

    Args:
        agreement: The study's agreement, which masks.
        method: Its method, with these settings.

    Raises:
        InputError: The method is no sum, or sums could be taken apart.
    """
    if summation(method) is None:
        raise InputError(
            f"secure = true needs replies that add up, and {agreement.method} with these settings needs them one by "
            "one: choose a method that is a sum (docs/threat-model.md lists them), or other settings."
        )
    if agreement.fewest_sites < FEWEST:
        raise InputError(
            f"fewest_sites = {agreement.fewest_sites} and secure = true: of fewer than {FEWEST} sites each can take "
            f"its own part out of the sum; write {FEWEST} or more."
        )
    if agreement.level and agreement.guarantee == "quantile":
        raise InputError(
            "A quantile of quantiles is taken by every site's number of rows, which masks hide: write guarantee = "
            '"pooled".'
        )
