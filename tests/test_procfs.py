from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from perfd.procfs import rooted
from tests.support.fake_node import FakeNode


def test_psutil_reads_the_given_proc_and_afterwards_the_one_of_before(tmp_path: Path) -> None:
    node, before = FakeNode(tmp_path), psutil.PROCFS_PATH
    with rooted(node.proc):
        assert psutil.Process(1).name() == "systemd"
        assert psutil.cpu_times().user == 10.0
    assert before == psutil.PROCFS_PATH
    with pytest.raises(psutil.NoSuchProcess), rooted(tmp_path):
        psutil.Process(1)
    assert before == psutil.PROCFS_PATH


def test_threads_with_different_roots_never_read_each_others(tmp_path: Path) -> None:
    nodes = [FakeNode(tmp_path / str(number)) for number in range(4)]
    for number, node in enumerate(nodes):
        node.process(7, name=f"n{number}")
    wrong: list[str] = []

    def read(number: int) -> None:
        for _ in range(50):
            with rooted(nodes[number].proc):
                name = psutil.Process(7).name()
            if name != f"n{number}":
                wrong.append(name)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
