"""I3 from outside: answers that an agent program received and completions that a rollout server delivered, as recorded by others at the
time.

A witness is a directory with any of these files, one JSON value per line:

    answers.jsonl      {"session": sha256 (hex) of the session's token, "digest": `digest_of` the message that arrived}
    generations.jsonl  {"of": rollout:attempt of the request, "ids": the token ids of one delivered completion}

A resumed attempt is one attempt: its steps may be delivered under any of its leases, and are replayed to its program under the last.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.audit.findings import Checked, Findings
from orchestrator.audit.snapshot import Snapshot
from orchestrator.contracts.errors import ConfigurationError

ANSWERS, GENERATIONS = "answers.jsonl", "generations.jsonl"
RECEIVED, GENERATED = "answers that were received are stored", "stored actions were generated"
PAGE = 1000  # steps in memory at a time

# Only of the last sessions of attempts that count: answers in earlier sessions may have been refused, because their lease was lost.
# Stored answers of those sessions come again in the last one.
_REPLIES = """select s.token_hash, s.rollout_id, s.attempt, m.reply
  from sessions s join rollouts r on r.rollout_id = s.rollout_id and r.attempt = s.attempt
                                 and r.state in ('finished', 'verifying', 'verified')
  left join messages m on m.run_id = s.run_id and m.rollout_id = s.rollout_id and m.attempt = s.attempt
 where s.run_id = :run
   and s.epoch = (select max(o.epoch) from sessions o
                   where o.run_id = s.run_id and o.rollout_id = s.rollout_id and o.attempt = s.attempt)"""
# `cut`: the gateway may have ended the action before the end of its last piece, at a stop string across two pieces or a repetition.
_ACTIONS = """select s.rollout_id, s.attempt, s.idx, i4(s.action) as ids,
       jsonb_exists(p.params, 'stop') or jsonb_exists(p.params, 'repetition_stop') as cut
  from steps s join sampling p on p.sampling_id = s.sampling_id
       join rollouts r on r.rollout_id = s.rollout_id join groups g on g.group_id = r.group_id
 where s.run_id = :run and not (g.purpose = 'record' and coalesce(p.params->'scripted' = 'true', false))
   and (s.rollout_id, s.attempt, s.idx) > (:rollout, :attempt, :idx)
 order by s.rollout_id, s.attempt, s.idx limit :page"""


def digest_of(text: str, reasoning: str | None, calls: Sequence[tuple[str, Any]]) -> str:
    """Digest of a message: its text, its reasoning, its calls as (name, arguments)."""
    content = [text, reasoning, [list(call) for call in calls]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def lines_of(path: Path) -> Iterator[Any]:
    """The values of a file. Lines that are not JSON, such as a truncated last line, are skipped."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue


async def answers(snapshot: Snapshot) -> Checked:
    """Every answer that an agent program received in an attempt that counts is stored with it."""
    findings = Findings(invariant="I3", name=RECEIVED)
    path = _file(snapshot, ANSWERS)
    if path is None or snapshot.pruned:
        return findings.skipped(snapshot.pruned or "no witness reported what was received")
    received: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in lines_of(path):
        received[entry["session"]][entry["digest"]] += 1
    stored: dict[str, set[str]] = defaultdict(set)
    attempt_by_session: dict[str, tuple[int, int]] = {}
    for row in await snapshot.rows(_REPLIES):
        session = row.token_hash.hex()
        attempt_by_session[session] = (row.rollout_id, row.attempt)
        if row.reply is not None:
            stored[session].add(_digest(row.reply))
    for session, digests in received.items():
        if session not in attempt_by_session:
            continue
        rollout, attempt = attempt_by_session[session]
        for digest, times in digests.items():
            findings.examined += times
            if digest not in stored[session]:
                findings.add(
                    f"rollout {rollout} (attempt {attempt}): its program received an answer that no step of it has",
                    rollout_id=rollout,
                    attempt=attempt,
                    digest=digest,
                )
    return findings.checked()


def _digest(reply: Mapping[str, Any]) -> str:
    calls = [(call["name"], call["arguments"]) for call in reply.get("tool_calls") or []]
    return digest_of(reply.get("content") or "", reply.get("reasoning"), calls)


async def generations(snapshot: Snapshot) -> Checked:
    """Every stored action consists of completions that a rollout server delivered for its attempt: whole ones, except for the last of an
    action that the gateway itself may have ended. Scripted replies (demonstrations, replays that measure the speed noise) are recorded and
    never trained. Raises ConfigurationError for a file that does not name the attempts."""
    findings = Findings(invariant="I3", name=GENERATED)
    path = _file(snapshot, GENERATIONS)
    if path is None or snapshot.pruned:
        return findings.skipped(snapshot.pruned or "no witness reported what was generated")
    known: dict[str, dict[int, set[tuple[int, ...]]]] = defaultdict(lambda: defaultdict(set))
    for entry in lines_of(path):
        if not isinstance(entry, dict) or not {"of", "ids"} <= entry.keys():
            raise ConfigurationError(
                f'{path} has a line that does not say for whom it was generated: each is like {{"of": "12:1", "ids": [5, 6]}}, '
                "the rollout and its attempt first"
            )
        if ids := tuple(entry["ids"]):
            known[entry["of"]][ids[0]].add(ids)
    at = (0, 0, -1)
    while rows := await snapshot.rows(_ACTIONS, rollout=at[0], attempt=at[1], idx=at[2], page=PAGE):
        for row in rows:
            at = (row.rollout_id, row.attempt, row.idx)
            findings.examined += 1
            if not made_of(tuple(row.ids), known.get(f"{row.rollout_id}:{row.attempt}", {}), cut=row.cut):
                findings.add(
                    f"step {row.rollout_id}:{row.attempt}:{row.idx} has an action that no rollout server delivered for its attempt",
                    rollout_id=row.rollout_id,
                    attempt=row.attempt,
                    idx=row.idx,
                )
    return findings.checked()


def made_of(action: tuple[int, ...], known: Mapping[int, set[tuple[int, ...]]], *, cut: bool) -> bool:
    """Whether `action` is a chain of `known` pieces, indexed by their first id; if `cut`, the last piece may be longer than the rest of the
    action.

    >>> made_of((1, 2, 3), {1: {(1, 2)}, 3: {(3, 4)}}, cut=True)
    True
    """
    ends, todo = {0}, [0]
    while todo:
        start = todo.pop()
        if start == len(action):
            return True
        for piece in known.get(action[start], ()):
            rest = action[start : start + len(piece)]
            if piece[: len(rest)] != rest or (len(rest) < len(piece) and not cut):
                continue
            if (end := start + len(rest)) not in ends:
                ends.add(end)
                todo.append(end)
    return False


def _file(snapshot: Snapshot, name: str) -> Path | None:
    directory = snapshot.outside.witness
    return directory / name if directory is not None and (directory / name).is_file() else None
