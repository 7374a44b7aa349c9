"""The ledger: which operation of one rank belongs to which of another, and whether they agree.

It reads tapes, row by row. In a rank it answers "may I enter this operation?" before the library is asked, since
the library would abort, hang or compute nonsense. In the reader's process it answers "who waits for whom?".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtcourse.backends.tape import Column, Kind, Reader
from dtcourse.events import ANY_RANK


class Posting:
    """One rank's side of an operation: a row of its tape, and the other sides as far as they are posted.

    `partner`: the other end of a message. `sides`: of a collective, by rank.
    """

    __slots__ = ("kind", "number", "partner", "peer", "rank", "row", "sides")

    def __init__(self, rank: int, number: int, row: Sequence[int]) -> None:
        self.rank, self.number, self.row = rank, number, row
        self.kind, self.peer = row[Column.KIND], row[Column.PEER]
        self.partner: Posting | None = None
        self.sides: dict[int, Posting] = {}

    @property
    def group(self) -> int:
        return self.row[Column.GROUP]

    @property
    def tag(self) -> int:
        return self.row[Column.TAG]

    @property
    def step(self) -> int:
        return self.row[Column.STEP]

    @property
    def sequence(self) -> int:
        return self.row[Column.SEQUENCE]

    def agrees(self, other: Posting) -> bool:
        mine, its = self.row, other.row
        return mine[Column.SIGNATURE] == its[Column.SIGNATURE] and (
            self.kind == Kind.COLLECTIVE or mine[Column.ELEMENTS] == its[Column.ELEMENTS]
        )


@dataclass(slots=True)
class _Channel:
    """Messages of one group, sender, receiver and tag, in order: the n-th send meets the n-th receive."""

    sends: deque[Posting] = field(default_factory=deque)
    receives: deque[Posting] = field(default_factory=deque)


class Ledger:
    """Reads the tapes of all ranks. `me`: keep only what concerns this rank (None: keep everything)."""

    def __init__(self, tapes: list[Reader], me: int | None = None) -> None:
        self._tapes = tapes
        self._me = me
        self._groups: set[int] = set()
        self.rewind()

    def rewind(self) -> None:
        """Begin again, for a new run."""
        self._next = [0] * len(self._tapes)
        self._collectives: dict[tuple[int, int], dict[int, Posting]] = {}
        self._channels: dict[tuple[int, int, int, int], _Channel] = {}
        self._from_any: dict[tuple[int, int, int], list[Posting]] = {}  # (group, receiver, tag): pending receives
        self.disagreements: list[tuple[Posting, Posting]] = []

    def join(self, group: int) -> None:
        """This rank is a member of `group`."""
        self._groups.add(group)

    # -- taking in ----------------------------------------------------------------------------------------------

    def read(self, rank: int) -> list[Posting]:
        """Take in what is new on the tape of `rank`; all of it is returned, also what is no operation."""
        found = []
        for row in self._tapes[rank].rows(self._next[rank]):
            posting = Posting(rank, self._next[rank], row)
            if posting.kind <= Kind.COLLECTIVE:
                self.add(posting)
            found.append(posting)
            self._next[rank] += 1
        return found

    def add(self, posting: Posting) -> None:
        """Take in one operation."""
        if posting.kind == Kind.COLLECTIVE:
            if self._me is None or posting.group in self._groups:
                self._add_collective(posting)
        elif posting.peer == ANY_RANK:
            self._from_any.setdefault((posting.group, posting.rank, posting.tag), []).append(posting)
        elif self._me in (None, posting.rank, posting.peer):
            self._add_message(posting)

    def _add_collective(self, posting: Posting) -> None:
        key = posting.group, posting.sequence
        here = self._collectives.setdefault(key, {})
        self.disagreements += [(other, posting) for other in here.values() if not other.agrees(posting)]
        here[posting.rank] = posting
        posting.sides = here
        if len(here) == posting.row[Column.SIZE]:
            del self._collectives[key]

    def _add_message(self, posting: Posting) -> None:
        sending = posting.kind == Kind.SEND
        sender, receiver = (posting.rank, posting.peer) if sending else (posting.peer, posting.rank)
        channel = self._channels.setdefault((posting.group, sender, receiver, posting.tag), _Channel())
        (channel.sends if sending else channel.receives).append(posting)
        if channel.sends and channel.receives:
            send, receive = channel.sends.popleft(), channel.receives.popleft()
            send.partner, receive.partner = receive, send
            # with receives from any rank about, the n-th send need not meet the n-th receive
            if not send.agrees(receive) and (send.group, receiver, send.tag) not in self._from_any:
                self.disagreements.append((send, receive))

    def heard(self, receive: Posting, sender: int) -> None:
        """A receive from any rank turned out to hear `sender`."""
        self._from_any[receive.group, receive.rank, receive.tag].remove(receive)
        receive.peer = sender
        if self._me in (None, receive.rank, sender):
            self._add_message(receive)

    def refresh(self, rank: int) -> None:
        """Look again at the receives from any rank that were pending on `rank`."""
        for (_, receiver, _), pending in self._from_any.items():
            for receive in list(pending) if receiver == rank else ():
                sender = self._tapes[rank].row(receive.number)[Column.PEER]
                if sender != ANY_RANK:
                    self.heard(receive, sender)

    # -- questions ----------------------------------------------------------------------------------------------

    def needs(self, posting: Posting, members: tuple[int, ...]) -> tuple[int, ...]:
        """The ranks without which `posting` cannot be matched (for a receive from any: those it may hear).

        Empty if it is matched: then the bytes are on their way.
        """
        if posting.kind == Kind.COLLECTIVE:
            here = self._collectives.get((posting.group, posting.sequence))
            return tuple(r for r in members if r not in here) if here else ()
        if posting.peer == ANY_RANK:
            reachable = any(self._sends_left(posting, rank) for rank in members)
            return () if reachable else tuple(r for r in members if r != posting.rank)
        heard_by_any = posting.kind == Kind.SEND and self._from_any.get((posting.group, posting.peer, posting.tag))
        return () if posting.partner or heard_by_any else (posting.peer,)

    def hears(self, send: Posting) -> Posting | None:
        """The oldest receive from any rank that `send` may meet and that is not known to have heard another."""
        return next(iter(self._from_any.get((send.group, send.peer, send.tag), ())), None)

    def _sends_left(self, receive: Posting, sender: int) -> bool:
        channel = self._channels.get((receive.group, sender, receive.rank, receive.tag))
        return bool(channel and channel.sends)

    def crossing(self, posting: Posting) -> Posting | None:
        """What the other end of a message began before it looks at this one: a send of its own against a send, a
        receive of its own against a receive, outside a batch."""
        sending = posting.kind == Kind.SEND
        ends = (posting.peer, posting.rank) if sending else (posting.rank, posting.peer)
        channel = self._channels.get((posting.group, *ends, posting.tag), _Channel())
        waiting = channel.sends if sending else channel.receives
        return next((p for p in waiting if not p.row[Column.BATCHED]), None)

    def unmatched(self) -> list[Posting]:
        """Messages of which only one side is there."""
        return [p for channel in self._channels.values() for p in (*channel.sends, *channel.receives)]
