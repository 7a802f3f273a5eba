"""Flower and Ray without calls home. They read the environment when imported, so it is set before they are."""

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
