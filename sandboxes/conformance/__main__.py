"""`python -m sandboxes.conformance NAME|MODULE:CLASS [IMAGE] [--user USER]`: exit code 1 if a binding promise is broken."""

from __future__ import annotations

import argparse
import sys

import anyio

from sandboxes.base import Provider
from sandboxes.conformance import checks_for, run_check
from sandboxes.conformance.as_user import AsUser
from sandboxes.conformance.load import load
from sandboxes.conformance.on_image import OnImage


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
    parser = argparse.ArgumentParser(prog="python -m sandboxes.conformance")
    parser.add_argument("provider", metavar="NAME|MODULE:CLASS")
    parser.add_argument("image", nargs="?", help="of the provider's store")
    parser.add_argument("--user", help="as whom every program runs")
    given = parser.parse_args()
    try:
        provider: Provider = load(given.provider)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.image:
        provider = OnImage(provider, given.image)
    return anyio.run(run, AsUser(provider, given.user) if given.user else provider)


if __name__ == "__main__":
    sys.exit(main())
