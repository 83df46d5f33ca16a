"""Every page and every API module is registered where the dashboard loads it, and the tier `browser` opens every page."""

import importlib
import re
from pathlib import Path
from typing import Final

import pytest

from orchestrator.web import api

REPOSITORY: Final = Path(__file__).resolve().parents[3]
STATIC: Final = REPOSITORY / "orchestrator/web/static"
PLACES: Final = dict(
    re.findall(r'path: "([^"]+)".*import\("\./(pages/\w+\.js)"\)', (STATIC / "pages.js").read_text())
)
"""Path of a page → its module."""


def test_every_page_is_named_in_pages_js_and_has_its_component() -> None:
    modules = {path.relative_to(STATIC).as_posix() for path in (STATIC / "pages").glob("*.js")}
    assert modules == set(PLACES.values()), "name each module of static/pages in static/pages.js"
    for module in modules:
        assert re.search(r"^export function Page\(", (STATIC / module).read_text(), re.M), (
            f"{module} exports no Page"
        )


@pytest.mark.parametrize("path", PLACES)
def test_every_page_is_opened_on_the_screen_of_a_phone(path: str) -> None:
    opened = (REPOSITORY / "tests/browser/test_cards.py").read_text()
    begin = re.escape(path.partition(":")[0])
    assert re.search(rf'"{begin}(?:\?[^"]*)?"' if ":" not in path else rf'f"{begin}\{{', opened), (
        f"{path}: add it to `paths` of tests/browser/test_cards.py"
    )


def test_every_module_of_the_api_is_listed_with_its_routes() -> None:
    names = sorted(
        path.stem for path in Path(str(api.__file__)).parent.glob("*.py") if path.stem != "__init__"
    )
    found = [(name, importlib.import_module(f"{api.__name__}.{name}").ROUTES) for name in names]
    lost = [name for name, routes in found if not set(routes) <= set(api.ROUTES)]
    assert lost == [], "list them in orchestrator/web/api/__init__.py"
