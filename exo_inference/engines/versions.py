"""The vLLM releases whose flags a deployment may ask for.

For vLLM and exo-engine, which takes vLLM's flags, `inference-engine-version` names a release of vLLM;
the other engines have one release each (`cluster_engine.py`). The enumeration of the v2 API ends earlier than
the catalogue of flags, so both count.
"""

from __future__ import annotations

from exo_inference.engines.flags.catalogue import is_at_least, listed_releases

API_VERSIONS = (
    "0.12.0",
    "0.15.1",
    "0.16.0",
    "0.17.0",
    "0.18.0",
    "0.18.1",
    "0.19.0",
    "0.19.1",
    "0.20.0",
    "0.20.1",
    "0.20.2",
    "0.21.0",
    "0.22.0",
    "0.22.1",
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.25.1",
    "0.26.0",
    "0.27.0",
    "0.27.1",
    "0.28.0",
)
"""`inference-engine-version` in the openapi document of `exoscale` 0.16.4."""

DEFAULT_VERSION = "0.28.0"

VERSIONS = (
    *API_VERSIONS,
    *(each for each in listed_releases() if not is_at_least(API_VERSIONS[-1], each)),
)
"""All that may be asked for: those of the API, and later ones that the catalogue can judge."""
