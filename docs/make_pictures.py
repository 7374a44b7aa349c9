"""Makes the pictures of the README: `python docs/make_pictures.py` from the repository's root.

Runs the ring on four real ranks, writes its page, and photographs the player at step 3 in headless Chromium (Debian's
`chromium`, and `playwright` from the Python index).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from dtcourse import Cluster, per_rank, provenance
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.run import Run
from dtcourse.views.page import write_page

DOCS = Path(__file__).parent
MOST = 150_000  # bytes of a picture
sys.path.append(str(DOCS.parent / "tests" / "browser"))


def ring() -> Run:
    with Cluster(4) as cluster:
        return cluster.run(ring_all_reduce, per_rank([provenance(4, rank, 10) for rank in range(4)]), watch=True)


def photograph(run: Run, step: int, picture: Path) -> None:
    """The player at `step`, with sharp letters on a high-resolution screen."""
    from chromium import browser

    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        page = chromium.new_page(viewport={"width": 1040, "height": 900}, device_scale_factor=2)
        page.emulate_media(reduced_motion="reduce", color_scheme="light")
        page.goto(write_page(run, Path(folder) / "run.html", step).as_uri())
        page.locator("#player section").screenshot(path=picture)
    Image.open(picture).convert("RGB").quantize(96).save(picture, optimize=True)
    if picture.stat().st_size > MOST:
        raise SystemExit(f"{picture} has {picture.stat().st_size:,} bytes, and {MOST:,} are allowed: lower the scale")


if __name__ == "__main__":
    photograph(ring(), 3, DOCS / "player.png")
    print(f"{DOCS / 'player.png'}: {(DOCS / 'player.png').stat().st_size:,} bytes")
