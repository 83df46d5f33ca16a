"""The end of a completion, and its text. SGLang's order: length, then stop tokens, then stop strings."""

from tokenizers import Tokenizer

from trainer.serving.sequence import Finish, Sequence


def check(sequence: Sequence, tokenizer: Tokenizer) -> Finish | None:
    """The finish reason after the token just appended, or None to continue."""
    sampling = sequence.request.sampling
    if sequence.completion_tokens >= sequence.limit:
        return {"type": "length", "length": sequence.limit}
    token = sequence.ids[-1]
    if not sampling.ignore_eos and token in sequence.stop_ids:
        return {"type": "stop", "matched": token}
    if sampling.stop:
        # Every token adds at least one byte, so a stop string of n bytes ends within the last n tokens.
        window = max(len(stop.encode()) for stop in sampling.stop) + 1
        tail = sequence.ids[max(sequence.prompt_tokens, len(sequence.ids) - window) :]
        text = tokenizer.decode(tail, skip_special_tokens=False)
        for stop in sampling.stop:
            if stop in text:
                return {"type": "stop", "matched": stop}
    return None


def text_of(sequence: Sequence, tokens: int, tokenizer: Tokenizer, *, final: bool) -> str:
    """The text of the first `tokens` completion tokens. A finished text ends before its stop token or string, unless `no_stop_trim`
    is set. An unfinished text holds back the bytes of an incomplete character."""
    sampling = sequence.request.sampling
    ids = sequence.ids[sequence.prompt_tokens : sequence.prompt_tokens + tokens]
    matched = (sequence.finish or {}).get("matched") if final else None
    trim = not sampling.no_stop_trim
    if isinstance(matched, int) and trim:
        ids = ids[:-1]
    text: str = tokenizer.decode(ids, skip_special_tokens=sampling.skip_special_tokens)
    if isinstance(matched, str) and trim and matched in text:
        text = text[: text.index(matched)]
    if not final:
        text = text.rstrip("\ufffd")
    return text
