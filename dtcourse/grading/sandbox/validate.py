"""What a rank says, held against what it may say. Each raises Malformed; pure functions of plain data."""

from __future__ import annotations

from typing import Any

from dtcourse.grading.sandbox.wire import Malformed

LONGEST_WORDS = 20_000  # characters of what a rank says of its failure


def below(value: Any, limit: int) -> int:
    """A whole number from 0 on, and below this one."""
    if type(value) is not int or not 0 <= value < limit:
        raise Malformed(f"{value!r} for a number below {limit}")
    return value


def one_of(value: Any, known: Any) -> str:
    """One of these words."""
    if value not in known:
        raise Malformed(f"{value!r} for one of {', '.join(known)}")
    return value


def named_values(words: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a region or a mark, and its values."""
    name, labels = words["name"], words["labels"]
    plain = (str, int, float, bool, type(None))
    if type(name) is not str or not all(isinstance(value, plain) for value in labels.values()):
        raise Malformed("labels are numbers and strings")
    return name, labels


def clean(text: Any) -> str:
    """Not too long, and without what could steer a terminal."""
    return "".join(c for c in str(text)[-LONGEST_WORDS:] if c in "\n\t" or c.isprintable())
