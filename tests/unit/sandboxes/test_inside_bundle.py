"""The file that runs inside a pod holds every module that it imports."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from sandboxes.inside import bundle

IMPORTS = "import sys; from importlib import import_module; sys.path.insert(0, sys.argv[1]); [*map(import_module, sys.argv[2:])]"


def test_each_module_of_the_bundle_starts_without_any_other_file(tmp_path: Path) -> None:
    file = tmp_path / "supervisor.pyz"
    file.write_bytes(bundle())
    paths = ZipFile(BytesIO(bundle())).namelist()
    modules = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths]
    modules.remove("__main__")
    command = [sys.executable, "-I", "-S", "-c", IMPORTS, str(file), *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
