"""Every error this distribution raises on purpose, in one tree.

::

    ExoError
    ├── UsageError                 a flag, file or environment variable is wrong (exit 2)
    ├── ConfigurationError         no usable endpoint or credentials (exit 4)
    ├── ConnectionFailed           the API could not be reached
    ├── InvalidAnswer              the API answered something that is not of its form
    ├── ApiError                   the API answered with an error status
    │   ├── BadRequest             400, 422
    │   ├── AuthenticationFailed   401, 403 for the signature (exit 4)
    │   ├── NotFound               404
    │   ├── Conflict               409
    │   ├── PreconditionFailed     412
    │   ├── TooManyRequests        429
    │   └── ServerError            5xx
    ├── OperationFailed            an accepted change failed afterwards
    ├── NotReady                   a wait ran out, or can no longer succeed (exit 8)
    │   └── Overwritten            a later change took back what was waited for
    ├── StoreError                 the object store refused a write
    ├── HubError                   a model could not be fetched
    └── PlatformError              the machine or cluster could not do what was asked

Callers see only these: exceptions of other libraries are mapped once, where they appear, and kept
as the cause. An error carries a message for people (what was being done, to which object, what was
found) and a `hint`: the one next step, printed on a line of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from exo_inference.wire import DeploymentPlan


class ExoError(Exception):
    """Root of the tree. `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def text(self) -> str:
        """The message and the next step as one text, for where there is one line alone."""
        return self.message if self.hint is None else f"{self.message.rstrip('. ')}. {self.hint}"


class UsageError(ExoError):
    """A flag, an argument, a file or an environment variable is wrong."""

    exit_code = 2


class ConfigurationError(ExoError):
    """No usable endpoint or credentials were found."""

    exit_code = 4


class ConnectionFailed(ExoError):
    """The API could not be reached, or hung up before it answered.

    Attributes:
        request_sent: whether the request may have arrived, so that its effect is unknown.
    """

    def __init__(self, message: str, *, request_sent: bool = True, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.request_sent = request_sent


class InvalidAnswer(ExoError):
    """The API answered, with success, something that is not of the form it documents."""


CHOICES_PREFIX = "invalid value; valid values are: "
"""How a problem begins that lists what a field may be."""


class ApiError(ExoError):
    """The API answered with an error status.

    Attributes:
        status_code: the HTTP status.
        title, detail: the problem details of RFC 9457, empty where the body had none.
        problems: further problems of the same request, each with its location.
        retry_after_seconds: what the server asked us to wait, when it did.
        plan: of a deployment that was refused: why, and what would fit (additive).
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int,
        title: str = "",
        detail: str = "",
        problems: tuple[tuple[str, str], ...] = (),
        deployments: tuple[str, ...] = (),
        retry_after_seconds: float | None = None,
        plan: DeploymentPlan | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.plan = plan
        self.status_code = status_code
        self.title = title
        self.detail = detail
        self.problems = problems
        self.deployments = deployments
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        """Return the message with every further problem on a line of its own."""
        told = self.problems
        if len(told) == 1 and told[0][1].removeprefix(CHOICES_PREFIX) in self.message:
            told = ()  # the message has the whole sentence
        lines = [f"{where}: {detail}" if where else detail for where, detail in told]
        return "\n  - ".join([self.message, *lines])


class BadRequest(ApiError):
    """The request was refused as it stands (400, 422)."""


class AuthenticationFailed(ApiError):
    """The key is unknown, the signature is wrong or has expired (401, 403)."""

    exit_code = 4


class NotFound(ApiError):
    """The object does not exist (404)."""


class Conflict(ApiError):
    """The name is taken, or the object changed meanwhile (409)."""


class PreconditionFailed(ApiError):
    """The object is in use, or something it needs is missing (412)."""


class TooManyRequests(ApiError):
    """A limit was reached (429)."""


class ServerError(ApiError):
    """The server failed (5xx)."""


class OperationFailed(ExoError):
    """A change was accepted and failed afterwards.

    Attributes:
        reason: one of the API's reasons (`busy`, `conflict`, `not-found`, …).
    """

    def __init__(self, message: str, *, reason: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class NotReady(ExoError):
    """An object did not become ready in the time given, or can no longer become ready."""

    exit_code = 8

    def __init__(
        self, message: str, *, state: str, state_details: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.state = state
        self.state_details = state_details


class Overwritten(NotReady):
    """A change was made, and another one took it back before it was in effect."""


class StoreError(ExoError):
    """The object store refused a write (see `controller/stores/base.py` for its kinds)."""


class StoreUnwritable(StoreError):
    """The store cannot take the write (disk full, read-only); nothing of it was stored."""


class StoreUnreachable(StoreUnwritable):
    """The store did not answer for too long; whether a write was made may not be known."""


class ObjectRefused(StoreError):
    """The store's own rules refuse the object, or may not be asked with these credentials."""


class HubError(ExoError):
    """A model could not be resolved or fetched (see `hub/base.py` for its kinds)."""


class PlatformError(ExoError):
    """The machine or the cluster could not do what was asked."""
