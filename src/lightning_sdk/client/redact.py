"""Secrets leave a body before it is written anywhere.

Cheap on what has none: a body is searched for a few literals first, those only where a byte occurs that is
rarer in prose and JSON than they are slow to find, and a pattern runs only where its literal occurs. Patterns
match the lower-cased body, so that they can begin with a literal; what they find is replaced in the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from lightning_sdk.client import faults

RedactHook = Callable[[bytes], bytes]

_REPLACEMENT = b"[redacted]"

# The value of a JSON member, also where the JSON is itself inside a JSON string and its quotes are escaped.
_JSON_VALUE = rb'\\*"\s*:\s*\\*"([^"\\]+)'
_QUERY_VALUE = rb"=([^&\s\"'<>\\#]+)"


class _Rule(NamedTuple):
    # A single byte, which is found at the speed of memory; empty where none of the pattern's is rare.
    byte: bytes
    literal: bytes
    pattern: re.Pattern[bytes]


# Each literal costs a search of the whole body, so there are few. The group of a pattern is the secret.
_RULES = tuple(
    _Rule(byte, literal, re.compile(pattern))
    for byte, literal, pattern in (
        # Keys of OpenAI, Anthropic and others. One digit at least: "sk-learn-compatible-estimators" is prose.
        (b"-", b"sk-", rb"(sk-(?:(?<![a-z0-9_-]sk-)|(?<=\\[nrtbf]sk-))(?=[a-z_-]*[0-9])[a-z0-9_-]{16,})"),
        (b"", b"bearer ", rb"bearer +([a-z0-9._~+/=-]{8,})"),
        (
            b"",
            b"key",
            rb"key(?:(?:(?<=api[_-]key)|(?<=apikey)|(?<=access_key))"
            + _JSON_VALUE
            + rb"|(?:(?<=[?&_-]key)|(?<=[?&]apikey))"
            + _QUERY_VALUE
            + rb")",
        ),
        (b"=", b"token=", rb"token(?<=[?&_-]token)" + _QUERY_VALUE),
        (b"", b"authorization", rb"authorization" + _JSON_VALUE),
        # User information of a URL.
        (b"@", b"://", rb"://([^\s/\"'<>@:\\]+:[^\s/\"'<>@\\]+)@"),
    )
)
# Keys that begin as their maker says, in letters as they are: each literal and the pattern around it. They
# are no part of a longer word, for base64 holds every short text; the letter of an escape of JSON is none.
_MADE_RULES = tuple(
    (literal, re.compile(rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))" + pattern + rb"(?![A-Za-z0-9_])"))
    for literal, pattern in (
        # AWS; the literal is what both kinds have in them.
        (b"IA", rb"A[KS]IA[0-9A-Z]{16}"),
        # GitHub.
        (b"ghp_", rb"ghp_[A-Za-z0-9]{20,}"),
        (b"gho_", rb"gho_[A-Za-z0-9]{20,}"),
        (b"ghu_", rb"ghu_[A-Za-z0-9]{20,}"),
        (b"ghs_", rb"ghs_[A-Za-z0-9]{20,}"),
        (b"ghr_", rb"ghr_[A-Za-z0-9]{20,}"),
        (b"github_pat_", rb"github_pat_[A-Za-z0-9_]{20,}"),
        # Hugging Face, GitLab, Slack, Google.
        (b"hf_", rb"hf_[A-Za-z0-9]{30,}"),
        (b"glpat-", rb"glpat-[A-Za-z0-9_-]{20,}"),
        (b"xox", rb"xox[a-z]-[A-Za-z0-9-]{10,}"),
        (b"AIza", rb"AIza[A-Za-z0-9_-]{35}"),
        # A JSON Web Token: three parts, of which two are JSON objects.
        (b"eyJ", rb"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    )
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
    lowered = body.lower()
    spans = []
    for byte, literal, pattern in _RULES:
        if byte in lowered and literal in lowered:
            spans += [match.span(match.lastindex or 0) for match in pattern.finditer(lowered)]
    for literal, pattern in _MADE_RULES:
        if literal in body:
            spans += [match.span() for match in pattern.finditer(body)]
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
