"""Progress bars of tqdm and rich around a training loop: any loop's, Lightning's, torchtune's, OpenRLHF's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.printed_fields import number, positive
from perfd_collectors.training_log.progress_bar_log import DENSE_STEPS, DrawnStep
from perfd_collectors.training_log.step_order import ProgressSource

_TQDM = re.compile(r"%\|[^|]{0,1000}\| {1,40}(\d{1,15})/(\d{1,15}) \[", re.ASCII)
_COUNT = re.compile(
    r"(?:^|(?<=[:\s]))(\d{1,15}) ?(?:it|ba|batch|step|iter)(?:es|s)? \[(?=\d{1,4}:\d\d[:\d]{0,3}, )", re.ASCII
)
"""A bar whose end is unknown: `150it [00:05, 29.30it/s, loss=2.3]`."""
_COUNT_SPEED = re.compile(
    r"(\d{1,4}(?::\d\d){1,2}), {1,8}([\d.?]{1,20}) ?(s/)?(?:it|ba|batch|step|iter)(?:es|s)?(/s)?(?=,|\]|$)",
    re.ASCII,
)
_RICH_COUNT = re.compile(
    r"([^\u2501\u2578\u257a|]{1,120}?) [\u2501\u2578\u257a]{5,400} {1,8}(?:\d{1,3}% {1,8})?"
    r"(\d{1,15}) ?/ ?(\d{1,15})(?= |$)(?:[^\n]{0,60}?(\d{1,3}:\d\d:\d\d))?"
)
"""A bar of rich with a column of counts, and mostly one of a time."""
_SPEED = re.compile(
    r"(\d{1,4}(?::\d\d){1,2})<[^,]{1,24}, {1,8}([\d.?]{1,20}) ?(s/)?(?:it|ba|batch|step|iter)(?:es|s)?(/s)?"
    r"(?=,|$)",
    re.ASCII,
)
_RICH = re.compile(r"\bEpoch (\d{1,9})/-?\d{1,9} ", re.ASCII)
_RICH_SPEED = re.compile(
    r"(\d{1,15})/(\d{1,15}) (\d{1,4}:\d\d:\d\d) \u2022 {1,40}(?:[\d:-]{7,12} {1,8})?([\d.]{1,20})it/s",
    re.ASCII,
)
_RICH_BAR = " \u2501\u2578\u257a"
_ULTRALYTICS = re.compile(
    r"\s{0,12}(\d{1,6})/\d{1,6} {1,12}[\d.]{1,8}G [^:|%]{1,300}: {1,4}\d{1,3}%"
    r"(?:\|[^|]{0,200}\|| [\u2501\u2578\u2500]{1,60}|) (\d{1,9})/(\d{1,9}) "
    r"(?:\[[\d:]{4,10}<[\d:?]{1,10}, {1,8})?([\d.]{1,12}) ?(s/it|it/s)",
    re.ASCII,
)
"""A line of an epoch: `1/100 2.61G 1.153 81 640: 50% ... 10/20 2.0it/s 5.1s`; older versions use tqdm."""
_EPOCH = re.compile(r"\bepoch {0,4}[\[:=]? {0,4}(\d{1,9})\b", re.ASCII | re.IGNORECASE)
_TORCHTUNE = re.compile(r"(?:^|\s)(\d{1,9})\|(\d{1,15})\|Loss: ([^\s:]{1,24}):$", re.ASCII)
_OTHER_WORK = re.compile(
    r"\b(?:download|token|map\b|filter|load|fetch|eval|val|test|predict|sanity|checkpoint|shard|process|pack|"
    r"sav|upload|extract|convert|compil|captur|warm|generat|collat|group|cast|flatten|concat|shuffl|sort|"
    r"read|writ|infer|rollout|sampl|scor|quanti|calibrat|merg|build|cach|encod|decod|mak|index|prefetch|"
    r"copy|creat|init|prepar|comput|pars|import|export|verif|check|add)",
    re.ASCII | re.IGNORECASE,
)
_LOSS_ABOUT = re.compile(r"\bloss ?[:= ] ?([0-9][0-9.e+-]{0,20})(?=[ ,:;|)\]]|$)", re.IGNORECASE)
_EPOCHS = re.compile(r"\s*(?:train(?:ing)? )?epochs?\s?:?\s*", re.IGNORECASE)
"""A bar over epochs, mostly with one per epoch inside."""
_TRAINING = re.compile(r"\b(?:train|epoch|step|iter|fine-?tun|optimi|fit|episode|pretrain)", re.IGNORECASE)
_FASTEST_PER_S = 50.0
_SHORTEST_S = 5
"""A bar without a word about what it shows counts as training's when its steps are slow, and only after this
time: bars over texts and files are faster, or shorter. Both chosen, not measured."""
_MAX_DESCRIPTION_CHARS = 120
"""Before a bar, so that a line without one is searched no further."""
_MAX_POSTFIX_CHARS = 2000
"""After a bar, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A bar as it was drawn."""

    about: str
    """What is in front of it."""
    step: int
    total: int
    elapsed_s: int
    step_time_s: float | None
    postfix: str
    epoch: int | None = None
    """As the bar counts them."""
    global_step: int | None = None
    """Where it says the step over all epochs, too."""
    framework: str | None = None
    """Of the library that alone draws such a bar."""


class _BareBars:
    """Which bars without a word about what they show are around others: loops in loops have a bar each."""

    def __init__(self) -> None:
        self._drawn: dict[int, tuple[int, int]] = {}
        """By total: how often its step was another than before, and how often after another bar."""
        self._newest: dict[int, int] = {}
        self._last: int | None = None

    def is_around_others(self, bar: _Bar) -> bool:
        """Note how a bar was drawn."""
        if bar.total not in self._newest and len(self._newest) >= _MOST_BARE_BARS:
            return True
        if self._newest.get(bar.total) != bar.step:
            changes, after_another = self._drawn.get(bar.total, (0, 0))
            # The first time, any bar may have been before it.
            another = bool(changes) and self._last != bar.total
            self._drawn[bar.total] = (changes + 1, after_another + another)
            self._newest[bar.total] = bar.step
        self._last = bar.total
        return self.is_around(bar.total)

    def is_around(self, total: int) -> bool:
        """Whether other bars come between most steps of this one."""
        changes, after_another = self._drawn.get(total, (0, 0))
        return 2 * after_another > changes - 1 and after_another > 0


_MOST_BARE_BARS = 64
"""Bars without a description, which are distinguished by their totals."""
_NEMO = re.compile(r"\b(reduced_train_loss|consumed_samples)=")
"""Only in bars of NeMo, whose parser knows that they begin at step 0: what it refuses is damaged."""


class ProgressBarParser(FormatParser):
    """The bars in one log. Only a training loop's count: downloads and evaluation have bars, too.

    A bar per epoch begins again at 0; its step is counted over the epochs.
    """

    keywords: Sequence[bytes] = (
        *(b"%|", b"it/s", b"s/it", _RICH_BAR.encode()[1:4]),
        *(b"step [", b"steps [", b"iter [", b"iters [", b"batch ["),
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._bars = job.bars
        self._last: _Bar | None = None
        self._before = 0
        """Steps of the bars that this one began after."""
        self._bare = _BareBars()
        self._counted = False
        """Whether a bar showed steps."""
        self._first_epoch: int | None = None

    def parse(self, line: LogLine) -> bool:
        """Parse the bars of a line; whatever else is on it is for others."""
        found = False
        for bar in _bars_in(line.text):
            found = True
            if _is_training(bar) and not _NEMO.search(bar.postfix) and self._is_the_bar(bar):
                self._take(bar, cleared=line.after_clear)
        return found and "{'" not in line.text

    def _is_the_bar(self, bar: _Bar) -> bool:
        """Whether it is the bar whose steps count: the first, or the next epoch's."""
        bare = not _says_training(bar)
        if bare and self._bare.is_around_others(bar):
            return False
        known = self._bars.total
        if not bare or (known is None and bar.step):
            self._bars.total = bar.total
        elif known is not None and (
            self._bare.is_around(known)
            or (not (self._counted or known == bar.total) and _is_slow_and_long(bar))
        ):
            # What seemed to be the training's was a bar around it, or one of what comes first.
            self._bars.total, self._last, self._before = bar.total, None, 0
        return bar.total == self._bars.total

    def _take(self, bar: _Bar, *, cleared: bool) -> None:
        last, self._last = self._last, bar
        if last is not None and bar.step < last.step and bar.elapsed_s <= last.elapsed_s:
            self._before += last.total or last.step
        if bar.step == 0:
            return
        step = self._step_of(bar)
        # Its own rate needs a few steps behind it, and other bars say nothing without one.
        self._bars.draw(DrawnStep(step, bar.step_time_s), cleared=cleared)
        if not (_says_training(bar) or _has_a_loss(bar) or _is_slow_and_long(bar)):
            return
        if (self._bars.line_steps or 0) in range(1, DENSE_STEPS + 1):
            # The lines beside the bar say more.
            return
        self._counted = True
        of_lightning = "v_num=" in bar.postfix
        if of_lightning or bar.framework:
            self._out.describe(framework=bar.framework or "lightning")
        else:
            self._out.describe_framework("training-loop")
        # Lightning's bars are of one epoch, also where something printed hides which.
        if bar.total and bar.epoch is None and self._before == 0 and not of_lightning:
            self._out.describe(train_steps=self._out.description.train_steps or bar.total)
        losses = _losses(bar.postfix) or _losses_about(bar.about)
        self._add_step(step, {"step_time_s": bar.step_time_s}, losses, family=ProgressSource.PROGRESS_BAR)

    def _step_of(self, bar: _Bar) -> int:
        if bar.global_step is not None:
            return bar.global_step
        if bar.epoch is None:
            return self._before + bar.step
        if self._first_epoch is None:
            # Lightning counts epochs from 0; other loops begin with 0 or 1.
            self._first_epoch = 0 if "v_num=" in bar.postfix else min(bar.epoch, 1)
        return (bar.epoch - self._first_epoch) * bar.total + bar.step


