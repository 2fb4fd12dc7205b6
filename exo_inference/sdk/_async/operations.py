"""`client.operations`: what every write answers with, and waiting for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.sdk import _requests, _waiting
from exo_inference.wire import Operation

if TYPE_CHECKING:
    from exo_inference.sdk._async.client import AsyncClient


class AsyncOperations:
    """Operations. One ends when the change is admitted and recorded, not when its work is done.

    That of a deletion ends when its object is gone.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, operation_id: str) -> Operation:
        """Return an operation as it stands."""
        return await self._client.send(_requests.get_operation(operation_id))

    async def wait(self, operation: Operation | str, timeout: float | None = None) -> Operation:
        """Wait until an operation ends well.

        Args:
            operation: what a write returned, or its id. One that has ended costs no request.
            timeout: seconds, or None for as long as it takes.

        Raises:
            OperationFailed: it ended otherwise.
            NotReady: it is still pending when the time is over.
        """
        if isinstance(operation, Operation):
            operation_id = operation.id
            if _waiting.finished(operation):
                return _waiting.check_operation(operation)
            wait_first = True
        else:
            operation_id, wait_first = operation, False
        return await self._poll(operation_id, timeout, wait_first)

    async def _poll(self, operation_id: str, timeout: float | None, wait_first: bool) -> Operation:
        http = self._client._http
        start = http.monotonic()
        failures = 0
        while True:
            elapsed = http.monotonic() - start
            if wait_first:
                pause = _waiting.operation_interval(elapsed)
                if timeout is not None:
                    pause = min(pause, max(0.0, timeout - elapsed))
                await http.sleep(pause)
            wait_first = True
            try:
                operation = await self.get(operation_id)
                failures = 0
            except _waiting.TOLERATED:
                failures += 1
                if failures >= _waiting.MAX_FAILED_POLLS:
                    raise
            else:
                if _waiting.finished(operation):
                    return _waiting.check_operation(operation)
            if timeout is not None and http.monotonic() - start >= timeout:
                raise _waiting.operation_timed_out(operation_id, timeout)
