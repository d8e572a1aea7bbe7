from __future__ import annotations

from pathlib import Path

import pytest

from perfd.config import AgentConfig, load
from perfd.errors import ConfigError
from perfd.session.session_config import SessionConfig, load_session

DEFAULTS = Path(__file__).parents[2] / "deploy" / "session.yaml"


def test_the_commented_configuration_is_the_default():
    assert load_session(DEFAULTS) == SessionConfig() == load_session(None)


def test_a_misspelled_key_is_named_with_its_path(tmp_path):
    path = tmp_path / "session.yaml"
    path.write_text("agent: {capture: {enabledd: true}}")
    with pytest.raises(ConfigError, match=r"yaml:1:19: `enabledd` is not a key of `agent\.capture`; "):
        load_session(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"agent: {", r"session\.yaml:1:9: this is not YAML: expected the node content[^\n]*$"),
        (b"\na\x00b", r"session\.yaml:2:2: this is not YAML: special characters are not allowed$"),
        (b"\xff\xfe\xfa", r"session\.yaml:1:1: this file cannot be read: it is not UTF-8 text$"),
        (b"a: !!python/none", r"session\.yaml:1:4: this is not YAML: [^\n]*$"),
        (b"job: 2001-99-99", r"session\.yaml:1:1: this is not YAML: month must be in 1\.\.12"),
        (b"job: a\njob: b", r"session\.yaml:2:1: 'job' is given twice$"),
        (b"agent: {node: a,\n  node: b}", r"session\.yaml:2:3: 'node' is given twice$"),
        (b"- 1", r"session\.yaml:1:1: a configuration is a mapping of keys to values[^\n]*$"),
    ],
)
def test_what_is_no_configuration_is_one_sentence_with_its_place(tmp_path, content, sentence):
    path = tmp_path / "session.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        load_session(path)


def test_a_configuration_that_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml:1:1: this file does not exist: check the path"):
        load_session(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match=r":1:1: this file cannot be read: Is a directory$"):
        load_session(tmp_path)


def test_drop_ins_win_over_the_file_in_the_order_of_their_names(tmp_path):
    path = tmp_path / "agent.yaml"
    path.write_text("job: a\nnode: n1\nuplink: {address: 'one:1', allow_plaintext: true}\n")
    (tmp_path / "agent.d").mkdir()
    (tmp_path / "agent.d" / "20-late.yaml").write_text("uplink: {address: 'three:3'}\n")
    (tmp_path / "agent.d" / "10-early.yaml").write_text("job: b\nuplink: {address: 'two:2'}\n")
    (tmp_path / "agent.d" / "30-kept.yaml.dpkg-old").write_text("job: c\n")

    config = load(path, AgentConfig)

    assert (config.job, config.node) == ("b", "n1")
    assert (config.uplink.address, config.uplink.allow_plaintext) == ("three:3", True)


def test_an_error_names_the_drop_in_that_brought_it(tmp_path):
    path = tmp_path / "agent.yaml"
    path.write_text("node: n1\n")
    (tmp_path / "agent.d").mkdir()
    (tmp_path / "agent.d" / "10.yaml").write_text("job: a\n")
    (tmp_path / "agent.d" / "20.yaml").write_text("uplink: {adress: a}\n")

    with pytest.raises(ConfigError, match=r"20\.yaml:1:10: `adress` is not a key of `uplink`; "):
        load(path, AgentConfig)
