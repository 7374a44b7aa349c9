"""`dtcourse demo ring`: four ranks do a ring all-reduce, and the record of the run says what each of them did.

Nothing here is computed from what a ring should do, except what the record is compared with: the sum and the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from dtcourse import Cluster, per_rank
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.origins import provenance
from dtcourse.run import Run
from dtcourse.views import words
from dtcourse.views.film import Frame, Message, film


def ring(ranks: int, page: Path | None) -> int:
    """Run it, print it, compare it, write its page; 0 if the sum and the bytes are right and the page is written."""
    tensors = [provenance(ranks, rank, 3 * ranks - 2) for rank in range(ranks)]  # uneven: some chunks are longer
    print(f"Ring all-reduce of {len(tensors[0])} numbers, cut into {ranks} chunks, on {ranks} ranks of this machine.")
    print('"chunk 3 of ranks 0, 3" is the sum of what these two ranks had in chunk 3.')
    with Cluster(ranks) as cluster:
        run = cluster.run(reduced, per_rank(tensors), watch=True)
    print("\n".join(told(run)))
    right = all([compare_sum(run, sum(tensors)), compare_bytes(run, ring_bytes(tensors[0], ranks))])
    return 0 if (page is None or wrote(run, page)) and right else 1


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    """What each rank runs: the sum over all ranks, left in `tensor` as the ring does it, and returned."""
    ring_all_reduce(tensor)
    return tensor


def ring_bytes(tensor: torch.Tensor, ranks: int) -> list[int]:
    """What each rank sends in a ring: the whole tensor twice, less the chunk that it skips in either phase."""
    c = [chunk.nbytes for chunk in tensor.tensor_split(ranks)]
    return [2 * tensor.nbytes - c[(rank + 1) % ranks] - c[(rank + 2) % ranks] for rank in range(ranks)]


def compare_sum(run: Run, plain: torch.Tensor) -> bool:
    """Say whether every rank holds the sum of all tensors."""
    right = all(torch.equal(result, plain) for result in run.results)
    print(f"\nThe sum: {'every rank holds what a plain sum gives' if right else 'WRONG, not what a plain sum gives'}.")
    return right


def compare_bytes(run: Run, expected: list[int]) -> bool:
    """Say what each rank sent, beside what a ring sends."""
    ranks, sent = run.world_size, [run.bytes_sent(rank) for rank in range(run.world_size)]
    print("The bytes a rank sends (S is the whole tensor, c[k] is chunk k):")
    for rank, (seen, should) in enumerate(zip(sent, expected, strict=True)):
        formula = f"2S - c[{(rank + 1) % ranks}] - c[{(rank + 2) % ranks}] = {should}"
        print(f"  rank {rank} sent {seen}; {formula}{'' if seen == should else '   WRONG'}")
    return sent == expected


def wrote(run: Run, page: Path) -> bool:
    """Write the page, and say so."""
    try:
        size = run.page(page).stat().st_size
    except OSError as problem:
        print(f"\nNo page: {page} cannot be written ({problem.strerror}).")
        return False
    print(f"\nWrote {page} ({words.size(size)}): open it in a browser, and step through the run with the arrow keys.")
    return True


def told(run: Run) -> Iterator[str]:
    """Step by step, a line for each rank: what it sent to whom, what it received from whom."""
    frames = [frame for frame in film(run).frames if frame.messages]
    for frame in frames:
        yield f"\n{frame.title} of {len(frames)}"
        yield from (f"  rank {rank} {_did(frame, rank)}" for rank in range(run.world_size))


def _did(frame: Frame, rank: int) -> str:
    ranks = len(frame.rows)
    sent = [f"sends {_what(m, ranks)} to rank {m.receiver}" for m in frame.messages if m.sender == rank]
    received = [f"receives {m.what} from rank {m.sender}" for m in frame.messages if m.receiver == rank]
    return ", ".join(sent + received) or "does nothing"


def _what(message: Message, ranks: int) -> str:
    contributors = [rank for rank, count in enumerate(message.counts) if count]
    return f"{message.what} of {words.ranks(contributors, ranks)}"
