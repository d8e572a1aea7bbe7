"""Lines with an epoch, a batch and the number of batches, or an iteration, common in computer vision.

timm, mmengine and mmcv, detectron2, fairseq, ESPnet, WeNet, OpenCLIP, torchvision's and PyTorch's ImageNet
example, Keras, and loops that print `Epoch [1/5], Step [100/600], Loss: 0.12`. A batch of an epoch is
numbered over all epochs; where a line does not say how many an epoch has, an epoch begins after the
last line of the one before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.formats.loops.epoch_numbering import EpochsOfSamples, EpochsOfUnknownLength
from perfd_collectors.training_log.formats.loops.line_words import KEYWORDS, in_english
from perfd_collectors.training_log.formats.step_lines import LOOPS, OTHER_LINE
from perfd_collectors.training_log.printed_fields import number
from perfd_collectors.training_log.step_fields import StepFields, add_step, numbers_in
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_MOST_STEP = 1 << 53
"""Up to which JSON and doubles hold whole numbers exactly."""
_EPOCH, _OF = r"(?P<epoch>[0-9]{1,6})", r"(?P<batch>[0-9]{1,9}) ?/ ?(?P<batches>[0-9]{1,9})"
_ITERATION = r"(?P<step>[0-9]{1,15})"


@dataclass(frozen=True, slots=True)
class _Style:
    """Lines of one library."""

    mark: str
    """A part of each line that `pattern` finds, in lower case: most lines have none of the marks."""
    pattern: re.Pattern[str]
    framework: str = "training-loop"
    first_epoch: int | None = None
    """Its number; None where loops differ: 0 once that was seen, else 1."""
    first_batch: int = 1
    """Where it is 1, loops that begin at 0 print how many batches of the epoch were done."""
    within_chars: int = 160
    """The step is at the beginning of a line, after times and names of loggers."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What its own names mean, as fields of a step or `data_s`, in seconds."""


