"""Bytes in and out as workers are added: what is counted, and what is drawn."""

from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from simulated import ring_run
from training import SIZE, asynchronous

from dtcourse import Cluster, ports
from dtcourse.events import MARK, RECV, SEND, Event
from dtcourse.run import Run

BUSY = "rank 0 (server)"


def served(workers: int, pulled: int = 80, pushed: int = 40) -> Run:
    """Rank 0 sends `pulled` bytes to each worker, and gets `pushed` bytes from each."""
    events = [Event(0, 0, MARK, "update", posted=0, ended=0, labels={"worker": 1})]
    for worker in range(1, workers + 1):
        for sender, receiver, count in ((0, worker, pulled), (worker, 0, pushed)):
            both = {"group": (0, worker), "bytes": count, "posted": 1, "ended": 2}
            events += [Event(sender, 1, SEND, "send", peer=receiver, **both)]
            events += [Event(receiver, 2, RECV, "recv", peer=sender, **both)]
    return Run(workers + 1, function="serve", events=events)


def heights(figure: Figure) -> dict[str, list[float]]:
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in figure.axes[0].containers}


def test_the_server_s_port_and_the_others() -> None:
    shown = ports({4: served(4), 1: served(1), 2: served(2)})
    assert [(load.workers, load.busiest, load.received, load.sent) for load in shown.loads] == [
        (1, 0, 40, 80),
        (2, 0, 80, 160),
        (4, 0, 160, 320),
    ]
    assert heights(shown.figure()) == {
        f"{BUSY}, in": [40, 80, 160],
        f"{BUSY}, out": [80, 160, 320],
        "others (mean), in": [80, 80, 80],
        "others (mean), out": [40, 40, 40],
    }
    assert shown.caption.startswith(
        f"Bytes through the port of {BUSY} of serve. 1 worker: 40 B in, 80 B out (others 80 B"
    )


def test_workers_stand_at_their_number_and_no_bar_on_another() -> None:
    axes = ports({1: served(1), 2: served(2), 7: served(7)}).figure().axes[0]
    assert axes.get_xticks().tolist() == [1, 2, 7]
    for bars in axes.containers:
        middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        assert middles == pytest.approx([1, 2, 7], abs=0.45)
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bars in axes.containers for bar in bars)
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(edges))


def test_the_formula_is_a_line() -> None:
    shown = ports({1: served(1), 3: served(3)}, formula=lambda workers: workers * 80)
    (line,) = shown.figure().axes[0].lines
    assert (line.get_label(), list(line.get_ydata())) == ("formula", [80, 240])
    assert "The formula: 80 B, 240 B." in shown.caption
    assert not ports({1: served(1)}).figure().axes[0].lines


def test_the_busiest_rank_may_be_another_in_each_run() -> None:
    turned = Run(2, events=[Event(1, 0, SEND, "send", peer=0, bytes=8)])
    shown = ports({1: turned, 3: served(3)})
    assert shown.busiest == "the busiest rank"
    assert [load.busiest for load in shown.loads] == [1, 0]
    assert ports({4: ring_run(4, 8)}).busiest == "rank 0", "no role where no mark tells"


def test_a_real_run_and_its_file_draw_the_same(tmp_path: Path) -> None:
    with Cluster(3) as cluster:
        run = cluster.run(asynchronous, 3)
    shown, again = ports({2: run}), ports({2: Run.load(run.save(tmp_path / "x.run"))})
    pulled, pushed = (3 * 4 * (SIZE + more) for more in (1, 2))  # bytes of a worker's three steps
    assert (
        heights(shown.figure())
        == heights(again.figure())
        == {
            f"{BUSY}, in": [2 * pushed],
            f"{BUSY}, out": [2 * pulled],
            "others (mean), in": [pulled],
            "others (mean), out": [pushed],
        }
    )
    assert repr(shown) == repr(again)
    assert shown._repr_mimebundle_()[0]["image/png"].startswith("iVBOR")


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError, match="there is no run to draw"):
        ports({})
    with pytest.raises(TypeError, match="each run has its number of workers: .*not a list"):
        ports([ring_run()])
    for wrong in (0, 1.5, "two"):
        with pytest.raises(ValueError, match=f"a number of workers is 1, 2, ..., not {wrong!r}"):
            ports({wrong: ring_run()})
    with pytest.raises(ValueError, match="the run of quiet with 2 workers sent no messages"):
        ports({2: Run(3, function="quiet")})
