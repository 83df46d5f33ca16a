"""The vocabulary that all processes share: messages (`events`), states and their transitions (`states`), closed sets (`marks`), errors, ids,
limits and quoting.

It imports nothing else of Penstock.
"""
