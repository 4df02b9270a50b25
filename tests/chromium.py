"""Headless Chromium over the DevTools protocol, through a pipe: no port, no driver, no further package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome; None where none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a headless Chromium. A context manager: leaving it ends the browser.

    Attributes:
        problems: Errors of the console, uncaught exceptions, and what the page could not load.
        requests: Every URL that the page asked for, but for those that hold their own data.
    """

    def __init__(self, profile: Path, seconds: float = 60.0) -> None:
        path = find_chromium()
        assert path is not None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._seconds = seconds
        self._number = 0
        self._buffer = b""
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        arguments = [
            *(
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ),
            *("--disable-background-networking", "--window-size=1280,1000", "--hide-scrollbars"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        # Chromium reads commands from descriptor 3 and answers on 4; bash puts the pipes there.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{read_commands} 4>&{write_answers}',
                "bash",
                path,
                *arguments,
            ],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._session: str | None = None
        try:
            target = next(
                item["targetId"]
                for item in self.call("Target.getTargets")["targetInfos"]
                if item["type"] == "page"
            )
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
            for domain in ("Runtime", "Log", "Page", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path | str) -> None:
        """Load a file from disk, or a URL, and wait until it has been drawn."""
        url = page.resolve().as_uri() if isinstance(page, Path) else page
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        ends = time.monotonic() + self._seconds
        while not self.evaluate(expression):
            assert time.monotonic() < ends, f"the page does not come to: {expression}"
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def text(self, selector: str) -> str:
        """What can be read in the first element that `selector` finds."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Move the mouse to the middle of an element and press it, as a reader would."""
        place = self.evaluate(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); if (!node) return null;"
            "node.scrollIntoView({block: 'center', behavior: 'instant'}); const box = node.getBoundingClientRect();"
            "const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];"
            "const hit = document.elementFromPoint(x, y);"
            "return {x, y, hit: node === hit || node.contains(hit)}; })()"
        )
        assert place is not None, f"there is no {selector}"
        assert place["hit"], f"{selector} is covered by something else"
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place["x"],
                y=place["y"],
                button="left",
                clickCount=1,
            )

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list."""
        self.evaluate(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.value = {json.dumps(value)};"
            "node.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def press(self, key: str) -> None:
        """Press a key (``ArrowRight``, ``Tab``) where the focus is."""
        number, text = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}.get(key, (0, ""))
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=number,
                **more,
            )

    def type(self, selector: str, text: str) -> None:
        """Click into a field and type, in place of what stands there."""
        self.click(selector)
        self.evaluate("document.activeElement.select?.()")
        self.call("Input.insertText", text=text)

    def resize(self, width: int) -> None:
        """Give the page another width, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path: Path, *, dark: bool = False) -> Path:
        """Write the whole page as a PNG image."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], self._seconds)
            assert ready, f"Chromium has said nothing for {self._seconds:g} s"
            read = os.read(self._answers, 1 << 20)
            assert read, f"Chromium ended with status {self._process.poll()}"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.problems.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(parameters["entry"]))
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(
            "data:"
        ):
            self.requests.append(parameters["request"]["url"])
