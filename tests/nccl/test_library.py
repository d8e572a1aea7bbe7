"""A job is told to load the plugin unless it has one of its own."""

from __future__ import annotations

from perfd_collectors.nccl.plugin_library import LIBRARY, VARIABLE, with_plugin


def test_a_job_gets_the_plugin_when_it_was_built() -> None:
    environment = with_plugin({"HOME": "/"})

    assert environment.get(VARIABLE) == (str(LIBRARY) if LIBRARY.is_file() else None)
    assert environment["HOME"] == "/"


def test_the_users_own_plugin_stays() -> None:
    assert with_plugin({VARIABLE: "none"}) == {VARIABLE: "none"}
