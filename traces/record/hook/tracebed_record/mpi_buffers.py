"""How much a buffer argument of mpi4py holds: an array, or [array, count, displacements, type] with parts left out.

What may be given is documented in mpi4py's tutorial, "Communication of buffer-like objects"; what is inferred from what is
left out is in its src/mpi4py/MPI.src/msgbuffer.pxi.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

_FORMATS = {
    "f": "float32",
    "d": "float64",
    "e": "float16",
    "Zf": "complex64",
    "Zd": "complex128",
    "?": "bool",
    "B": "uint8",
}
_SIGNED = frozenset("bhilq")
_NAMES = frozenset(
    ("uint8", "int8", "bool", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
)
_PREDEFINED = {
    "BYTE": "uint8", "UNSIGNED_CHAR": "uint8", "UINT8_T": "uint8", "CHAR": "int8", "SIGNED_CHAR": "int8", "INT8_T": "int8",
    "C_BOOL": "bool", "FLOAT": "float32", "DOUBLE": "float64", "C_FLOAT_COMPLEX": "complex64", "C_DOUBLE_COMPLEX": "complex128",
}  # fmt: skip
_INTEGERS = ("SHORT", "INT", "LONG", "LONG_LONG", "INT16_T", "INT32_T", "INT64_T")


class Buffer:
    """`elements` of one type, or `counts` of them a part; `type` and `width` in bytes as the recording has them.

    `counted` if the job gave a count, which is that of a part where there are parts; else `elements` are all that the array holds.
    An element of a type that the recording has no name for counts as its bytes.
    """

    __slots__ = ("counted", "counts", "elements", "scale", "type", "width")

    def __init__(
        self, elements: int, known: str, width: int, counts: list[int] | None = None, counted: bool = True
    ) -> None:
        self.type, self.width, self.scale = (known, width, 1) if known else ("uint8", 1, width)
        self.elements = elements * self.scale
        self.counted = counted
        self.counts = None if counts is None else [count * self.scale for count in counts]

    def parts(self, number: int) -> list[int]:
        """Elements of each of `number` parts; the first ones are larger where they don't divide."""
        if self.counts is not None:
            return self.counts
        whole, more = divmod(self.elements // self.scale, number)
        return [(whole + (part < more)) * self.scale for part in range(number)]

    def part(self, number: int) -> int:
        """Elements of one of `number` equal parts."""
        return self.elements if self.counted else self.elements // number

    def told(self, elements: int) -> dict[str, Any]:
        """So many elements of this type, as an argument of an operation."""
        return {"n": [elements], "t": self.type, "b": self.width}


class Buffers:
    """Reads buffer arguments."""

    def __init__(self, mpi: ModuleType) -> None:
        self._mpi: Any = mpi
        self._types = {}
        for name in (*_PREDEFINED, *_INTEGERS):
            known = getattr(mpi, name, None)
            if known is not None and known != mpi.DATATYPE_NULL:
                said = _PREDEFINED.get(name) or f"int{8 * known.Get_size()}"
                self._types[mpi._handleof(known)] = (said, known.Get_size())

    def read(self, given: Any, parts: int = 0) -> Buffer | None:
        """What `given` holds, which has a count for each of `parts` parts or one number; None for MPI.IN_PLACE and None."""
        if given is None or given is self._mpi.IN_PLACE:
            return None
        array, counts, mpi_type = given, None, None
        if isinstance(given, (list, tuple)):
            array, *rest = given
            if rest and isinstance(rest[-1], (self._mpi.Datatype, str)):
                mpi_type = rest.pop()
            counts = rest[0] if rest else None
            if isinstance(counts, tuple) and len(counts) == 2 and (parts == 0 or not isinstance(counts[0], int)):
                counts = counts[0]  # (counts, displacements)
        if isinstance(mpi_type, str):
            mpi_type = self._mpi._typedict[mpi_type]
        known, width, held = self._element(array, mpi_type)
        if counts is None:
            extent = width if mpi_type is None else mpi_type.Get_extent()[1]
            return Buffer(held // extent if extent else 0, known, width, counted=False)
        if parts and not hasattr(counts, "__index__"):
            each = [int(count) for count in counts]
        elif parts:
            each = [int(counts)] * parts
        else:
            return Buffer(int(counts), known, width)
        return Buffer(sum(each), known, width, each)

    def _element(self, array: Any, mpi_type: Any) -> tuple[str, int, int]:
        """(type's name or nothing, bytes an element, bytes in all)."""
        held = 0 if array is None or array is self._mpi.BOTTOM else self._mpi.memory(array).nbytes
        if mpi_type is not None:
            known, width = self._types.get(self._mpi._handleof(mpi_type), ("", mpi_type.Get_size()))
            return known, width, held
        try:
            view = memoryview(array)
        except TypeError:  # torch's and cupy's arrays
            known = str(array.dtype).rpartition(".")[2]
            return known if known in _NAMES else "", int(array.dtype.itemsize), held
        kind = view.format.lstrip("@=<>")
        known = f"int{8 * view.itemsize}" if kind in _SIGNED else _FORMATS.get(kind, "")
        return known, view.itemsize, held
