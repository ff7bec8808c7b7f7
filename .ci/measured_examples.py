"""Say how many examples measured something, and refuse too few.

Reads the run that `--gpuperf-json` wrote and the JUnit file of the same run. A test that
only began to measure does not count: it needs a record with a value that is not void,
and nothing that it asked for in vain.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

SCHEMA = "pytest-gpuperf/run/3"


def main() -> int:
    """Return 0 when enough example files measured something, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="what --gpuperf-json wrote")
    parser.add_argument("junit", type=Path, help="the JUnit file of the same run")
    parser.add_argument("--at-least", type=int, required=True, metavar="FILES")
    args = parser.parse_args()

    run = json.loads(args.run.read_text("utf-8"))
    if run["schema"] != SCHEMA:
        print(f"error: {args.run} says schema {run['schema']!r}, not {SCHEMA!r}")
        return 1
    measured = _measured(run)
    files = {test_id.partition("::")[0] for test_id in measured}
    total = sum(1 for _ in ET.parse(args.junit).iter("testcase"))
    print(f"measured {len(measured)} of {total} examples, in {len(files)} files")
    if len(files) < args.at_least:
        print(f"error: at least {args.at_least} files must measure something")
        return 1
    return 0


def _measured(run: dict[str, Any]) -> set[str]:
    """Return the ids of the tests that have all the values they asked for."""
    having = {
        record["key"]["test_id"]
        for record in run["records"]
        if record["estimates"] and record["void"] is None
    }
    lacking = {
        verdict["key"]["test_id"]
        for verdict in run["verdicts"]
        if verdict["outcome"] == "unmeasured"
    }
    return having - lacking


if __name__ == "__main__":
    sys.exit(main())
