"""Views in a real JupyterLab: keys step the player and not the notebook, and the saved file has a picture."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from chromium import browser, why_not
from lab import Lab, lab, run_cell, save
from nbconvert import HTMLExporter
from pipeline_simulated import pipeline_run
from simulated import ring_run

from dtcourse.pipeline.schedules import one_f_one_b

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "a browser is here"),
]

RECORDED = "from dtcourse.run import Run\nplayer = Run.load('ring.run').player()\nplayer"
LIVE = """
from dtcourse import Cluster, per_rank, provenance
from dtcourse.collectives.ring import ring_all_reduce
cluster = Cluster(2)
live = cluster.step(ring_all_reduce, per_rank([provenance(2, rank, 6) for rank in range(2)]))
live.player()
"""
PIPELINE = """
from dtcourse.pipeline.schedules import one_f_one_b
from dtcourse.pipeline.simulate import simulate
from dtcourse.run import Run
Run.load("pipeline.run").pipeline(simulate(one_f_one_b(3, 4)))
"""
ADVANCE = "live.advance()"
ROOT = "section.dtc"
LESSON = Path(__file__).parents[2] / "lessons" / "04_ring_all_reduce.ipynb"


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    ring_run(4, 10).save(folder / "ring.run")
    pipeline_run(one_f_one_b(3, 4)).save(folder / "pipeline.run")
    notebooks = {"recorded": [RECORDED, "player.step", "'the end'"], "live": [LIVE, ADVANCE, "cluster.close()"]}
    notebooks["pipeline"] = [PIPELINE, "'the end'"]
    for name, cells in notebooks.items():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, folder / f"{name}.ipynb")
    with lab(folder) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


def active_cell(page: Any) -> int:
    return page.evaluate(
        "[...document.querySelectorAll('.jp-Notebook-cell')].findIndex(c => c.matches('.jp-mod-active'))"
    )


def frame(page: Any) -> str:
    return page.locator(f"{ROOT} svg.dtc-picture").get_attribute("data-frame")


def step_in_kernel(page: Any, expected: int) -> str:
    """What `player.step` says, asked until it is as expected: the kernel hears of it a little after the picture."""
    output = page.locator(".jp-Notebook-cell").nth(1).locator(".jp-OutputArea-output pre")
    for _ in range(20):
        run_cell(page, 1)
        page.wait_for_timeout(500)
        if output.count() and output.inner_text().strip() == str(expected):
            break
    return output.inner_text().strip()


def test_the_player_of_a_saved_run(jupyter: Lab, chromium: Any) -> None:
    page = chromium.new_page()
    jupyter.open(page, "recorded.ipynb")
    run_cell(page, 0)
    page.wait_for_selector(f"{ROOT} .dtc-chunk", timeout=120_000)
    page.focus(ROOT)
    page.wait_for_timeout(500)  # the notebook follows the focus, a little later
    cells, active = page.locator(".jp-Notebook-cell").count(), active_cell(page)
    assert frame(page) == "0"

    page.keyboard.press("ArrowRight")
    assert frame(page) == "1"
    counts = page.locator(f"{ROOT} .dtc-chunk").evaluate_all(
        "all => Object.fromEntries(all.map(c => [c.dataset.rank + c.dataset.chunk, c.dataset.counts]))"
    )
    received = {"10": "1,1,0,0", "21": "0,1,1,0", "32": "0,0,1,1", "03": "1,0,0,1"}
    own = {f"{r}{c}": ",".join(str(int(r == i)) for i in range(4)) for r in range(4) for c in range(4)}
    assert counts == own | received

    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowDown", "ArrowDown", "b", "ArrowLeft"):
        page.keyboard.press(key)
    assert frame(page) == "1"
    assert active_cell(page) == active
    assert page.locator(".jp-Notebook-cell").count() == cells
    page.keyboard.press("End")
    assert step_in_kernel(page, 6) == "6"

    file = jupyter.folder / "recorded.ipynb"
    save(page, file)
    page.close()
    saved_notebook_has_the_filmstrip(file, chromium)


def test_the_pipeline_of_a_saved_run(jupyter: Lab, chromium: Any) -> None:
    page = chromium.new_page()
    jupyter.open(page, "pipeline.ipynb")
    run_cell(page, 0)
    page.wait_for_selector(f'{ROOT} [data-kind="B"]', timeout=120_000)
    page.focus(ROOT)
    page.wait_for_timeout(500)
    active = active_cell(page)
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator(f"{ROOT} .dtc-caption").inner_text() == (
        "Measured: rank 1, B0 of stage 1, from 5 ms to 7 ms; waited 2 ms for B0 of stage 2 on rank 2."
    )
    assert active_cell(page) == active
    file = jupyter.folder / "pipeline.ipynb"
    save(page, file)
    page.close()
    saved_notebook_has_the_filmstrip(file, chromium)


def test_lesson_04_itself(jupyter: Lab, chromium: Any) -> None:
    file = jupyter.folder / LESSON.name
    shutil.copy(LESSON, file)
    cells = nbformat.read(LESSON, as_version=4).cells
    player = next(i for i, cell in enumerate(cells) if cell.cell_type == "code" and ".player(" in cell.source)
    page = chromium.new_page()
    jupyter.open(page, file.name)
    for number, cell in enumerate(cells[: player + 1]):
        if cell.cell_type == "code" and not cell.metadata.get("jupyter", {}).get("source_hidden"):
            run_cell(page, number)
    one = f"{ROOT}:has(.dtc-chunk)"  # the lesson shows traffic before
    page.wait_for_selector(one, timeout=120_000)
    page.focus(one)
    page.wait_for_timeout(500)
    active = active_cell(page)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator(f"{one} svg.dtc-picture").get_attribute("data-frame") == "1"
    assert active_cell(page) == active
    chunk = page.locator(f'{one} .dtc-chunk[data-rank="1"][data-chunk="0"]')
    assert chunk.get_attribute("data-counts") == "1,1,0,0"  # rank 1 has added what rank 0 sent
    save(page, file)
    page.close()
    saved_notebook_has_the_filmstrip(file, chromium)


def saved_notebook_has_the_filmstrip(file: Path, chromium: Any) -> None:
    notebook = nbformat.read(file, as_version=4)
    assert "widgets" not in notebook.metadata, "a saved widget state would hide the picture"
    html, _ = HTMLExporter().from_notebook_node(notebook)
    shown = file.with_suffix(".html")
    shown.write_text(html)
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.goto(shown.as_uri(), wait_until="domcontentloaded")
    picture = page.locator(".jp-OutputArea-output img").last
    picture.wait_for(timeout=20_000)
    assert picture.get_attribute("src").startswith("data:image/png;base64,")
    assert picture.evaluate("image => image.naturalWidth") > 600
    context.close()


def test_a_live_run_is_stepped_by_the_player(jupyter: Lab, chromium: Any) -> None:
    page = chromium.new_page()
    jupyter.open(page, "live.ipynb")
    run_cell(page, 0)
    page.wait_for_selector(f"{ROOT} .dtc-bar", timeout=120_000)
    page.focus(ROOT)
    assert page.get_by_role("button", name="let the ranks take one step").count() == 1
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f'{ROOT} svg[data-frame="1"] .dtc-message[data-arrived="true"]', timeout=30_000)
    assert "A stripe" in page.locator(f"{ROOT} .dtc-foot").inner_text()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f'{ROOT} svg[data-frame="0"]', timeout=30_000)
    run_cell(page, 1)  # the ranks go on: so does the picture, which showed an older step
    page.wait_for_selector(f'{ROOT} svg[data-frame="2"]', timeout=30_000)
    finish = page.get_by_role("button", name="let the ranks run to the end")
    if finish.is_visible():  # with two ranks the second step is the last: the run may have ended
        finish.click()
    page.wait_for_selector(f'{ROOT} svg[data-frame="2"] [data-complete="true"]', timeout=30_000)
    assert page.locator(f'{ROOT} [data-complete="true"]').count() == 4
    page.close()
