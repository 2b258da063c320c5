"""Files as a stranger or a failing disk would make them of real ones."""

import io
import json
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**31, 2**63, 10**30, -(10**30), 1e308, float("nan"), float("inf")),
    *("", "\x1b[31mred", "../../secret", "/etc/passwd", "<script>alert(1)</script>", "a\nb", "\0", "x" * 5000, "é"),
    *([], {}, [[]], [None], {"": None}, [1, "a"], {"a": {"b": []}}),
)
"""Values in place of others."""


class Touch:
    """A pickle that runs code, if anybody reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def evil(path: Path) -> bytes:
    """A pickle that leaves a file when it is read."""
    return pickle.dumps({"weight": Touch(path)}, protocol=2)


def content(old: bytes, kind: str, rng: random.Random) -> bytes:
    """A file's content changed: as the form that it has, or as any bytes."""
    if rng.random() < 0.6 and kind in _FORMS:
        try:
            return _FORMS[kind](old, rng)
        except (ValueError, zipfile.BadZipFile, struct.error, KeyError, IndexError):
            pass  # it was changed before, beyond its form
    return noise(old, rng)


def noise(old: bytes, rng: random.Random) -> bytes:
    """Bytes that are flipped, cut off, doubled, filled or moved."""
    new, at = bytearray(old), rng.randrange(len(old) + 1) if old else 0
    span = min(len(old) - at, 2 ** rng.randrange(12))
    way = rng.randrange(7)
    if way == 0 and old:
        for _ in range(rng.choice((1, 1, 3, 30))):
            new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    elif way == 1:
        del new[at:]
    elif way == 2:
        new[at : at + span] = b""
    elif way == 3:
        new[at:at] = old[at : at + span]
    elif way == 4:
        new[at : at + span] = bytes([rng.choice((0, 255))]) * span
    elif way == 5:
        new[at : at + span] = rng.randbytes(span)
    else:
        new += rng.randbytes(rng.choice((1, 100)))
    return bytes(new)


def _json(old: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        return b"[" * 200_000
    value = json.loads(old)
    for _ in range(rng.choice((1, 1, 2, 5))):
        value = _other(value, rng)
    return json.dumps(value).encode()


def _other(value: Any, rng: random.Random) -> Any:
    """A value with another one in some place, without one, or with one too many."""
    if rng.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return rng.choice(HOSTILE)
    new: Any = value.copy()
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    way = rng.random()
    if way < 0.15:
        del new[key]
    elif way < 0.2 and isinstance(new, dict):
        new[rng.choice(("", "zzz", "../x", "\x1b[2J"))] = rng.choice(HOSTILE)
    elif way < 0.2:
        new.append(rng.choice(HOSTILE))
    else:
        new[key] = _other(value[key], rng)
    return new


def _toml(old: bytes, rng: random.Random) -> bytes:
    lines = old.decode().splitlines()
    at = rng.randrange(len(lines))
    key, _, _ = lines[at].partition("=")
    value = rng.choice(
        ("[" * 5000, "{}", "[]", "nan", "-1", '"\\u001b[31m"', "1e400", "true", '"../../x"', "[[1], 2]", "9" * 5000)
    )
    lines[at] = rng.choice(
        (f"{key.lstrip('# ')} = {value}", f"[{key.strip()}]", f"{lines[at]}\n{lines[at]}", f"zzz = {value}")
    )
    return "\n".join(lines).encode()


def _safetensors(old: bytes, rng: random.Random) -> bytes:
    (size,) = struct.unpack("<Q", old[:8])
    head, body = json.loads(old[8 : 8 + size]), old[8 + size :]
    way = rng.random()
    if way < 0.5:
        text = json.dumps(_other(head, rng)).encode()
    elif way < 0.8:
        name = rng.choice([name for name in head if name != "__metadata__"])
        shape = [rng.choice((0, 1, 3, 2**20, 2**40, -1)) for _ in range(rng.randrange(6))]
        head[name] = head[name] | rng.choice(
            ({"shape": shape}, {"dtype": rng.choice(("F64", "I64", "BOOL", "BF16", "F8_E4M3", "U8"))})
        )
        text = json.dumps(head).encode()
    else:
        text = json.dumps(
            {rng.choice(("", "a/b", "../x", "\x1b[0m")): each for each in head.values() if "dtype" in each}
        ).encode()
    length = len(text) if rng.random() < 0.9 else rng.choice((0, 2**40, 2**63))
    return struct.pack("<Q", length) + text + body


def _zip(old: bytes, rng: random.Random) -> bytes:
    """Members that are changed, renamed, missing, doubled or packed far beyond their size."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(old)) as archive, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        held = archive.infolist()
        chosen = rng.choice(held)
        for each in held:
            data, name = archive.read(each), each.filename
            if each is chosen:
                way = rng.randrange(6)
                if way == 0:
                    continue
                name = rng.choice(("../../x.npy", "x", "\x1b[31m.npy", name)) if way == 1 else name
                data = (noise(data, rng), _npy(data, rng), bytes(rng.choice((0, 2**22))) + data, data)[way % 4]
            new.writestr(name, data)
    packed = bytearray(made.getvalue())
    if rng.random() < 0.3:  # sizes in the directory that are not those of the members
        at = packed.rfind(b"PK\x01\x02")
        packed[at + 24 : at + 28] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 2)))
    return bytes(packed)


def _npy(data: bytes, rng: random.Random) -> bytes:
    """An array whose header claims another form."""
    if data[:6] != b"\x93NUMPY":
        return noise(data, rng)
    shape = tuple(rng.choice((0, 1, 28, 2**20, 2**34, -1)) for _ in range(rng.randrange(5)))
    dtype = rng.choice(("<f4", "|O", "<f8", ">i8", "|u1", "<U9", "|V8", "<c16", "<M8[s]"))
    text = f"{{'descr': '{dtype}', 'fortran_order': {rng.random() < 0.2}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data[128:]


def _png(old: bytes, rng: random.Random) -> bytes:
    """Another header, whose checksum is right."""
    sides = struct.pack(">II", *(rng.choice((0, 1, 9, 2**14, 2**20, 2**31 - 1)) for _ in range(2)))
    form = bytes([rng.choice((1, 8, 16, 3)), rng.choice((0, 2, 3, 4, 6, 7)), 0, 0, rng.choice((0, 1))])
    head = b"IHDR" + (sides if rng.random() < 0.7 else old[16:24]) + form
    return old[:8] + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + old[33:]


_FORMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": _json,
    ".toml": _toml,
    ".safetensors": _safetensors,
    ".npz": _zip,
    ".pt": _zip,
    ".png": _png,
}
