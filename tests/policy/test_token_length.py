"""A lower bound of a prompt's tokens without tokenising: never above what the tokenizer says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.tiny_model import save_tiny_model

pytest.importorskip("transformers", reason="needs the [torch] extra")

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lightning_sdk.policy.huggingface_tokenizer import HuggingFaceTokenizer
from lightning_sdk.policy.token_length import token_bound

pytestmark = pytest.mark.model

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
# Merged characters, several bytes a character, a decomposed one that NFC makes one of three.
TEXTS = [
    "aaaa" * 50,
    "zebra \u20ac \U0001f600" * 20,
    "\u03b1\u0313\u0300\u0345" * 100,
    " " * 300,
    "",
    "<|long special|>" * 9,
]


def _byte_level(lacks: str = "", **parts: Any) -> PreTrainedTokenizerFast:
    write = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    gone = {write(character)[0][0] for character in lacks}
    merges = [] if "a" in lacks else [("a", "a"), ("aa", "aa")]
    vocab = [*(byte for byte in ALPHABET if byte not in gone), *(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(vocab)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(backend, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def _byte_fallback(**parts: Any) -> PreTrainedTokenizerFast:
    vocab = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a"]
    backend = Tokenizer(
        models.BPE(
            vocab={token: place for place, token in enumerate(vocab)},
            merges=[],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    for name, part in parts.items():
        setattr(backend, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


LLAMA = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


@pytest.mark.parametrize(
    ("tokenizer", "longest"),
    [
        (_byte_level(), 4),
        (_byte_level(normalizer=normalizers.NFC()), 16),
        (_byte_fallback(normalizer=LLAMA), 6),
    ],
)
def test_the_bound_is_the_longest_token_and_holds(tokenizer: Any, longest: int) -> None:
    assert token_bound(tokenizer).most_characters == longest
    bounded = HuggingFaceTokenizer(tokenizer)
    for text in TEXTS:
        assert bounded.least_tokens(text) <= len(bounded.encode(text))
    assert bounded.least_tokens("x" * (10 * longest + 1)) == 11


def test_characters_that_become_no_token_are_not_counted() -> None:
    lost = "\x04\x06a"
    tokenizer = _byte_level(lacks=lost)
    bounded = HuggingFaceTokenizer(tokenizer)
    assert token_bound(tokenizer).lost == lost
    for text in (lost * 100, "b\x04\u20ac" * 50, *TEXTS):
        assert bounded.least_tokens(text) <= len(bounded.encode(text))
    assert bounded.least_tokens("b" * 400 + "\x04" * 1000) == 400


def test_a_special_token_may_be_the_longest() -> None:
    tokenizer = _byte_level()
    tokenizer.add_tokens([AddedToken("<|long special|>", normalized=False)])
    bounded = HuggingFaceTokenizer(tokenizer)
    assert token_bound(tokenizer).most_characters == len("<|long special|>")
    for text in TEXTS:
        assert bounded.least_tokens(text) <= len(bounded.encode(text))


def _with_greedy_token() -> PreTrainedTokenizerFast:
    tokenizer = _byte_level()
    tokenizer.add_tokens([AddedToken("<|end|>", rstrip=True)])
    return tokenizer


def _with_gaps() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    "tokenizer",
    [
        _with_greedy_token(),
        _with_gaps(),
        _byte_level(normalizer=normalizers.NFKC()),
        _byte_level(normalizer=normalizers.Strip()),
        _byte_level(normalizer=normalizers.Replace("  ", " ")),
        _byte_fallback(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
        PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        ),
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram([("<unk>", 0.0)], unk_id=0))),
        object(),
    ],
)
def test_where_a_token_may_stand_for_any_length_there_is_no_bound(tokenizer: Any) -> None:
    assert token_bound(tokenizer).most_characters is None
    assert HuggingFaceTokenizer(tokenizer).least_tokens("x" * 1000) == 0


def test_a_saved_tokenizer_is_bounded_as_it_is_loaded(tmp_path: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(save_tiny_model(tmp_path), local_files_only=True)
    assert token_bound(loaded).most_characters == len("<|im_start|>")
