"""Helper of partition.py."""


class Frontier:
    """The best cuts of the first j layers into so many stages, for each j; grows a stage at a time."""

    def __init__(self, costs, fits):
        self.costs, self.fits, self.cuts = costs, fits, {0: []}

    def largest(self, ends):
        starts = [0, *ends]
        return max((sum(self.costs[a:b]) for a, b in zip(starts, ends, strict=False)), default=0)

    def grow(self):
        longer = {}
        for start, ends in self.cuts.items():
            for end in range(start + 1, len(self.costs) + 1):
                if not self.fits(start, end):
                    break
                if end not in longer or self.largest([*ends, end]) < self.largest(longer[end]):
                    longer[end] = [*ends, end]
        self.cuts = longer
