"""Checkpoints: what the servers hold, on disk, so that it outlives them.

Each server writes a file of its own after every so many updates, and keeps the last two: one server may die before it
has written what another has written already, so a training resumes from the newest version that all have.
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

    def save(self, state: dict[str, Any], server: int, version: int) -> None:
        """Write the state of one server."""
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
        for old in sorted(self.versions(server))[:-_KEPT]:
            self._path(server, old).unlink()

    def load(self, server: int, servers: int) -> dict[str, Any] | None:
        """The state of one server at the newest version that all have; None if there is none."""
        common = set.intersection(*(self.versions(s) for s in range(servers)))
        if not common:
            return None
        return torch.load(self._path(server, max(common)), map_location="cpu", weights_only=True)

    def versions(self, server: int) -> set[int]:
        """The versions that lie in the folder."""
        found = (re.fullmatch(rf"server{server}-(\d+)\.pt", p.name) for p in Path(self.folder).glob("*.pt"))
        return {int(match[1]) for match in found if match}

    def _path(self, server: int, version: int) -> Path:
        return Path(self.folder) / f"server{server}-{version}.pt"
