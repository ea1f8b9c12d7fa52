// The page's texts in the reader's language, by the English text. The server sends them in a data block.

let words = {};

export function setWords(given) {
  words = given;
}

// `%s` are filled in with the values, in their order.
export function t(text, ...values) {
  return (words[text] ?? text).replace(/%s/g, () => String(values.shift()));
}

const STATUS = {
  queued: "Waiting for the answer before it", pending: "Waiting for a worker", running: "Thinking", suspended: "Waiting",
  blocked: "On hold: the team of this site has to look at it first. Nothing is lost.",
  completed: "Done", failed: "Failed", cancelled: "Stopped",
};

export function statusInWords(run) {
  return t(STATUS[run.status] ?? run.status);
}

const ERRORS = {
  BudgetExhaustedError: "The limit for this answer is used up.", RateLimitedError: "There are too many requests at present. Try again later.",
  DeadlineExceeded: "The time for this answer has run out.", ModelError: "The language model gave no answer.",
};
const SAYS = new Set(["GuardrailError", "PermanentError", "ToolRefused"]); // their texts are written for the person

// An error of a run in words for a person who is no developer. A daily budget begins again at a time that its message has.
export function errorInWords(type, message) {
  const again = type === "BudgetExhaustedError" && /continue from (\S+) 00:00 UTC/.exec(message);
  if (again) return t("Your daily limit is used up. It starts anew at %s.", new Date(`${again[1]}T00:00Z`).toLocaleTimeString([], { timeStyle: "short" }));
  return SAYS.has(type) && message ? message : t(ERRORS[type] ?? "This answer could not be finished.");
}

// "2 minutes ago" up to a day, else the date.
export function ago(at) {
  const minutes = Math.round((Date.parse(at) - Date.now()) / 60_000);
  if (minutes < -24 * 60) return new Date(at).toLocaleDateString([], { dateStyle: "medium" });
  const words = new Intl.RelativeTimeFormat(document.documentElement.lang || undefined, { numeric: "auto" });
  return minutes > -60 ? words.format(minutes, "minute") : words.format(Math.round(minutes / 60), "hour");
}

// A duration: "0.2 s", "12 s", "4 min", "26 h".
export function took(ms, digits = 1) {
  const seconds = Math.max(ms, 100) / 1000;
  if (seconds < 90) return `${seconds.toFixed(seconds < 9.95 ? digits : 0)} s`;
  return seconds < 90 * 60 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

// What a frame says that the agent does now; "" for nothing new.
export function stepInWords(frame) {
  if (frame.type === "text.delta") return t("Answering");
  if (frame.type === "reasoning.delta") return t("Thinking");
  if (frame.type !== "progress") return "";
  const limited = frame.content?.waiting_on?.find((wait) => wait.kind === "provider");
  if (limited) return t("Waiting for %s: about %s s", limited.name, Math.max(1, Math.round((Date.parse(limited.until) - Date.now()) / 1000)));
  if (frame.step === "tool_call") return t("Calling %s", frame.content?.tool);
  if (frame.content?.status === "blocked") return t(STATUS.blocked);
  if (frame.content?.imports) return t("Starting the model library");
  return { started: t("Thinking"), thinking: t("Thinking"), tool_result: t("Thinking"), paused: t("Waiting") }[frame.step] ?? "";
}
