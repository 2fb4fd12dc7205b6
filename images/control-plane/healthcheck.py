"""Health check of the control plane's image: exits with 0 when EXO_HEALTH_URL answers 200."""

import os
import sys
import urllib.request

# Where both programs answer on a cluster, beside their metrics.
url = os.environ.get("EXO_HEALTH_URL", "http://127.0.0.1:9090/healthz")
try:
    with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - the image sets it
        pass
except OSError as exc:
    sys.exit(f"{url}: {exc}")
