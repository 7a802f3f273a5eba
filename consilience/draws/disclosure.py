"""What draws reveal of rows, and how many rows a site must have before they may leave."""

from __future__ import annotations

from consilience.errors import InputError

ROWS_EACH = 10  # rows that each pooled number must rest on


def check_rows(rows: int, width: int, each: int = ROWS_EACH) -> None:
    """Refuse what was fitted to too few rows: draws about a handful of rows are nearly these rows.

    Args:
        rows: How many the model was fitted to.
        width: How many unconstrained numbers it sends the posterior of.
        each: How many rows each number must rest on.

    Raises:
        InputError: There are fewer.
    """
    if rows < each * width:
        raise InputError(
            f"{rows} rows are too few for {width} numbers: draws of them would reveal rows; send nothing, pool fewer "
            f"parameters, or have {each * width} rows or more."
        )
