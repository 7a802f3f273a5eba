"""Peers on the same rounds, each in an environment of its own: installed from the registry, one script each."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

PEERS = {"FedJAX 0.0.17": ("fedjax==0.0.17", "fedjax_rounds.py"), "pfl 0.6": ("pfl[pytorch]==0.6.0", "pfl_rounds.py")}
ENVIRONMENTS = Path("build/peers")


def python(requirement: str) -> Path:
    """The interpreter of an environment that holds the peer; made on first use."""
    folder = ENVIRONMENTS / requirement.partition("=")[0].partition("[")[0]
    interpreter = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run(
            [str(interpreter), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", requirement],
            check=True,
        )
        (folder / "ready").touch()
    return interpreter


def measure(clients: int, options: Namespace) -> dict[str, float]:
    """Seconds a round after the first, medians; one that does not install or run is left out, and said."""
    seconds = {}
    for name, (requirement, script) in PEERS.items():
        command = [str(Path(__file__).with_name(script)), str(clients), str(max(options.repeats, 5))]
        try:
            done = subprocess.run([str(python(requirement)), *command], check=True, capture_output=True, text=True)
            seconds[name] = float(json.loads(done.stdout.splitlines()[-1])["seconds"])
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            reason = [str(error), *lines][-1]
            print(f"{name} could not be measured: {reason}")
    return seconds
