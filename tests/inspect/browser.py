"""Chromium for tests: one process without a window, driven over a pipe by its DevTools protocol.

It needs nothing but the browser (Debian: `apt-get install chromium`). Each tab notes what its page logs as an error,
what it throws and what it asks for.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "no Chromium here (Debian: apt-get install chromium): the page is not opened in a browser"
_PATIENCE_S = 120.0
_KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """A running Chromium; a context that ends it."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.mkdtemp(prefix="smelt-chromium-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
            "--disable-background-networking --remote-debugging-pipe"
        )
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, self._profile],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(10)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def tab(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> Tab:
        """A new tab of this size."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.send(f"{domain}.enable")
        tab.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.send("Emulation.setEmulatedMedia", {"features": [scheme]})
        return tab

    def send(self, method: str, params: Mapping[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """What the browser answers; events that come meanwhile go to their tabs."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": dict(params or {})}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        tab = self._tabs.get(message.get("sessionId", ""))
        if tab is not None and "method" in message:
            tab.note(message["method"], message["params"])
        return message


class Tab:
    """A page. errors: what it logged or threw. requests: addresses that it asked for, its own left out."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._own = ""

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.send(method, params, self._session)

    def note(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"])[:2000])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url.split("#")[0] != self._own and not url.startswith("data:"):
                self.requests.append(url)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", size)

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a page of ours, and wait until it is there."""
        self._own = path.resolve().as_uri()
        self.send("Page.navigate", {"url": self._own + fragment})
        self.wait("window.smelt && window.smelt.ready")

    def js(self, expression: str) -> Any:
        """The value of an expression, awaited. What it throws fails the test."""
        told = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = self.send("Runtime.evaluate", told)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The first value of an expression that is true."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            if found := self.js(expression):
                return found
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}; {self.errors}")

    def click(self, x: float, y: float, *, times: int = 1) -> None:
        at = {"x": x, "y": y, "button": "left"}
        for count in range(1, times + 1):
            self.send("Input.dispatchMouseEvent", {"type": "mousePressed", "clickCount": count, **at})
            self.send("Input.dispatchMouseEvent", {"type": "mouseReleased", "clickCount": count, **at})

    def click_on(self, selector: str) -> None:
        """Click in the middle of an element, which is scrolled to."""
        place = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.click(*self.js(place))

    def key(self, key: str) -> None:
        code = _KEYS.get(key, 0)
        told = {"key": key, "windowsVirtualKeyCode": code}
        if len(key) == 1:
            told["text"] = key
        self.send("Input.dispatchKeyEvent", {"type": "keyDown", **told})
        self.send("Input.dispatchKeyEvent", {"type": "keyUp", **told})

    def type(self, text: str) -> None:
        for sign in text:
            self.key(sign)

    def picture(self, path: Path) -> None:
        """A screenshot of what is to be seen."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", {"format": "png"})["data"]))

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.js("window.smelt.state()")
        return found
