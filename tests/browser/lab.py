"""A real JupyterLab on a free loopback port, with settings and kernels of its own. No test in here: helpers."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Lab:
    address: str
    token: str
    folder: Path

    def open(self, page: Any, notebook: str) -> None:
        """Open a notebook of the folder, and wait until its kernel is there."""
        page.goto(f"{self.address}/lab/tree/{notebook}?token={self.token}&reset")
        page.wait_for_selector(".jp-NotebookPanel .jp-Notebook-cell", timeout=120_000)
        page.wait_for_selector('.jp-NotebookPanel .jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=120_000)


def run_cell(page: Any, number: int) -> None:
    """Run a cell with Shift+Enter. JupyterLab drops the keys while it is still connecting: press until it has begun."""
    cell = page.locator(".jp-Notebook-cell").nth(number)
    for _ in range(20):
        cell.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        for _ in range(10):
            if cell.locator(".jp-InputPrompt").inner_text().strip() != "[ ]:":
                return
            page.wait_for_timeout(200)
    raise RuntimeError(f"cell {number} did not begin to run")


def save(page: Any, file: Path) -> None:
    """Save, and wait until the file is newer than it was."""
    before = file.stat().st_mtime_ns
    page.locator(".jp-Notebook-cell .cm-content").last.click()
    page.keyboard.press("Control+s")
    for _ in range(300):
        if file.stat().st_mtime_ns != before:
            return
        page.wait_for_timeout(100)
    raise RuntimeError(f"{file} was not saved")


@contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """JupyterLab with `folder` as its root; ended, with its kernels, at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    home = folder / ".jupyter-of-the-test"
    home.mkdir()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_TOKEN": token,  # not on the command line, where other users could read it
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}"]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            found = Lab(f"http://127.0.0.1:{port}", token, folder)
            _wait(found, server, home / "log")
            yield found
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(found: Lab, server: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"{found.address}/api?token={found.token}", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not answer. Its log:\n{log.read_text()[-3000:]}")
