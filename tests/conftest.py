"""For all tests: the stop button works, also where the suite was started in the background, which ignores SIGINT."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
