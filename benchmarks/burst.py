"""So many streams at once against one deployment: how each of them ends.

Every one has to be answered whole, or be told 429 with `Retry-After`; what else is counted is a fault.

    python benchmarks/burst.py "$(exo ai deployment show chat -O json | jq -r .deployment_url)" \
        "$(exo ai deployment reveal-api-key chat -O json | jq -r .api_key)" --model exo/tiny-chat 300 1000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from collections import Counter

import aiohttp

DESCRIPTORS = 8192
FINE = frozenset({"200, whole", "429, Retry-After: 1"})


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> str:
    """Ask for one stream; return how it ended."""
    try:
        async with session.post(f"{url}/chat/completions", json=body) as answer:
            text = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as exc:
        return type(exc).__name__
    if answer.status == 200:
        return "200, whole" if text.endswith(b"data: [DONE]\n\n") else "200, broken off"
    return f"{answer.status}, Retry-After: {answer.headers.get('Retry-After')}"


async def ask_all(url: str, key: str, body: dict[str, object], num_streams: int) -> Counter[str]:
    """Ask for all streams at once; return how many ended how."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=600),
        headers={"Authorization": f"Bearer {key}"},
    ) as session:
        asked = (ask(session, url, body) for _ in range(num_streams))
        return Counter(await asyncio.gather(*asked))


def main() -> int:
    """Print a line for each number of streams; fail where one ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="base URL of the deployment")
    parser.add_argument("key", help="a key of it")
    parser.add_argument("num_streams", type=int, nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-tokens", type=int, default=32)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": options.max_tokens,
        "stream": True,
    }
    ended: set[str] = set()
    for num_streams in options.num_streams:
        load, begin = os.getloadavg()[0], time.monotonic()
        found = asyncio.run(ask_all(options.url, options.key, body, num_streams))
        seconds = time.monotonic() - begin
        ended.update(found)
        counts = "; ".join(f"{count} x {how}" for how, count in sorted(found.items()))
        print(f"{num_streams} streams: {counts} ({seconds:.0f} s, load {load:.1f} before)")
    return 0 if ended <= FINE else 1


if __name__ == "__main__":
    sys.exit(main())
