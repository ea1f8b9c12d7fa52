// Tools of the page around the panel: the agent calls them, and they run on the page where the person asked.

import { t } from "./words.js";

const LOOK = 5000; // ms between two looks for the page or the tool that a call waits for

const pages = {}; // of runs that this page began, also if the storage is full or forbidden

// The page where this window asked for a run. `page` sets it.
export function askedOn(run, page) {
  if (page) pages[run] = page;
  try {
    if (page) sessionStorage.setItem(`ravi.page.${run}`, page);
    return pages[run] ?? sessionStorage.getItem(`ravi.page.${run}`);
  } catch {
    return pages[run];
  }
}

// Run the tool of a frame, and answer with its result. The frames of a run come again after a reload, and in other tabs: the
// lock lets one tab after the other look whether the call still waits. Another page than that where the person asked says
// what the call waits for, and looks again.
export async function runTool(chat, run, frame) {
  const { id, tool, arguments: values } = frame;
  const answer = async () => {
    const { status, may_answer: isOwn } = await chat.api.get(`requests/${id}/`);
    if (status !== "pending" || !isOwn) return;
    const page = askedOn(run);
    const called = page === location.href && chat.tools().find(({ name }) => tool === `page_${name}`);
    if (called || (page && page !== location.href)) {
      const text = called ? await resultOf(called, values) : "The person has left the page of this tool. Do not call it again unasked.";
      return chat.api.answer(id, "answer", { text }).catch((error) => {
        if (error.status !== 400 && error.status !== 413) throw error;
        return chat.api.answer(id, "answer", { text: `The tool failed: ${error.message}` });
      });
    }
    if (!chat.follows()) return;
    chat.status.say(t(page ? "This page has no tool %s. The answer waits for it." : "%s waits for the page where you asked.", tool));
    setTimeout(() => chat.follows() && runTool(chat, run, frame).catch((error) => chat.status.say(error.message, "fault")), LOOK);
  };
  await (navigator.locks?.request(id, answer) ?? answer());
}

// As text.
async function resultOf(tool, values) {
  try {
    const result = await tool.handler(values);
    return typeof result === "string" ? result : JSON.stringify(result ?? null);
  } catch (error) {
    return `The tool failed: ${error?.message ?? error}`;
  }
}
