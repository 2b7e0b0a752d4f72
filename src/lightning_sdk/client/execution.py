"""One execution of a traced callable: started when its code runs, entered while it does, finished once."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import CoroutineType
from typing import Any
from weakref import ReferenceType

from lightning_sdk.client import faults, journal, runtime, scope
from lightning_sdk.client.jsonable import object_to_json, to_json
from lightning_sdk.client.otel import ScopeSpan, active_ids
from lightning_sdk.client.redact import redact
from lightning_sdk.client.rollout import begin_rollout
from lightning_sdk.ids import new_id
from lightning_sdk.records import OUTCOMES, OutcomeName, Record, ToolCall


class Execution(ABC):
    """What all traced executions share. `with execution:` stands around the user's code whenever it runs."""

    __slots__ = ("_pid", "_started", "_unfinished", "driver")

    def __init__(self) -> None:
        self._started = False
        # The process in which it was started, and which therefore ends it.
        self._pid = 0
        # Popped by whoever finishes it: "once" without a lock.
        self._unfinished = [True]
        # The generator or coroutine that the consumer holds.
        self.driver: ReferenceType[Any] | None = None

    def start(self) -> None:
        """The user's code is about to run; only the first call counts. Never raises."""
        if not self._started:
            self._started = True
            self._pid = os.getpid()
            with faults.guard("start"):
                self._start()

    def finish(self, outcome: OutcomeName, error: BaseException | None = None, result: object = None) -> None:
        """The user's code has run for the last time; only the first call counts. Never raises.

        A forked child inherits what is running, but it is its parent's to end.
        """
        if not self._started or self._pid != os.getpid():
            return
        try:
            self._unfinished.pop()
        except IndexError:
            return
        with faults.guard("finish"):
            self._finish(outcome, error, result)

    def finish_raised(self, error: BaseException) -> None:
        """The user's code has ended by an exception."""
        self.finish(self._outcome_of(error), error)

    def finish_returned(self, result: object, thrown: BaseException | None = None) -> None:
        """It has returned: at its end, or because it was closed (`thrown` is a GeneratorExit)."""
        if isinstance(thrown, GeneratorExit):
            self.finish_raised(thrown)
        else:
            self.finish("ok", result=result)

    def _outcome_of(self, error: BaseException) -> OutcomeName:
        if isinstance(error, GeneratorExit):
            # Weak references die before the generator itself is told, which tells dropping from closing.
            dropped = self.driver is not None and self.driver() is None
            return "abandoned" if dropped else "closed_early"
        return "error" if isinstance(error, Exception) else "cancelled"

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _finish(self, outcome: OutcomeName, error: BaseException | None, result: object) -> None: ...

    @abstractmethod
    def __enter__(self) -> None: ...

    @abstractmethod
    def __exit__(self, *raised: object) -> None: ...


class Keeper:
    """Held by whatever drives an execution, and by nothing else: ends it where its driver never came to.

    The execution itself has no `__del__`. One would run at the end of every traced call, and Python discards
    what a signal handler raises there.
    """

    # Of the class, since also what was never made whole is collected.
    unstarted: CoroutineType[Any, Any, Any] | None = None
    execution: Execution | None = None

    def __init__(self, execution: Execution, unstarted: CoroutineType[Any, Any, Any] | None = None) -> None:
        # The user's own coroutine, as long as nothing of it has run.
        self.unstarted = unstarted
        self.execution = execution

    def begin(self) -> None:
        """The driver begins to run."""
        self.unstarted = None
        if self.execution is not None:
            self.execution.start()

    def __del__(self) -> None:
        if self.unstarted is not None:
            # Python warns once of a coroutine that was never awaited: of ours, which bears its name.
            self.unstarted.close()
        if self.execution is not None and self.execution._unfinished:
            self.execution.finish("abandoned")


