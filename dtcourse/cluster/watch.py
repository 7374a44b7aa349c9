"""The watch: reads the tapes while the ranks work, and knows who waits for whom and who never will go on."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dtcourse.backends import deaths
from dtcourse.backends.ledger import Ledger, Posting
from dtcourse.backends.tape import Column, Kind, Reader
from dtcourse.events import ANY_RANK


@dataclass(frozen=True)
class Wait:
    """A rank that waits in an operation, and the ranks without which it cannot be matched."""

    posting: Posting
    needs: tuple[int, ...]

    @property
    def rank(self) -> int:
        return self.posting.rank


class Watch:
    """Follows one run."""

    def __init__(self, readers: list[Reader], gate: int) -> None:
        self.readers = readers
        self.dead: set[int] = set()  # ranks without which the others go on
        self._gate = gate
        self.ledger = Ledger(readers)
        self._pending: list[dict[int, Posting]] = [{} for _ in readers]
        self._seen: tuple = ()
        self.operations = 0

    def look(self) -> None:
        """Take in what happened since the last look."""
        for rank, pending in enumerate(self._pending):
            for posting in self.ledger.read(rank):
                self.operations += posting.kind <= Kind.COLLECTIVE
                if not posting.row[Column.ENDED]:
                    pending[posting.number] = posting
            self.ledger.refresh(rank)
            for number, posting in list(pending.items()):
                posting.row = self.readers[rank].row(number)
                if posting.row[Column.ENDED]:
                    del pending[number]

    def waits(self) -> dict[int, Wait]:
        """The ranks that wait in an operation that is not matched yet (as of the last look)."""
        found = {}
        for rank, pending in enumerate(self._pending):
            for posting in pending.values() if rank not in self.dead else ():
                row = posting.row
                if posting.kind <= Kind.COLLECTIVE and row[Column.WAIT_FROM] and not row[Column.WAIT_TO]:
                    needs = self._needs(posting)
                    if needs and not row[Column.ASIDE]:
                        found[rank] = Wait(posting, needs)
        return found

    def _needs(self, posting: Posting) -> tuple[int, ...]:
        """As the ledger says, of the living. Empty, too, if the rank is about to raise that another has died."""
        members = self.members(posting)
        dead = self.dead.intersection(members)
        if dead and posting.kind != Kind.COLLECTIVE and posting.peer == ANY_RANK:
            if dead - deaths.acknowledged(self._gate, posting.rank):
                return ()
            members = tuple(rank for rank in members if rank not in dead)
        elif dead and (posting.kind == Kind.COLLECTIVE or posting.peer in dead):
            return ()
        return self.ledger.needs(posting, members)

    def held(self) -> dict[int, int]:
        """The ranks that stand still before a step, and the step."""
        return {
            rank: posting.row[Column.STEP]
            for rank, pending in enumerate(self._pending)
            for posting in pending.values()
            if posting.kind == Kind.HELD
        }

    def stuck(self, gone: set[int]) -> dict[int, Wait]:
        """Ranks that can never go on: they wait for each other, or for ranks that are `gone`.

        A rank that waits in a collective or a message is lost with any one of those it needs; a rank that receives
        from any, only with all of them.
        """
        stuck = self.waits()
        while True:
            lost = gone | stuck.keys()
            free = [r for r, w in stuck.items() if not _is_lost(w, lost)]
            if not free:
                return stuck
            for rank in free:
                del stuck[rank]

    def certainly_stuck(self, gone: set[int]) -> dict[int, Wait]:
        """`stuck`, if the last look found the same: nobody moved in between."""
        stuck = self.stuck(gone)
        seen = tuple((rank, wait.posting.number) for rank, wait in sorted(stuck.items()))
        before, self._seen = self._seen, seen
        return stuck if seen == before else {}

    def members(self, posting: Posting) -> tuple[int, ...]:
        """The global ranks of the posting's group."""
        return tuple(self.readers[posting.rank].json(posting.row[Column.MEMBERS]) or ())

    def unfinished(self) -> list[Posting]:
        """Operations that have not found their other side, and receives and collectives that nobody waited for."""
        open_ones = [p for pending in self._pending for p in pending.values() if p.kind in (Kind.RECV, Kind.COLLECTIVE)]
        return list(dict.fromkeys([*self.ledger.unmatched(), *open_ones]))


def _is_lost(wait: Wait, lost: set[int]) -> bool:
    from_any = wait.posting.kind == Kind.RECV and len(wait.needs) > 1
    return all(r in lost for r in wait.needs) if from_any else any(r in lost for r in wait.needs)


def describe(posting: Posting, reader: Reader) -> str:
    """ "recv of float32 (4, 5) from rank 1"."""
    row = posting.row
    tensors = [f"{dtype} {tuple(shape)}" for dtype, shape in json.loads(reader.blob(row[Column.TENSOR]) or b"[]")]
    shown = ", ".join(tensors[:2]) + (f" and {len(tensors) - 2} more" if len(tensors) > 2 else "")
    of = f" of {shown}" if tensors else ""
    peer = row[Column.PEER]
    who = f"rank {peer}" if peer >= 0 else "any rank"
    if posting.kind == Kind.SEND:
        return f"send{of} to {who}" + _tag(row)
    if posting.kind == Kind.RECV:
        return f"recv{of} from {who}" + _tag(row)
    return f"{reader.text(row[Column.OP])}{of}" + (f", root {peer}" if peer >= 0 else "")


def _tag(row: tuple[int, ...]) -> str:
    return f", tag {row[Column.TAG]}" if row[Column.TAG] else ""
