"""`Picture`: a view that is one drawing and a sentence, the same in a notebook, in a file and in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from dtcourse.views.view import still


class Picture:
    """Base of the views without JavaScript. What is drawn stands in attributes, for whoever wants the numbers.

    Each has a method `figure`, which draws it, and a property `caption`.
    """

    figure: Callable[[], Figure]
    caption: str  # the same in words

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.caption}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        picture, size = still(self.figure())
        return {**picture, "text/plain": self.caption}, size
