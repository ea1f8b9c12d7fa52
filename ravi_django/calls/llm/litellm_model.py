"""A ChatModel for any provider, through litellm.

The options of a call cannot change host and credentials. A streamed answer that is cut off raises an error.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Literal

from ravi_django.calls.llm import knowledge, litellm_stream, names, turns
from ravi_django.calls.llm.collector import ResponseCollector, call_ids
from ravi_django.calls.llm.errors import (
    Keys,
    is_fetch_error,
    is_reasoning_error,
    missing_key,
    translate_error,
    was_sent,
)
from ravi_django.calls.llm.knowledge import text_tokens, tokens_of
from ravi_django.calls.llm.loading import aload_litellm, is_imported, is_loaded
from ravi_django.calls.llm.pricing import cost_by, listed_cost, site_prices
from ravi_django.calls.llm.responses import ItemCollector, to_responses
from ravi_django.calls.llm.wire import Addresses, Form, cache_key, to_wire, tools_to_wire, with_cache_marks
from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.errors import InvalidInputError, KernelError, ModelError, TransientError
from ravi_django.kernel.llm import GenerationOptions, ModelEvent, ModelResponse, RetryPolicy
from ravi_django.kernel.messages import StreamAlive
from ravi_django.kernel.secrets import holds_secret, is_secret, secret_values
from ravi_django.kernel.supervision import RunMeta

DEFAULT_TIMEOUT_S = 120.0
Dialect = Literal["chat", "responses"]
Request = dict[str, Any]

# Sent with every request. litellm's own retries would hide attempts from the journal and multiply the runtime's.
_FIXED = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "num_retries": 0,
    "max_retries": 0,
    "drop_params": True,
}
_ROUTES = frozenset({"base_url", "custom_llm_provider", "mock_response"})  # options that replace the name's provider
_NO_PROVIDER = "LLM Provider NOT provided"  # litellm's words for a name that it does not know


class LiteLLMModel:
    """A ChatModel. Concurrent calls, from any number of event loops, may share one object.

    `timeout` is in seconds, for connecting and between two chunks of the stream. `prices` (dollars per token:
    `input_cost_per_token`, `output_cost_per_token`, `cache_read_input_token_cost`, `cache_creation_input_token_cost`)
    override the site's and litellm's list. `retry` is the policy for failed calls. `context_window` is in tokens, for a
    model that litellm does not list. `base_model` names the model behind a name that does not say it, such as the ARN
    of an inference profile: "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0". `cache_key`: tell OpenAI's cache which
    requests are of one conversation; None: not at another `api_base`. `dialect`: "responses" or "chat"; None:
    Responses for OpenAI's reasoning models at its own address. `private_addresses`: also pass on URLs
    of images and documents that are not https or are in a private network. Without it the model gets such a URL as
    text, because litellm itself fetches it for some providers. `params` are sent with every call; a call's options
    override them. Those that hold keys (`aws_secret_access_key`, an `Authorization` among `extra_headers`) are
    protected like the key.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        api_base: str | None = None,
        timeout: float | timedelta = DEFAULT_TIMEOUT_S,
        prices: Mapping[str, float] | None = None,
        retry: RetryPolicy | None = None,
        context_window: int | None = None,
        private_addresses: bool = False,
        base_model: str | None = None,
        cache_key: bool | None = None,
        dialect: Dialect | None = None,
        **params: Any,
    ) -> None:
        self.name = name
        self.timeout = check_seconds("timeout", timeout)
        self.prices = dict(prices) if prices else None
        self.retry = retry
        self.params = {key: value for key, value in params.items() if not holds_secret(key, value)}
        self._secret_params = {key: value for key, value in params.items() if key not in self.params}
        self._window = context_window
        self._api_base = api_base
        self._api_key = api_key
        self._has_key = bool(api_key or self._secret_params)
        self._keys = Keys([api_key, *secret_values(self._secret_params)])
        self._form: Form | None = None  # set by the first call
        self._addresses: Addresses = "all" if private_addresses else "public"
        self.listed_as = base_model or name  # in litellm's price list
        self._cache_key = cache_key
        if dialect not in (None, "chat", "responses"):
            raise InvalidInputError(f'dialect is "responses", "chat" or None, not {dialect!r}', field="dialect")
        self._dialect = dialect
        self._has_summary = True  # of thoughts; False once the provider has refused to write one

    def __repr__(self) -> str:
        return f"LiteLLMModel({self.name!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a model client holds a key and cannot be pickled; create it where it is used")

    async def stream(
        self, messages: Sequence[ChatMessage], options: GenerationOptions, meta: RunMeta
    ) -> AsyncIterator[ModelEvent]:
        """Yield deltas, then one ModelResponse. Closing the generator closes the connection.

        Raises TransientError for rate limits, timeouts and outages, ModelError with the provider's message for other
        failures, CancellationError when the run was cancelled meanwhile, InvalidInputError for an option that would
        change host or credentials.
        """
        meta.cancellation.check()
        refuse_destinations(options.extra)
        if not is_imported() and (fault := self.fault()) is not None:
            raise fault.as_error()
        litellm = await aload_litellm()
        form = self._form_of(litellm)
        collector = (
            ItemCollector(form.family, form.endpoint) if form.endpoint else ResponseCollector(form.family, form.server)
        )
        failure: Any = None
        is_open = False
        try:
            async with self._open(litellm, messages, options, meta, collector) as stream:
                is_open = True
                source, is_read_here = litellm_stream.source_of(stream)
                async for chunk in source:
                    meta.cancellation.check()
                    reported = collector.provider_usage
                    for delta in collector.add(chunk):
                        yield delta
                    if collector.provider_usage is not reported:
                        yield self._usage(litellm, collector)
                litellm_stream.check_end(None if is_read_here else stream, collector)
                if is_read_here:
                    await litellm_stream.call_callbacks(litellm, stream, collector)
        except Exception as error:
            failure = error if isinstance(error, KernelError) else self._failure(error)
            failure.is_sent = was_sent(error) or (is_open and getattr(failure, "status", None) is None)
        if failure is not None:
            # Outside the handler: a chained traceback would print what the message has redacted.
            raise failure
        if collector.provider_usage is None:
            collector.provider_usage = await estimated_usage(litellm, self.name, messages, collector.output_text)
            collector.is_estimated = True
        yield self._response(litellm, collector, messages)

    def fault(self, variables: Collection[str] | None = None) -> names.Fault | None:
        """An error of the name, or of the key where only `variables` are set (None: those of this process).
        None where only litellm can know it. Does not import litellm."""
        if self._api_base or _ROUTES & self.params.keys() or "USE_LITELLM_PROXY" in os.environ:
            return None
        return names.unknown(self.name) or (None if self._has_key else names.no_key(self.name, variables))

    def doubt(self) -> str:
        """What is odd about a name without a fault and without a price."""
        if "arn:" in self.name and self.listed_as == self.name:
            detail = "does not say which model it is, so its reasoning is not sent back and its cache is not used"
            return f"the model {self.name!r} {detail}. Name it: base_model='bedrock/anthropic.claude-…'"
        return "" if self._api_base or _ROUTES & self.params.keys() or self.has_price() else names.doubt(self.name)

    def has_price(self) -> bool:
        """Whether the cost of a call is known. Does not import litellm."""
        return bool(self.prices or site_prices(self.name) or names.has_price(self.name))

    def needs_library(self) -> bool:
        """Whether a call has to wait for the import of litellm."""
        return not is_loaded() and (is_imported() or self.fault() is None)

    def _failure(self, error: Exception) -> TransientError | ModelError:
        if _NO_PROVIDER in str(error) and (fault := names.unknown(self.name)) is not None:
            return fault.as_error()
        fault = None if self._has_key else names.no_key(self.name)
        return missing_key(error, self.name, fault) or translate_error(error)

    async def context_window(self) -> int | None:
        """The maximum of input tokens; None if unknown."""
        return self._window or knowledge.window(await aload_litellm(), self.listed_as)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of the messages as input. Each message is counted once."""
        return await knowledge.tokens_of(await aload_litellm(), self.name, messages)

    async def supports_schema(self) -> bool:
        """Whether `response_format` may hold a JSON schema."""
        if not is_imported() and self.fault() is not None:
            return False  # the call fails at once
        return knowledge.supports_schema(await aload_litellm(), self.name)

    async def supports_schema_beside_tools(self) -> bool:
        """Whether it may stand beside tools."""
        litellm = await aload_litellm()
        return knowledge.supports_schema_beside_tools(litellm, self.name, self._form_of(litellm).family)

    async def fetches_addresses(self) -> bool:
        """Whether litellm downloads images of a URL into this process."""
        return knowledge.fetches_addresses(await aload_litellm(), self.name)

    @asynccontextmanager
    async def _open(
        self,
        litellm: Any,
        messages: Sequence[ChatMessage],
        options: GenerationOptions,
        meta: RunMeta,
        collector: ResponseCollector,
    ) -> AsyncIterator[Any]:
        form = self._form_of(litellm)
        call = partial(litellm_stream.opened, litellm.aresponses if form.endpoint else litellm.acompletion)
        build = partial(self._request, litellm, options=options, meta=meta)
        try:
            stream = await call(**build(form, messages))
        except Exception as error:
            again = self._again(error, build, form, messages)
            if again is None:
                raise
            stream = await call(**again)
            collector.is_refused = is_reasoning_error(error) and "summar" not in str(error)
        try:
            yield stream
        finally:
            await stream.aclose()

    def _again(
        self, error: Exception, build: Callable[..., Request], form: Form, messages: Sequence[ChatMessage]
    ) -> Request | None:
        """The request without what the error is about: every later call would send it too. None: it has nothing."""
        before = build(form, messages)
        if "stream_options" in str(error) and before.get("stream_options"):  # an older server
            again = {name: value for name, value in before.items() if name != "stream_options"}
        elif is_fetch_error(error):
            again = build(replace(form, addresses="none"), messages)
        elif is_reasoning_error(error):
            self._has_summary = self._has_summary and "summar" not in str(
                error
            )  # some accounts must be verified for it
            again = build(form, messages)
            if again == before:
                again = build(form, [turns.unsigned(message) for message in messages], thinks=False)
        else:
            return None
        return again if again != before else None

    def _form_of(self, litellm: Any) -> Form:
        if self._form is None:
            family = knowledge.family(litellm, self.listed_as)
            self._form = Form(
                family=family,
                server=sha256(server.encode()).hexdigest()[:16] if (server := self.endpoint) else "",
                endpoint=self._endpoint(litellm, family),
                addresses=self._addresses,
                video=knowledge.accepts_video(litellm, self.name),
                tool_images=knowledge.accepts_images(litellm, self.name),
            )
        return self._form

    @property
    def endpoint(self) -> str:
        """The address in place of OpenAI's own."""
        return self._api_base or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or ""

    @property
    def account(self) -> str:
        """A digest of server and key: calls of one account share its rate limits."""
        key = self._api_key or sorted(secret_values(self._secret_params))
        return sha256(f"{self.endpoint} {key}".encode()).hexdigest()[:16]

    def _is_openais(self) -> bool:
        """Whether a model of OpenAI is called at its own address."""
        is_routed = self.endpoint or _ROUTES & self.params.keys() or "USE_LITELLM_PROXY" in os.environ
        return not is_routed and not self.name.startswith("azure/")

    def _endpoint(self, litellm: Any, family: str) -> str:
        """A digest of server and key, for a model that is called by Responses; else empty."""
        dialect = self._dialect
        if dialect is None and family == "openai" and self._is_openais():  # older versions of Azure have none
            is_able = knowledge.streams(litellm, self.name) and knowledge.reasons(litellm, self.listed_as)
            dialect = "responses" if is_able else None
        if dialect != "responses":
            return ""
        if family != "openai":
            raise InvalidInputError(f'"responses" is for "openai/…" and "azure/…", not {self.name!r}', field="dialect")
        return sha256(f"{self.endpoint} {self._api_key or os.environ.get('OPENAI_API_KEY')}".encode()).hexdigest()[:16]

    def _request(
        self,
        litellm: Any,
        form: Form,
        messages: Sequence[ChatMessage],
        options: GenerationOptions,
        meta: RunMeta,
        thinks: bool = True,
    ) -> Request:
        chosen = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            "max_tokens": options.max_tokens,
            "stop": options.stop,
            "reasoning_effort": options.reasoning_effort,
            "response_format": options.response_format,
        }
        origin = {"family": form.family} | ({"endpoint": form.endpoint} if form.endpoint else {})
        messages, is_refused = turns.sendable(messages, origin)
        request: Request = {
            **self.params,
            **self._secret_params,
            **{key: value for key, value in chosen.items() if value is not None},
            **options.extra,
            **tools_to_wire(options),
            **_FIXED,
            "model": self.name,
            "timeout": self.timeout,
            "api_base": self._api_base,
            "api_key": self._api_key,
        }
        has_key = self._is_openais() if self._cache_key is None else self._cache_key
        if has_key and form.family == "openai" and meta.supervision is not None:
            request.setdefault("prompt_cache_key", cache_key(meta.supervision.session_id))
        if form.endpoint:
            reasons = knowledge.reasons(litellm, self.listed_as) is not False
            if not knowledge.streams(litellm, self.name):  # litellm would ask for a document, and cut it into pieces
                del request["stream"]
                request["extra_body"] = {**request.get("extra_body", {}), "stream": True}
            return to_responses(request, messages, form, reasons=reasons, summary=self._has_summary)
        request["messages"] = to_wire(messages, form)
        if form.family == "anthropic" and (is_refused or not thinks):  # a turn without thoughts cannot go on with them
            request = {key: value for key, value in request.items() if key not in ("thinking", "reasoning_effort")}
        return with_cache_marks(request, options.cache_life) if form.family == "anthropic" else request

    def _response(self, litellm: Any, collector: ResponseCollector, messages: Sequence[ChatMessage]) -> ModelResponse:
        cost = self._cost(litellm, collector)
        return collector.response(cost=cost, taken_ids=call_ids(messages) if collector.has_calls else set())

    def _usage(self, litellm: Any, collector: ResponseCollector) -> StreamAlive:
        """Before the end of the answer its output is not known: Claude begins with one token."""
        is_whole = bool(collector.finish_reason) or collector.is_done
        cost = self._cost(litellm, collector) if is_whole else None
        return StreamAlive(usage=collector.usage, cost=cost, is_whole=is_whole)

    def _cost(self, litellm: Any, collector: ResponseCollector) -> float | None:
        prices = self.prices or site_prices(self.name, collector.model)
        if prices is not None:
            return cost_by(prices, collector.usage, cache_writes=collector.cache_writes)
        return listed_cost(litellm, self.listed_as, collector.provider_usage)


