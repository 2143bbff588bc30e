"""Runs the mount suite under other kernels: ``make test-kernels``, see docs/kernels.md."""
