"""The page as a file: small, self-contained, and complete."""

import re
from pathlib import Path

import pytest
from simulated import ring_run
from training_simulated import asynchronous_run

from dtcourse.events import MARK, Event
from dtcourse.run import Run
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


def test_a_training_has_its_loss_and_its_staleness(tmp_path: Path) -> None:
    text = asynchronous_run().page(tmp_path / "run.html").read_text()
    pictures = re.findall(r'<img src="data:image/png;base64,(iVBOR[^"]+)" alt="([^"]+)"', text)
    assert [words.split(" of ")[0].split(" against ")[0] for _, words in pictures] == ["Loss", "Staleness"]
    assert "http" not in text
    assert len(text) < 400_000
    assert "<img" not in ring_run().page(tmp_path / "ring.html").read_text()


def test_marks_with_other_labels_spoil_no_page(tmp_path: Path) -> None:
    run = Run(1, events=[Event(0, 0, MARK, "loss", posted=0, ended=0, labels={"epoch": 1})])
    assert "Not here: a mark &quot;loss&quot; of rank 0" in run.page(tmp_path / "run.html").read_text()


def test_run_writes_its_page(tmp_path: Path) -> None:
    path = ring_run().page(tmp_path / "ring.html")
    assert path.read_text().startswith("<!doctype html>")
