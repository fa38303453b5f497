"""The messages of Chakra's execution traces, and how a file strings them together.

Schema: MLCommons Chakra schema/protobuf/et_def.proto (package ChakraProtoMsg), of which this holds what traces before storage
nodes have; protobuf keeps fields that it does not know. Framing: each message behind its length as a varint
(protobuf.dev/programming-guides/techniques, "streaming multiple messages").
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from traces.errors import TraceError

# MSCCL puts a whole program into the metadata, some tens of KB; a node with all its attributes has some hundred bytes.
MAX_MESSAGE_BYTES = 16 << 20

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "ChakraProtoMsg"
_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64",
    "fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_FIELDS: dict[str, tuple[tuple[str, int, str, bool], ...]] = {  # of a message: name, number, type, whether repeated
    **{f"{scalar.capitalize()}List": (("values", 1, scalar, True),) for scalar in _SCALARS},
    "AttributeProto": (("name", 1, "string", False), ("doc_string", 2, "string", False)),
    "GlobalMetadata": (("version", 1, "string", False), ("attr", 2, "AttributeProto", True)),
    "IOInfo": (("values", 1, "string", False), ("shapes", 2, "string", False), ("types", 3, "string", False)),
    "Node": (
        ("id", 1, "uint64", False), ("name", 2, "string", False), ("type", 3, "int32", False),  # an enum, open in proto3
        ("ctrl_deps", 4, "uint64", True), ("data_deps", 5, "uint64", True),
        ("start_time_micros", 6, "uint64", False), ("duration_micros", 7, "uint64", False),
        ("inputs", 8, "IOInfo", False), ("outputs", 9, "IOInfo", False), ("attr", 10, "AttributeProto", True),
    ),
}  # fmt: skip


def _schema() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="chakra/et_def.proto", package=_PACKAGE, syntax="proto3")
    for name, described in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field in described:
            _add(message, *field)
    attribute = next(message for message in file.message_type if message.name == "AttributeProto")
    attribute.oneof_decl.add(name="value")
    for place, scalar in enumerate(_SCALARS):
        _add(attribute, f"{scalar}_val", 3 + 2 * place, scalar, False).oneof_index = 0
        _add(attribute, f"{scalar}_list", 4 + 2 * place, f"{scalar.capitalize()}List", False).oneof_index = 0
    return file


def _add(message: Any, name: str, number: int, kind: str, repeated: bool) -> Any:
    field = message.field.add(name=name, number=number, label=3 if repeated else 1)
    if kind in _SCALARS:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    return field


_MESSAGES = message_factory.GetMessages([_schema()], pool=descriptor_pool.DescriptorPool())
GlobalMetadata: Any = _MESSAGES[f"{_PACKAGE}.GlobalMetadata"]
Node: Any = _MESSAGES[f"{_PACKAGE}.Node"]


def starts(head: bytes) -> bool:
    """Whether a file that starts with `head` holds metadata and then a node with its id (left out if 0) or name."""
    try:
        size, at = _length(head, 0)
        if size == 0 or head[at : at + 1] not in (b"\x0a", b"\x12"):
            return False
        if at + size >= len(head):
            return at + size == len(head) or size > len(head)
        metadata = proto.parse(GlobalMetadata, head[at : at + size])
        _, behind = _length(head, at + size)
        return len(UnknownFieldSet(metadata)) == 0 and head[behind] in b"\x08\x12"
    except (ValueError, IndexError, DecodeError):
        return False


def parsed(data: bytes, file: str) -> Iterator[tuple[int, Any]]:
    """(where it starts, the message) of each: a GlobalMetadata, then Nodes. Raises TraceError with the byte that is wrong."""
    at, kind = 0, GlobalMetadata
    while at < len(data):
        start = at
        try:
            size, at = _length(data, at)
        except ValueError as error:
            raise TraceError(f"no length: {error}", file=file, place=f"byte {start}") from error
        if at + size > len(data):
            raise TraceError("the file ends inside a node", file=file, place=f"byte {start}", mend="copy it again")
        if size > MAX_MESSAGE_BYTES:
            text = f"a node of {size} bytes; expected {MAX_MESSAGE_BYTES} at most"
            raise TraceError(text, file=file, place=f"byte {start}")
        try:
            message = proto.parse(kind, data[at : at + size])
        except DecodeError as error:
            text = f"not a Chakra {kind.DESCRIPTOR.name}: {error}"
            raise TraceError(text, file=file, place=f"byte {start}", mend="copy it again") from error
        yield start, message
        at, kind = at + size, Node


def strung(messages: Iterable[Any]) -> bytes:
    """The file of these messages."""
    stream = io.BytesIO()
    for message in messages:
        proto.serialize_length_prefixed(message, stream)
    return stream.getvalue()


def _length(data: bytes, at: int) -> tuple[int, int]:
    """(a message's length, where it starts). ValueError where the number is cut or has more than 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")
