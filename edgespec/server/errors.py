"""What goes wrong with a request, as OpenAI's API says it. Source: the `error` object of OpenAI's API reference."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.errors import BusyError, ConfigError, ContextFullError, EdgespecError, EvalError, FieldError, ModelError

_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 501: "not_supported_error",
    503: "unavailable_error", 504: "timeout_error",
}  # fmt: skip
"""As llama-server names them; other statuses below 500 are invalid requests, those above server errors."""


class RequestError(Exception):
    """A request that is not answered: the HTTP status, and what is wrong in one line."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`param` is the field that is wrong, `code` a word for programs, such as `context_length_exceeded`."""
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """The JSON object to send."""
        kind = _TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None) -> RequestError:
    """A request that nobody could answer as it is."""
    return RequestError(400, message, param)


def unavailable(message: str, retry_s: int = 1) -> RequestError:
    """No place for the request now; worth another try after `retry_s` seconds."""
    return RequestError(503, message, headers={"Retry-After": str(retry_s)})


def from_engine(error: Exception, param: str | None = None) -> RequestError:
    """What an error of the engine says about the request that brought it up."""
    if isinstance(error, RequestError):
        return error
    line = " ".join(str(error).split())
    if isinstance(error, BusyError):
        return unavailable(line, error.retry_s)
    if isinstance(error, FieldError):
        return invalid(line, error.param or param)
    if isinstance(error, ContextFullError):
        return RequestError(400, line, param, "context_length_exceeded")
    if isinstance(error, ConfigError) or (isinstance(error, ModelError) and not isinstance(error, EvalError)):
        return invalid(line, param)
    if isinstance(error, EdgespecError):
        return RequestError(500, line)
    return RequestError(500, f"internal error ({type(error).__name__})")  # its text may hold what somebody said
