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
  if (frame.step === "tool_call") return t("Calling %s", frame.content?.tool);
  if (frame.content?.status === "blocked") return t(STATUS.blocked);
  if (frame.content?.imports) return t("Starting the model library");
  return { started: t("Thinking"), thinking: t("Thinking"), tool_result: t("Thinking"), paused: t("Waiting") }[frame.step] ?? "";
}
