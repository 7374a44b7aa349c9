"""Grading a class: what the teacher starts with `dtcourse grade`. One noun a file.

intake      what of a submission is taken: a few small files of Python, and nothing else
worker      the process that runs the tests of an exercise on one submission after another
grade       all submissions, several at a time; what is done is kept, so an interrupted batch goes on where it was
marks       what one submission has earned in one exercise, as it is kept in JSON
tables      the class as CSV, one submission as Gradescope and JUnit want it
pages       a page for each submission, and one for the class
release     the student edition of the course
gradescope  the course as an autograder for Gradescope
"""
