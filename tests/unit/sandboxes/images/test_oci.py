"""The JSON of an OCI image: each value of another form is refused."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from sandboxes.base import ImageRefused
from sandboxes.images.store import ImageStore
from tests.unit.sandboxes.images.archives import BASE, layer, oci

FORM = "the image is malformed: "
DIGEST = f"sha256:{'0' * 64}"
MALFORMED: list[tuple[str, dict[str, object], str]] = [
    ("configuration", {"config": ["a"]}, FORM + "config must be an object"),
    ("configuration", {"config": "x"}, FORM + "config must be an object"),
    ("configuration", {"config": {"Env": 5}}, FORM + "Env must be a list, and is 5"),
    ("configuration", {"config": {"Env": {"A": "1"}}}, FORM + "Env must be a list"),
    ("configuration", {"config": {"Env": [5]}}, FORM + "its configuration has 5 in place of a text"),
    ("configuration", {"config": {"Env": ["A=\ud800"]}}, FORM + "its configuration has "),
    ("configuration", {"config": {"WorkingDir": ["/x"]}}, FORM + "WorkingDir must be a text"),
    ("configuration", {"config": {"WorkingDir": "/\ud800"}}, FORM + "its configuration has "),
    ("configuration", {"config": {"WorkingDir": "/a\0b"}}, FORM + "WorkingDir has a NUL"),
    ("configuration", {"config": {"User": {"a": 1}}}, FORM + "User must be a text"),
    ("configuration", {"config": {"Volumes": ["/data"]}}, FORM + "Volumes must be an object"),
    ("configuration", {"config": {"Volumes": {"/\ud800": {}}}}, FORM + "its configuration has "),
    ("configuration", {"config": {"Labels": 1}}, FORM + "Labels must be an object"),
    ("configuration", {"config": {"Labels": {"penstock.volume.1": 1}}}, FORM + "its configuration has 1"),
    ("configuration", {"architecture": ["amd64"]}, FORM + "architecture must be a text"),
    ("configuration", {"os": {}}, FORM + "os must be a text"),
    ("manifest", {"config": 5}, "without a sha256 digest"),
    ("manifest", {"config": {"digest": []}}, "without a sha256 digest"),
    ("manifest", {"layers": {}}, "lists no layers"),
    ("manifest", {"layers": [None]}, "without a sha256 digest"),
    ("manifest", {"manifests": 5}, FORM + "manifests must be a list"),
    ("index", {"manifests": 5}, FORM + "manifests must be a list, and is 5"),
    ("index", {"manifests": {}}, FORM + "manifests must be a list"),
    ("index", {"manifests": None}, "has no image for linux/"),
    ("index", {"manifests": [5, "x"]}, "has no image for linux/"),
    ("index", {"manifests": [{"digest": []}, {"digest": {}}]}, "without a sha256 digest"),
    ("index", {"manifests": [{"digest": DIGEST, "platform": {"os": []}}]}, "has no image for linux/"),
]


@pytest.mark.parametrize(("where", "values", "why"), MALFORMED, ids=map(str, range(len(MALFORMED))))
def test_json_of_another_form_is_refused_in_one_sentence(
    tmp_path: Path, where: str, values: dict[str, object], why: str
) -> None:
    store = ImageStore(tmp_path / "store")
    with pytest.raises(ImageRefused, match=re.escape(why)) as refused:
        store.add(oci(tmp_path / "oci", layer(BASE), others={where: values}))
    assert "\n" not in str(refused.value) and store.all() == []
    assert os.listdir(store.directory / "unfinished") == []


def test_null_stands_for_every_value_that_an_image_need_not_have(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store")
    empty = dict.fromkeys(("Env", "WorkingDir", "User", "Volumes", "Labels"))
    cases: list[dict[str, Any]] = [{"config": None}, {"config": empty}, {"architecture": None, "os": None}]
    for at, values in enumerate(cases):
        image = store.add(oci(tmp_path / str(at), layer(BASE), others={"configuration": values}))
        assert (image.env, image.user, image.volumes) == ({}, "", ())
