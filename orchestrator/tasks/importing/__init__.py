"""Import of task sets of other forms as Harbor task directories: `penstock tasks import`.

    report.py           the result of one task, and of a set
    place.py            writes one task at a time, whole or not at all, and never over another one
    git.py              the `git` program, without hooks, filters, submodules and prompts, within a time limit
    harbor.py           directories, repositories and registries of Harbor tasks; unknown_keys.py moves named keys that the format does not know
    terminal_bench.py   the older form of terminal tasks: task.yaml, run-tests.sh; compose.py reads its docker-compose.yaml
    swe.py              rows of SWE-bench and its relatives: swe_rows.py reads them, repository.py their files, swe_commands.py
                        chooses their test command, swe_scripts.py has their scripts, swe_base.py the program that restores the base commit's
                        files before the tests

A form gives `Found` tasks, each with a function that writes it into an empty directory. ValueError from there refuses that task alone.
"""
