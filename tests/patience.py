"""Patience: the factor COPPER_TEST_PATIENCE, by which tests wait longer on machines slower than
those that the deadlines were chosen for (tests/kernels). It never lengthens what a test is
about."""

import os

PATIENCE = float(os.environ.get("COPPER_TEST_PATIENCE", "1"))
