"""The views as a notebook sees them: their bundles, their static pictures, and a live run stepped by messages."""

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
import traitlets
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from simulated import ring_run

from dtcourse.events import COLLECTIVE, CONTROL, MARK, RECV, REGION, SEND, Event
from dtcourse.run import Run
from dtcourse.views.bars import WAIT, bars
from dtcourse.views.player import Player
from dtcourse.views.timeline import FILLS, Timeline
from dtcourse.views.traffic import Traffic
from dtcourse.views.view import png
from dtcourse.views.wait_graph import WaitGraph

RUNS = {
    "ring": ring_run(),
    "failed": ring_run(lost_after=2),
    "stuck at once": ring_run(lost_after=0),
    "floats": ring_run(3, 7, floats=True),
    "eight": ring_run(8, 5),
    "sixteen": ring_run(16, 40, floats=True),
    "alone": ring_run(1, 3),
}


@pytest.mark.parametrize("view", [Player, Timeline, Traffic])
@pytest.mark.parametrize("name", RUNS)
def test_every_display_has_widget_picture_and_words(view: type, name: str) -> None:
    shown = view(RUNS[name])
    data, metadata = shown._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert data["image/png"].startswith("iVBOR")
    assert len(data["image/png"]) < 300_000
    assert "ring_all_reduce" in data["text/plain"]
    assert metadata["image/png"]["width"] > 100
    assert isinstance(shown.figure(), Figure)


def test_player_opens_at_a_step() -> None:
    assert Player(RUNS["ring"], step=3).step == 3
    assert RUNS["ring"].player(step=2).step == 2


def test_importing_the_views_starts_nothing_of_ipython() -> None:
    code = "import dtcourse.views.player, IPython; assert IPython.get_ipython() is None; print('fine')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "fine\n"


class Stepped:
    """A live run that is really a recorded one, let through step by step."""

    def __init__(self, run: Run) -> None:
        self._whole, self._allowed, self.done = run, 0, False
        self._tell: Callable[[], None] = lambda: None

    @property
    def run(self) -> Run:
        events = (
            self._whole.events if self.done else [e for e in self._whole.events if e.step <= self._allowed and e.step]
        )
        failure = self._whole.failure if self.done else None
        return Run(self._whole.world_size, function="ring", events=events, sources=self._whole.sources, failure=failure)

    def advance(self) -> None:
        self._allowed += 1
        self.done = self._allowed > max(e.step for e in self._whole.events)
        self._tell()

    def finish(self) -> None:
        self.done = True
        self._tell()

    def on_change(self, callback: Callable[[], None]) -> None:
        self._tell = callback


class Heard(Player):
    """A player whose messages are kept instead of sent."""

    heard = traitlets.List()

    def send(self, content: dict, buffers: list | None = None) -> None:
        self.heard = [*self.heard, content]

    def after(self, act: Callable[[], None]) -> dict:
        before = len(self.heard)
        act()
        until = time.monotonic() + 20
        while len(self.heard) == before and time.monotonic() < until:
            time.sleep(0.005)
        return self.heard[-1]


def test_a_live_run_sends_its_new_frames_and_no_others() -> None:
    live = Stepped(ring_run())
    player = Heard(live)
    assert player.data["live"] == "held"
    assert len(player.data["frames"]) == 1
    message = player.after(lambda: player._obey({"kind": "advance"}))
    assert message["length"] == 2
    assert message["frames"][-1][0] == 1
    assert message["frames"][-1][1]["messages"][0]["arrived"]
    message = player.after(lambda: player._obey({"kind": "advance"}))
    assert [number for number, _ in message["frames"]] == [1, 2], "the state after step 1 is known only now"
    message = player.after(lambda: player._obey({"kind": "finish"}))
    assert message["film"]["live"] == "done"
    assert message["length"] == 7
    assert message["jump"]
    assert len(player.data["frames"]) == 1, "the synced state never grows"
    again = player.after(lambda: player._obey({"kind": "hello"}))
    assert len(again["frames"]) == 7, "a view that comes late gets everything"


