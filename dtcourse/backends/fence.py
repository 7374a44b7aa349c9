"""A fence: what this thread wrote before it, others see before what it writes after it; and the same for its reads.

Memory that processes share needs one between data and the word that announces them, on either side: x86 keeps the
order by itself, the processors of Macs and of ARM servers do not. Python has none to offer, but its locks have to
contain one.
"""

import threading

_lock = threading.Lock()


def fence() -> None:
    """Released, then taken again: all before the release stays before all after the taking."""
    with _lock:
        pass
    with _lock:
        pass
