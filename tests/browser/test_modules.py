"""The dashboard's modules by themselves, in Node: states and orders of answers that no page shows reliably."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier("browser")

MODULES = Path(__file__).parent / "modules"
STATIC = Path(__file__).resolve().parents[2] / "orchestrator" / "web" / "static"


@pytest.mark.parametrize("name", sorted(path.stem for path in MODULES.glob("*.mjs")))
def test_the_module_keeps_its_promises(tmp_path: Path, name: str) -> None:
    shutil.copytree(MODULES, tmp_path, dirs_exist_ok=True)
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    done = subprocess.run(
        ["node", f"{name}.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
