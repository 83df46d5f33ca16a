"""Which conversations are the scaffold's, by their content."""

from collections.abc import Mapping
from typing import Any

import pytest
from scaffolds.base import Conversations

from orchestrator.contracts.marks import Finish
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.conversations import ScaffoldConversations
from tests.unit.gateway.driver import Driver

Messages = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "you fix things"}
SUMMARISES = {"role": "system", "content": "you make summaries"}
TASK = {"role": "user", "content": "count the oaks of the park"}
PROMPT = "read every file below src and list the imports"
MAIN: Messages = [SYSTEM, TASK]
SUMMARY = "<analysis>\nThe park has oaks.\n</analysis>\n<summary>\nThree oaks were counted.\nThe elms are left to count.\n</summary>"


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def calls(name: str, **arguments: Any) -> Turn:
    call: Mapping[str, Any] = {"name": name, "arguments": arguments}
    return Turn.from_plain({"role": "assistant", "content": "", "tool_calls": [call]})


def turns(messages: Messages) -> tuple[Turn, ...]:
    return tuple(map(Turn.from_plain, messages))


class Session:
    """Passes requests and answers to `ScaffoldConversations`, as the recorder does."""

    def __init__(self, renderer: Renderer, *sub_agents: str) -> None:
        self.driver, self.known = Driver(renderer), ScaffoldConversations("many", sub_agents)

    def exchange(self, messages: Messages, reply: Turn) -> bool:
        """Whether the conversation is the scaffold's."""
        own = self.known.owns(turns(messages))
        node = self.driver.step(messages, reply).node
        if own:
            self.known.add(node)
        return own


@pytest.fixture
def session(renderer: Renderer) -> Session:
    return Session(renderer, "*task")


def test_a_conversation_of_a_command_is_not_the_scaffolds_nor_is_what_goes_on_with_it(
    session: Session,
) -> None:
    assert session.exchange(MAIN, calls("bash", command="curl …"))
    thinks: Messages = [message("think about the oaks for me, at length")]
    assert not session.exchange(thinks, Turn(role="assistant", text="hm"))
    assert not session.exchange(
        [*thinks, message("hm", "assistant"), message("and on")], Turn(role="assistant", text="so")
    )
    assert not session.exchange([SYSTEM, message("think for me")], Turn(role="assistant", text="hm"))
    assert session.exchange([*MAIN, message("a summary stands here")], Turn(role="assistant", text="done")), (
        "it is shortened"
    )


def test_each_call_of_a_sub_agent_begins_one_conversation(session: Session) -> None:
    session.exchange(MAIN, calls("task", description="imports", prompt=PROMPT, of=["a", "b"]))
    agent: Messages = [message("you are a sub-agent", "system"), message(f"<context/>\n{PROMPT}\n")]
    assert session.exchange(agent, calls("bash", command="ls"))
    assert session.exchange(agent, calls("bash", command="ls")), "a retry"
    assert not session.exchange([message(PROMPT + " and think")], Turn(role="assistant", text="hm"))
    assert session.exchange(
        [*agent, message("gone", "assistant"), message("on")], Turn(role="assistant", text="ok")
    )


def test_concurrent_sub_agents_are_distinguished_though_one_text_holds_the_other(session: Session) -> None:
    both = [calls("task", prompt=text).calls[0] for text in (PROMPT, PROMPT + " of tests")]
    session.exchange(MAIN, Turn(role="assistant", text="", calls=tuple(both)))
    assert session.exchange([message(PROMPT + " of tests")], Turn(role="assistant", text="ok"))
    assert session.exchange([message(PROMPT)], Turn(role="assistant", text="ok"))
    assert not session.exchange([SYSTEM, message(PROMPT)], Turn(role="assistant", text="ok"))


def test_only_declared_tools_begin_conversations_and_only_by_words_that_say_something(
    session: Session,
) -> None:
    session.exchange(MAIN, calls("bash", command=PROMPT))
    assert not session.exchange([message(PROMPT)], Turn(role="assistant", text="ok"))
    session.exchange(MAIN, calls("task", prompt="go"))
    assert not session.exchange(
        [message("go and think for me, at length")], Turn(role="assistant", text="ok")
    )


@pytest.mark.parametrize(
    "shown",
    [
        SUMMARY,
        "Summary of before:\nThree oaks were counted.\nThe elms are left to count.\nThe park has oaks.",
    ],
)
def test_a_summary_begins_one_conversation_however_a_program_reshapes_it(
    session: Session, shown: str
) -> None:
    reply = calls("bash", command="ls")
    session.exchange(MAIN, reply)
    goes_over: Messages = [SUMMARISES, TASK, reply.plain() | {"tool_calls": reply.plain()["tool_calls"]}]
    assert session.exchange(
        [*goes_over, message("2 files", "tool"), message("sum it up")], Turn(role="assistant", text=SUMMARY)
    )
    assert session.exchange([SYSTEM, message(shown)], calls("bash", command="ls"))
    assert not session.exchange([message(f"{shown}\nnow think")], Turn(role="assistant", text="hm"))


