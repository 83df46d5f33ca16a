"""Lets SGLang start where two of its compiled parts do not load. Python imports this by itself at start, in the server and in each of
its child processes, because `ops/sglang_cpu/serve` puts this folder on PYTHONPATH. Nothing of Penstock imports it.

- torchvision's wheel is built for CUDA: registering its operators' shapes fails on a CPU build of torch. Text models need none of them.
- `sgl_kernel` are CUDA kernels without a CPU wheel. SGLang imports names from it and, with the `torch_native` attention backend,
  never calls them: each name is a stand-in that says so if that should ever change.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType


class Missing:
    """Something of `sgl_kernel`: may be imported, passed on and looked into, not called."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __call__(self, *arguments, **options):
        raise NotImplementedError(f"{self._name} is a CUDA kernel, which this CPU server does not have")


class MissingModule(ModuleType):
    """`sgl_kernel` or a module below it."""

    __path__ = ()
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of `sgl_kernel` and everything below it."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != "sgl_kernel":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return MissingModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())  # last: a real one wins
sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
