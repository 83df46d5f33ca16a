"""The scores of a rollout: verdicts and composite rewards, append-only."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB, REAL

from orchestrator.pool.columns import metadata
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import run as _run

verdicts = Table(
    "verdicts",
    metadata,
    _run(),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout that was judged"),
    Column("revision", Integer, nullable=False, comment="1 and up; a rescore adds one"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt that was judged"),
    Column("epoch", Integer, nullable=False, comment="lease epoch of the verification"),
    Column(
        "reward",
        Float,
        nullable=False,
        comment="0 to 1: the performance part of the rewards that build on it",
    ),
    Column("tests", JSONB, nullable=False, comment="[{name, passed, message}] as the verifier parsed them"),
    Column("exit_code", Integer, comment="of the verifier's tests/test.sh"),
    Column("log", Text, comment="what the verifier printed, cut to a limit"),
    Column("verify_s", REAL, comment="seconds that the verification took, its sandbox included"),
    _now("at", "when it came in, by the database's clock"),
    Column(
        "process",
        JSONB,
        comment="what the task's process.json says: {name: number, or one per step}, -1 to 1; null: it wrote none",
    ),
    Column(
        "components",
        JSONB,
        comment="the named numbers of the task's reward.json, {name: number}; reward is one of them; null: it wrote one number without a name",
    ),
    PrimaryKeyConstraint("rollout_id", "revision"),
    CheckConstraint("reward >= 0 AND reward <= 1", name="reward"),
    comment="Append-only verifier results; reward in [0, 1] is the performance part.",
)

rewards = Table(
    "rewards",
    metadata,
    _run(),
    Column("rollout_id", BigInteger, nullable=False, comment="the rollout that was rewarded"),
    Column(
        "revision",
        Integer,
        nullable=False,
        comment="1 and up; the newest counts, but a batch pins the one that it used",
    ),
    Column("verdict_revision", Integer, nullable=False, comment="the verdict that it builds on"),
    Column("attempt", SmallInteger, nullable=False, comment="the attempt that was rewarded"),
    Column(
        "performance",
        Float,
        nullable=False,
        comment="the verdict's reward, 0 to 1, paid once on the last step",
    ),
    Column(
        "speed",
        Float,
        nullable=False,
        comment="performance * h(t_agent/t_base), h(x) = 1/(1 + x); paid once, times beta",
    ),
    Column(
        "process",
        Float,
        nullable=False,
        comment="sum over the steps of the weighted process signals; paid times alpha",
    ),
    Column(
        "alpha",
        Float,
        nullable=False,
        comment="1, or less where process would exceed reward.process_cap; where process_by_signal is null: a weight over the number of steps",
    ),
    Column("beta", Float, nullable=False, comment="weight of speed"),
    Column("total", Float, nullable=False, comment="performance + beta*speed + alpha*process"),
    Column("t_agent", Float, comment="seconds that the agent took, without platform queueing"),
    Column("t_base", Float, comment="seconds that speed is measured against"),
    Column(
        "baseline",
        Float,
        comment="what was taken off the returns: the group's mean, or the mean of the others; null: no advantage was computed",
    ),
    Column(
        "divisor", Float, comment="what the difference was divided by; 1 unless advantages are normalised"
    ),
    Column("advantage", Float, comment="of the first step; null where the group gives no training signal"),
    Column(
        "per_step",
        JSONB,
        nullable=False,
        comment="[{idx, process, signals, paid, speed, performance, reward, weight, return_to_go, advantage}]; weight 0: does not train",
    ),
    _now("at", "when it was computed, by the database's clock"),
    Column(
        "t_base_origin",
        Text,
        comment="where t_base comes from: reference (the task's) | siblings (their median) | itself; null: not paid, or older than this column",
    ),
    Column(
        "process_by_signal",
        JSONB,
        comment="{signal: what it added to total, over all steps}; their sum is alpha*process; null: older than this column",
    ),
    Column(
        "sd_log_t",
        Float,
        comment="standard deviation of ln(t_agent) over the group's members that succeeded; null: fewer than two",
    ),
    Column(
        "speed_noise",
        Float,
        comment="sd(ln t_agent) of replays of one rollout, which sd_log_t was compared with; null: not measured",
    ),
    Column(
        "silent",
        Text,
        comment="why the group gives no training signal, in words; null: it trains, or is not for training",
    ),
    PrimaryKeyConstraint("rollout_id", "revision"),
    comment="Append-only composite rewards: total = performance + beta*speed + alpha*process; per_step holds every part and each step's advantage.",
)

speed_noise = Table(
    "speed_noise",
    metadata,
    _run(),
    Column(
        "group_id",
        BigInteger,
        ForeignKey("groups.group_id"),
        nullable=False,
        comment="the group whose rollouts are the replays",
    ),
    Column("scaffold", Text, nullable=False, comment="the scaffold whose groups it counts for"),
    Column(
        "rollout_id",
        BigInteger,
        ForeignKey("rollouts.rollout_id"),
        nullable=False,
        comment="the recorded rollout that was replayed",
    ),
    Column("replays", Integer, comment="how many replays went the recorded way; null: no result"),
    Column("sd_log_t", Float, comment="standard deviation of log(agent seconds) over them; null: no result"),
    Column("seconds", Float, comment="geometric mean of their agent seconds; null: no result"),
    _now("at", "when the replays were submitted, by the database's clock"),
    Column("measured", DateTime(timezone=True), comment="when the last replay had ended; null: no result"),
    PrimaryKeyConstraint("group_id"),
    Index("speed_noise_newest", "run_id", "scaffold", "group_id"),
    comment="How much the agent's time varies by itself: replays of one recorded rollout under the run's load. "
    "A group of equal performance trains only if its sd(log T) is at least 3 times the newest sd_log_t of its scaffold.",
)
