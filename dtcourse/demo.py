"""`dtcourse demo ring`: four ranks do a ring all-reduce, and the record of the run says what each of them did.

Nothing here is computed from what a ring should do, except what the record is compared with: the sum and the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from dtcourse import Cluster, per_rank
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.provenance import provenance
from dtcourse.run import Run
from dtcourse.views import words
from dtcourse.views.film import Frame, film


def ring(ranks: int, page: Path | None) -> int:
    """Run it, print it, compare it, write its page; 0 if the sum and the bytes are right."""
    tensors = [provenance(ranks, rank, 3 * ranks - 2) for rank in range(ranks)]  # uneven: some chunks are longer
    print(f"Ring all-reduce of {len(tensors[0])} elements in {ranks} chunks, on {ranks} ranks of this machine")
    with Cluster(ranks) as cluster:
        run = cluster.run(reduced, per_rank(tensors), watch=True)
    print("\n".join(told(run)))
    right_sum = all(torch.equal(result, sum(tensors)) for result in run.results)
    print(
        f"\nThe sum: {'every rank holds what a plain sum gives' if right_sum else 'WRONG, not what a plain sum gives'}."
    )
    expected = ring_bytes(tensors[0], ranks)
    seen = [run.bytes_sent(rank) for rank in range(ranks)]
    print("The bytes a rank sends, S those of the tensor and c[k] those of chunk k:")
    for rank, (here, should) in enumerate(zip(seen, expected, strict=True)):
        formula = f"2S - c[{(rank + 1) % ranks}] - c[{(rank + 2) % ranks}] = {should}"
        print(f"  rank {rank} sent {here}; {formula}{'' if here == should else '   WRONG'}")
    if page:
        size = run.page(page).stat().st_size
        print(
            f"\nWrote {page} ({words.size(size)}): open it in a browser, and step through the run with the arrow keys."
        )
    return 0 if right_sum and seen == expected else 1


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    """What each rank runs: the sum over all ranks, left in `tensor` as the ring does it, and returned."""
    ring_all_reduce(tensor)
    return tensor


def ring_bytes(tensor: torch.Tensor, ranks: int) -> list[int]:
    """What each rank sends in a ring: the whole tensor twice, less the chunk that it skips in either phase."""
    c = [chunk.nbytes for chunk in tensor.tensor_split(ranks)]
    return [2 * tensor.nbytes - c[(rank + 1) % ranks] - c[(rank + 2) % ranks] for rank in range(ranks)]


def told(run: Run) -> Iterator[str]:
    """Step by step, a line for each rank: what it sent to whom, what it received from whom."""
    frames = [frame for frame in film(run).frames if frame.messages]
    for frame in frames:
        yield f"\n{frame.title} of {len(frames)}"
        yield from (f"  rank {rank} {_did(frame, rank)}" for rank in range(run.world_size))


def _did(frame: Frame, rank: int) -> str:
    sent = [f"sends {m.what} to rank {m.receiver}" for m in frame.messages if m.sender == rank]
    received = [f"receives {m.what} from rank {m.sender}" for m in frame.messages if m.receiver == rank]
    return ", ".join(sent + received) or "does nothing"
