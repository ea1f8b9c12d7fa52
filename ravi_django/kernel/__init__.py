"""Identity, content, messages, contracts and errors. Knows neither Django nor any model provider."""

from ravi_django.kernel.chat import ChatMessage as ChatMessage, Role as Role, Usage as Usage
from ravi_django.kernel.content import (
    AudioBlock as AudioBlock,
    Block as Block,
    CodeBlock as CodeBlock,
    ContentBlock as ContentBlock,
    DataBlock as DataBlock,
    DocumentBlock as DocumentBlock,
    ErrorBlock as ErrorBlock,
    ImageBlock as ImageBlock,
    TextBlock as TextBlock,
    ThinkingBlock as ThinkingBlock,
    ToolResultBlock as ToolResultBlock,
    ToolUseBlock as ToolUseBlock,
    UIResourceBlock as UIResourceBlock,
    UnknownBlock as UnknownBlock,
    VideoBlock as VideoBlock,
    text_of as text_of,
)
from ravi_django.kernel.contracts import (
    Agent as Agent,
    AskOutcome as AskOutcome,
    RunContext as RunContext,
    RunHandle as RunHandle,
)
from ravi_django.kernel.errors import (
    AgentCrashError as AgentCrashError,
    AgentNotFoundError as AgentNotFoundError,
    BudgetExhaustedError as BudgetExhaustedError,
    CancellationError as CancellationError,
    ConflictError as ConflictError,
    DeterminismError as DeterminismError,
    ForbiddenError as ForbiddenError,
    GuardrailError as GuardrailError,
    HandlerError as HandlerError,
    IdempotencyMismatchError as IdempotencyMismatchError,
    IllegalTransitionError as IllegalTransitionError,
    InputTooLargeError as InputTooLargeError,
    InvalidInputError as InvalidInputError,
    KernelError as KernelError,
    LeaseLostError as LeaseLostError,
    MiddlewareTermination as MiddlewareTermination,
    ModelError as ModelError,
    NotFoundError as NotFoundError,
    PermanentError as PermanentError,
    RateLimitedError as RateLimitedError,
    ResultInvalidError as ResultInvalidError,
    RunFailedError as RunFailedError,
    RunWaitsError as RunWaitsError,
    SecretRefusedError as SecretRefusedError,
    SessionNotFoundError as SessionNotFoundError,
    SpawnDeniedError as SpawnDeniedError,
    SuspendInterrupt as SuspendInterrupt,
    ThreadBusyError as ThreadBusyError,
    ToolArgumentsError as ToolArgumentsError,
    ToolRefused as ToolRefused,
    TransientError as TransientError,
    UncertainEffectError as UncertainEffectError,
)
from ravi_django.kernel.event_types import (
    Event as Event,
    EventPublisher as EventPublisher,
    EventSubscriber as EventSubscriber,
)
from ravi_django.kernel.flow import (
    FinishAgentResult as FinishAgentResult,
    HumanInput as HumanInput,
    PauseForChildResult as PauseForChildResult,
    PauseForInputResult as PauseForInputResult,
)
from ravi_django.kernel.identity import AgentId as AgentId, TopicId as TopicId
from ravi_django.kernel.llm import (
    ChatModel as ChatModel,
    GenerationOptions as GenerationOptions,
    ModelEvent as ModelEvent,
    ModelResponse as ModelResponse,
    RetryPolicy as RetryPolicy,
)
from ravi_django.kernel.messages import (
    ChatPayload as ChatPayload,
    ControlPayload as ControlPayload,
    DataPayload as DataPayload,
    Message as Message,
    PayloadBase as PayloadBase,
    ProgressPayload as ProgressPayload,
    ToolCallRequest as ToolCallRequest,
    ToolExecutionResult as ToolExecutionResult,
    UnknownPayload as UnknownPayload,
    register_payload_type as register_payload_type,
)
from ravi_django.kernel.middleware import (
    AgentContextProtocol as AgentContextProtocol,
    AgentMiddleware as AgentMiddleware,
    AgentRunContext as AgentRunContext,
    ChatContext as ChatContext,
    ChatMiddleware as ChatMiddleware,
    FunctionContext as FunctionContext,
    FunctionMiddleware as FunctionMiddleware,
    HookCall as HookCall,
    HookEvent as HookEvent,
    Middleware as Middleware,
)
from ravi_django.kernel.people import Addressees as Addressees, ApprovalDecision as ApprovalDecision, Step as Step
from ravi_django.kernel.stream import (
    AgentProgress as AgentProgress,
    AgentStep as AgentStep,
    CompletionEvent as CompletionEvent,
    ReasoningDelta as ReasoningDelta,
    StreamDone as StreamDone,
    StreamRestart as StreamRestart,
    TextDelta as TextDelta,
    ToolCallDelta as ToolCallDelta,
    progress_topic as progress_topic,
    stream_topic as stream_topic,
)
from ravi_django.kernel.supervision import (
    CancellationToken as CancellationToken,
    ExecutionBudget as ExecutionBudget,
    HistoryRetention as HistoryRetention,
    Priority as Priority,
    RunMeta as RunMeta,
    SpawnBudget as SpawnBudget,
    Supervision as Supervision,
)
from ravi_django.kernel.tools import (
    INVALID_ARGUMENTS_KEY as INVALID_ARGUMENTS_KEY,
    Effect as Effect,
    Happened as Happened,
    NotHappened as NotHappened,
    Risk as Risk,
    Tool as Tool,
    ToolRegistry as ToolRegistry,
    ToolSpec as ToolSpec,
)