def test_a_summary_may_be_requested_over_a_history_that_was_cut(session: Session) -> None:
    """As qwen-code 0.24 does it: its first turns are replaced, the rest is unchanged."""
    first, second = calls("bash", command="ls"), calls("bash", command="cat notes")
    session.exchange(MAIN, first)
    session.exchange([*MAIN, first.plain(), message("notes", "tool")], second)
    cut: Messages = [
        SUMMARISES,
        message("<skills/>"),
        {**first.plain(), "content": "Got it."},
        message("notes", "tool"),
        second.plain(),
        message("sum it up"),
    ]
    assert session.exchange(cut, Turn(role="assistant", text=SUMMARY))
    mine: Messages = [message(f"think, {n}", role) for n in range(2) for role in ("user", "assistant")]
    assert not session.exchange(
        [*mine, message("and"), second.plain(), message("oaks", "tool"), message("think")],
        Turn(role="assistant", text="hm"),
    )


NUMBERS = "\n".join(map(str, range(400)))


def test_a_summary_may_be_requested_over_the_conversation_as_a_text_and_stand_in_the_next_as_an_answer(
    session: Session,
) -> None:
    """As opencode 1.18 does it."""
    listed = calls("bash", command="seq 0 399")
    session.exchange(MAIN, listed)
    session.exchange([*MAIN, listed.plain(), message(NUMBERS, "tool")], listed)
    retold = f"<conversation>\n[User]: {TASK['content']}\n[Tool result]: {NUMBERS}\n</conversation>\nWrite a summary of it."
    assert not session.exchange(
        [SUMMARISES, message(retold + " think of something else!" * 50)], Turn(role="assistant", text="hm")
    )
    assert session.exchange(
        [SUMMARISES, message(retold)], Turn(role="assistant", text="so far the numbers were listed")
    )
    begins: Messages = [
        SYSTEM,
        message("What did we do?"),
        message("so far the numbers were listed", "assistant"),
        message("Go on."),
    ]
    assert session.exchange(begins, calls("bash", command="ls"))
    assert session.exchange([SUMMARISES, message(retold)], Turn(role="assistant", text="again")), "a retry"


def test_what_was_retold_is_not_retold_once_more_before_a_step_more(session: Session) -> None:
    listed = calls("bash", command="seq 0 399")
    session.exchange(MAIN, listed)
    session.exchange([*MAIN, listed.plain(), message(NUMBERS, "tool")], listed)
    retold = f"{TASK['content']}\n{NUMBERS}\n"
    assert session.exchange([message(retold)], Turn(role="assistant", text="so far the numbers were listed"))
    assert not session.exchange([message(retold + "once more")], Turn(role="assistant", text="again"))
    elms = "\n".join(f"elm {n}" for n in range(99))
    session.exchange([*MAIN, listed.plain(), message(elms, "tool")], listed)
    assert session.exchange([message(f"{retold}{elms}\nonce more")], Turn(role="assistant", text="again"))


def test_another_system_prompt_over_an_invented_reply_is_not_the_scaffolds(session: Session) -> None:
    session.exchange(MAIN, calls("bash", command="ls"))
    assert not session.exchange([SUMMARISES, TASK], Turn(role="assistant", text="hm"))
    assert not session.exchange(
        [SUMMARISES, TASK, message("I wrote this", "assistant"), message("on")],
        Turn(role="assistant", text="hm"),
    )


TITLE: Messages = [message("you write titles", "system"), message("a title for: count the oaks")]


@pytest.mark.parametrize("kind", ["one", "many"])
@pytest.mark.parametrize("kept", [True, False], ids=["in this process", "rebuilt from its steps"])
def test_of_requests_that_arrive_before_any_reply_each_is_the_scaffolds_whichever_ends_first(
    renderer: Renderer, kind: Conversations, kept: bool
) -> None:
    driver, known = Driver(renderer), ScaffoldConversations(kind, ("task",))
    for digest in ("title", "main"):
        known.arrived(digest)
    title = driver.step(TITLE, Turn(role="assistant", text="Oaks of the park, counted")).node
    known.add(title)
    assert not known.unanswered
    assert known.owns(turns(MAIN), "main") and not known.owns(turns(MAIN), "a later one")
    main = driver.step(MAIN, Turn(role="assistant", text="I look.")).node
    known.add(main)
    if not kept:
        known = ScaffoldConversations(kind, ("task",))
        known.add(title)
        known.add(main)
    assert known.owns(turns([*MAIN, message("I look.", "assistant"), message("on")]), "next")
    assert known.owns(turns([*TITLE, message("again")]), "title again")
    assert not known.owns(turns([message("think about the oaks for me")]), "of a command")


def test_a_reply_that_was_cut_off_because_its_client_left_answers_nothing(renderer: Renderer) -> None:
    driver, known = Driver(renderer), ScaffoldConversations("one", ())
    node = driver.step(TITLE, Turn(role="assistant", text="Oaks of")).node
    node.finish = Finish.ABORT
    known.add(node)
    assert known.unanswered and known.owns(turns(MAIN))


def test_a_second_first_conversation_takes_no_retelling(session: Session) -> None:
    session.known.arrived("main")
    session.exchange(TITLE, Turn(role="assistant", text="Oaks"))
    reply = "There are three oaks near the gate, and the elms are left to count."
    looks = Turn.from_plain({**calls("bash", command="ls").plain(), "role": "assistant", "content": reply})
    session.known.add(session.driver.step(MAIN, looks).node)
    retold = message(f"Sum this up:\n{TASK['content']}\n{reply}")
    assert session.known.owns(turns([SUMMARISES, retold]))


def test_of_a_white_box_every_conversation_is_its_own(renderer: Renderer) -> None:
    session = Session(renderer)
    session.known = ScaffoldConversations("many", None)
    session.exchange(MAIN, calls("bash", command="ls"))
    assert session.exchange([message("another agent")], Turn(role="assistant", text="ok"))
