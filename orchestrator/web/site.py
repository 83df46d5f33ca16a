"""State of one dashboard process: its run, its configuration and the services that answer requests."""

from dataclasses import dataclass, field

from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.settings.config import Config
from orchestrator.web.auth import Keys
from orchestrator.web.change_feed import ChangeFeed
from orchestrator.web.database import Database
from orchestrator.web.evaluation_cache import EvaluationCache
from orchestrator.web.metrics import WebMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """State that API routes use. `run`: of the configuration; `who`: the person who started this process; `layout`: where a supervisor
    writes."""

    run: str
    who: str
    config: Config
    database: Database
    keys: Keys
    metrics: WebMetrics
    changes: ChangeFeed
    layout: RunLayout | None = None
    hosts: frozenset[str] = frozenset()
    evaluation_cache: EvaluationCache = field(default_factory=EvaluationCache)
