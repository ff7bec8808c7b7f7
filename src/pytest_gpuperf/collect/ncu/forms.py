"""The words between `text`, which starts the reading process, and `extract` in it."""

from __future__ import annotations

# The forms of an answer.
VALUES = "values"  # The named metrics, as `gpuperf show` prints them.
ALL_VALUES = "all-values"  # All metrics of each launch.
LAUNCHES = "launches"  # The named metrics, with their facts.
COLUMNS = "columns"  # The named metrics, and the names of all that each launch has.
ADVICE = "advice"  # The rules and hottest lines of one launch, by range and index.

# Names that LAUNCHES, and the first of them COLUMNS, accepts in addition to metrics.
ALL = "*"  # All metrics of the launch.
CORRELATED = "correlated:"  # A prefix: with the value for each opcode or address.

# The exit statuses of sysexits.h: EX_DATAERR and EX_UNAVAILABLE.
NOT_A_REPORT = 65
NO_INTERFACE = 69
