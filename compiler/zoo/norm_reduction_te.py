"""What normalisations and reductions are made of, in TE. They compute in float32, whatever they are given."""

from collections.abc import Callable, Sequence
from typing import Any

Lead = int | tuple[int, ...]
"""The dimensions before the last one: a number of rows, or for example (images, tokens)."""


def shape(lead: Lead, last: int) -> tuple[int, ...]:
    """The dimensions of a tensor with these before the last one."""
    return (lead, last) if isinstance(lead, int) else (*lead, last)


def wide(value: Any) -> Any:
    """The value in float32."""
    return value.astype("float32")


def elements(like: Sequence[Any], element: Callable[..., Any], name: str) -> Any:
    """The tensor of this shape with `element(*place)` at each place."""
    from tvm import te

    # TE would name iterators after the parameters of `element`, and clash with tensors.
    return te.compute(tuple(like), lambda *at: element(*at), name=name)  # noqa: PLW0108


def reduced(
    how: Callable[..., Any], like: Sequence[Any], over: Sequence[int], term: Callable[..., Any], name: str
) -> Any:
    """The tensor of this shape with `how` (te.sum, te.max, te.min) over `term(place, inner)` at each place, where
    `inner` runs over the extents `over`."""
    from tvm import te

    axes = [te.reduce_axis((0, extent), name=f"over_{number}") for number, extent in enumerate(over)]
    return te.compute(tuple(like), lambda *at: how(term(at, axes), axis=axes), name=name)


def along_last(how: Callable[..., Any], x: Any, name: str, term: Callable[..., Any] | None = None) -> Any:
    """`how` over the last axis of x: of its elements, or of `term(*place)`."""
    element = term or (lambda *place: wide(x(*place)))
    return reduced(how, x.shape[:-1], [x.shape[-1]], lambda at, inner: element(*at, *inner), name)


def square(value: Any) -> Any:
    """value², written as the product that it is."""
    return value * value


def silu(value: Any) -> Any:
    """value · sigmoid(value)."""
    from tvm import te

    return value * te.sigmoid(value)


def moments(like: Sequence[Any], over: Sequence[int], x: Callable[..., Any]) -> tuple[Any, Any]:
    """Mean and variance of `x(place, inner)` over the extents `over`: the squares are those of what is left once the
    mean is taken off, which loses no digits where it is large."""
    from math import prod

    from tvm import te

    count = float(prod(int(extent) for extent in over))
    total = reduced(te.sum, like, over, x, "total")
    mean = elements(like, lambda *at: total(*at) / count, "mean")
    squares = reduced(te.sum, like, over, lambda at, inner: square(x(at, inner) - mean(*at)), "squares")
    return mean, elements(like, lambda *at: squares(*at) / count, "variance")


def row_moments(x: Any) -> tuple[Any, Any]:
    """Mean and variance over the last axis of x."""
    return moments(x.shape[:-1], [x.shape[-1]], lambda at, inner: wide(x(*at, *inner)))
