"""A tokenizer from a local Hugging Face directory. Imports transformers, and torch only where that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer

from lightning_sdk.errors import ConfigError
from lightning_sdk.policy.token_length import token_bound


class HuggingFaceTokenizer:
    """A transformers tokenizer as `engine.Tokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bound = token_bound(tokenizer)

    @property
    def end_id(self) -> int | list[int] | None:
        """The token with which a turn ends, as a tokenizer tells it: one, several or none."""
        found: int | list[int] | None = self._tokenizer.eos_token_id
        return found

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of these ids."""
        return str(
            self._tokenizer.decode(
                list(token_ids),
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """Messages and tools through the chat template.

        Raises:
            ValueError: the template refuses them.
        """
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) if tools else None,
                    add_generation_prompt=True,
                    tokenize=False,
                )
            )
        except (TemplateError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(str(error)) from error

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def least_tokens(self, text: str) -> int:
        """As many as if every token were as long as the longest."""
        return self._bound.least_tokens(text)


def load_tokenizer(directory: Path) -> HuggingFaceTokenizer:
    """The tokenizer of a local model directory, with its chat template.

    Raises:
        ConfigError: it does not load, or has no template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"{directory}: its tokenizer does not load: {one_line(error)}") from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{directory}: its tokenizer has no chat template, which says how messages become a prompt: "
            "use an instruction-tuned model, or add a chat_template.jinja"
        )
    return HuggingFaceTokenizer(tokenizer)


def one_line(error: BaseException) -> str:
    """What an error says, short enough to be part of a sentence."""
    return " ".join(str(error).split())[:300]