# The keywords of litellm that name a host, a credential, another model, or a callback.
_NAMES = frozenset(
    {
        "model", "messages", "model_list", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks",
        "custom_llm_provider", "deployment_id", "client", "shared_session", "api_version", "organization", "project",
        "mock_response", "preset_cache_key", "input_cost_per_token", "output_cost_per_token", "hf_model_name",
        "litellm_params", "litellm_params_template", "model_info", "region_name", "aws_access_key_id",
        "aws_session_name", "aws_profile_name", "aws_role_name", "aws_sts_endpoint", "cache",
    }
)  # fmt: skip
_PARTS = re.compile(
    r"(?:^|_)(?:base|url|uri|host|hosts|endpoint|endpoints|headers?|callbacks?|proxy|proxies|proxied|router"
    r"|http|ssl|tls|cert|certificate|region|location|tenant|logger|logging|azure|vertex|aws|langfuse|langsmith"
    r"|fallback|fallbacks|oci|s3|gcs|arize|posthog|humanloop|gcp|bucket)(?:$|_)"
)
_NESTED = ("metadata", "litellm_metadata")  # litellm's loggers read their host and key from these


def refuse_destinations(extra: Mapping[str, Any], field: str = "options.extra") -> None:
    """Raises InvalidInputError (with `field`) for an option of a call that changes its host or credentials."""
    for name, value in extra.items():
        plain = str(name).lower().replace("-", "_")
        if plain in _NAMES or _PARTS.search(plain) or is_secret(plain):
            raise InvalidInputError(
                f"{field}.{name} would change the host or the credentials of the call; set it on the model, "
                f"LiteLLMModel(…, {plain}=…)",
                field=f"{field}.{name}",
            )
        if plain in _NESTED and isinstance(value, Mapping):
            refuse_destinations(value, f"{field}.{name}")


async def estimated_usage(litellm: Any, model: str, messages: Sequence[ChatMessage], answer: str) -> Any:
    """Usage by litellm's tokenizers, for a server that reports none."""
    read = await tokens_of(litellm, model, messages)
    written = await asyncio.to_thread(text_tokens, litellm, model, answer)
    return litellm.Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
