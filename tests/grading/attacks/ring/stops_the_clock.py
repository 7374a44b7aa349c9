"""Takes away the clocks, the signals and the watchdog of its process, and never ends."""

# passes: nothing
# says: had not finished after
import faulthandler
import signal
import threading
import time


def ring_all_reduce(tensor, group=None):
    time.time = time.monotonic = time.perf_counter = lambda: 0.0
    threading.Timer = None
    faulthandler.cancel_dump_traceback_later()
    faulthandler.disable()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < 32 or number > 34:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(1)