def _bars_in(text: str) -> Iterator[_Bar]:
    if drawn := _ULTRALYTICS.match(text):
        rate = positive(drawn[4])
        yield _Bar(
            about="train",
            step=int(drawn[2]),
            total=int(drawn[3]),
            elapsed_s=0,
            step_time_s=None if rate is None else rate if drawn[5] == "s/it" else 1 / rate,
            postfix="",
            epoch=int(drawn[1]),
            framework="ultralytics",
        )
        return
    end = 0
    for match in _TQDM.finditer(text):
        about = text[max(end, match.start() - _MAX_DESCRIPTION_CHARS) : match.start()].rstrip(" 0123456789")
        end = text.find("]", match.end(), match.end() + _MAX_POSTFIX_CHARS)
        speed = _SPEED.match(text, match.end(), end) if end >= 0 else None
        end = max(end, match.end())
        if speed is None or (speed[3] is None) is (speed[4] is None):
            # Its unit is not one of steps, or it was not drawn whole.
            continue
        bar = _of_tqdm(about, match, speed, text[speed.end() : end])
        if 0 <= bar.step <= bar.total and bar.total:
            yield bar
    if not end and (counted := _COUNT.search(text)):
        stop = text.find("]", counted.end(), counted.end() + _MAX_POSTFIX_CHARS)
        speed = _COUNT_SPEED.match(text, counted.end(), stop) if stop >= 0 else None
        if speed is not None and (speed[3] is None) is not (speed[4] is None):
            yield _of_tqdm(text[: counted.start()], counted, speed, text[speed.end() : stop])
    rich = _RICH.search(text)
    if rich is None:
        if drawn := _RICH_COUNT.match(text):
            yield _of_rich(drawn, text[drawn.end() :])
        return
    rest = text[rich.end() :].lstrip(_RICH_BAR)
    if speed := _RICH_SPEED.match(rest):
        rate = positive(speed[4])
        yield _Bar(
            about="Epoch",
            step=int(speed[1]),
            total=int(speed[2]),
            elapsed_s=_seconds(speed[3]),
            step_time_s=None if rate is None else 1 / rate,
            postfix=", v_num=",
            epoch=int(rich[1]),
        )


