"""Language models. litellm is imported only by the first call, or by `warm()`.

Owns no table. It must survive a provider that fails, is silent or cuts an answer off: the call then raises an error
that says whether it may be repeated. Read `litellm_model.py` first.
"""

from ravi_django.calls.llm.factory import LLMFactory, model_from_env
from ravi_django.calls.llm.fallback import FallbackModel
from ravi_django.calls.llm.litellm_model import LiteLLMModel
from ravi_django.calls.llm.loading import close_clients, warm
from ravi_django.calls.rehearsal.model import RehearsalModel

__all__ = ["FallbackModel", "LLMFactory", "LiteLLMModel", "RehearsalModel", "close_clients", "model_from_env", "warm"]
