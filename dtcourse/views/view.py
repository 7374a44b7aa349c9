"""`View`: what all views share. A picture drawn by JavaScript in a notebook, a PNG beside it for where none runs.

In a notebook file the PNG is what a forge, nbconvert or a reader without a kernel shows; it is part of every display.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

HERE = Path(__file__).parent
DPI = 110

# Okabe and Ito's colours, the same as in common.js: they stay apart for colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C")
INKS = ("white", "black", "white", "black", "black", "white", "black", "black")
WARN = "#d1350f"


def script(*names: str) -> str:
    """The text of our JavaScript files, one after the other."""
    return "\n".join((HERE / name).read_text() for name in names)


def colour(rank: int) -> str:
    return COLOURS[rank % len(COLOURS)]


def ink(rank: int) -> str:
    """The colour of text on `colour(rank)`."""
    return INKS[rank % len(INKS)]


def ink_on(colour: str) -> str:
    """Black or white, whichever is read more easily on a colour."""
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def still(figure: Figure) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figure as data and metadata of a notebook's display."""
    width, height = (int(inches * 72) for inches in figure.get_size_inches())
    picture = base64.b64encode(png(figure)).decode()
    return {"image/png": picture}, {"image/png": {"width": width, "height": height}}


def embed(data: dict[str, Any]) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(data, separators=(",", ":")).replace("</", "<\\/")


class View(anywidget.AnyWidget):
    """Base of the views. `data` is all that the JavaScript reads.

    Each has a method `figure`, which draws the same with matplotlib, and a property `caption`.
    """

    _css = script("view.css")
    data = traitlets.Dict().tag(sync=True)

    figure: Callable[[], Figure]
    caption: str  # the same in words

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.caption}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        picture, size = still(self.figure())
        return {**data, **picture, "text/plain": self.caption}, {**metadata, **size}
