"""How this engine's processes end: with everything said, and without a teardown.

Called as the last thing by the entry points of the server, its core and the executors. What an interpreter
would still do is to clear the modules of PyTorch away, which takes half a second of the processor's time
and changes nothing: whatever is to be kept, removed or told has been by then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """Write out what was logged and printed, and end this process with a status.

    Neither functions of `atexit` nor destructors run, and no thread is waited for.

    Args:
        status: 0 to 255.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # Nobody reads it any more, or it was closed before this process began.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(status)
