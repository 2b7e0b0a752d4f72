"""An episode as a tree for a terminal: agents nested, below each its calls, tools and rewards in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from lightning_sdk.cli import wording
from lightning_sdk.cli.tokens import by_call, call_tokens, episode_tokens
from lightning_sdk.mdp import TEXT_ONLY, CallView, Episode, RewardEvent, ScopeSpan, ToolEvent, Transition

# How a reward found its place.
_BOUND: Final[Mapping[str, str]] = {
    "call": "bound by call",
    "scope": "bound by scope",
    "context": "bound by context",
    "rollout": "bound by rollout id",
    "none": "unbound",
}


# Cells that are left of arguments in the narrowest terminal.
_LEAST_MIDDLE: Final = 8
# Cells that are left of every line, and what each level of the tree takes.
_LEAST_LABEL: Final = 32
_GUIDE: Final = 4


@dataclass(frozen=True)
class _Node:
    """A line (or several) of the tree, with what hangs below it."""

    start_ns: int
    label: RenderableType
    scope_id: str | None = None


@dataclass
class _View:
    """An episode, arranged for drawing."""

    episode: Episode
    calls: Mapping[str, CallView]
    full: bool
    # Scope id (None: the rollout itself) to what began in it.
    children: dict[str | None, list[_Node]] = field(default_factory=lambda: defaultdict(list))


def render_episode(
    episode: Episode, calls: Mapping[str, CallView], *, full: bool, outcome: str | None = None
) -> RenderableType:
    """Draw one episode.

    Args:
        episode: what to draw.
        calls: its calls by id, for what transitions do not say: errors, attempts, the provider's usage.
        full: whole messages, arguments, results, errors and metadata instead of one line each.
        outcome: shown in place of the episode's.
    """
    shown = outcome or episode.outcome
    return Group(_EpisodeTree(episode, calls, full, shown), Text(), totals(episode, calls, shown))


@dataclass(frozen=True)
class _EpisodeTree:
    """The tree, as deep as the terminal is wide enough for."""

    episode: Episode
    calls: Mapping[str, CallView]
    full: bool
    outcome: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = _View(self.episode, self.calls, self.full)
        _arrange(view)
        tree = Tree(_header(self.episode, self.outcome, full=self.full), guide_style="dim", highlight=False)
        _grow(view, tree, max((options.max_width - _LEAST_LABEL) // _GUIDE, 1))
        yield tree


def totals(episode: Episode, calls: Mapping[str, CallView], outcome: str) -> Text:
    """The last line: counts, tokens, return, outcome, completeness; and why calls are of no use."""
    prompt, response = episode_tokens(episode, calls)
    if not episode.transitions and not episode.calls_without_transition:
        prompt = response = 0  # that is known
    parts = [
        wording.count(len({each.call_id for each in episode.transitions}), "call"),
        wording.count(len(episode.tools), "tool"),
        _amounts(prompt, response) or "tokens unknown",
        f"return {wording.number(episode.return_)}",
        outcome,
        "complete" if episode.complete else "incomplete",
    ]
    text = Text(" · ".join(parts), style="bold")
    dropped: Counter[str] = Counter(each.drop_reason for each in episode.transitions if each.drop_reason)
    for name, style in (("unusable", "yellow"), ("text only", "dim")):
        counts = {why: many for why, many in dropped.items() if (why in TEXT_ONLY) == (name == "text only")}
        if counts:
            text.append(f"\n{name}: {wording.tally(counts)}", style=f"not bold {style}")
    if episode.calls_without_transition:
        text.append(
            f"\ncalls that are no decision: {wording.tally(episode.calls_without_transition)}",
            style="not bold dim",
        )
    return text


def _amounts(prompt: int | None, response: int | None) -> str:
    if prompt is None and response is None:
        return ""
    return " → ".join("?" if each is None else f"{each:,}" for each in (prompt, response)) + " tokens"


def _arrange(view: _View) -> None:
    episode = view.episode
    known = {scope.scope_id for scope in episode.scopes}
    bound: dict[str, list[RewardEvent]] = defaultdict(list)
    call_ids = {transition.call_id for transition in episode.transitions}
    loose: list[RewardEvent] = []
    for reward in episode.rewards:
        if reward.call_id in call_ids:
            bound[reward.call_id or ""].append(reward)
        else:
            loose.append(reward)

    def place(scope_id: str | None, node: _Node) -> None:
        view.children[scope_id if scope_id in known else None].append(node)

    for scope in episode.scopes:
        label = _scope_label(scope, full=view.full)
        place(scope.parent_scope_id, _Node(scope.start_ns, label, scope.scope_id))
    latest_ns = 0
    for call_id, group in by_call(episode):
        choices = list(group)
        # Calls come in causal order, which their clocks need not follow.
        latest_ns = max(latest_ns, choices[0].start_ns)
        place(choices[0].invocation_id, _Node(latest_ns, _call_label(view, choices, bound[call_id])))
    for tool in episode.tools:
        place(tool.scope_id, _Node(tool.start_ns, _tool_label(tool, full=view.full)))
    for reward in loose:
        place(reward.scope_id, _Node(reward.time_ns, _reward_label(reward, episode)))


def _grow(view: _View, tree: Tree, levels: int) -> None:
    """Hang everything up, depth first; what nests deeper than `levels` stands below each other.

    Not by recursion: agents may nest as deep as they like.
    """

    def below(scope_id: str | None, branch: Tree, depth: int) -> Iterator[tuple[Tree, _Node, int]]:
        nodes = sorted(view.children.pop(scope_id, []), key=lambda node: node.start_ns)
        return ((branch, node, depth) for node in reversed(nodes))

    pending = list(below(None, tree, 1))
    while pending:
        branch, node, depth = pending.pop()
        grown = branch.add(node.label)
        if node.scope_id is None:
            continue
        nested = list(below(node.scope_id, grown if depth < levels else branch, depth + 1))
        if nested and depth == levels:
            branch.add(Text("… deeper, without indent", style="dim"))
        pending += nested


def _header(episode: Episode, outcome: str, *, full: bool) -> RenderableType:
    first = _line(("rollout ", ""), (wording.one_line(episode.rollout_id or "-"), "bold"), ("  ", ""))
    first.append(outcome, style=wording.OUTCOME_STYLES.get(outcome, ""))
    if episode.truncation_reason:
        first.append(f" ({wording.one_line(episode.truncation_reason)})", style="yellow")
    first.append(f"  {wording.duration(episode.start_ns, episode.end_ns)}", style="dim")
    facts = {
        "task": episode.task_id,
        "project": episode.project,
        "run": wording.short_id(episode.run_id),
        "split": episode.split,
        "attempt": episode.attempt if episode.attempt > 1 else None,
        "started": wording.moment(episode.start_ns),
    }
    second = "  ".join(f"{name} {wording.one_line(str(value))}" for name, value in facts.items() if value)
    # These wrap where the terminal is narrow: none of them is long, and each is asked for.
    lines: list[RenderableType] = [first, Text(second, style="dim")]
    if episode.metadata:
        metadata = f"metadata {wording.compact_json(dict(episode.metadata))}"
        lines.append(_free_text(metadata, "dim", full=full))
    if episode.error:
        lines.append(_free_text(f"error: {episode.error}", "red", full=full))
    return Group(*lines)


def _scope_label(scope: ScopeSpan, *, full: bool) -> RenderableType:
    title = _line((wording.one_line(scope.agent), "bold magenta"))
    title.append(f"  {wording.duration(scope.start_ns, scope.end_ns)}", style="dim")
    title.append_text(_outcome_mark(scope.outcome, scope.error))
    return Group(title, *map(_below, _error_lines(scope.outcome, scope.error, full=full)))


def _call_label(view: _View, choices: Sequence[Transition], rewards: Sequence[RewardEvent]) -> RenderableType:
    first = choices[0]
    call = view.calls.get(first.call_id)
    tokens = _amounts(*call_tokens(choices, call))
    title = _line((f"#{first.step} ", "bold"), (wording.one_line(first.model or "unknown model"), "cyan"))
    if tokens:
        title.append(f"  {tokens}")
    if len(choices) == 1 and first.action is not None and first.action.get("finish_reason"):
        title.append(f"  {wording.one_line(str(first.action['finish_reason']))}")
    title.append(f"  {wording.duration(first.start_ns, first.end_ns)}", style="dim")
    if first.policy_version is not None:
        title.append(f"  version {first.policy_version}", style="dim")
    if first.order == "clock":
        title.append("  order by clock", style="dim")
    if call is not None:
        if call.attempts > 1:
            title.append(f"  {call.attempts} attempts", style="yellow")
        title.append_text(_outcome_mark(call.outcome, call.error))
    below: list[RenderableType] = list(
        _message_lines(_new_messages(first.observation, full=view.full), view.full)
    )
    for choice in choices:
        below += _choice_lines(choice, numbered=len(choices) > 1, full=view.full)
    if call is not None:
        below += _error_lines(call.outcome, call.error, full=view.full)
    below += [_reward_label(reward, view.episode) for reward in rewards]
    return Group(title, *map(_below, below))


def _new_messages(observation: Mapping[str, Any], *, full: bool) -> Sequence[Any]:
    """What is new to the model: the messages after its own last one; only the last unless `full`."""
    messages = observation.get("messages")
    if messages is None:
        messages = observation.get("prompt")
        return [] if messages is None else [messages]
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return [messages]
    start = max(
        (
            i + 1
            for i, each in enumerate(messages)
            if isinstance(each, Mapping) and each.get("role") == "assistant"
        ),
        default=0,
    )
    return messages[start:] if full else messages[-1:]


def _message_lines(messages: Sequence[Any], full: bool) -> Iterator[RenderableType]:
    for message in messages:
        if isinstance(message, Mapping):
            role = wording.one_line(str(message.get("role", "message")))
            text = wording.content_text(message.get("content"))
        else:
            role, text = "prompt", wording.content_text(message)
        yield _said(role, text, full=full)


def _choice_lines(choice: Transition, *, numbered: bool, full: bool) -> Iterator[RenderableType]:
    name = f"reply {choice.choice}" if numbered else "reply"
    message = (choice.action or {}).get("message")
    if isinstance(message, Mapping):
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if full and isinstance(reasoning, str):
            yield _said("reasoning", reasoning, full=full)
        content = wording.content_text(message.get("content") or message.get("refusal"))
        requests = message.get("tool_calls") or []
        if content or not requests:
            yield _said(name, content, full=full)
        for request in requests:
            yield _said(f"{name}, calls" if numbered else "calls", wording.tool_request(request), full=full)
    # That there are no token ids is no news at each call, and an error has a line of its own; the totals tell.
    if choice.drop_reason not in (None, "no_token_ids", "error"):
        use = "text only" if choice.drop_reason in TEXT_ONLY else "unusable"
        which = f"{name} is {use}" if numbered else use
        yield _line((f"{which}: {choice.drop_reason}", "yellow"))


def _tool_label(tool: ToolEvent, *, full: bool) -> RenderableType:
    name = _line(("tool ", ""), (wording.one_line(tool.name), "bold blue"))
    end = _line(("" if full else ")", ""), (f"  {wording.duration(tool.start_ns, tool.end_ns)}", "dim"))
    end.append_text(_outcome_mark(tool.outcome, tool.error))
    given = wording.arguments(tool.arguments)
    below: list[RenderableType] = [_said("arguments", given, full=True)] if full else []
    if tool.outcome == "ok":
        below.append(_said("result", wording.compact_json(tool.result), full=full))
    below += _error_lines(tool.outcome, tool.error, full=full)
    title = name.append_text(end) if full else _Fitted(name.append("("), wording.one_line(given), end)
    return Group(title, *map(_below, below))


def _reward_label(reward: RewardEvent, episode: Episode) -> RenderableType:
    sign = "green" if reward.value > 0 else "red" if reward.value < 0 else ""
    text = _line((f"reward {reward.value:+.4g}", f"bold {sign}"))
    named = {wording.one_line(name): value for name, value in reward.components.items() if name}
    if len(named) == len(reward.components) == 1:
        text.append(f" ({next(iter(named))})")
    elif named:
        text.append(f" ({', '.join(f'{name} {value:.4g}' for name, value in named.items())})")
    if reward.replaced:
        text.append("  replaced by a later one", style="yellow")
    text.append(f"  {_BOUND[reward.bound]}", style="dim")
    agents = [scope.agent for scope in episode.scopes if scope.scope_id == reward.scope_id]
    if agents:
        text.append(f" in {wording.one_line(agents[0])}", style="dim")
    return text


def _outcome_mark(outcome: str | None, error: str | None) -> Text:
    """What a title says of an end that was not good; nothing where an error says it below."""
    if outcome is None:
        return Text("  not ended", style="yellow")
    if outcome == "ok" or (outcome == "error" and error):
        return Text()
    return Text(f"  {outcome.replace('_', ' ')}", style="red" if outcome == "error" else "yellow")


def _error_lines(outcome: str | None, error: str | None, *, full: bool) -> Iterator[RenderableType]:
    """The error on a line of its own, where no title cuts it."""
    if error and outcome != "ok":
        yield _free_text(f"error: {error}", "red", full=full)


def _said(who: str, what: str, *, full: bool) -> RenderableType:
    if not full:
        return _line((f"{who}: ", "dim"), (wording.one_line(what), ""))
    text = Text(overflow="fold")
    text.append(f"{who}: ", style="dim")
    text.append(wording.printable(what))
    return text


def _free_text(text: str, style: str, *, full: bool) -> RenderableType:
    if full:
        return Text(wording.printable(text), style=style, overflow="fold")
    return _line((wording.one_line(text), style))


@dataclass(frozen=True)
class _Fitted:
    """A line of which the middle is cut where the whole is too wide, so that its end is always seen."""

    start: Text
    middle: str
    end: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - self.start.cell_len - self.end.cell_len
        middle = Text(self.middle)
        middle.truncate(max(room, _LEAST_MIDDLE), overflow="ellipsis")
        yield Text.assemble(self.start, middle, self.end, no_wrap=True, overflow="ellipsis")


def _below(line: RenderableType) -> RenderableType:
    return Padding(line, (0, 0, 0, 2), expand=False)


def _line(*parts: tuple[str, str]) -> Text:
    """One line that is cut at the width of the terminal."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for content, style in parts:
        text.append(content, style=style)
    return text
