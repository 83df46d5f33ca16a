"""The demo: one command takes an empty machine to a policy that has learned. Everything it does is what a user does.

main      options, phases in order, the final report
prepare   the task suite and the run's configuration
phases    publish, wait, evaluate: a client of the bus and of SQL
progress  what is shown while the loop runs
outcome   the figures, from SQL and from the ledger kept outside the system
report    terminal, JSON and PNG
"""
