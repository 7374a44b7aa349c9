"""A run as one HTML file: player, timeline and traffic, drawn by the same JavaScript as in a notebook.

Of a pipeline there is its chart, and pictures of its activations and weight versions; of data parallelism what is
communicated during backward; of a training its loss and the staleness of its gradients. The page needs no kernel and no
network. A few lines stand in for the notebook's model.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from dtcourse.run import Run
from dtcourse.views import lanes, overlap, pipeline, player, timeline, traffic
from dtcourse.views.activations import Activations
from dtcourse.views.bars import bars, bars_data
from dtcourse.views.curves import curves
from dtcourse.views.exchange import has_exchange
from dtcourse.views.film import demand_watched, film
from dtcourse.views.picture import Picture
from dtcourse.views.staleness import Staleness
from dtcourse.views.tracks import has_pipeline
from dtcourse.views.versions import Versions
from dtcourse.views.view import embed, png, script

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1030px; margin: 24px auto; padding: 0 12px;
  background: light-dark(#f6f7f9, #0d0f12); color: light-dark(#16181d, #eceff4); }}
h1 {{ font-size: 1.5em; margin: 0; }} h2 {{ font-size: 1.1em; margin: 1.6em 0 .4em; }} p {{ margin: .3em 0; }}
{style}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
{sections}
</body>
</html>
"""

# What a notebook gives to a view, without a kernel behind it.
SHIM = """
const state = {data};
const model = {{ get: (key) => state[key], set: (key, value) => {{ state[key] = value; }}, on() {{}}, off() {{}},
  save_changes() {{}}, send() {{}} }};
render({{ model, el: document.getElementById("{name}") }});
"""


def write_page(run: Run, path: Path, step: int = 0, plan: Any = None) -> Path:
    """Write the run to `path`; the player opens at `step`, a pipeline lies under its `plan`."""
    path = Path(path)
    title = f"{run.function or 'A run'} on {run.world_size} rank{'s' if run.world_size > 1 else ''}"
    text = PAGE.format(
        title=escape(title),
        summary=escape(_summary(run)),
        style=script("view.css"),
        sections="\n".join(_sections(run, step, plan)),
    )
    path.write_text(text, encoding="utf-8")
    return path


def _summary(run: Run) -> str:
    sent = run.messages()
    how = f"Failed: {run.failure.rstrip('.')}." if run.failure else "Completed."
    backend = f" Backend: {run.backend}." if run.backend else ""
    return f"{how} {len(sent)} messages, {sum(e.bytes for e in sent):,} bytes, {run.seconds:.3f} s.{backend}"


def _sections(run: Run, step: int, plan: Any) -> Iterator[str]:
    try:
        demand_watched(run)
        shown = film(run)
        state = {"data": player.film_data(shown, run), "step": shown.at(step)}
        yield _section("player", "The chunks, step by step", player.SCRIPTS, state)
    except ValueError as problem:
        yield f"<h2>The chunks, step by step</h2>\n<p>Not here: {escape(str(problem))}</p>"
    worked = {"data": bars_data(bars(run), run.function)}
    yield _section("timeline", "Who works, who waits", timeline.SCRIPTS, worked)
    if has_pipeline(run):
        yield _section("pipeline", "The pipeline", lanes.SCRIPTS, {"data": pipeline.chart(run, plan).data})
        yield _picture("The activations that each rank kept", partial(Activations, plan=plan), run)
        if any("version" in e.labels for e in run.regions("forward")):
            yield _picture("How old the weights were", Versions, run)
    if has_exchange(run):
        yield _overlap(run)
    yield _section("traffic", "Who sends how much to whom", traffic.SCRIPTS, {"data": traffic.traffic_data(run)})
    if run.marks("loss"):
        yield _picture("The loss", curves, run)
    if run.marks("update"):
        yield _picture("How stale the gradients were", Staleness, run)


def _overlap(run: Run) -> str:
    heading = "What is communicated during backward"
    try:
        return _section("overlap", heading, lanes.SCRIPTS, {"data": overlap.overlap(run).data})
    except ValueError as problem:  # the last step may have communicated nothing
        return f"<h2>{heading}</h2>\n<p>Not here: {escape(str(problem))}</p>"


def _picture(heading: str, view: Callable[[Run], Picture], run: Run) -> str:
    try:
        shown = view(run)
    except ValueError as problem:  # such a mark may have other labels in this run
        return f"<h2>{heading}</h2>\n<p>Not here: {escape(str(problem))}</p>"
    source = f"data:image/png;base64,{base64.b64encode(png(shown.figure())).decode()}"
    words = escape(shown.caption)
    picture = f'<img src="{source}" alt="{words}" style="max-width: 100%; border-radius: 10px">'
    return f"<h2>{heading}</h2>\n{picture}\n<p>{words}</p>"


def _section(name: str, heading: str, scripts: tuple[str, ...], state: dict[str, Any]) -> str:
    code = script(*scripts) + SHIM.format(data=embed(state), name=name)
    return f'<h2>{heading}</h2>\n<div id="{name}"></div>\n<script type="module">\n{code}</script>'
