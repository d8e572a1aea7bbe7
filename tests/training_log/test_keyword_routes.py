"""A line goes to the parsers whose keywords it contains, and to those inside a block, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.training_log.format_parser import FormatParser, LogLine
from perfd_collectors.training_log.keyword_routes import Routes
from perfd_collectors.training_log.log_parser import new_job

WORDS = st.text("ab ", min_size=1, max_size=3).map(str.encode)
LINES = st.text("abc ", max_size=12).map(str.encode)


class Plain(FormatParser):
    """Has no blocks."""

    def __init__(self, keywords: Sequence[bytes]) -> None:
        super().__init__(new_job("job"))
        self.keywords = keywords

    def parse(self, _line: LogLine) -> bool:
        return False


class Block(Plain):
    """May be inside one."""

    def __init__(self, keywords: Sequence[bytes], *, inside: bool) -> None:
        super().__init__(keywords)
        self._inside = inside

    @property
    def in_block(self) -> bool:
        return self._inside


PARSERS = st.one_of(
    st.builds(Plain, st.lists(WORDS, max_size=4)),
    st.builds(Block, st.lists(WORDS, max_size=4), inside=st.booleans()),
)


@given(st.lists(PARSERS, max_size=5), st.lists(LINES, min_size=1, max_size=4))
def test_each_parser_gets_exactly_the_lines_that_are_for_it(
    formats: Sequence[FormatParser], lines: Sequence[bytes]
) -> None:
    routes = Routes(formats)
    for line in lines:
        found = list(routes.parsers(line, routes.keywords_in(line), in_block=routes.in_block))
        assert found == [
            one for one in formats if one.in_block or any(keyword in line for keyword in one.keywords)
        ]
