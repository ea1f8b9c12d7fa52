// Below an ended answer: what its reader may do next, and what it has used.

import { newKey } from "../ravi-client.js";
import { button, copyButton, element } from "./element.js";
import { t, took } from "./words.js";

// Of the newest answer of a conversation the figures count all runs below it. Calls `on.open(session)` and `on.fault(message)`.
export async function showFoot(api, run, answer, newest, on) {
  const { usage } = newest && !run.parent ? (await api.get(`runs/${run.id}/tree/`)).tree : run;
  const buttons = answer.text ? [copyButton(() => answer.text)] : [];
  if (run.status === "failed") buttons.push(retry(api, run, on));
  else if (!run.parent) buttons.push(again(api, run, on));
  if (run.status === "completed") buttons.push(...(await rating(api, run, newest, on)));
  const viewer = element("a", "", t("Show the run"));
  viewer.href = new URL(`ui/runs/${run.id}/`, api.base);
  const time = took(Date.parse(run.finished_at) - Date.parse(run.created_at));
  answer.foot([...buttons, viewer], `${time} · ${usage.estimated ? "≈ " : ""}${usageInWords(usage.input_tokens + usage.output_tokens, usage.cost)}`);
}

// Continue a failed run.
function retry(api, run, on) {
  return action(t("Try again"), "", on, async () => {
    await api.post(`runs/${run.id}/retry/`);
    on.open(run.session);
  });
}

// Answer the same message once more: a fork of the run before its first step. It becomes another version of the message.
function again(api, run, on) {
  const key = newKey(); // a second press opens the same fork
  return action(t("Answer again"), "quiet", on, async () => {
    const fork = await api.post(`runs/${run.id}/fork/`, { after_seq: 1, idempotency_key: key });
    on.open(fork.session, fork.id, true);
  });
}

// What the reader thinks of the answer. Only of the newest one is it read: a long conversation asks once.
async function rating(api, run, newest, on) {
  const path = `runs/${run.id}/feedback/`;
  const kept = newest ? (await api.get(path))?.score : null;
  const made = [[1, t("Good")], [-1, t("Bad")]].map(([score, word]) => {
    const rate = action(word, "quiet", on, async () => {
      await api.put(path, { score });
      for (const other of made) other.setAttribute("aria-pressed", String(other === rate));
    });
    rate.setAttribute("aria-pressed", String(score === kept));
    return rate;
  });
  return made;
}

export function action(text, className, on, act) {
  const made = button(
    text,
    async () => {
      made.disabled = true;
      try {
        await act();
      } catch (error) {
        on.fault(error.message);
      }
      made.disabled = false;
    },
    className,
  );
  return made;
}

export function usageInWords(tokens, cost) {
  const price = cost === null ? "–" : cost === 0 ? t("no cost") : `$${Number(cost.toPrecision(2))}`;
  return `${t("%s tokens", tokens.toLocaleString())} · ${price}`;
}
