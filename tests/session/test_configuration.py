from __future__ import annotations

from pathlib import Path

import pytest

from perfd.errors import ConfigError
from perfd.session.configuration import SessionConfig, load_session

DEFAULTS = Path(__file__).parents[2] / "deploy" / "session.yaml"


def test_the_commented_configuration_is_the_default():
    assert load_session(DEFAULTS) == SessionConfig() == load_session(None)


def test_a_misspelled_key_is_named_with_its_path(tmp_path):
    path = tmp_path / "session.yaml"
    path.write_text("agent: {capture: {enabledd: true}}")
    with pytest.raises(ConfigError, match=r"session\.yaml: .*enabledd.*\$\.agent\.capture"):
        load_session(path)
