"""JSON out of a file that anybody may have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a `ValueError`, nesting without end included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
