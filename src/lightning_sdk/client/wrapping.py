"""How a traced callable is wrapped: by wrapt, so that it looks, binds, inspects and pickles as what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # wrapt has no types, and its classes cannot be subscripted at run time in 1.x.
    class _WraptWrapper:
        __wrapped__: Any
        __self__: Any
        __name__: str
        __qualname__: str

        def __init__(self, wrapped: object, wrapper: Callable[..., Any]) -> None: ...

    _WraptBoundWrapper = _WraptWrapper
else:
    from wrapt import BoundFunctionWrapper as _WraptBoundWrapper
    from wrapt import FunctionWrapper as _WraptWrapper

# What wrapt calls instead of the wrapped callable: (wrapped, instance, args, kwargs).
Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], Mapping[str, Any]], Any]


class _BoundCallable(_WraptBoundWrapper):
    """A traced method, looked up on its instance or class."""

    def __reduce_ex__(self, protocol: object) -> str | tuple[Any, ...]:
        return getattr, (self.__self__, self.__name__)


class TracedCallable(_WraptWrapper):
    """A traced function, static or class method, or callable instance."""

    __bound_function_wrapper__ = _BoundCallable

    def __reduce_ex__(self, protocol: object) -> str | tuple[Any, ...]:
        # By qualified name, as functions are pickled.
        return self.__qualname__

    def __copy__(self) -> TracedCallable:
        return self

    def __deepcopy__(self, memo: object) -> TracedCallable:
        return self
