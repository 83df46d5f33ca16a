"""The guide for models has every key of a render.json, and its table names the features that are refused."""

import re

from orchestrator.trajectory.mergeable import unmergeable
from tests.guides import PAGES, REPOSITORY

PAGE = PAGES["ops/guides/bring-your-own-model.md"]
RENDER = REPOSITORY / "orchestrator/gateway/render"


def test_every_key_of_a_render_json_that_the_gateway_reads_has_a_row() -> None:
    code = "".join(path.read_text() for path in RENDER.glob("*.py"))
    read = {*re.findall(r'settings\.get\("(\w+)"', code), *re.findall(r'for key in \("(\w+)",\)', code)}
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))
    assert len(read) >= 5 and read == rows


def test_every_feature_that_a_config_json_shows_has_a_row() -> None:
    refused = "\n".join(line for line in PAGE.splitlines() if line.startswith("| ") and "refused" in line)
    for raw, word in (
        ({"sliding_window": 4}, "sliding windows"),
        ({"mamba_d_state": 4}, "recurrent attention"),
        ({"attn_logit_softcapping": 4.0}, "soft-capped"),
        ({"logit_scale": 0.5}, "scaled logits"),
        ({"attention_dropout": 0.1}, "dropout"),
        ({"layerdrop": 0.1}, "dropped layers"),
        ({"router_jitter_noise": 0.1}, "router jitter"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
    ):
        assert unmergeable(raw.get, raw) is not None
        assert word in refused, word
