"""Collective operations, each in plain torch.distributed: one file, one idea, one screen."""
