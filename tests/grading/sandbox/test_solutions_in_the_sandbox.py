"""The solutions of all exercises, handed in as somebody would: what holds submissions back holds none of them back."""

import shutil

from dtcourse.grading import suite
from dtcourse.grading.batch.grade import grade


def test_the_solutions_get_full_marks(tmp_path):
    shutil.copytree(suite.COURSE / "solutions", tmp_path / "in" / "everything", ignore=shutil.ignore_patterns("__*"))
    graded = grade(tmp_path / "in", tmp_path / "out", jobs=2, seed=3)
    (found,) = graded.marks.values()
    assert [marks.exercise for marks in found] == suite.exercises(suite.COURSE)
    for marks in found:
        missed = marks.first_failure
        assert marks.earned == marks.possible, f"{marks.exercise}: {missed and missed.message}"
