"""Which parsers get a line, by the keywords that it contains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from perfd_collectors.training_log.format_parser import FormatParser

_MOST_ROUTES = 4096
"""Sets of keywords whose route is remembered; logs have some dozens. Chosen."""

Route = Sequence[tuple[FormatParser, Sequence[bytes]]]
"""Parsers in the order of formats. Each gets the line if it contains one of the words, if there are none to
look for, or while the parser is in a block."""
_BLOCK_ONLY = (b"\n",)
"""A word that no line contains."""


class Routes:
    """The parsers of each keyword, in the order of `formats`."""

    def __init__(self, formats: Sequence[FormatParser]) -> None:
        self._formats = formats
        self._words = tuple(tuple(parser.keywords) for parser in formats)
        self._with_blocks = [one for one in formats if type(one).in_block is not FormatParser.in_block]
        self.keywords = _shortest(frozenset(keyword for parser in formats for keyword in parser.keywords))
        """All but those that contain another one: each costs a search of all bytes."""
        self._routes: dict[tuple[frozenset[bytes], bool], Route] = {}

    @property
    def in_block(self) -> bool:
        """Whether a parser needs the next line regardless of keywords."""
        for parser in self._with_blocks:  # noqa: SIM110  (a generator takes twice as long, and this is each line's)
            if parser.in_block:
                return True
        return False

    def keywords_in(self, line: bytes) -> frozenset[bytes]:
        """The keywords of a line."""
        return frozenset(word for word in self.keywords if word in line)

    def parsers(self, line: bytes, keywords: frozenset[bytes], *, in_block: bool) -> Iterator[FormatParser]:
        """The parsers of a line that contains these of `keywords` only; `in_block` is as it is now."""
        if (route := self._routes.get((keywords, in_block))) is None:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            route = self._routes[keywords, in_block] = self._route(keywords, in_block=in_block)
        for parser, words in route:
            if not words:
                yield parser
                continue
            for word in words:
                if word in line:
                    yield parser
                    break
            else:
                if in_block and parser.in_block:
                    yield parser

    def _route(self, keywords: frozenset[bytes], *, in_block: bool) -> Route:
        route: list[tuple[FormatParser, Sequence[bytes]]] = []
        words = _words_to_look_for(self._words, keywords)
        for parser, wanted in zip(self._formats, words, strict=True):
            if wanted is not None:
                route.append((parser, wanted))
            elif in_block and parser in self._with_blocks:
                route.append((parser, _BLOCK_ONLY))
        return route


@lru_cache(maxsize=_MOST_ROUTES)
def _words_to_look_for(
    of_parsers: Sequence[Sequence[bytes]], keywords: frozenset[bytes]
) -> Sequence[Sequence[bytes] | None]:
    """For each parser's keywords: none if the line has one, longer ones that it may have, or None.

    It takes half a millisecond, and the logs of all ranks have the same.
    """
    words: list[Sequence[bytes] | None] = []
    for own in of_parsers:
        # A longer one may be there only if one that it contains is.
        longer = [word for word in own if any(one in word for one in keywords)]
        words.append(() if keywords.intersection(own) else longer or None)
    return tuple(words)


@lru_cache
def _shortest(words: frozenset[bytes]) -> tuple[bytes, ...]:
    """Words that contain no other one, in order. Comparing all takes 10 ms, and most logs have the same."""
    return tuple(sorted(one for one in words if not any(other != one and other in one for other in words)))
