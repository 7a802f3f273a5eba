"""One CSV a hospital from the heart disease table: python examples/hospitals/prepare.py FOLDER"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from consilience.disk.data_folder import find


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
    with find("heart_disease.csv", None).open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name not in ("site", "num")] + ["disease"]
    for hospital in sorted({row["site"] for row in rows}):
        (folder / hospital).mkdir(parents=True, exist_ok=True)
        with (folder / hospital / "patients.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            for row in rows:
                if row["site"] == hospital:
                    writer.writerow({**row, "disease": "no" if row["num"] == "0" else "yes"})
        print(folder / hospital / "patients.csv")


if __name__ == "__main__":
    main()
