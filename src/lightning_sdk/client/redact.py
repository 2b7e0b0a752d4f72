"""Secrets leave a body before it is written anywhere.

Cheap on what has none: every pattern begins with a literal, for which the engine of `re` searches fast, and some
are only tried where a rare byte occurs. Those that ignore case match the lower-cased body; what they find is
replaced in the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lightning_sdk.client import faults

RedactHook = Callable[[bytes], bytes]

_REPLACEMENT = b"[redacted]"

# The value of a JSON member, also where the JSON is itself inside a JSON string and its quotes are escaped.
_JSON_VALUE = rb'\\*"\s*:\s*\\*"([^"\\]+)'
_QUERY_VALUE = rb"=([^&\s\"'<>\\#]+)"


def _all(*patterns: bytes) -> tuple[re.Pattern[bytes], ...]:
    return tuple(map(re.compile, patterns))


# Patterns by a rare byte that is found at the speed of memory and without which none of them can match; empty
# where theirs are not rare. Each begins with its literal, for which alone a body is then searched. The group of a
# pattern, or all of it, is the secret.
_Rules = tuple[tuple[bytes, tuple[re.Pattern[bytes], ...]], ...]

# In the lower-cased body.
_RULES: _Rules = (
    # Keys of OpenAI, Anthropic and others. One digit at least: "sk-learn-compatible-estimators" is prose. The
    # letter of an escape of JSON is no part of a word.
    (b"-", _all(rb"(sk-(?:(?<![a-z0-9_-]sk-)|(?<=\\[nrtbf]sk-))(?=[a-z_-]*[0-9])[a-z0-9_-]{16,})")),
    (
        b"",
        _all(
            rb"bearer +([a-z0-9._~+/=-]{8,})",
            rb"key(?:(?:(?<=api[_-]key)|(?<=apikey)|(?<=access_key))"
            + _JSON_VALUE
            + rb"|(?:(?<=[?&_-]key)|(?<=[?&]apikey))"
            + _QUERY_VALUE
            + rb")",
            rb"authorization" + _JSON_VALUE,
        ),
    ),
    (b"=", _all(rb"token=(?<=[?&_-]token=)" + _QUERY_VALUE[1:])),
    # User information of a URL.
    (b"@", _all(rb"://([^\s/\"'<>@:\\]+:[^\s/\"'<>@\\]+)@")),
)


def _made(literal: bytes, rest: bytes) -> bytes:
    """A key that is no part of a longer word, for base64 holds every short text."""
    before = rb"(?:(?<![A-Za-z0-9]" + literal + rb")|(?<=\\[nrtbf]" + literal + rb"))"
    return literal + before + rest + rb"(?![A-Za-z0-9_])"


# In the body as it is: keys that begin as their maker says.
_MADE_RULES: _Rules = (
    # AWS and Google.
    (b"A", _all(_made(rb"A[KS]IA", rb"[0-9A-Z]{16}"), _made(rb"AIza", rb"[A-Za-z0-9_-]{35}"))),
    # GitHub and Hugging Face.
    (
        b"",
        _all(
            _made(rb"gh[pousr]_", rb"[A-Za-z0-9]{20,}"),
            _made(rb"github_pat_", rb"[A-Za-z0-9_]{20,}"),
            _made(rb"hf_", rb"[A-Za-z0-9]{30,}"),
        ),
    ),
    # GitLab and Slack.
    (b"-", _all(_made(rb"glpat-", rb"[A-Za-z0-9_-]{20,}"), _made(rb"xox[a-z]-", rb"[A-Za-z0-9-]{10,}"))),
    # A JSON Web Token: three parts, of which two are JSON objects.
    (b"J", _all(_made(rb"eyJ", rb"[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"))),
)


def redact(body: bytes, hook: RedactHook | None = None) -> tuple[bytes, int]:
    """Replace the secrets in `body`.

    Args:
        body: what is about to be written.
        hook: the user's own, called after the built-in patterns. If it raises or answers anything but bytes,
            the body is withheld: it comes back empty, which is counted, and is never written as it was.

    Returns:
        The body to write, and how many replacements were made in it.
    """
    if not body:
        return body, 0
    redacted, replacements = _replace_known(body)
    if hook is None:
        return redacted, replacements
    try:
        hooked = hook(redacted)
        if not isinstance(hooked, bytes):
            raise TypeError(f"the redact hook answered {type(hooked).__name__}, expected bytes")
    except Exception as error:
        faults.note("redact_hook", error)
        return b"", replacements + 1
    return hooked, replacements + (hooked != redacted)


def redact_text(text: str, hook: RedactHook | None = None) -> str:
    """`redact` for a message that is written as text."""
    return redact(text.encode("utf-8", "replace"), hook)[0].decode("utf-8", "replace")


def _replace_known(body: bytes) -> tuple[bytes, int]:
    spans = _found(_RULES, body.lower()) + _found(_MADE_RULES, body)
    if not spans:
        return body, 0
    spans.sort()
    parts: list[bytes] = []
    end = 0
    replacements = 0
    for start, stop in spans:
        if start >= end:
            parts += (body[end:start], _REPLACEMENT)
            replacements += 1
        end = max(end, stop)
    parts.append(body[end:])
    return b"".join(parts), replacements


def _found(rules: _Rules, body: bytes) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for byte, patterns in rules:
        if not byte or byte in body:
            for pattern in patterns:
                # Asked first: that is one call, and most often the answer is no.
                if pattern.search(body) is not None:
                    spans += [match.span(match.lastindex or 0) for match in pattern.finditer(body)]
    return spans