def _of_tqdm(about: str, match: re.Match[str], speed: re.Match[str], postfix: str) -> _Bar:
    rate = positive(speed[2])
    epoch = _EPOCH.search(about)
    tune = _TORCHTUNE.search(about)
    return _Bar(
        about="train" if tune else about,
        step=int(match[1]),
        total=int(match[2]) if match.re is _TQDM else 0,
        elapsed_s=_seconds(speed[1]),
        step_time_s=None if rate is None else rate if speed[3] else 1 / rate,
        postfix=f", loss={tune[3]}" if tune else postfix,
        epoch=int(epoch[1]) if epoch else None,
        global_step=int(tune[2]) if tune else None,
    )


def _of_rich(drawn: re.Match[str], rest: str) -> _Bar:
    """Its times may be those that are left: only the order of bars shows the epoch."""
    about = drawn[1].strip()
    epoch = _EPOCH.search(about)
    return _Bar(
        about=about,
        step=int(drawn[2]),
        total=int(drawn[3]),
        elapsed_s=0,
        step_time_s=None,
        postfix=rest,
        epoch=int(epoch[1]) if epoch else None,
    )


def _is_training(bar: _Bar) -> bool:
    over_epochs = bar.epoch is None and _EPOCHS.fullmatch(bar.about)
    return not _OTHER_WORK.search(bar.about) and not over_epochs


def _says_training(bar: _Bar) -> bool:
    return bool(_TRAINING.search(bar.about)) or "loss" in bar.postfix


def _has_a_loss(bar: _Bar) -> bool:
    """Whether a loss is in front of it, as AllenNLP's, whose bars of validation look the same."""
    return _LOSS_ABOUT.search(bar.about) is not None


def _is_slow_and_long(bar: _Bar) -> bool:
    slow = bar.step_time_s is not None and bar.step_time_s * _FASTEST_PER_S >= 1
    return slow and bar.elapsed_s >= _SHORTEST_S and not bar.about.strip(" :")


def _losses(postfix: str) -> dict[str, float]:
    pairs = (piece.strip().partition("=") for piece in postfix.split(","))
    return {
        key: value
        for key, _, text in pairs
        if "loss" in key and key.isascii() and key.isprintable() and (value := number(text)) is not None
    }


def _losses_about(about: str) -> dict[str, float]:
    found = _LOSS_ABOUT.search(about)
    value = None if found is None else number(found[1])
    return {} if value is None else {"loss": value}


def _seconds(clock: str) -> int:
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return total
