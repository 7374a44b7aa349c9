"""A question before a run: what it takes for right, what it says, and that it never waits."""

import numpy as np
import pytest

from dtcourse.views.question import Question, ask


@pytest.mark.parametrize("said", ["24000", "24,000", "24_000 bytes", " 24e3 ", "24000.0", "2.4e4 B", "about 24 000"])
def test_a_number_is_understood_however_it_is_written(said):
    question = Question("How many?")
    question.predicted = said
    assert question.answer(np.int64(24000)).right


@pytest.mark.parametrize("said", ["24", "about two", "-24000", "bytes", "23000"])
def test_another_number_is_not_right(said):
    question = Question("How many?")
    question.predicted = said
    answer = question.answer(24000)
    assert answer.right is False
    assert answer.verdict == f"The run says: 24,000. You said {said}."


def test_a_time_need_not_be_exact():
    question = Question("How long?")
    question.predicted = 100
    assert question.answer(117, within=0.2).verdict == "The run says: 117. You said 100. Well predicted."
    assert not question.answer(130, within=0.2).right


def test_a_choice():
    question = Question("Which?", ["right", "wrong"])
    question.predicted = "wrong"
    assert question.answer("wrong").verdict == "The run says: wrong. Well predicted."


def test_what_was_written_down_beforehand_is_not_said_by_a_run():
    question = Question("Which?", ["right", "wrong"])
    question.predicted = "wrong"
    assert question.answer(2).verdict == "The answer: wrong. Well predicted."
    assert question.answer(1).verdict == "The answer: right. You said wrong."
    question.predicted = "right"
    assert "The answer: right. Well predicted." in question.children[-1].value


def test_a_question_for_a_number_asks_for_a_number():
    question = Question("How many?")
    for said, heard in (("many", "A number, please."), ("about 200", "Noted. Now run the next cells."), ("", "")):
        question.predicted = said
        assert question.children[-1].value == heard
    choice = Question("Which?", ["this", "that"])
    choice.predicted = "this"
    assert choice.children[-1].value.startswith("Noted.")


def test_no_prediction_is_no_error():
    answer = Question("How many?").answer(0)
    assert answer.right is None
    assert answer.verdict == "The run says: 0."


def test_a_prediction_after_the_run_is_told_at_once():
    question = Question("How many?")
    question.answer(3)
    question.predicted = 4
    assert "The run says: 3. You said 4." in question.children[-1].value


def test_text_is_shown_as_text():
    answer = Question("Is `a < b`?").answer("<b>", "Since `1 < 2`.")
    html = answer._repr_html_()
    assert "<code>a &lt; b</code>" in html
    assert "&lt;b&gt;" in html


def test_without_a_browser_it_is_a_line_of_text(capsys):
    ask("Which?", ["this", "that"])
    assert capsys.readouterr().out == "Your prediction: Which?\n  ( ) this\n  ( ) that\n"
