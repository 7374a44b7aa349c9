"""Takes the text of the course's own ring from wherever it may lie, and runs it."""

# passes: nothing
# says: is not there when an exercise is graded|cannot be imported: .*No such file
import importlib.resources
import importlib.util
import linecache
import sys

texts = []
for find in (
    lambda: importlib.resources.files("dtcourse").joinpath("collectives", "ring.py").read_text(),
    lambda: "".join(linecache.getlines(sys.modules["dtcourse"].__file__.replace("__init__", "collectives/ring"))),
    lambda: importlib.util.find_spec("dtcourse.collectives.ring").loader.get_source("dtcourse.collectives.ring"),
):
    try:
        texts.append(find())
    except (OSError, ImportError, AttributeError):
        texts.append("")
if not any(texts):
    raise FileNotFoundError("No such file in all the course")
exec(max(texts, key=len))
