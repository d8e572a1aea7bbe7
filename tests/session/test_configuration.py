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


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"agent: {", r"session\.yaml:1:9: this is not YAML: expected the node content[^\n]*\.$"),
        (b"a\x00b", r"session\.yaml: this is not YAML: [^\n]*$"),
        (b"\xff\xfe\xfa", r"session\.yaml: this is not YAML: it is not UTF-8 text\.$"),
        (b"- 1", r"session\.yaml: a configuration is a mapping of keys to values[^\n]*$"),
    ],
)
def test_what_is_no_configuration_is_one_sentence_with_its_place(tmp_path, content, sentence):
    path = tmp_path / "session.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        load_session(path)


def test_a_configuration_that_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration: No such file or directory\.$"):
        load_session(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match=r"cannot read the configuration: Is a directory\.$"):
        load_session(tmp_path)
