"""The marks for people: a page for each submission, and one for the class. Each is one file that needs no network."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from dtcourse.grading.batch.marks import Marks
from dtcourse.grading.batch.tables import told
from dtcourse.grading.findings import number_of
from dtcourse.grading.outcome import Outcome

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1060px; margin: 24px auto; padding: 0 12px;
  background: light-dark(#f6f7f9, #0d0f12); color: light-dark(#16181d, #eceff4); }}
h1 {{ font-size: 1.5em; margin: 0; }} h2 {{ font-size: 1.2em; margin: 1.6em 0 .4em; }} p {{ margin: .3em 0; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; padding: .3em .6em; vertical-align: top;
  border-bottom: 1px solid light-dark(#d8dbe0, #2a2f37); }}
td.number, th.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: .3em 0; font-size: .85em; }}
.bar {{ height: .5em; min-width: 1px; background: light-dark(#0072b2, #56b4e9); }}
.warn {{ border-left: 4px solid #d1350f; padding: .2em .8em; }}
iframe {{ width: 100%; height: 760px; border: 1px solid light-dark(#d8dbe0, #2a2f37); border-radius: 10px; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
SIGNS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_WRITTEN: "○", Outcome.MISSING: "?"}


def write_student(name: str, found: Sequence[Marks], folder: Path) -> Path:
    """`folder`/index.html: each test with what was seen, and the ranks' run at the step where it first went wrong."""
    body = "\n".join(part for marks in found for part in _exercise(marks, folder))
    file = folder / "index.html"
    file.write_text(PAGE.format(title=escape(name), body=body), encoding="utf-8")
    return file


def _exercise(marks: Marks, folder: Path) -> Iterator[str]:
    yield f"<h2>{escape(marks.exercise)}: {marks.earned:g} of {marks.possible:g} points</h2>"
    for text in (marks.problem, *marks.notes):
        if text:
            yield f'<p class="warn">{escape(text)}</p>'
    yield "<table>"
    before = ""
    for one in marks.tests:
        text = "" if one.outcome is Outcome.PASSED else told(one)
        message = f"<pre>{'as above' if text == before else escape(text)}</pre>" if text else ""
        before = before if one.hidden else text
        yield (
            f"<tr><td>{SIGNS[one.outcome]}</td><td>{escape(one.title)}{message}</td>"
            f'<td class="number">{one.earned:g} of {one.points:g}</td></tr>'
        )
    yield "</table>"
    first = marks.first_failure
    if first is not None and first.page is not None and (file := folder / marks.exercise / first.page).is_file():
        yield f"<p>What the ranks did in “{escape(first.title)}”:</p>"
        # a page in the page: its scripts come from our views, and can touch nothing here
        yield f'<iframe sandbox="allow-scripts" srcdoc="{escape(file.read_text(encoding="utf-8"))}"></iframe>'


def write_class(marks: dict[str, list[Marks]], exercises: Sequence[str], folder: Path, students: str) -> Path:
    """summary.html: which test fails most, with its commonest message; everybody's marks."""
    body = [f'<p class="warn"><b>WARNING</b>: {escape(weakness)}</p>' for weakness in weaknesses(marks)]
    body.append(f"<p>{number_of(len(marks), 'submission')}.</p>")
    for number in range(len(exercises)):
        body += _tests([found[number] for found in marks.values()])
    body += _everybody(marks, exercises, students)
    file = folder / "summary.html"
    file.write_text(PAGE.format(title="The class", body="\n".join(body)), encoding="utf-8")
    return file


def weaknesses(marks: dict[str, list[Marks]]) -> list[str]:
    """How this machine could not confine the submissions, each sentence once."""
    return sorted({weakness for found in marks.values() for one in found for weakness in one.weaknesses})


def _tests(found: Sequence[Marks]) -> Iterator[str]:
    average = sum(marks.earned for marks in found) / len(found)
    yield f"<h2>{escape(found[0].exercise)}: {average:.3g} of {found[0].possible:g} points on average</h2>"
    tested = [marks for marks in found if any(one.outcome is not Outcome.MISSING for one in marks.tests)]
    if untested := len(found) - len(tested):
        yield f"<p>{untested} of {len(found)} could not be tested, and count in the average only.</p>"
    yield '<table><tr><th>test</th><th class="number">not passed</th><th>the commonest message</th></tr>'
    missed = defaultdict(list)
    for marks in tested:
        for one in marks.tests:
            missed[one.test] += [one.message or one.outcome.value] if one.outcome is not Outcome.PASSED else []
    for one in sorted(found[0].tests, key=lambda test: -len(missed[test.test])):
        messages = missed[one.test]
        share = len(messages) / max(1, len(tested))
        text, times = commonest(messages)
        said = f"{times} ×<pre>{escape(text)}</pre>" if times else ""
        bar = f'<div class="bar" style="width: {share:.0%}"></div>' if messages else ""
        yield f'<tr><td>{escape(one.title)}{bar}</td><td class="number">{len(messages)}</td><td>{said}</td></tr>'
    yield "</table>"


def commonest(messages: Sequence[str]) -> tuple[str, int]:
    """The first of the messages that most have in common, numbers aside, and how many those are."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        first = message.partition("\n")[0]
        kinds[re.sub(r"\d+", "0", first)].append(first)
    if not kinds:
        return "", 0
    most = max(kinds.values(), key=len)
    return Counter(most).most_common(1)[0][0], len(most)


def _everybody(marks: dict[str, list[Marks]], exercises: Sequence[str], students: str) -> Iterator[str]:
    yield "<h2>Everybody</h2><table><tr><th>submission</th>"
    yield "".join(f'<th class="number">{escape(name)}</th>' for name in [*exercises, "points"]) + "<th></th></tr>"
    for name, found in sorted(marks.items()):
        link = f"{students}/{quote(name)}/index.html"
        earned = [one.earned for one in found]
        points = "".join(f'<td class="number">{value:g}</td>' for value in [*earned, math.fsum(earned)])
        problems = "; ".join(one.problem for one in found if one.problem)
        yield f'<tr><td><a href="{link}">{escape(name)}</a></td>{points}<td>{escape(problems)}</td></tr>'
    yield "</table>"
