"""The adapter's modules for tests; they are no part of a package that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

ADAPTER = Path(__file__).parents[2] / "engine-images" / "adapter"
sys.path.insert(0, str(ADAPTER))
