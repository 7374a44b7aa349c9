"""Time over message size: who is fastest where, what is drawn and said, and what is refused."""

import math

import pytest
from matplotlib.colors import to_hex

from dtcourse import Link, times
from dtcourse.network.costs import ring_all_reduce, root_all_reduce

LINK = Link("1 Gbit/s", "500 us")
SIZES = [4 * 2**i for i in range(8, 20)]
PREDICTED = {
    "ring": {size: ring_all_reduce(4, size // 4, LINK).seconds for size in SIZES},
    "root": {size: root_all_reduce(4, size, LINK).seconds for size in SIZES},
}


def test_the_fastest_changes_where_the_lines_cross() -> None:
    (first, *_, high), (second, low, _) = times(predicted=PREDICTED).fastest
    assert (first, second, high) == ("root", "ring", low)
    # 6 (a + S/4 b) = 4 a + 6 S b
    exact = 2 * LINK.latency / (4.5 / LINK.bandwidth)
    assert low == pytest.approx(exact, rel=0.05)


def test_predictions_tell_who_is_fastest_and_measurements_where_there_are_none() -> None:
    slow = {"ring": {1000: 5.0, 4000: 5.0}, "root": {1000: 1.0, 4000: 9.0}}
    assert [name for name, *_ in times(slow).fastest] == ["root", "ring"]
    assert times(slow).fastest[0][2] == round(1000 * 4 ** (math.log(5) / math.log(9)))
    assert times(slow, {"ring": {1000: 1.0}, "root": {1000: 2.0}}).fastest == [("ring", 1000, 1000)]
    assert times({"a": {8: 1.0}, "b": {16: 1.0}}).fastest == [], "no size that both have"
    assert times({"a": {8: 1.0, 64: 2.0}}).fastest == [("a", 8, 64)]


def test_marks_are_measured_and_lines_predicted() -> None:
    measured = {"ring": {SIZES[3]: 1.1 * PREDICTED["ring"][SIZES[3]], SIZES[0]: PREDICTED["ring"][SIZES[0]]}}
    shown = times(measured, PREDICTED)
    axes = shown.figure().axes[0]
    ring, root, marks, crossing = axes.lines
    assert list(ring.get_xdata()) == SIZES == list(root.get_xdata())
    assert list(marks.get_xdata()) == [SIZES[0], SIZES[3]], "in order of size"
    assert marks.get_linestyle() == "None" and marks.get_color() == ring.get_color() != root.get_color()
    assert ring.get_linestyle() != root.get_linestyle(), "apart without colour, too"
    assert crossing.get_xdata()[0] == shown.fastest[1][1]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    bands = [to_hex(band.get_facecolor()[0]) for band in axes.collections]
    assert bands == [to_hex(root.get_color()), to_hex(ring.get_color())]
    assert [text.get_text() for text in axes.texts] == ["root", "ring"]
    assert shown.errors == {"ring": {SIZES[0]: pytest.approx(0), SIZES[3]: pytest.approx(0.1)}}
    assert "off the prediction by at most 10%" in shown.caption


def test_a_notebook_gets_picture_and_words() -> None:
    data, metadata = times(predicted=PREDICTED)._repr_mimebundle_()
    assert data["image/png"].startswith("iVBOR")
    assert data["text/plain"].startswith(
        "Seconds over message size of ring, root. Fastest (predicted): root from 1,024 B"
    )
    assert metadata["image/png"]["width"] > 100


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"ring": {0: 1.0}}, "0 bytes; both axes are logarithmic"),
        ({"ring": {8: 0.0}}, "0.0 seconds"),
        ({"ring": {8: float("nan")}}, "nan seconds"),
        ({"ring": {8: "1 ms"}}, "'1 ms' seconds"),
        ({"ring": {}}, "measured of 'ring' is empty"),
        ({}, "there is nothing to draw"),
    ],
)
def test_what_cannot_be_drawn_is_refused(table: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        times(table)


@pytest.mark.parametrize("table", [[0.1], {"ring": 0.1}])
def test_what_is_no_table_is_refused(table: object) -> None:
    with pytest.raises(TypeError, match="a table of names, bytes and seconds"):
        times(predicted=table)
