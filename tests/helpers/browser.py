"""A real browser, driven through Chromium's debugging pipe: no driver, no socket, no further package."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0  # seconds; a loaded machine is slow to start a browser


def installed() -> str | None:
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Browser:
    """Commands go in on one pipe, answers and events come out of another, each ended by a zero byte."""

    def __init__(self, program: str, profile: Path) -> None:
        (theirs_in, self.input), (self.output, theirs_out) = os.pipe(), os.pipe()
        words = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', *words],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.rest, self.events = 0, b"", list[dict[str, Any]]()

    def call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile is kept in `events`."""
        self.number += 1
        value = {"id": self.number, "method": method, "params": given, **({"sessionId": session} if session else {})}
        os.write(self.input, json.dumps(value).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.output], [], [], max(until - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            part = os.read(self.output, 1 << 20)
            assert part, "Chromium has gone"
            self.rest += part
        first, _, self.rest = self.rest.partition(b"\0")
        value: dict[str, Any] = json.loads(first)
        return value

    def close(self) -> None:
        self.call("Browser.close")
        self.process.wait(PATIENCE)
        os.close(self.input)
        os.close(self.output)


class Page:
    """One file, opened at a width and in a colour scheme."""

    def __init__(self, browser: Browser, file: Path, width: int = 1280, scheme: str = "light") -> None:
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        self.begin = len(browser.events)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=file.as_uri())
        until = time.monotonic() + PATIENCE
        while self.run("document.readyState") != "complete" or self.run("location.href") != file.as_uri():
            assert time.monotonic() < until, f"{file} does not load"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **given)

    def run(self, script: str) -> Any:
        """What an expression gives in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key on the keyboard, such as Tab or Enter."""
        text = {"Enter": "\r", "Tab": "", "Space": " "}[key]
        code = {"Enter": 13, "Tab": 9, "Space": 32}[key]
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key if key != "Space" else " ",
                code=key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode=code,
            )

    def heard(self, *methods: str) -> list[dict[str, Any]]:
        """The events of some kinds since the page was opened."""
        own = [e for e in self.browser.events[self.begin :] if e.get("sessionId") == self.session]
        return [e["params"] for e in own if e["method"] in methods]

    def complaints(self) -> list[dict[str, Any]]:
        """Errors of scripts, and whatever the console was told."""
        return self.heard("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")

    def requests(self) -> list[str]:
        return [e["request"]["url"] for e in self.heard("Network.requestWillBeSent")]
