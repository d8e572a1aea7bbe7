"""The pictures of the documentation are made here, so that they show the page as it is."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tests.support import screenshots

pytestmark = pytest.mark.system
DOCS = Path(__file__).parents[2] / "docs"


def size_px(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height


@pytest.mark.usefixtures("browser")
def test_each_picture_of_the_documentation_is_made_of_the_page_and_has_its_size(tmp_path: Path) -> None:
    screenshots.main(tmp_path)
    made = {path.name: size_px(path) for path in tmp_path.iterdir()}
    kept = {path.name: size_px(path) for path in (DOCS / "images").iterdir()}

    assert made.keys() == kept.keys()
    shown = {
        name for page in DOCS.glob("*.md") for name in re.findall(r"\]\(images/([\w.-]+)\)", page.read_text())
    }
    assert kept.keys() == shown
    for name, (width, height) in made.items():
        # What the page shows is longer or shorter once it is changed: `python -m tests.support.screenshots`.
        assert kept[name][0] == width
        assert kept[name][1] == pytest.approx(height, rel=0.03), name
