"""Flower: sites on other machines, or in processes of this one.

Flower and Ray call home unless told not to. They read the environment when they are imported, and nothing outside this
room imports them, so it is set here.
"""

from __future__ import annotations

import os

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else the server's operator decides what a site installs
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray leaves the choice of devices alone, as it will by default
}
for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
