"""Local cluster: a whole job on one machine, N daemons with N mounts, for trials and for tests."""
