"""What a client is told when a request fails: the OpenAI error object with an HTTP status."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError


class ApiError(Exception):
    """status: of HTTP. code: a stable word for programs; parameter: the field at fault, where it is one."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        parameter: str | None = None,
        *,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.parameter = parameter
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        if self.status in (401, 403):
            return "permission_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.parameter, "code": self.code}}


def invalid(message: str, parameter: str | None = None, *, code: str = "invalid_value") -> ApiError:
    """A request that can never be answered as it stands."""
    return ApiError(400, code, message, parameter)


def of_validation(error: ValidationError) -> ApiError:
    """The first fault of a body, by its field; how many more there are is said."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return invalid(f"{field}: this server knows no such field", field or None, code="unknown_parameter")
    if first["type"] == "json_invalid":
        return invalid(f"the body is no JSON: {first['msg']}", code="invalid_json")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return invalid(f"{field or 'body'}: {first['msg']}{more}", field or None)
