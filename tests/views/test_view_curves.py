"""The training curves: what becomes of the marks, what is drawn, and what is said where nothing was marked."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from simulated import ring_run
from training import asynchronous
from training_simulated import asynchronous_run, synchronous_run

from dtcourse import Cluster, curves
from dtcourse.events import MARK, REGION, Event
from dtcourse.run import Run
from dtcourse.views.curves import _apart
from dtcourse.views.series import smoothed

SECOND = 10**9


def marked(*values: float, name: str = "loss", rank: int = 0, start: int = 7, **more: list) -> Run:
    """A mark a second, from second `start` of the machine's clock on; `more` are labels besides value and step."""
    events = [
        Event(
            rank,
            i,
            MARK,
            name,
            posted=(start + i) * SECOND,
            ended=(start + i) * SECOND,
            labels={"value": value, "step": i} | {key: some[i] for key, some in more.items()},
        )
        for i, value in enumerate(values)
    ]
    return Run(rank + 1, function="train", events=events)


def drawn(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Name -> x and y of its line, as the picture has it."""
    lines = (line for line in axes.lines if not line.get_label().startswith("_"))
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}


def test_a_run_is_drawn_against_steps_and_seconds() -> None:
    left, right = curves({"mine": marked(3.0, 2.0, 1.5)}, smooth=1).figure().axes
    assert drawn(left) == {"mine": ([0, 1, 2], [3.0, 2.0, 1.5])}
    assert drawn(right) == {"mine": ([0, 1, 2], [3.0, 2.0, 1.5])}
    assert (left.get_xlabel(), right.get_xlabel(), left.get_ylabel()) == ("steps", "seconds", "loss")


def test_seconds_count_from_the_run_s_first_event() -> None:
    run = marked(3.0, 2.0)
    early = Event(0, 9, REGION, "load", posted=2 * SECOND, ended=6 * SECOND)
    right = curves(Run(1, events=[early, *run.events]), smooth=1).figure().axes[1]
    assert list(drawn(right).values()) == [([5, 6], [3.0, 2.0])]


def test_seconds_count_from_where_the_training_began_if_that_is_marked() -> None:
    early = Event(0, 9, REGION, "load", posted=2 * SECOND, ended=6 * SECOND)
    begins = [Event(0, 10, MARK, "begin", posted=at * SECOND, ended=at * SECOND) for at in (6, 8)]
    right = curves(Run(1, events=[early, *begins, *marked(3.0, 2.0).events]), smooth=1).figure().axes[1]
    assert list(drawn(right).values()) == [([1, 2], [3.0, 2.0])]


def test_versions_count_before_steps() -> None:
    shown = curves(marked(3.0, 2.0, 1.0, version=[4, 8, 6]), smooth=1)
    (one,) = shown.by_steps
    assert (one.x.tolist(), one.middle.tolist()) == ([4, 6, 8], [3.0, 1.0, 2.0])
    assert shown.steps == "updates"
    assert curves({"a": marked(1.0, version=[0]), "b": marked(1.0)}).steps == "updates or steps"


def test_the_marks_of_one_step_are_averaged() -> None:
    two = Run(2, events=marked(4.0, 2.0).events + marked(2.0, 1.0, rank=1).events)
    (one,) = curves(two, smooth=1).by_steps
    assert one.middle.tolist() == [3.0, 1.5]


def test_smoothing_is_the_mean_of_the_last_marks() -> None:
    x, y = smoothed(np.arange(5), np.array([4.0, 2.0, 6.0, 0.0, 3.0]), 3)
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert y.tolist() == pytest.approx([4, 3, 4, 8 / 3, 3])
    shown = curves(marked(4.0, 2.0, 6.0), smooth=2)
    assert shown.by_steps[0].middle.tolist() == [4.0, 3.0, 4.0]
    assert "mean of the last 2 marks" in shown.caption
    assert "mean of the last 2 marks" in shown.figure().get_supxlabel()
    assert "Each mark as it is" in curves(marked(4.0, 2.0)).caption
    assert curves(asynchronous_run(4, 100)).smooth == 20


def test_several_runs_are_a_mean_with_their_range() -> None:
    shown = curves({"seeds": [marked(3.0, 1.0), marked(5.0, 2.0, 9.0), marked(4.0, 0.0)]}, smooth=1)
    (one,) = shown.by_steps
    assert one.runs == 3
    assert (one.x[0], one.x[-1]) == (0, 1), "it ends with the run that ends first"
    assert (one.low[0], one.middle[0], one.high[0]) == (3, 4, 5)
    assert (one.low[-1], one.middle[-1], one.high[-1]) == (0, 1, 2)
    band = shown.figure().axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0, 5)
    assert "band: lowest to highest" in shown.caption
    assert "seeds (3 runs): 1 after 1 steps" in shown.caption


def test_a_run_alone_has_no_band() -> None:
    shown = curves({"one": marked(3.0, 2.0)})
    assert not shown.figure().axes[0].collections
    assert "band" not in shown.caption


def test_every_line_has_a_name_a_dash_and_an_end_of_its_own() -> None:
    runs = {f"run {i}": marked(3.0 + i, 2.0 + i / 100) for i in range(6)}
    left, right = curves(runs).figure().axes
    lines = [line for line in left.lines if not line.get_label().startswith("_")]
    assert len({(line.get_color(), str(line._dash_pattern)) for line in lines}) == 6
    assert len({line.get_linestyle() + str(line._dash_pattern) for line in lines}) == 6
    assert sorted(text.get_text() for text in right.texts) == sorted(runs)
    heights = sorted(text.get_position()[1] for text in right.texts)
    assert all(b - a > 0.08 for a, b in pairwise(heights)), "no name lies on another"


def test_names_keep_the_order_of_the_line_s_ends() -> None:
    assert _apart(np.array([0.5, 0.2, 0.51]), 0.1) == pytest.approx([0.5, 0.2, 0.6])
    assert _apart(np.array([1.0, 0.99]), 0.1) == pytest.approx([1.0, 0.9])


def test_a_wide_range_is_drawn_on_a_logarithmic_scale_and_says_so() -> None:
    axes = curves(marked(1000.0, 1.0)).figure().axes[0]
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "loss (logarithmic)")
    assert curves(marked(3.0, 1.0)).figure().axes[0].get_yscale() == "linear"
    assert curves(marked(1000.0, -1.0)).figure().axes[0].get_yscale() == "linear"


def test_what_is_no_number_is_left_out_and_said() -> None:
    shown = curves(marked(3.0, float("nan"), float("inf"), 1.0), smooth=1)
    assert shown.by_steps[0].x.tolist() == [0, 3]
    assert "Left out: 2 marks that are no finite number." in shown.caption
    with pytest.raises(ValueError, match='none of the 1 marks "loss" of train has a finite value'):
        curves(marked(float("nan")))


def test_other_marks_by_their_name() -> None:
    shown = curves(marked(0.1, 0.9, name="accuracy"), what="accuracy")
    assert shown.caption.startswith("Accuracy against steps and against seconds. train: 0.9 after 1 steps, 1 s.")
    assert shown.figure().axes[0].get_ylabel() == "accuracy"


def test_a_real_run_and_its_file_draw_the_same(tmp_path: Path) -> None:
    with Cluster(3) as cluster:
        run = cluster.run(asynchronous, 8)
    loaded = Run.load(run.save(tmp_path / "x.run"))
    shown, again = curves({"asynchronous": run}), curves({"asynchronous": loaded})
    for mine, its in zip(shown.figure().axes, again.figure().axes, strict=True):
        assert drawn(mine) == drawn(its)
    assert repr(shown) == repr(again)
    (one,) = shown.by_steps
    assert one.middle[0] == pytest.approx(1.0)
    assert one.middle[-1] < 0.5
    assert shown.steps == "updates"


def test_a_notebook_gets_picture_and_words() -> None:
    shown = curves({"synchronous": synchronous_run(), "asynchronous": [asynchronous_run(seed=s) for s in range(3)]})
    data, metadata = shown._repr_mimebundle_()
    assert data["image/png"].startswith("iVBOR")
    assert data["text/plain"].startswith("Loss against updates and against seconds. synchronous: ")
    assert metadata["image/png"]["width"] > 100
    assert repr(shown).startswith("<Curves: Loss")


def test_without_marks_it_says_which_and_how() -> None:
    with pytest.raises(ValueError, match='ring_all_reduce has no marks called "loss"') as problem:
        curves({"ring": ring_run()})
    assert 'mark("loss", value=..., step=...)' in str(problem.value)
    with pytest.raises(ValueError, match=r'"accuracy" \(marks it has: loss\)'):
        curves(marked(1.0), what="accuracy")
    with pytest.raises(ValueError, match="a number is needed as value"):
        curves(marked("low"))


@pytest.mark.parametrize("smooth", [0, -1, 1.5])
def test_a_point_is_the_mean_of_one_mark_or_more(smooth: object) -> None:
    with pytest.raises(ValueError, match="smooth is how many marks"):
        curves(marked(0.1, 0.2), smooth=smooth)


def test_runs_need_names() -> None:
    with pytest.raises(TypeError, match="runs have names: .*not a list"):
        curves([marked(0.1), marked(0.2)])


@pytest.mark.parametrize("nothing", [{}, {"none": []}])
def test_no_runs_at_all(nothing: dict) -> None:
    with pytest.raises(ValueError, match="there is no run to draw"):
        curves(nothing)
