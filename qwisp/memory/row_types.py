"""Number types of cache rows, with their exact bytes for a row of elements."""

from __future__ import annotations

from qwisp.errors import BadInput

# (elements of a block, bytes of a block): block types carry their scales inside the block.
_BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "fp8": (1, 1),
    "fp8_e4m3": (1, 1),
    "fp8_e5m2": (1, 1),
    "int8": (1, 1),
    "q8_0": (32, 34),
    "q6_0": (32, 26),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}

_OTHER_NAMES = {
    "float32": "f32",
    "fp32": "f32",
    "float16": "f16",
    "fp16": "f16",
    "bfloat16": "bf16",
    "f8": "fp8",
    "f8_e4m3": "fp8",
    "f8_e5m2": "fp8",
    "fp8_e4m3fn": "fp8",
}


def row_bytes(row_type: str, num_elements: int) -> int:
    """Return the bytes of `num_elements` elements side by side.

    Raises `BadInput` for an unknown type, and for a row that does not fill whole blocks.

    >>> row_bytes("f16", 128), row_bytes("q8_0", 128), row_bytes("q4_0", 128)
    (256, 136, 72)
    """
    block = _BLOCKS.get(_OTHER_NAMES.get(row_type, row_type))
    if block is None:
        raise BadInput(f"row type {row_type!r} is not known", f"use one of {', '.join(_BLOCKS)}")
    elements, size = block
    if num_elements % elements:
        raise BadInput(
            f"a row of {num_elements} elements does not fill whole {row_type} blocks of {elements}",
            "use a type of single elements, like f16",
        )
    return num_elements // elements * size


def type_of(element_bytes: int) -> str:
    """Return the row type of a model's own number type.

    >>> type_of(2), type_of(4)
    ('bf16', 'f32')
    """
    return "f32" if element_bytes == 4 else "bf16"


def is_quantised(row_type: str) -> bool:
    """Return whether elements of this type only exist in blocks.

    >>> is_quantised("q8_0"), is_quantised("f16")
    (True, False)
    """
    return _BLOCKS.get(row_type, (1, 1))[0] > 1
