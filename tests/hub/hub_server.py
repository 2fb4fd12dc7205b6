"""A server on 127.0.0.1 that speaks the Hub's protocol, for the real client to talk to.

Two listeners, as in the real world: the Hub answers the API and `resolve`, and redirects large
files to a CDN on another origin. Faults are planned per file: connections that drop, damaged bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web

COMMIT = "5f2a8b3c" * 5
GOOD_TOKEN = "hf_goodtokengoodtoken"
SMALL_BYTES = 4096


def safetensors(num_bytes: int, *names: str, seed: int = 0) -> bytes:
    """Return a valid file whose tensors hold so many bytes each."""
    header, data = {}, b""
    for index, name in enumerate(names or ("weight",)):
        block = hashlib.shake_128(f"{seed}/{index}".encode()).digest(num_bytes)
        header[name] = {
            "dtype": "U8",
            "shape": [num_bytes],
            "data_offsets": [len(data), len(data) + num_bytes],
        }
        data += block
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


@dataclass
class Repo:
    """One repository.

    `drops` and `damages` are used up, one entry per answer of that file; `silent` holds every
    answer back until it is set.
    """

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    lists_sizes: bool = True
    tags: set[str] = field(default_factory=lambda: {"main", COMMIT})
    drops: dict[str, list[int]] = field(default_factory=dict)
    damages: dict[str, int] = field(default_factory=dict)
    status: int | None = None
    silent: asyncio.Event | None = None

    def is_lfs(self, path: str) -> bool:
        return len(self.files[path]) > SMALL_BYTES

    def etag(self, path: str) -> str:
        content = self.files[path]
        if self.is_lfs(path):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer:
    """The Hub and its CDN. `sent` counts body bytes by path, `requests` the requests."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.sent: Counter[str] = Counter()
        self.requests: list[tuple[str, str, str | None]] = []
        self.user_agents: set[str] = set()
        self.ignores_ranges = False
        self.connections: set[tuple[str, int]] = set()

    async def start(self) -> None:
        hub = web.Application()
        hub.router.add_get("/api/models/{org}/{name}", self._info)
        hub.router.add_get("/api/models/{org}/{name}/revision/{revision}", self._info)
        hub.router.add_get("/{org}/{name}/resolve/{revision}/{path:.+}", self._resolve)
        cdn = web.Application()
        cdn.router.add_get("/cdn/{org}/{name}/{path:.+}", self._cdn)
        self._runners = [web.AppRunner(hub), web.AppRunner(cdn)]
        urls = []
        for runner in self._runners:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        self.url, self._cdn_url = urls

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    def _note(self, request: web.Request) -> None:
        self.requests.append((request.method, request.path, request.headers.get("Authorization")))
        self.user_agents.add(request.headers.get("User-Agent", ""))
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername"))

    def _find(self, request: web.Request, *, contents: bool) -> Repo | web.Response:
        self._note(request)
        authorization = request.headers.get("Authorization")
        known = authorization == f"Bearer {GOOD_TOKEN}"
        if authorization is not None and authorization.startswith("Bearer hf_good") and not known:
            known = True  # a good token of another account: sees what is public
        if authorization is not None and not known:
            return _refuse(401, None, "Invalid credentials in Authorization header")
        repo = self.repos.get(f"{request.match_info['org']}/{request.match_info['name']}")
        member = authorization == f"Bearer {GOOD_TOKEN}"
        if repo is None or (repo.private and not member):
            return _refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        if repo.status is not None:
            return _refuse(repo.status, None, "out of order")
        revision = request.match_info.get("revision", "main")
        if revision not in repo.tags:
            return _refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if contents and repo.gated and not member:
            return _refuse(403 if known else 401, "GatedRepo", "Access to model is restricted")
        return repo

    async def _info(self, request: web.Request) -> web.StreamResponse:
        repo = self._find(request, contents=False)
        if isinstance(repo, web.Response):
            return repo
        if repo.silent is not None:
            await repo.silent.wait()
        siblings = []
        for path, content in repo.files.items():
            sibling: dict[str, object] = {"rfilename": path}
            if "blobs" in request.query and repo.lists_sizes:
                sibling |= {"size": len(content), "blobId": repo.etag(path)}
                if repo.is_lfs(path):
                    lfs = {"sha256": repo.etag(path), "size": len(content), "pointerSize": 135}
                    sibling |= {"lfs": lfs, "blobId": "0" * 40}
            siblings.append(sibling)
        name = f"{request.match_info['org']}/{request.match_info['name']}"
        document = {
            "_id": "1",
            "id": name,
            "modelId": name,
            "sha": COMMIT,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "disabled": False,
            "downloads": 1,
            "likes": 1,
            "tags": [],
            "siblings": siblings,
        }
        return web.json_response(document)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        repo = self._find(request, contents=True)
        if isinstance(repo, web.Response):
            return repo
        path = request.match_info["path"]
        if path not in repo.files:
            return _refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{repo.etag(path)}"'}
        if not repo.is_lfs(path):
            return await self._send(request, repo, path, headers)
        match = request.match_info
        headers |= {
            "X-Linked-Etag": f'"{repo.etag(path)}"',
            "X-Linked-Size": str(len(repo.files[path])),
            "Location": f"{self._cdn_url}/cdn/{match['org']}/{match['name']}/{path}?signature=s3",
        }
        return web.Response(status=302, headers=headers)

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        match = request.match_info
        repo = self.repos[f"{match['org']}/{match['name']}"]
        return await self._send(request, repo, match["path"], {})

    async def _send(
        self, request: web.Request, repo: Repo, path: str, headers: dict[str, str]
    ) -> web.StreamResponse:
        content = repo.files[path]
        start, end, is_part = 0, len(content), False
        if "Range" in request.headers and not self.ignores_ranges:
            first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(end, int(last) + 1) if last else end
            is_part = (start, end) != (0, len(content))
            if start >= len(content):
                return web.Response(
                    status=416, headers={"Content-Range": f"bytes */{len(content)}"}
                )
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        body = content[start:end]
        if request.method != "HEAD" and repo.damages.get(path, 0) > 0:
            repo.damages[path] -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        headers["Content-Length"] = str(len(body))
        response = web.StreamResponse(status=206 if is_part else 200, headers=headers)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        drops = repo.drops.get(path)
        limit = drops.pop(0) if drops else len(body)
        for offset in range(0, min(limit, len(body)), 65536):
            block = body[offset : min(offset + 65536, limit)]
            await response.write(block)
            self.sent[path] += len(block)
        if limit < len(body):
            assert request.transport is not None
            request.transport.close()
        return response


def _refuse(status: int, code: str | None, message: str) -> web.Response:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return web.json_response({"error": message}, status=status, headers=headers)
