"""What a run of sharded data parallelism has to show: which rank asked for what in which order, and what it kept.

`told` and `Living` watch in the ranks, and write into the record; the rest are pure functions from a `Run` to findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dtcourse.events import COLLECTIVE, NEW_GROUP, REGION, Event, region
from dtcourse.grading.findings import Finding, number_of
from dtcourse.grading.partition import span
from dtcourse.run import Run

REDUCE_SCATTER, ALL_GATHER, UPDATE, FORWARD, BACKWARD = "reduce_scatter", "all_gather", "update", "forward", "backward"
CALLS = (REDUCE_SCATTER, ALL_GATHER, UPDATE, FORWARD, BACKWARD)
STILL = "still there"  # a label: what is in memory, and should not be

_ADVICE = {
    (ALL_GATHER, UPDATE): "First each rank updates its own part; what all gather then are the new parameters",
    (REDUCE_SCATTER, ALL_GATHER): "All the others need what this rank has updated",
    (UPDATE, REDUCE_SCATTER): "Before the reduce-scatter there is only this rank's own gradient",
    (BACKWARD, REDUCE_SCATTER): "Average each gradient before the next one is made",
    (FORWARD, ALL_GATHER): "Each layer is gathered just before it computes",
    (ALL_GATHER, FORWARD): "A layer that is gathered computes before the next one is gathered",
    (BACKWARD, ALL_GATHER): "The backward pass gathers the layers anew: after the forward pass they are gone",
    (ALL_GATHER, REDUCE_SCATTER): "Average the gradient before the next layer is gathered",
    (REDUCE_SCATTER, REDUCE_SCATTER): "It takes the whole tensor, and leaves the sum in the own part of it",
    (ALL_GATHER, ALL_GATHER): "It takes a whole tensor, and fills in all that is not the own part of it",
    (UPDATE, UPDATE): "The optimizer keeps a state for as many elements as it is given: give it the own part alone",
}


def own_span(length: int, place: int, world: int) -> slice:
    """The elements that the rank at this place of its group owns: chunk place+1 of `tensor_split`."""
    chunk, (least, more) = (place + 1) % world, divmod(length, world)
    start = chunk * least + min(chunk, more)
    return slice(start, start + least + (chunk < more))


def told(name: str, labels: Callable[..., dict[str, Any]], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which writes into the record that it was called, with `labels(*arguments)`; these may refuse them.

    The line in the record, and that of a refusal, is the caller's: this frame is not a reader's, as a test's would be.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        try:
            shown = labels(*arguments, **named)
        except Exception as refusal:
            raise refusal.with_traceback(None)  # noqa: B904 - it is the same
        with region(name, **shown):
            return function(*arguments, **named)

    return call


def layer(name: str, i: Any, layers: int) -> dict[str, int]:
    """The label of a call for layer i. Raises IndexError or TypeError, in words."""
    if not isinstance(i, int):
        raise TypeError(f"{name} takes the number of a layer first, and not a {type(i).__name__}")
    if not 0 <= i < layers:
        raise IndexError(f"{of_layer(name, i)}: the layers are {span(0, layers)}")
    return {"layer": i}


def call_of(name: str, elements: int) -> str:
    """A call in words: "all_gather of 9 elements"."""
    return f"{name} of {number_of(elements, 'element')}"


def of_layer(name: str, i: int) -> str:
    """A call in words: "forward(2)"."""
    return f"{name}({i})"


def calls(run: Run, rank: int, expected: Sequence[str]) -> Iterator[Finding]:
    """This rank called just these, in this order, and no collective of the library."""
    for e in run.events:
        if e.rank == rank and e.kind == COLLECTIVE and e.op != "barrier" and not e.op.startswith(NEW_GROUP):
            said = f"rank {rank} called the library's {e.op}"
            why = "all it needs is the reduce_scatter and all_gather it is given"
            yield Finding(f"{said}: {why}", 0, rank, e.line)
    seen = [e for e in run.events if e.rank == rank and e.kind == REGION and e.op in CALLS]
    before = "first"
    for e, wanted in zip(seen, expected, strict=False):
        if (call := _call(e)) != wanted:
            advice = _ADVICE.get((e.op, _name(wanted)), "")
            said = f"rank {rank} called {call} {before}; expected {wanted}{f'. {advice}' if advice else ''}"
            yield Finding(said, 0, rank, e.line)
            return
        if still := e.labels.get(STILL):
            yield Finding(f"when rank {rank} called {call}, {still}", 0, rank, e.line)
            return
        before = f"after {call}"
    if len(seen) > len(expected):
        yield Finding(f"rank {rank} called {_call(seen[len(expected)])} {before}; expected nothing more", 0, rank)
    elif len(seen) < len(expected) and (run.failure is None or rank in run.returned):
        said = f"rank {rank} called nothing{f' {before}' if seen else ''}; expected {expected[len(seen)]}"
        everybody = "" if seen else ". Every rank takes part, also one without samples"
        yield Finding(f"{said}{everybody}", 0, rank)


def _call(e: Event) -> str:
    return of_layer(e.op, e.labels["layer"]) if "layer" in e.labels else call_of(e.op, e.labels["elements"])


def _name(call: str) -> str:
    return call.split(" ")[0].split("(")[0]


def still_there(there: Sequence[tuple[str, int]], layers: Mapping[int, int], but: Sequence[str | int] = ()) -> str:
    """What is in memory of whole layers, in words, if anything is. `layers`: bytes -> number.

    `but`: names, and numbers of layers, that may be there. What is not a layer's size is nobody's business.
    """
    for name, size in there:
        layer = layers.get(size)
        if layer is not None and name not in but and (name or layer not in but):
            return (
                f"{name or f'a tensor as large as all of layer {layer}'} was still in memory: some name or list has it"
            )
    return ""


def elements(own: slice) -> str:
    """ "elements 3 to 5", "element 3", "no element"."""
    size = own.stop - own.start
    return f"element{'s' if size > 1 else ''} {span(own.start, size)}" if size else "no element"
