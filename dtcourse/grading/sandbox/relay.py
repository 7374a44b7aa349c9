"""The relay: hands messages from rank to rank, and so knows what each of them sent, to whom, when, and in which order.

It takes the place of the transport between ranks and of the recorder in them. A rank asks (`grader`), the relay matches
what belongs together, holds it back for a moment that the seed decides, and hands it over. Deadlocks, mismatches,
deaths and time-outs are found and told as they are for a cluster: by the tapes, which the relay writes here.
"""

from __future__ import annotations

import json
import random
import selectors
from collections.abc import Callable
from typing import Any

import torch

from dtcourse.backends.ledger import Ledger, Posting
from dtcourse.backends.rows import Group, Place
from dtcourse.backends.tape import Column, Kind
from dtcourse.cluster.output import Output
from dtcourse.cluster.rank import Answer
from dtcourse.cluster.supervise import Ending, Supervisor
from dtcourse.events import ANY_RANK, NEW_GROUP
from dtcourse.failures import Failure
from dtcourse.grading.sandbox.collectives import OPERATIONS, REDUCTIONS, Side, does_not_fit, results, unlike
from dtcourse.grading.sandbox.crew import JailedCrew, JailedRank
from dtcourse.grading.sandbox.later import Later
from dtcourse.grading.sandbox.operation import Operation
from dtcourse.grading.sandbox.scribe import Claims, TooMuch
from dtcourse.grading.sandbox.validate import below, named_values, one_of, told_failure, told_group, told_place
from dtcourse.grading.sandbox.wire import Frame, Malformed, decode, empty, pack

DELAYS = (0.0, 0.0, 0.0, 0.0005, 0.002)  # seconds that something is held back, one of these by chance
MOST_BYTES = 128 << 20  # that the ranks of a run send, and that collectives bring them
MOST_UNDER_WAY = 4000  # operations of which the other side is not there
MOST_PRINTED = 16 << 20  # bytes that the ranks of a run print
_DEATH = 1.0  # seconds for a process to be gone when its socket is


