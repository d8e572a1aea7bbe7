"""A heading with nothing but its step, and lines or tables of one value each below.

NeMo-RL: `=== Step 3/100 ===`, then `• Loss: 0.1` and `• Total step time: 63.41s` where the step ends.
AReaL: `Epoch 1/10 Step 3/58 Train step 3/580 done.`, then a table. fms-fsdp: `step: 100`, `loss: 3.1`, ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.formats.step_lines import LOOPS
from perfd_collectors.training_log.printed_fields import number, plain_numbers
from perfd_collectors.training_log.step_fields import StepFields, add_step, numbers_in

_MOST_LINES = 2000
"""Most lines of a block, since a log might never end it. Chosen."""


@dataclass(frozen=True, slots=True)
class _Style:
    """Blocks of one library."""

    head: re.Pattern[str]
    framework: str
    names: Mapping[str, str] = field(default_factory=dict)
    """What its own names mean."""
    phases: re.Pattern[str] | None = None
    """Names of phases, in seconds."""
    whole: bool = True
    """Whether its lines follow at once: the first other one ends it."""


_STYLES = (
    _Style(
        re.compile(r"^={3,80} Step (?P<batch>[0-9]{1,9})/(?P<batches>[0-9]{1,9}) ={3,80}\s*$"),
        "nemo-rl",
        names={"Total step time": "step time"},
        whole=False,
    ),
    _Style(
        re.compile(
            r"\bEpoch [0-9/]{3,20} Step [0-9/]{3,20} Train step (?P<step>[0-9]{1,15})/[0-9]{1,15} done\.$"
        ),
        "areal",
        phases=re.compile(r"timeperf/([\w/]{1,60})", re.ASCII),
        whole=False,
    ),
    _Style(re.compile(r"step: (?P<step>[0-9]{1,15})$"), "training-loop"),
    _Style(
        re.compile(
            r"^\W{0,40}(?:[Ss]tep|[Ii]teration) ?[:#]? ?(?P<step>[0-9]{1,15})(?: ?/ ?[0-9]{1,15})?\W{0,40}$"
        ),
        "training-loop",
    ),
)
_EPOCH = re.compile(r"={3,80} Epoch ([0-9]{1,9})/[0-9]{1,9} ={3,80}\s*$")
_ROW = re.compile(r" {0,8}(?:\u2022 |- )?([A-Za-z][\w /().-]{0,80}): (\S{1,60})(?: \([0-9.]{1,8}%\))?\s*$")
_OWN_STEP = re.compile(r"\b(?:step|iter|iteration|batch) #?[0-9]", re.IGNORECASE)
"""In a name: the line is about a step that it names itself, as Keras' guide prints it."""
_SHARE = re.compile(r" {0,8}\u2022 ([A-Za-z]\w{0,80}): ([0-9.]{1,20})s \([0-9.]{1,8}%\)\s*$")
"""The time of a phase, and its share of the step."""
_BAR = "\u2502"


class StepBlockParser(FormatParser):
    """The blocks of one log."""

    keywords: Sequence[bytes] = (
        *(b"= Step ", b"= Epoch ", b" done.", b"step: ", b"step", b"Step", b"iteration", b"Iteration"),
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._style: _Style | None = None
        self._step = 0
        self._lines = 0
        self._found = StepFields()
        self._phases_s: dict[str, float] = {}
        self._epoch: int | None = 1

    @property
    def in_block(self) -> bool:
        """Whether values may come next."""
        return self._style is not None

    def parse(self, line: LogLine) -> bool:
        if epoch := _EPOCH.match(line.text):
            self.finish()
            self._epoch = int(epoch[1])
            # Other loops print such headings, too.
            return self._out.description.framework == "nemo-rl"
        if self._out.description.framework in LOOPS | {None, "nemo-rl", "areal"}:
            for style in _STYLES:
                if head := style.head.search(line.text):
                    self._begin(style, head.groupdict())
                    return True
        return self._style is not None and self._row(self._style, line.text)

    def attach(self) -> None:
        """Note that reading starts in the middle of the log: the epoch is unknown until its next heading."""
        self._epoch = None

    def flush(self) -> None:
        """Emit a block that is complete; NeMo-RL's ends with its times, and takes minutes until then."""
        if self._style is not None and (self._style.framework != "nemo-rl" or self._found.timed):
            self.finish()

    def finish(self) -> None:
        """Emit a pending block."""
        style, self._style = self._style, None
        if style is None or not (self._found.losses or self._found.timed or self._phases_s):
            return
        if not self._out.description.framework or style.framework != "training-loop":
            self._out.describe(framework=style.framework)
        add_step(self._steps, self._out.job, self._step, self._found, None)
        if self._phases_s:
            self._steps.timers(self._phases_s)

    def _begin(self, style: _Style, said: Mapping[str, str]) -> None:
        self.finish()
        self._style, self._lines = style, 0
        self._found, self._phases_s = StepFields(), {}
        if "step" in said:
            self._step = int(said["step"])
        elif self._epoch is not None:
            # NeMo-RL counts the steps of each epoch.
            self._step = (self._epoch - 1) * int(said["batches"]) + int(said["batch"])
        else:
            self._style = None

    def _row(self, style: _Style, text: str) -> bool:
        self._lines += 1
        pairs = list(_pairs(plain_numbers(text)))
        if self._lines > _MOST_LINES or (style.whole and not pairs):
            self.finish()
            return False
        if share := _SHARE.match(text):
            self._phases_s.setdefault(share[1], float(share[2]))
            return True
        for name, value in pairs:
            if style.phases is not None and (phase := style.phases.fullmatch(name)):
                if (time_s := number(value)) is not None:
                    self._phases_s.setdefault(phase[1], time_s)
                continue
            for _, figure, unit in numbers_in(value):
                self._found.add(style.names.get(name, name), figure, unit)
        return bool(pairs)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a line: of a row of a table, which may have several, else one."""
    if _BAR in text:
        cells = [cell.strip() for cell in text.split(_BAR)[1:-1]]
        yield from ((name, value) for name, value in zip(cells[::2], cells[1::2], strict=False) if name)
    elif (row := _ROW.match(text)) and not _OWN_STEP.search(row[1]):
        yield row[1], row[2]
