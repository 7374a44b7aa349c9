"""The marks as others read them: CSV without formulas, Gradescope, JUnit, pages; hidden tests keep to themselves."""

import csv
import json
from xml.etree import ElementTree

import pytest

from dtcourse.grading.batch.command import summary
from dtcourse.grading.batch.grade import Graded, at_fault
from dtcourse.grading.batch.marks import Marks, mark, none_ran
from dtcourse.grading.batch.pages import commonest, write_class, write_student
from dtcourse.grading.batch.tables import write_csv, write_gradescope, write_junit
from dtcourse.grading.outcome import Outcome
from dtcourse.grading.suite import Test

TESTS = [
    Test("test_sum", "the sum", 2.0),
    Test("test_bytes", "the <bytes>", 3.0),
    Test("test_secret", "a surprise", 1.0, hidden=True),
    Test("test_free", "for nothing", 0.0),
]


def marks(name, *outcomes, message="ring on 2 ranks: no & <b>\x00", share=0.0, **more):
    found = [mark(t, o, message if o is Outcome.FAILED else "", share) for t, o in zip(TESTS, outcomes, strict=True)]
    return Marks(name, "ring", "digest", 0, found, **more)


P, F, M = Outcome.PASSED, Outcome.FAILED, Outcome.MISSING
ANNA = marks("anna", P, F, F, P)


def test_points_are_those_of_the_exercise():
    assert (ANNA.earned, ANNA.possible) == (2, 6)
    assert (marks("bert", P, P, P, P).earned, marks("carl", P, F, F, F, share=0.5).earned) == (6, 4)
    nobody = Marks("dora", "ring", "", 0, none_ran(TESTS), "no file")
    assert (nobody.earned, nobody.possible) == (0, 6)


def test_a_test_that_is_at_fault_is_told_to_the_teacher():
    assert at_fault(marks("anna", P, F, P, P).tests) is None
    assert at_fault(marks("anna", P, F, M, M).tests).endswith(": “a surprise”, “for nothing”")


def test_marks_are_kept(tmp_path):
    ANNA.save(tmp_path / "anna" / "ring.json")
    assert Marks.load(tmp_path / "anna" / "ring.json") == ANNA
    for text in ("", "{", "[]", '{"tests": 3}'):
        (tmp_path / "broken.json").write_text(text)
        assert Marks.load(tmp_path / "broken.json") is None
    assert Marks.load(tmp_path / "nowhere.json") is None


@pytest.mark.parametrize("name", ["=1+2", "+cmd|' /C calc'!A0", "-2", "@SUM(A1)", 'a,b"c', "x\ny", "täglich", "\t=1"])
def test_csv_is_safe_against_formulas_and_commas(tmp_path, name):
    found = {name: [marks(name, P, F, M, P, problem="=late, and\nlong")]}
    write_csv(found, ["ring"], tmp_path / "grades.csv")
    with open(tmp_path / "grades.csv", newline="", encoding="utf-8-sig") as file:
        head, row = csv.reader(file)
    assert head == ["submission", "ring", "points", "of", "problems"]
    assert row[1:] == ["2", "2", "6", "ring: =late, and long"]
    assert (tmp_path / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf")  # or Excel shows "tÃ¤glich"
    assert row[0][0] not in "=+-@\t\r" and row[0].lstrip("'") == name.replace("\n", " ")


def test_gradescope(tmp_path):
    write_gradescope([ANNA], tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["score"] == 2
    assert [(t["score"], t["max_score"], t["status"]) for t in results["tests"]] == [
        (2, 2, "passed"), (0, 3, "failed"), (0, 1, "failed"), (0, 0, "passed"),
    ]  # fmt: skip
    assert results["tests"][1]["output"].startswith("ring on 2 ranks")
    assert results["tests"][2]["name"] == "ring: a surprise"
    assert results["tests"][2]["output"] == "a hidden test: failed"


def test_junit(tmp_path):
    write_junit([ANNA], tmp_path / "junit.xml")
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("ring", "4", "2")
    assert [case.get("name") for case in suite if len(case)] == ["test_bytes", "test_secret"]
    assert suite[1][0].text == "ring on 2 ranks: no & <b>?" and suite[2][0].text == "a hidden test: failed"


def test_a_students_page_escapes_all_that_came_from_outside(tmp_path):
    anna = marks("<script>", P, F, F, P, problem="<img>", notes=["<i>"])
    text = write_student("<script>", [anna], tmp_path).read_text()
    assert "2 of 6 points" in text and "the &lt;bytes&gt;" in text and "&lt;img&gt;" in text and "&lt;i&gt;" in text
    assert "<script" not in text and "<b>" not in text and "<img" not in text and "a hidden test: failed" in text


def test_a_students_page_holds_the_run_apart(tmp_path):
    failed = mark(TESTS[1], F, "no", page="test_bytes.html")
    (tmp_path / "ring").mkdir()
    (tmp_path / "ring" / "test_bytes.html").write_text('<p>"run"</p><script>1</script>')
    text = write_student("anna", [Marks("anna", "ring", "", 0, [failed])], tmp_path).read_text()
    assert 'sandbox="allow-scripts" srcdoc="&lt;p&gt;&quot;run&quot;' in text and "<script" not in text


def test_the_class_page(tmp_path):
    found = {
        "anna": [ANNA],
        "bert": [marks("bert", P, F, P, P, message="ring on 3 ranks: no & <b>\x00")],
        "carl/..": [marks("carl", P, F, P, P, message="something else")],
    }
    text = write_class(found, ["ring"], tmp_path, "submissions").read_text()
    assert "3 submissions" in text and "ring: 2.67 of 6 points on average" in text
    assert text.index("the &lt;bytes&gt;") < text.index("a surprise") < text.index("the sum")
    assert "2 ×<pre>ring on 2 ranks: no &amp; &lt;b&gt;" in text and 'href="submissions/carl/' in text


def test_the_class_page_tells_of_those_who_could_be_tested(tmp_path):
    found = {"anna": [ANNA]} | {name: [Marks(name, "ring", "", 0, none_ran(TESTS), "no file")] for name in "bcd"}
    text = write_class(found, ["ring"], tmp_path, "submissions").read_text()
    assert "0.5 of 6 points on average" in text and "3 of 4 could not be tested" in text
    assert "did not run" not in text and "a hidden test" not in text  # the teacher is told what it said
    assert text.count("1 ×<pre>ring on 2 ranks") == 2


def test_a_students_page_says_a_message_once(tmp_path):
    text = write_student("anna", [marks("anna", F, F, F, F)], tmp_path).read_text()
    assert text.count("ring on 2 ranks") == 1 and text.count("as above") == 2 and text.count("a hidden test") == 1


def test_a_weak_sandbox_is_for_the_teacher_to_see(tmp_path):
    weak = marks("anna", P, P, P, P, weaknesses=["it sees <all>"])
    assert "WARNING</b>: it sees &lt;all&gt;" in write_class({"anna": [weak]}, ["ring"], tmp_path, "s").read_text()
    assert "it sees" not in write_student("anna", [weak], tmp_path).read_text()
    told = summary(Graded(["ring"], {"anna": [weak], "bert": [weak]}, [], 0), tmp_path)
    assert told.count("WARNING: it sees <all>\n") == 1


def test_the_commonest_message():
    assert commonest([]) == ("", 0)
    assert commonest(["rank 1 sent 3\nat", "rank 2 sent 3", "rank 2 sent 3", "other"]) == ("rank 2 sent 3", 3)
