"""Records to write to a spool, and the numbers in them."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_sdk.client.producer import Producer
from lightning_sdk.records import Note, Record


def numbered(number: int, size: int = 0) -> Record:
    """A record that carries a number and some more bytes."""
    return Record(order=number, note=Note(values=b"x" * size))


def write_numbers(producer: Producer, numbers: Iterable[int], size: int = 0) -> None:
    """Write a numbered record for each."""
    for number in numbers:
        producer.write(numbered(number, size))


def numbers_of(records: Iterable[Record]) -> list[int]:
    """The numbers that records carry."""
    return [record.order for record in records]
