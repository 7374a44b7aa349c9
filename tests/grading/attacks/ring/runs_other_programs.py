"""Becomes another program, has one loaded into every program, and leaves files that Python would run when it starts."""

# passes: test_one_rank
# says: sent 0 messages
import contextlib
import os
import site
import subprocess
import sys

CODE = "import os; os._exit(0)\n"


def attack(tensor, group=None):
    os.environ.update(LD_PRELOAD="/tmp/x.so", PYTHONSTARTUP="/tmp/x.py", PYTHONPATH="/tmp")
    for folder in (*sys.path, *site.getsitepackages(), "/submission", os.path.dirname(os.__file__)):
        for name in ("sitecustomize.py", "usercustomize.py", "x.pth", "torch.py", "__init__.py"):
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "w") as file:
                file.write(CODE)
                raise SystemExit(f"{folder} can be written to") if folder != "/tmp" else None
    for program in (
        lambda: os.execv(sys.executable, [sys.executable, "-c", CODE]),
        lambda: subprocess.run(["/bin/sh", "-c", "true"], check=True),
        lambda: os.posix_spawn("/usr/lib/git-core/git", ["git"], {}),
        lambda: os.system("true") and 1 / 0,
    ):
        with contextlib.suppress(OSError, ZeroDivisionError):
            program()
            os._exit(7)  # it ran


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
