"""The JSON of `/generate`: one object per completion, with the keys and shapes of SGLang 0.5.23.

Only finished completions have per-token versions, routes and the closing times, as in SGLang. Beyond SGLang, the digest of the weights
stands next to each version, because a version is only what a client called them.
"""

import base64
import time
from typing import Any

from tokenizers import Tokenizer

from trainer.serving import stopping
from trainer.serving.sequence import Label, Sequence, TopLogprobs

DIGEST = "weights_digest"


def _entry(logprob: float | None, token: int, text: str | None) -> list[Any]:
    return [logprob, token, text]


def _routed_experts(sequence: Sequence) -> str | None:
    """Base64 of little-endian int32 [tokens, layers, top_k]: SGLang's encoding."""
    if sequence.routes is None:
        return None
    return base64.b64encode(sequence.routes.numpy().astype("<i4").tobytes()).decode("ascii")


class Replies:
    """Builds reply objects; `tokenizer` gives the texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def _word(self, sequence: Sequence, token: int) -> str | None:
        if not sequence.request.return_text:
            return None
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text

    def _tops(self, sequence: Sequence, tops: list[TopLogprobs]) -> list[Any]:
        return [[_entry(lp, token, self._word(sequence, token)) for lp, token in top] for top in tops]

    def _logprobs(self, sequence: Sequence, tokens: int) -> dict[str, Any]:
        request = sequence.request
        prompt: list[Any] = []
        if request.logprob_start is not None:
            ids = request.ids[request.logprob_start :]
            values = [None, *sequence.prompt_logprobs]
            prompt = [
                _entry(lp, token, self._word(sequence, token)) for lp, token in zip(values, ids, strict=False)
            ]
        start = sequence.prompt_tokens
        meta: dict[str, Any] = {
            "input_token_logprobs": prompt,
            "output_token_logprobs": [
                _entry(lp, token, self._word(sequence, token))
                for lp, token in zip(
                    sequence.logprobs[:tokens], sequence.ids[start : start + tokens], strict=True
                )
            ],
            "output_token_logprobs_length": tokens,
        }
        if request.top_logprobs:
            if request.logprob_start is not None:
                meta["input_top_logprobs"] = [None, *self._tops(sequence, sequence.prompt_tops)]
            meta["output_top_logprobs"] = self._tops(sequence, sequence.tops[:tokens])
        if request.return_mask:
            meta["output_token_sampling_mask"] = [ids for ids, _ in sequence.masks[:tokens]]
            meta["output_token_sampling_logprobs"] = [lp for _, lp in sequence.masks[:tokens]]
            meta["output_token_sampling_mask_length"] = tokens
        return meta

    def reply(self, sequence: Sequence, label: Label) -> dict[str, Any]:
        """The whole reply so far; `label` is of an unfinished one."""
        finish = sequence.finish
        tokens = sequence.completion_tokens
        request = sequence.request
        version, digest = sequence.final_label if finish else label
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": finish,
            "prompt_tokens": sequence.prompt_tokens,
            "weight_version": version,
            DIGEST: digest,
            "num_retractions": sequence.retractions,
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
        }
        if sequence.admitted is not None:
            meta["forward_entry_time"] = sequence.admitted
        if sequence.first_token is not None:
            meta["prefill_finished_time"] = sequence.first_token
        meta["queue_time"] = sequence.queue_time
        if request.return_logprob:
            meta |= self._logprobs(sequence, tokens)
        cached = sequence.cached_tokens or 0
        meta |= {"reasoning_tokens": 0, "completion_tokens": tokens, "cached_tokens": cached}
        if finish:
            meta["weight_versions"] = [
                {"version": name, "start": start, "end": end, DIGEST: content}
                for (name, content), start, end in sequence.spans
            ]
            if request.return_routes:
                meta["routed_experts"] = _routed_experts(sequence)
        meta |= {
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            "dp_rank": None,
        }
        if finish:
            assert sequence.finished is not None
            meta["e2e_latency"] = sequence.finished - sequence.received
            meta["request_received_ts"] = sequence.received
            if sequence.first_token is not None:
                meta["first_token_latency"] = sequence.first_token - sequence.received
            meta["api_server_dispatch_finish_ts"] = sequence.dispatched
            meta["request_finished_ts"] = sequence.finished
            if sequence.first_token is not None and tokens > 1:
                meta["decode_throughput"] = (tokens - 1) / max(sequence.finished - sequence.first_token, 1e-6)
            meta["response_sent_to_client_ts"] = time.time()
        body: dict[str, Any] = {
            "text": stopping.text_of(sequence, tokens, self._tokenizer, final=finish is not None),
            "output_ids": sequence.ids[sequence.prompt_tokens : sequence.prompt_tokens + tokens],
            "meta_info": meta,
        }
        if request.return_prompt_ids:
            body["prompt_token_ids"] = list(request.ids)
        return body
