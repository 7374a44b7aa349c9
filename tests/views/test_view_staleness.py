"""The staleness histogram: what is counted, what is drawn, and what is said where nothing was marked."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from simulated import ring_run
from training import asynchronous
from training_simulated import asynchronous_run, synchronous_run

from dtcourse import Cluster
from dtcourse.events import MARK, Event, Line
from dtcourse.run import Run
from dtcourse.views.staleness import Staleness


@pytest.fixture(scope="module")
def real() -> Run:
    with Cluster(4) as cluster:
        return cluster.run(asynchronous, 5, 2.0)


def update(index: int, staleness: object, worker: int = 1, rank: int = 0) -> Event:
    labels = {"version": index + 1, "worker": worker, "step": index, "staleness": staleness}
    return Event(rank, index, MARK, "update", posted=index, ended=index, labels=labels, line=Line("ps.py", 7, "serve"))


def heights(figure: Figure) -> dict[tuple[str, int], int]:
    """(legend's label, staleness) -> height of the bar."""
    return {
        (bars.get_label(), round(bar.get_x() + bar.get_width() / 2)): bar.get_height()
        for bars in figure.axes[0].containers
        for bar in bars
    }


def line(figure: Figure, name: str) -> float | None:
    found = [one.get_xdata()[0] for one in figure.axes[0].lines if one.get_gid() == name]
    return found[0] if found else None


def test_every_gradient_is_counted_where_it_belongs() -> None:
    run = Run(3, events=[update(0, 0), update(1, 2), update(2, 2), update(3, 1, worker=2)])
    shown = Staleness(run)
    assert shown.counts == {1: {0: 1, 2: 2}, 2: {1: 1}}
    assert (shown.mean, shown.most, shown.gradients) == (1.25, 2, 4)
    assert shown.means == {1: pytest.approx(4 / 3), 2: 1.0}
    figure = shown.figure()
    one, two = "worker 1: mean 1.33", "worker 2: mean 1.00"
    assert heights(figure) == {(one, 0): 1, (one, 2): 2, (two, 1): 1}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [one, two]
    assert line(figure, "mean") == 1.25
    assert "mean 1.25" in [text.get_text() for text in figure.axes[0].texts]


def test_bars_of_one_staleness_stand_on_each_other() -> None:
    run = Run(3, events=[update(0, 1), update(1, 1), update(2, 1, worker=2)])
    ((low,), (high,)) = Staleness(run).figure().axes[0].containers
    assert (low.get_y(), low.get_height(), high.get_y(), high.get_height()) == (0, 2, 2, 1)


def test_a_gradient_on_several_servers_counts_once() -> None:
    one, two = (asynchronous_run(4, 20, servers=n).staleness() for n in (1, 2))
    assert one.gradients == two.gradients == 80
    assert "Counted on rank 0; the other shards are on rank 1." in two.caption
    assert "Counted" not in one.caption


def test_the_bound_is_drawn_and_what_lies_beyond_it_is_said() -> None:
    run = Run(2, events=[update(0, 0), update(1, 3), update(2, 4)])
    assert line(run.staleness().figure(), "bound") is None
    assert line(run.staleness(bound=3).figure(), "bound") == 3.5
    assert "Beyond the bound 3: 1." in run.staleness(bound=3).caption
    assert "Beyond the bound 4: none." in run.staleness(bound=4).caption
    assert run.staleness(bound=9).figure().axes[0].get_xlim()[1] > 9.5


def test_dropped_gradients_are_said() -> None:
    dropped = [Event(0, 9, MARK, "dropped", labels={"worker": 1, "step": 4})]
    assert "Dropped: 1." in Run(2, events=[update(0, 0), *dropped]).staleness().caption


def test_equal_workers_are_as_stale_as_there_are_others() -> None:
    assert asynchronous_run(4, 100).staleness().mean == pytest.approx(3, abs=0.1)
    assert synchronous_run().staleness().mean == 0


def test_a_real_run_and_its_file_draw_the_same(real: Run, tmp_path: Path) -> None:
    shown = real.staleness()
    assert shown.gradients == 15
    assert set(shown.counts) == {1, 2, 3}
    again = Run.load(real.save(tmp_path / "x.run")).staleness()
    assert heights(again.figure()) == heights(shown.figure())
    assert repr(again) == repr(shown)
    assert repr(shown).startswith("<Staleness: Staleness of asynchronous: 15 gradients applied, ")


def test_a_notebook_gets_picture_and_words() -> None:
    data, metadata = asynchronous_run().staleness()._repr_mimebundle_()
    assert data["image/png"].startswith("iVBOR")
    assert "updates old in the mean" in data["text/plain"]
    assert metadata["image/png"]["width"] > 100


def test_without_marks_it_says_which_and_how() -> None:
    with pytest.raises(ValueError, match='ring_all_reduce has no marks called "update"') as problem:
        ring_run().staleness()
    assert 'mark("update", version=..., worker=..., step=..., staleness=...)' in str(problem.value)


@pytest.mark.parametrize("wrong", [None, "two"])
def test_a_mark_without_its_number_is_named_with_its_line(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"rank 0, ps.py, line 7 has .*a number is needed as staleness"):
        Run(2, events=[update(0, wrong)]).staleness()


def test_whole_numbers_are_counted_however_they_are_written() -> None:
    assert Run(2, events=[update(0, 1.0, worker=1.0), update(1, 2)]).staleness().counts == {1: {1: 1, 2: 1}}
    for wrong in (0.5, float("nan")):
        with pytest.raises(ValueError, match=r'"update" of rank 0 has .*whole numbers'):
            Run(2, events=[update(0, wrong)]).staleness()
