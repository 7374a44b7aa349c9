"""What a rank says, held against what it may say. Each raises Malformed; pure functions of plain data."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

from dtcourse.backends.rows import Group, Place
from dtcourse.events import NEW_GROUP
from dtcourse.failures import Failure
from dtcourse.grading.sandbox.wire import Malformed

LONGEST_WORDS = 20_000  # characters of what a rank says of its failure
MOST_FRAMES = 60  # of its traceback

Outside = Callable[[str], str | None]  # from the name of a file in the jail to the one outside; None: not shown


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


def told_group(words: dict[str, Any], world: int) -> tuple[str, list[int], Group]:
    """The name of a group that is to be made, its ranks, and those that have to agree on it, as a group."""
    ranks, name = [below(one, world) for one in words["ranks"]], words["name"]
    if type(name) is not str or len(set(ranks)) != len(ranks):
        raise Malformed("a group of no name, or with a rank twice")
    if name.isdigit():  # all ranks count these groups; others are agreed on by their own ranks
        return name, ranks, Group(zlib.crc32(NEW_GROUP.encode()), tuple(range(world)))
    return name, ranks, Group(zlib.crc32(f"{NEW_GROUP} {name}".encode()), tuple(ranks))


def told_place(line: Any, outside: Outside) -> Place | None:
    """The line of the reader's that a rank says it is at; None if it is in no file of the reader's."""
    match line:
        case [str(file), int(number), str(function)]:
            file = outside(file)
            return (file, below(number, 1 << 31), clean(function)) if file else None
    return None


def told_failure(words: dict[str, Any], outside: Outside) -> Failure:
    """What a rank says of the exception that ended it. Frames of files that are not the reader's are left out."""
    seen = words["frames"][-MOST_FRAMES:]
    known = [(outside(str(file)), below(line, 1 << 31), clean(name)) for file, line, name in seen]
    kind = words["kind"] if re.fullmatch(r"\w{1,100}", words["kind"]) else "Exception"
    return Failure(kind, clean(words["message"]), [frame for frame in known if frame[0]], clean(words["text"]))
