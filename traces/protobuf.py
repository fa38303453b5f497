"""Protobuf's wire format, as far as execution traces need it: no schema, only numbered fields.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, where it ends), protobuf's base 128. ValueError where it is cut or has more than 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message. ValueError where it is none."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value: int | bytes
        if key & 7 == _VARINT:
            value, at = varint(data, at)
        elif key & 7 in (_FIXED64, _BYTES, _FIXED32):
            size, at = varint(data, at) if key & 7 == _BYTES else (8 if key & 7 == _FIXED64 else 4, at)
            if at + size > len(data):
                raise ValueError("a field is cut")
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"field type {key & 7}")
        yield key >> 3, value


def field(number: int, value: int | bytes) -> bytes:
    """A field as it is written: a number that is not negative, or bytes."""
    if isinstance(value, int):
        return encoded(number << 3 | _VARINT) + encoded(value)
    return encoded(number << 3 | _BYTES) + encoded(len(value)) + value


def encoded(value: int) -> bytes:
    """A varint; `value` is not negative."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
