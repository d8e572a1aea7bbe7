"""Fixtures of captures and of pages, for captures whose files are in object storage."""

from capture.conftest import make_node  # noqa: F401
from capture.test_end_to_end import make_system, node  # noqa: F401
from web.conftest import browser, tab  # noqa: F401
