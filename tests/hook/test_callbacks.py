"""Hooks of frameworks by the interface that these document, in the order in which they call it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfd.hook.composer import ComposerSteps
from perfd.hook.torchtitan import watch


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = tmp_path / "hook.sock"
    monkeypatch.setenv("PERFD_HOOK_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        yield listener


def got(listener: socket.socket) -> list[dict]:
    listener.setblocking(False)
    messages = []
    while True:
        try:
            messages.append(json.loads(listener.recv(1 << 16)))
        except BlockingIOError:
            return messages


@dataclass
class Timestamp:
    """Composer's, as far as it is used: numbers with a `value`, which are numbers themselves."""

    batches: int = 0

    @property
    def batch(self) -> int:
        return self.batches

    @property
    def sample(self) -> SimpleNamespace:
        return SimpleNamespace(value=8 * self.batches)

    @property
    def token(self) -> SimpleNamespace:
        return SimpleNamespace(value=128 * self.batches)


@pytest.mark.parametrize("resumed_at", [0, 40])
def test_composers_events_become_steps_that_go_on_from_a_checkpoint(
    resumed_at: int, agent: socket.socket
) -> None:
    callback = ComposerSteps(warmup_steps=0)
    state = SimpleNamespace(precision=SimpleNamespace(value="amp_bf16"), timestamp=Timestamp(resumed_at))
    callback.fit_start(state, None)
    for _ in range(3):
        callback.before_dataloader(state, None)
        callback.batch_start(state, None)
        for _micro_batch in range(2):
            callback.before_forward(state, None)
            callback.after_forward(state, None)
            callback.before_backward(state, None)
            callback.after_backward(state, None)
        state.timestamp = Timestamp(state.timestamp.batches + 1)
        callback.batch_end(state, None)
    callback.fit_end(state, None)

    messages = got(agent)
    assert [message["step"] for message in messages] == [resumed_at + n for n in (1, 2, 3)]
    assert {(message["samples"], message["tokens"]) for message in messages} == {(8.0, 128.0)}
    assert {message["precision"] for message in messages} == {"bf16"}
    assert all(set(message["phases"]) == {"data_loading", "forward", "backward"} for message in messages)


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_evaluation_of_composer_is_no_part_of_a_step(evaluates: bool, agent: socket.socket) -> None:
    marks: list[float] = []
    now_s = 0.0

    @dataclass
    class Mark:
        at_s: float = field(default=0.0)

        def record(self) -> None:
            self.at_s = now_s
            marks.append(now_s)

        def query(self) -> bool:
            return True

        def elapsed_time(self, later: Mark) -> float:
            return 1e3 * (later.at_s - self.at_s)

    callback = ComposerSteps(warmup_steps=0, new_mark=Mark)
    state = SimpleNamespace(precision="fp32", timestamp=Timestamp())
    callback.fit_start(state, None)
    for _ in range(2):
        callback.batch_start(state, None)
        now_s += 1.0
        state.timestamp = Timestamp(state.timestamp.batches + 1)
        callback.batch_end(state, None)
        if evaluates:
            callback.eval_start(state, None)
        now_s += 60.0
    callback.fit_end(state, None)
    assert [message["step_s"] for message in got(agent)] == ([1.0, 1.0] if evaluates else [61.0, 61.0])


class Labels:
    """A tensor of labels."""

    def numel(self) -> int:
        return 32


class Trainer:
    """torchtitan's, as far as it is used."""

    def __init__(self, *, world_size: int, apart: int) -> None:
        self.step = 0
        self.parallel_dims = SimpleNamespace(world_size=world_size, non_data_parallel_size=apart)
        self.metrics_processor = SimpleNamespace(num_flops_per_token=6)
        self.batches_used = 0

    def train_step(self, data_iterator: Iterator) -> None:
        for _micro_batch in range(2):
            next(data_iterator)
            self.batches_used += 1

    def train(self, steps: int) -> None:
        data_iterator = iter([({}, Labels())] * 2 * steps)
        for _ in range(steps):
            self.step += 1
            self.train_step(data_iterator)


def test_torchtitans_steps_have_the_tokens_of_all_and_the_flops_of_one_gpu(agent: socket.socket) -> None:
    trainer = Trainer(world_size=8, apart=2)
    steps = watch(trainer, warmup_steps=1)
    trainer.train(4)
    steps.close()

    messages = got(agent)
    assert [message["step"] for message in messages] == [2, 3, 4]
    assert trainer.batches_used == 8
    # 2 batches of 32 labels in each of 4 replicas; 6 FLOPs per token, divided among the 2 GPUs of a replica.
    assert {(message["tokens"], message["flops"]) for message in messages} == {(256.0, 192.0)}
    assert all(set(message["phases"]) == {"data_loading"} for message in messages)


def test_torchtitan_that_runs_out_of_data_ends_as_without_the_hook() -> None:
    trainer = Trainer(world_size=1, apart=1)
    watch(trainer)
    trainer.step = 1
    with pytest.raises(StopIteration):
        trainer.train_step(iter([]))
