"""Expectations of the exercise `pipeline_stage`: in a right record nothing may change. Its table is true."""

import dataclasses
from pathlib import Path

import pytest
import test_pipeline_stage as asked  # what the exercise asks for
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import Run, per_rank
from dtcourse.events import MARK, RECV, SEND, mark
from dtcourse.grading.submission import Submission
from dtcourse.pipeline.schedules import one_f_one_b

SOLUTION = Path(__file__).parents[2] / "solutions" / "pipeline_stage.py"
SIZES, WORLD = [2, 2, 1], 3
PLAN = asked.lists(one_f_one_b, WORLD, len(SIZES))


@pytest.fixture(scope="module")
def right(clusters):
    return Submission(SOLUTION, clusters).run("step", per_rank(PLAN), SIZES, world=WORLD, around=asked.one_step)


def changed(run, events=None, results=None):
    return Run(WORLD, events=run.events if events is None else events, results=results or run.results)


def findings(run):
    found = asked.all_of_it(run, SIZES, PLAN, one_f_one_b, "1F1B", "min(P-s, M)")
    return [finding.message for each in found for finding in each]


def test_every_message_counts(right):
    assert findings(right) == []
    sends = [number for number, e in enumerate(right.events) if e.kind == SEND]
    assert len(sends) == 2 * (WORLD - 1) * len(SIZES)
    for number in sends:
        e = right.events[number]
        for wrong, said in (
            ([dataclasses.replace(e, payload=e.payload + 1)], "that the whole model has nowhere; expected"),
            ([dataclasses.replace(e, payload=3 * e.payload)], ", times 3; expected"),
            ([dataclasses.replace(e, peer=e.rank)], f"rank {e.rank} sent to rank {e.rank}"),
            ([], "is missing"),
            ([e, e], "too many"),
        ):
            events = [*right.events[:number], *wrong, *right.events[number + 1 :]]
            assert said in " ".join(findings(changed(right, events=events)))


def test_every_receive_counts(right):
    receives = [number for number, e in enumerate(right.events) if e.kind == RECV]
    assert len(receives) == 2 * (WORLD - 1) * len(SIZES)
    for number in receives:
        e = right.events[number]
        for wrong, said in (
            ([dataclasses.replace(e, bytes=8, shape=())], f"rank {e.rank} receives from rank {e.peer} into float64 ()"),
            ([dataclasses.replace(e, peer=e.rank)], f"rank {e.rank} receives from rank {e.rank}; stage"),
            ([e, e], f"rank {e.rank} receives from rank {e.peer}"),
            ([dataclasses.replace(e, ended=None)], "before waiting for it"),
        ):
            events = [*right.events[:number], *wrong, *right.events[number + 1 :]]
            assert said in " ".join(findings(changed(right, events=events)))


def test_every_action_counts(right):
    for stage, (log, left, gradient) in enumerate(right.results):
        assert left == 0
        for place, (kind, m, alive) in enumerate(log):
            results = list(right.results)
            results[stage] = [*log[:place], (kind, m + 1, alive), *log[place + 1 :]], left, gradient
            assert f"stage {stage} does {kind}{m + 1} where its list says {kind}{m}" in findings(
                changed(right, None, results)
            )
            results[stage] = log[:place], left, gradient
            assert any(f"stage {stage} does nothing where" in said for said in findings(changed(right, None, results)))


def test_every_activation_counts(right):
    for stage, (log, left, gradient) in enumerate(right.results):
        for place, (kind, m, alive) in enumerate(log):
            results = list(right.results)
            results[stage] = [*log[:place], (kind, m, alive + 1), *log[place + 1 :]], left, gradient
            said = f"in the forward of micro-batch {m}; 1F1B keeps min(P-s, M) = {WORLD - stage} at most"
            assert (said in " ".join(findings(changed(right, None, results)))) == (kind == "F")
        results[stage] = log, 1, gradient
        assert f"stage {stage} still keeps 1 activation when step is over" in findings(changed(right, None, results))


def test_every_gradient_counts(right):
    for stage, (log, left, gradient) in enumerate(right.results):
        for wrong, said in ((gradient + 1, "2 old"), (gradient * 2, "4/5 g[0]"), (None, "without a gradient")):
            results = list(right.results)
            results[stage] = log, left, wrong
            (found,) = findings(changed(right, None, results))
            assert f"stage {stage} ends with" in found
            assert said in found


@pytest.mark.parametrize(
    ("old", "amounts", "said"),
    [
        (1, (1, 1, 1), "These are summed up and not averaged"),
        (1, (1 / 3, 1 / 3, 1 / 3), "A smaller micro-batch counts by its samples"),
        (1, (4 / 25, 4 / 25, 1 / 25), "The share is in it twice"),
        (1, (8 / 125, 8 / 125, 1 / 125), "The share is in it 3 times: only the last stage multiplies by it"),
        (0, (0, 0, 1 / 5), "Nothing is zeroed between two micro-batches"),
    ],
)
def test_a_usual_mistake_is_told(right, old, amounts, said):
    whole, results = asked.Whole(SIZES, WORLD), list(right.results)
    parts = (amount * gradients[0] for amount, gradients in zip(amounts, whole.gradients, strict=True))
    results[0] = *results[0][:2], old + sum(parts)
    assert said in " ".join(findings(changed(right, None, results)))


# -- the table in the file ---------------------------------------------------------------------------------------------


class Marked(nn.Module):
    """A stage that marks its actions between its messages."""

    def __init__(self):
        super().__init__()
        self.layer, self.count = nn.Linear(1, 1), 0

    def forward(self, x):
        outputs, m = self.layer(x), self.count
        self.count += 1
        mark(f"F{m}")
        outputs.register_hook(lambda gradient: mark(f"B{m}"))
        return outputs


def marked_step(step, actions, count):
    is_last = dist.get_rank() == dist.get_world_size() - 1
    loss = (lambda outputs, m: outputs.mean()) if is_last else None
    step(Marked(), actions, lambda m: torch.ones(1, 1), [1] * count, loss)


def test_the_table_of_exchanges(clusters):
    plan = asked.lists(one_f_one_b, 2, 3)
    run = Submission(SOLUTION, clusters).run("step", per_rank(plan), 3, world=2, around=marked_step)
    rows = [line.split()[2:] for line in SOLUTION.read_text().splitlines() if line.startswith("    rank ")][:2]
    for rank, row in enumerate(rows):
        done, counts = [], {}
        for e in sorted((e for e in run.events if e.rank == rank), key=lambda e: e.index):
            if e.kind in (SEND, RECV):
                way, what = (">", "ag"[rank]) if e.kind == SEND else ("<", "ga"[rank])
                counts[e.kind] = counts.get(e.kind, -1) + 1
                done.append(f"{way}{what}{counts[e.kind]}")
            elif e.kind == MARK:
                done.append(e.op)
        assert done == row


def test_as_many_as_planned_are_alive(clusters):
    for sizes, world in (*asked.ENOUGH, *asked.FEW):
        plan = per_rank(asked.lists(one_f_one_b, world, len(sizes)))
        run = Submission(SOLUTION, clusters).run("step", plan, sizes, world=world, around=asked.one_step)
        peaks = [max(alive for *_, alive in log) for log, *_ in run.results]
        assert peaks == [min(world - s, len(sizes)) for s in range(world)]
