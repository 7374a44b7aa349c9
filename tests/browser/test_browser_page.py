"""The page in headless Chromium without a network: it opens, draws the right chunks, and the keys step it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import browser, key_to_paint, why_not
from overlap_simulated import two_ranks
from pipeline_simulated import pipeline_run
from simulated import SOURCE, ring_run

from dtcourse.events import COLLECTIVE, MARK, REGION, Event
from dtcourse.origins import provenance
from dtcourse.pipeline.schedules import one_f_one_b
from dtcourse.pipeline.simulate import simulate
from dtcourse.run import Run
from dtcourse.views.page import write_page

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a browser is here")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a run's page in a context that is offline; fails on any error of the scripts and any request."""
    context = chromium.new_context(offline=True)
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(("file:", "data:")) else None)

    def visit(run: Run, step: int = 0, plan: Any = None) -> Any:
        page.goto(write_page(run, tmp_path / "run.html", step, plan).as_uri())
        return page

    yield visit
    assert problems == []
    context.close()


def chunk(page: Any, rank: int, number: int) -> Any:
    return page.locator(f'#player [data-rank="{rank}"][data-chunk="{number}"]')


def counts(page: Any, rank: int, number: int) -> str:
    return chunk(page, rank, number).get_attribute("data-counts")


def press(page: Any, *keys: str) -> int:
    """Press, and tell which frame is shown then."""
    page.focus("#player section")
    for key in keys:
        page.keyboard.press(key)
    return int(page.locator("#player svg.dtc-picture").get_attribute("data-frame"))


def test_keys_step_the_player(opened: Any) -> None:
    page = opened(ring_run(4, 10))
    assert counts(page, 1, 0) == "0,1,0,0"
    assert press(page, "ArrowRight") == 1
    assert counts(page, 1, 0) == "1,1,0,0"
    assert counts(page, 0, 0) == "1,0,0,0"
    sent = page.locator("#player .dtc-message").evaluate_all(
        "all => all.map(m => [m.dataset.from, m.dataset.to, m.dataset.chunk].map(Number))"
    )
    assert sent == [[rank, (rank + 1) % 4, rank] for rank in range(4)]
    assert "rank 1 sends chunk 1 to rank 2" in page.locator("#player .dtc-caption").inner_text()
    assert "exchange(" in page.locator("#player .dtc-runs").inner_text()
    assert press(page, "ArrowRight", "ArrowRight", "ArrowLeft") == 2
    assert press(page, "End") == 6
    assert press(page, "ArrowRight") == 6
    complete = page.locator('#player [data-complete="true"]').count()
    assert complete == 16
    assert press(page, "Home", "ArrowLeft") == 0


def test_buttons_and_slider(opened: Any) -> None:
    page = opened(ring_run(4, 10))
    player = page.locator("#player")
    frame = player.locator("svg.dtc-picture")
    player.get_by_role("button", name="one step on").click()
    assert frame.get_attribute("data-frame") == "1"
    player.get_by_role("slider", name="frame").fill("5")
    assert frame.get_attribute("data-frame") == "5"
    player.get_by_role("button", name="first frame").click()
    assert chunk(page, 2, 1).locator("text.mono").count() == 0
    player.get_by_role("button", name="numbers").click()
    assert chunk(page, 0, 0).locator("text.mono").all_inner_texts() != []
    before = chunk(page, 0, 0).bounding_box()["height"]
    player.get_by_role("button", name="large type").click()
    assert chunk(page, 0, 0).bounding_box()["height"] > 1.2 * before
    for button in player.get_by_role("button").all():
        assert button.get_attribute("aria-label")


def test_it_plays(opened: Any) -> None:
    page = opened(ring_run(3, 6))
    press(page, " ")
    page.wait_for_selector('#player svg[data-frame="2"]', timeout=20_000)
    assert page.get_by_role("button", name="pause").count() == 1


def test_messages_fly_unless_the_reader_wants_no_motion(opened: Any) -> None:
    page = opened(ring_run(4, 10))
    flying = "document.querySelector('#player svg.dtc-picture').getAnimations({subtree: true}).length"
    press(page, "ArrowRight")
    assert page.evaluate(flying) > 0
    page.emulate_media(reduced_motion="reduce")
    press(page, "Home", "ArrowRight")
    assert page.evaluate(flying) == 0


