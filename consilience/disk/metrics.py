"""Numbers of a serving process for Prometheus: counts, names of sites, times; nothing that comes from rows."""

from __future__ import annotations

import time
from typing import Any, cast

from consilience.errors import InputError

PREFIX = "consilience_"
MEANINGS = {
    "sites": "Sites of the study.",
    "sites_connected": "Sites that are connected.",
    "rounds": "Rounds of the study.",
    "round": "The round that is played, from 1 on.",
    "round_seconds": "Seconds that the last round took.",
    "replies_total": "Replies that came, by site.",
    "lost_total": "Replies that were lost or refused, by site.",
    "requests_total": "Requests that were answered.",
    "beat_seconds": "When the process last said that it lives, in seconds since 1970.",
    "well": "1 if nothing is known to be wrong, else 0.",
}


class Metrics:
    """Numbers by name; until somebody serves them they are only kept."""

    def __init__(self) -> None:
        """Begin without numbers."""
        self.values: dict[tuple[str, str], float] = {}

    def set(self, name: str, value: float) -> None:
        """Write a number down.

        Args:
            name: Its name, one of `MEANINGS`.
        """
        self.values[name, ""] = float(value)

    def add(self, name: str, site: str = "") -> None:
        """Count one more.

        Args:
            name: What is counted, one of `MEANINGS`.
        """
        self.values[name, site] = self.values.get((name, site), 0.0) + 1.0

    def beat(self, state: str, promise: float, doubt: str = "") -> None:
        """Write down that the process lives.

        Args:
            promise: Within how many seconds it speaks again.
        """
        self.set("beat_seconds", time.time())
        self.set("well", not doubt)

    def collect(self) -> Any:
        """Hand the numbers over, as prometheus_client asks for them.

        Yields:
            Families of metrics.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for (name, site), value in sorted(self.values.copy().items()):
            family: Any = GaugeMetricFamily
            if name.endswith("_total"):
                family = CounterMetricFamily
            labels = ["site"] if site else []
            if name not in families:
                families[name] = family(PREFIX + name.removesuffix("_total"), MEANINGS[name], labels=labels)
            families[name].add_metric([site] if site else [], value)
        yield from families.values()

    def serve(self, host: str, port: int) -> Any:
        """Answer whoever asks on http://HOST:PORT/metrics, from a thread of its own.

        Args:
            host: The address to listen on.

        Returns:
            The server; `shutdown` ends it.

        Raises:
            InputError: prometheus-client is not installed, or the port cannot be used.
        """
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise InputError(
                "--metrics-port needs prometheus-client: run `pip install 'consilience[site]'`."
            ) from error
        registry = CollectorRegistry()
        registry.register(cast(Any, self))
        try:
            server, _ = start_http_server(port, host, registry)
        except OSError as error:
            raise InputError(f"--metrics-port {port}: {host}:{port} cannot be used ({error.strerror}).") from error
        return server
