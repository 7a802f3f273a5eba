"""What sites show of their rows, and what keeps it from being seen.

`disclosure.exposure`: how near a coreset's pseudo-rows come to single rows, `nearness`
`disclosure.hidden_rows`: whether a value holds rows, as they are or in a cheap disguise, `holds_rows`
`disclosure.guard`: rows that sums over a table would show, merged or left out, `guard`
`disclosure.rules`: the rules of disclosure by name, `DisclosureRules`
`disclosure.small_cells`: counts that may be shown, `withhold`
`secure_aggregation.masks`: numbers that only their sum over all sites shows, `mask` and `add_up`
"""

from consilience.privacy.disclosure.exposure import Nearness, exposure_warning, nearness
from consilience.privacy.disclosure.guard import Finding, Guarded, Span, guard
from consilience.privacy.disclosure.hidden_rows import holds_rows

__all__ = ["Finding", "Guarded", "Nearness", "Span", "exposure_warning", "guard", "holds_rows", "nearness"]