def test_failed_run_shows_what_never_arrived(opened: Any) -> None:
    page = opened(ring_run(4, 10, lost_after=2), step=3)
    assert page.locator('#player [data-arrived="false"]').count() == 4
    assert "Deadlock" in page.locator("#player .dtc-failure").inner_text()
    assert "never ended" in page.locator("#timeline .dtc-legend").inner_text()


def test_the_timeline_s_rows_are_named(opened: Any) -> None:
    calls = [
        Event(r, 99, COLLECTIVE, "all_reduce", (0, 1), posted=1, ended=10**6, arguments=(provenance(2, r, 4),))
        for r in (0, 1)
    ]
    page = opened(Run(2, events=calls))
    assert page.locator("#timeline text.faint", has_text="collective").count() == 2
    assert page.locator("#timeline text.faint", has_text="send").count() == 0
    assert "never ended" not in page.locator("#timeline .dtc-legend").inner_text()


def test_the_timeline_names_roles_and_regions(opened: Any) -> None:
    spans = {"pull": (1, 0, 1000), "compute": (1, 1000, 4000), "update": (0, 4000, 5000)}
    events = [Event(r, i, REGION, name, posted=a, ended=b) for i, (name, (r, a, b)) in enumerate(spans.items())]
    page = opened(Run(2, events=[*events, Event(0, 9, MARK, "update", posted=5000, ended=5000, labels={"worker": 1})]))
    assert page.locator("#timeline .dtc-legend").inner_text().split()[:3] == ["pull", "compute", "update"]
    assert "rank 0 (server) waits 0 %, rank 1 (worker)" in page.locator("#timeline .dtc-caption").inner_text()
    tints = page.locator('#timeline rect[data-kind="region"]').evaluate_all("all => all.map((r) => r.style.fill)")
    assert len(set(tints)) == 3


def test_marks_that_would_cover_each_other_are_one_until_the_reader_zooms(opened: Any) -> None:
    page = opened(Run(1, events=[Event(0, i, MARK, "loss", posted=i * 1000, ended=i * 1000) for i in range(1000)]))
    marks = page.locator('#timeline path[data-kind="mark"]')
    assert marks.count() < 200
    assert sum(int(n) for n in marks.evaluate_all("all => all.map((m) => m.dataset.n)")) == 1000


def test_timeline_tells_and_zooms(opened: Any) -> None:
    page = opened(ring_run(4, 10))
    bar = page.locator('#timeline rect[data-kind="send"][data-rank="1"]').first
    bar.hover(force=True)
    told = page.locator("#timeline .dtc-caption").inner_text()
    assert "Rank 1 sends to rank 2" in told
    assert "24 B" in told
    assert "ring.py, line 12" in told
    wide = bar.bounding_box()["width"]
    page.focus("#timeline section")
    page.keyboard.press("+")
    assert page.locator('#timeline rect[data-kind="send"][data-rank="1"]').first.bounding_box()["width"] > 1.5 * wide


def test_five_thousand_events_cost_no_more_than_their_pixels(opened: Any) -> None:
    run = ring_run(16, 16, floats=True)
    later = max(e.posted for e in run.events)

    def shifted(event: Any, times: int) -> Any:
        moved = {
            k: None if getattr(event, k) is None else getattr(event, k) + times * later for k in ("posted", "ended")
        }
        return dataclasses.replace(event, wait_from=None, wait_to=None, arguments=(), payload=None, **moved)

    many = Run(16, function="many", events=[shifted(e, t) for t in range(40) for e in run.events])
    page = opened(many)
    assert len(many.events) > 5000
    assert page.locator("#timeline svg.dtc-picture *").count() < 16 * 8 * 900
    assert "watch=True" in page.locator("body").inner_text(), "a run that was not watched has no player, and says why"


