"""Write run.schema.json from the records; run it when a record has changed."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_gpuperf.model import codec

PLACE = Path(codec.__file__).parent.parent / "run.schema.json"

if __name__ == "__main__":
    PLACE.write_text(
        json.dumps(codec.run_schema(), indent=1, sort_keys=True) + "\n", "utf-8"
    )
