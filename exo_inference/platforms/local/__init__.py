"""The local platform: engines as processes of this machine that outlive the controller.

`platform.py` takes the steps, `rollout.py` and `restart_backoff.py` decide them, `shim.py` is the parent
of each engine, `replica_dir.py` holds all that is known. Start reading at `platform.py`.
"""

from exo_inference.platforms.local.platform import LocalPlatform
from exo_inference.platforms.local.settings import LocalPlatformSettings
from exo_inference.platforms.local.shutdown import stop_all
from exo_inference.platforms.local.simulation import Simulation

__all__ = ["LocalPlatform", "LocalPlatformSettings", "Simulation", "stop_all"]
