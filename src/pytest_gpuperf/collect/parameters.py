"""The parameters of a test in canonical form: equal values give equal text anywhere.

The text does not depend on the process (addresses, the seed of hashes), on the folder
of the checkout, or on the library of an array, which is never imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import re
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    FunctionType,
    GenericAlias,
    MethodType,
    ModuleType,
)

from blake3 import blake3

from pytest_gpuperf.collect.syntax import lambda_digest

_DIGEST_LENGTH = 16  # Hexadecimal digits.
# Characters of a canonical form. The rest does not count.
_MAX_TEXT = 1 << 16
# Characters of a string that is written unchanged.
_MAX_STRING = 1 << 10
# Of an int in decimal, because Python refuses to print 5,000 digits.
_MAX_BITS = 1 << 12
# Bytes or characters that are read of a longer value.
_MAX_HASHED = 1 << 20
_MAX_SORTED = 10_000  # Members of a set or dict that are sorted.
# Nested containers.
_MAX_DEPTH = 20
_SMALLEST_ADDRESS = 6  # Hexadecimal digits. A shorter number may be a value.

_PLAIN = frozenset(
    {int, float, bool, complex, type(None), type(Ellipsis), type(NotImplemented)}
)
_NUMBERS = (int, float, complex)
_BYTES = (bytes, bytearray, memoryview)
_ADDRESS = re.compile(
    rf"0x[0-9a-fA-F]{{{_SMALLEST_ADDRESS},}}|(?<=\bid=')\d+(?=')"  # A mock has the latter.
)
# Packages with numbered devices. The number of the free device differs between runs.
_WITH_DEVICES = frozenset({"cupy", "jax", "jaxlib", "numba", "tensorflow", "torch"})
_NUMBER = re.compile(r"\d+")
_DEFAULT_REPR: object = object.__repr__
_CHECKOUT = "<checkout>"
_FULL = "…"
# For these types, pytest builds the id from the value itself.
_IN_IDS = frozenset({int, float, bool, complex, bytes, type(None)})
_NUMBERED_LAMBDA = re.compile(r"<lambda>\d+")


def parameters_digest(
    parameters: Mapping[str, object], checkout: Iterable[str] = ()
) -> str | None:
    """
    Return the digest of a test's parameters, or None without parameters.

    Args:
        parameters: Value by name.

        checkout: The spellings of the folder that paths are relative to.
    """
    if not parameters:
        return None
    writer = _Writer(tuple(checkout))
    parts = [f"{name}={writer.text(parameters[name])}" for name in sorted(parameters)]
    return _digest("\n".join(parts).encode("utf-8", "surrogatepass"))


def positional_id(text: str, parameters: Mapping[str, object]) -> str:
    """
    Return the part of a test's id that counts a position, or "".

    pytest builds this part from the name of the argument and a number if a value has no
    text of its own, as `shape0`.

    Args:
        text: The part of the id in brackets.

        parameters: The values by argument.
    """
    parts = text.split("-")
    for name, value in parameters.items():
        if type(value) in _IN_IDS:
            continue
        for part in parts:
            counts = part.startswith(name) and part[len(name) :].isdecimal()
            # A parameter may be the text "shape0" itself.
            if counts and not (isinstance(value, str) and value == part):
                return part
    numbered = _NUMBERED_LAMBDA.search(text)
    return "" if numbered is None else numbered[0]


class _Writer:
    """
    Writes values in canonical form, up to a length.

    Args:
        checkout: The spellings of the folder that paths are relative to.
    """

    def __init__(self, checkout: tuple[str, ...]) -> None:
        self._checkout = checkout
        self._left = _MAX_TEXT
        self._outer: set[int] = set()  # The ids of the containers around a value.
        self._in_object = False

    def text(self, value: object) -> str:
        """Return a value in canonical form. No value raises an exception."""
        cls = type(value)
        if self._left <= 0:
            text = ""
        elif cls is str:
            text = self._string(value)  # type: ignore[arg-type] # A str.
        elif cls is int and value.bit_length() > _MAX_BITS:  # type: ignore[attr-defined] # An int.
            text = hex(value)  # type: ignore[arg-type] # As above.
        elif cls in _PLAIN:
            text = repr(value)
        elif id(value) in self._outer or len(self._outer) >= _MAX_DEPTH:
            text = "<cycle>" if id(value) in self._outer else f"<{_name(cls)}>"
        else:
            self._outer.add(id(value))
            try:
                # The parts of a container are already counted.
                if container := self._container(value, cls):
                    return container
                text = self._other(value, cls)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - A repr or a property may raise anything.
                text = f"<{_name(cls)}>"
            finally:
                self._outer.discard(id(value))
        text = text[: self._left]
        self._left -= len(text)
        return text

    def _counted(self, text: str) -> str:
        text = text[: self._left]
        self._left -= len(text)
        return text

    def _string(self, value: str) -> str:
        if len(value) > _MAX_STRING:
            digest = _digest(value[:_MAX_HASHED].encode("utf-8", "surrogatepass"))
            return f"str {len(value)} {digest}"
        for folder in self._checkout:
            if folder in value:
                return repr(self._without_checkout(value))
        return repr(value)

    def _without_checkout(self, text: str) -> str:
        for folder in self._checkout:
            if folder in text:
                text = text.replace(folder, _CHECKOUT)
        return text

    def _container(self, value: object, cls: type) -> str:
        """Return a collection with all members, or "" for any other value."""
        name = "" if cls in {tuple, list, dict, set} else _name(cls)
        if isinstance(value, (tuple, list, deque)):
            begin, end = "()" if isinstance(value, tuple) else "[]"
            head = self._counted(f"{name}{begin}{len(value)}:")
            return f"{head}{self._listed(value)}{end}"
        if isinstance(value, (set, frozenset)):
            members, head = _FULL, self._counted(f"{name}{{{len(value)}:")
            if len(value) <= _MAX_SORTED:
                texts = sorted([self.text(member) for member in value])
                # The order of the members decides which of them were cut off.
                members = ",".join(texts) if self._left > 0 else _FULL
            return f"{head}{members}}}"
        if isinstance(value, dict):
            head = self._counted(f"{name}{{{len(value)}=")
            if len(value) > _MAX_SORTED:
                return f"{head}{_FULL}}}"
            keys = sorted([(self.text(key), place) for place, key in enumerate(value)])
            if self._left <= 0:
                return f"{head}{_FULL}}}"
            items = [*value.values()]
            pairs = [f"{key}:{self.text(items[place])}" for key, place in keys]
            return f"{head}{','.join(pairs)}}}"
        return ""

    def _listed(self, values: Iterable[object]) -> str:
        parts = []
        for value in values:
            parts.append(self.text(value))
            if self._left <= 0:
                break
        return ",".join(parts)

    def _other(self, value: object, cls: type) -> str:
        # Each returns "" for a value of another kind.
        kinds = (
            self._symbol,
            self._content,
            self._function,
            self._array,
            self._device,
            self._fields,
        )
        for kind in kinds:
            if text := kind(value, cls):
                return text
        # A callable with a qualified name, such as a jitted function.
        name = getattr(value, "__qualname__", None)
        if callable(value) and isinstance(name, str):
            return f"{_name(cls)} {getattr(value, '__module__', '')}.{name}"
        if cls.__repr__ is not _DEFAULT_REPR:
            text = _ADDRESS.sub("", repr(value)[:_MAX_TEXT])
            return f"{_name(cls)} {self._without_checkout(text)}"
        # Attributes are shown by type only.
        if self._in_object:
            return f"<{_name(cls)}>"
        self._in_object = True
        try:
            return self._state(cls, _attributes(value, cls))
        finally:
            self._in_object = False

    def _symbol(self, value: object, cls: type) -> str:
        if isinstance(value, enum.Enum):
            # The name of a combination depends on the version of Python.
            is_flag = isinstance(value, enum.Flag)
            return f"{_name(cls)}.{value.value if is_flag else value.name}"
        # The name of `list[int]` is `list`.
        if cls is GenericAlias:
            return f"type {value!r}"
        if isinstance(value, type):
            return f"type {_name(value)}"
        return f"module {value.__name__}" if isinstance(value, ModuleType) else ""

    def _content(self, value: object, cls: type) -> str:
        """Return a path, bytes, or a subclass of str or a number, or "" for any other value."""
        if isinstance(value, PurePath):
            path = self._without_checkout(str(value)).replace("\\", "/")
            return f"path {path}"
        if isinstance(value, _BYTES):
            content = value
            if isinstance(value, memoryview):
                most_count = max(1, _MAX_HASHED // (value.itemsize or 1))
                content = value[:most_count].tobytes()
            digest = _digest(bytes(content[:_MAX_HASHED]))
            return f"{_name(cls)} {len(value)} {digest}"
        if isinstance(value, str):
            return f"{_name(cls)} {self._string(str.__str__(value))}"
        # The repr of a subclass may return anything.
        for base in _NUMBERS:
            if isinstance(value, base):
                return f"{_name(cls)} {base.__repr__(value)}"
        return ""

    def _function(self, value: object, _: type) -> str:
        if isinstance(value, functools.partial):
            called = (value.func, value.args, value.keywords)
            return f"partial({self._listed(called)})"
        if not isinstance(value, (FunctionType, BuiltinFunctionType, MethodType)):
            return ""
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):
            return f"{self.text(owner)}.{value.__name__}"
        name = f"function {value.__module__}.{value.__qualname__}"
        if not isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
            return name
        code = value.__code__
        if value.__name__ == "<lambda>":
            syntax = lambda_digest(code) or ""
            parts: list[object] = [syntax]
            # Other lambdas begin on the same line.
            if not syntax or "-" in syntax:
                parts += [code.co_varnames, code.co_names, code.co_consts]
        elif "<locals>" in value.__qualname__:
            parts = []
        else:
            return name
        parts += [value.__defaults__, value.__kwdefaults__]
        for cell in value.__closure__ or ():
            # A cell may have no value yet.
            with contextlib.suppress(ValueError):
                parts.append(cell.cell_contents)
        return f"{name}({self._listed(parts)})"

    def _array(self, value: object, cls: type) -> str:
        if not hasattr(cls, "shape"):
            return ""
        shape = f"{_name(cls)}{tuple(value.shape)!s}"  # type: ignore[attr-defined] # Its class has one.
        if hasattr(cls, "dtypes"):
            return f"{shape} {[str(dtype) for dtype in value.dtypes]}"  # type: ignore[attr-defined] # As above.
        if not hasattr(cls, "dtype"):
            return ""
        shape = f"{shape} {value.dtype}"  # type: ignore[attr-defined] # As above.
        if not tuple(value.shape) and not hasattr(cls, "__setitem__"):  # type: ignore[attr-defined] # As above.
            # A numpy scalar, not an array with one number.
            return f"{shape} {value!s}"
        # Arrays of old numpy versions have no device.
        device = getattr(value, "device", "cpu")
        kind = self._device(device, type(device))
        return f"{shape} {kind}" if kind and not kind.endswith(" cpu") else shape

    def _device(self, value: object, cls: type) -> str:
        """Return a device without the number, or "" for any other value."""
        package = str(cls.__module__).partition(".")[0]
        if package not in _WITH_DEVICES or not cls.__name__.lower().endswith("device"):
            return ""
        # torch and jax.
        for attribute in ("type", "platform"):
            kind = getattr(value, attribute, None)
            if isinstance(kind, str):
                return f"device {kind}"
        return f"device {_NUMBER.sub('', repr(value))}"

    def _fields(self, value: object, cls: type) -> str:
        if dataclasses.is_dataclass(cls):
            names = [field.name for field in dataclasses.fields(cls) if field.compare]
        elif hasattr(cls, "__attrs_attrs__"):
            names = [field.name for field in cls.__attrs_attrs__ if field.eq]
        elif hasattr(cls, "__struct_fields__"):
            # msgspec.
            names = [*cls.__struct_fields__]
        elif hasattr(cls, "__pydantic_fields__"):
            names = [*cls.__pydantic_fields__]
        elif isinstance(fields := getattr(cls, "__fields__", None), dict):
            # pydantic 1.
            names = [*fields]
        else:
            return ""
        return self._state(cls, {name: getattr(value, name, None) for name in names})

    def _state(self, cls: type, state: Mapping[str, object]) -> str:
        parts = [f"{name}={self.text(state[name])}" for name in sorted(state)]
        return f"{_name(cls)}({','.join(parts)})"


def _attributes(value: object, cls: type) -> dict[str, object]:
    state: dict[str, object] = {}
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = slot
            if slot.startswith("__") and not slot.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{slot}"
            descriptor = base.__dict__.get(name)
            if descriptor is not None and slot not in {"__dict__", "__weakref__"}:
                # The slot was never assigned.
                with contextlib.suppress(AttributeError):
                    state[name] = descriptor.__get__(value)
    # The object has slots only.
    with contextlib.suppress(AttributeError):
        state |= object.__getattribute__(value, "__dict__")
    return state


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _digest(content: bytes) -> str:
    return blake3(content).hexdigest()[:_DIGEST_LENGTH]
