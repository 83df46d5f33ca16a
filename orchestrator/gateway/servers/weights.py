"""Which weights a rollout server holds, as it tells them, and those that it should hold.

A version is only what a client called the weights: every client that reaches the server can exchange them under the same version. So the
content counts.

| a server tells | then these must not change after a sync |
|---|---|
| the digest of its weights (the embedded one): in /model_info, and with the tokens of each reply | version and digest |
| version and directory (SGLang): in /model_info | version and directory |
"""

from dataclasses import dataclass

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.servers.client import Generation, ModelInfo

KEPT = 16  # digests of versions; a reply is never of older weights


@dataclass(frozen=True, slots=True)
class ReportedWeights:
    """A server's answer: the version, the directory that it read last, the digest of its tensors. None: it does not tell that."""

    version: str | None
    directory: str | None = None
    digest: str | None = None

    @classmethod
    def of(cls, info: ModelInfo) -> "ReportedWeights":
        """Those in an answer of /model_info."""
        return cls(info.weight_version or None, info.model_path or None, info.weights_digest or None)

    def instead_of(self, expected: "ReportedWeights") -> str | None:
        """How they differ from `expected`, as the end of a sentence; None: they do not. Equal digests are enough, whatever was read."""
        if self.version != expected.version:
            return f"serves the weights {_shown(self.version)} instead of {_shown(expected.version)}"
        has_digest = expected.digest is not None
        what, content = ("digest", expected.digest) if has_digest else ("directory", expected.directory)
        found = self.digest if has_digest else self.directory
        if content is None or found == content:
            return None
        return (
            f"serves other weights as version {_shown(self.version)}: expected {what} {_shown(content)}, "
            f"found {_shown(found)}"
        )


class KnownDigests:
    """The digests of the newest versions that one server was given. Empty as long as the server tells no digests."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}

    def know(self, version: int, digest: str | None) -> None:
        """From now on, `version` is the weights with this digest. None: the server tells none."""
        self._of.pop(version, None)
        if digest is None:
            self._of.clear()
            return
        self._of[version] = digest
        while len(self._of) > KEPT:
            del self._of[next(iter(self._of))]

    def foreign(self, reply: Generation) -> str | None:
        """The fault of a reply's weights, as the end of a sentence; None: no fault. A version that was not given to the server is judged
        elsewhere if its weights were."""
        for version, digest in sorted(reply.weights, key=str) if self._of else ():
            known = self._of.get(int(version)) if version.isascii() and version.isdigit() else None
            if digest != known if known is not None else digest not in self._of.values():
                expected = "that of a version of this run" if known is None else _shown(known)
                return (
                    f"generated with other weights as version {_shown(version)}: expected digest {expected}, "
                    f"found {_shown(digest)}"
                )
        return None


def _shown(text: str | None) -> str:
    return "none" if text is None else quoted(text, 200)
