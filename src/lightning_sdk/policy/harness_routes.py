"""`/r/ROLLOUT/start`, `/reward` and `/end`: what a program says of a rollout of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightning_sdk.ids import MAX_ID_CHARACTERS
from lightning_sdk.policy.apis.reading import Strict, check_fields, read_fields
from lightning_sdk.policy.harness import End, Harness, Start
from lightning_sdk.policy.http import ClientGoneError, check_content_type, json_response, read_body

_MOST_BYTES: Final = 1 << 20

_Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Body = TypeVar("_Body", bound=Strict)


class _Start(Strict):
    task_id: _Id | int | None = None
    split: _Id | None = None
    group: _Id | None = None
    run_id: _Id | None = None
    attempt: Annotated[int, Field(ge=1, lt=2**31)] = 1
    metadata: dict[str, Any] | None = None

    def told(self) -> Start:
        return Start(
            task_id=None if self.task_id is None else str(self.task_id),
            split=self.split,
            group_id=self.group,
            run_id=self.run_id,
            attempt=self.attempt,
            metadata=self.metadata or {},
        )


class _Reward(Strict):
    value: _Number | None = None
    components: Annotated[dict[_Id, _Number], Field(min_length=1)] | None = None
    reward_id: _Id | None = None

    @model_validator(mode="after")
    def _is_one(self) -> _Reward:
        if (self.value is None) == (self.components is None):
            raise ValueError("give either a value or components")
        if not math.isfinite(sum(self.told().values())):
            raise ValueError("the sum of the components is not finite")
        return self

    def told(self) -> Mapping[str, float]:
        return {"reward": self.value} if self.value is not None else self.components or {}


class _Error(Strict):
    type: str
    message: str = ""


class _End(Strict):
    outcome: Literal["succeeded", "failed", "truncated", "cancelled"] | None = None
    error: _Error | str | None = None
    truncation_reason: _Id | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> _End:
        if self.truncation_reason is not None and self.outcome not in (None, "truncated"):
            raise ValueError("a truncation_reason goes with outcome 'truncated' only")
        if self.outcome == "truncated" and self.truncation_reason is None:
            raise ValueError(
                "outcome 'truncated' needs a truncation_reason, such as 'timeout' or 'turn_limit'"
            )
        if self.error is not None and self.outcome == "succeeded":
            raise ValueError("an error does not go with outcome 'succeeded'")
        return self

    def told(self) -> End:
        otherwise: Literal["succeeded", "failed", "truncated"] = (
            "succeeded" if self.error is None else "failed"
        )
        if self.truncation_reason is not None:
            otherwise = "truncated"
        error = _Error(type="error", message=self.error) if isinstance(self.error, str) else self.error
        return End(
            outcome=self.outcome or otherwise,
            error=None if error is None else (error.type, error.message),
            truncation_reason=self.truncation_reason,
        )


def harness_routes(harness: Harness, check: Callable[[Request], None]) -> list[Route]:
    """The three routes.

    Args:
        harness: where the rollouts are.
        check: refuses a request that may not come in.
    """

    async def read(request: Request, kind: type[_Body]) -> tuple[str, _Body]:
        check(request)
        check_content_type(request)
        body = await read_body(request, _MOST_BYTES)
        rollout_id: str = request.path_params["rollout"]
        return rollout_id, check_fields(kind, read_fields(body or b"{}"))

    async def start(request: Request) -> Response:
        rollout_id, told = await read(request, _Start)
        rollout = harness.start(rollout_id, told.told())
        return json_response({"rollout": rollout_id, "attempt": rollout.attempt, "group": rollout.group_id})

    async def reward(request: Request) -> Response:
        rollout_id, told = await read(request, _Reward)
        reward_id = harness.reward(rollout_id, told.told(), told.reward_id)
        return json_response({"rollout": rollout_id, "reward_id": reward_id})

    async def end(request: Request) -> Response:
        rollout_id, told = await read(request, _End)
        end = told.told()
        rollout = harness.end(rollout_id, end)
        return json_response({"rollout": rollout_id, "attempt": rollout.attempt, "outcome": end.outcome})

    def unless_gone(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            try:
                answer: Response = await handler(request)
            except ClientGoneError:
                return Response(status_code=499)
            return answer

        return handle

    return [
        Route(f"/r/{{rollout}}/{handler.__name__}", unless_gone(handler), methods=["POST"])
        for handler in (start, reward, end)
    ]