def test_a_live_run_that_fails_says_so() -> None:
    live = Stepped(ring_run(lost_after=1))
    player = Heard(live)
    player.after(lambda: player._obey({"kind": "advance"}))
    message = player.after(lambda: player._obey({"kind": "finish"}))
    assert message["film"]["failure"].startswith("Deadlock")
    assert message["frames"][-1][1]["waits"]
    assert "Deadlock" in player.caption


def test_bars_cover_a_rank_s_time() -> None:
    found = bars(ring_run())
    row = [bar for bar in found.bars if bar.rank == 2 and bar.row == found.depth and bar.kind in ("compute", WAIT)]
    assert all(a.end == b.start for a, b in pairwise(row))
    assert sum(bar.kind == WAIT for bar in row) == 6


def test_pending_operations_reach_the_end() -> None:
    found = bars(ring_run(lost_after=2))
    pending = [bar for bar in found.bars if bar.pending]
    assert len(pending) == 3 * 4  # a send, a receive and the waiting, on each rank
    assert all(bar.end == found.span for bar in pending)


def test_a_timeline_names_what_never_ended() -> None:
    assert "never ended" in legend_of(RUNS["failed"])
    assert "never ended" not in legend_of(RUNS["ring"])


def test_collectives_lie_in_a_row_of_their_own() -> None:
    calls = [Event(r, 99, COLLECTIVE, "all_reduce", (0, 1), posted=1, ended=2) for r in (0, 1)]
    assert bars(RUNS["ring"]).rows == ("work", "send", "recv")
    assert bars(Run(2, events=calls)).rows == ("work", "collective")
    both = bars(Run(2, events=ring_run(2, 4).events + calls))
    assert both.rows == ("work", "send", "recv", "collective")
    found = {both.rows[bar.row - both.depth]: bar.kind for bar in both.bars if bar.row > both.depth}
    assert found == {"send": "send", "recv": "recv", "collective": "collective"}
    assert png(Timeline(Run(2, events=calls)).figure())


def test_regions_nest() -> None:
    spans = {"whole": (0, 100), "first": (10, 40), "second": (50, 90), "inner": (60, 70)}
    events = [Event(0, i, REGION, name, posted=a, ended=b) for i, (name, (a, b)) in enumerate(spans.items())]
    rows = {bar.name: bar.row for bar in bars(Run(1, events=events)).bars if bar.kind == REGION}
    assert rows == {"whole": 0, "first": 1, "second": 1, "inner": 2}


def served() -> Run:
    """Rank 1 pulls from rank 0 and pushes to it, once."""
    spans = {"pull": (1, 0, 10), "compute": (1, 10, 40), "push": (1, 40, 50), "update": (0, 50, 60)}
    events = [
        Event(rank, i, REGION, name, posted=a * 1000, ended=b * 1000)
        for i, (name, (rank, a, b)) in enumerate(spans.items())
    ]
    both = {"group": (0, 1), "bytes": 8, "ended": 50_000, "wait_to": 50_000}
    events += [Event(1, 4, SEND, "send", peer=0, posted=40_000, wait_from=40_000, **both)]
    events += [Event(0, 5, RECV, "recv", peer=1, posted=20_000, wait_from=20_000, **both)]
    return Run(2, events=[*events, Event(0, 6, MARK, "update", posted=60_000, ended=60_000, labels={"worker": 1})])


def legend_of(run: Run) -> list[str]:
    return [text.get_text() for text in Timeline(run).figure().legends[0].get_texts()]


def test_a_parameter_server_s_lanes_say_who_serves_and_how_long_each_waited() -> None:
    figure = Timeline(served()).figure()
    lanes = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert lanes == ["rank 0, server\nwaits 50%", "rank 1, worker\nwaits 17%"]
    assert "rank 0 (server) 50%, rank 1 (worker) 17%" in Timeline(served()).caption
    assert Timeline(served()).data["roles"] == ["server", "worker"]
    assert Timeline(ring_run(2, 4)).data["roles"] == ["", ""]