_DATA_TIMES = {"data_cost": "data_s", "reader_cost": "data_s"}
_TIMES = {"time": "step_time_s", "data": "data_s", "data_time": "data_s", **_DATA_TIMES}
_STYLES = (
    _Style(
        "train: ",
        re.compile(rf"\bTrain: {_EPOCH} \[ {{0,8}}{_OF} \( {{0,3}}[0-9]{{1,3}}%\)\]"),
        framework="timm",
        first_epoch=0,
        first_batch=0,
        names=_TIMES,
    ),
    _Style(
        "][",
        re.compile(rf"\bEpoch(?:\(train\))? {{1,6}}\[{_EPOCH}\]\[ {{0,8}}{_OF}\](?=\t| {{2}})"),
        framework="mmengine",
        first_epoch=1,
        names=_TIMES,
    ),
    _Style(
        "iter",
        re.compile(rf"\bIter(?:\(train\))? {{1,2}}\[ {{0,8}}{_ITERATION}/[0-9]{{1,15}}\](?=\t| {{2}})"),
        framework="mmengine",
        names=_TIMES,
    ),
    _Style(
        "epoch: [", re.compile(rf"\bEpoch: \[{_EPOCH}\]\[ {{0,8}}{_OF}\](?=\t)"), first_epoch=0, names=_TIMES
    ),
    _Style(
        "epoch: [",
        re.compile(rf"\bEpoch: \[{_EPOCH}\] {{1,2}}\[ {{0,8}}{_OF}\] {{1,2}}(?:eta|learning_rate): "),
        first_epoch=0,
        first_batch=0,
        names=_TIMES,
    ),
    _Style(
        "eta: ",
        re.compile(rf"\beta: [0-9a-z:, ]{{1,30}}iter: {_ITERATION} {{2}}"),
        framework="detectron2",
        names=_TIMES,
    ),
    _Style(
        "num_updates=",
        re.compile(
            r"\bepoch [0-9]{3,6}: {1,8}[0-9]{1,9} / [0-9]{1,9} "
            rf"[^:]{{0,400}}\bnum_updates={_ITERATION}"
        ),
        framework="fairseq",
        within_chars=600,
        names={"ups": "steps_per_s", "wps": "tokens_per_s"},
    ),
    _Style(
        "[train] epoch: ",
        re.compile(rf"\[TRAIN\] epoch: [0-9]{{1,6}}, iter: {_ITERATION}/[0-9]{{1,15}}, "),
        names=_DATA_TIMES,
    ),
    _Style(
        "epoch",
        re.compile(
            rf"(?<![\w/.-])\[?epoch[ :=#]{{0,2}}\[?{_EPOCH}(?: ?/ ?[0-9]{{1,6}})?\]?[ ,|:;.-]{{0,4}}"
            rf"\[?(?:batch|step|iteration|iter|it)[ :=#]{{0,2}}\[? {{0,8}}"
            rf"(?:[0-9]{{1,9}}-)?(?P<batch>[0-9]{{1,9}})"
            rf"(?: ?/ ?(?P<batches>[0-9]{{1,9}}))?(?![\w./]| ?/| step )",
            re.IGNORECASE,
        ),
        names=_DATA_TIMES,
    ),
    _Style(
        "]: iter ",
        # A loop timed by hand; `fps` are samples.
        re.compile(rf"^\[{_ITERATION}\]:(?= iter [0-9.]{{1,12}} ms\b)"),
        names={"iter": "step_time_s", "fps": "samples_per_s"},
    ),
    _Style(
        "epoch:train:",
        re.compile(
            rf"\b{_EPOCH}epoch:train:[0-9]{{1,9}}-(?P<batch>[0-9]{{1,9}})batch: ",
        ),
        framework="espnet",
        names={"iter_time": "data_s"},
    ),
    _Style(
        "train | ",
        re.compile(
            r"\bTRAIN \| (?:steps/sec [0-9.]{1,20}\| )?"
            rf"Batch {_EPOCH}/(?P<batch>[0-9]{{1,9}}) (?=loss )"
        ),
        framework="wenet",
    ),
    _Style(
        "train epoch: ",
        re.compile(
            rf"\bTrain Epoch: {_EPOCH} \[ {{0,15}}(?P<samples>[0-9]{{1,15}})/(?P<of>[0-9]{{1,15}}) "
            r"\([0-9]{1,3}%\)\] (?=.{0,80}\bBatch \(t\): )"
        ),
        framework="open-clip",
        names={"data t": "data_s", "batch t": "step_time_s"},
    ),
    _Style(
        "eta: ",
        re.compile(rf"\bTrain(?:ing)? {{1,2}}\[ {{0,8}}{_ITERATION}/[0-9]{{1,15}}\] {{1,2}}eta: "),
        names=_TIMES,
    ),
    _Style("loss: ", re.compile(rf"^\[{_EPOCH}, {{1,8}}(?P<batch>[0-9]{{1,9}})\] (?=loss: )")),
    _Style("][", re.compile(rf"^\[{_EPOCH}/[0-9]{{1,6}}\]\[ {{0,8}}{_OF}\]"), first_epoch=0),
)
_KERAS_EPOCH = re.compile(r"Epoch ([0-9]{1,6})/[0-9]{1,6} {0,20}")
_KERAS_END = re.compile(rf"{_OF} - [0-9]{{1,9}}s - (?=.{{0,80}}(?:/step|/epoch|loss: ))")
"""The one line of an epoch with `verbose=2`."""
_EPOCH_START = re.compile(rf"(?:[Ss]tart of )?[Ee]poch:? {_EPOCH}(?: ?/ ?[0-9]{{1,6}})?[ :.]{{0,3}}")
_LOSS_AT_STEP = re.compile(
    r"(?:[Tt]raining|[Tt]rain) loss [^:=]{0,40}\bat step (?P<batch>[0-9]{1,9}): (?P<loss>[0-9.e+-]{1,24})\s*"
)
"""A loop of Keras' guides; its steps begin anew with each epoch."""
_KERAS_BAR = re.compile(rf" {{0,8}}{_OF} [━=>.\[\]]{{2,60}} .{{0,40}}(?:[0-9]s|/step|/epoch) - ")


