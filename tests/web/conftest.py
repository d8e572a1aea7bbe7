"""One browser for all tests of the page, and what they look at."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from perfd.aggregator.aggregator import Aggregator
from perfd.recording.recording_format import find_recording
from perfd.session.replay_session import ReplayOptions, replay
from tests.support.chromium import Browser, Tab, chromium, find_chromium
from tests.support.page_server import StandIn


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if find_chromium() is None and not os.environ.get("CI"):
        pytest.skip("needs Chromium (Debian package `chromium`)")
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A tab in which nothing may go wrong."""
    browser.problems.clear()
    tab = browser.tab()
    tab.look()
    yield tab
    tab.close()
    assert browser.problems == []


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


@contextmanager
def held(recording: str) -> Iterator[Aggregator]:
    """The aggregator of a replay that has come to its end and waits."""
    ready, seen = threading.Event(), threading.Event()
    found: list[Aggregator] = []

    def hold(_: object, aggregator: Aggregator) -> None:
        found.append(aggregator)
        ready.set()
        seen.wait()

    options = ReplayOptions(recording=find_recording(recording), http="127.0.0.1:0")
    thread = threading.Thread(target=replay, args=(options,), kwargs={"on_end": hold})
    thread.start()
    try:
        assert ready.wait(50)
        yield found[0]
    finally:
        seen.set()
        thread.join()


@pytest.fixture(scope="session")
def played() -> Iterator[Callable[[str], str]]:
    """The address of a replay that has come to its end, by its name; each is played once."""
    with ExitStack() as stack:
        addresses: dict[str, str] = {}

        def play(recording: str) -> str:
            if recording not in addresses:
                addresses[recording] = f"http://{stack.enter_context(held(recording)).http_address}"
            return addresses[recording]

        yield play
