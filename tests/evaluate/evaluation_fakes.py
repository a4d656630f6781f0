"""A stand-in for a server: the endpoints the evaluation uses, without a model behind them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakeEngine:
    """Answers token `prompt[-1] + 1, + 2, ...`, in pieces of `piece` tokens.

    Prompts whose first token is in `broken` are cut off after one piece; those in `refused` get status 400.
    """

    piece: int = 2
    incremental: bool = False
    delay: float = 0.0
    gamma: int = 4
    drafts: bool = True
    cap_length: float | None = None
    broken: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    in_flight: int = 0
    most_in_flight: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    flush_refusals: int = 0
    used_tokens: int = 0
    base_url: str = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/flush_cache", self.flush)
        app.router.add_get("/v1/loads", self.loads)
        app.router.add_get("/server_info", self.info)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request, body)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        prompt, total = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        if prompt[0] in self.refused:
            return web.json_response({"error": {"message": "prompt refused"}}, status=400)
        tokens = [prompt[-1] + 1 + i for i in range(total)]
        ends = [1, *range(1 + self.piece, total, self.piece)]
        if ends[-1] != total:
            ends.append(total)
        if not body["stream"]:
            await asyncio.sleep(self.delay * len(ends))
            return web.json_response(self._piece(prompt, tokens, 0, total, total))
        response = web.StreamResponse()
        await response.prepare(request)
        start = 0
        for end in ends:
            await asyncio.sleep(self.delay)
            piece = self._piece(prompt, tokens, start if self.incremental else 0, end, total)
            await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
            start = end
            if prompt[0] in self.broken:
                return response
        await response.write(b"data: [DONE]\n\n")
        return response

    def _piece(self, prompt: list[int], tokens: list[int], start: int, end: int, total: int) -> dict[str, Any]:
        meta = {
            "prompt_tokens": len(prompt),
            "cached_tokens": 0,
            "completion_tokens": end,
            "finish_reason": {"type": "length", "length": total} if end == total else None,
        }
        rounds = -(-(end - 1) // self.piece)
        if self.drafts and rounds:
            meta |= {
                "spec_verify_ct": rounds,
                "spec_num_proposed_drafts": rounds * self.gamma,
                "spec_num_correct_drafts": end - 1 - rounds,
            }
            if self.cap_length is not None:
                meta["spec_cap_length"] = self.cap_length
        ids = tokens[start:end]
        return {"output_ids": ids, "text": "".join(f" {token}" for token in ids), "meta_info": meta}

    async def flush(self, request: web.Request) -> web.Response:
        if self.flush_refusals:
            self.flush_refusals -= 1
            return web.Response(status=400, text="Flush cache failed.")
        return web.Response(text="Cache flushed.")

    async def loads(self, request: web.Request) -> web.Response:
        rank = {
            "num_running_reqs": self.in_flight,
            "num_waiting_reqs": 0,
            "num_used_tokens": self.used_tokens,
            "max_total_num_tokens": 1000,
        }
        return web.json_response({"loads": [rank]})

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response({"speculative_algorithm": "DSPARK" if self.drafts else None})

    async def metrics(self, request: web.Request) -> web.Response:
        lines = ["# TYPE sglang:spec_accept_length gauge"]
        lines += [f'sglang:spec_accept_length{{rank="{rank}"}} 1.25' for rank in range(2)]
        return web.Response(text="\n".join(lines) + "\n")


class FakeTokenizer:
    chat_template = "a template"
    name_or_path = "some/model"

    def apply_chat_template(self, turns: list[dict[str, str]], **options: bool) -> str:
        assert options == {"add_generation_prompt": True, "tokenize": False}
        return f"<{turns[0]['role']}>{turns[0]['content']}<assistant>"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]
