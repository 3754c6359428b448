"""JSON out of a file that anybody may have written."""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPED_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a `ValueError`, nesting without end included."""
    try:
        value = json.loads(text)
        if _ESCAPED_HALF.search(text if isinstance(text, str) else text.decode("utf-8", "replace")):
            json.dumps(
                value, ensure_ascii=False
            ).encode()  # half a character can be neither printed nor stored
        return value
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate)") from None
