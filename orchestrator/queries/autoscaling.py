"""The statement by which an autoscaler counts the work of a pool of runners or verifiers. KEDA runs it, not a process of ours."""


def work_of_pool(run: str, waiting: str, held: str, process: str) -> str:
    """SQL: rollouts of the run in the state `waiting`, plus those in the state `held` that this process of the topology leases. `run` and `process`
    are names, of letters, digits and dashes."""
    return (
        f"SELECT count(*) FROM rollouts WHERE run_id = (SELECT run_id FROM runs WHERE name = '{run}') "
        f"AND state IN ('{waiting}', '{held}') AND (state = '{waiting}' OR lease_owner LIKE '%:{process}')"
    )
