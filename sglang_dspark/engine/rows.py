"""Make the target's rows what plain decoding would sample from: each row given the accepted tokens before it."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import GrammarMask
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from sglang_dspark.ops.accept import Accepted
from sglang_dspark.ops.penalties import Penalties, penalise_rows
from sglang_dspark.ops.ragged import RaggedRows
from sglang_dspark.ops.target_probs import Filters, target_probs


class RowProcessor:
    """Keeps the token history of requests with penalties, which the engine does not update inside a block."""

    def __init__(self) -> None:
        self._output: dict[str, list[int]] = {}

    def apply(
        self,
        logits: torch.Tensor,
        batch: Any,
        rows: RaggedRows,
        verify_ids: torch.Tensor,
        window_index: torch.Tensor,
        grammar_mask: GrammarMask | None,
    ) -> None:
        """Penalties, grammar mask, logit bias and custom processors, in the order of the engine's plain sampler.

        Args:
            logits: `[M, V]`, changed in place.
            verify_ids: `[B, γ + 1]`, anchor and drafted tokens.
            window_index: `[M]`, each row's place in the `[B, γ + 1]` window.
        """
        info = batch.sampling_info
        self._penalise(logits, batch, rows, verify_ids)
        if grammar_mask is not None:
            mask = grammar_mask.vocab_mask
            GrammarMask(grammar_mask.grammar, mask[window_index.to(mask.device)]).apply(logits)
        if info.logit_bias is not None:
            logits.add_(info.logit_bias[rows.request])
        if info.has_custom_logit_processor:
            for entry in info.custom_logit_processor.values():
                chosen = torch.isin(rows.request, entry.indices).nonzero().squeeze(1)
                parameters = [info.custom_params[r] for r in rows.request[chosen].tolist()]
                logits.index_copy_(0, chosen, entry.processor(logits[chosen], parameters).to(logits.dtype))

    @staticmethod
    def filtered(logits: torch.Tensor, info: Any, rows: RaggedRows) -> torch.Tensor | None:
        """`[M, V]` float32 after temperature, top-k, top-p and min-p; None where the softmax of the logits is meant."""
        filtering = info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling
        if info.is_all_greedy or not filtering:
            return None
        request = rows.request
        filters = Filters(
            top_k=info.top_ks[request].clamp(max=TOP_K_ALL) if info.need_top_k_sampling else None,
            top_p=info.top_ps[request] if info.need_top_p_sampling else None,
            min_p=info.min_ps[request] if info.need_min_p_sampling else None,
        )
        return target_probs(logits, info.temperatures.view(-1)[request], filters)

    def observe(self, batch: Any, accepted: Accepted) -> None:
        """Continue the histories with what this round emitted. Reads the device only when a request has penalties."""
        if not self._output:
            return
        tokens, counts = accepted.tokens.tolist(), accepted.counts.tolist()
        for r, req in enumerate(batch.reqs):
            if req.rid in self._output:
                self._output[req.rid].extend(tokens[r][: counts[r]])

    def _penalise(self, logits: torch.Tensor, batch: Any, rows: RaggedRows, verify_ids: torch.Tensor) -> None:
        penalised = [(r, req) for r, req in enumerate(batch.reqs) if penalties_of(req).active]
        known, self._output = self._output, {}
        if not penalised:
            return
        prefix_lens, ids = batch.seq_lens.tolist(), verify_ids.tolist()
        starts, lengths = rows.start.tolist(), rows.lengths.tolist()
        for r, req in penalised:
            output = _history(req, known.get(req.rid), prefix_lens[r], ids[r][0])
            self._output[req.rid] = output
            block = logits[starts[r] : starts[r] + lengths[r] + 1]
            penalise_rows(block, output, ids[r][1 : lengths[r] + 1], penalties_of(req))


def penalties_of(req: Any) -> Penalties:
    """A request's penalties, with the stop tokens the engine forbids before `min_new_tokens`."""
    params = req.sampling_params
    stop_ids: set[int] = set()
    if params.min_new_tokens > 0:
        tokenizer = req.tokenizer
        stop_ids |= (params.stop_token_ids or set()) | (req.eos_token_ids or set())
        stop_ids |= (tokenizer.additional_stop_token_ids or set()) | {tokenizer.eos_token_id}
    return Penalties(
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        repetition=params.repetition_penalty,
        min_new_tokens=params.min_new_tokens,
        stop_ids=tuple(sorted(token for token in stop_ids if token is not None)),
    )


def _history(req: Any, known: list[int] | None, prefix_len: int, anchor: int) -> list[int]:
    """Output tokens of a request, the anchor last.

    Under overlapped scheduling the request object is a round behind, so the history kept here is used while it agrees
    with the round; after a prefill (the first, or one that follows a retraction) the request itself is complete.
    """
    prompt = len(req.origin_input_ids)
    if known is not None and prompt + len(known) == prefix_len + 1 and known[-1] == anchor:
        return known
    sequence = (list(req.origin_input_ids) + list(req.output_ids))[:prefix_len]
    if len(sequence) != prefix_len:
        raise RuntimeError(
            f"request {req.rid}: {prefix_len} tokens are cached and {len(sequence)} are known, so its penalties cannot "
            "be evaluated; please report this"
        )
    return [*sequence[prompt:], anchor]