class AgentExecution(Execution):
    """One invocation of a `trace_agent`; outside any rollout it is one."""

    __slots__ = ("_agent", "_before", "_scope", "_span", "_top")

    def __init__(self, agent: str) -> None:
        super().__init__()
        self._agent = agent
        self._scope: scope.Scope | None = None
        # The top of the rollout, where this invocation is the outermost.
        self._top: scope.Scope | None = None
        self._before: scope.Scope | None = None
        self._span: ScopeSpan | None = None

    def _start(self) -> None:
        parent = scope.current()
        if parent is None:
            parent = self._top = begin_rollout(runtime.active())
        else:
            # It may be the first thing that this process records, of a rollout that began elsewhere.
            runtime.active_for(parent.rollout)
        rollout = parent.rollout
        self._span = ScopeSpan.start(self._agent, rollout.rollout_id)
        started = scope.Scope(rollout, scope_id=new_id("sc"), agent=self._agent, parent=parent)
        journal.start_scope(started, self._span.ids if self._span else active_ids())
        self._scope = started

    def _finish(self, outcome: OutcomeName, error: BaseException | None, result: object) -> None:
        if self._scope is None:
            return
        if self._span is not None:
            self._span.detach()  # where it was attached when a signal handler raised
            self._span.end(outcome, error)
        try:
            journal.end_scope(self._scope, outcome, error, self._span.ids if self._span else active_ids())
        finally:
            # Also where an interrupt of the agent's came in between.
            if self._top is not None:
                self._end_rollout(self._top, outcome, error)

    def _end_rollout(self, top: scope.Scope, outcome: OutcomeName, error: BaseException | None) -> None:
        try:
            journal.end_rollout(top, outcome, error)
        finally:
            if outcome != "abandoned":
                scope.remember_ended(top)

    def __enter__(self) -> None:
        if self._scope is not None:
            self._before = scope.enter(self._scope)
            if self._span is not None:
                self._span.attach()

    def __exit__(self, *raised: object) -> None:
        if self._scope is not None:
            if self._span is not None:
                self._span.detach()
            scope.leave(self._scope, self._before)
            self._before = None


class ToolExecution(Execution):
    """One execution of a `trace_tool`. It is no scope: what it calls belongs to the agent around it."""

    __slots__ = ("_arguments", "_began", "_given", "_name", "_runtime", "_scope", "_tool_call_id")

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._name = name
        self._given = arguments
        self._arguments = b""
        self._scope: scope.Scope | None = None
        self._runtime: runtime.Runtime | None = None
        self._began = journal.NEVER
        self._tool_call_id = ""

    def _start(self) -> None:
        self._scope = scope.current()
        active = runtime.active_for(self._scope.rollout) if self._scope is not None else runtime.active()
        if self._scope is None and not active.captured:
            faults.count("tool_calls_outside_rollout")
            return
        # Now: the tool may change what it was given.
        self._arguments = object_to_json(self._given)
        self._tool_call_id = new_id("tc")
        self._began = journal.ticked(active, active_ids())
        self._runtime = active

    def _finish(self, outcome: OutcomeName, error: BaseException | None, result: object) -> None:
        active = self._runtime
        if active is None:
            return
        end_ns = time.time_ns()
        hook = active.config.redact
        arguments, hidden = redact(self._arguments, hook)
        answer, also_hidden = redact(to_json(result), hook) if outcome == "ok" else (b"", 0)
        if hidden + also_hidden:
            faults.count("redactions_in_tools", hidden + also_hidden)
        tool = ToolCall(
            tool_call_id=self._tool_call_id,
            name=self._name,
            agent=self._scope.agent if self._scope else "",
            arguments=arguments,
            result=answer,
            outcome=OUTCOMES[outcome],
            error=journal.error_of(active, error),
        )

        record = Record(end_ns=end_ns, tool_call=tool)
        if self._scope is None:
            journal.append_outside(active, self._began, record)
        else:
            journal.append(self._scope, self._began, record)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: object) -> None:
        return None
