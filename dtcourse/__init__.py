"""dtcourse: learn distributed training by running it. Start with `make lab`, or with `Cluster(4)`."""