def test_traffic_has_the_bytes(opened: Any) -> None:
    page = opened(ring_run(4, 10))
    assert page.locator('#traffic [data-i="0"][data-j="1"]').get_attribute("data-bytes") == "120"
    page.focus("#traffic section")
    page.keyboard.press("ArrowDown")
    assert "Rank 0 sent rank 0 0 bytes" in page.locator("#traffic .dtc-caption").inner_text()


def test_source_text_cannot_break_out(opened: Any) -> None:
    run = ring_run(2, 4)
    run.sources["ring.py"] = SOURCE.replace("exchange(", "exchange('</script><b id=out>', ")
    run.function = "<b id=out>"
    page = opened(run)
    press(page, "ArrowRight")
    assert page.locator("#out").count() == 0
    assert "</script>" in page.locator("#player .dtc-runs").inner_text()


def test_key_to_paint_can_be_measured(opened: Any) -> None:
    assert key_to_paint(opened(ring_run(4, 10)), presses=6) > 0


def test_the_pipeline_tells_follows_and_zooms(opened: Any) -> None:
    schedule = one_f_one_b(3, 4)
    page = opened(pipeline_run(schedule), plan=simulate(schedule))
    pipeline = page.locator("#pipeline")
    assert "bubble: planned 33%, measured 33%" in pipeline.locator(".dtc-head").inner_text()
    assert pipeline.locator("[data-i]").count() == 2 * 3 * 4 * 2
    box = pipeline.locator('[data-kind="F"][data-rank="1"][data-group="1"]').last
    box.hover()
    told = pipeline.locator(".dtc-caption")
    assert told.inner_text() == "Measured: rank 1, F1 of stage 1, from 2 ms to 3 ms."
    bright = pipeline.locator("[data-i]").evaluate_all(
        "all => all.filter((b) => b.style.opacity === '1').map((b) => b.dataset.group)"
    )
    assert bright == ["1"] * 2 * 3 * 2, "forward and backward on three ranks, planned and measured"
    page.mouse.move(1, 1)
    assert "Bubble, the idle part" in told.inner_text()
    page.focus("#pipeline section")
    for key, words in {
        "ArrowRight": "Planned: rank 0, F0 of stage 0, from 0 µs to 1 ms.",
        "ArrowDown": "Planned: rank 1, F0 of stage 1, from 1 ms to 2 ms; waited 1 ms for F0 of stage 0 on rank 0.",
    }.items():
        page.keyboard.press(key)
        assert told.inner_text() == words
    wide = box.bounding_box()["width"]
    page.keyboard.press("+")
    assert box.bounding_box()["width"] > 1.8 * wide
    page.keyboard.press("0")
    high = box.bounding_box()["height"]
    pipeline.get_by_role("button", name="large type").click()
    assert box.bounding_box()["height"] > 1.2 * high


def test_what_a_pipeline_never_ended_is_hatched(opened: Any) -> None:
    run = pipeline_run(one_f_one_b(2, 2))
    last = max(run.events, key=lambda e: e.ended)
    page = opened(Run(2, events=[dataclasses.replace(e, ended=None) if e is last else e for e in run.events]))
    assert "never ended" in page.locator("#pipeline .dtc-legend").inner_text()
    stuck = page.locator('#pipeline [data-kind="B"][data-rank="0"] rect').last
    assert "stuck" in stuck.evaluate("(box) => box.style.fill")


def test_the_overlap_tells_a_bucket_and_shows_it_on_all_ranks(opened: Any) -> None:
    page = opened(two_ranks())
    shown = page.locator("#overlap")
    assert "overlapped: 64% in 30 ms" in shown.locator(".dtc-head").inner_text()
    assert shown.locator("circle").count() == 2, "one for both lanes of a rank"
    shown.locator('[data-kind="exposed"][data-rank="0"]').hover()
    assert shown.locator(".dtc-caption").inner_text() == "Rank 0, all-reduce of bucket 1, exposed: from 25 ms to 29 ms."
    bright = shown.locator("[data-i]").evaluate_all(
        "all => all.filter((b) => b.style.opacity === '1').map((b) => b.dataset.kind)"
    )
    assert sorted(bright) == ["exposed", "exposed", "overlapped", "overlapped"]
    page.mouse.move(1, 1)
    assert "lies under a backward pass" in shown.locator(".dtc-caption").inner_text()
