"""The kinds of agents that a spec can describe, and which of its fields belong to which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ravi_django.agents.newsrooms import checked_signal, topic_of
from ravi_django.kernel import InvalidInputError

if TYPE_CHECKING:
    from ravi_django.agents.spec import AgentSpec

REACT, INFORMATION, PERSONAL_FEED = "react", "information", "personal_feed"
CLASSES = {REACT: "ReActAgent", INFORMATION: "InformationAgent", PERSONAL_FEED: "PersonalFeedAgent"}
_ALL = {"kind", "model", "fallbacks", "system_instructions", "variables", "options", "name", "description"}
_ALL |= {"welcome", "starter_prompts", "public_signals"}
_OF_A_FEED = {"follow_topics", "preferences", "every_s", "items_per_generation"}
_OF_NEWS = {"output_topic", "source_signal", "items_per_generation"}
_OWN = {INFORMATION: _ALL | _OF_NEWS, PERSONAL_FEED: _ALL | _OF_A_FEED}
_NOT_REACT = (_OF_A_FEED | _OF_NEWS) - {"output_topic"}


def check_kind(spec: AgentSpec) -> None:
    """Raises InvalidInputError for a field that says nothing of this kind of agent, a topic that is none, and where a
    model is missing."""
    given = spec.model_dump(exclude_defaults=True)
    allowed = _OWN.get(spec.kind)
    for field in given:
        if field in _NOT_REACT if allowed is None else field not in allowed:
            raise InvalidInputError(
                f"{field} says nothing of an agent of kind {spec.kind}; leave it out, or choose another kind",
                field=field,
            )
    if not spec.model and spec.kind != PERSONAL_FEED:
        raise InvalidInputError("model is required; name one, as litellm does: openai/gpt-4o-mini", field="model")
    if spec.output_topic:
        topic_of(spec.output_topic, "output_topic")
    for place, topic in enumerate(spec.follow_topics):
        topic_of(topic, f"follow_topics.{place}")
    checked_signal(spec.source_signal)
