"""Opaque values that a wire attaches to reasoning, and that the harness sends back: plain to us, never trusted.

Clients of the Responses wire replay a reasoning item's `encrypted_content` and drop its text; clients of the Messages wire replay a
thinking block with its `signature`. Both values therefore name the step, and the first also contains the text. Messages are still matched by
equality.
"""

import base64
import binascii
import hashlib
import re

_PREFIX = "penstock1"
_SIGNATURE = re.compile(rf"{_PREFIX}\.s([0-9]{{1,9}})\.([A-Za-z0-9_-]{{22}})")


def keep_reasoning(step: int, text: str) -> str:
    """The `encrypted_content` of a reasoning item."""
    return f"{_PREFIX}.s{step}.{base64.urlsafe_b64encode(text.encode()).decode()}"


def kept_reasoning(value: object) -> tuple[int, str] | None:
    """(step, text) of a value of `keep_reasoning`; None for any other value."""
    if not isinstance(value, str) or not value.startswith(f"{_PREFIX}.s"):
        return None
    step, _, encoded = value.removeprefix(f"{_PREFIX}.s").partition(".")
    try:
        text = base64.b64decode(encoded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return (int(step), text) if step.isascii() and step.isdigit() and len(step) < 10 else None


def sign_thinking(step: int, text: str) -> str:
    """The `signature` of a thinking block. It is the same whenever a reply is served again."""
    digest = hashlib.sha256(f"{step}\n{text}".encode()).digest()[:16]
    return f"{_PREFIX}.s{step}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def signed_step(signature: object) -> int | None:
    """The step that one of our signatures names, else None. Blocks with other signatures are accepted as well."""
    found = _SIGNATURE.fullmatch(signature) if isinstance(signature, str) else None
    return int(found[1]) if found is not None else None