def test_regions_are_told_apart_by_their_tint() -> None:
    figure = Timeline(served()).figure()
    samples = {patch.get_label(): patch.get_facecolor() for patch in figure.legends[0].get_patches()}
    tints = {samples[name] for name in ("pull", "compute", "push", "update")}
    drawn = {tuple(found[0]) for c in figure.axes[0].collections if len(found := c.get_facecolor())}
    assert len(tints) == 4
    assert tints <= drawn


def test_of_many_regions_those_that_took_longest_have_a_tint() -> None:
    many = [Event(0, i, REGION, f"part {i}", posted=i * 10_000, ended=i * 11_000) for i in range(9)]
    run = Run(1, events=many)
    assert Timeline(run).data["regions"] == [f"part {i}" for i in range(2, 9)]
    assert legend_of(run)[:8] == [*(f"part {i}" for i in range(2, 9)), "other region"]
    assert legend_of(ring_run(2, 4))[:2] == ["reduce-scatter", "all-gather"]
    assert legend_of(Run(1, events=many[:1]))[0] == "region"


def test_regions_that_only_mark_control_traffic_are_not_drawn() -> None:
    headers = Event(0, 99, REGION, CONTROL, posted=1_000, ended=2_000)
    found = bars(Run(2, events=[*served().events, headers]))
    assert CONTROL not in {bar.name for bar in found.bars} | set(found.regions)
    assert found.depth == bars(served()).depth


def test_what_is_too_narrow_for_hatching_has_none() -> None:
    waits = [
        Event(0, i, RECV, "recv", peer=0, posted=a, ended=b, wait_from=a, wait_to=b)
        for i, (a, b) in enumerate([(0, 1_000_000), (1_000_000, 1_001_000)])
    ]
    drawn = Timeline(Run(1, events=waits)).figure().axes[0].collections
    waiting = [c for c in drawn if to_hex(c.get_facecolor()[0]) == FILLS[WAIT]]
    assert [c.get_hatch() for c in waiting] == ["////", None]


def test_a_message_is_an_arrow_from_its_sender_to_its_receiver() -> None:
    axes = Timeline(served()).figure().axes[0]
    (ways,) = [c.get_segments() for c in axes.collections if isinstance(c, LineCollection)]
    ((x0, y0), (x1, y1)) = ways[0]
    assert (x0, x1) == (40, 50)
    assert y1 < y0, "up, to rank 0"


def test_five_thousand_events_are_drawn() -> None:
    run = ring_run(16, 16, floats=True)
    many = Run(16, function="many", events=run.events * 5)
    assert len(many.events) > 4_900
    assert png(Timeline(many).figure())


def test_traffic_says_what_it_cannot_see() -> None:
    call = Event(0, 0, COLLECTIVE, "all_reduce", (0, 1), posted=1, ended=2)
    note = Traffic(Run(2, events=[call, Event(1, 0, COLLECTIVE, "all_reduce", (0, 1), posted=1, ended=2)])).data["note"]
    assert "all_reduce (1 call)" in note
    assert "never arrived" in Traffic(RUNS["failed"]).data["note"]
    assert Traffic(RUNS["ring"]).data["note"] == ""


def test_traffic_matrix() -> None:
    data = Traffic(RUNS["ring"]).data
    assert data["matrix"][0] == [0, 120, 0, 0]
    assert data["counts"][3] == [6, 0, 0, 0]


def test_wait_graph() -> None:
    graph = WaitGraph([(0, "recv from 1, f.py, line 3", [1]), (1, "recv from 2, f.py, line 3", [2])], returned={2})
    assert str(graph).splitlines() == [
        "rank 0 waits: recv from 1, f.py, line 3",
        "rank 1 waits: recv from 2, f.py, line 3",
        "rank 2 has returned",
    ]
    assert graph._repr_mimebundle_()["image/png"].startswith("iVBOR")
