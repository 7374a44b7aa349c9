"""The marks for other programs: the class as CSV, one submission as Gradescope's `results.json` and as JUnit XML."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from dtcourse.grading.batch.marks import Mark, Marks
from dtcourse.grading.outcome import Outcome

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(marks: dict[str, list[Marks]], exercises: Sequence[str], file: Path) -> None:
    """A line for each submission, by name: the points of each exercise, their sum, what there is, what went wrong."""
    with open(file, "w", newline="", encoding="utf-8-sig") as table:  # by the signature Excel knows that it is UTF-8
        rows = csv.writer(table)
        rows.writerow(["submission", *exercises, "points", "of", "problems"])
        for name, found in sorted(marks.items()):
            earned, possible = sum(m.earned for m in found), sum(m.possible for m in found)
            problems = "; ".join(f"{m.exercise}: {m.problem}" for m in found if m.problem)
            points = [f"{value:g}" for value in (*(m.earned for m in found), earned, possible)]
            rows.writerow([cell(name), *points, cell(problems)])


def cell(text: str) -> str:
    """Text that a spreadsheet shows and does not calculate: a formula would begin with one of a few characters."""
    text = " ".join(text.split("\n"))
    return f"'{text}" if text.startswith(_FORMULA) else text


def write_gradescope(found: Sequence[Marks], file: Path) -> None:
    """`results.json`: what Gradescope's autograder reads."""
    tests = [
        {
            "name": f"{marks.exercise}: {one.title}",
            "score": one.earned,
            "max_score": one.points,
            "status": "passed" if one.outcome is Outcome.PASSED else "failed",
            "output": told(one),
            "output_format": "text",
        }
        for marks in found
        for one in marks.tests
    ]
    said = [f"{marks.exercise}: {text}" for marks in found for text in (marks.problem, *marks.notes) if text]
    results = {
        "score": sum(marks.earned for marks in found),
        "output": "\n".join(said),
        "output_format": "text",
        "tests": tests,
    }
    file.write_text(json.dumps(results, indent=1, allow_nan=False), encoding="utf-8")


def write_junit(found: Sequence[Marks], file: Path) -> None:
    """JUnit's XML, a suite for each exercise."""
    suites = ElementTree.Element("testsuites")
    for marks in found:
        lost = [one for one in marks.tests if one.outcome is not Outcome.PASSED]
        name = {"name": marks.exercise, "tests": str(len(marks.tests)), "failures": str(len(lost)), "errors": "0"}
        suite = ElementTree.SubElement(suites, "testsuite", name)
        for one in marks.tests:
            case = ElementTree.SubElement(suite, "testcase", {"classname": marks.exercise, "name": one.test})
            if one in lost:
                text = _NO_XML.sub("?", told(one))
                message = {"message": (text.splitlines() or [""])[0], "type": one.outcome.value}
                ElementTree.SubElement(case, "failure", message).text = text
    ElementTree.ElementTree(suites).write(file, encoding="utf-8", xml_declaration=True)


def told(mark: Mark) -> str:
    """What a student is told of a test: of a hidden one, no more than how it ended."""
    if mark.hidden:
        return f"a hidden test: {mark.outcome.value}"
    return mark.message or mark.outcome.value
