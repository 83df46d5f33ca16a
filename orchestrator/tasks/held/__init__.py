"""Confinement of an agent's program during grading. These files are copied with untrusted.py into the verifier's sandbox.

They use only the standard library, for Python 3.8 and later, and little of it: the imports cost time at every start of a program under test.
"""
