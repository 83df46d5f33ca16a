"""Every renderer that the gateway has, over model directories of its family."""

from pathlib import Path

import pytest

from orchestrator.gateway.render import Renderer, TokenizerAdapter, load_renderer
from tests.event_loop import anyio_backend
from tests.unit.gateway.models import CHATML_FUNCTION, CHATML_KEEPS, chatml_model, minimax_model
from trainer.policy.init import make_policy

__all__ = ["anyio_backend"]

KINDS = ("policy", "qwen3", "minimax-m2", "template", "template-minimax", "template-function")


def model_directory(kind: str, directory: Path) -> Path:
    """A model directory for the renderer that `kind` names."""
    match kind:
        case "policy":
            return make_policy(directory, seed=0)
        case "qwen3":
            return chatml_model(directory, CHATML_KEEPS)
        case "minimax-m2":
            return minimax_model(directory)
        case "template":
            return chatml_model(directory, CHATML_KEEPS, model_type="another")
        case "template-minimax":
            return minimax_model(directory, render={"renderer": "template"})
        case "template-function":
            return chatml_model(directory, CHATML_FUNCTION, model_type="another")
    raise AssertionError(kind)


@pytest.fixture(scope="session")
def models_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _directory(kind: str, root: Path) -> Path:
    made = root / kind
    return made if made.exists() else model_directory(kind, made)


@pytest.fixture(scope="session", params=KINDS)
def renderer(request: pytest.FixtureRequest, models_root: Path) -> Renderer:
    return load_renderer(_directory(request.param, models_root))


@pytest.fixture(scope="session")
def qwen(models_root: Path) -> Renderer:
    return load_renderer(_directory("qwen3", models_root))


@pytest.fixture(scope="session")
def minimax(models_root: Path) -> Renderer:
    return load_renderer(_directory("minimax-m2", models_root))


@pytest.fixture(scope="session")
def minimax_tokens(models_root: Path) -> TokenizerAdapter:
    return TokenizerAdapter(_directory("minimax-m2", models_root))
