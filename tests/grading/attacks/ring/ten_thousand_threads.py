"""Starts threads until it gets no more, and leaves them all behind."""

# passes: nothing
# says: can't start new thread|sent 0 messages|had not finished
import threading


def ring_all_reduce(tensor, group=None):
    for _ in range(10_000):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
