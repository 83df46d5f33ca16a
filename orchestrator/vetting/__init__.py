"""`penstock tasks vet`: runs the controls of `orchestrator.tasks.vetting` on tasks, in sandboxes.

    many.py → task.py → trials.py (repeated runs) · leak.py (readable.py, collecting.py) · orchestrator.probing (probes)

many.py      tasks side by side; each finished task is recorded at once, and a second call continues
task.py      one task: its controls in order, up to the wanted level
trials.py    attempts of the solution and of nothing, verified, under conditions
readable.py  everything that an agent can read in its sandbox
collecting.py  the program inside that sends the files out
leak.py      the suspects, and the solution without them
records.py   reports in a file next to the tasks
rows.py      reports as rows of a run
required.py  whether a task has the level that a run requires
"""
