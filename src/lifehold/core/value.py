"""Frozen, slotted records that cost nothing to import.

Promise: a class under `@value` is an immutable tuple with named, typed fields. It has defaults,
equality by class and content, pattern matching, pickling and a readable repr. Type checkers see a
frozen dataclass. Why not `dataclasses`: its import takes 19 of the 25 ms that `import lifehold` may
take (ADR 0007).
"""

from __future__ import annotations

from _collections import _tuplegetter  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, TypeVar, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """The class as an immutable tuple of its annotated fields, in their order."""
    fields = tuple(cls.__dict__.get("__annotations__", {}))  # noqa: RUF063 - only its own
    defaults = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
    body: dict[str, object] = {
        name: item
        for name, item in cls.__dict__.items()
        if name not in fields and name not in ("__dict__", "__weakref__")
    }
    for index, name in enumerate(fields):
        body[name] = _tuplegetter(index, f"Field {index}: {name}.")
    body |= {
        "__slots__": (),
        "__match_args__": fields,
        "_defaults": defaults,
        "__new__": _constructor(cls.__name__, fields, defaults),
    }
    made: Any = type(cls.__name__, (_Value,), body)
    return made  # type: ignore[no-any-return]


def _constructor(name: str, fields: tuple[str, ...], defaults: dict[str, Any]) -> object:
    """`__new__` with the fields as its parameters: MOULDS[n] under other names.

    To compile source at each import, as dataclasses do, was a tenth of what `lifehold run` did.
    """
    if fields[len(fields) - len(defaults) :] != tuple(defaults):
        raise TypeError(f"{name}: a field without a default stands behind one that has one")
    if not 0 < len(fields) <= len(MOULDS):
        made = _compiled(fields)
    else:
        code = MOULDS[len(fields) - 1].__code__
        # As compiled source it is of no file: who counts or covers lines sees none of it.
        names = ("cls", *fields)
        code = code.replace(co_varnames=names, co_name="__new__", co_filename="<string>")
        made = _function(code, NAMES)
    made.__name__, made.__qualname__ = "__new__", f"{name}.__new__"
    made.__defaults__ = tuple(defaults.values()) or None
    return made


def _compiled(fields: tuple[str, ...]) -> Any:
    namespace: dict[str, Any] = dict(NAMES)
    content = "".join(f"{f}, " for f in fields)
    source = f"def __new__({', '.join(('cls', *fields))}): return _new(cls, ({content}))"
    exec(source, namespace)  # noqa: S102 - as dataclasses do: names and text are our own
    return namespace["__new__"]


_new: Any = tuple.__new__
_function: Any = type(_compiled)
NAMES = {"_new": _new}
# By the number of fields, from one on; `l` is easily taken for 1.
MOULDS: tuple[Any, ...] = (
    lambda cls, a: _new(cls, (a,)),
    lambda cls, a, b: _new(cls, (a, b)),
    lambda cls, a, b, c: _new(cls, (a, b, c)),
    lambda cls, a, b, c, d: _new(cls, (a, b, c, d)),
    lambda cls, a, b, c, d, e: _new(cls, (a, b, c, d, e)),
    lambda cls, a, b, c, d, e, f: _new(cls, (a, b, c, d, e, f)),
    lambda cls, a, b, c, d, e, f, g: _new(cls, (a, b, c, d, e, f, g)),
    lambda cls, a, b, c, d, e, f, g, h: _new(cls, (a, b, c, d, e, f, g, h)),
    lambda cls, a, b, c, d, e, f, g, h, i: _new(cls, (a, b, c, d, e, f, g, h, i)),
    lambda cls, a, b, c, d, e, f, g, h, i, j: _new(cls, (a, b, c, d, e, f, g, h, i, j)),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k: _new(cls, (a, b, c, d, e, f, g, h, i, j, k)),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m: _new(cls, (a, b, c, d, e, f, g, h, i, j, k, m)),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n: _new(
        cls, (a, b, c, d, e, f, g, h, i, j, k, m, n)
    ),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o: _new(
        cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o)
    ),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p: _new(
        cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p)
    ),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q: _new(
        cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q)
    ),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r: _new(
        cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r)
    ),
)


class _Value(tuple):  # type: ignore[type-arg]
    """What every value can do. A value is compared by class and content, never ordered."""

    __slots__ = ()
    _defaults: ClassVar[dict[str, object]] = {}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self).__name__, tuple(self)))

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        pairs = zip(type(self).__match_args__, self, strict=True)  # type: ignore[attr-defined]
        return f"{type(self).__name__}({', '.join(f'{name}={item!r}' for name, item in pairs)})"

    def __getnewargs__(self) -> tuple[object, ...]:
        return tuple(self)


def replace(record: T, /, **changes: object) -> T:
    """A copy of a value with some fields changed."""
    return type(record)(**(as_dict(record) | changes))


def as_dict(record: object) -> dict[str, object]:
    """The fields of a value by name."""
    assert isinstance(record, _Value)
    return dict(zip(type(record).__match_args__, record, strict=True))  # type: ignore[attr-defined]
