"""Drives a real headless Chromium over a pipe (Chrome DevTools Protocol), for tests and pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE_S = 120.0
# The protocol is spoken on the file descriptors 3 and 4, whichever ones the pipes have here.
_PAPER = 717
"""CSS pixels: the width of A4 less margins."""
_CUT_OFF = (
    "[...document.querySelectorAll('body *')].filter((one) => one.checkVisibility()"
    " && !one.closest('svg, canvas, .chart') && one.getBoundingClientRect().right > innerWidth + 1)"
    ".map((one) => one.outerHTML.slice(0, 80))"
)
_LAUNCH = """
import os, sys
from fcntl import F_DUPFD, fcntl
pipes = [fcntl(int(number), F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """The browser of this machine."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class BrowserError(AssertionError):
    """There is no browser, it ended, or a page did not do what was waited for."""


class Browser:
    """One browser process. Not thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int) -> None:
        self._process = process
        self._commands = commands
        self._answers = answers
        self._unread = b""
        self._number = 0
        self.problems: list[str] = []
        """What a page wrote into its console as an error or an exception, and what its policy refused."""

    def tab(self) -> Tab:
        """A new, empty tab."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return Tab(self, target, session)

    def ask(
        self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Run one command and return what came of it."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            piece = os.read(self._answers, 1 << 20)
            if not piece:
                raise BrowserError(f"The browser ended with {self._process.wait()}.")
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        entry = parameters.get("entry", {})
        # That a server is away is something a test does on purpose.
        if event.get("method") == "Log.entryAdded" and entry["source"] in {"security", "javascript"}:
            self.problems.append(entry["text"])


class Tab:
    """One tab of a browser."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Performance"):
            self._ask(f"{domain}.enable")

    def look(self, width: int = 1280, height: int = 900, *, dark: bool = False, calm: bool = False) -> None:
        """Be a screen of this size, whose owner prefers dark colours or little motion."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self._ask("Emulation.setDeviceMetricsOverride", screen)
        preferred = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if calm else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self._ask("Emulation.setEmulatedMedia", {"media": "", "features": features})

    def scripts(self, *, allowed: bool) -> None:
        """Whether pages may run scripts; `run` works without them too."""
        self._ask("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def block(self, *patterns: str) -> None:
        """Let requests for these addresses fail; `*` is any text."""
        self._ask("Network.enable")
        self._ask("Network.setBlockedURLs", {"urls": list(patterns)})

    def front(self) -> None:
        """Come before the other tabs, which are hidden then."""
        self._ask("Page.bringToFront")

    def before_each_page(self, script: str) -> None:
        """Run a script in each page that is opened from now on, before its own."""
        self._ask("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def print_look(self) -> None:
        """Emulate print media."""
        self._ask("Emulation.setEmulatedMedia", {"media": "print"})

    def paper(self) -> None:
        """Emulate print media on A4 with Chromium's margins."""
        self.look(_PAPER)
        self.print_look()

    def cut_off(self) -> list[str]:
        """The beginnings of elements that are wider than the page, other than parts of charts."""
        found: list[str] = self.run(_CUT_OFF)
        return found

    def open(self, url: str, ready: str = "document.body !== null") -> None:
        """Go to an address, and return when the expression `ready` is true there."""
        self._ask("Page.navigate", {"url": url})
        self.wait(f"location.href.startsWith({json.dumps(url.partition('#')[0])}) && ({ready})")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self._ask("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Return when an expression is true; raises `BrowserError` when it does not become so."""
        end_s = time.monotonic() + _PATIENCE_S
        while not self._holds(expression):
            if time.monotonic() > end_s:
                raise BrowserError(f"Never true: {expression}\n{self.text('body')[:2000]}")
            time.sleep(0.02)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.run(f"Boolean({expression})"))
        except BrowserError as error:
            # The page that was asked has just made way for another one.
            if "navigated" in str(error):
                return False
            raise

    def text(self, selector: str) -> str:
        """The text of an element as a person reads it, who scrolls to it; no-break spaces are spaces."""
        found = self.run(f"({_TEXT})({json.dumps(selector)})")
        return str(found).replace("\N{NO-BREAK SPACE}", " ")

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return int(self.run(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def press(self, key: str) -> None:
        """Press and release a key."""
        event: dict[str, Any] = {"key": key, "code": key}
        if len(key) == 1:
            event["text"] = key
        elif key in _CODES:
            event["windowsVirtualKeyCode"] = _CODES[key]
            if key == "Enter":
                event["text"] = "\r"
        self._ask("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        self._ask("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag from one part of an element's width to another, at its middle."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.run(
            "(({left, top, width, height}) => ({left, top, width, height}))"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        for kind, part in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", (start + end) / 2),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            place = {"x": box["left"] + part * box["width"], "y": box["top"] + box["height"] / 2}
            pressed = {
                "button": "left",
                "buttons": int(kind != "mouseMoved" or part != start),
                "clickCount": 1,
            }
            self._ask("Input.dispatchMouseEvent", {"type": kind, **place, **pressed})

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self._ask("Input.insertText", {"text": text})

    def picture(self, *, top: int = 0, height: int | None = None) -> bytes:
        """The screen as PNG, or so much of the page from `top` on, however far that goes."""
        asked: dict[str, Any] = {"format": "png"}
        if height is not None:
            width = self.run("innerWidth")
            asked |= {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": top, "width": width, "height": height, "scale": 1},
            }
        return base64.b64decode(self._ask("Page.captureScreenshot", asked)["data"])

    def metrics(self) -> dict[str, float]:
        """Chromium's own counts and times (s) of the tab: `Nodes`, `LayoutCount`, `TaskDuration`, ..."""
        return {one["name"]: one["value"] for one in self._ask("Performance.getMetrics")["metrics"]}

    def collect_garbage(self) -> None:
        """Let the browser forget what is gone: its `Nodes` are counted until then."""
        self._ask("HeapProfiler.collectGarbage")

    def transferred(self) -> dict[str, int]:
        """Bytes on the wire of each address below the page's host, with headers; several times are summed."""
        script = (
            "['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind))"
            ".map(({name, transferSize}) => [name.replace(location.origin, ''), transferSize])"
        )
        sizes: dict[str, int] = {}
        for name, size in self.run(script):
            sizes[name] = sizes.get(name, 0) + size
        return sizes

    def names(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader tells of."""
        nodes = self._ask("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]

    def close(self) -> None:
        """Close the tab."""
        self._browser.ask("Target.closeTarget", {"targetId": self._target})

    def _ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.ask(method, parameters, self._session)


# What is not laid out before it is seen has no text. It is laid out here, for no frame may come: a tab
# behind another one has none, a slow machine has few. What was just put into the page is not laid out
# either, though it says that it is visible.
_TEXT = """(selector) => {
  const element = document.querySelector(selector);
  if (!element) return "";
  if (!element.checkVisibility({contentVisibilityAuto: true})) element.scrollIntoView({block: "center"});
  for (let box = element; box; box = box.parentElement) {
    if (getComputedStyle(box).contentVisibility === "auto") box.style.contentVisibility = "visible";
  }
  return element.innerText;
}"""
_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own; it and the profile are gone at the end."""
    program = find_chromium()
    if program is None:
        raise BrowserError("There is no Chromium: install the package chromium.")
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _LAUNCH,
                str(to_browser),
                str(from_browser),
                program,
                *FLAGS,
                f"--user-data-dir={profile}/profile",
            ],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            browser = Browser(process, commands, answers)
            yield browser
            browser.ask("Browser.close")
        finally:
            os.close(commands)
            os.close(answers)
            if process.poll() is None:
                process.terminate()
            process.wait()
