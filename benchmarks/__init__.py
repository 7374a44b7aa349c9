"""Where we stand, against our peers: `make bench`. Each pair is measured in one run: no machine is quiet."""
