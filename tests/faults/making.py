"""A lock from the expression of a row, and an error as a line of JSON: what every actor needs.

Imported both as a part of `faults` and, by what runs as a file, as a module of its own.
"""

import importlib


def made(make, path, me="p1"):
    """The lock: an expression, with `path`; `me`: the name of who asks."""
    import lifehold

    names = {name: getattr(lifehold, name) for name in lifehold.__all__}
    for name in ("broken", "shapes"):
        if make.startswith(f"{name}."):
            names[name] = importlib.import_module(f"{__package__}.{name}" if __package__ else name)
    return eval(make, {**names, "path": path, "me": me})


def told(error):
    """An error as an answer."""
    from lifehold import LifeholdError

    kinds = [kind.__name__ for kind in type(error).__mro__]
    where, at = [], (error.__cause__ or error).__traceback__
    while at is not None:
        where.append(at.tb_frame.f_code.co_name)
        at = at.tb_next
    return {"error": kinds[0], "kinds": kinds, "text": str(error), "where": where[-4:],
            "ours": isinstance(error, LifeholdError)}  # fmt: skip
