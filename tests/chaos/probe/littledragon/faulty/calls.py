"""Functions that run in a child, and misbehave towards whoever has asked."""

import os
import tempfile
import time


def hush() -> None:
    """Close every file, and live on."""
    os.closerange(0, 1000)
    time.sleep(60)


def litter() -> str:
    """Leave a temporary file, as a linker does that is killed; its path."""
    return tempfile.mkstemp()[1]
