"""Every lesson: it runs from top to bottom without a browser, leaves no process behind, and its file is clean."""

import ast
import re
import time
import uuid
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("*.ipynb"))
NOT_FOR_EVER = 300  # seconds for a cell
FOLDED = {"jupyter": {"source_hidden": True}}  # an answer does not stand in plain sight under its question

each_lesson = pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def is_answer(cell):
    """Whether the cell gives the answer to a question. It does nothing else: what runs has to be seen."""
    if cell.cell_type != "code" or ".answer(" not in cell.source:
        return False
    assert re.match(r"\w+\.answer\(", cell.source) and len(ast.parse(cell.source).body) == 1
    return True


def processes_marked(mark):
    """All processes that were started with `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DTCOURSE_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["shared_memory", "gloo"])
@each_lesson
def test_runs_from_top_to_bottom(path, backend, tmp_path, monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv("DTCOURSE_BACKEND", backend)
    monkeypatch.setenv("DTCOURSE_TEST", mark)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # nobody's own settings
    lesson = read(path)
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(lesson, timeout=NOT_FOR_EVER, kernel_name="python3", resources=place).execute()

    errors = [out for cell in lesson.cells for out in cell.get("outputs", ()) if out.output_type == "error"]
    assert errors == []
    complaints = [
        out.text
        for cell in lesson.cells
        for out in cell.get("outputs", ())
        if out.get("name") == "stderr" and "UsageError" in out.text  # a magic that is not there raises nothing
    ]
    assert complaints == []
    end = time.monotonic() + 5
    while (left := processes_marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    assert [process.cmdline() for process in left] == []


@each_lesson
def test_file_is_clean(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        assert re.fullmatch(r"[a-z][a-z0-9-]*", cell.id), "an id says what the cell is about"
        assert cell.metadata == (FOLDED if is_answer(cell) else {})
    for cell in code_cells(path):
        assert cell.outputs == [] and cell.execution_count is None


@each_lesson
def test_it_says_how_pictures_come_back(path):
    assert "model not found" in read(path).cells[0].source


@each_lesson
def test_cells_are_short(path):
    long = {cell.id: n for cell in code_cells(path) if (n := len(re.findall(r"(?m)^\s*\S", cell.source))) > 15}
    assert long == {}


@each_lesson
def test_each_question_comes_before_its_answer(path):
    source = "\n".join(cell.source for cell in code_cells(path))
    asked = re.findall(r"(?m)^(\w+) = ask\(", source)
    assert len(asked) == len(set(asked)) > 0
    for name in asked:
        before, after = source.split(f"{name} = ask(", 1)
        assert f"\n{name}.answer(" not in before
        assert f"\n{name}.answer(" in after


@each_lesson
def test_links_lead_somewhere(path):
    for cell in read(path).cells:
        for link in re.findall(r"\]\(([^)#:]+)\)", cell.source if cell.cell_type == "markdown" else ""):
            assert (path.parent / link).exists()


@each_lesson
def test_the_reader_s_own_exchange_stands_in_the_cell(path):
    """A player shows the line that sends: hidden in a helper of the course, it would not be the reader's line."""
    assert [cell.id for cell in code_cells(path) if re.search(r"(?<!def )\bpass_on\(", cell.source)] == []
