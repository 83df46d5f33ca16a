"""The demo: one command takes an empty machine to a policy that has learned. It uses only the interfaces that a user has.

main      options, phases in order, the final report
prepare   the task suite and the run's configuration
phases    publish, wait, evaluate: a client of the bus and of SQL
progress  the output while the loop runs
outcome   the figures, from SQL and from the ledger kept outside the system
targets   the conditions that the demo must meet, and whether they hold
report    terminal, JSON and PNG
"""
