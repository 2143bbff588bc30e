"""Erasure coding: parity chunks from which lost chunks of the data tier are computed."""
