"""Messages. Each rank has a mailbox, in which sends to it and its own receives wait for each other.

Whoever comes second finds the first, makes the copy (a receiver reads from the sender's memory, a sender writes
into the receiver's), and tells the first. So a message is on its way as soon as both sides are there, whatever
the first to come is doing meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dtcourse.backends.deaths import Dead, died
from dtcourse.backends.fence import fence
from dtcourse.backends.shared_memory.block import BOARD, PART, SLOT, SLOTS, Block
from dtcourse.backends.shared_memory.windows import Windows

ANY = -1
_FREE, _WAITS, _MATCHED, _DONE, _REFUSED = range(5)
_SENDS, _RECEIVES = 1, 2
_STATE, _KIND, _OTHER, _TAG, _ADDRESS, _BYTES, _ORDER = range(7)  # words of a slot; _OTHER: the sender, or ANY
_TOP, _NEXT = 0, 1  # words at the start of a mailbox: slots in use lie below _TOP; order of coming
_FIRST_SLOT = 8
_NEEDS = {
    (False, False): "this send needs it",
    (False, True): "this receive needs it",
    (True, True): "this receive, which is from any rank, tells it once",
}


@dataclass(eq=False)
class Message:
    """One side of a message. `sender` is known once it is complete."""

    owner: int  # of the mailbox
    sender: int
    tensor: torch.Tensor  # contiguous
    receives: bool
    slot: int | None = None  # where this side waits; None: complete from the start
    address: int = 0
    lost: int | None = None  # the global rank whose death this message met


class Mailbox:
    """The mailboxes of a group, used by one of its ranks."""

    def __init__(self, block: Block, windows: Windows, dead: Dead, timeout: float) -> None:
        self._block, self._windows, self._dead, self._timeout = block, windows, dead, timeout
        self.rank = block.rank
        self._sweep_at = self._often = max(8, SLOTS // (4 * block.size))  # so that all of a group fit in one mailbox
        self._waiting: set[Message] = set()  # keeps tensors alive whose handle the reader threw away

    def send(self, tensor: torch.Tensor, receiver: int, tag: int) -> Message:
        self._sweep()
        message = Message(receiver, self.rank, tensor, receives=False)
        if self._dead and self._lost(message, receiver):
            return message
        found = self._meet(message, _SENDS, self.rank, tag)
        if found is not None:
            self._hand_over(message, found, receiver)
        return message

    def receive(self, tensor: torch.Tensor, sender: int, tag: int) -> Message:
        """`sender` may be ANY."""
        self._sweep()
        message = Message(self.rank, sender, tensor, receives=True)
        if self._dead and self._lost(message, sender):
            return message
        found = self._meet(message, _RECEIVES, sender, tag)
        if found is not None:
            message.sender = self._word(self.rank, found, _OTHER)
            self._hand_over(message, found, message.sender)
            if sender == ANY and message.lost is not None:
                self._dead.hear(message.lost)
        return message

    def wait(self, message: Message, timeout: float | None = None) -> None:
        """Until it is complete. Raises ValueError if the other side had another size, RankDied if it is dead, and
        TimeoutError."""
        if message.slot is not None:
            self._block.wait(lambda: self._over(message), self._timeout if timeout is None else timeout)
        if message.slot is not None:
            self._take_out(message)
        if message.lost is not None:
            raise died(message.lost, _NEEDS[message.sender == ANY, message.receives])

    def complete(self, message: Message) -> bool:
        """Whether `wait` returns, or raises, at once."""
        return message.slot is None or self._over(message)

    # -- meeting ------------------------------------------------------------------------------------------------

    def _meet(self, message: Message, kind: int, sender: int, tag: int) -> int | None:
        """The slot of the other side, claimed; or None, and this side waits in a slot of its own."""
        with self._block.mailbox(message.owner):
            found = self._oldest(message.owner, _SENDS + _RECEIVES - kind, sender, tag)
            if found is None:
                self._put_in(message, kind, sender, tag)
            else:
                if not message.receives:
                    self._write(message.owner, found, _OTHER, self.rank)
                self._write(message.owner, found, _STATE, _MATCHED)
            return found

    def _oldest(self, owner: int, kind: int, sender: int, tag: int) -> int | None:
        words, start = self._block.words, owner * PART + BOARD + _FIRST_SLOT
        best, order = None, 0
        dead = self._dead.members()
        for slot in range(words[owner * PART + BOARD + _TOP]):
            at = start + slot * SLOT
            if words[at] == _WAITS and words[at + _KIND] == kind and words[at + _TAG] == tag:
                other = words[at + _OTHER]
                fits = other not in dead and (ANY in (other, sender) or other == sender)
                if fits and (best is None or words[at + _ORDER] < order):
                    best, order = slot, words[at + _ORDER]
        return best

    def _put_in(self, message: Message, kind: int, sender: int, tag: int) -> None:
        words, top = self._block.words, message.owner * PART + BOARD
        while words[top + _TOP] and self._word(message.owner, words[top + _TOP] - 1, _STATE) == _FREE:
            words[top + _TOP] -= 1  # or each message would look through what a burst has left
        slots = range(words[top + _TOP])
        slot = next((s for s in slots if self._word(message.owner, s, _STATE) == _FREE), len(slots))
        if slot == SLOTS:
            raise RuntimeError(f"{SLOTS} messages wait for rank {message.owner}: nobody receives them")
        tensor = message.tensor
        message.slot, message.address = slot, self._windows.open(tensor, filled=kind == _SENDS) if tensor.numel() else 0
        size = tensor.numel() * tensor.element_size()
        entry = (kind, sender, tag, message.address, size, words[top + _NEXT])
        for word, value in enumerate(entry, _KIND):
            self._write(message.owner, slot, word, value)
        self._write(message.owner, slot, _STATE, _WAITS)
        words[top + _TOP] = max(words[top + _TOP], slot + 1)
        words[top + _NEXT] += 1
        self._waiting.add(message)

    def _hand_over(self, message: Message, found: int, other: int) -> None:
        """Copy between this side and the one that waits in slot `found`, and tell it."""
        mine = message.tensor.numel() * message.tensor.element_size()
        theirs = self._word(message.owner, found, _BYTES)
        fits = mine == theirs
        if fits and mine:
            address = self._word(message.owner, found, _ADDRESS)
            try:
                (self._windows.read if message.receives else self._windows.write)(other, address, message.tensor)
            except ConnectionError as problem:
                message.lost = self._dead.confirm(other, problem)
                self._write(message.owner, found, _STATE, _FREE)
                return
        self._write(message.owner, found, _STATE, _DONE if fits else _REFUSED)
        self._block.ring(other)
        if not fits:
            raise ValueError(_sizes(message, mine, theirs))

    # -- completing ---------------------------------------------------------------------------------------------

    def _settled(self, message: Message) -> bool:
        settled = self._word(message.owner, message.slot, _STATE) in (_DONE, _REFUSED)
        fence()
        return settled

    def _take_out(self, message: Message) -> None:
        state, size = self._word(message.owner, message.slot, _STATE), self._word(message.owner, message.slot, _BYTES)
        if message.receives:
            message.sender = self._word(message.owner, message.slot, _OTHER)
        self._give_back(message, written=message.receives)
        if state == _REFUSED:
            raise ValueError(_sizes(message, size, None))

    def _give_back(self, message: Message, written: bool) -> None:
        """Free its slot."""
        if message.tensor.numel():
            self._windows.close(message.address, message.tensor, written=written)
        self._write(message.owner, message.slot, _STATE, _FREE)
        self._waiting.discard(message)
        message.slot = None

    # -- deaths -------------------------------------------------------------------------------------------------

    def _over(self, message: Message) -> bool:
        """Whether it is settled or lost; if it is lost, nothing of it waits any more."""
        anybody_dead = bool(self._dead)  # asked first: what a rank did before it died counts
        return self._settled(message) or (anybody_dead and self._withdraw(message))

    def _withdraw(self, message: Message) -> bool:
        """Take back a message that is lost. False if it is not: it goes on waiting, or somebody alive is at it."""
        with self._block.mailbox(message.owner):
            state = self._word(message.owner, message.slot, _STATE)
            other = message.sender if message.receives else message.owner
            if other == ANY and state == _MATCHED:  # the one that died may have begun to fill it
                other = self._word(message.owner, message.slot, _OTHER)
            if state not in (_WAITS, _MATCHED) or not self._lost(message, other):
                return False
            self._give_back(message, written=False)
            return True

    def _lost(self, message: Message, other: int) -> bool:
        """Whether the death of `other` ends it; or for ANY, one that no receive from any has raised yet."""
        message.lost = self._dead.unheard(self.rank) if other == ANY else self._dead.members().get(other)
        if message.sender == ANY and message.lost is not None:
            self._dead.hear(message.lost)
        elif message.sender == ANY:
            self._dead.acknowledge()
        return message.lost is not None

    def _sweep(self) -> None:
        """Sends that are complete and whose handle nobody waits for give their slots back.

        One that was refused keeps its slot: its error is for whoever waits for it.
        """
        if len(self._waiting) > self._sweep_at:
            for message in [m for m in self._waiting if not m.receives and self._settled(m)]:
                if self._word(message.owner, message.slot, _STATE) == _DONE:
                    self._take_out(message)
            self._sweep_at = max(self._often, 2 * len(self._waiting))

    def _word(self, owner: int, slot: int, word: int) -> int:
        return self._block.words[owner * PART + BOARD + _FIRST_SLOT + slot * SLOT + word]

    def _write(self, owner: int, slot: int, word: int, value: int) -> None:
        if word == _STATE:
            fence()
        self._block.words[owner * PART + BOARD + _FIRST_SLOT + slot * SLOT + word] = value


def _sizes(message: Message, mine: int, theirs: int | None) -> str:
    what = "receive" if message.receives else "send"
    other = f"the other side's {theirs}" if theirs is not None else "what the other side has"
    return f"a {what} of {mine} bytes does not fit {other}"
