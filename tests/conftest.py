"""For all tests: the stop button works, also where the suite was started in the background, which ignores SIGINT.

And ranks live on the CPU, but where a test of GPUs says otherwise.
"""

import os
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("DTCOURSE_DEVICE", "cpu")
