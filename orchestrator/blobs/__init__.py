"""Blobs on this machine: the parts of large tasks, read from the data pool once and kept in a bounded cache.

cache      files by their sha256 below one directory, for all processes of the machine
task_files a stored task as a `Task` whose files lie in the cache
send       publishing of the blobs that a run lacks
"""
