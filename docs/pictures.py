"""The README's pictures, made from real runs of the clinics in `examples`: `python docs/pictures.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console
from rich.text import Text

import consilience as co

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
CLINICS = "examples/clinics/*.csv"
INK, BLUE, ORANGE = "#1c1f23", "#0b5c8f", "#b8500a"
SESSION = ("inspect 'examples/clinics/*.csv' --target disease", "effects RUN")


def draw_effect(axes: Axes, effects: co.Effects, column: str) -> None:
    """One line a site, the pooled one, and where a new site's would be."""
    pooled = next(row for row in effects.to_json()["effects"] if row["column"] == column)
    rows = [
        (s["site"], s["estimate"], 1.96 * s["error"], INK) for s in effects.to_json()["sites"] if s["column"] == column
    ]
    rows.append(("pooled", pooled["estimate"], 1.96 * pooled["error"], BLUE))
    for place, (name, at, half, colour) in enumerate(reversed(rows)):
        axes.plot([at - half, at + half], [place, place], color=colour, lw=2)
        axes.plot([at], [place], "D" if name == "pooled" else "s", color=colour, ms=7 if name == "pooled" else 5)
        axes.annotate(
            f"{at:.2f} ({at - half:.2f} to {at + half:.2f})",
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
        )
    axes.set_yticks(range(len(rows)), [name for name, *_ in reversed(rows)])
    axes.axvline(0, color="#8a9199", lw=1, ls=":")
    axes.set_xlabel(f"log odds ratio of {column}, with 95 % intervals")


def draw_reliability(axes: Axes, result: co.Result) -> None:
    """Predicted against seen, in three parts of a site's rows, of the rows that were held out."""
    axes.plot([0, 1], [0, 1], color="#8a9199", lw=1, ls=":")
    for name, rows, mark, colour in zip(result.sites.names, result.sites.test, "osD", (INK, BLUE, ORANGE), strict=True):
        p = result.model(name)(rows.x).probs[:, 1]
        order = p.argsort()
        for part in order.tensor_split(3):
            axes.plot([float(p[part].mean())], [float((rows.y[part] == 1).float().mean())], mark, color=colour, ms=6)
        axes.plot([], [], mark, color=colour, label=name)
    axes.set(xlabel="predicted probability", ylabel="share of ill patients", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False, loc="upper left")


def draw_results(result: co.Result) -> None:
    """One effect, and how far to trust the probabilities."""
    plt.rcParams.update({"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "consilience"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.0), gridspec_kw={"width_ratios": (3, 2), "wspace": 0.75})
    draw_effect(left, result.effects(), "dose")
    draw_reliability(right, result)
    left.set_title("Effect of the dose", loc="left")
    right.set_title("Calibration on held-out patients", loc="left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "results.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def record(run: Path) -> None:
    """What a terminal shows."""
    console = Console(record=True, width=110, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for words in SESSION:
        console.print(Text(f"$ consilience {words.replace('RUN', 'runs/glm')}", style="bold"))
        command = f"{sys.executable} -m consilience {words.replace('RUN', str(run))}"
        shown = subprocess.run(
            command,
            shell=True,
            check=True,
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "110"},
        )
        console.print(Text.from_ansi(shown.stdout.rstrip() + "\n"))
    picture = console.export_svg(title="consilience", unique_id="terminal")
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # which would be fetched from elsewhere
    (PICTURES / "terminal.svg").write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    os.chdir(ROOT)
    result = co.run("glm", co.Problem(CLINICS, target="disease"), seed=0)
    draw_results(result)
    with tempfile.TemporaryDirectory() as folder:
        record(result.save(Path(folder) / "run"))


if __name__ == "__main__":
    main()
