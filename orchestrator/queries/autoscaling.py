"""The statement by which an autoscaler counts the work of a pool of runners or verifiers. KEDA runs it, not a process of ours."""

from orchestrator.contracts.languages import like, sql_text


def work_of_pool(run: str, waiting: str, held: str, process: str) -> str:
    """SQL: rollouts of the run in the state `waiting`, plus those in the state `held` that this process of the topology leases. `run` and `process`
    are names."""
    owned = sql_text(f"%:{like(process)}")
    return (
        f"SELECT count(*) FROM rollouts WHERE run_id = (SELECT run_id FROM runs WHERE name = {sql_text(run)}) "
        f"AND state IN ({sql_text(waiting)}, {sql_text(held)}) AND (state = {sql_text(waiting)} OR lease_owner LIKE {owned})"
    )
