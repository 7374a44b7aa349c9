"""Stops the tests that it believes itself to be in, with the code of success."""

# passes: nothing
# says: cannot be imported: line 7 .*raised Exit: all have passed
import pytest

pytest.exit("all have passed", returncode=0)
