"""Examples at the end of a help page."""


def examples(*lines: str) -> str:
    """An epilog in which every example keeps its own line (a blank line is what the help renderer keeps)."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in lines)])
