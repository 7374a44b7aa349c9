"""Sees to it that every process group of this process is made with a recorder around it, those of libraries too."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from dtcourse.backends.nccl import NcclRecorder, connect
from dtcourse.backends.recorded_work import RecordedWork, begin_to_wait
from dtcourse.backends.recorder import Recorder
from dtcourse.backends.recording import Group, Recording
from dtcourse.backends.tape import Column, Kind
from dtcourse.errors import RankDied
from dtcourse.events import NEW_GROUP


def record_all_groups(recording: Recording, work: type[RecordedWork] = RecordedWork) -> None:
    """From now on, every process group made in this process is made with a recorder around it.

    `work`: what its handles are.
    """
    make = c10d._new_process_group_helper
    recording.ledger.join(zlib.crc32(NEW_GROUP.encode()))  # at once: others may make a group before this rank does

    def make_recorded(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with _joining(recording, *args[1:3], name=args[5]):
            group, store = make(*args, **kwargs)
            if group is dist.GroupMember.NON_GROUP_MEMBER or isinstance(group, Recorder):
                return group, store
            ranks = kwargs.get("global_ranks_in_group", args[2] if len(args) > 2 else ())
            name = c10d._world.pg_names[group]
            backend = str(c10d._world.pg_map[group][0])
            if "nccl" in backend:
                connect(group, recording.device)
        what = group, name, tuple(ranks) or tuple(range(group.size())), backend, recording
        recorder = NcclRecorder(*what) if "nccl" in backend else Recorder(*what, work)
        _replace_in_world(group, recorder, name)
        return recorder, store

    c10d._new_process_group_helper = make_recorded
    c10d.batch_isend_irecv = dist.batch_isend_irecv = _noting_batches(c10d.batch_isend_irecv, recording)


@contextmanager
def _joining(recording: Recording, rank: int | None, ranks: list[int], name: str) -> Iterator[None]:
    """Let others see that this rank makes a group of `ranks`, and waits for them if it is one (its number `rank`).

    torch numbers the groups that a rank was asked to make: all have to be asked for the same ones. Only a group
    that its members agree on by themselves (`use_local_synchronization`) has a name from its ranks, and no number.
    """
    if recording.run is None or not ranks:
        yield
        return
    numbered = name.isdigit()
    who = tuple(range(dist.get_world_size()) if numbered else ranks)
    group = Group(zlib.crc32((NEW_GROUP if numbered else f"{NEW_GROUP} {name}").encode()), who)
    what, step = f"{NEW_GROUP}({list(ranks)})", recording.steps_received + 1
    posting = recording.post(Kind.COLLECTIVE, what, group, -1, step, [], agree_on=(name, *ranks))
    recording.tape.fill(posting.number, Column.CONTROL, 1)
    recording.tape.fill(posting.number, Column.MEMBERS, recording.tape.text(json.dumps(ranks)))
    wait_from = begin_to_wait(recording, posting) if rank is not None else 0
    try:
        with recording.deaths.needing(ranks if rank is not None else []):
            yield  # if it fails, the operation stays pending: ranks that count differently are of no use
    except RankDied as death:
        recording.lost(posting, wait_from, death.rank)
        raise
    recording.ended(posting, wait_from, [])


def _noting_batches(batch_isend_irecv: Callable[..., Any], recording: Recording) -> Callable[..., Any]:
    @functools.wraps(batch_isend_irecv)
    def noting(operations: list[dist.P2POp]) -> list[dist.Work]:
        recording.thread.batched = True
        try:
            with recording.link.clock.stopped() if recording.link else nullcontext():
                works = batch_isend_irecv(operations)
        finally:
            recording.thread.batched = False
        recording.let_go()
        return works

    return noting


def _replace_in_world(group: dist.ProcessGroup, recorder: Recorder, name: str) -> None:
    """Put the recorder into torch's tables, where the group was."""
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[recorder] = table.pop(group)
    for groups in world.tags_to_pg.values():
        groups[:] = [recorder if g is group else g for g in groups]
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, recorder)
