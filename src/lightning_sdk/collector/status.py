"""Our errors as gRPC statuses and back: one table for both ends, the text preserved."""

from __future__ import annotations

import logging
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from lightning_sdk.errors import CollectorError, StoreError, WireError

_log = logging.getLogger(__name__)

# UNAVAILABLE: try again later. The others: not as it is.
_STATUSES: Final[tuple[tuple[type[Exception], grpc.StatusCode], ...]] = (
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (StoreError, grpc.StatusCode.UNAVAILABLE),
    (CollectorError, grpc.StatusCode.UNAVAILABLE),
)


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End the RPC with the status of `error`. What is none of ours is logged, and told without its text."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            await context.abort(status, str(error))
    _log.error("an RPC failed", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error: the collector's log has it")


def from_status(error: grpc.RpcError, address: str) -> CollectorError:
    """Our sentence for an RPC to the collector at `address` that failed."""
    code = error.code()
    text = error.details() or code.name
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return CollectorError(text)
    if code is grpc.StatusCode.UNAVAILABLE:
        return CollectorError(
            f"the collector at {address} cannot be reached ({text}): start it with `lsdk collect`, "
            "or check the address"
        )
    return CollectorError(f"the collector at {address} failed ({code.name}: {text}): see its log")
