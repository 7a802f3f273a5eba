"""Numbers as a reader expects them: counts, bytes, percentages, with a dash where a number is missing."""

from __future__ import annotations

import math

NO_BREAK = "\u00a0"


def human_bytes(n: float | None) -> str:
    """Write a number of bytes, as '1.2 MB' for 1234567.

    Args:
        n: The number of bytes, or None.

    Returns:
        The number in powers of 1000; a dash where it is missing or not finite.
    """
    if n is None or not math.isfinite(n):
        return "–"
    if abs(n) < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n /= 1000
        if abs(n) < 999.95:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} TB"


def count(n: float | None, noun: str = "") -> str:
    """Write a count, as '17 510' or '5 sites'.

    Args:
        n: The count, or None.
        noun: What is counted, in the singular; its plural takes an 's'.

    Returns:
        The digits in groups of three; a dash where the count is missing.
    """
    digits = "–"
    if n is not None:
        digits = f"{n:,.0f}".replace(",", NO_BREAK)
    if not noun:
        return digits
    if n == 1:
        return f"{digits} {noun}"
    return f"{digits} {noun}s"


def number(x: float | None) -> str:
    """Write a number with three decimals, fewer where it is large.

    Args:
        x: The number, or None.

    Returns:
        The digits; a dash where the number is missing or not finite.
    """
    if x is None or not math.isfinite(x):
        return "–"
    size = abs(x)
    if x != 0 and not 1e-3 <= size < 1e6:
        text = f"{x:.2e}"
    elif size < 10:
        text = f"{x:.3f}"
    elif size < 100:
        text = f"{x:.2f}"
    else:
        text = f"{x:,.1f}".replace(",", NO_BREAK)
    return text.replace("-", "−")


def percent(x: float | None, digits: int = 0) -> str:
    """Write a fraction as a percentage, as '94 %' for 0.942.

    What is neither 0 nor 1 is never rounded to 0 % or 100 %, rounding errors of the fraction itself apart.

    Args:
        x: The fraction, or None.
        digits: Decimals, if these suffice.

    Returns:
        The percentage; a dash where the fraction is missing or not finite.
    """
    if x is None or not math.isfinite(x):
        return "–"
    while digits < 3 and 1e-5 < x < 1 - 1e-5 and float(f"{100 * x:.{digits}f}") in {0.0, 100.0}:
        digits += 1
    return f"{100 * x:.{digits}f} %".replace("-", "−")


def temperature(t: float | None) -> str:
    """Write a temperature, or another positive factor, to three digits.

    Args:
        t: The factor, or None.

    Returns:
        The digits; a dash where the factor is missing or not finite.
    """
    if t is None or not math.isfinite(t):
        return "–"
    return f"{t:.3g}"


def p_value(p: float | None) -> str:
    """Write a p-value, as 'p = 0.031'.

    Args:
        p: The p-value, or None where nothing was tested.

    Returns:
        Two digits, 'p < 0.001' below that, and nothing where nothing was tested.
    """
    if p is None:
        return ""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.2g}"
