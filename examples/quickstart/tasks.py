"""Eight sums in words, each with its answer."""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """A question and the number that answers it."""

    task_id: str
    question: str
    answer: float


TASKS = [
    Task("apples", "Tom has 23 apples and buys 18 more. How many apples does Tom have?", 41),
    Task("coins", "Mia has 64 coins and finds 27 more. How many coins does Mia have?", 91),
    Task("sheep", "There are 72 sheep and 35 run away. How many sheep are left?", 37),
    Task("cards", "There are 90 cards and 48 get lost. How many cards are left?", 42),
    Task("bags", "Each of 6 bags holds 14 nuts. How many nuts are there?", 84),
    Task("rows", "Each of 9 rows has 12 seats. How many seats are there?", 108),
    Task("stamps", "Ben has 135 stamps and gets 48 more. How many stamps does Ben have?", 183),
    Task("share", "There are 96 sweets for 8 children. How many sweets does each child get?", 12),
]
