"""The server's routes. What OpenAI's API has and this server has not is said to be missing, not left out in silence."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from edgespec import __version__
from edgespec.errors import EdgespecError
from edgespec.fields import Fields, shown
from edgespec.jobs import Service
from edgespec.request import sampling_from
from edgespec.server import schema, wire
from edgespec.server.errors import RequestError, from_engine, invalid
from edgespec.server.guard import Guard
from edgespec.server.metrics import CONTENT_TYPE, Exposition
from edgespec.server.page import page
from edgespec.server.stream import Answer, Patience

MAX_BODY = 4 * 2**20
"""Bytes of a request; more than a context of a million tokens holds."""
_MAX_READ = 16 * MAX_BODY
_MISSING = (
    "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/moderations", "/v1/files", "/v1/batches",
    "/v1/fine_tuning/{rest:path}", "/v1/audio/{rest:path}", "/v1/images/{rest:path}", "/v1/assistants",
    "/v1/rerank", "/infill", "/completion", "/embedding", "/apply-template", "/slots",
)  # fmt: skip
"""Known of OpenAI's API or llama-server's, and not offered."""
Read = Callable[[Fields, Any, schema.Defaults], schema.Asked]


class App:
    """What the routes share."""

    def __init__(self, service: Service, defaults: schema.Defaults, patience: Patience, created: int) -> None:
        """`created` is when the server started, in seconds since 1970."""
        self._service, self._defaults, self._patience, self._created = service, defaults, patience, created
        self._engine = service.engine
        self._n_ctx = service.engine.n_ctx // service.n_places
        self._exposition = Exposition(service)

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("/v1/chat/completions", functools.partial(self._answer, schema.chat), methods=["POST"]),
            Route("/v1/completions", functools.partial(self._answer, schema.text), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/", page),
            Route("/props", self._props),
            Route("/metrics", self._metrics),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            *(Route(path, _not_offered, methods=["GET", "POST", "DELETE"]) for path in _MISSING),
        ]

    async def _answer(self, read: Read, request: Request) -> Answer:
        self._service.check()  # before the work of reading it
        body = await self._body(request)
        asked = await _checked(lambda: read(body, self._engine, self._defaults))
        return Answer(self._service, asked, self._defaults.names[0], self._patience)

    async def _body(self, request: Request) -> Fields:
        try:
            async with asyncio.timeout(self._patience.body_s):
                data = await _read(request)
        except TimeoutError:
            message = f"the body did not arrive within {self._patience.body_s:g} s"
            raise RequestError(408, message, headers={"Connection": "close"}) from None
        return await run_in_threadpool(wire.parse, data)

    async def _models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._told()]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._defaults.names:
            raise RequestError(404, f"there is no model {shown(name)} here", "model", "model_not_found")
        return _json(self._told())

    def _told(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "id": self._defaults.names[0], "object": "model", "created": self._created, "owned_by": "edgespec",
            "aliases": list(self._defaults.names[1:]),
            "meta": {"n_ctx": self._n_ctx, "n_vocab": engine.target.n_vocab},
            "speculative": self._speculative(),
        }  # fmt: skip

    def _speculative(self) -> dict[str, Any]:
        """What drafts, how much at most, and why not if not: as the last answer found it, else as configured."""
        engine, last = self._engine, self._service.tally.last
        config, can = engine.config, engine.target.capabilities
        kind = engine.tuned.drafter or config.drafter if config.drafter == "auto" else config.drafter
        reason = None
        if kind == "none" or config.max_draft == 0:
            kind, reason = "none", "drafting was not asked for"
        elif can.max_rollback == 0:
            kind, reason = "none", can.off_reason or "no partial rollback"
        found: dict[str, Any] = {"type": kind, "n_max": config.max_draft, "off_reason": reason}
        found["notes"] = list(engine.notes)
        if last is not None:
            found["last"] = {"drafter": last.drafter, "off_reason": last.drafter_off_reason}
        return found

    async def _health(self, _: Request) -> Response:
        self._service.check(0)
        return _json({"status": "ok"})

    async def _props(self, _: Request) -> Response:
        engine = self._engine
        sampling = asdict(replace(sampling_from(engine.config), seed=self._defaults.seed or 0))
        sampling["seed"] = self._defaults.seed
        return _json(
            {
                "model": self._defaults.names[0],
                "build_info": f"edgespec {__version__}",
                "total_slots": self._service.n_places,
                "queue": self._service.n_queue,
                "n_ctx": self._n_ctx,
                "chat_template": engine.template_name,
                "default_generation_settings": {
                    **sampling, "max_tokens": engine.config.max_tokens or schema.ANSWER_TOKENS,
                },
                "speculative": self._speculative(),
                "exact": engine.exactness.why,
                "tuned": str(engine.tuned) if engine.tuned.values() else None,
                "heat": engine.machine.heat(),
            }
        )  # fmt: skip

    async def _metrics(self, _: Request) -> Response:
        return Response(await run_in_threadpool(self._exposition.text), headers={"content-type": CONTENT_TYPE})

    async def _tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        content = body.needed_text("content")
        bos, special = body.flag("add_special"), body.flag("parse_special", default=True)
        pieces = body.flag("with_pieces")
        body.done()
        engine = self._engine
        ids = await _checked(
            lambda: engine.prompt(content, raw=not special) if bos else engine.encode(content, special=special)
        )
        if not pieces:
            return _json({"tokens": ids})
        return _json({"tokens": [{"id": token, "piece": _piece(self._engine.decode([token]))} for token in ids]})

    async def _detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        listed = body.listed("tokens", MAX_BODY)
        if listed is None:
            raise invalid("tokens is missing", "tokens")
        body.done()
        ids = schema.token_ids(listed, self._engine.target.n_vocab, "tokens")
        data = await _checked(lambda: self._engine.decode(ids))
        return _json({"content": data.decode("utf-8", "replace")})


def make(
    service: Service,
    defaults: schema.Defaults,
    *,
    created: int,
    log: Callable[[str], None],
    patience: Patience = Patience(),  # noqa: B008 - it is frozen
    hosts: Iterable[str] = (),
    api_key: str | None = None,
) -> ASGIApp:
    """The application: routes behind the guard. See `App` and `Guard`."""
    app = App(service, defaults, patience, created)
    handlers: dict[Any, Any] = {
        RequestError: _on_error, EdgespecError: _on_bug, HTTPException: _on_http_error, Exception: _on_bug,
    }  # fmt: skip
    inner = Starlette(routes=app.routes(), exception_handlers=handlers)
    inner.router.redirect_slashes = False
    return Guard(inner, hosts=hosts, api_key=api_key, log=log)


async def _read(request: Request) -> bytes:
    """The body, if it is not too long. One that is only somewhat too long is read all the same.

    A connection that is closed while something is still on its way is reset, and the client may never see why.

    Raises:
        RequestError: 413.
    """
    announced = request.headers.get("content-length", "0")
    parts, n_bytes = [], 0
    if int(announced[:20]) <= _MAX_READ:  # it is a number: h11 has seen to that
        async for part in request.stream():
            n_bytes += len(part)
            if n_bytes <= MAX_BODY:
                parts.append(part)
            elif n_bytes > _MAX_READ:
                break
        else:
            if n_bytes <= MAX_BODY:
                return b"".join(parts)
    raise RequestError(413, f"the body has more than {MAX_BODY >> 20} MiB", headers={"Connection": "close"})


async def _checked(make_it: Callable[[], Any]) -> Any:
    """What `make_it` gives, on another thread: templates, tokens and grammars take their time.

    Raises:
        RequestError: what the engine refused.
    """
    try:
        return await run_in_threadpool(make_it)
    except RecursionError:
        raise invalid("the request is nested too deeply") from None
    except EdgespecError as error:
        raise from_engine(error) from None


def _json(body: object) -> Response:
    return Response(wire.encode(body), media_type="application/json", headers={"cache-control": "no-store"})


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are no text, as llama-server gives them."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


async def _not_offered(request: Request) -> Response:
    raise RequestError(501, f"edgespec serve does not offer {request.url.path}")


async def _on_error(_: Request, error: RequestError) -> Response:
    return Response(
        wire.encode(error.body()), error.status, {**error.headers, "cache-control": "no-store"}, "application/json"
    )


async def _on_bug(request: Request, error: Exception) -> Response:
    return await _on_error(request, from_engine(error))  # the guard makes a line of it


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    message = {404: "there is nothing here", 405: f"{request.method} is not what this address takes"}
    found = RequestError(error.status_code, message.get(error.status_code, error.detail), headers=error.headers)
    return await _on_error(request, found)
