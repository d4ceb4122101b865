"""What the server cannot take now."""

from __future__ import annotations

from nnclr_hub.errors.root import NNCLRHubError


class ServiceError(NNCLRHubError):
    """The server cannot take this request now."""

    code = "service_error"


class NotReady(ServiceError):
    """The server is still loading, or its worker has failed and is being restarted."""

    code = "not_ready"


class Overloaded(ServiceError):
    """The queue is full; `retry_after` is the number of seconds after which it is worth trying again."""

    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    """The caller sent more in the last minute than it may; `retry_after` says when to come back."""

    code = "rate_limited"


class DeadlineExceeded(ServiceError):
    """The request waited in the queue until its deadline had passed."""

    code = "deadline_exceeded"


class JobNotFound(ServiceError):
    """No job of that id, or one that ended long ago."""

    code = "job_not_found"


class RunNotFound(ServiceError):
    """No pretraining run of that name, or it has no report yet."""

    code = "run_not_found"


class RequestTooLarge(ServiceError):
    """Too many bytes or images in one request."""

    code = "request_too_large"


class RequestTooSlow(ServiceError):
    """The body of a request did not come in time."""

    code = "request_too_slow"


class Unauthorized(ServiceError):
    """The server wants a key, and was given none or a wrong one."""

    code = "unauthorized"


class ServerUnreachable(ServiceError):
    """No server answers at the address, or something else does."""

    code = "server_unreachable"


class PortInUse(ServiceError):
    """Another program listens on the port."""

    code = "port_in_use"
