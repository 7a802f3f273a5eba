"""Invent the patients of three clinics: `python examples/clinics/make.py` writes the tables beside this file again."""

import csv
import math
import random
from pathlib import Path

CLINICS = {"north": (45, 150), "south": (55, 120), "west": (65, 90)}  # the typical age, and how many patients
OUTCOMES = ("no", "yes")


def write(folder: Path) -> None:
    """Write one table a clinic; the log-odds of the disease are (age − 55) / 8 + 2 (dose − ½)."""
    draw = random.Random(1)
    for name, (typical_age, patients) in CLINICS.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["age", "dose", "disease"])
            for _ in range(patients):
                age = draw.gauss(typical_age, 11)
                dose = draw.random()
                odds = (age - 55) / 8 + 2 * (dose - 0.5)
                ill = draw.random() < 1 / (1 + math.exp(-odds))
                table.writerow([f"{age:.0f}", f"{dose:.2f}", OUTCOMES[ill]])


if __name__ == "__main__":
    write(Path(__file__).parent)
