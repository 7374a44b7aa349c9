"""Where we stand, against our peers: `make bench`. Each pair is measured in one run, since the machine is never quiet."""
