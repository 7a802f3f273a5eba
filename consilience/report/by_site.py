"""Vector plots with a line a site: scores, rows, bytes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.report.plots import ACCENT, BYTES, MUTED, SECOND, score_axis, site_axis, site_height, svg
from consilience.report.wording import Json, count, human_bytes, metric, score, value


def site_scores(per_site: Sequence[Json], overall: Json, keys: Sequence[str], weakest: str | None = None) -> str:
    """Each site's scores as dots beside the score over all test rows."""
    names = [str(s.get("site", i)) for i, s in enumerate(per_site)]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
        for axes, key in zip(panels, keys, strict=True):
            found = [(i, v) for i, s in enumerate(per_site) if (v := value(s, key)) is not None]
            for weak, marker, colour in ((False, "o", ACCENT), (True, "D", SECOND)):
                dots = [(v, i) for i, v in found if (names[i] == weakest) == weak]
                axes.plot([v for v, _ in dots], [i for _, i in dots], marker, color=colour, markersize=4.5)
            if overall.get(key) is not None:
                axes.axvline(overall[key], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
            score_axis(axes, key)
            site_axis(axes, names)
            axes.grid(True, axis="y" if len(names) <= 30 else "x")
        for axes in panels[1:]:
            axes.set_ylabel("")

    told = [f"site {n}: {', '.join(f'{metric(k).name} {score(k, value(s, k))}' for k in keys)}"
            for n, s in zip(names[:20], per_site, strict=False)]  # fmt: skip
    return svg("sites", f"Scores per site. {'; '.join(told)}.", site_height(len(names)), draw)


def site_bytes(per_site: Sequence[Json]) -> str:
    """What each site sent and received."""
    names = [str(s.get("site", i)) for i, s in enumerate(per_site)]
    up, down = ([s.get(k) or 0 for s in per_site] for k in ("up_bytes", "down_bytes"))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        rows = range(len(names))
        aside = 0.17 if any(down) else 0.0
        axes.barh([i - aside for i in rows], up, 0.3, color=ACCENT, label="up: sent by the site")
        if any(down):
            axes.barh([i + aside for i in rows], down, 0.3, color=SECOND, label="down: received")
        site_axis(axes, names)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(BYTES)
        axes.grid(True, axis="x")
        figure.legend(loc="outside upper left", ncols=2)

    most = [human_bytes(max([*way, 0])) for way in (up, down)]
    alt = f"Bytes per site: at most {most[0]} sent and {most[1]} received by one site."
    return svg("bytes", alt, 20 + site_height(len(names)), draw)


def site_rows(per_site: Sequence[Json]) -> str:
    """How many rows each site trained on."""
    names = [str(s["site"]) for s in per_site]
    rows = [s.get("train") or 0 for s in per_site]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.barh(range(len(names)), rows, 0.5, color=ACCENT)
        site_axis(axes, names)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_xlabel("training rows")
        axes.grid(True, axis="x")

    told = "; ".join(f"site {n}: {count(r) if r else 'withheld'}" for n, r in zip(names[:20], rows, strict=False))
    return svg("rows", f"Training rows per site. {told}.", site_height(len(names)), draw)
