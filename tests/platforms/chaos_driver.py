"""A controller in miniature, run as a process of its own so that tests can kill it at any line.

Scales and updates one deployment of fake engines for ever. Argument: the state directory.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from conftest import Rig


async def main() -> None:
    rig = Rig(Path(sys.argv[1]))
    print("running", flush=True)
    for number in itertools.count():
        desired = rig.desired((3, 1, 2, 0)[number % 4], "--child", "--label", str(number // 2 % 3))
        await rig.until_ready(desired, seconds=600)


if __name__ == "__main__":
    asyncio.run(main())
