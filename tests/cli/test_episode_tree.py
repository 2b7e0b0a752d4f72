"""What `lsdk show` draws.

1. Agents nest as their scopes did; below each come its calls, tools and rewards in the order of their starts.
2. Calls keep the causal order of the episode, whatever their clocks say.
3. A call shows what was new to the model and what it answered, each on one line; --full cuts nothing.
4. A reward stands at the call that it is bound to, and says how it found it.
5. What failed, was dropped or is unknown says so; what is unknown is never shown as 0.
6. Text from models and tools cannot act on the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from lightning_sdk.cli.episode_tree import render_episode
from lightning_sdk.mdp import CallView, Episode
from support.cli_episodes import at, call_view, episode, reward, scope, tool, transition


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def drawn(
    episode: Episode, calls: Mapping[str, CallView] | None = None, *, full: bool = False, width: int = 80
) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    console.print(render_episode(episode, calls or {}, full=full))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


QUESTION = {
    "role": "user",
    "content": "What is 12 * 7? Use the calculator and answer with nothing but the number.",
}
USES_TOOL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "x",
            "type": "function",
            "function": {"name": "calculate", "arguments": '{"expression": "12 * 7"}'},
        }
    ],
}


def two_agents() -> Episode:
    return episode(
        metadata={"difficulty": "hard"},
        return_=0.5,
        scopes=[
            scope("sc_1", "solve"),
            scope("sc_2", "critic", parent_scope_id="sc_1", start_ns=at(700), end_ns=at(1500)),
        ],
        transitions=[
            transition(
                observation={"messages": [{"role": "system", "content": "You calculate."}, QUESTION]},
                action={"message": USES_TOOL, "finish_reason": "tool_calls"},
                fidelity="engine",
                prompt_token_ids=range(1812),
                response_token_ids=range(45),
                policy_version=3,
            ),
            transition(
                step=1,
                call_id="ca_1",
                start_ns=at(300),
                end_ns=at(690),
                observation={"messages": [QUESTION, USES_TOOL, {"role": "tool", "content": "84"}]},
            ),
            transition(
                step=2, call_id="ca_2", agent="critic", invocation_id="sc_2", start_ns=at(710), end_ns=at(900)
            ),
        ],
        tools=[tool("calculate", arguments={"expression": "12 * 7"}, result=84)],
        rewards=[
            reward(1.0, call_id="ca_1", components={"correct": 1.0, "brevity": 0.0}),
            reward(-0.5, call_id="ca_2", scope_id="sc_2", bound="call"),
        ],
    )


def test_a_rollout_reads_from_top_to_bottom() -> None:
    usage = {"prompt_tokens": 78, "completion_tokens": 16}
    assert drawn(two_agents(), {"ca_1": call_view("ca_1", usage)}) == (
        "rollout ro_11111111111111111111111111111111  succeeded  2.00s\n"
        "task math-17  project default  run aaaaaaaa  started 2001-09-09 01:46:40\n"
        'metadata {"difficulty": "hard"}\n'
        "└── solve  2.00s\n"
        "    ├── #0 tiny-model  1,812 → 45 tokens  tool_calls  100ms  version 3\n"
        "    │     user: What is 12 * 7? Use the calculator and answer with nothing but …\n"
        '    │     calls: calculate({"expression": "12 * 7"})\n'
        '    ├── tool calculate(expression="12 * 7")  3ms\n'
        "    │     result: 84\n"
        "    ├── #1 tiny-model  78 → 16 tokens  stop  390ms\n"
        "    │     tool: 84\n"
        "    │     reply: 84\n"
        "    │     reward +1 (correct 1, brevity 0)  bound by scope in solve\n"
        "    └── critic  800ms\n"
        "        └── #2 tiny-model  stop  190ms\n"
        "              user: What is 12 * 7?\n"
        "              reply: 84\n"
        "              reward -0.5  bound by call in critic\n"
        "\n"
        "3 calls · 1 tool · 1,890 → 61 tokens · return 0.5 · succeeded · complete\n"
    )


def test_full_shows_every_new_message_whole() -> None:
    text = drawn(two_agents(), full=True)
    assert "    │     system: You calculate.\n" in text
    assert (
        "    │     user: What is 12 * 7? Use the calculator and answer with nothing but\n"
        "    │     the number.\n"
    ) in text
    assert (
        '    ├── tool calculate  3ms\n    │     arguments: expression="12 * 7"\n    │     result: 84\n'
        in text
    )
    # What the second call had seen before is not repeated.
    assert text.count("Use the calculator") == 1


def test_what_went_wrong_says_so() -> None:
    failed = episode(
        outcome="failed",
        error="ValueError: the judge\nsaid no",
        complete=False,
        end_ns=None,
        scopes=[scope("sc_1", "solve", end_ns=None, outcome=None)],
        transitions=[
            transition(action=None, drop_reason="error", outcome="failed"),
            transition(
                step=1,
                call_id="ca_1",
                action={"message": {"role": "assistant", "content": None}, "finish_reason": "stop"},
                drop_reason="empty_response",
                order="clock",
            ),
        ],
        tools=[tool("search", arguments={"q": "tea"}, outcome="error", error="KeyError: 'q'")],
        calls_without_transition={"embedding": 2},
    )
    view = call_view("ca_0", outcome="error", error="RateLimitError: slow down", attempts=3)
    assert drawn(failed, {"ca_0": view}) == (
        "rollout ro_11111111111111111111111111111111  failed  -\n"
        "task math-17  project default  run aaaaaaaa  started 2001-09-09 01:46:40\n"
        "error: ValueError: the judge said no\n"
        "└── solve  -  not ended\n"
        "    ├── #0 tiny-model  100ms  3 attempts\n"
        "    │     user: What is 12 * 7?\n"
        "    │     error: RateLimitError: slow down\n"
        "    ├── #1 tiny-model  stop  100ms  order by clock\n"
        "    │     user: What is 12 * 7?\n"
        "    │     reply:\n"
        "    │     unusable: empty_response\n"
        '    └── tool search(q="tea")  3ms\n'
        "          error: KeyError: 'q'\n"
        "\n"
        "2 calls · 1 tool · tokens unknown · return - · failed · incomplete\n"
        "unusable: empty_response 1, error 1\n"
        "calls that are no decision: embedding 2\n"
    )


def test_calls_keep_their_causal_order_against_the_clock() -> None:
    text = drawn(
        episode(
            scopes=[scope("sc_1", "solve")],
            transitions=[
                transition(step=0, call_id="ca_0", start_ns=at(500)),
                transition(step=1, call_id="ca_1", start_ns=at(100)),
            ],
            tools=[tool("later", start_ns=at(600))],
        )
    )
    assert text.index("#0") < text.index("#1") < text.index("tool later")


def test_each_choice_of_a_call_has_its_reply() -> None:
    text = drawn(
        episode(
            transitions=[
                transition(
                    action={"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
                ),
                transition(
                    choice=1,
                    action={"message": {"role": "assistant", "content": "no"}, "finish_reason": "length"},
                    drop_reason="unused_choice",
                ),
            ]
        )
    )
    assert "      reply 0: yes\n      reply 1: no\n      reply 1 is unusable: unused_choice\n" in text
    assert "1 call · " in text


def test_a_reward_without_a_call_stands_where_it_was_emitted() -> None:
    text = drawn(
        episode(
            scopes=[scope("sc_1", "solve")],
            rewards=[
                reward(0.25, call_id=None),
                reward(2.0, call_id=None, scope_id=None, bound="rollout", replaced=True, reward_id="judge"),
            ],
        )
    )
    assert "├── solve  2.00s\n│   └── reward +0.25  bound by scope in solve\n" in text
    assert "└── reward +2  replaced by a later one  bound by rollout id\n" in text


def test_a_rollout_without_calls_has_no_tokens_and_one_of_unknown_calls_unknown_ones() -> None:
    assert "0 calls · 0 tools · 0 → 0 tokens" in drawn(episode())
    assert "tokens unknown" in drawn(episode(calls_without_transition={"embedding": 1}))


@pytest.mark.parametrize("width", [40, 80, 400])
def test_agents_that_nest_without_end_are_all_shown(width: int) -> None:
    many = 5000
    scopes = [
        scope(f"sc_{place}", f"agent{place}", parent_scope_id=f"sc_{place - 1}" if place else None)
        for place in range(many)
    ]
    deepest = transition(invocation_id=f"sc_{many - 1}")
    text = drawn(
        episode(scopes=scopes, transitions=[deepest], tools=[tool("late", scope_id="sc_0")]), width=width
    )
    places = [text.index(f" agent{place}  ") for place in range(many)]
    assert places == sorted(places)
    assert text.count("… deeper, without indent\n") == 1
    assert text.index(f" agent{many - 1}  ") < text.index("#0") < text.index("tool late")
    assert max(map(len, text.splitlines())) <= width


def test_what_belongs_to_an_unknown_scope_is_shown_at_the_top() -> None:
    assert "└── #0 tiny-model" in drawn(episode(transitions=[transition(invocation_id="sc_lost")]))


def test_text_cannot_act_on_the_terminal() -> None:
    evil = "a\x1b[2J\x07b\u202ec\r\n[bold]d[/bold] :boom:"
    text = drawn(
        episode(
            outcome="failed",
            error=evil,
            metadata={"m": "\x9b31m"},
            scopes=[scope("sc_1", evil)],
            transitions=[transition(model=evil, observation={"messages": [{"role": evil, "content": evil}]})],
            tools=[tool(evil, arguments=evil, result=evil)],
        ),
        full=True,
    )
    assert not {"\x1b", "\x07", "\u202e", "\r", "\x9b"} & set(text)
    assert "a\\x1b[2J\\x07b\\u202ec" in text
    assert "[bold]d[/bold] :boom:" in text


def test_the_end_of_a_tools_line_is_seen_however_long_its_arguments_are() -> None:
    long = {"query": "tea " * 40}
    text = drawn(
        episode(
            tools=[
                tool("search", arguments=long, result=1),
                tool("search", arguments=long, outcome="cancelled", start_ns=at(300), end_ns=at(1300)),
                tool("search", arguments=long, outcome="error", error="E: no", start_ns=at(400)),
            ]
        ),
        width=60,
    )
    assert text.splitlines()[3:9] == [
        '├── tool search(query="tea tea tea tea tea tea tea te…)  3ms',
        "│     result: 1",
        '├── tool search(query="tea tea tea tea t…)  1.00s  cancelled',
        '└── tool search(query="tea tea tea tea tea tea tea t…)  <1ms',
        "      error: E: no",
        "",
    ]


def test_long_metadata_and_errors_take_one_line_unless_all_is_asked_for() -> None:
    long = episode(outcome="failed", error="ValueError: " + "no " * 60, metadata={"note": "word " * 60})
    assert len(drawn(long).splitlines()) == 6
    full = " ".join(drawn(long, full=True).split())
    assert "no " * 59 + "no" in full
    assert "word " * 59 + "word" in full


def test_a_reward_of_one_named_component_is_said_once() -> None:
    text = drawn(episode(rewards=[reward(0.7, components={"critic": 0.7}, call_id=None, scope_id=None)]))
    assert "reward +0.7 (critic)  bound by scope\n" in text


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, "user:\n"),
        (
            [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}],
            "user: look [image_url]\n",
        ),
        ({"unexpected": 1}, 'user: {"unexpected": 1}\n'),
    ],
)
def test_every_form_of_content_is_shown(content: object, shown: str) -> None:
    messages = [{"role": "user", "content": content}]
    assert shown in drawn(episode(transitions=[transition(observation={"messages": messages})]))


def test_a_truncated_rollout_says_what_cut_it_off() -> None:
    first = drawn(episode(outcome="truncated", truncation_reason="turn\x1b[2Jlimit")).splitlines()[0]
    assert "  truncated (turn" in first
    assert "\x1b" not in first
