"""Patterns of files in folders of users."""

import glob
import os
from pathlib import Path

import pytest
from perfd_collectors.training_log.log_sources import matching_paths

PATTERNS = [
    "*.log",
    "a/*.log",
    "**/*.log",
    "a/**/x.log",
    "**",
    "a/**",
    "*/b/?.log",
    "[ab]/*.log",
    "none/*",
    ".*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("absolute", [False, True])
def test_it_finds_what_glob_finds(tmp_path, monkeypatch, pattern, absolute):
    for name in ("x.log", "a/x.log", "a/b/x.log", "a/b/c/y.log", "a/.hidden/x.log", ".h.log", "b/b/z.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    wanted = f"{tmp_path}/{pattern}" if absolute else pattern
    expected = {os.path.normpath(path) for path in glob.glob(wanted, recursive=True) if Path(path).is_file()}  # noqa: PTH207
    assert {os.path.normpath(path) for path in matching_paths(wanted) if Path(path).is_file()} == expected


def test_links_that_lead_to_their_own_folder_cost_nothing(tmp_path):
    deep = tmp_path
    for _ in range(8):
        deep = deep / "d"
        deep.mkdir()
        for name in ("one", "two"):
            (deep / name).symlink_to(tmp_path)
    (deep / "x.log").touch()
    assert matching_paths(f"{tmp_path}/**/*.log") == [str(deep / "x.log")]


def test_a_link_that_the_pattern_names_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x.log").touch()
    (tmp_path / "link").symlink_to("real")
    assert matching_paths(f"{tmp_path}/link/*.log") == [f"{tmp_path}/link/x.log"]


def test_folders_without_end_are_looked_at_in_part(tmp_path):
    for number in range(50):
        (tmp_path / f"{number}.log").touch()
    assert len(matching_paths(f"{tmp_path}/*.log", most_entries=20)) == 20
