"""The page as a file: small, self-contained, and complete."""

import re
from pathlib import Path

import pytest
from simulated import ring_run

from dtcourse.views.page import write_page


@pytest.mark.parametrize("run", [ring_run(), ring_run(lost_after=1), ring_run(gather=-1)])
def test_a_ring_of_four_is_under_100_kb_and_refers_to_nothing(run, tmp_path: Path) -> None:
    text = write_page(run, tmp_path / "ring.html").read_text()
    assert len(text.encode()) < 100_000
    assert "http" not in text
    assert not re.search(r"<(link|script|img|iframe)[^>]*\b(src|href)=(?!\"data:,)", text)
    assert not re.search(r"@import|url\((?!#)", text.replace("url(#${id}", "").replace("url(#", ""))
    for name in ("player", "timeline", "traffic"):
        assert f'<div id="{name}">' in text


def test_run_writes_its_page(tmp_path: Path) -> None:
    path = ring_run().page(tmp_path / "ring.html")
    assert path.read_text().startswith("<!doctype html>")
