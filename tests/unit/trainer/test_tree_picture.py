"""The picture of a train step's tree: every token of it once, every branch from where it leaves."""

import xml.etree.ElementTree as ElementTree

import pytest

from trainer.picture.draw import GIVEN, SAMPLED, picture
from trainer.samples import Sample

NAMESPACE = "{http://www.w3.org/2000/svg}"


def sample(state: list[int], action: list[int]) -> Sample:
    return Sample.of(state, action, behavior_logprobs=[0.0] * len(action), advantage=1.0)


# 1 2 3 4 occurs twice and is read once; the second rollout leaves after 1 2.
SAMPLES = [
    sample([1, 2], [3, 4]),
    sample([1, 2], [3, 4]),
    sample([1, 2, 3, 4, 5], [6]),
    sample([1, 2], [7, 8, 9]),
]


def bars(svg: str) -> list[tuple[str, str]]:
    """(fill, tooltip) of every bar, in order."""
    found = ElementTree.fromstring(svg).iter(f"{NAMESPACE}rect")
    return [(bar.attrib["fill"], bar[0].text or "") for bar in found if len(bar)]


def test_a_bar_is_what_the_same_samples_share_and_the_bars_hold_every_token_once() -> None:
    assert bars(picture(SAMPLES, "t")) == [
        (GIVEN, "2 tokens, given, in 4 samples"),
        (SAMPLED, "2 tokens, sampled by the policy, in 3 samples"),
        (GIVEN, "1 tokens, given, in 1 samples"),
        (SAMPLED, "1 tokens, sampled by the policy, in 1 samples"),
        (SAMPLED, "3 tokens, sampled by the policy, in 1 samples"),
    ]


def test_a_branch_is_drawn_from_the_row_and_the_token_at_which_it_leaves() -> None:
    nested = [*SAMPLES, sample([1, 2, 7], [5])]
    root = ElementTree.fromstring(picture(nested, "t"))
    rows = sorted({float(bar.attrib["y"]) for bar in root.iter(f"{NAMESPACE}rect") if len(bar)})
    assert len(rows) == 3
    lines = [path.attrib["d"] for path in root.iter(f"{NAMESPACE}path")]
    starts = [float(line.split()[1].split("V")[0]) for line in lines]
    # The second row leaves the first, the third leaves the second, one token further to the right.
    assert [start - 8 for start in starts] == rows[:2]
    first, second = (float(line.split()[0][1:]) for line in lines)
    assert second - first == pytest.approx((900 - 2 * 10) / 6, abs=0.2)


def test_its_title_is_text_and_its_sums_are_those_of_the_samples() -> None:
    texts = [
        e.text or "" for e in ElementTree.fromstring(picture(SAMPLES, "<1> & co")).iter(f"{NAMESPACE}text")
    ]
    assert texts[0] == "<1> & co"
    assert texts[1].startswith("4 samples of 19 tokens, 9 in the tree (2.1 times fewer), the longest 6")


def test_without_samples_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match=r"^there is nothing to draw"):
        picture([], "t")
