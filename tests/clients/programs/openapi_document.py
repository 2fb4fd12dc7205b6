"""`openapi-spec-validator`: the document is one of OpenAPI 3.1, and a path that it names is found from where it lies."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urljoin
from urllib.request import Request, urlopen

from openapi_spec_validator import OpenAPIV31SpecValidator

URL, KEY, MODEL = (os.environ[name] for name in ("CLIENT_URL", "CLIENT_KEY", "CLIENT_MODEL"))
PLACE = f"{URL.removesuffix('/v1')}/openapi.json"


def get(url: str) -> Any:
    request = Request(url, headers={"Authorization": f"Bearer {KEY}"})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


document = get(PLACE)
problems = [each.message for each in OpenAPIV31SpecValidator(document).iter_errors()]
assert problems == [], problems
(server,) = document["servers"]
assert "get" in document["paths"]["/v1/models"]
found = get(urljoin(PLACE, server["url"]).removesuffix("/") + "/v1/models")
assert MODEL in {each["id"] for each in found["data"]}
