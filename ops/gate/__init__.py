"""The gate: `.ci/run` and `./ops/test --tier everything`. Parts that do not stop one another, second runs of failing tests, one summary.

It imports nothing of the product: a product that does not start must not take the gate with it.

| module | what it does |
|---|---|
| `__main__` | the order of things |
| `part` | runs one command with a limit, and ends what it leaves behind |
| `company` | a plugin of pytest: tests that fill the machine run with no other next to them |
| `results` | what pytest reported, and whether it reported all |
| `verdict` | which failures are red |
| `flaky` | `ops/flaky.toml`: tests that wait for their repair |
| `new_tests` | tests that a change adds or changes |
| `memory` | what the machine remembers from one run to the next |
| `summary` | the table at the end, and its JSON |
"""