class EpochLineParser(FormatParser):
    """Lines of one log with an epoch and a batch, and a loss or a time; not those of evaluations."""

    keywords: Sequence[bytes] = (
        b"poch",
        b"Train: ",
        b"iter: ",
        b"Iter(train)",
        b"Iter [",
        b"]\tLoss",
        b"/step - ",
        b"]: iter ",
        b"Training  [",
        b"TRAIN | ",
        b"] loss: ",
        b"] Loss",
        b"at step ",
        b"EPOCH",
        b"Training ",
        b"\xe2\x94\x81",
        *KEYWORDS,
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._first_epoch = 1
        self._unnumbered = EpochsOfUnknownLength()
        self._of_samples = EpochsOfSamples()
        self._newest = (-1, 0)
        self._batches_of = (-1, 0)
        self._of_all_epochs = False
        self._epoch: int | None = None
        """By the newest heading."""
        self._keras_epoch: int | None = None
        """The same, until all batches of the epoch were seen."""
        self._keras_batches: int | None = None

    def parse(self, line: LogLine) -> bool:
        if self._out.description.framework not in _OWN | LOOPS:
            return False
        text = in_english(line.text)
        if header := _EPOCH_START.fullmatch(text):
            self._epoch = int(header["epoch"])
            self._keras_epoch = self._epoch if _KERAS_EPOCH.fullmatch(text) else None
            return False
        if self._keras_epoch is not None and (bar := _KERAS_BAR.match(text) or _KERAS_END.match(text)):
            return self._keras(text, bar)
        if self._epoch is not None and (said := _LOSS_AT_STEP.fullmatch(text)):
            return self._loss_at_step(self._epoch, said)
        lower = text.lower()
        for style in _STYLES:
            if style.mark in lower and (anchor := style.pattern.search(text, 0, style.within_chars)):
                return self._step(style, text, anchor)
        return False

    def attach(self) -> None:
        """Note that reading starts in the middle of the log."""
        self._of_samples.attach()

    def _step(self, style: _Style, text: str, anchor: re.Match[str]) -> bool:
        if OTHER_LINE.search(text, 0, anchor.start()):
            return False
        after = anchor.start() if style.framework == "fairseq" else anchor.end()
        found, data_s = _fields(text[after:], style)
        if found.evaluates or not (found.losses or found.timed):
            return False
        step = self._number(style, anchor.groupdict())
        if step is None:
            return True
        if "samples" in anchor.re.groupindex and self._of_samples.per_step is not None:
            found.values["global_batch_size"] = float(self._of_samples.per_step)
        if self._out.description.framework in {None, "", "training-loop"}:
            self._out.describe(framework=style.framework)
        add_step(self._steps, self._out.job, step, found, last_timestamp_ns(text[: anchor.start()]))
        if data_s is not None:
            self._steps.timers({"data_loading": data_s})
        return True

    def _number(self, style: _Style, said: Mapping[str, str | None]) -> int | None:
        """The step over all epochs; None where the line contradicts itself."""
        if (step := said.get("step")) is not None:
            return int(step)
        if (samples := said.get("samples")) is not None:
            return self._of_samples.step(int(said["epoch"] or 0), int(samples), int(said["of"] or 0))
        epoch, batch, batches = (int(said.get(name) or 0) for name in ("epoch", "batch", "batches"))
        if said.get("batches") is None:
            return self._unnumbered.step(epoch, batch)
        if style.first_epoch is None and self._is_of_another_loader(epoch, batches):
            return None
        if style.first_epoch is None and self._is_of_all_epochs(epoch, batch):
            return batch if batch <= batches else None
        if epoch == 0:
            self._first_epoch = 0
        first = self._first_epoch if style.first_epoch is None else style.first_epoch
        number = (epoch - first) * batches + batch - style.first_batch + 1
        return number if 0 <= batch <= batches and 0 <= number < _MOST_STEP else None

    def _is_of_another_loader(self, epoch: int, batches: int) -> bool:
        """Whether another number of batches was seen in the epoch: an evaluation, or another rank's share."""
        if epoch != self._batches_of[0]:
            self._batches_of = (epoch, batches)
        return batches != self._batches_of[1]

    def _is_of_all_epochs(self, epoch: int, batch: int) -> bool:
        """Whether the batches, and how many there are, are those of all epochs: the next one counts on."""
        before, self._newest = self._newest, max(self._newest, (epoch, batch))
        if before[0] < epoch and before[0] >= 0:
            self._of_all_epochs = batch > before[1]
        return self._of_all_epochs

    def _keras(self, text: str, bar: re.Match[str]) -> bool:
        epoch, batch, batches = self._keras_epoch or 1, int(bar["batch"]), int(bar["batches"])
        # What comes between epochs with another number of batches is an evaluation or a prediction.
        self._keras_batches = self._keras_batches or batches
        if batches != self._keras_batches or not 1 <= batch <= batches:
            return False
        found, _ = _fields(text[bar.end() :], _STYLES[-1])
        if not found.losses:
            return False
        if batch == batches:
            self._keras_epoch = None
        self._out.describe_framework("keras")
        # Its time per step is the mean since the epoch began.
        losses_only = StepFields(losses=found.losses)
        add_step(self._steps, self._out.job, (epoch - 1) * batches + batch, losses_only, None)
        return True

    def _loss_at_step(self, epoch: int, said: re.Match[str]) -> bool:
        loss = number(said["loss"])
        if loss is None:
            return False
        self._out.describe_framework("training-loop")
        found = StepFields(losses={"loss": loss})
        add_step(self._steps, self._out.job, self._unnumbered.step(epoch, int(said["batch"])), found, None)
        return True


_OWN = frozenset(style.framework for style in _STYLES) | {"keras"}


def _fields(text: str, style: _Style) -> tuple[StepFields, float | None]:
    """The numbers of a line, and how long its step waited for data, in seconds."""
    found, data_s = StepFields(), None
    for key, value, unit in numbers_in(text.replace("\t", "|")):
        meaning = style.names.get(key.strip().lower())
        if meaning == "step_time_s" and unit == "ms":
            found.add("step time", value, unit)
        elif meaning is None or unit not in {"", "s"}:
            found.add(key, value, unit)
        elif meaning == "data_s":
            data_s = value if data_s is None else data_s
        elif value > 0:
            name, number = ("step_time_s", 1 / value) if meaning == "steps_per_s" else (meaning, value)
            found.values.setdefault(name, number)
    return found, data_s
