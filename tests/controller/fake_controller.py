"""A controller process like the real one, but with the fake platform and model source.

Started by `test_crash_safety.py` as `python -m tests.controller.fake_controller --state-dir DIR`.
"""

from __future__ import annotations

import asyncio
import sys

from exo_inference.controller.local.server import serve
from exo_inference.controller.settings import read_settings
from exo_inference.logs import set_up_logging
from tests.controller.fakes import FakePlatform, FakeSource

if __name__ == "__main__":
    set_up_logging()
    platform, source = FakePlatform(), FakeSource()
    asyncio.run(serve(read_settings(sys.argv[1:]), platform=platform, find_source=source.find))