class Relay(Supervisor):
    """For one run. `given`: how many tensors each rank was given. `chance`: decides delays, and who is heard first."""

    def __init__(self, crew: JailedCrew, timeout: float, given: list[int], chance: random.Random) -> None:
        super().__init__(crew, timeout)  # type: ignore[arg-type]
        self._output = Output(crew.world_size, shown=0)
        self._given, self._chance = given, chance
        self._ledger = Ledger(crew.readers)
        self._groups = {0: Group(0, tuple(range(crew.world_size)))}
        self._group_numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        self._operations: dict[tuple[int, int], Operation] = {}  # by rank, and number as the rank calls it
        self._posted: dict[tuple[int, int], Operation] = {}  # by rank, and row of its tape
        self._later = Later()
        self._bytes = self._printed = self._under_way = 0
        self.flood: str | None = None  # why the run was ended before its time
        self.tampered = False  # something came that a rank of ours never sends

    # -- hearing ------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float) -> None:
        for key, events in self._crew.selector.select(self._later.wait(timeout)):
            member, what = key.data
            if what == "output":
                self._hear_output(member)
            elif what == "end":
                self._dies(member)
            else:
                if events & selectors.EVENT_WRITE:
                    member.flush()
                if events & selectors.EVENT_READ:
                    self._hear(member)
            if self._over:
                return
        while not self._over and (do := self._later.due()):
            try:
                do()
            except TooMuch as problem:
                self._stop_flood(self._crew.members[0], str(problem))

    def _hear_output(self, member: JailedRank) -> None:
        before = self._output.taken
        if not self._output.read(member):  # type: ignore[arg-type]
            self._crew.selector.unregister(member.output)
        self._printed += self._output.taken - before
        if self._printed > MOST_PRINTED:
            self._stop_flood(member, f"printed more than {MOST_PRINTED >> 20} MB")

    def _hear(self, member: JailedRank) -> None:
        try:
            frames = list(member.receive())
            for frame in frames:
                self._take(member.rank, frame)
        except EOFError:
            self._dies(member)
        except TooMuch as problem:
            self._stop_flood(member, str(problem))
        except (ValueError, TypeError, LookupError, RuntimeError, OverflowError) as problem:
            self._give_up(member, str(problem) if isinstance(problem, ValueError) else repr(problem))

    def _take(self, rank: int, frame: Frame) -> None:
        self._bytes += frame.size
        if self._bytes > MOST_BYTES:
            raise TooMuch(f"and the others have sent more than {MOST_BYTES >> 20} MB in one run")
        if rank not in self.running:  # a thread that its function has left behind
            self.tampered = True
        elif not self._over:
            _DO[frame.words["do"]](self, rank, frame)

    def _dies(self, member: JailedRank) -> None:  # type: ignore[override]
        member.gone(_DEATH)
        self.running.pop(member.rank, None)
        self.outcome.dead.append(member.rank)
        self._end(Ending.DIED)

    def _give_up(self, member: JailedRank, said: str) -> None:
        """The run is over: what came from this rank is nothing that a rank sends."""
        self.tampered = True
        if member.rank in self.running:
            failure = Failure("Malformed", f"what came from it is not what a rank sends ({said})", [], said)
            self._take_in(member, Answer(None, failure, pending=1))  # type: ignore[arg-type]
        else:  # it had returned
            self._end(Ending.TIMEOUT)
        self._over = True

    def _stop_flood(self, member: JailedRank, what: str) -> None:
        """The run is over: this rank does more of something than anybody needs, and would go on until time is up."""
        self.flood = f"rank {member.rank} {what}: is there an endless loop?\nLet it do less."
        self._end(Ending.TIMEOUT)

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self, rank: int, frame: Frame) -> None:
        group, claims, (tensor,) = self._group(rank, frame), *self._claims(rank, frame)
        peer = group.ranks[below(frame.words["peer"], len(group.ranks))]
        tag = below(frame.words["tag"], 1 << 31)
        posting = self._scribe(rank).post(Kind.SEND, "send", group, peer, [tensor], claims, [tensor], tag)
        self._begin(Operation(posting, frame.words["operation"], [tensor], group=group))

    def _recv(self, rank: int, frame: Frame) -> None:
        group, claims, _ = self._group(rank, frame), *self._claims(rank, frame)
        (expected,) = empty(frame.words["outputs"])
        anybody = frame.words["peer"] == -1
        peer = ANY_RANK if anybody else group.ranks[below(frame.words["peer"], len(group.ranks))]
        tag = below(frame.words["tag"], 1 << 31)
        posting = self._scribe(rank).post(Kind.RECV, "recv", group, peer, [expected], claims, tag=tag)
        self._begin(Operation(posting, frame.words["operation"], expected=[expected], group=group))

    def _begin(self, operation: Operation) -> None:
        """Take it in, and see whether the other side is there."""
        key = operation.rank, operation.number
        if type(operation.number) is not int or key in self._operations:
            raise Malformed("two operations of one number")
        self._operations[key] = self._posted[operation.rank, operation.posting.number] = operation
        self._under_way += 1
        if self._under_way > MOST_UNDER_WAY:
            raise TooMuch(f"and the others have begun {MOST_UNDER_WAY:,} operations that wait for their other side")
        self._ledger.add(operation.posting)
        if self._ledger.disagreements:
            self._disagree(*self._ledger.disagreements[0])
        elif operation.side is not None:
            self._meet(operation)
        elif operation.posting.peer == ANY_RANK:
            self._soon(lambda: self._listen(operation))
        elif other := operation.posting.partner:
            self._match(operation, self._posted[other.rank, other.number])
        elif operation.posting.kind == Kind.SEND and (receive := self._ledger.hears(operation.posting)):
            self._soon(lambda: self._listen(self._posted[receive.rank, receive.number]))

    def _listen(self, operation: Operation) -> None:
        """A receive from any rank hears one of those that have sent."""
        receive = operation.posting
        if receive.peer != ANY_RANK:
            return
        there = [
            p
            for p in self._ledger.unmatched()
            if (p.kind, p.peer, p.group, p.tag) == (Kind.SEND, receive.rank, receive.group, receive.tag)
        ]
        if not there:
            return
        sender = self._chance.choice(sorted({p.rank for p in there}))
        self._scribe(receive.rank).hears(receive, sender)
        self._ledger.heard(receive, sender)
        send = receive.partner
        operation.words["source"] = operation.group.ranks.index(sender)
        other, sizes = self._posted[send.rank, send.number], (receive.row[Column.BYTES], send.row[Column.BYTES])
        if sizes[0] == sizes[1] and not send.agrees(receive):
            self._disagree(send, receive)
            return
        if sizes[0] != sizes[1]:  # it may be somebody else's: that is told to both, as in a check
            operation.error = does_not_fit("receive", *sizes, receive.row[Column.POSTED] > send.row[Column.POSTED])
            other.error = does_not_fit("send", *reversed(sizes), send.row[Column.POSTED] > receive.row[Column.POSTED])
        self._match(operation, other)

    def _match(self, one: Operation, other: Operation) -> None:
        send, receive = (one, other) if one.posting.kind == Kind.SEND else (other, one)
        receive.values = send.sent
        self._soon(lambda: (self._complete(send), self._complete(receive)))

    # -- collectives --------------------------------------------------------------------------------------------

    def _collective(self, rank: int, frame: Frame) -> None:
        words, group, claims, inputs = frame.words, self._group(rank, frame), *self._claims(rank, frame)
        outputs, size = empty(words["outputs"]), len(group.ranks)
        self._bytes += sum(output.numel() * output.element_size() for output in outputs)
        root = words.get("root")
        side = Side(
            one_of(words["op"], OPERATIONS), inputs, outputs, None if root is None else below(root, size),
            one_of(words.get("reduction", "SUM"), REDUCTIONS), bool(words.get("whole")),
            [below(rows, 1 << 31) for rows in words.get("sizes", [])],
        )  # fmt: skip
        peer = -1 if root is None else group.ranks[root]
        described, agree_on = side.described, side.agree_on()
        posting = self._scribe(rank).post(
            Kind.COLLECTIVE, side.op, group, peer, described, claims, inputs, agree_on=agree_on
        )
        follows = words["async"] is True
        self._begin(Operation(posting, words["operation"], inputs, outputs, side, group, follows))

    def _meet(self, operation: Operation) -> None:
        """If all ranks are there, each gets its part."""
        there = operation.posting.sides
        if len(there) < len(operation.group.ranks):
            return
        operations = [self._posted[rank, there[rank].number] for rank in operation.group.ranks]
        try:
            given = results([one.side for one in operations])
        except (LookupError, RuntimeError, ValueError, TypeError) as problem:
            given = [ValueError(f"{operation.side.op}: the tensors do not fit together ({problem})")] * len(operations)
        for one, values in zip(operations, given, strict=True):
            if isinstance(values, Exception):
                one.error = "ValueError", str(values)
            elif wrong := unlike(values, one.expected, one.side.whole):
                one.error = "ValueError", f"{one.side.op}: rank {one.rank} {wrong}"
            else:
                one.values = values
            self._soon(lambda one=one: self._complete(one))

    def _new_group(self, rank: int, frame: Frame) -> None:
        name, ranks, joining = told_group(frame.words, self._crew.world_size)
        claims, _ = self._claims(rank, frame)
        scribe, op = self._scribe(rank), f"{NEW_GROUP}({ranks})"
        posting = scribe.post(
            Kind.COLLECTIVE, op, joining, -1, [], claims._replace(control=True), agree_on=(name, *ranks)
        )
        scribe.tape.fill(posting.number, Column.MEMBERS, scribe.tape.text(json.dumps(ranks)))
        number = self._group_numbers.setdefault((name, tuple(ranks)), len(self._group_numbers) + 1)
        self._groups[number] = Group(number, tuple(ranks))
        operation = Operation(posting, -1 - posting.number, group=self._groups[number], words={"group": number})
        operation.question = frame.words["question"]
        self._under_way += 1
        self._operations[rank, operation.number] = self._posted[rank, posting.number] = operation
        self._ledger.add(posting)
        if self._ledger.disagreements:
            self._disagree(*self._ledger.disagreements[0])
            return
        if rank not in ranks:
            self._complete(operation)
        else:
            operation.wait_from = scribe.waits(posting, aside=False)
        if all(member in posting.sides for member in ranks):
            for member in ranks:
                one = self._posted[member, posting.sides[member].number]
                self._soon(lambda one=one: self._complete(one))

    # -- completing ---------------------------------------------------------------------------------------------

    def _complete(self, operation: Operation) -> None:
        if operation.done:
            return
        operation.done = True
        self._under_way -= 1
        if operation.question is not None:
            self._hand_over(operation)
        elif operation.follows:
            self._note_end(operation)

    def _wait(self, rank: int, frame: Frame) -> None:
        operation = self._operations[rank, frame.words["operation"]]
        if operation.question is not None:
            raise Malformed("waited for twice")
        operation.question = frame.words["question"]
        seconds = float(frame.words["seconds"])
        if not 0 <= seconds < 1e6:
            raise Malformed("no time to wait")
        operation.wait_from = self._scribe(rank).waits(operation.posting, bool(frame.words["aside"] or seconds))
        if operation.done:
            self._hand_over(operation)
        elif seconds:
            self._later.at(seconds, lambda: self._run_out(operation, seconds))

    def _poll(self, rank: int, frame: Frame) -> None:
        operation = self._operations[rank, frame.words["operation"]]
        operation.question = frame.words["question"]
        if operation.done:
            self._hand_over(operation)
        else:
            self._answer(rank, {"answers": operation.question, "done": False})
            operation.question = None

    def _hand_over(self, operation: Operation) -> None:
        words = {**operation.words, "answers": operation.question, "done": True}
        if operation.error:
            self._answer(operation.rank, words | {"error": operation.error})
            return
        if operation.open:
            self._note_end(operation)
        elif operation.wait_from:
            self._scribe(operation.rank).waited(operation.posting, operation.wait_from)
        self._answer(operation.rank, words, operation.values)
        operation.values = operation.sent = []

    def _note_end(self, operation: Operation) -> None:
        operation.open = False
        self._scribe(operation.rank).ended(operation.posting, operation.wait_from, operation.values)

    def _run_out(self, operation: Operation, seconds: float) -> None:
        if not operation.done:
            self._answer(
                operation.rank,
                {"answers": operation.question, "error": ("TimeoutError", f"nothing came within {seconds:g} s")},
            )
            operation.question = None

    def _answer(self, rank: int, words: dict[str, Any], tensors: list[torch.Tensor] = ()) -> None:  # type: ignore[assignment]
        member = self._crew.members[rank]
        if member.untaken > MOST_BYTES:
            raise TooMuch("does not take what it is sent")
        member.send(pack(words, tensors))

    def _disagree(self, first: Posting, second: Posting) -> None:
        late = self.running.get(second.rank) or self.running.get(first.rank)
        if second.kind == Kind.COLLECTIVE:
            first, second = second, first  # as the ranks of a check tell it: whoever comes late sees it
        said = f"rank {first.rank} and rank {second.rank} disagree"
        pair = (first.rank, first.number), (second.rank, second.number)
        failure = Failure("RanksDisagree", said, [], said, disagree=pair)
        if late is not None:  # else both have gone on without it
            self._take_in(late, Answer(None, failure, pending=1))

    # -- the rest of what a rank says ----------------------------------------------------------------------------

    def _region(self, rank: int, frame: Frame) -> None:
        name, labels = named_values(frame.words)
        self._scribe(rank).begin(name, labels, self._place(rank, frame))

    def _end_region(self, rank: int, frame: Frame) -> None:
        self._scribe(rank).end()

    def _mark(self, rank: int, frame: Frame) -> None:
        name, values = named_values(frame.words)
        self._scribe(rank).mark(name, values, self._place(rank, frame))

    def _return(self, rank: int, frame: Frame) -> None:
        if frame.words["arguments"] != self._given[rank]:
            raise Malformed("it was given other arguments")
        arguments = frame.tensors[len(frame.tensors) - self._given[rank] :]
        value = decode(frame.words["value"], frame.tensors[: len(frame.tensors) - self._given[rank]])
        self._scribe(rank).returned(arguments)
        self._take_in(self.running[rank], Answer(value, None, pending=0))  # type: ignore[arg-type]

    def _failure(self, rank: int, frame: Frame) -> None:
        failure = told_failure(frame.words, self._crew.members[rank].outside)
        self._take_in(self.running[rank], Answer(None, failure, pending=1))

    # -- small things -------------------------------------------------------------------------------------------

    def _scribe(self, rank: int):  # noqa: ANN202
        return self._crew.members[rank].scribe

    def _group(self, rank: int, frame: Frame) -> Group:
        group = self._groups[frame.words["group"]]
        if rank not in group.ranks:
            raise Malformed("a group of others")
        return group

    def _claims(self, rank: int, frame: Frame) -> tuple[Claims, list[torch.Tensor]]:
        """What the rank claims, and the tensors that are no part of that."""
        count = len(frame.tensors) - below(frame.words["arguments"], len(frame.tensors) + 1)
        control, main = frame.words["control"] is True, frame.words["main"] is True
        claims = Claims(self._place(rank, frame), control, frame.tensors[count:], main)
        return claims, frame.tensors[:count]

    def _place(self, rank: int, frame: Frame) -> Place | None:
        return told_place(frame.words["line"], self._crew.members[rank].outside)

    def _soon(self, do: Callable[[], None]) -> None:
        self._later.at(self._chance.choice(DELAYS), do)

    def left_over(self) -> bool:
        """Whether something was begun that never came to its end."""
        self.watch.look()
        return bool(self.watch.unfinished())


_DO = {
    "send": Relay._send, "recv": Relay._recv, "collective": Relay._collective, "new_group": Relay._new_group,
    "wait": Relay._wait, "poll": Relay._poll, "region": Relay._region, "end": Relay._end_region, "mark": Relay._mark,
    "return": Relay._return, "failure": Relay._failure,
}  # fmt: skip
