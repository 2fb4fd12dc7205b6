"""Health check of the control plane's image: exits with 0 when EXO_HEALTH_URL answers 200."""

import os
import sys
import urllib.request

url = os.environ.get("EXO_HEALTH_URL", "http://127.0.0.1:8080/healthz")
try:
    with urllib.request.urlopen(url, timeout=2):  # noqa: S310
        pass
except OSError as exc:
    sys.exit(f"{url}: {exc}")
