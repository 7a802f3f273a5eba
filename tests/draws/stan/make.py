"""Write the examples beside this file, as CmdStan writes draws: python tests/draws/stan/make.py

Two sites with 40 rows of y ~ normal(x · beta, 1), beta ~ normal(0, 2), and share ~ dirichlet(2, 2, 2) from counts.
Each has two chains of exact draws of the conjugate posteriors, so that the pool has a closed form.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
DRAWS, WARM, ROWS = 250, 3, 40
COUNTS = {"north": (9, 4, 7), "south": (6, 8, 10)}


def rows(site: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng({"north": 1, "south": 2}[site])
    x = rng.normal(size=(ROWS, 2))
    return x, x @ np.array([0.5, -1.0]) + rng.normal(size=ROWS)


def posterior(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    var = np.linalg.inv(x.T @ x + np.eye(2) / 4)
    return var @ (x.T @ y), var


def write(folder: Path) -> None:
    header = "lp__,accept_stat__,stepsize__,treedepth__,n_leapfrog__,divergent__,energy__"
    header += ",beta.1,beta.2,share.1,share.2,share.3"
    for site, counts in COUNTS.items():
        mean, var = posterior(*rows(site))
        for chain in (1, 2):
            rng = np.random.default_rng(10 * chain + len(site) + ord(site[0]))
            saves = int(chain == 2 and site == "south") and WARM
            count = DRAWS + saves
            beta = rng.multivariate_normal(mean, var, size=count)
            beta[:saves] = 99.0
            share = rng.dirichlet(2 + np.array(counts), size=count)
            lines = [
                "# stan_version_major = 2",
                "# stan_version_minor = 35",
                "# model = line_model",
                "# method = sample (Default)",
                "#   sample",
                f"#     num_samples = {DRAWS}",
                f"#     num_warmup = {saves or 1000}{'' if saves else ' (Default)'}",
                f"#     save_warmup = {int(bool(saves))}{'' if saves else ' (Default)'}",
                "#     thin = 1 (Default)",
                "# id = " + str(chain),
                header,
            ]
            for i, (b, s) in enumerate(zip(beta, share, strict=True)):
                if i == saves:
                    lines += [
                        "# Adaptation terminated",
                        "# Step size = 0.8",
                        "# Diagonal elements of inverse mass matrix:",
                        "# 1, 1",
                    ]
                cells = [-10.5, 0.95, 0.8, 2, 3, 0, 11.0, *b, *s]
                lines.append(",".join(f"{cell:.6g}" for cell in cells))
            lines += ["# ", "#  Elapsed Time: 0.02 seconds (Warm-up)", "#                0.03 seconds (Sampling)", "# "]
            (folder / f"{site}-{chain}.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write(HERE)
