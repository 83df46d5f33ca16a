"""Agent programs that come with Penstock as manifests. Only `penstock scaffold install NAME` installs them."""

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent

OPENCODE: Final = _HERE / "opencode" / "scaffold.toml"
OPENCODE_RESPONSES: Final = _HERE / "opencode" / "responses.toml"
OPENCODE_ANTHROPIC: Final = _HERE / "opencode" / "anthropic.toml"
CODEX: Final = _HERE / "codex" / "scaffold.toml"
QWEN_CODE: Final = _HERE / "qwen-code" / "scaffold.toml"
AIDER: Final = _HERE / "aider" / "scaffold.toml"
CLAUDE_CODE: Final = _HERE / "claude-code" / "scaffold.toml"
