"""What an operation of XLA's HLO does, by its name."""

from __future__ import annotations

import re

_CLASSES = tuple(
    (label, re.compile(words, re.IGNORECASE))
    for label, words in (
        (
            "communication",
            (
                r"all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-|^(?:send|recv)\b"
                r"|nccl"
            ),
        ),
        ("infeed", r"infeed|outfeed"),
        ("matmul", r"dot|gemm|matmul|cublas|cutlass|nvjet|einsum"),
        ("convolution", r"convolution|cudnn(?:(?!cudnn).)*conv"),
        ("attention", r"fmha|flash|attention"),
        ("copy", r"^(?:copy|concatenate|slice)|memcpy|memset|dynamic-(?:update-)?slice|transpose"),
        ("reduction", r"reduce|argmax|sort|cumsum"),
        (
            "elementwise",
            (
                r"fusion|multiply|divide|subtract|tanh|select|convert|broadcast|iota|compare"
                r"|\b(?:add|and|or|not|xor|exponential|log|rsqrt|sqrt|power|maximum|minimum|negate|clamp)\b"
            ),
        ),
    )
)


def hlo_class(*names: str | None) -> str:
    """The class of the first known name, or `other`: `matmul`, `communication`, ...

    Names go from the most to the least specific: the operation's category, its name, the kernel's name.
    """
    for name in names:
        if not name:
            continue
        # A fusion of one operation is called after it.
        plain = name.lstrip("%").replace("_", "-").removeprefix("wrapped-")
        for label, pattern in _CLASSES:
            if pattern.search(plain):
                # A fusion that transposes or slices computes its result: it does not copy.
                return "elementwise" if label == "copy" and "fusion" in plain else label
    return "other"
