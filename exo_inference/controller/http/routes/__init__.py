"""The HTTP routes, one file per noun. Each handler parses, asks admission, writes once, answers."""

from exo_inference.controller.http.routes import (
    api_keys,
    deployments,
    logs,
    metrics,
    models,
    plans,
    platform,
)

ROUTES = (
    *models.ROUTES,
    *deployments.ROUTES,
    *logs.ROUTES,
    *api_keys.ROUTES,
    *plans.ROUTES,
    *metrics.ROUTES,
    *platform.ROUTES,
)
"""All that is served."""
