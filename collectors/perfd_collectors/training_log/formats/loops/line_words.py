"""Lines of loops in other languages, with the words and signs that English ones have."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

_SIGNS = str.maketrans({"、": ", ", "。": ". ", "【": "[", "】": "]"})
"""Those that have no plain form in Unicode."""
_CJK: Mapping[str, str] = {
    **dict.fromkeys(("全局步数", "训练步数", "步数", "步骤", "步", "ステップ数", "ステップ", "스텝"), "step"),
    **dict.fromkeys(("迭代次数", "迭代", "反復", "イテレーション"), "iteration"),
    **dict.fromkeys(("训练轮次", "轮次", "轮数", "轮", "周期", "エポック", "에포크"), "epoch"),
    **dict.fromkeys(("批次", "バッチ", "배치"), "batch"),
    **dict.fromkeys(("训练损失", "損失", "损失值", "损失", "ロス", "손실"), "loss"),
    **dict.fromkeys(("验证损失", "测试损失", "評価損失", "検証損失", "검증 손실"), "val loss"),
    **dict.fromkeys(("验证", "评估", "测试", "評価", "検証", "검증", "평가"), "eval"),
    **dict.fromkeys(("保存", "加载", "저장"), "save"),
    **dict.fromkeys(("学习率", "学習率", "학습률"), "lr"),
    **dict.fromkeys(("每步耗时", "单步耗时", "每步时间", "ステップ時間"), "step time"),
    **dict.fromkeys(("耗时", "用时", "时间", "所要時間", "経過時間", "時間", "시간"), "time"),
    **dict.fromkeys(("步/秒", "ステップ/秒"), "steps/s"),
    **dict.fromkeys(("样本/秒", "サンプル/秒"), "samples/s"),
    **dict.fromkeys(("毫秒", "ミリ秒"), "ms"),
    **dict.fromkeys(("秒", "초"), "s"),
    **dict.fromkeys(("速度",), "speed"),
}
_LATIN: Mapping[str, str] = {
    **dict.fromkeys(("schritt", "étape", "paso", "passo", "шаг"), "step"),
    **dict.fromkeys(("epoche", "époque", "época", "эпоха"), "epoch"),
    **dict.fromkeys(("итерация", "iteración", "itération"), "iteration"),
    **dict.fromkeys(("verlust", "trainingsverlust", "perte", "pérdida", "perda", "потери"), "loss"),
    **dict.fromkeys(("validierungsverlust", "testverlust"), "val loss"),
    **dict.fromkeys(("validierung", "auswertung", "évaluation", "validación", "проверка"), "eval"),
    **dict.fromkeys(("lernrate",), "lr"),
    **dict.fromkeys(("schrittzeit", "schrittdauer"), "step time"),
    **dict.fromkeys(("zeit", "dauer", "durée", "temps", "tiempo", "tempo", "время"), "time"),
    **dict.fromkeys(("sekunden", "sek", "secondes", "segundos"), "s"),
    **dict.fromkeys(("schritte/s",), "steps/s"),
}
_CJK_WORD = re.compile("|".join(sorted(_CJK, key=len, reverse=True)))
_LATIN_WORD = re.compile(
    rf"(?<!\w)(?:{'|'.join(sorted(_LATIN, key=len, reverse=True))})(?![\w-])", re.IGNORECASE
)
_ASCII_STEMS = (
    *("schritt", "paso", "passo", "epoche", "verlust", "perte", "perda", "validierung", "auswertung"),
    *("lernrate", "zeit", "dauer", "temps", "tiempo", "tempo", "sek", "secondes", "segundos"),
)
"""What each of these words without accents contains: looking for them is cheaper than for whole words."""
_COUNTED = re.compile(r"第 {0,3}([0-9]{1,15}(?: {0,2}/ {0,2}[0-9]{1,15})?) {0,3}(步|轮|批|次迭代)")
"""`第 10 步`: the number is in front of its word."""
_WIDE_COMMA = re.compile(r",(?=[^\s\d])")
"""Without a space after it, as those of Chinese and Japanese."""
_COUNTED_WORDS = {"步": "step", "轮": "epoch", "批": "batch", "次迭代": "iteration"}
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])([0-9]{1,9}),([0-9]{1,9})(?![\d.,]*\d)")
KEYWORDS = tuple(
    word.encode()
    for word in (
        *("步", "迭代", "轮", "ステップ", "エポック", "스텝", "에포크"),
        *("chritt", "poche", "tape ", "paso ", "Paso ", "passo ", "Passo ", "шаг", "Шаг"),
    )
)
"""What lines that count steps or epochs contain."""


def in_english(text: str) -> str:
    """The line with known words in English, and with decimal points if its words have decimal commas."""
    if not text.isascii():
        text = _COUNTED.sub(lambda found: f"{_COUNTED_WORDS[found[2]]} {found[1]} ", text)
        text = _WIDE_COMMA.sub(", ", unicodedata.normalize("NFKC", text.translate(_SIGNS)))
        text = _CJK_WORD.sub(lambda found: f" {_CJK[found[0]]} ", text)
    elif not _may_be_translated(text.lower()):
        return text
    english = _LATIN_WORD.sub(lambda found: _LATIN[found[0].lower()], text)
    return text if english is text or english == text else _DECIMAL_COMMA.sub(r"\1.\2", english)


def _may_be_translated(lower: str) -> bool:
    for stem in _ASCII_STEMS:  # noqa: SIM110  (a generator takes twice as long, and this is each line's)
        if stem in lower:
            return True
    return False
