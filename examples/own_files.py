"""Your own CSV files, one per site: hospitals/*.csv here, written first so that the example runs anywhere."""

import csv
import random
from pathlib import Path

import consilience as co

draw = random.Random(0)
Path("hospitals").mkdir(exist_ok=True)
for name, typical_age in (("north", 45), ("south", 60), ("west", 70)):
    with open(f"hospitals/{name}.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["age", "pressure", "smoker", "disease"])
        for _ in range(120):
            age, pressure, smokes = draw.gauss(typical_age, 12), draw.gauss(130, 15), draw.random() < 0.3
            ill = draw.gauss(0, 8) < (age - 60) + 0.3 * (pressure - 130) + 8 * smokes
            table.writerow([f"{age:.0f}", f"{pressure:.0f}", "yes" if smokes else "no", "yes" if ill else "no"])

# Text becomes categories, numbers are standardised by the training rows; a missing cell would be named and refused.
sites = co.from_csv("hospitals/*.csv", target="disease", test=0.25, calibration=30, seed=0)
print("sites", sites.names, "columns", sites.feature_names, "classes", sites.class_names)

task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(16,)))
result = co.run(co.methods.EvidencePooling(), task, sites, seed=0)
print(result)

patients = [[72.0, 150.0, 0.0, 1.0], [38.0, 118.0, 1.0, 0.0]]  # age, pressure, smoker=no, smoker=yes
for row, probs in zip(patients, result.predict(patients, temper=True).probs, strict=True):
    print(row, "ill with probability", round(float(probs[1]), 2))
