"""Decoder for Unix ``compress`` (``.Z``) files, which the standard library cannot read.

UCI still distributes the training part of Statlog Shuttle in this format.
"""

from __future__ import annotations

_MAGIC = b"\x1f\x9d"
_FIRST_WIDTH = 9
_CLEAR = 256


def uncompress(data: bytes) -> bytes:
    """Unpack the contents of a ``.Z`` file.

    Parameters
    ----------
    data : bytes
        The whole file, header included.

    Raises
    ------
    ValueError
        If `data` is not in this format, or refers to a code that was never defined.
    """
    if data[:2] != _MAGIC or len(data) < 3:
        raise ValueError("not a .Z file: it does not start with the bytes 1f 9d")
    max_width, has_clear_code = data[2] & 0x1F, bool(data[2] & 0x80)
    reserved = [b""] if has_clear_code else []
    alphabet = [bytes([value]) for value in range(256)] + reserved

    table, width, previous = list(alphabet), _FIRST_WIDTH, b""
    output: list[bytes] = []
    position = group_start = 3 * 8  # in bits

    def end_of_group() -> int:
        # Codes are written in groups of eight; a change of width pads the current group.
        group = 8 * width
        return group_start + -(-(position - group_start) // group) * group

    while position + width <= 8 * len(data):
        byte, shift = divmod(position, 8)
        code = int.from_bytes(data[byte : byte + 4], "little") >> shift & (1 << width) - 1
        position += width

        if has_clear_code and code == _CLEAR:
            position = group_start = end_of_group()
            table, width, previous = list(alphabet), _FIRST_WIDTH, b""
            continue
        if code < len(table):
            entry = table[code]
        elif code == len(table) and previous:  # the string being defined by this very code
            entry = previous + previous[:1]
        else:
            raise ValueError(f"damaged .Z file: undefined code {code} at bit {position - width}")
        output.append(entry)
        if previous and len(table) < 1 << max_width:
            table.append(previous + entry[:1])
        previous = entry
        if len(table) >= 1 << width and width < max_width:
            position = group_start = end_of_group()
            width += 1
    return b"".join(output)
