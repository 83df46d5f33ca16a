"""`python -m sandboxes.conformance NAME|MODULE:CLASS`: exit code 1 if a promise that binds is not kept."""

from __future__ import annotations

import sys

import anyio

from sandboxes.base import Provider
from sandboxes.conformance import checks_for, run_check
from sandboxes.conformance.load import load


async def run(provider: Provider) -> int:
    broken = 0
    checks = checks_for(provider)
    for each in checks:
        result = await run_check(provider, each)
        binding = provider.isolated or not result.isolation
        broken += binding and not result.passed
        word = "ok" if result.passed else "FAILED" if binding else "not isolated"
        print(
            f"{word:>12}  {result.seconds:5.2f} s  {result.name}  {result.detail[:300]}".rstrip(), flush=True
        )
    print(f"{provider.name}: {len(checks)} checks, {broken} broken promises")
    return 1 if broken else 0


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m sandboxes.conformance NAME|MODULE:CLASS", file=sys.stderr)
        return 2
    try:
        provider = load(sys.argv[1])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return anyio.run(run, provider)


if __name__ == "__main__":
    sys.exit(main())
