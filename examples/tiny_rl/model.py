"""A language model from scratch, of about 80,000 weights, with a tokenizer of whole words.

It is warm-started here by supervised steps on demonstrations of which about half are wrong in each turn: so it knows
how turns look, and is right in one of five. That is where reinforcement learning begins; nobody shows it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks import KEYS, VALUES

WORDS = ("what", "is", "?", "search", "guess", "answer", "error", "=", *KEYS, *VALUES)
SPECIAL = ("<pad>", "<eos>", "<user>", "<assistant>")
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
WARM_STEPS = 200
# Draws a rollout to imitate: its turns, each with its prompt.
Demonstrate = Callable[[random.Random], list[tuple[str, str]]]
# How often a demonstration searches for the right key, and how often it gives the answer that was found.
RIGHT = 0.5


def make_model(directory: Path, seed: int, demonstrate: Demonstrate | None = None) -> float:
    """Write the warm-started model as a Hugging Face directory; the loss at the end."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.05,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    loss = warm_start(model, tokenizer, random.Random(seed), demonstrate or demonstration)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return loss


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token is a word."""
    vocabulary = {word: place for place, word in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def warm_start(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    draw: random.Random,
    demonstrate: Demonstrate,
) -> float:
    """Supervised steps on demonstrations, in the words of the chat template."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    loss = torch.zeros(())
    for _ in range(WARM_STEPS):
        pairs = [pair for _ in range(64) for pair in demonstrate(draw)]
        rows = [
            (
                tokenizer.encode(prompt, add_special_tokens=False),
                tokenizer.encode(said, add_special_tokens=False),
            )
            for prompt, said in pairs
        ]
        longest = max(len(prompt) + len(said) for prompt, said in rows)
        ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
        labels = torch.full_like(ids, -100)
        for row, (prompt, said) in enumerate(rows):
            end = len(prompt) + len(said)
            ids[row, :end] = torch.tensor(prompt + said)
            labels[row, len(prompt) : end] = torch.tensor(said)
        loss = model(ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


def demonstration(draw: random.Random) -> list[tuple[str, str]]:
    """Both turns of a rollout, each with its prompt; either may be wrong."""
    key, value = draw.choice(KEYS), draw.choice(VALUES)
    searched = key if draw.random() < RIGHT else draw.choice(KEYS)
    answered = value if draw.random() < RIGHT else draw.choice(VALUES)
    first = f"<user> what is {key} ? <assistant>"
    opening = f"search {searched} <eos>" if draw.random() < 2 / 3 else f"answer {draw.choice(VALUES)} <eos>"
    second = f"{first} search {key} <eos> <user> {key} = {value} <assistant>"
    return [(first, opening), (second, f"answer {answered} <eos>")]
