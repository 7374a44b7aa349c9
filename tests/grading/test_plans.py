"""A failure that has plans of a pipeline: they travel through the results' file, and are the report's picture."""

from types import SimpleNamespace

from dtcourse.grading.findings import CheckFailed
from dtcourse.grading.outcome import read_results
from dtcourse.grading.plugin import Results
from dtcourse.grading.report import Report
from dtcourse.grading.suite import Test
from dtcourse.pipeline.schedules import gpipe, one_f_one_b
from dtcourse.pipeline.simulate import simulate
from dtcourse.views.pipeline import PipelineChart


def test_plans_are_the_picture(tmp_path):
    plans = {"your lists": simulate(gpipe(3, 4)), "1F1B": simulate(one_f_one_b(3, 4))}
    failed = CheckFailed("rank 0 keeps too many", drawing="rank 0  F0 F1", plans=plans)
    Results(tmp_path)._write("test_memory", SimpleNamespace(passed=False), failed, 0.0)
    (result,) = read_results(tmp_path, [Test("test_memory", "memory", 1.0)])
    assert result.plans == plans
    picture = Report("pipelines", "pipelines.py", [result]).picture
    assert isinstance(picture, PipelineChart)
    assert "your lists 33%, 1F1B 33%" in picture.caption
