import argparse
from pathlib import Path

from perfd.cli.commands import agent


def configured(*words: str):
    parser = argparse.ArgumentParser()
    agent.configure(parser)
    return agent.effective_config(parser.parse_args(words), {}, "host")


def test_a_log_that_is_named_is_read_instead_of_the_files_paths(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(
        "collectors:\n  nvml: {enabled: false}\n"
        "  training_log: {interval_s: 2.0, options: {paths: [/old.log], framework: megatron}}\n"
    )
    collectors = configured("--config", str(file), "--log", "/a.log", "--log", "/b-*.log").collectors
    assert collectors["training_log"].options == {"paths": ["/a.log", "/b-*.log"], "framework": "megatron"}
    assert collectors["training_log"].interval_s == 2.0
    assert collectors["nvml"].enabled is False


def test_without_a_log_the_files_paths_stay() -> None:
    assert configured().collectors == {}


def test_a_log_that_is_not_there_is_named_for_a_wrong_name_would_stay_silent(tmp_path: Path) -> None:
    (tmp_path / "train-1.log").touch()
    wrong, right = str(tmp_path / "trian-*.log"), str(tmp_path / "train-*.log")
    [(path, sentence)] = agent.problems_of_logs([wrong, right])
    assert (path, "does not exist yet" in sentence) == (wrong, True)


def test_a_log_that_this_user_may_not_read_is_named(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.touch()
    assert list(agent.problems_of_logs([str(log)])) == []
    [(path, sentence)] = agent.problems_of_logs([str(tmp_path / "*.log")], readable=lambda _: False)
    assert (path, "may not read" in sentence) == (str(log), True)
