"""What of a submission is taken: the exercise's file and the helpers beside it, if they are small files of Python.

A submission is a folder or a zip, and whoever made it is not trusted: nothing in it is run or followed here. Links,
big files, and helpers that would stand in for a module of Python or of ours are left behind, and the report says so.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import sys
import sysconfig
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath

MOST_FILES = 50  # taken; a zip may list more, of other kinds
MOST_ENTRIES = 10_000  # looked at
LARGEST = 1 << 20  # bytes of one file
LARGEST_ZIP = 64 << 20  # bytes of an archive: all that it lists is read before anything can be refused
ALL_TOGETHER = 4 << 20  # bytes
DEEPEST = 6  # folders
LONGEST_NAME = 500  # characters that are shown
MOST_TOLD = 20  # files that were left behind
MOST_LISTED = 5  # files in one message
NO_FILE = "it is no file of its own but a link or a device"
IGNORED = {"__MACOSX", "__pycache__", ".git", ".ipynb_checkpoints", ".venv"}


class Unreadable(Exception):
    """Nothing can be taken from this submission; the message says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """One submission as it was handed in: a folder or a zip. `name` is the folder's, or the zip's without .zip."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Taken:
    """The files that an exercise is graded with, by name, and what was left behind, in words."""

    files: dict[str, bytes]
    left: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """The same for the same files."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def write(self, folder: Path) -> None:
        """Write them into an empty folder of the grader's own."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def sources(folder: Path) -> list[Source]:
    """The submissions in a folder, by name. Raises ValueError if there are none, or two of one name.

    Whatever else lies there is one, too, which cannot be read: somebody may have handed it in.
    """
    paths = [path for path in folder.iterdir() if not _hidden(path.name)]
    if not any(path.is_dir() or _is_zip(path) for path in paths):
        raise ValueError(f"{folder} has no submissions: a folder or a zip for each is expected in it")
    found = [Source(shown(path.stem if _is_zip(path) else path.name), path) for path in paths]
    found.sort(key=lambda source: source.name)
    for one, next_one in itertools.pairwise(found):
        if one.name == next_one.name:
            raise ValueError(f"{folder} has two submissions of {one.name!r}: {one.path.name} and {next_one.path.name}")
    return found


def take(source: Source, exercise: str) -> Taken:
    """The file of an exercise and its helpers. Raises `Unreadable` if the submission does not have it once.

    The file may lie in any folder of the submission; the helpers are the files of Python in the same folder.
    """
    try:
        with _opened(source.path) as entries:
            return _take(entries, f"{exercise}.py")
    except Unreadable:
        raise
    except Exception as problem:  # each way to compress has its own errors for an archive that somebody has damaged
        raise Unreadable(f"the submission cannot be read: {shown(str(problem)) or type(problem).__name__}") from None


def _take(entries: Entries, wanted: str) -> Taken:
    paths = list(entries.paths())
    homes = [path.parent for path in paths if path.name == wanted]
    if not homes:
        there = [f"there is no file {wanted}", f"there is {_listed(paths) or 'nothing'}"]
        raise Unreadable("; ".join(there + entries.left[:MOST_LISTED]))
    if len(homes) > 1:
        raise Unreadable(f"there are {len(homes)} files {wanted}: {_listed([home / wanted for home in homes])}")
    beside = sorted((p for p in paths if p.parent == homes[0] and p.suffix == ".py"), key=lambda p: p.name != wanted)
    files: dict[str, bytes] = {}
    for path in beside:
        room = min(LARGEST, ALL_TOGETHER - sum(map(len, files.values())))
        if reason := _refused(path.name, wanted, len(files)):
            entries.leave(path.name, reason)
        elif (content := entries.read(path, room)) is None:
            entries.leave(path.name, f"it is larger than the {room:,} bytes that are left for it")
        else:
            files[path.name] = content
        if wanted not in files:  # it comes first
            raise Unreadable(entries.left[-1])
    more = len(entries.left) - MOST_TOLD
    left = entries.left[:MOST_TOLD] + ([f"{more:,} more were left behind"] if more > 0 else [])
    return Taken(dict(sorted(files.items())), left)


def _listed(paths: Sequence[PurePosixPath]) -> str:
    """A few of these files, those of Python first."""
    first = sorted(paths, key=lambda path: path.suffix != ".py")[:MOST_LISTED]
    more = len(paths) - len(first)
    return ", ".join(map(shown, first)) + (f" and {more:,} more" if more else "")


def _refused(name: str, wanted: str, taken: int) -> str | None:
    if taken >= MOST_FILES:
        return f"{MOST_FILES} files are taken at most"
    if name == "conftest.py" or name.startswith("test_"):
        return "tests and their set-up are the grader's"
    if not name.removesuffix(".py").isidentifier():
        return "nothing can import a file of this name"
    if name != wanted and _is_a_module(name.removesuffix(".py")):
        return f"it would stand in for the module {name.removesuffix('.py')!r}; give the helper another name"
    return None


def _is_a_module(name: str) -> bool:
    """Whether Python, an installed package, or the course has a module of this name."""
    installed = list({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    known = name in sys.stdlib_module_names or name == "dtcourse"
    return known or PathFinder.find_spec(name, installed) is not None


# -- folders and zips --------------------------------------------------------------------------------------------------


class Entries(ABC):
    """The regular files of a submission, and their contents on demand. `left` says what else there was."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def leave(self, path: str | PurePosixPath, reason: str) -> None:
        self.left.append(f"{shown(path)} was left behind: {reason}")

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - a folder has nothing to close
        ...

    @abstractmethod
    def paths(self) -> Iterator[PurePosixPath]: ...

    @abstractmethod
    def read(self, path: PurePosixPath, most: int) -> bytes | None:
        """What is in a file, None if it is more than `most` bytes."""


