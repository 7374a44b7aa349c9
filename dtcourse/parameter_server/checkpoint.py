"""Checkpoints: what the servers hold, on disk, so that it outlives them.

Each server writes a file of its own after every so many updates. One server may die before it has written what another
has written already, so a training resumes from the newest version that all have, and no server deletes that one.
Files are written beside and renamed, so that each is whole or not there; only their owner can read them; and they
are read with `weights_only`, which runs no code.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Save into `folder`, which all servers share, after every `every` updates; begin with what lies there already."""

    folder: str | os.PathLike
    every: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"a checkpoint is saved after every 1, 2, ... updates, not every={self.every!r}")

    def save(self, state: dict[str, Any], server: int, version: int, servers: int = 1) -> None:
        """Write the state of one of the servers."""
        folder = Path(self.folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=folder, prefix=f".server{server}-")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self._path(server, version))
        except BaseException:
            os.unlink(unfinished)
            raise
        newest = max(self._common(servers), default=0)
        for old in sorted(self.versions(server))[:-_KEPT]:
            if old < newest:
                self._path(server, old).unlink()

    def load(self, server: int, servers: int) -> dict[str, Any] | None:
        """The state of one of the servers at the newest version that all have; None if the folder holds none at all.

        Later ones are deleted: the training that made them is given up. Raises ValueError if the servers have none in
        common, or if the file is no checkpoint.
        """
        if not any(self.versions(s) for s in range(servers)):
            return None
        if not (common := self._common(servers)):
            raise ValueError(
                f"{self.folder} holds no version that all of {servers} servers have saved, but parts of one: "
                "delete them, or take an empty folder"
            )
        newest = max(common)
        for later in self.versions(server):
            if later > newest:
                self._path(server, later).unlink()
        return self._read(self._path(server, newest))

    def versions(self, server: int) -> set[int]:
        """The versions that lie in the folder."""
        found = (re.fullmatch(rf"server{server}-(\d+)\.pt", p.name) for p in Path(self.folder).glob("*.pt"))
        return {int(match[1]) for match in found if match}

    def _common(self, servers: int) -> set[int]:
        return set.intersection(*(self.versions(s) for s in range(servers)))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as problem:  # a broken file can fail in any way
            raise ValueError(
                f"{path} cannot be read ({type(problem).__name__}): delete it, or take an empty folder"
            ) from None
        if not isinstance(state, dict) or "layout" not in state:
            raise ValueError(f"{path} is no checkpoint of a parameter server: take an empty folder")
        return state

    def _path(self, server: int, version: int) -> Path:
        return Path(self.folder) / f"server{server}-{version}.pt"
