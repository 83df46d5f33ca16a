"""float64 throughout: Hugging Face computes norms, softmaxes and routers in float32 for every model dtype."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_SOFTMAX = (torch.nn.functional.softmax, torch.nn.functional.log_softmax, torch.softmax, torch.Tensor.softmax)


class Float64Throughout(TorchFunctionMode):
    """A mode in which nothing rounds a float64 tensor to float32: such a cast returns the tensor, such a softmax stays float64.

    Casts of other dtypes are unchanged. Kernels that are not torch functions (an extension's own) are not intercepted.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        subject = args[0] if args else kwargs.get("input")
        if isinstance(subject, torch.Tensor) and subject.dtype == torch.float64:
            if func is torch.Tensor.float:
                return subject
            if func is torch.Tensor.to and torch.float32 in (*args[1:], *kwargs.values()):
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
                kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
            elif func in _SOFTMAX and kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)
