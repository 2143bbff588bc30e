"""Patience: the factor COPPER_TEST_PATIENCE, by which tests wait longer before they give up.

It serves machines slower than those that the deadlines were chosen for, such as an emulated one
(tests/kernels). It lengthens what a test waits for, never what a test is about.
"""

import os

PATIENCE = float(os.environ.get("COPPER_TEST_PATIENCE", "1"))
