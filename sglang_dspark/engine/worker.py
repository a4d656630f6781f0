"""DSpark's decoding round inside SGLang.

Construction, memory pools, the draft runner and prefill are the engine's; the round is ours. `_forward_decode` follows
the steps of a round: draft, sequential part, schedule, verify, process rows, accept, commit.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.kernels.ops.speculative.dspark.dspark_verify_window import BuildRaggedVerifyWindow, RaggedVerifyWindow
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.dspark_components.dspark_draft import make_next_draft_input
from sglang.srt.speculative.dspark_components.dspark_planner import VerifyWindow, alloc_verify_window
from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

from sglang_dspark.config import DSparkConfig
from sglang_dspark.engine import coverage, report
from sglang_dspark.engine.context_queue import MOST_TOKENS, ContextQueue
from sglang_dspark.engine.draft_heads import confidence_head_of, markov_head_of
from sglang_dspark.engine.draft_vocabulary import reduced_head_of
from sglang_dspark.engine.layout import ragged_layout
from sglang_dspark.engine.planning import planner_for
from sglang_dspark.engine.rounds import Round
from sglang_dspark.engine.rows import RowProcessor
from sglang_dspark.engine.streams import NoiseStreams
from sglang_dspark.ops.accept import Accepted, accept
from sglang_dspark.ops.draft_block import DraftBlock, draft_block
from sglang_dspark.ops.draft_reduced import draft_block_reduced
from sglang_dspark.ops.noise import Noise
from sglang_dspark.ops.ragged import RaggedRows

logger = logging.getLogger(__name__)

# XORed into the server's seed: our draws must not repeat those of another sampler of the same process.
_NOISE_DOMAIN = 0x5D5A_4B31


class DSparkWorker(DSparkWorkerV2):
    """The engine's DSPARK worker with this project's decoding round."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config = DSparkConfig.from_environment()
        self._said: set[str] = set()
        if not self._hosts_draft:
            return
        self.config.check_gamma(self.gamma)
        self._not_covered = coverage.deployment_reasons(self)
        if not self._not_covered:
            self._take_over()
        report.announce(self, self._not_covered)

    def _take_over(self) -> None:
        """Undo what the engine set up for its own round: accept and sampling inside captured graphs."""
        epilogue = self._verify_executor.verify_epilogue
        if epilogue is not None:
            self.model_runner.capture_tail_hooks.remove(epilogue.capture_hook)
            self._verify_epilogue: Any = None
            self._verify_executor.verify_epilogue = None
        self._head = markov_head_of(self.draft_model, self.draft_model_runner.model_config.hf_config)
        self._confidence = confidence_head_of(self.draft_model)
        self._reduced = reduced_head_of(self.draft_model)
        self._rows = RowProcessor()
        # Elsewhere the draft's KV leaves this worker with the target's, at a time that is not known here.
        keeps_back = not (self.server_args.enable_hierarchical_cache or self.server_args.disaggregation_mode != "null")
        self._context = ContextQueue(self._write_context, most_tokens=MOST_TOKENS if keeps_back else 0)
        seed = (int(self.target_worker.random_seed) ^ _NOISE_DOMAIN) & 0x7FFF_FFFF_FFFF_FFFF
        self._planner = planner_for(self, has_confidence=self._confidence is not None, seed=seed)
        self._streams = NoiseStreams(seed, self.device, self.config.coupling)

    def _maybe_build_draft_sampler(self) -> Any:
        # Our sequential loop follows the draft's graph instead of riding in its tail.
        return super()._maybe_build_draft_sampler() if self._not_covered else None

    @property
    def carries_confidence(self) -> bool:
        # The relay between rounds serves the engine's budgets; our planner keeps the confidences it needs.
        return bool(super().carries_confidence and self._not_covered)

    def get_confidence_budget_prepare(self) -> Any:
        if self._hosts_draft and not self._not_covered:
            return None
        return super().get_confidence_budget_prepare()

    def _forward_prefill(self, *args: Any, **kwargs: Any) -> GenerationBatchResult:
        if not self._not_covered:
            self._planner.interrupt()
            self._context.flush()
        return super()._forward_prefill(*args, **kwargs)

    def _forward_decode(
        self, batch: Any, on_publish: Any, grammar_barrier: Any = None, coordination_plan: Any = None
    ) -> GenerationBatchResult:
        reasons = self._not_covered or coverage.batch_reasons(batch, coordination_plan)
        if reasons:
            self._say_once("engine's own round: " + "; ".join(reasons))
            if not self._not_covered:
                self._planner.interrupt()
                self._context.flush()
            return super()._forward_decode(batch, on_publish, grammar_barrier, coordination_plan)

        sampling_info, prefix_lens = batch.sampling_info, batch.seq_lens
        draft_input = batch.spec_info
        anchors = draft_input.bonus_tokens.view(-1).long()
        temperatures = None
        if not sampling_info.is_all_greedy:
            greedy = (sampling_info.top_ks <= 1).view(-1)
            temperatures = torch.where(greedy, 0.0, sampling_info.temperatures.view(-1).float())
        plan = self._planner.begin(batch.reqs, _context(batch, draft_input), _free_part(batch))
        noise = self._streams.next_round(batch.reqs, prefix_lens)
        window = self._reserve(batch, draft_input)

        # 1, 2, 3. Draft: parallel part, sequential part, confidence.
        block = self._draft(batch, draft_input, window, anchors, temperatures, noise, plan)

        # 4. Schedule.
        lengths = self._planner.lengths(plan, block)
        plan.mark("plan")
        rows = RaggedRows.of(lengths, self.device)
        verify_ids = torch.cat([anchors.unsqueeze(1), block.tokens], dim=1)
        grammar_tree = GrammarTree.from_linear_chain(verify_ids) if batch.has_grammar else None

        # 5. Verify: one target forward over exactly Σ(1 + ℓ_r) tokens.
        layout = ragged_layout(lengths, self.verify_num_draft_tokens, self.model_runner, self.device)
        ragged = self._ragged_window(batch, layout, verify_ids)
        verified = self._verify_executor._run_ragged(
            batch=batch,
            layout=layout,
            ragged_window=ragged,
            sampling_info=sampling_info,
            kv_loc_plan=window.kv_loc_plan,
        )
        plan.mark("verify")
        output = verified.logits_output
        window_index = ragged.window_index[: rows.total]
        logits = output.next_token_logits[: rows.total]

        # 6. Accept, against what plain decoding would sample from at each position.
        grammar_mask = None
        if grammar_tree is not None:
            grammar_mask = build_grammar_vocab_mask(
                reqs=batch.reqs,
                tree=grammar_tree,
                sampling_info=sampling_info,
                device=logits.device,
                barrier=grammar_barrier,
            )
        self._rows.apply(logits, batch, rows, verify_ids, window_index, grammar_mask)
        p = self._rows.filtered(logits, sampling_info, rows)
        accepted = accept(logits, block, rows, temperatures, noise, p)
        for tensor in (accepted.tokens, accepted.counts, accepted.last):
            self._tp_sync.sync(SpecTpSyncSite.DSPARK_ACCEPT_SAMPLE, tensor)
        self._rows.observe(batch, accepted)
        plan.came_out(accepted.counts)
        plan.mark("accept")
        if batch.return_logprob:
            self._logprobs(batch, output, logits, window_index, accepted)
        new_seq_lens = prefix_lens + accepted.counts
        if on_publish is not None:
            on_publish(new_seq_lens)

        # 7. Commit: target hidden states become draft context, in every round. Rejected rows are written too: their
        # slots stay this request's, past its committed length, and every round writes a slot before a later length
        # makes it readable.
        slots = self._kv_injector.ids_for(window.kv_loc_plan, cols=window_index)
        states = output.hidden_states[: rows.total], slots, ragged.positions[: rows.total]
        if plan.drafts:
            self._write_context(*states)
        else:
            self._context.put(batch.reqs, *states)
        output.hidden_states = None
        plan.mark("inject")
        counts = accepted.counts.to(torch.int32)
        return GenerationBatchResult(
            logits_output=output,
            next_token_ids=accepted.tokens.reshape(-1),
            accept_lens=counts,
            block_accept_lens=counts,
            cap_lens=layout.verify_lens,
            can_run_cuda_graph=verified.can_run_cuda_graph,
            next_draft_input=make_next_draft_input(bonus_tokens=accepted.last, new_seq_lens=new_seq_lens),
            speculative_num_draft_tokens=int(self.verify_num_draft_tokens),
            new_seq_lens=new_seq_lens,
        )

    def _reserve(self, batch: Any, draft_input: Any) -> VerifyWindow:
        """Positions and KV slots of γ + 1 tokens per request; the rows not verified are reused next round."""
        seq_lens_cpu = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else draft_input.nxt_kv_lens_cpu
        return alloc_verify_window(
            batch=batch,
            bs=len(batch.seq_lens),
            device=self.device,
            verify_num_draft_tokens=self.verify_num_draft_tokens,
            block_pos_offsets=self._block_pos_offsets,
            model_runner=self.model_runner,
            seq_lens_cpu=seq_lens_cpu,
        )

    def _draft(
        self,
        batch: Any,
        draft_input: Any,
        window: VerifyWindow,
        anchors: torch.Tensor,
        temperatures: torch.Tensor | None,
        noise: Noise,
        plan: Round,
    ) -> DraftBlock:
        bs = len(batch.seq_lens)
        if not plan.drafts:
            return DraftBlock.skipped(bs, self.gamma, self.device)
        self._context.flush()
        target_model = self.target_worker.model_runner.model
        embed = self.draft_model.embed_tokens if not self.sample_from_anchor else target_model.get_input_embeddings()
        with self._draft_context():
            forward = self._proposer._run_forward(
                batch=batch,
                draft_input=draft_input,
                verify_window=window,
                bs=bs,
                device=self.device,
                embed_module=unwrap_lora_layer(embed),
            )
            with self._proposer._base_logits_context():
                base_logits, features = self._base_logits(forward.raw_hidden)
            plan.mark("draft")
            base_logits, features = (t.view(bs, self.gamma, -1) for t in (base_logits, features))
            rest = (anchors, features, self._head, self._confidence, temperatures, noise)
            support = self.config.support or None
            if self._reduced is None:
                block = draft_block(base_logits, *rest, support=support)
            else:
                block = draft_block_reduced(base_logits, self._reduced.ids, *rest, support=support)
        self._tp_sync.sync(SpecTpSyncSite.DSPARK_DRAFT, block.tokens)
        plan.mark("sequential")
        return block

    def _base_logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the tokens the draft can propose, and what its heads read: `[N, H]` -> `[N, V or Vd]`, `[N, H]`."""
        if self._reduced is None:
            logits, features = self.draft_model.compute_base_logits(hidden)
            return logits, features
        return self._reduced.base_logits(self.draft_model, hidden), hidden

    def _ragged_window(self, batch: Any, layout: Any, verify_ids: torch.Tensor) -> RaggedVerifyWindow:
        return BuildRaggedVerifyWindow.execute(
            batch=batch,
            layout=layout,
            draft_block_ids=verify_ids[:, : self.gamma].contiguous(),
            draft_tokens=verify_ids[:, 1:].contiguous(),
            bs=len(batch.seq_lens),
            device=self.device,
            verify_num_draft_tokens=self.verify_num_draft_tokens,
            model_runner=self.model_runner,
        )

    def _write_context(self, hidden: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        with self._draft_context():
            self._kv_injector.inject_target_hidden(target_hidden=hidden, cache_loc=slots, positions=positions)

    def _logprobs(
        self, batch: Any, output: Any, logits: torch.Tensor, window_index: torch.Tensor, accepted: Accepted
    ) -> None:
        # The engine's function addresses rows by width; only requests for log-probabilities pay for the scatter.
        stride = self.verify_num_draft_tokens
        strided = logits.new_zeros((len(batch.seq_lens) * stride, logits.shape[1]))
        strided[window_index] = logits
        output.next_token_logits = strided
        compute_spec_logprobs(batch, output, accepted.tokens.reshape(-1), chain_stride=stride)

    def _say_once(self, message: str) -> None:
        if message not in self._said and get_parallel().tp_rank == 0:
            self._said.add(message)
            logger.warning("DSpark: %s", message)


def _context(batch: Any, draft_input: Any) -> int:
    """Committed KV tokens of the batch; under overlapped scheduling a bound that is a round wide."""
    on_host = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else draft_input.nxt_kv_lens_cpu
    return int(on_host.sum()) if on_host is not None else sum(r.seqlen for r in batch.reqs)


def _free_part(batch: Any) -> float:
    """Part of the KV pool that is free, or held by the prefix cache for nobody."""
    allocator = batch.token_to_kv_pool_allocator
    return float(allocator.available_size() + batch.tree_cache.evictable_size()) / max(1, allocator.size)