class Folder(Entries):
    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def paths(self) -> Iterator[PurePosixPath]:
        seen = 0
        for folder, inner, files in os.walk(self.root):
            place = PurePosixPath(Path(folder).relative_to(self.root).as_posix())
            inner[:] = [] if len(place.parts) >= DEEPEST else sorted(name for name in inner if not _hidden(name))
            for name in sorted(files):
                seen += 1
                if seen > MOST_ENTRIES:
                    raise ValueError(f"it has more than {MOST_ENTRIES:,} files")
                if _hidden(name):
                    continue
                if not stat.S_ISREG(os.lstat(self.root / place / name).st_mode):
                    self.leave(place / name, NO_FILE)
                else:
                    yield place / name

    def read(self, path: PurePosixPath, most: int) -> bytes | None:
        opened = os.open(self.root / path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(opened, "rb") as file:
            content = file.read(most + 1)
        return content if len(content) <= most else None


class Zip(Entries):
    """Nothing is unpacked: names that lead out of the archive stay names, and a file is read up to its limit."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        if (size := file.stat().st_size) > LARGEST_ZIP:
            raise ValueError(f"it is a zip of {size:,} bytes, and {LARGEST_ZIP:,} are the most")
        self.archive = zipfile.ZipFile(file)

    def __exit__(self, *_: object) -> None:
        self.archive.close()

    def paths(self) -> Iterator[PurePosixPath]:
        members = self.archive.infolist()
        if len(members) > MOST_ENTRIES:
            raise ValueError(f"it has more than {MOST_ENTRIES:,} files")
        for member in members:
            path = PurePosixPath(member.filename)
            if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                self.leave(member.filename, "it leads out of the archive")
            elif member.is_dir() or any(map(_hidden, path.parts)) or len(path.parts) > DEEPEST + 1:
                continue
            elif (mode := member.external_attr >> 16) and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                self.leave(path, NO_FILE)
            else:
                yield path

    def read(self, path: PurePosixPath, most: int) -> bytes | None:
        with self.archive.open(str(path)) as file:
            content = file.read(most + 1)  # the size that an archive claims is only a claim
        return content if len(content) <= most else None


def _opened(path: Path) -> Entries:
    """A folder that holds one zip and nothing else, as some platforms hand it out, is that zip."""
    if path.is_symlink():
        raise ValueError("it is a link")
    if _is_zip(path):
        return Zip(path)
    if not path.is_dir():
        raise ValueError("it is neither a folder nor a zip")
    inside = [one for one in path.iterdir() if not _hidden(one.name)]
    if len(inside) == 1 and _is_zip(inside[0]) and not inside[0].is_symlink():
        return Zip(inside[0])
    return Folder(path)


def shown(name: str | PurePosixPath) -> str:
    """A name that can be written anywhere: whoever chose it may have put in what steers a terminal, or is no text."""
    return "".join(c if c.isprintable() else "?" for c in str(name))[:LONGEST_NAME]


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip" and path.is_file()


def _hidden(name: str) -> bool:
    return name in IGNORED or name.startswith(".")
