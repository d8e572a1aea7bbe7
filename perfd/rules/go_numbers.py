"""Numbers as text: the way Go prints them, and the humanize functions of Prometheus templates.

The functions are those of template/template.go of Prometheus 2.42.
"""

from __future__ import annotations

import math
from decimal import Decimal

_ABOVE = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_BELOW = ("", "m", "u", "n", "p", "f", "a", "z", "y")
_BINARY = ("", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")


def go_float(value: float) -> str:
    """The shortest text that reads back as the value, as Go's `%v` and `%g` write it."""
    if not math.isfinite(value):
        return special(value)
    shortest = Decimal(repr(value))
    power = shortest.adjusted() if value else 0
    if -4 <= power < 6:
        return repr(value).removesuffix(".0")
    sign, digits, _ = shortest.normalize().as_tuple()
    first, *others = (str(digit) for digit in digits)
    mantissa = f"{first}.{''.join(others)}" if others else first
    return f"{'-' if sign else ''}{mantissa}e{power:+03d}"


def special(value: float) -> str:
    """Infinities and NaN as Go writes them."""
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def four_digits(value: float) -> str:
    """Go's `%.4g`."""
    return f"{value:.4g}" if math.isfinite(value) else special(value)


def humanize(value: float) -> str:
    """With a metric prefix: `1.235k`, `12m`."""
    return _prefixed(value, "") if value and math.isfinite(value) else four_digits(value)


def humanize1024(value: float) -> str:
    """With a binary prefix: `1.5Gi`."""
    if abs(value) <= 1 or not math.isfinite(value):
        return four_digits(value)
    scaled, prefix = _scaled_down(value, _BINARY, 1024.0)
    return f"{four_digits(scaled)}{prefix}"


def humanize_duration(value: float) -> str:
    """Seconds as `1h 2m 3s`, `1.5s` or `20ms`."""
    if not math.isfinite(value):
        return four_digits(value)
    if abs(value) < 1:
        return f"{_prefixed(value, 's')}" if value else "0s"
    sign = "-" if value < 0 else ""
    seconds = int(abs(value))
    minutes, hours, days = seconds // 60 % 60, seconds // 3600 % 24, seconds // 86_400
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds % 60}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds % 60}s"
    if minutes:
        return f"{sign}{minutes}m {seconds % 60}s"
    return f"{sign}{four_digits(abs(value))}s"


def humanize_percentage(value: float) -> str:
    """A ratio as a percentage: `12.5%`."""
    return f"{four_digits(value * 100)}%"


def _prefixed(value: float, unit: str) -> str:
    if abs(value) >= 1:
        scaled, prefix = _scaled_down(value, _ABOVE, 1000.0)
        return f"{four_digits(scaled)}{prefix}{unit}"
    index = 0
    while abs(value) < 1 and index < len(_BELOW) - 1:
        value *= 1000
        index += 1
    return f"{four_digits(value)}{_BELOW[index]}{unit}"


def _scaled_down(value: float, prefixes: tuple[str, ...], step: float) -> tuple[float, str]:
    index = 0
    while abs(value) >= step and index < len(prefixes) - 1:
        value /= step
        index += 1
    return value, prefixes[index]
